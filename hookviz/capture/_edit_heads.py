"""Where an attention layer keeps its heads apart: before the projection that mixes them.

Three ways, by how the layer is written:

- ``nn.MultiheadAttention`` projects inside one kernel. Its heads are had by a second call with an
  identity as projection, and what an edit changes in them is added to the output, projected:
  attention is linear behind its heads, so that is the edit, and an edit that changes nothing
  leaves the output as it is to the last bit.
- A layer whose projection is a module of its own (timm, Hugging Face): its input.
- A layer that only makes the heads, with the projection outside: its output.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookviz._text import names_text
from hookviz.errors import LayerError

_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "nhead")
_PROJECTIONS = ("proj", "out_proj", "o_proj", "c_proj", "to_out")
# Their projection is a function call with the weights of a module that is never called.
_OUT_OF_REACH = ("ShiftedWindowAttention", "ShiftedWindowAttentionV2")


@dataclass(frozen=True)
class Heads:
    """How the heads of a layer are reached.

    Attributes:
        count: How many there are.
        module: The module to hook.
        kind: What of it holds the heads along its last axis: "input", "output", or "attention" of
            ``nn.MultiheadAttention``, where a second call gives them.
    """

    count: int
    module: nn.Module
    kind: Literal["input", "output", "attention"]


def _count(module: nn.Module) -> int:
    found = (getattr(module, name, None) for name in _COUNTS)
    return next((n for n in found if isinstance(n, int) and not isinstance(n, bool)), 0)


def heads_of(name: str, module: nn.Module, modules: dict[str, nn.Module]) -> Heads:
    """How the heads of a layer are reached.

    Args:
        name: The layer.
        module: Its module.
        modules: All layers of the model, for the sentence.

    Raises:
        LayerError: It has no heads, or they cannot be reached.
    """
    if isinstance(module, nn.MultiheadAttention):
        return Heads(module.num_heads, module, "attention")
    count, kind = _count(module), type(module).__name__
    if kind in _OUT_OF_REACH:
        raise LayerError(
            f"The heads of '{name}' ({kind}) cannot be edited: it projects them within a function.",
            remedy="Edit its channels or places.",
        )
    if not count or not any("att" in text.lower() for text in (kind, name)):
        there = [n for n, m in modules.items() if isinstance(m, nn.MultiheadAttention) or _count(m)]
        raise LayerError(
            f"'{name}' ({kind}) has no attention heads; layers with heads: "
            f"{names_text(there) or 'none'}."
        )
    children = dict(module.named_children())
    for projection in _PROJECTIONS:
        found: Any = children.get(projection)
        if isinstance(found, nn.Sequential) and len(found):
            found = found[0]
        if isinstance(found, nn.Linear) and found.in_features % count == 0:
            return Heads(count, found, "input")
    return Heads(count, module, "output")


def count_heads(name: str, module: nn.Module) -> int:
    """How many heads of a layer edits can reach; 0 where none.

    Args:
        name: The layer.
        module: Its module.
    """
    try:
        return heads_of(name, module, {}).count
    except LayerError:
        return 0


class SecondCall(threading.local):
    """The heads of the running call of one ``nn.MultiheadAttention``, as edits have left them."""

    def __init__(self) -> None:
        self._given: tuple[Any, Any] = ((), {})
        self._heads: Tensor | None = None

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:  # noqa: ARG002 - a hook
        """Keeps the arguments of the call that begins."""
        self._given, self._heads = (args, kwargs or {}), None

    def after(self, module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG002 - a hook
        """Lets go of what was kept for the call."""
        self._given, self._heads = ((), {}), None

    def edited(
        self, module: nn.MultiheadAttention, output: Tensor, change: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """The output of the call that ended, with its heads changed.

        Args:
            module: The layer.
            output: What it gave, (N, T, E), (T, N, E) or (T, E).
            change: From the heads, in the same order of axes, each head's share of the last axis
                behind the other's, to the changed ones.
        """
        heads = self._heads if self._heads is not None else self._made(module, output)
        self._heads = change(heads)
        return output + F.linear(self._heads - heads, module.out_proj.weight)

    def _made(self, module: nn.MultiheadAttention, output: Tensor) -> Tensor:
        """The heads of the call, before any edit."""
        args, kwargs = self._given
        identity = nn.Linear(1, 1, device="meta")
        size = module.embed_dim
        identity.weight = nn.Parameter(torch.eye(size).to(output), requires_grad=False)
        identity.bias = nn.Parameter(torch.zeros(size).to(output), requires_grad=False)
        # A stand-in that shares all but the projection; calling it meets no hook.
        twin: nn.MultiheadAttention = object.__new__(type(module))
        twin.__dict__.update(module.__dict__)
        twin.__dict__["_modules"] = {**module._modules, "out_proj": identity}  # noqa: SLF001
        heads: Tensor = type(module).forward(twin, *args, **kwargs)[0]
        return heads
