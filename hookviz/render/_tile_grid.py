"""Where the tiles of a page stand, and how they are put together to one array."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LARGEST = 448  # pixels: a single small map must not fill the page
_READABLE = 64  # pixels: narrower tiles are seen only side by side
_WASTEFUL = 0.8  # of a column's width: below it, whole factors give way
_THINNEST = 8  # pixels: a strip of one row must be seen


@dataclass(frozen=True)
class TileGrid:
    """Where the tiles of a page stand, in pixels.

    Attributes:
        count: Tiles.
        ncols: In a row.
        nrows: Rows; the last may be ragged.
        size: (height, width) of one map.
        scale: (rows, columns) of pixels per activation; 0 where the map is shrunk.
        gap: Between tiles, in both directions.
        strip: Height of the label's strip above each map.
        head: Height of what stands apart above the map (class tokens), its gap included.
    """

    count: int
    ncols: int
    nrows: int
    size: tuple[int, int]
    scale: tuple[int, int]
    gap: int
    strip: int
    head: int = 0

    @property
    def pitch(self) -> tuple[int, int]:
        """(down, across) from one tile to the next."""
        return self.size[0] + self.head + self.strip + self.gap, self.size[1] + self.gap

    @property
    def shape(self) -> tuple[int, int]:
        """(height, width) of the mosaic."""
        down, across = self.pitch
        return self.nrows * down - self.gap, self.ncols * across - self.gap

    def origin(self, position: int) -> tuple[int, int]:
        """(top, left) of a map in the mosaic; its strip and head stand above."""
        row, column = divmod(position, self.ncols)
        down, across = self.pitch
        return row * down + self.strip + self.head, column * across


def choose_grid(
    count: int,
    size: tuple[int, int],
    room: int,
    *,
    strip: int = 0,
    ncols: int | None = None,
    aspect: float | None = None,
    apart: bool = False,
    group: int = 1,
) -> TileGrid:
    """The grid that fills the room's width well and is about as high as wide.

    Args:
        count: Tiles, at least 1.
        size: (height, width) of a map in activations.
        room: Width in pixels.
        strip: Height of the label's strip.
        ncols: Tiles in a row; None chooses.
        aspect: Height to width of a tile where it is not the map's own (overlays).
        apart: Whether something of one activation's height stands above each map.
        group: So many tiles that follow each other stay in one row.
    """
    legal = range(group, max(group, min(count, room // 4)) + 1, group)
    if ncols is not None:
        most = min(ncols, legal[-1])
        legal = range(max(group, most - most % group), max(group, most) + 1, group)
    grids = [_grid(count, size, room, strip, n, aspect, apart) for n in legal]
    return min(grids, key=lambda grid: _cost(grid, room))


def _grid(
    count: int, size: tuple[int, int], room: int, strip: int, ncols: int,
    aspect: float | None, apart: bool,
) -> TileGrid:  # fmt: skip
    height, width = size
    gap = 8 if room // ncols >= 64 else 4 if strip else 2
    across = max(1, (room - gap * (ncols - 1)) // ncols)
    across = min(across, max(_LARGEST, width))
    if aspect is not None:
        tile = (max(1, round(across * aspect)), across)
        scale = (0, 0)
    elif across >= width:
        factor = across // width
        if height * factor > 2 * _LARGEST:
            factor = max(1, 2 * _LARGEST // height)
        tall = factor if height * factor >= _THINNEST else -(-_THINNEST // height)
        tile, scale = (height * tall, width * factor), (tall, factor)
        if (
            width * factor < _WASTEFUL * across
            and height > 1
            and across * height < width * 2 * room
        ):
            # Pixels of unequal width are the lesser evil where equal ones leave much room empty.
            tile, scale = (max(1, round(height * across / width)), across), (0, 0)
    else:
        down = height * across / width
        tall = max(_THINNEST if height == 1 else 1, round(down))
        tile, scale = (tall, across), (0, 0)
    spare = room - ncols * tile[1] - gap * (ncols - 1)
    if ncols > 1 and spare > 0:
        gap += min(6, spare // (ncols - 1))
    head = 0
    if apart:
        head = max(3, scale[0] or round(tile[0] / height)) + 3
    return TileGrid(count, ncols, -(-count // ncols), tile, scale, gap, strip, head)


def _cost(grid: TileGrid, room: int) -> float:
    """How much is wrong with a grid: 0 is a full square page.

    The weights were set by eye: a page that is one fifth empty on the right (1.5 · 0.2) is as bad
    as one of two rows whose last holds a third of its tiles (0.8 · 0.67 / 2), or as one that is
    nearly twice as high as wide (0.5 · log 1.8).
    """
    height = grid.shape[0]
    empty = grid.nrows * grid.ncols - grid.count
    ragged = 0.8 * empty / (grid.nrows * grid.ncols)
    if grid.nrows > 1 and grid.ncols > 3 and empty > 0.67 * grid.ncols:
        ragged += 0.12  # one or two maps alone in the last row look lost
    filled = grid.ncols * grid.size[1]
    lost = 1.5 * (1.0 - min(1.0, filled / room))
    ratio = math.log(height / room)
    # A few large maps read well in one row; many in a flat band do not.
    tall = 0.5 * ratio if ratio > 0 else -(0.3 if grid.count > 16 else 0.1) * ratio
    uneven = 0.1 if grid.scale == (0, 0) else 0.0
    # Where there are few maps, they need not be tiny; many are an overview, and may.
    small = 0.15 * max(0.0, math.log(_READABLE / grid.size[1])) if grid.count <= 64 else 0.0
    return ragged + lost + tall + small + uneven


def compose(
    tiles: NDArray[np.uint32], grid: TileGrid, canvas: NDArray[np.uint32], top: int = 0
) -> None:
    """Copy colored tiles into the mosaic.

    Args:
        tiles: (n, h, w) colors, one per activation or already of the tile's size.
        grid: Where they stand.
        canvas: (height, width) of the mosaic, written in place.
        top: Rows above a map's origin where the tiles start (for what stands apart).
    """
    down, across = grid.pitch
    wide = np.repeat(tiles, grid.scale[1], axis=2) if grid.scale[1] > 1 else tiles
    repeat = max(1, grid.scale[0])
    count, height, width = wide.shape
    start = grid.strip + grid.head - top
    step, item = canvas.strides
    at = 0
    while at < count:
        # All full rows of tiles in one copy, then the ragged last one.
        nrows = (count - at) // grid.ncols or 1
        ncols = min(grid.ncols, count - at)
        first = (at // grid.ncols) * down + start
        view = np.lib.stride_tricks.as_strided(
            canvas[first:, :],
            shape=(nrows, ncols, height, repeat, width),
            strides=(down * step, across * item, repeat * step, step, item),
        )
        part = wide[at : at + nrows * ncols].reshape(nrows, ncols, height, 1, width)
        view[...] = part
        at += nrows * ncols


def enlarge(tiles: NDArray[np.uint32], size: tuple[int, int]) -> NDArray[np.uint32]:
    """(n, h, w) to a size that need not be a multiple, each pixel from the nearest activation."""
    for axis, length in zip((1, 2), size, strict=True):
        have = tiles.shape[axis]
        if have != length:
            at = ((np.arange(length) + 0.5) * (have / length)).astype(np.intp)
            tiles = tiles.take(np.minimum(at, have - 1), axis=axis)
    return tiles
