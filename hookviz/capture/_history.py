"""How gradients find their call: through views, in-place changes and recomputation.

In: tensors, nodes of autograd's graph, calls of a run. Out: views, the node to listen to, call
numbers. Must not know: hooks, how gradients are stored.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hookviz.activation import Kind
from hookviz.capture._store import Run
from hookviz.errors import CaptureError

__all__ = ["Target", "first_after", "match_recomputation", "own_view", "require_grad", "with_views"]


@dataclass(eq=False, slots=True)
class Target:
    """Where a gradient belongs; the call is 0 until the call has ended."""

    run: weakref.ref[Run]
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
    """The same values under a tensor whose gradient is told apart from the tensor's.

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


def match_recomputation(run: Run) -> None:
    """Give the calls of a recomputed part of the forward the numbers that they had in it.

    Checkpointed parts are recomputed from the last to the first, each from its beginning, so the
    recomputed sequence of layers is looked for from the end of the calls still without gradient.
    """
    burst, run.burst = run.burst, []
    wanted = [index for index, _ in burst]
    left = run.unrecorded
    for start in range(len(left) - len(wanted), -1, -1):
        part = left[start : start + len(wanted)]
        if [index for index, _, _ in part] == wanted:
            for (_, call, order), (_, targets) in zip(part, burst, strict=True):
                for target in targets:
                    target.call, target.order = call, order
            del left[start : start + len(wanted)]
            return
