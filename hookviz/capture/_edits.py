"""Edits of a running model: what a layer receives, gives or gets back as gradient is changed.

In: a model and edits. Out: a context in which the model runs edited.
Must not know: what the ready-made edits do, captures, pictures.

How an edit and other hooks on the same layer compose is PyTorch's own rule: who came first acts
first. ``with Capture(...), edit(...)`` records what the layer itself gave, ``with edit(...),
Capture(...)`` what goes on to the next layer, after the edit. A gradient travels the other way,
so in either order the capture records what the edit made of it.
"""

from __future__ import annotations

import fnmatch
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from hookviz._text import names_text
from hookviz.capture._guard import bypass_compiled, watch_calls
from hookviz.capture._hooks import parameter_names
from hookviz.capture._layers import LayerTree
from hookviz.capture._leaves import describe, leaves
from hookviz.capture._module_hooks import (
    StaysHere,
    set_forward_hook,
    set_pre_hook,
    set_tensor_hook,
)
from hookviz.capture._rebuild import change_leaves
from hookviz.capture._sites import Edit, Layers, Site
from hookviz.capture._store import backward_is_running
from hookviz.errors import CaptureError, LayerError

__all__ = ["Editing", "edit"]


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
        >>> from hookviz.capture._channels import scale_channels
        >>> net = nn.Sequential(nn.Identity(), nn.Flatten())
        >>> x = torch.ones(1, 2, 1, 2)
        >>> with edit(net, scale_channels("0", 1, factor=3.0)):
        ...     net(x)
        tensor([[1., 1., 3., 3.]])
        >>> net(x)
        tensor([[1., 1., 1., 1.]])
    """
    return Editing(model, edits)


class Editing(StaysHere):
    """The context of :func:`edit`.

    Attributes:
        edits: The edits, in order.
        counts: How many tensors each edit has changed since the block was entered. Zero after a
            run means that its layer (or that call of it) did not run.
    """

    def __init__(self, model: nn.Module, edits: Iterable[Edit]) -> None:
        self.edits = tuple(edits)
        self.counts = [0] * len(self.edits)
        for one in self.edits:
            if not isinstance(one, Edit):
                raise CaptureError(f"edit takes edits, not {type(one).__name__}.")
        tree = LayerTree(model)
        self._model = model
        self._root = tree.root
        self._plan: list[tuple[int, str, nn.Module]] = []
        for index, one in enumerate(self.edits):
            for name in _names(tree, one.layers):
                self._plan.append((index, name, tree.modules[name]))
        self._stack = ExitStack()
        self._open = False
        self._lock = threading.Lock()
        self._local = threading.local()

    def __enter__(self) -> Editing:
        if self._open:
            raise CaptureError(
                "These edits are in force already; a second time needs its own edit()."
            )
        self.counts = [0] * len(self.edits)
        self._open = True
        try:
            for undo in bypass_compiled(self._model):
                self._stack.callback(undo)
            self._stack.callback(watch_calls(self._root, self))
            for index, name, module in self._plan:
                self._hook(index, name, module)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the edits and removes their hooks; again is harmless."""
        self._open = False
        self._stack.close()

    # Calls -------------------------------------------------------------------------------------

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> object:  # noqa: ARG002 - Watcher
        """A forward of the model begins: calls are counted from 1 again."""
        depth = getattr(self._local, "depth", 0)
        self._local.depth = depth + 1
        if depth == 0:
            self._local.calls = {}
        return self

    def end(self, token: Any, error: BaseException | None) -> Exception | None:  # noqa: ARG002 - Watcher
        """The forward has ended, in whatever way; one that an edit made fail says so."""
        self._local.depth -= 1
        reshaped = self._local.__dict__.pop("reshaped", None)
        if reshaped is None or not isinstance(error, RuntimeError | ValueError | IndexError):
            return None
        first = next(iter(str(error).splitlines()), type(error).__name__)
        return CaptureError(f"The forward failed after an edit changed {reshaped}: {first}")

    def _call(self, index: int, name: str) -> tuple[int, bool]:
        """Which call of the layer this is, and whether checkpointing makes it again."""
        calls: dict[tuple[int, str], int] | None = getattr(self._local, "calls", None)
        if calls is None:
            calls = self._local.calls = {}
        if backward_is_running() and getattr(self._local, "depth", 0) == 0:
            made = calls.get((index, name), 0)
            if self.edits[index].call is not None and made > 1:
                raise CaptureError(
                    f"'{name}' ran {made} times, and which of them checkpointing repeats cannot "
                    f"be known, so call={self.edits[index].call} cannot be edited.",
                    remedy="Edit every call (call=None) or switch checkpointing off.",
                )
            return max(made, 1), True
        calls[index, name] = calls.get((index, name), 0) + 1
        return calls[index, name], False

    # Hooks -------------------------------------------------------------------------------------

    def _hook(self, index: int, name: str, module: nn.Module) -> None:
        one = self.edits[index]
        if one.kind in ("input", "input_gradient"):
            names = parameter_names(module)

            def before(
                module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None
            ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
                if kwargs is None:
                    return None
                new = self._edited(index, name, module, _Inputs(names(len(args)), args, kwargs))
                return None if new is None else (new.args, new.kwargs)

            self._stack.callback(set_pre_hook(module, before))
        else:

            def after(module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
                return self._edited(index, name, module, output)

            self._stack.callback(set_forward_hook(module, after))

    def _edited(self, index: int, name: str, module: nn.Module, value: Any) -> Any:
        """The value with the chosen leaves changed; None where the call is not meant."""
        one = self.edits[index]
        call, recomputed = self._call(index, name)
        if one.call is not None and call != one.call:
            return None
        parts: Any = value.parts() if isinstance(value, _Inputs) else value
        first = value.names[0] if isinstance(value, _Inputs) and value.names else None
        chosen = _chosen(one, name, [path for path, _ in leaves(parts)], first)

        def change(path: str, tensor: Tensor) -> Tensor:
            if path not in chosen:
                return tensor
            site = Site(name, module, call, one.kind, path, recomputed)
            if one.kind in ("output", "input"):
                self._count(index)
                changed = one.change(tensor, site)
                if describe(changed) != describe(tensor):
                    shapes = f"from {describe(tensor)} to {describe(changed)}"
                    self._local.reshaped = f"{site} {shapes}"
                return changed
            return self._with_gradient(index, tensor, site)

        new = change_leaves(parts, change)
        return value.with_parts(new) if isinstance(value, _Inputs) else new

    def _with_gradient(self, index: int, tensor: Tensor, site: Site) -> Tensor:
        """The tensor in such a form that its gradient is changed on its way back."""
        if not (torch.is_grad_enabled() and tensor.requires_grad):
            return tensor

        def hook(gradient: Tensor) -> Tensor | None:
            if not self._open:
                return None
            self._count(index)
            new = self.edits[index].change(gradient, site)
            same = (new.shape, new.dtype, new.device) == (
                gradient.shape, gradient.dtype, gradient.device,
            )  # fmt: skip
            if not same:
                raise CaptureError(
                    f"{site} must stay of shape {tuple(gradient.shape)}, {gradient.dtype} on "
                    f"{gradient.device}, but the edit made it {tuple(new.shape)}, {new.dtype} on "
                    f"{new.device}."
                )
            return new

        # A copy of one's own: a hook on the tensor itself would also see what flows back from
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


@dataclass
class _Inputs:
    """Positional and keyword arguments of one call, the positional ones with their names."""

    names: list[str]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def parts(self) -> dict[str, Any]:
        """Names with their values: the leaf paths of inputs start with them."""
        return {**dict(zip(self.names, self.args, strict=True)), **self.kwargs}

    def with_parts(self, parts: dict[str, Any]) -> _Inputs:
        args = tuple(parts[name] for name in self.names)
        return _Inputs(self.names, args, {name: parts[name] for name in self.kwargs})


def _names(tree: LayerTree, layers: Layers) -> list[str]:
    one = isinstance(layers, str | nn.Module | type) or callable(layers)
    each: Any = [layers] if one or not isinstance(layers, Iterable) else layers
    names = [name for selector in each for name in tree.find(selector)]
    if not names:
        raise LayerError(f"An edit of {tree.type} chose no layer; give at least one.")
    return list(dict.fromkeys(names))


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
