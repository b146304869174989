"""Maps: many small images as one mosaic, with labels, colorbar and a column beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hookviz.render import _measure as measure
from hookviz.render._arrange import Arranged, choose_channels, page_of, pages_of
from hookviz.render._artists import add_mosaic
from hookviz.render._glyphs import Face
from hookviz.render._kinds import Drawing, FigureKind, Subject, register
from hookviz.render._levels import Levels, take, to_levels
from hookviz.render._measure import Extents
from hookviz.render._number_format import share, value
from hookviz.render._options import GridOptions
from hookviz.render._palette import ColorTable, Palette, choose_cmap, color_table, colored, packed
from hookviz.render._scaling import Scaling, scaling
from hookviz.render._sheet import (
    Sheet,
    SideTile,
    bar_width,
    dead_sentence,
    input_tile,
    legend_of,
    page_sentence,
    pixel_sentence,
    resized,
    tile_size,
)
from hookviz.render._tile_grid import TileGrid, choose_grid, compose, enlarge


@dataclass(frozen=True, eq=False)
class _Page:
    """What is known of a page before it is laid out.

    Attributes:
        arranged: The layer.
        options: How to draw it.
        channels: Those on the page.
        found: The extents of all channels.
        scale: What their colors mean.
        table: The colors.
        behind: The image to lay the maps over; None where they stand alone.
    """

    arranged: Arranged
    options: GridOptions
    channels: tuple[int, ...]
    found: Extents
    scale: Scaling
    table: ColorTable
    behind: NDArray[np.uint8] | None


@dataclass(frozen=True)
class _Tiles:
    """How the tiles of a page are laid out and labelled.

    Attributes:
        grid: Where they stand.
        face: Font of their labels; None where only each row's first index is written.
        aside: Pixels left of the grid for those row labels.
    """

    grid: TileGrid
    face: Face | None
    aside: int


def draw_maps(subject: Subject) -> Drawing:
    """One page of maps with its labels, colorbar and the column beside it."""
    arranged, options, paged = subject.arranged, subject.options, subject.kind.paged
    behind = subject.behind()
    found = measure.extents(arranged.maps, arranged.apart)
    chosen = choose_channels(arranged, found, options)
    channels = page_of(chosen, options, paged=paged)
    pages = pages_of(len(chosen), options, paged=paged)
    scale = scaling(arranged, found, options)
    cmap = (
        "gray"
        if arranged.rgb
        else choose_cmap(options.cmap, options.style, symmetric=scale.symmetric)
    )
    page = _Page(arranged, options, channels, found, scale, color_table(cmap), behind)
    sheet = Sheet(options)
    colorbar = options.colorbar and not arranged.rgb
    bar = bar_width(scale.ends, sheet.face(7.5)) + sheet.px(8) if colorbar else 0
    column = min(sheet.px(112), sheet.room // 4)
    side = _side(page, subject.image, column)
    aside = column + sheet.px(14) if side else 0
    tiles = _plan(page, sheet, sheet.room - bar - aside)
    grid = tiles.grid
    said = (
        page_sentence(arranged, len(channels), len(chosen), options, pages),
        scale.sentence,
        "gray is zero" if arranged.rgb and scale.symmetric else "",
        f"axes {arranged.statement}",
        *arranged.notes,
        dead_sentence(arranged, found),
        "" if behind is None else f"laid over the input at {100 * options.opacity:.0f} %",
        pixel_sentence(arranged, grid, options),
    )
    height = max(grid.shape[0], sheet.side_height(side, column) if side else 0)
    header = subject.header(said, legend_of(found, scale, page.table))
    figure = sheet.open(header, height)
    left, top = sheet.margin + aside + tiles.aside, sheet.top
    add_mosaic(figure, _mosaic(page, grid, sheet.palette), left, top).set_label("maps")
    _label(page, tiles, sheet, left, top)
    if colorbar:
        above = grid.strip + grid.head
        sheet.colorbar(
            figure,
            left + grid.shape[1] + sheet.px(8),
            top + above,
            min(grid.shape[0] - above, sheet.px(220)),
            page.table,
            scale.ends,
            clipped=(scale.below > 0, scale.above > 0),
        )
    sheet.place_side(figure, side, column)
    sheet.close(figure)
    return subject.drawing(
        figure,
        found,
        channels,
        cmap="RGB" if arranged.rgb else page.table.name,
        scale=scale,
        pages=pages,
        total=len(chosen),
        places=tuple(
            (top + y, left + x, *grid.size)
            for y, x in (grid.origin(position) for position in range(len(channels)))
        ),
    )


for _kind in (
    FigureKind("maps", draw_maps, on_image=True),
    FigureKind("volume", draw_maps, on_image=True),
    FigureKind("tokens", draw_maps, "feature", "feature", on_image=True),
    FigureKind("signal", draw_maps, "signal"),
    FigureKind("attention", draw_maps, "head", "head"),
):
    register(_kind)


def _side(page: _Page, image: NDArray[np.uint8] | None, width: int) -> list[SideTile]:
    """The tiles of the column beside the grid."""
    shown = page.options.show_input and image is not None
    tiles = [input_tile(image)] if shown and image is not None else []
    if not page.arranged.rgb:
        size = tile_size(tuple(page.arranged.maps.shape[-2:]), width)
        tiles += [_summary_tile(name, page, size) for name in page.options.summaries]
    return tiles


def _summary_tile(name: str, page: _Page, size: tuple[int, int]) -> SideTile:
    """One summary over all channels of the sample, on a scale of its own.

    Args:
        name: "mean", "max" or "pca".
        page: The layer; where its scale is symmetric about zero, this one is too.
        size: (height, width) that the tile will have: larger maps are shrunk.
    """
    maps, found = page.arranged.maps, page.found
    if name == "pca":
        parts, explained = measure.principal_components(maps, found)
        # min and max are shares of the layer's largest magnitude, a few numbers.
        low, high = (measure.fetch(end) for end in (parts.amin((1, 2)), parts.amax((1, 2))))
        three = to_levels(parts, low, high, flagged=False, size=size).levels
        rgb = np.moveaxis(np.where((high > low)[:, None, None], three, 0), 0, -1)
        percent = share(round(1e6 * explained), 1_000_000)
        return SideTile(
            ("principal components", f"1–3 as RGB, {percent} of variance"),
            packed(np.ascontiguousarray(rgb, np.uint8)),
        )
    whole = measure.mean_map(maps, found) if name == "mean" else measure.max_map(maps)
    ends = measure.extents(whole[None])
    first, last = ends.whole or (0.0, 0.0)
    if page.scale.symmetric:
        last = max(abs(first), abs(last))
        first = -last
    levels = to_levels(
        whole[None], np.array([first]), np.array([last]), flagged=not ends.all_finite, size=size
    )
    return SideTile(
        (f"{name} of {maps.shape[0]} {page.arranged.noun}s", f"{value(first)} … {value(last)}"),
        colored(levels.levels, levels.flags, page.table)[0],
    )


def _plan(page: _Page, sheet: Sheet, room: int) -> _Tiles:
    """Choose the grid, and the largest label that fits above every tile.

    Where none does, labels thin out to one at the start of each row.
    """
    rows, columns = page.arranged.maps.shape[-2:]
    behind, options = page.behind, page.options

    def grid(strip: int, room: int) -> TileGrid:
        return choose_grid(
            len(page.channels),
            (rows, columns),
            room,
            strip=strip,
            ncols=options.ncols,
            aspect=None if behind is None else behind.shape[0] / behind.shape[1],
            apart=page.arranged.apart is not None,
        )

    if not options.labels:
        return _Tiles(grid(0, room), None, 0)
    longest = str(max(page.channels))
    for points, strip in ((7.0, 9.5), (6.0, 7.5)):
        face = sheet.face(points)
        found = grid(sheet.px(strip), room)
        if face.width(longest) + 2 <= found.pitch[1]:
            return _Tiles(found, face, 0)
    aside = sheet.face(6.5).width(longest) + sheet.px(4)
    return _Tiles(grid(0, room - aside), None, aside)


def _mosaic(page: _Page, grid: TileGrid, colors: Palette) -> NDArray[np.uint8]:
    """(height, width, 4) uint8: every tile of the page, gutters in the page's own color."""
    arranged, scale, table, index = page.arranged, page.scale, page.table, list(page.channels)
    low, high = scale.low[index], scale.high[index]
    flagged = not page.found.all_finite or scale.below > 0 or scale.above > 0
    free = grid.scale == (0, 0)
    levels = to_levels(
        take(arranged.maps, page.channels),
        low,
        high,
        flagged=flagged,
        size=grid.size if free else None,
        shrink=page.options.shrink,
    )
    tiles = colored(levels.levels, levels.flags, table)
    if free:
        tiles = enlarge(tiles, grid.size)
    if scale.per_channel:
        _neutral(tiles, levels, low == high, colors)
    if page.behind is not None:
        tiles = _overlaid(tiles, resized(page.behind, grid.size), page.options.opacity)
    # Upside down in memory, as the canvas wants it, so that no copy has to turn it.
    canvas = np.full(grid.shape, colors.ground, np.uint32)[::-1]
    compose(tiles, grid, canvas)
    if arranged.apart is not None:
        apart = to_levels(
            take(arranged.apart, page.channels)[:, None, :], low, high, flagged=flagged
        )
        cells = colored(apart.levels, apart.flags, table)
        tall = grid.head - 3
        wide = min(tall, grid.size[1] // cells.shape[2])
        cells = np.repeat(np.repeat(cells, tall, axis=1), wide, axis=2)
        compose(cells, replace(grid, scale=(0, 0)), canvas, top=grid.head)
    return canvas.view(np.uint8).reshape(*canvas.shape, 4)


def _neutral(
    tiles: NDArray[np.uint32], levels: Levels, constant: NDArray[np.bool_], colors: Palette
) -> None:
    """A map of one value has no place on a scale of its own: it takes the page's faint color."""
    faint = packed(np.round(np.array(colors.faint[:3]) * 255).astype(np.uint8))
    for position in np.flatnonzero(constant):
        if levels.flags is None:
            tiles[position] = faint
        elif levels.flags.shape == tiles.shape:
            tiles[position][levels.flags[position] == 0] = faint


def _overlaid(
    tiles: NDArray[np.uint32], background: NDArray[np.uint8], opacity: float
) -> NDArray[np.uint32]:
    """Colors laid over a gray version of the image, which has the tiles' size."""
    gray = background.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
    rgba = tiles.view(np.uint8).reshape(*tiles.shape, 4)
    for channel in range(3):
        mixed = rgba[..., channel] * np.float32(opacity) + gray * np.float32(1 - opacity)
        rgba[..., channel] = np.round(mixed)
    return tiles


def _label(page: _Page, tiles: _Tiles, sheet: Sheet, left: int, top: int) -> None:
    """Write each tile's index, and what must be known of it, into the strips above the tiles."""
    grid, face, found, palette = tiles.grid, tiles.face, page.found, sheet.palette
    if face is None:
        for row in range(grid.nrows if tiles.aside else 0):
            y, _ = grid.origin(row * grid.ncols)
            text = str(page.channels[row * grid.ncols])
            small = min(6.5, grid.pitch[0] * 72 / sheet.options.dpi * 0.9)
            base = top + y + min(grid.size[0], sheet.px(6))
            sheet.write(text, left - sheet.px(3), base, small, right=True)
        return
    dead = found.dead
    for position, channel in enumerate(page.channels):
        y, x = grid.origin(position)
        base = top + y - grid.head - sheet.px(2.5)
        low, high = float(found.low[channel]), float(found.high[channel])
        text, mark = str(channel), ""
        if dead[channel]:
            mark = " dead"
        elif low == high:
            mark = f" = {value(low)}"
        if mark and face.width(text + mark) > grid.size[1]:
            mark = "†" if dead[channel] else ""  # never by its color alone
        color = palette.warn if dead[channel] else palette.muted
        used = sheet.write(text + mark, left + x, base, face.points, color)
        if page.scale.per_channel and low < high:
            range_ = f"{value(low)} … {value(high)}"
            if face.width(range_) + used + sheet.px(5) <= grid.size[1]:
                sheet.write(range_, left + x + grid.size[1], base, face.points, right=True)
