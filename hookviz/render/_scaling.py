"""Which value is which end of the colors, and the sentence about it on the figure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hookviz.activation import Activation
from hookviz.errors import RenderError
from hookviz.render import _measure as measure
from hookviz.render._arrange import Arranged, arrange
from hookviz.render._measure import Extents, Numbers
from hookviz.render._number_format import share, value
from hookviz.render._options import GridOptions

# Percent of a layer's values, by magnitude, that lie within the automatic scale. A few places of a
# ReLU layer are many times as strong as all others: on the full range, 93 % of the live maps of
# VGG16's features.30 stay below 30 % of the scale for a photo of a cat; with the 99th percentile
# 41 % do, with the 98th 32 %.
_ROBUST = 98.0
# The full range stays where it is less than so many times as wide: nothing is clipped for little.
_WORTH_IT = 1.25


@dataclass(frozen=True, eq=False)
class Scaling:
    """The range that the colors span in each channel.

    Attributes:
        name: "auto", "channel", "layer", "shared", "symmetric", "percentile" or "fixed".
        low: (C,) value of the first color.
        high: (C,) value of the last color.
        sentence: As written on the figure.
        symmetric: Zero is the middle.
        below: Finite values of the layer below the range.
        above: Finite values of the layer above it.
    """

    name: str
    low: Numbers
    high: Numbers
    sentence: str
    symmetric: bool
    below: int = 0
    above: int = 0

    @property
    def per_channel(self) -> bool:
        """Whether each channel has a range of its own."""
        return self.name == "channel"

    @property
    def ends(self) -> tuple[float, float] | None:
        """The one range, or None where each channel has its own."""
        return None if self.per_channel else (float(self.low[0]), float(self.high[0]))


def scaling(arranged: Arranged, found: Extents, options: GridOptions) -> Scaling:
    """Resolve the scale mode for one layer.

    Args:
        arranged: The layer's maps.
        found: Their extents, all channels.
        options: ``scale``, ``vmin``, ``vmax`` and ``percentile`` are used.
    """
    channels = len(found.low)
    whole = found.whole
    if whole is None:
        return _one("layer", channels, (0.0, 0.0), "no value is finite")
    name = options.scale
    signed, largest = whole[0] < 0 or arranged.rgb, max(abs(whole[0]), abs(whole[1]))
    robust = 0.0
    if name == "auto" and not arranged.rgb:
        robust = (measure.percentiles(arranged.maps, [_ROBUST], magnitude=True) or (0.0,))[0]
    if name == "full" or (name == "auto" and not max(whole[0], 0.0) < robust < largest / _WORTH_IT):
        name = "symmetric" if signed else "layer"
    if name == "channel":
        low = np.where(np.isnan(found.low), 0.0, found.low)
        high = np.where(np.isnan(found.high), 0.0, found.high)
        noun = arranged.noun
        sentence = f"each {noun} on its own scale, from its minimum to its maximum"
        return Scaling(name, low, high, sentence, symmetric=False)
    if name == "symmetric":
        sentence = f"one scale for the layer, symmetric about zero: ±{value(largest)}"
        return _one(name, channels, (-largest, largest), sentence)
    if name == "layer":
        return _one(name, channels, whole, f"one scale for the layer: {_span(whole)}")
    if name == "auto":
        ends = (-robust, robust) if signed else (whole[0], robust)
        span = f"symmetric about zero: ±{value(robust)}" if signed else _span(ends)
        words = f"one scale for {_ROBUST:g} % of the layer's values, {span}"
    elif name == "percentile":
        first, last = measure.percentiles(arranged.maps, options.percentile) or whole
        ends = (first, last)
        words = "percentiles {:g} to {:g} of the layer: ".format(*options.percentile) + _span(ends)
    else:
        if options.vmin is None or options.vmax is None:
            raise RenderError(f"scale={name!r} needs both vmin and vmax.")
        ends = (options.vmin, options.vmax)
        words = f"{name} scale: {_span(ends)}"
    below, above = measure.clipped(arranged.maps, *ends)
    total = found.size * channels
    if below or above:
        words += f", clipped {share(below, total)} below and {share(above, total)} above"
    return _one(name, channels, ends, words, below, above)


def _span(ends: tuple[float, float]) -> str:
    if ends[0] == ends[1]:
        return f"every value is {value(ends[0])}"
    return f"{value(ends[0])} to {value(ends[1])}"


def _one(
    name: str,
    channels: int,
    ends: tuple[float, float],
    sentence: str,
    below: int = 0,
    above: int = 0,
) -> Scaling:
    low, high = (np.full(channels, end) for end in ends)
    symmetric = ends[0] == -ends[1] and ends[1] > 0
    return Scaling(name, low, high, sentence, symmetric, below, above)


def shared_range(
    sources: Iterable[Activation | Tensor], options: GridOptions | None = None
) -> tuple[float, float]:
    """The finite range over several layers or images, for ``scale="shared"``.

    Args:
        sources: Activations or tensors.
        options: Its sample, frame and axes are used.

    Returns:
        (vmin, vmax); symmetric about zero where any value is negative.

    Raises:
        RenderError: No value is finite, or there are no sources.

    Examples:
        >>> import torch
        >>> shared_range([torch.zeros(1, 2, 3, 3), torch.full((1, 2, 3, 3), 5.0)])
        (0.0, 5.0)
    """
    options = options or GridOptions()
    ends = [measure.extents(arrange(source, options).maps).whole for source in sources]
    found = [pair for pair in ends if pair is not None]
    if not found:
        raise RenderError("A shared scale needs at least one layer with a finite value.")
    low, high = min(pair[0] for pair in found), max(pair[1] for pair in found)
    if low < 0:
        size = max(abs(low), abs(high))
        return -size, size
    return (low, high) if low < high else (low, low + 1.0)
