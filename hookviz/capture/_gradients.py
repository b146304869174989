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
from dataclasses import dataclass, field
from operator import attrgetter
from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor, nn

from hookviz.activation import Kind
from hookviz.capture._hooks import Call, Names, OnActivation, named_inputs, not_kept
from hookviz.capture._leaves import Leaves, leaves
from hookviz.capture._module_hooks import Act, set_tensor_hook
from hookviz.capture._snapshot import Snapshot
from hookviz.capture._store import Forward, Hooked, Store


@dataclass(eq=False, slots=True)
class Target:
    """Where a gradient belongs; as a tensor hook it takes the gradient there.

    It holds what it belongs to weakly, so that a graph keeps no results alive. The call is 0 until
    the call has ended.
    """

    hooks: weakref.ref[GradientHooks]
    run: weakref.ref[Forward]
    index: int
    module_type: str
    kind: Kind
    leaf: str
    place: int
    call: int = 0
    order: int = 0

    def __call__(self, gradient: Tensor) -> None:
        hooks, run = self.hooks(), self.run()
        if hooks is not None and run is not None:
            hooks.receive(self, run, gradient)


_KEY = attrgetter("index", "module_type", "call", "order", "kind", "leaf")  # a record, less tensor


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
        following = [earlier for earlier, _ in node.next_functions]
        if old in following:
            return node, following.index(old)
        node = following[0] if following else None
    return None


def follow_view(run: Forward, tensor: Tensor, receive: Callable[[Tensor], None]) -> None:
    """Take a view's gradient elsewhere if its memory is changed before the forward ends.

    Args:
        run: The forward.
        tensor: Any tensor; what is no view needs nothing.
        receive: Called with the gradient.
    """
    # SLF001: the one way to see that a tensor is a view, and how often it was changed in place.
    base: Any = tensor._base  # noqa: SLF001
    if base is None or base.grad_fn is None:
        return
    before, version = base.grad_fn, base._version  # noqa: SLF001

    def follow() -> None:
        found = first_after(base.grad_fn, before) if base._version != version else None  # noqa: SLF001
        if found is None or tensor.dtype != base.dtype:
            return
        node, place = found
        shape, strides = tensor.shape, tensor.stride()
        offset = tensor.storage_offset() - base.storage_offset()
        base_shape, base_strides = base.shape, base.stride()

        def hook(grad_inputs: Any, _grad_outputs: Any) -> None:
            gradient = grad_inputs[place]
            if gradient is not None:
                # The view of the gradient that the tensor was of its base.
                laid = gradient.new_empty_strided(base_shape, base_strides)
                laid.copy_(gradient)
                receive(laid.as_strided(shape, strides, offset))

        run.handles.append(node.register_hook(hook))

    run.at_end.append(follow)


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


@dataclass(eq=False)
class GradientHooks:
    """Sets tensor hooks during forwards and stores what they are given.

    Attributes:
        store: The capture's store.
        snapshot: How gradients are copied.
        on_activation: Called with each gradient.
        outputs: Record gradients of outputs.
    """

    store: Store
    snapshot: Snapshot
    on_activation: OnActivation
    outputs: bool
    _lock: Any = field(default_factory=Lock)
    _waiting: dict[int, list[tuple[int, list[Target]]]] = field(default_factory=dict)

    def after_call(
        self, hooked: Hooked, module: nn.Module, args: Any, output: Any, call: Call | None
    ) -> Any:
        """What a layer's forward hook calls last; may give back another view of the output.

        Args:
            hooked: The layer.
            module: Its module.
            args: What it was called with.
            output: What it gave.
            call: Which call it was; None for a recomputation.
        """
        targets = self._arrived(hooked.index)
        run = call[0].run if call is not None else self._recomputed_run()
        if run is None:
            return None
        changed = None
        if self.outputs and not torch.is_grad_enabled():
            self._why_not(hooked.index, "the forward ran with gradients switched off")
        elif self.outputs:
            handed_on = isinstance(output, Tensor) and any(output is a for a in args)
            if handed_on and output.requires_grad:
                changed = output = own_view(output)
            kind = type(module).__name__
            targets += self._listen(run, hooked, kind, "output_gradient", leaves(output))
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

    def input_hook(self, hooked: Hooked, names: Names) -> Act:
        """A forward pre-hook with keyword arguments that gives the layer views of its own."""

        def hook(module: nn.Module, args: Any, kwargs: Any = None) -> Any:
            if kwargs is None or not torch.is_grad_enabled():
                return None
            log = self.store.enter((args, kwargs), training=module.training)
            run = log.run if log is not None else self._recomputed_run()
            if run is None:
                return None
            views: dict[int, Tensor] = {}
            args, kwargs = with_views((args, kwargs), views)
            found, kind = named_inputs(args, kwargs, names), type(module).__name__
            targets = self._listen(run, hooked, kind, "input_gradient", found)
            if targets:
                self._waiting.setdefault(get_ident(), []).append((hooked.index, targets))
            return args, kwargs

        return hook

    def watch(self, name: str, tensor: Tensor) -> None:
        """Record the gradient of a tensor that the user names."""
        run, hooked = self.store.run_here(), self.store.watch_as(name)
        [target] = self._listen(run, hooked, "Tensor", "output_gradient", [("", tensor)])
        run.watched[name] += 1
        target.call, target.order = run.watched[name], next(run.counter)

    def _arrived(self, index: int) -> list[Target]:
        stack = self._waiting.get(get_ident())
        while stack:
            waiting, targets = stack.pop()
            if waiting == index:
                return targets
        return []

    def _listen(
        self, run: Forward, hooked: Hooked, module_type: str, kind: Kind, found: Leaves
    ) -> list[Target]:
        """Set hooks on those of the tensors found that require a gradient."""
        targets = []
        whose = weakref.ref(self), weakref.ref(run), hooked.index, module_type, kind
        for place, (path, tensor) in enumerate(found):
            if tensor.requires_grad:
                target = Target(*whose, path, place)
                targets.append(target)
                run.handles.append(set_tensor_hook(tensor, target))
                follow_view(run, tensor, target)
            elif kind == "output_gradient":
                self._why_not(hooked.index, f"its output ({tensor.dtype}) does not require one")
        return targets

    def receive(self, target: Target, run: Forward, gradient: Tensor) -> None:
        """Store a gradient, added to what came for the same target before."""
        store = self.store
        if not store.open:
            return
        if not target.call:
            match_recomputation(run)
            if not target.call:
                return
        try:
            copy = self.snapshot(gradient)
        except Exception as error:  # noqa: BLE001 - sorted there
            hooked = store.hooked[target.index]
            not_kept(error, store, hooked, target.kind, target.leaf)
            self._why_not(target.index, store.unkept[target.index, target.kind])
            return
        key = _KEY(target)
        with self._lock:
            before = run.gradients.get(key)
            total = copy if before is None else before[1] + copy
            run.gradients[key] = (target.place, total)
            store.changes += 1
        if self.on_activation is not None:
            self.on_activation(store.activation(run, (*key, total)))

    def _recomputed_run(self) -> Forward | None:
        """The run whose checkpointed part is being recomputed, if its gradients are still due."""
        if not self.store.open or not torch.is_grad_enabled():
            return None
        return next((r for r in reversed(self.store.runs) if r.unrecorded), None)

    def _why_not(self, index: int, reason: str) -> None:
        self.store.ungraded[index] = f"no gradient: {reason}"
