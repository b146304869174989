"""Gradients of what layers receive and give, without module backward hooks.

Full backward hooks raise beside in-place layers and skip dict and list outputs. A tensor hook set
while the forward runs does neither. Two traps remain and are closed here:

* A tensor hook on a *view* (the output of ``Flatten``) is lost when a later layer changes the
  memory in place, since autograd then rebuilds the view's history from its base. When the forward
  ends, the operation that did it is found in the graph and its gradient is taken instead.
* A layer that hands its input on (``Identity``, ``Dropout`` in eval mode) or whose input others
  use too shares a tensor with them. A view of its own, made in the hook, tells their gradients
  apart.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock, get_ident
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hookviz.activation import Activation, Kind
from hookviz.capture._hooks import named_inputs, not_kept
from hookviz.capture._leaves import leaves
from hookviz.capture._module_hooks import set_tensor_hook
from hookviz.capture._snapshot import Snapshot
from hookviz.capture._store import Forward, Hooked, Store, ThreadLog
from hookviz.errors import CaptureError

Call: TypeAlias = tuple[ThreadLog, int, int]
"""Where a call was recorded, its number and its order."""


@dataclass(eq=False, slots=True)
class Target:
    """Where a gradient belongs; the call is 0 until the call has ended."""

    run: weakref.ref[Forward]
    index: int
    module_type: str
    kind: Kind
    leaf: str
    place: int
    call: int = 0
    order: int = 0


def require_grad(name: str, tensor: Any) -> None:
    """Refuse what can have no gradient, by name.

    Raises:
        CaptureError: It is no tensor, or does not require a gradient.
    """
    if not isinstance(tensor, Tensor):
        raise CaptureError(f"'{name}' must be a tensor, not {type(tensor).__name__}.")
    if not tensor.requires_grad:
        raise CaptureError(
            f"'{name}' {tuple(tensor.shape)} does not require a gradient, so none will come.",
            remedy="Compute it with gradients switched on, or call requires_grad_() on it first.",
        )


def own_view(tensor: Tensor) -> Tensor:
    """The same values under a tensor whose gradient is separate from the tensor's.

    It hands any gradient on as it is; ``view_as`` would reshape it, which a sparse one refuses.
    """
    view: Tensor = torch.ops.aten.alias(tensor)
    return view


def with_views(value: Any, views: dict[int, Tensor]) -> Any:
    """The same arguments with a view in place of each tensor that requires a gradient.

    One tensor given twice becomes one view given twice: attention compares by identity.
    """
    if isinstance(value, Tensor):
        if not value.requires_grad:
            return value
        if id(value) not in views:
            views[id(value)] = own_view(value)
        return views[id(value)]
    if type(value) in (tuple, list):
        return type(value)(with_views(v, views) for v in value)
    if type(value) is dict:
        return {k: with_views(v, views) for k, v in value.items()}
    return value


def first_after(node: Any, old: Any) -> tuple[Any, int] | None:
    """The operation that first changed a tensor whose history ended in ``old``."""
    while node is not None and node is not old:
        following = node.next_functions
        for place, (earlier, _) in enumerate(following):
            if earlier is old:
                return node, place
        node = following[0][0] if following else None
    return None


def match_recomputation(run: Forward) -> None:
    """Give the calls of a recomputed part of the forward the numbers that they had in it.

    Checkpointed parts are recomputed from the last to the first, each from its beginning, so the
    recomputed sequence of layers is looked for from the end of the calls still without gradient.
    """
    recomputed, run.recomputed = run.recomputed, []
    wanted = [index for index, _ in recomputed]
    left = run.unrecorded
    for start in range(len(left) - len(wanted), -1, -1):
        part = left[start : start + len(wanted)]
        if [index for index, _, _ in part] == wanted:
            for (_, call, order), (_, targets) in zip(part, recomputed, strict=True):
                for target in targets:
                    target.call, target.order = call, order
            del left[start : start + len(wanted)]
            return


@dataclass(eq=False, slots=True)
class _View:
    """A view whose gradient may have to be taken from its base's history."""

    target: Target
    tensor: Tensor
    base: Tensor
    node: Any
    version: int


class GradientHooks:
    """Sets tensor hooks during forwards and stores what they are given.

    Args:
        store: The capture's store; held weakly by every tensor hook, so that a graph keeps no
            results alive.
        snapshot: How gradients are copied.
        outputs: Record gradients of outputs.
        inputs: Record gradients of inputs.
        on_activation: Called with each gradient.
    """

    def __init__(
        self,
        store: Store,
        snapshot: Snapshot,
        *,
        outputs: bool,
        inputs: bool,
        on_activation: Callable[[Activation], None] | None,
    ) -> None:
        self._store = weakref.ref(store)
        self._snapshot = snapshot
        self._outputs = outputs
        self._inputs = inputs
        self._on_activation = on_activation
        self._lock = Lock()
        self._waiting: dict[int, list[tuple[int, list[Target]]]] = {}

    def after_call(
        self, hooked: Hooked, module: nn.Module, args: Any, output: Any, call: Call | None
    ) -> Any:
        """What a layer's forward hook calls last; may give back another view of the output.

        Args:
            hooked: The layer.
            module: Its module.
            args: What it was called with.
            output: What it gave.
            call: The log, the number of the call and its order; None for a recomputation.
        """
        targets = self._arrived(hooked.index)
        run = call[0].run if call is not None else self._recomputed_run()
        if run is None:
            return None
        changed = None
        if self._outputs:
            if torch.is_grad_enabled():
                changed, new = self._listen_output(run, hooked, module, args, output)
                targets = targets + new
            else:
                self._why_not(hooked.index, "the forward ran with gradients switched off")
        if call is None:
            if targets:
                run.recomputed.append((hooked.index, targets))
            return changed
        _, number, order = call
        if run.grad_mode and not torch.is_grad_enabled():
            run.unrecorded.append((hooked.index, number, order))
        for target in targets:
            target.call, target.order = number, order
        return changed

    def input_hook(
        self, hooked: Hooked, names: Callable[[int], list[str]]
    ) -> Callable[[nn.Module, Any, Any], Any]:
        """A forward pre-hook with keyword arguments that gives the layer views of its own."""

        def hook(module: nn.Module, args: Any, kwargs: Any = None) -> Any:
            store = self._store()
            if kwargs is None or store is None or not torch.is_grad_enabled():
                return None
            log = store.log_here() or store.enter((args, kwargs), training=module.training)
            run = log.run if log is not None else self._recomputed_run()
            if run is None:
                return None
            views: dict[int, Tensor] = {}
            args, kwargs = with_views(args, views), with_views(kwargs, views)
            targets = []
            for place, (path, tensor) in enumerate(named_inputs(args, kwargs, names)):
                if tensor.requires_grad:
                    target = self._target(run, hooked, module, "input_gradient", path, place)
                    self._listen(run, target, tensor)
                    targets.append(target)
            if targets:
                self._waiting.setdefault(get_ident(), []).append((hooked.index, targets))
            return args, kwargs

        return hook

    def watch(self, run: Forward, hooked: Hooked, tensor: Tensor, order: int, call: int) -> None:
        """Record the gradient of a tensor that the user names."""
        target = Target(
            weakref.ref(run), hooked.index, "Tensor", "output_gradient", "", 0, call, order
        )
        self._listen(run, target, tensor)

    def settle(self, run: Forward) -> None:
        """At the end of a forward: follow the views whose memory was changed in place."""
        views, run.views = run.views, []
        for view in views:
            if view.base._version == view.version:  # noqa: SLF001 - autograd's own count of in-place changes
                continue
            found = first_after(view.base.grad_fn, view.node)
            if found is not None:
                node, place = found
                run.handles.append(node.register_hook(self._node_hook(view, place)))

    def _arrived(self, index: int) -> list[Target]:
        stack = self._waiting.get(get_ident())
        while stack:
            waiting, targets = stack.pop()
            if waiting == index:
                return targets
        return []

    def _listen_output(
        self, run: Forward, hooked: Hooked, module: nn.Module, args: Any, output: Any
    ) -> tuple[Any, list[Target]]:
        changed = None
        if isinstance(output, Tensor):
            if output.requires_grad and any(output is a for a in args):
                changed = output = own_view(output)
            found = [("", output)]
        else:
            found = leaves(output)
        targets = []
        for place, (path, tensor) in enumerate(found):
            if tensor.requires_grad:
                target = self._target(run, hooked, module, "output_gradient", path, place)
                self._listen(run, target, tensor)
                targets.append(target)
            else:
                self._why_not(hooked.index, f"its output ({tensor.dtype}) does not require one")
        return changed, targets

    def _target(
        self, run: Forward, hooked: Hooked, module: nn.Module, kind: Kind, leaf: str, place: int
    ) -> Target:
        return Target(weakref.ref(run), hooked.index, type(module).__name__, kind, leaf, place)

    def _listen(self, run: Forward, target: Target, tensor: Tensor) -> None:
        receive = self._receive

        def hook(gradient: Tensor) -> None:
            receive(target, gradient)

        run.handles.append(set_tensor_hook(tensor, hook))
        base = tensor._base  # noqa: SLF001 - the one way to see that a tensor is a view
        if base is not None and base.grad_fn is not None:
            run.views.append(_View(target, tensor, base, base.grad_fn, base._version))  # noqa: SLF001

    def _node_hook(self, view: _View, place: int) -> Callable[[Any, Any], None]:
        target, receive = view.target, self._receive
        tensor, base = view.tensor, view.base
        shape, strides = tuple(tensor.shape), tensor.stride()
        offset = tensor.storage_offset() - base.storage_offset()
        like = (tuple(base.shape), base.stride())
        same_values = tensor.dtype == base.dtype

        def hook(grad_inputs: Any, grad_outputs: Any) -> None:  # noqa: ARG001 - torch's signature
            gradient = grad_inputs[place]
            if gradient is None or not same_values:
                return
            # The view of the gradient that the tensor was of its base.
            laid = gradient.new_empty_strided(*like)
            laid.copy_(gradient)
            receive(target, laid.as_strided(shape, strides, offset))

        return hook

    def _receive(self, target: Target, gradient: Tensor | None) -> None:
        store, run = self._store(), target.run()
        if gradient is None or store is None or run is None or not store.open:
            return
        if not target.call:
            match_recomputation(run)
            if not target.call:
                return
        try:
            copy = self._snapshot(gradient)
        except Exception as error:  # noqa: BLE001 - sorted there
            hooked = store.hooked[target.index]
            not_kept(error, store, hooked, target.kind, target.leaf)
            self._why_not(target.index, store.unkept[target.index, target.kind])
            return
        key = (
            target.index, target.module_type, target.call, target.order, target.kind, target.leaf,
        )  # fmt: skip
        with self._lock:
            before = run.gradients.get(key)
            total = copy if before is None else before[1] + copy
            run.gradients[key] = (target.place, total)
            store.changes += 1
        if self._on_activation is not None:
            self._on_activation(store.activation(run, (*key, total)))

    def _recomputed_run(self) -> Forward | None:
        """The run whose checkpointed part is being recomputed, if its gradients are still due."""
        store = self._store()
        if store is None or not store.open or not torch.is_grad_enabled():
            return None
        return next((r for r in reversed(store.runs) if r.unrecorded), None)

    def _why_not(self, index: int, reason: str) -> None:
        store = self._store()
        if store is not None:
            store.ungraded[index] = f"no gradient: {reason}"
