"""What an edit is, and where it acts.

In: selectors and a change. Out: frozen records. Must not know: hooks, how an edit is carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor, nn

from hookviz.activation import Kind
from hookviz.capture._checks import check_count
from hookviz.capture._layers import LayerSelector
from hookviz.errors import CaptureError

__all__ = ["Edit", "Layers", "Site"]

Layers: TypeAlias = LayerSelector | Iterable[LayerSelector]


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
    """

    layer: str
    module: nn.Module
    call: int
    kind: Kind
    leaf: str
    recomputed: bool = False

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
    """

    layers: Layers
    kind: Kind
    change: Callable[[Tensor, Site], Tensor] = field(repr=False)
    text: str
    call: int | None = None
    leaf: str | None = None

    def __post_init__(self) -> None:
        if self.call is not None:
            check_count("call", self.call, 1)
        leaf: object = self.leaf
        if leaf is not None and not isinstance(leaf, str):
            raise CaptureError(f"leaf must be a path or glob such as '0', not {leaf!r}.")
