"""What a picture of a layer is, once drawn, and what it can be drawn with.

In: a figure and the facts about it. Out: frozen records, PNG bytes. Must not know: tensors, how
the figure came about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hookviz.render._artists import pixels_of, png_of
from hookviz.render._options import GridOptions

__all__ = ["Drawing", "PictureFacts"]


@dataclass(frozen=True)
class PictureFacts:
    """What a figure says about where its values come from. All of it may stay empty.

    Attributes:
        model: Name of the model.
        weights: Which weights it has.
        trained: False puts UNTRAINED on the figure.
        image: Name of the picture.
        input_size: (height, width) of what the network saw, in pixels: finds patch grids and
            settles which axes are rows and columns.
    """

    model: str = ""
    weights: str = ""
    trained: bool = True
    image: str = ""
    input_size: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class Drawing:
    """One page, drawn.

    Attributes:
        figure: A matplotlib Figure with an Agg canvas, registered nowhere.
        channels: Index of each channel drawn, in the order drawn.
        page: Which page, from 0.
        pages: How many there are.
        total: Channels chosen, over all pages.
        kind: Name of the figure kind: "maps", "tokens", "volume", "signal", "attention", "bars",
            "statistics" or "filters".
        scale: The sentence on the figure.
        vmin: Value of the first color; None where each channel has its own.
        vmax: Value of the last color; None likewise.
        tile_ranges: (first, last) value of the colors of each channel drawn.
        cmap: Name of the colormap used.
        nan: NaN values in the sample, all channels.
        posinf: +Inf values.
        neginf: −Inf values.
        below: Values clipped at the low end.
        above: Values clipped at the high end.
        dead: Channels that are zero everywhere, of all channels.
        axes: How the tensor's axes were read.
        notes: Further sentences on the figure.
        options: What it was drawn with.
        places: (top, left, height, width) in pixels of each tile; () for bars.
    """

    figure: Figure
    channels: tuple[int, ...]
    page: int
    pages: int
    total: int
    kind: str
    scale: str
    vmin: float | None
    vmax: float | None
    tile_ranges: tuple[tuple[float, float], ...]
    cmap: str
    nan: int
    posinf: int
    neginf: int
    below: int
    above: int
    dead: tuple[int, ...]
    axes: str
    notes: tuple[str, ...]
    options: GridOptions
    places: tuple[tuple[int, int, int, int], ...] = field(default=())

    def pixels(self) -> NDArray[np.uint8]:
        """(height, width, 4) uint8 RGBA as drawn; a copy."""
        return pixels_of(self.figure).copy()

    def png_bytes(
        self, compress_level: int = 1, metadata: Mapping[str, str] | None = None
    ) -> bytes:
        """The page as a PNG, exactly ``options.width`` pixels wide.

        Args:
            compress_level: 0 to 9; 1 is fast, 6 smaller.
            metadata: Text keys to write; nothing else is written, so that the same page gives
                the same bytes.
        """
        return png_of(self.figure, compress_level, metadata)
