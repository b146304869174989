"""One channel as one PNG: 1 pixel is 1 activation, in the colours of the grid.

Colours: a PNG with a palette, whose entry k is colour k of the colour table and stands for
``vmin + k / 255 · (vmax − vmin)``. Where a value has no level (NaN, an infinity, clipped at a
fixed scale) the PNG is plain RGB, 8 bits, since a palette has no room for those colours. There is
no transparency.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hookviz.activation import Activation
from hookviz.errors import ExportError
from hookviz.export._facts import number_text
from hookviz.export._png import palette_png, rgb_png
from hookviz.render import (
    Arranged,
    ColourTable,
    Extents,
    GridOptions,
    Levels,
    Scaling,
    arrange,
    choose_cmap,
    colour_table,
    extents,
    scaling,
    to_levels,
)

__all__ = ["MAX_FACTOR", "ChannelLevels", "ChannelPainter"]

MAX_FACTOR = 64
_BATCH = 2_000_000  # activations scaled at a time


@dataclass(frozen=True, eq=False)
class ChannelLevels:
    """The levels of one channel.

    Attributes:
        channel: Its index in the layer.
        levels: (H, W) uint8.
        flags: (H, W) uint8, or None where every level counts.
        vmin: Value of level 0.
        vmax: Value of level 255.
    """

    channel: int
    levels: NDArray[np.uint8]
    flags: NDArray[np.uint8] | None
    vmin: float
    vmax: float

    def rgb(self, table: ColourTable) -> NDArray[np.uint8]:
        """(H, W, 3) uint8: what the file shows."""
        colours: NDArray[np.uint8] = table.rgb[self.levels]
        if self.flags is not None:
            colours = np.where(self.flags[..., None] > 0, table.flags[self.flags], colours)
        return colours


class ChannelPainter:
    """Measures a layer once, then paints any of its channels.

    Args:
        activation: The record.
        options: ``scale``, ``cmap``, ``sample``, ``frame``, ``layout`` and ``style`` are used.
        input_size: (height, width) of what the network saw, for patch grids.

    Raises:
        RenderError: The tensor cannot be drawn so.
    """

    def __init__(
        self,
        activation: Activation,
        options: GridOptions,
        input_size: tuple[int, int] | None = None,
    ) -> None:
        self.activation = activation
        self.arranged: Arranged = arrange(activation, options, input_size)
        self.extents: Extents = extents(self.arranged.maps, self.arranged.apart)
        self.scaling: Scaling = scaling(self.arranged, self.extents, options)
        self.table = colour_table(choose_cmap(options, symmetric=self.scaling.symmetric))

    @property
    def count(self) -> int:
        """Channels in all."""
        return int(self.arranged.maps.shape[0])

    def paint(self, channels: Sequence[int]) -> Iterator[ChannelLevels]:
        """The channels in the order given, scaled on the tensor's device a batch at a time.

        Raises:
            ExportError: A channel is beyond the layer's last one.
        """
        beyond = [c for c in channels if not 0 <= c < self.count]
        if beyond:
            raise ExportError(
                f"'{self.activation.label}' has {self.count} channels, 0 to {self.count - 1}; "
                f"channel {beyond[0]} is not one of them."
            )
        maps = self.arranged.maps
        step = max(1, _BATCH // max(1, maps[0].numel()))
        low, high, found = self.scaling.low, self.scaling.high, self.extents
        odd = (found.nan + found.posinf + found.neginf) > 0
        with np.errstate(invalid="ignore"):
            odd |= (found.low < low) | (found.high > high)
        for at in range(0, len(channels), step):
            part = list(channels[at : at + step])
            first, last = part[0], part[-1]
            run = part == list(range(first, last + 1))
            levels: Levels = to_levels(
                maps[first : last + 1] if run else maps[part],
                low[part],
                high[part],
                flagged=bool(odd[part].any()),
            )
            for row, channel in enumerate(part):
                flags = None if levels.flags is None or not odd[channel] else levels.flags[row]
                yield ChannelLevels(
                    channel,
                    levels.levels[row],
                    flags if flags is not None and flags.any() else None,
                    float(low[channel]),
                    float(high[channel]),
                )

    def texts(self) -> dict[str, str]:
        """What is the same for every channel of the layer."""
        arranged = self.arranged
        texts = {
            "layout": " ".join((arranged.kind, arranged.statement, *arranged.notes)),
            "page": "1 of 1",
            "order": "index",
            "scale": self.scaling.sentence,
            "cmap": self.table.name,
        }
        if not self.scaling.per_channel:
            texts |= self._range(float(self.scaling.low[0]), float(self.scaling.high[0]))
        return texts

    @staticmethod
    def _range(vmin: float, vmax: float) -> dict[str, str]:
        return {"vmin": number_text(vmin), "vmax": number_text(vmax)}

    def channel_texts(self, one: ChannelLevels) -> dict[str, str]:
        """What concerns one channel alone."""
        found, channel = self.extents, one.channel
        texts = {"channels": str(channel)}
        if self.scaling.per_channel:
            texts |= self._range(one.vmin, one.vmax)
        if one.flags is not None:
            counts = (found.nan, found.posinf, found.neginf)
            for key, count in zip(("nan", "posinf", "neginf"), counts, strict=True):
                if count[channel]:
                    texts[key] = str(int(count[channel]))
        return texts

    def png(self, one: ChannelLevels, chunks: bytes, factor: int = 1) -> bytes:
        """The PNG of one channel.

        Args:
            one: What `paint` gave.
            chunks: Text chunks.
            factor: Pixels per activation in both directions, 1 to 64.
        """
        if one.flags is None:
            return palette_png(_enlarged(one.levels, factor), self.table.rgb, chunks)
        return rgb_png(_enlarged(one.rgb(self.table), factor), chunks)


def _enlarged(picture: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    if factor == 1:
        return picture
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)
