"""The record of one tensor that a layer received or gave.

In: what a hook saw. Out: a frozen Activation. Must not know: hooks, models, pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

__all__ = ["Activation", "Kind"]

Kind = Literal["output", "input", "output_gradient", "input_gradient"]
"""What an activation is: a layer's output or input, or the gradient of either."""


@dataclass(frozen=True, eq=False)
class Activation:
    """One tensor that a layer received or gave in one call.

    Attributes:
        layer: Dotted ``named_modules()`` path; "" is the model itself.
        call: Which call of the layer within its run, from 1.
        calls: How many times the layer was called in that run.
        run: Which forward of the whole model, from 1.
        order: Position of the call among all captured calls of the run, in order of execution
            (of completion), from 1. Records of one call share it.
        kind: "output", "input", "output_gradient" or "input_gradient".
        leaf: Path of the tensor inside a nested value: "" for a bare tensor, else for example
            "0", "out", "1.0" or "logits"; inputs are named by position or keyword.
        module_type: Class name of the module, for example "Conv2d".
        tensor: A detached copy of what the layer received or gave, axis order as the layer gave
            it (a conv layer: (N, C, H, W)), in the activation's own units; on the layer's device
            and in its dtype unless the capture was asked otherwise.
    """

    layer: str
    call: int
    calls: int
    run: int
    order: int
    kind: Kind
    leaf: str
    module_type: str
    tensor: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape as a plain tuple."""
        return tuple(self.tensor.shape)

    @property
    def label(self) -> str:
        """The layer with its call and leaf where there are several, as people read it."""
        parts = [self.layer or "(model)"]
        if self.leaf:
            parts.append(f"[{self.leaf}]")
        if self.calls > 1:
            parts.append(f" call {self.call} of {self.calls}")
        if self.kind != "output":
            parts.append(f" {self.kind.replace('_', ' ')}")
        return "".join(parts)
