"""A page of maps, from the arranged layer to the finished Drawing.

In: arranged maps, options, the picture that the network saw. Out: a Drawing. Must not know:
models, files, widgets.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hookviz.activation import Activation
from hookviz.errors import RenderError
from hookviz.render._artists import add_mosaic
from hookviz.render._colours import ColourTable, choose_cmap, colour_table, palette
from hookviz.render._drawing import Drawing, PictureFacts
from hookviz.render._figure import label_tiles, mosaic_of, plan_tiles
from hookviz.render._heading import (
    dead_sentence,
    heading,
    legend_of,
    page_sentence,
    pixel_sentence,
)
from hookviz.render._layout import Arranged
from hookviz.render._measure import Extents, extents
from hookviz.render._options import GridOptions
from hookviz.render._page import Sheet, bar_width
from hookviz.render._scaling import Scaling, scaling
from hookviz.render._selection import choose_channels, page_of, pages_of
from hookviz.render._side import input_tile, place_side, resized, side_height, tile_size
from hookviz.render._summary import SideTile, summary_tile

__all__ = ["draw_maps"]


def draw_maps(
    source: Activation | Tensor,
    arranged: Arranged,
    options: GridOptions,
    facts: PictureFacts | None,
    picture: NDArray[np.uint8] | None,
) -> Drawing:
    """One page of maps with its labels, colourbar and the column beside it."""
    overlay = _overlay(arranged, options, picture)
    found = extents(arranged.maps, arranged.apart)
    chosen = choose_channels(arranged, found, options)
    channels = page_of(arranged.kind, chosen, options)
    pages = pages_of(arranged.kind, len(chosen), options)
    scale = scaling(arranged, found, options)
    colours = palette(options.style)
    table = colour_table(choose_cmap(options, symmetric=scale.symmetric))
    laid = f"laid over the input at {options.opacity:.0%}".replace("%", " %")
    said = (
        page_sentence(arranged, len(channels), len(chosen), options, pages),
        scale.sentence,
        f"axes {arranged.statement}",
        *arranged.notes,
        dead_sentence(arranged, found),
        laid if overlay is not None else "",
    )
    legend = legend_of(found, scale, table)
    sheet = Sheet(heading(source, arranged, said, options, facts, legend), options, colours)
    bar = bar_width(scale.ends, sheet.face(7.5)) + sheet.px(8) if options.colorbar else 0
    column = min(sheet.px(112), sheet.room // 4)
    side = _side(arranged, found, scale, table, options, picture, column)
    aside = column + sheet.px(14) if side else 0
    aspect = None if overlay is None else overlay.shape[0] / overlay.shape[1]
    tiles = plan_tiles(channels, arranged, options, sheet, sheet.room - bar - aside, aspect)
    grid = tiles.grid
    said = (*said, pixel_sentence(arranged, grid, options))
    sheet = Sheet(heading(source, arranged, said, options, facts, legend), options, colours)
    behind = None if overlay is None else resized(overlay, grid.size)
    rgba = mosaic_of(arranged, channels, scale, found, table, grid, options, colours, behind)
    height = max(grid.shape[0], side_height(sheet, side, column) if side else 0)
    figure = sheet.open(height)
    left, top = sheet.margin + aside + tiles.aside, sheet.top
    add_mosaic(figure, rgba, left, top).set_label("maps")
    label_tiles(sheet, tiles, channels, found, scale, colours, left, top)
    if options.colorbar:
        above = grid.strip + grid.head
        sheet.colourbar(
            figure,
            left + grid.shape[1] + sheet.px(8),
            top + above,
            min(grid.shape[0] - above, sheet.px(220)),
            table,
            scale.ends,
            clipped=(scale.below > 0, scale.above > 0),
        )
    if side:
        place_side(sheet, figure, side, sheet.margin, top, column)
    sheet.close(figure)
    ends = scale.ends
    return Drawing(
        figure=figure,
        channels=channels,
        page=options.page,
        pages=pages,
        total=len(chosen),
        kind=arranged.kind,
        scale=scale.sentence,
        vmin=None if ends is None else ends[0],
        vmax=None if ends is None else ends[1],
        tile_ranges=tuple((float(scale.low[c]), float(scale.high[c])) for c in channels),
        tile_extents=tuple((float(found.low[c]), float(found.high[c])) for c in channels),
        cmap=table.name,
        nan=int(found.nan.sum()),
        posinf=int(found.posinf.sum()),
        neginf=int(found.neginf.sum()),
        below=scale.below,
        above=scale.above,
        dead=tuple(int(c) for c in found.dead.nonzero()[0]),
        layout=arranged.statement,
        notes=arranged.notes,
        options=options,
        places=tuple(
            (top + y, left + x, *grid.size)
            for y, x in (grid.origin(position) for position in range(len(channels)))
        ),
    )


def _overlay(
    arranged: Arranged, options: GridOptions, picture: NDArray[np.uint8] | None
) -> NDArray[np.uint8] | None:
    """The picture to lay the maps over, or None where that was not asked for."""
    if options.opacity == 0:
        return None
    if arranged.kind in ("attention", "signal"):
        raise RenderError(
            f"overlay needs maps that lie over the picture; shape {arranged.shape} is read as "
            f"{arranged.kind}.",
            remedy="Draw it without overlay.",
            code="overlay-needs-maps",
        )
    if arranged.part:
        raise RenderError(
            f"overlay needs maps of the whole image; each map of shape {arranged.shape} is one of "
            f"a {arranged.part}.",
            remedy="Draw it without overlay.",
            code="overlay-needs-maps",
        )
    return picture


def _side(
    arranged: Arranged,
    found: Extents,
    scale: Scaling,
    table: ColourTable,
    options: GridOptions,
    picture: NDArray[np.uint8] | None,
    width: int,
) -> list[SideTile]:
    """The tiles of the column beside the grid."""
    tiles = []
    if options.show_input and picture is not None:
        tiles.append(input_tile(picture))
    shape = (int(arranged.maps.shape[1]), int(arranged.maps.shape[2]))
    size = tile_size(shape, width)
    tiles += [
        summary_tile(name, arranged, found, table, size, symmetric=scale.symmetric)
        for name in options.summaries
    ]
    return tiles
