"""The layers of a model, and which of them a user means."""

from __future__ import annotations

import fnmatch
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hookviz._text import names_text
from hookviz.errors import CaptureError, HookvizError, LayerError, did_you_mean

LayerSelector: TypeAlias = (
    str | re.Pattern[str] | type[nn.Module] | nn.Module | Callable[[str, nn.Module], bool]
)
"""A name, alias or glob; a compiled regular expression; a module type; a module; a predicate."""

LayerSelectors: TypeAlias = LayerSelector | Iterable[LayerSelector] | Mapping[str, LayerSelector]
"""One selector or several, or a mapping from names of one's own."""

_COMPILED = "_orig_mod"
_ScriptModule, _GraphModule = torch.jit.ScriptModule, torch.fx.GraphModule  # looked up per layer
_WRAPPED = "module"


def resolve(module: nn.Module) -> nn.Module:
    """The Python module that hooks can see into.

    Args:
        module: Any module. One made by ``torch.compile`` stands for the module it was made of.

    Returns:
        ``module`` itself, or the original module under ``torch.compile``; never a copy.

    Raises:
        CaptureError: It is no ``nn.Module``, or a TorchScript module: a scripted module refuses
            hooks and a traced one accepts them and never calls its children's.
    """
    while is_compiled_wrapper(module):
        module = module._modules[_COMPILED]  # type: ignore[assignment]  # noqa: SLF001 - the wrapper forwards attribute look-ups to the module it holds
    if isinstance(module, _ScriptModule):
        raise CaptureError(
            f"{type_name(module)} is a TorchScript module, where hooks are not supported.",
            remedy="Use the Python model that it was scripted or traced from.",
        )
    given: object = module
    if not isinstance(given, nn.Module):
        found = given if isinstance(given, type) else type(given)
        raise CaptureError(
            f"A torch.nn.Module is needed, but {found.__name__} was given.",
            remedy=next((hint for kind, hint in _HINTS.items() if isinstance(given, kind)), None),
        )
    return module


_HINTS: dict[type, str] = {
    torch.jit.ScriptFunction: "A TorchScript function has no layers: use the Python model.",
    torch.export.ExportedProgram: "Give its module().",
    type: "Build the model first and give the instance.",
}


class ModuleTree:
    """The modules of a model under their names.

    Args:
        module: The model; compiled modules in it are seen through.

    Attributes:
        root: The model, resolved.
        type: Its class name.
        modules: Layer name → module in ``named_modules()`` order, each module once.
        wrappers: The modules that ``torch.compile`` wrapped around others.
        uncalled: Modules that a program of ``torch.export`` or ``torch.fx`` keeps for their
            parameters and never calls, so that hooks on them never run; they are no layers.
        scripts: The names of the TorchScript modules among them.
    """

    def __init__(self, module: nn.Module) -> None:
        self.root = resolve(module)
        self.type = type_name(self.root)
        self.modules: dict[str, nn.Module] = {}
        self._names: dict[int, list[str]] = {}
        self.wrappers: list[nn.Module] = []
        self.uncalled: set[str] = set()
        self.scripts: list[str] = []
        self._canonical: dict[str, str] = {}
        self._add("", module, set(), None)

    def _add(self, name: str, layer: nn.Module, above: set[int], called: set[str] | None) -> None:
        # As named_modules(remove_duplicate=False), in half the time; a module below itself,
        # which that would follow for ever, is not followed.
        key = id(layer)
        if key in above:
            return
        above.add(key)
        prefix = f"{name}." if name else ""
        children: Iterable[tuple[str, nn.Module | None]] = layer._modules.items()  # noqa: SLF001 - named_children drops aliases
        if is_compiled_wrapper(layer):
            self.wrappers.append(layer)
            prefix, children = name, [("", layer._modules[_COMPILED])]  # noqa: SLF001 - see resolve()
        elif called is not None and name not in called:
            self.uncalled.add(name)
        else:
            called = None  # below a layer that is called, all is ordinary again
            names = self._names.get(key)
            if names is None:
                names = self._names[key] = []
                self.modules[name] = layer
                if isinstance(layer, _ScriptModule):
                    self.scripts.append(name)
            if name not in self._canonical:
                names.append(name)
                self._canonical[name] = names[0]
            if isinstance(layer, _GraphModule):
                calls = (node for node in layer.graph.nodes if node.op == "call_module")
                called = {f"{prefix}{node.target}" for node in calls} - {f"{prefix}_guards_fn"}
        for part, child in children:
            if child is not None:
                self._add(prefix + part, child, above, called)
        above.discard(key)

    @cached_property
    def _short(self) -> dict[str, list[str]]:
        """Names without ``module.`` → layers."""
        short: dict[str, list[str]] = {}
        for name, canonical in self._canonical.items():
            same = short.setdefault(_shortened(name), [])
            if canonical not in same:
                same.append(canonical)
        return short

    def names(self, name: str) -> tuple[str, ...]:
        """All names of a layer's module, that of the layer first."""
        return tuple(self._names[id(self.modules[name])])

    def above(self, name: str) -> Iterator[nn.Module]:
        """The modules above a name, nearest first."""
        while name:
            name = name.rpartition(".")[0]
            if name in self._canonical:
                yield self.modules[self._canonical[name]]

    def find(self, selector: LayerSelector) -> list[str]:
        """The layers that one selector means, in order of the model.

        Raises:
            LayerError: It matches nothing, or is of no known kind.
        """
        if isinstance(selector, str):
            exact = self.name_of(selector)
            if exact is not None:
                return [exact]
            if any(c in selector for c in "*?["):
                return self._matching(selector, re.compile(fnmatch.translate(selector)).match)
            raise self._unknown(selector)
        if isinstance(selector, nn.Module):
            names = self._names.get(id(resolve(selector)))
            if names is None:
                raise LayerError(f"This {type_name(selector)} is not a module of {self.type}.")
            return names[:1]
        if isinstance(selector, re.Pattern):
            return self._matching(selector, selector.search)
        if isinstance(selector, type):
            if not issubclass(selector, nn.Module):
                raise LayerError(
                    f"A type of layers must be a torch.nn.Module, not {selector.__name__}."
                )
            found = [n for n, m in self.modules.items() if isinstance(m, selector)]
            if not found:
                kinds = sorted({type_name(m) for m in self.modules.values()})
                raise LayerError(
                    f"{self.type} has no layer of type {selector.__name__}; it has "
                    f"{names_text(kinds, 12)}."
                )
            return found
        if callable(selector):
            try:
                with suppress(ValueError):  # it does not say what it takes
                    inspect.signature(selector).bind("", self.root)
            except TypeError:
                raise LayerError(
                    "A predicate is called with a name and a module, which "
                    f"{selector_text(selector)} does not take."
                ) from None
            found = [n for n, m in self.modules.items() if selector(n, m)]
            if not found:
                raise LayerError(f"No layer of {self.type} satisfies {selector_text(selector)}.")
            return found
        raise LayerError(
            "A layer is chosen by a name, glob, compiled regular expression, module type, module "
            f"or predicate, not by {type(selector).__name__}."
        )

    def name_of(self, name: str) -> str | None:
        """The layer that an exact name, alias or shortened name means, or None."""
        if name in self._canonical:
            return self._canonical[name]
        short = self._short.get(_shortened(name), [])
        if len(short) > 1:
            raise LayerError(f"'{name}' may be any of {names_text(short)}: write the full name.")
        return short[0] if short else None

    def _matching(self, selector: LayerSelector, matches: Callable[[str], object]) -> list[str]:
        """The layers some name of which, or else some shortened name, a glob or pattern matches."""
        found = [layer for n, layer in self._canonical.items() if n and matches(n)] or [
            layer for n, layers in self._short.items() if n and matches(n) for layer in layers
        ]
        if found:
            return list(dict.fromkeys(found))
        if any(matches(n) for n in self.uncalled):
            raise self._never_called()
        text = selector_text(selector)
        near = did_you_mean(text.strip("'*?./^$"), self._canonical)
        raise LayerError(f"No layer of {self.type} matches {text}.", remedy=near or None)

    def _never_called(self) -> CaptureError:
        return CaptureError(
            f"Hooks do not work on {names_text(sorted(self.uncalled))}: the program that "
            "torch.export or torch.fx made keeps them for their parameters and never calls them.",
            remedy="Use the Python model that it was made from, or one of its layers that are "
            f"called: {names_text(self.modules)}.",
        )

    def _unknown(self, name: str) -> HookvizError:
        if name in self.uncalled:
            return self._never_called()
        near = did_you_mean(name, [n for n in self._canonical if n])
        few = len(self._canonical) <= 12
        has = f"; it has {names_text(list(self._canonical), 12)}" if few and not near else ""
        functional = ""
        if name.rpartition(".")[2] in dir(nn.functional):
            functional = " Functional calls such as F.relu are no modules and cannot be hooked."
        return LayerError(
            f"{self.type} has no layer '{name}'{has}.{functional}", remedy=near or None
        )


def type_name(module: nn.Module) -> str:
    """The class name of a module; of a TorchScript module, that of its source."""
    script = isinstance(module, _ScriptModule)
    return str(getattr(module, "original_name", "")) if script else type(module).__name__


def depth_of(name: str) -> int:
    """How many names deep a layer lies; 0 for the model itself."""
    return name.count(".") + 1 if name else 0


def is_compiled_wrapper(module: Any) -> bool:
    """Whether ``torch.compile`` made it around another module."""
    return type(module).__name__ == "OptimizedModule" and isinstance(module, nn.Module)


def _shortened(name: str) -> str:
    """A name without the parts that DataParallel and torch.compile add."""
    return ".".join(part for part in name.split(".") if part not in (_COMPILED, _WRAPPED))


def selector_text(selector: LayerSelector) -> str:
    """A selector as messages show it."""
    if isinstance(selector, re.Pattern):
        return f"/{selector.pattern}/"
    if isinstance(selector, str):
        return f"'{selector}'"
    return str(getattr(selector, "__name__", type(selector).__name__))


@dataclass(frozen=True)
class LayerInfo:
    """One layer of a model.

    Attributes:
        name: Dotted ``named_modules()`` path; "" is the model itself.
        type: Class name of the module, for example "Conv2d".
        aliases: Further paths under which the same module is registered.
        parameters: Number of parameter values of the layer and of all below it, each tensor
            once; parameters of lazy modules that have no shape yet count 0.
        own_parameters: Number of parameter values registered on this module itself.
        depth: 0 for the model itself, else the number of parts of the name.
        is_leaf: True where no modules lie below.
    """

    name: str
    type: str
    aliases: tuple[str, ...]
    parameters: int
    own_parameters: int
    depth: int
    is_leaf: bool


def list_layers(module: nn.Module) -> list[LayerInfo]:
    """Every layer of a model, in ``named_modules()`` order, the model itself (``""``) first.

    A module registered under several names is listed once, with its other names as aliases.
    ``_orig_mod.`` of compiled modules is left out of the names; ``module.`` of ``DataParallel``
    stays, as PyTorch names it.

    Args:
        module: The model; it is not run.

    Returns:
        One record per layer.

    Raises:
        CaptureError: It is a TorchScript module.

    Examples:
        >>> act = nn.ReLU()
        >>> net = nn.Sequential(nn.Linear(4, 5), act, nn.Linear(5, 3), act)
        >>> [(layer.name, layer.type, layer.aliases) for layer in list_layers(net)][1:3]
        [('0', 'Linear', ()), ('1', 'ReLU', ('3',))]
        >>> list_layers(net)[0].parameters
        43
    """
    tree = ModuleTree(module)
    return [
        LayerInfo(
            name=name,
            type=type_name(layer),
            aliases=tree.names(name)[1:],
            parameters=_count(layer.parameters()),
            own_parameters=_count(layer.parameters(recurse=False)),
            depth=depth_of(name),
            is_leaf=next(layer.children(), None) is None,
        )
        for name, layer in tree.modules.items()
    ]


def select_layers(module: nn.Module, selectors: LayerSelectors) -> dict[str, str]:
    """The layers that a user means, checked before any forward.

    A name is tried as it stands, then as an alias of a shared module, then without ``module.``
    and ``_orig_mod.``, then as a glob, where ``*`` also matches dots. A compiled regular
    expression matches where ``search`` finds it in a name. Globs and expressions leave out the
    model itself; ``""`` names it.

    Args:
        module: The model; it is not run.
        selectors: One selector or several, or a mapping from a name that you choose to a selector
            that means exactly one layer.

    Returns:
        Own name → layer name, in the order of the selectors and, within one, of the layers. The
        two are the same unless a mapping was given. A layer meant twice comes once.

    Raises:
        LayerError: A selector matches nothing (the message has the closest names), or, in a
            mapping, more than one layer.
        CaptureError: The model is a TorchScript module.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
        >>> select_layers(net, ["0", nn.ReLU])
        {'0': '0', '1': '1', '3': '3'}
        >>> select_layers(net, {"first conv": "0"})
        {'first conv': '0'}
        >>> select_layers(net, "4")
        Traceback (most recent call last):
        ...
        hookviz.errors.LayerError: Sequential has no layer '4'; it has '', '0', '1', '2', '3'.
    """
    return select_from(ModuleTree(module), selectors)


def select_from(tree: ModuleTree, selectors: LayerSelectors) -> dict[str, str]:
    """The same as ``select_layers`` for a model whose layers are known already."""
    if isinstance(selectors, Mapping) and not isinstance(selectors, nn.Module):
        chosen: dict[str, str] = {}
        for key, selector in selectors.items():
            found = tree.find(selector)
            if len(found) != 1:
                raise LayerError(
                    f"'{key}' must stand for one layer, but {selector_text(selector)} matches "
                    f"{len(found)}: {names_text(found)}."
                )
            chosen[str(key)] = found[0]
    else:
        # Sequential and predicates with __iter__ are selectors, although they can be iterated.
        many = isinstance(selectors, Iterable) and not (
            isinstance(selectors, str) or callable(selectors)
        )
        each: Any = selectors if many else [selectors]
        chosen = {name: name for selector in each for name in tree.find(selector)}
    if not chosen:
        raise LayerError(f"No layer of {tree.type} was chosen; give at least one.")
    return chosen


def _count(parameters: Iterable[nn.Parameter]) -> int:
    return sum(0 if is_lazy(p) else p.numel() for p in parameters)
