"""A page of maps: mosaic, labels and colourbar become a Figure.

In: arranged maps, their scaling and the channels to show. Out: a Drawing. Must not know: which
layer is shown next, files, widgets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookviz.render._colours import ColourTable, Palette, packed
from hookviz.render._layout import Arranged
from hookviz.render._levels import Levels, to_levels
from hookviz.render._measure import Extents
from hookviz.render._options import GridOptions
from hookviz.render._page import Sheet
from hookviz.render._scaling import Scaling
from hookviz.render._tiles import TileGrid, choose_grid, compose, enlarge
from hookviz.render._typeset import Face
from hookviz.render._wording import value

__all__ = ["Tiles", "coloured", "mosaic_of", "plan_tiles", "take"]


@dataclass(frozen=True)
class Tiles:
    """How the tiles of a page are laid out and labelled.

    Attributes:
        grid: Where they stand.
        face: Font of their labels; None where only each row's first index is written.
        aside: Pixels left of the grid for those row labels.
    """

    grid: TileGrid
    face: Face | None
    aside: int


def plan_tiles(
    channels: tuple[int, ...],
    arranged: Arranged,
    options: GridOptions,
    sheet: Sheet,
    room: int,
    aspect: float | None,
) -> Tiles:
    """Choose the grid, and the largest label that fits above every tile.

    Where none does, labels thin out to one at the start of each row.
    """
    size = (int(arranged.maps.shape[1]), int(arranged.maps.shape[2]))
    apart = arranged.apart is not None

    def grid(strip: int, room: int) -> TileGrid:
        return choose_grid(
            len(channels), size, room, strip=strip, ncols=options.ncols, aspect=aspect, apart=apart
        )

    if not options.labels:
        return Tiles(grid(0, room), None, 0)
    longest = str(max(channels))
    for points, strip in ((7.0, 9.5), (6.0, 7.5)):
        face = sheet.face(points)
        found = grid(sheet.px(strip), room)
        if face.width(longest) + 2 <= found.pitch[1]:
            return Tiles(found, face, 0)
    aside = sheet.face(6.5).width(longest) + sheet.px(4)
    return Tiles(grid(0, room - aside), None, aside)


def take(maps: Tensor, channels: tuple[int, ...]) -> Tensor:
    """Those channels of (C, H, W); a view where they are neighbours."""
    first = channels[0]
    if channels == tuple(range(first, first + len(channels))):
        return maps[first : first + len(channels)]
    return maps.index_select(0, torch.tensor(channels, device=maps.device))


def coloured(levels: Levels, table: ColourTable) -> NDArray[np.uint32]:
    """Levels and flags as packed RGBA colours, by table."""
    colours = packed(table.rgb).take(levels.levels)
    if levels.flags is not None:
        flagged = levels.flags > 0
        colours[flagged] = packed(table.flags)[levels.flags[flagged]]
    return colours


def mosaic_of(
    arranged: Arranged,
    channels: tuple[int, ...],
    scale: Scaling,
    found: Extents,
    table: ColourTable,
    grid: TileGrid,
    options: GridOptions,
    colours: Palette,
    background: NDArray[np.uint8] | None,
) -> NDArray[np.uint8]:
    """(height, width, 4) uint8: every tile of the page, gutters in the page's own colour."""
    index = list(channels)
    low, high = scale.low[index], scale.high[index]
    flagged = not found.all_finite or scale.below > 0 or scale.above > 0
    free = grid.scale == (0, 0)
    levels = to_levels(
        take(arranged.maps, channels),
        low,
        high,
        flagged=flagged,
        size=grid.size if free else None,
        shrink=options.shrink,
    )
    tiles = coloured(levels, table)
    if free:
        tiles = enlarge(tiles, grid.size)
    if scale.per_channel:
        _neutral(tiles, levels, low == high, colours)
    if background is not None:
        tiles = _overlaid(tiles, background, options.opacity)
    face = colours.face
    ground = packed(np.round(np.array(face[:3]) * 255).astype(np.uint8), round(face[3] * 255))
    # Upside down in memory, as the canvas wants it, so that no copy has to turn it.
    canvas = np.full(grid.shape, ground, np.uint32)[::-1]
    compose(tiles, grid, canvas)
    if arranged.apart is not None:
        apart = take(arranged.apart, channels)[:, None, :]
        cells = coloured(to_levels(apart, low, high, flagged=flagged), table)
        tall = grid.head - 3
        wide = min(tall, grid.size[1] // cells.shape[2])
        cells = np.repeat(np.repeat(cells, tall, axis=1), wide, axis=2)
        compose(cells, replace(grid, scale=(0, 0)), canvas, top=grid.head)
    return canvas.view(np.uint8).reshape(*canvas.shape, 4)


def _neutral(
    tiles: NDArray[np.uint32], levels: Levels, constant: NDArray[np.bool_], colours: Palette
) -> None:
    """A map of one value has no place on a scale of its own: it takes the page's faint colour."""
    faint = packed(np.round(np.array(colours.faint[:3]) * 255).astype(np.uint8))
    for position in np.flatnonzero(constant):
        if levels.flags is None:
            tiles[position] = faint
        elif levels.flags.shape == tiles.shape:
            tiles[position][levels.flags[position] == 0] = faint


def _overlaid(
    tiles: NDArray[np.uint32], background: NDArray[np.uint8], opacity: float
) -> NDArray[np.uint32]:
    """Colours laid over a grey version of the picture, which has the tiles' size."""
    grey = background.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
    rgba = tiles.view(np.uint8).reshape(*tiles.shape, 4)
    for channel in range(3):
        mixed = rgba[..., channel] * np.float32(opacity) + grey * np.float32(1 - opacity)
        rgba[..., channel] = np.round(mixed)
    return tiles


def label_tiles(
    sheet: Sheet,
    tiles: Tiles,
    channels: tuple[int, ...],
    found: Extents,
    scale: Scaling,
    palette: Palette,
    left: int,
    top: int,
) -> None:
    """Write each tile's index, and what must be known of it, into the strips above the tiles."""
    grid, face = tiles.grid, tiles.face
    if face is None:
        if tiles.aside:
            for row in range(grid.nrows):
                y, _ = grid.origin(row * grid.ncols)
                text = str(channels[row * grid.ncols])
                small = min(6.5, grid.pitch[0] * 72 / sheet.options.dpi * 0.9)
                base = top + y + min(grid.size[0], sheet.px(6))
                sheet.write(text, left - sheet.px(3), base, small, right=True)
        return
    dead = found.dead
    up = sheet.px(2.5)
    for position, channel in enumerate(channels):
        y, x = grid.origin(position)
        base = top + y - grid.head - up
        low, high = float(found.low[channel]), float(found.high[channel])
        text, mark = str(channel), ""
        if low == high and not dead[channel]:
            mark = f" = {value(low)}"
        elif dead[channel]:
            mark = " dead"
        if mark and face.width(text + mark) > grid.size[1]:
            mark = "†" if dead[channel] else ""  # never by its color alone
        warn = dead[channel] and palette.warn
        used = sheet.write(text + mark, left + x, base, face.points, warn or palette.muted)
        if scale.per_channel and low < high:
            range_ = f"{value(low)} … {value(high)}"
            if face.width(range_) + used + sheet.px(5) <= grid.size[1]:
                sheet.write(range_, left + x + grid.size[1], base, face.points, right=True)
