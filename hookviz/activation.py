"""The record of one tensor that a layer received or gave.

In: what a hook saw. Out: a frozen Activation. Must not know: hooks, models, pictures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from hookviz._axes import KnownAxes
from hookviz.errors import LayerError

__all__ = ["Activation", "Kind"]

Kind = Literal["output", "input", "output_gradient", "input_gradient"]
"""What an activation is: a layer's output or input, or the gradient of either."""


@dataclass(frozen=True, eq=False, repr=False)
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
        axes: What a run found out about the tensor's axes; None where none did.
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
    axes: KnownAxes | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape as a plain tuple."""
        return tuple(self.tensor.shape)

    def sample(self, index: int) -> Activation:
        """The same record holding one sample of the batch, in storage of its own.

        A slice of a tensor saves and pickles the whole batch; this holds its own values alone.

        Args:
            index: Position along the first dimension; negative from the end.

        Returns:
            A record whose tensor has the shape (1, ...).

        Raises:
            LayerError: There is no such sample.

        Examples:
            >>> import torch
            >>> maps = torch.zeros(8, 3, 4, 4)
            >>> whole = Activation("conv", 1, 1, 1, 1, "output", "", "Conv2d", maps)
            >>> whole.sample(0).shape
            (1, 3, 4, 4)
        """
        count = self.tensor.shape[0] if self.tensor.dim() else 0
        if not isinstance(index, int) or not -count <= index < count:
            raise LayerError(
                f"'{self.layer}' {list(self.tensor.shape)} has no sample {index!r}; it has {count}."
            )
        start = index % count
        return replace(self, tensor=self.tensor[start : start + 1].clone())

    def __repr__(self) -> str:
        tensor = self.tensor
        facts = f"{str(tensor.dtype).removeprefix('torch.')}, {tensor.device}"
        return f"<{self.label}: {self.module_type} {list(tensor.shape)}, {facts}, run {self.run}>"

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
