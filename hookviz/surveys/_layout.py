"""How the tensors of a layer are read as channels and places."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookviz._axes import Hints, read_axes
from hookviz._tensors import dense
from hookviz._text import shape_text
from hookviz.activation import Activation
from hookviz.errors import RenderError, SurveyError

_CHANNEL = "CDA"  # channels, features, heads


@dataclass(frozen=True)
class Layout:
    """What the tensors of one layer (one call, one leaf) are.

    Attributes:
        label: The layer, with call and leaf where there are several.
        layer: Its dotted name.
        call: Which call, from 1.
        leaf: Which tensor of a nested output.
        module_type: Class name of the module.
        shape: Of one image's tensor, without the axis of images.
        dtype: As the layer gave it, for example "float32".
        axes: One letter per axis, "N" first, as in ``hookviz._axes.Reading``.
        grid: (rows, columns) of tokens where they lie as the image does; None for others.
        apart: Tokens before the grid, such as the class token.
    """

    label: str
    layer: str
    call: int
    leaf: str
    module_type: str
    shape: tuple[int, ...]
    dtype: str
    axes: str
    grid: tuple[int, int] | None = None
    apart: int = 0

    @classmethod
    def of(cls, activation: Activation, input_size: tuple[int, int]) -> Layout:
        """That of what a layer gave for one image.

        Raises:
            SurveyError: It has not one row for each image, or is of complex numbers.
        """
        tensor = dense(activation.tensor)
        shape = tuple(tensor.shape)
        known = activation.axes
        hints = Hints(activation.module_type, activation.layer, input_size, known=known)
        try:
            axes = read_axes(shape, hints=hints).axes
        except RenderError as error:
            raise SurveyError(f"{activation.label} cannot be surveyed: {error.message}") from error
        rows = not axes.startswith("N") or shape[0] != 1 or tensor.is_complex()
        if rows or not any(c in axes for c in _CHANNEL):
            raise SurveyError(
                f"{activation.label} gives {shape_text(shape)} ({tensor.dtype}) for one image; a "
                "survey needs real numbers with one row for each image and channels in it.",
                remedy="Choose another layer.",
            )
        places = known.places if known is not None else None
        return cls(
            activation.label,
            activation.layer,
            activation.call,
            activation.leaf,
            activation.module_type,
            shape[1:],
            str(tensor.dtype).removeprefix("torch."),
            axes,
            None if places is None else places.grid,
            0 if places is None else places.apart,
        )

    @property
    def channel_axis(self) -> int:
        """Which axis of (N, …) holds the channels."""
        return next(at for at, letter in enumerate(self.axes) if letter in _CHANNEL)

    @property
    def channels(self) -> int:
        """How many channels there are."""
        return self.shape[self.channel_axis - 1]

    @property
    def places(self) -> tuple[int, ...]:
        """Sizes of the axes of one channel; () for a vector."""
        at = self.channel_axis - 1
        return self.shape[:at] + self.shape[at + 1 :]

    @property
    def is_maps(self) -> bool:
        """Whether each channel is a map of rows and columns."""
        return self.axes in ("NCHW", "NHWC")

    def values(self, tensor: Tensor) -> Tensor:
        """(N, C, P) float32, contiguous, of what the layer gave."""
        plain = dense(tensor)
        moved = plain.movedim(self.channel_axis, 1)
        return (
            moved.reshape(*moved.shape[:2], math.prod(self.places)).to(torch.float32).contiguous()
        )

    def place(self, at: int) -> tuple[int, ...]:
        """A place in a channel's flattened values as one number per axis."""
        return tuple(int(i) for i in np.unravel_index(at, self.places))

    def to_json(self) -> dict[str, Any]:
        """As a mapping for the manifest."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Layout:
        """What `to_json` gave, again."""
        grid = found["grid"]
        return cls(
            **{**found, "shape": tuple(found["shape"]), "grid": None if grid is None else (*grid,)}
        )
