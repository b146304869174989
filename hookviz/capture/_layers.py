"""Which layers a model has, and which of them a user means.

In: a module and what the user wrote (names, globs, patterns, types, modules, predicates).
Out: layer facts and exact layer names. Must not know: hooks, tensors, pictures.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hookviz._text import names_text
from hookviz.capture._tree import LayerSelector, LayerTree, resolve, said, type_name
from hookviz.errors import LayerError

__all__ = [
    "LayerInfo",
    "LayerSelector",
    "LayerTree",
    "list_layers",
    "resolve",
    "select_from",
    "select_layers",
]


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
    tree = LayerTree(module)
    return [
        LayerInfo(
            name=name,
            type=type_name(layer),
            aliases=tree.aliases(name),
            parameters=sum(_size(p) for p in layer.parameters()),
            own_parameters=sum(_size(p) for p in layer.parameters(recurse=False)),
            depth=name.count(".") + 1 if name else 0,
            is_leaf=next(layer.children(), None) is None,
        )
        for name, layer in tree.modules.items()
    ]


def select_layers(
    module: nn.Module,
    selectors: LayerSelector | Iterable[LayerSelector] | Mapping[str, LayerSelector],
) -> dict[str, str]:
    """The layers that a user means, checked before any forward.

    A name is tried as it stands, then as an alias of a shared module, then without ``module.``
    and ``_orig_mod.``, then as a glob, where ``*`` also matches dots. A compiled regular
    expression matches where ``search`` finds it in a name. Globs and expressions leave out the
    model itself; ``""`` names it.

    Args:
        module: The model; it is not run.
        selectors: One selector or several, or a mapping from a name of one's own to a selector
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
    return select_from(LayerTree(module), selectors)


def select_from(
    tree: LayerTree,
    selectors: LayerSelector | Iterable[LayerSelector] | Mapping[str, LayerSelector],
) -> dict[str, str]:
    """The same as ``select_layers`` for a model whose layers are known already."""
    if isinstance(selectors, Mapping) and not isinstance(selectors, nn.Module):
        chosen: dict[str, str] = {}
        for own, selector in selectors.items():
            found = tree.find(selector)
            if len(found) != 1:
                raise LayerError(
                    f"'{own}' must stand for one layer, but {said(selector)} matches "
                    f"{len(found)}: {names_text(found)}."
                )
            chosen[str(own)] = found[0]
    else:
        chosen = {name: name for selector in _each(selectors) for name in tree.find(selector)}
    if not chosen:
        raise LayerError(f"No layer of {tree.type} was chosen; give at least one.")
    return chosen


def _each(selectors: LayerSelector | Iterable[LayerSelector]) -> Iterator[LayerSelector]:
    # Strings, Sequential and predicates with __iter__ are selectors, although they can be iterated.
    if isinstance(selectors, (str, nn.Module, re.Pattern, type)) or callable(selectors):
        yield selectors
    elif isinstance(selectors, Iterable):
        yield from selectors
    else:
        # One selector of no known kind: find() says what is legal.
        yield selectors  # type: ignore[unreachable]


def _size(parameter: torch.Tensor) -> int:
    return 0 if is_lazy(parameter) else parameter.numel()
