"""A layer's output by channel and place, as the layer's figures show it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hookviz._axes import Hints, KnownAxes, Reading, read_axes
from hookviz.activation import Activation
from hookviz.errors import LayerError
from hookviz.render import GridOptions, arrange


@dataclass(frozen=True, eq=False)
class ByPlace:
    """A layer's output, or the gradient there.

    Attributes:
        maps: (C, H, W) float64 (float32 where the device has nothing wider).
        apart: (C, K) the same of tokens that stand for no place; None without.
    """

    maps: Tensor
    apart: Tensor | None


def by_place(record: Activation, input_size: tuple[int, int]) -> ByPlace:
    """Turns a layer's output to channels and places.

    Args:
        record: The output, or the gradient there, of one image.
        input_size: (height, width) of what the network saw.

    Raises:
        LayerError: It has no rows and columns.
    """
    arranged = arrange(record, GridOptions(), input_size)
    if arranged.kind not in ("maps", "tokens") or arranged.part or arranged.samples > 1:
        what = f"a map for each {arranged.part}" if arranged.part else arranged.figure_kind.noun
        what = {"map": "frames", "signal": "tokens in no known order"}.get(what, what)
        raise LayerError(
            f"Layer '{record.layer}' has no rows and columns that lie as the image's do: its "
            f"output {tuple(record.shape)} holds {'single values' if what == 'value' else what}.",
            remedy="Choose a layer before it that is drawn as maps.",
            code="no-places",
            details={"layer": record.layer},
        )
    wide = torch.float32 if record.tensor.device.type == "mps" else torch.float64
    apart = arranged.apart
    return ByPlace(arranged.maps.to(wide), None if apart is None else apart.to(wide))


def reading_of(record: Activation, count: int) -> tuple[Reading, int] | None:
    """What the axes of a layer's output are, and which one holds the channels.

    Args:
        record: The output for ``count`` images.
        count: How many.

    Returns:
        The reading, whose first axis counts the images, and the axis of channels (of tokens their
        features, of a vector its numbers); None where nothing says which it is.
    """
    shape = tuple(record.shape)
    if not shape or shape[0] != count:
        return None
    # The axes are those of one image, whatever the number of images is.
    hints = Hints(record.module_type, record.layer, known=record.axes or KnownAxes())
    reading = read_axes((1, *shape[1:]), hints=hints)
    axis = next((reading.axes.index(letter) for letter in "CDA" if letter in reading.axes), None)
    return None if axis is None or not reading.axes.startswith("N") else (reading, axis)
