"""Edits of a running model: what a layer receives, gives or gets back as gradient is changed.

How an edit and other hooks on the same layer compose is PyTorch's own rule: who came first acts
first. ``with Capture(...), edit(...)`` records what the layer itself gave, ``with edit(...),
Capture(...)`` what goes on to the next layer, after the edit. A gradient travels the other way,
so in either order the capture records what the edit made of it.
"""

from __future__ import annotations

import fnmatch
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeAlias, TypedDict

import torch
from torch import Tensor, nn

from hookviz._text import error_text, names_text
from hookviz.activation import Kind
from hookviz.capture._checks import check, check_count
from hookviz.capture._edit_heads import Heads, SecondCall, heads_of
from hookviz.capture._hooks import named_arguments, parameter_names
from hookviz.capture._leaves import change_leaves, describe, leaves
from hookviz.capture._module_hooks import (
    StaysHere,
    Watcher,
    bypass_compiled,
    set_forward_hook,
    set_pre_hook,
    set_tensor_hook,
    watch_calls,
)
from hookviz.capture._store import backward_is_running
from hookviz.capture._tree import LayerSelector, ModuleTree, select_from
from hookviz.errors import CaptureError, LayerError

Layers: TypeAlias = LayerSelector | Iterable[LayerSelector]


class Where(TypedDict, total=False):
    """Which tensors of its layers an edit changes; `Edit` has the meanings."""

    call: int | None
    leaf: str | None


@dataclass(frozen=True)
class Site:
    """Where an edit acts just now.

    Attributes:
        layer: The layer's name.
        module: Its module.
        call: Which call of the layer in this forward, from 1.
        kind: "output", "input", "output_gradient" or "input_gradient".
        leaf: Path of the tensor in what the layer received or gave; "" for a bare tensor.
        recomputed: The call is one that activation checkpointing makes again.
        heads: How many attention heads lie along the last axis; 0 where they are not what is
            edited.
    """

    layer: str
    module: nn.Module
    call: int
    kind: Kind
    leaf: str
    recomputed: bool = False
    heads: int = 0

    def __str__(self) -> str:
        leaf = f"[{self.leaf}]" if self.leaf else ""
        return f"the {self.kind.replace('_', ' ')} of '{self.layer}'{leaf}"


@dataclass(frozen=True)
class Edit:
    """One change of a running model; the ready-made ones come from functions.

    Attributes:
        layers: Selectors of the layers (names, globs, patterns, types, modules, predicates).
        kind: What is changed: "output", "input", "output_gradient" or "input_gradient".
        change: (tensor, site) → the tensor to go on with. It must return a new tensor and leave
            the one it is given as it is.
        text: What it does, in words.
        call: Only this call of the layer within a forward, from 1; None for every call.
        leaf: Which tensor of a nested output or of several inputs: its path or a glob, "*" for
            all; inputs are named by the parameters of ``forward`` ("input", "x.0"). None for the
            only one; of several inputs the first, if it is a tensor passed by position.
        heads: These heads of attention layers: ``change`` is given all of them, as they are before
            the layer's projection, each head's share of the last axis behind the other's.
        recipe: What gives the same edit again, as plain values: the name of a ready-made edit
            ("edit") and its arguments; None where it holds a function or tensor of one's own.
    """

    layers: Layers
    kind: Kind
    change: Callable[[Tensor, Site], Tensor] = field(repr=False)
    text: str
    call: int | None = None
    leaf: str | None = None
    heads: tuple[int, ...] | None = None
    recipe: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.call is not None:
            check_count("call", self.call, 1)
        legal = "a path or glob such as '0'"
        check("leaf", self.leaf, legal, holds=isinstance(self.leaf, str | None))

    @property
    def _each(self) -> Sequence[Any]:
        return self.layers if isinstance(self.layers, list | tuple) else [self.layers]

    def __str__(self) -> str:
        """The edit in one line: "features.28 call 2: zero channel 7"."""
        names = [
            one if isinstance(one, str) else getattr(one, "__name__", str(one))
            for one in self._each
        ]
        shown = ", ".join(name or "(model)" for name in names[:3])
        shown += f" and {len(names) - 3} more" * (len(names) > 3)
        leaf = f"[{self.leaf}]" if self.leaf else ""
        call = f" call {self.call}" if self.call is not None else ""
        return f"{shown}{leaf}{call}: {self.text}"

    def to_json(self) -> dict[str, Any]:
        """The edit as values that JSON knows; `edit_from_json` makes it again.

        Returns:
            "edit", the name of the ready-made edit, its arguments, and "layers", a list of names
            or globs.

        Raises:
            CaptureError: It holds a function or tensor of one's own, or selects its layers by
                something else than names.

        Examples:
            >>> from hookviz.capture import scale
            >>> scale("conv1", 0.5, channels=3).to_json()
            {'edit': 'scale', 'factor': 0.5, 'channels': [3], 'layers': ['conv1']}
        """
        if self.recipe is None:
            raise CaptureError(f"'{self}' holds a function or tensor, which no file can say again.")
        if not all(isinstance(one, str) for one in self._each):
            raise CaptureError(f"'{self}' does not name its layers, so no file can say it again.")
        where = {"call": self.call, "leaf": self.leaf}
        chosen = {key: value for key, value in where.items() if value is not None}
        return {**self.recipe, **chosen, "layers": list(self._each)}

    def at(self, layers: Iterable[str]) -> Self:
        """The same edit with its layers named.

        Args:
            layers: Their names.
        """
        return replace(self, layers=list(layers))


def edit(model: nn.Module, *edits: Edit) -> Editing:
    """Runs a model edited, for the length of a ``with`` block.

    Edits of one layer act in the order in which they are given; blocks can be nested, and the
    outer one acts first. The user's tensors, and those that the layers made, are never changed in
    place: a copy goes on instead. Modes, parameters and random numbers are left alone (noise
    without a generator draws from torch's).

    Args:
        model: The model that will be called inside the block, in the ordinary way.
        edits: What to change.

    Returns:
        A context manager, which may be entered again after it was left. Leaving it, in whatever
        way, removes every hook; gradients of graphs made inside are not edited any more.

    Raises:
        LayerError: A layer is unknown, with the closest names; before anything runs.
        CaptureError: The model is TorchScript.

    A model made by ``torch.compile`` runs its original code inside the block. The edits act on
    every forward while the block is open, in whichever thread, and once more on the calls that
    activation checkpointing repeats.

    Examples:
        >>> from hookviz.capture import scale_channels
        >>> net = nn.Sequential(nn.Identity(), nn.Flatten())
        >>> x = torch.ones(1, 2, 1, 2)
        >>> with edit(net, scale_channels("0", 1, factor=3.0)):
        ...     net(x)
        tensor([[1., 1., 3., 3.]])
        >>> net(x)
        tensor([[1., 1., 1., 1.]])
    """
    return Editing(model, edits)


class _Calls(threading.local):
    """Counts the calls of layers within a forward, for each thread; watches the model's calls."""

    def __init__(self) -> None:
        self._depth = 0
        self._calls: dict[tuple[int, str], int] = {}
        self._reshaped: str | None = None

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> object:  # noqa: ARG002 - Watcher
        """A forward of the model begins: calls are counted from 1 again."""
        if self._depth == 0:
            self._calls = {}
        self._depth += 1
        return self

    def end(self, token: Any, error: BaseException | None) -> Exception | None:  # noqa: ARG002 - Watcher
        """The forward has ended, in whatever way; one that an edit made fail says so."""
        self._depth -= 1
        reshaped, self._reshaped = self._reshaped, None
        if reshaped is None or not isinstance(error, RuntimeError | ValueError | IndexError):
            return None
        text = error_text(error)
        return CaptureError(f"The forward failed after an edit changed {reshaped}: {text}")

    def changed(self, site: Site, before: Tensor, after: Tensor) -> None:
        """Note that an edit gave a tensor another shape, in case the forward fails by it."""
        old, new = describe(before), describe(after)
        if old != new:
            self._reshaped = f"{site} from {old} to {new}"

    def number(self, key: tuple[int, str], wanted: int | None) -> tuple[int, bool]:
        """Which call of a layer this is, and whether checkpointing makes it again.

        Args:
            key: Index of the edit and name of the layer.
            wanted: The one call that the edit is for, or None.
        """
        made = self._calls.get(key, 0)
        if backward_is_running() and self._depth == 0:
            if wanted is not None and made > 1:
                raise CaptureError(
                    f"'{key[1]}' ran {made} times, and which of them checkpointing repeats cannot "
                    f"be known, so call={wanted} cannot be edited.",
                    remedy="Edit every call (call=None) or switch checkpointing off.",
                )
            return max(made, 1), True
        self._calls[key] = made + 1
        return made + 1, False


class Editing(StaysHere):
    """The context of `edit`.

    Attributes:
        edits: The edits, in order.
        counts: How many tensors each edit has changed since the block was entered. Zero after a
            run means that its layer (or that call of it) did not run.
    """

    def __init__(self, model: nn.Module, edits: Iterable[Edit]) -> None:
        self.edits = tuple(edits)
        self.counts = [0] * len(self.edits)
        tree = ModuleTree(model)
        self._model = model
        self._root = tree.root
        self._plan: list[tuple[int, str, nn.Module, Heads | None]] = []
        self._seconds: dict[nn.Module, SecondCall] = {}
        for index, one in enumerate(self.edits):
            if not isinstance(one, Edit):
                raise CaptureError(f"edit takes edits, not {type(one).__name__}.")
            for name in select_from(tree, one.layers).values():
                module = tree.modules[name]
                heads = None
                if one.heads is not None:
                    heads = heads_of(name, module, tree.modules)
                    module = heads.module
                    if heads.kind == "attention":
                        self._seconds.setdefault(module, SecondCall())
                self._plan.append((index, name, module, heads))
        self._stack = ExitStack()
        self._open = False
        self._lock = threading.Lock()
        self._calls = _Calls()

    def __enter__(self) -> Editing:
        if self._open:
            raise CaptureError(
                "These edits are in force already; a second time needs its own edit()."
            )
        self.counts = [0] * len(self.edits)
        self._open = True
        try:
            bypass_compiled(self._model, self._stack.callback)
            watcher = Watcher(self._calls.begin, self._calls.end)
            self._stack.callback(watch_calls(self._root, watcher))
            for module, second in self._seconds.items():
                self._stack.callback(set_pre_hook(module, second.before))
            # Heads lie before the output, so their edits act before those of the output.
            for step in sorted(self._plan, key=lambda step: step[3] is None):
                self._hook(*step)
            for module, second in self._seconds.items():
                self._stack.callback(set_forward_hook(module, second.after))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the edits and removes their hooks; again is harmless."""
        self._open = False
        self._stack.close()

    @property
    def layers(self) -> tuple[tuple[str, ...], ...]:
        """The names of the layers that each edit acts on."""
        return tuple(
            tuple(name for at, name, *_ in self._plan if at == index)
            for index in range(len(self.edits))
        )

    def check_used(self) -> None:
        """Refuse an edit that has changed nothing since the block was entered.

        Raises:
            LayerError: The layer of an edit, or the call that it is for, did not run.
        """
        for one, count in zip(self.edits, self.counts, strict=True):
            if count == 0:
                call = "" if one.call is None else f", call {one.call},"
                raise LayerError(
                    f"The edit '{one.text}' changed nothing: its layer{call} did not run in this "
                    "forward."
                )

    def _hook(self, index: int, name: str, module: nn.Module, heads: Heads | None) -> None:
        kind = self.edits[index].kind if heads is None else heads.kind
        if kind in ("input", "input_gradient"):
            names = parameter_names(module)

            def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
                if kwargs is None:
                    return None
                given = named_arguments(args, kwargs, names)
                first = next(iter(given)) if args else None
                new = self._edited(index, name, module, given, first, heads=heads)
                if new is None:
                    return None
                positional = list(given)[: len(args)]
                return tuple(new[n] for n in positional), {n: new[n] for n in kwargs}

            self._stack.callback(set_pre_hook(module, before))
        else:

            def after(module: nn.Module, _: Any, out: Any) -> Any:
                return self._edited(index, name, module, out, heads=heads)

            self._stack.callback(set_forward_hook(module, after))

    def _edited(
        self,
        index: int,
        name: str,
        module: nn.Module,
        value: Any,
        first: str | None = None,
        *,
        heads: Heads | None = None,
    ) -> Any:
        """The value with the chosen leaves changed; None where the call is not meant."""
        one = self.edits[index]
        call, recomputed = self._calls.number((index, name), one.call)
        if one.call is not None and call != one.call:
            return None
        paths = [path for path, _ in leaves(value)]
        # Of an attention the first leaf is the answer, the others are weights and caches.
        chosen = set(paths[:1]) if heads is not None else _chosen(one, name, paths, first)

        def change(path: str, tensor: Tensor) -> Tensor:
            if path not in chosen:
                return tensor
            count = 0 if heads is None else heads.count
            site = Site(name, module, call, one.kind, path, recomputed, count)
            if one.kind in ("output", "input"):
                self._count(index)
                if heads is not None and isinstance(module, nn.MultiheadAttention):
                    second = self._seconds[module]
                    return second.edited(module, tensor, lambda t: one.change(t, site))
                changed = one.change(tensor, site)
                self._calls.changed(site, tensor, changed)
                return changed
            return self._with_gradient(index, tensor, site)

        return change_leaves(value, change)

    def _with_gradient(self, index: int, tensor: Tensor, site: Site) -> Tensor:
        """The tensor in such a form that its gradient is changed on its way back."""
        if not (torch.is_grad_enabled() and tensor.requires_grad):
            return tensor

        def hook(gradient: Tensor) -> Tensor | None:
            if not self._open:
                return None
            self._count(index)
            new = self.edits[index].change(gradient, site)
            was, became = (
                f"of shape {tuple(t.shape)}, {t.dtype} on {t.device}" for t in (gradient, new)
            )
            if was != became:
                raise CaptureError(f"{site} must stay {was}, but the edit made it {became}.")
            return new

        # A copy: a hook on the tensor itself would also see what flows back from
        # elsewhere (a skip connection round the layer), would stay on a tensor of the user's, and
        # is lost by autograd where a view is changed in place. Only the input of an in-place
        # layer must stay the very tensor, since others may read what the layer wrote into it.
        in_place = site.kind == "input_gradient" and getattr(site.module, "inplace", False)
        held = tensor if in_place and tensor._base is None else tensor.clone()  # noqa: SLF001
        set_tensor_hook(held, hook)
        return held

    def _count(self, index: int) -> None:
        with self._lock:
            self.counts[index] += 1


def _chosen(one: Edit, layer: str, paths: list[str], first: str | None) -> set[str]:
    what = one.kind.removesuffix("_gradient")
    if not paths:
        raise CaptureError(f"The {what} of '{layer}' holds no tensor, so it cannot be edited.")
    if one.leaf is not None:
        found = {one.leaf} & set(paths) or {p for p in paths if fnmatch.fnmatchcase(p, one.leaf)}
        if not found:
            raise LayerError(
                f"The {what} of '{layer}' has no leaf '{one.leaf}'; it has {names_text(paths, 8)}."
            )
        return found
    if len(paths) == 1 or paths[0] == first:
        return {paths[0]}
    raise LayerError(
        f"The {what} of '{layer}' holds {len(paths)} tensors: say which by leaf=, one of "
        f"{names_text(paths, 8)}, or '*' for all."
    )
