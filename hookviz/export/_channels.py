"""One channel as one PNG: 1 pixel is 1 activation, in the colours of the grid.

Colours: a PNG with a palette, whose entry k is colour k of the colour table and stands for
``vmin + k / 255 · (vmax − vmin)``. Where a value has no level (NaN, an infinity, clipped at a
fixed scale) the PNG is plain RGB, 8 bits, since a palette has no room for those colours. There is
no transparency.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hookviz.activation import Activation
from hookviz.export._facts import number_text
from hookviz.export._png import palette_png, rgb_png
from hookviz.render import ChannelImage, GridOptions, SingleChannels

__all__ = ["MAX_FACTOR", "ChannelPainter"]

MAX_FACTOR = 64


class ChannelPainter(SingleChannels):
    """The single channels of one record as PNGs.

    Args:
        activation: The record.
        options: ``scale``, ``cmap``, ``sample``, ``frame``, ``axes`` and ``style`` are used.
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
        super().__init__(activation, options, input_size)
        self.activation = activation

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

    def channel_texts(self, one: ChannelImage) -> dict[str, str]:
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

    def png(self, one: ChannelImage, chunks: bytes, factor: int = 1) -> bytes:
        """The PNG of one channel.

        Args:
            one: What `images` gave.
            chunks: Text chunks.
            factor: Pixels per activation in both directions, 1 to 64.
        """
        if one.flags is None and one.levels.ndim == 2:
            return palette_png(_enlarged(one.levels, factor), self.table.rgb, chunks)
        return rgb_png(_enlarged(one.rgb(self.table), factor), chunks)


def _enlarged(picture: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    if factor == 1:
        return picture
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)
