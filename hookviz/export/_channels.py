"""One channel as one PNG: 1 pixel is 1 activation.

In: an activation, drawing options. Out: PNGs of single channels in the colours of the grid. Must
not know: figures, folders, file names.

Colours: a PNG with a palette, whose entry k is colour k of the colour table and stands for
``vmin + k / 255 · (vmax − vmin)``. Where a value has no level (NaN, an infinity, clipped at a
fixed scale) the PNG is plain RGB, 8 bits, since a palette has no room for those colours. There is
no transparency.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hookviz.capture import Activation
from hookviz.export._metadata import number_text
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

    def channel_texts(self, painted: ChannelImage) -> dict[str, str]:
        """What is told of one channel alone."""
        found, channel = self.extents, painted.channel
        texts = {"channels": str(channel)}
        if self.scaling.per_channel:
            texts |= self._range(painted.vmin, painted.vmax)
        if painted.flags is not None:
            counts = (found.nan, found.posinf, found.neginf)
            for key, count in zip(("nan", "posinf", "neginf"), counts, strict=True):
                if count[channel]:
                    texts[key] = str(int(count[channel]))
        return texts

    def png(self, painted: ChannelImage, chunks: bytes, factor: int = 1, level: int = 6) -> bytes:
        """The PNG of one channel.

        Args:
            painted: What `images` gave.
            chunks: Text chunks.
            factor: Pixels per activation in both directions, 1 to 64.
            level: Of zlib, 0 to 9.
        """
        if painted.flags is None and painted.levels.ndim == 2:
            return palette_png(_enlarged(painted.levels, factor), self.table.rgb, chunks, level)
        return rgb_png(_enlarged(painted.rgb(self.table), factor), chunks, level)


def _enlarged(picture: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    if factor == 1:
        return picture
    return picture.repeat(factor, axis=0).repeat(factor, axis=1)
