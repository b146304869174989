"""Maps: many small images as one mosaic, with labels, colorbar and a column beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.colors import to_rgba
from numpy.typing import NDArray
from PIL import Image

from hookviz.errors import RenderError
from hookviz.render import _measure as measure
from hookviz.render._artists import add_mosaic
from hookviz.render._draw import Drawing, Subject
from hookviz.render._kinds import FigureKind, register
from hookviz.render._levels import Levels, Scaling, take, to_levels
from hookviz.render._palette import ColorTable, Palette, colored, packed, packed_color
from hookviz.render._sheet import Sheet, dead_sentence, legend_of, page_sentence
from hookviz.render._text import Face, middle_ellipsis, share, value

Tile = tuple[tuple[str, str], NDArray[np.uint32]]
"""A tile beside the grid: what it is and what its colors mean, and its packed pixels."""

_LARGEST = 448  # pixels: a single small map must not fill the page
_READABLE = 64  # pixels: narrower tiles are seen only side by side
_WASTEFUL = 0.8  # of a column's width: below it, whole factors give way
_ASKED = 0.92  # the same where somebody asked for so many columns
_MARKED = "constant"  # room left for a mark behind a name
_THINNEST = 8  # pixels: a strip of one row must be seen


@dataclass(frozen=True)
class TileGrid:
    """Where the tiles of a page stand, in pixels.

    Attributes:
        count: Tiles.
        ncols: In a row; the last row may be ragged.
        size: (height, width) of one map.
        scale: (rows, columns) of pixels per activation; 0 where the map is shrunk.
        gap: Between tiles, in both directions.
        strip: Height of the label's strip above each map.
        head: Height of what stands apart above the map (class tokens), its gap included.
    """

    count: int
    ncols: int
    size: tuple[int, int]
    scale: tuple[int, int]
    gap: int
    strip: int
    head: int = 0

    @property
    def nrows(self) -> int:
        """Rows of tiles."""
        return -(-self.count // self.ncols)

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


def draw_maps(subject: Subject) -> Drawing:
    """One page of maps with its labels, colorbar and the column beside it."""
    arranged, options, scale = subject.arranged, subject.options, subject.scaling
    behind, channels = subject.behind, subject.channels
    sheet = Sheet(subject)
    colorbar = options.colorbar and not arranged.rgb and not sheet.bare
    bar = sheet.bar_width(scale) if colorbar else 0
    column = min(sheet.px(112), sheet.room // 4)
    side = _side(subject, column)
    aside = column + sheet.px(14) if side else 0
    room = sheet.room - bar - aside
    longest = max((arranged.index_text(c) for c in channels), key=len)
    grid, face = plan(subject, sheet, room, longest)
    numbers = 0  # pixels left of the grid for the index of each row's first tile
    if face is None and options.labels:
        numbers = sheet.face(6.5).width(longest) + sheet.px(4)
        grid = choose_grid(subject, room - numbers, 0)
    height = sum(sheet.px(9.5) * 2 + len(colors) + sheet.px(9) for _, colors in side)
    sentences = (
        page_sentence(subject),
        scale.sentence,
        "gray is zero" if arranged.rgb and scale.symmetric else "",
        f"axes {arranged.statement}",
        *arranged.notes,
        dead_sentence(subject),
        "" if behind is None else f"laid over the input at {100 * options.opacity:.0f} %",
        pixel_sentence(subject, grid),
    )
    legend = legend_of(subject.extents, scale, subject.table, arranged.absent)
    sheet.open(sentences, max(grid.shape[0], height), legend)
    left, top = sheet.margin + aside + numbers, sheet.top
    mosaic = _mosaic(subject, grid, sheet.palette)
    add_mosaic(sheet.figure, mosaic, left, top).set_label("maps")
    if face is not None:
        _label(subject, grid, sheet, face, left, top)
    elif numbers:
        _number_rows(subject, grid, sheet, left, top)
    if colorbar:
        above = grid.strip + grid.head
        tall = min(grid.shape[0] - above, sheet.px(220))
        x = left + grid.shape[1] + sheet.px(8)
        sheet.colorbar(x, top + above, tall, subject.table, scale)
    _place_side(sheet, side, column)
    origins = (grid.origin(position) for position in range(len(channels)))
    return subject.drawing(
        sheet.close(),
        cmap="RGB" if arranged.rgb else subject.table.name,
        places=tuple((top + y, left + x, *grid.size) for y, x in origins),
    )


for _kind in (
    FigureKind("maps", draw_maps, on_image=True, bare=True),
    FigureKind("volume", draw_maps, on_image=True, bare=True),
    FigureKind("tokens", draw_maps, "feature", "feature", on_image=True, bare=True),
    FigureKind("signal", draw_maps, "signal"),
    FigureKind("attention", draw_maps, "head", "head"),
):
    register(_kind)


def pixel_sentence(subject: Subject, grid: TileGrid) -> str:
    """How many pixels show one value, or how many values one pixel shows."""
    tall, wide = grid.scale
    noun = subject.arranged.figure_kind.value_noun
    if (tall, wide) == (1, 1):
        return f"1 pixel per {noun}"
    if wide:
        return f"{wide} × {tall} pixels per {noun}"
    down, across = (have / want for have, want in zip(subject.size, grid.size, strict=True))
    if down <= 1 and across <= 1:
        return ""
    how = "the mean of" if subject.options.shrink == "mean" else "the nearest of"
    return f"a pixel is {how} {max(1.0, across):.2g} × {max(1.0, down):.2g}"


def _side(subject: Subject, width: int) -> list[Tile]:
    """The tiles of the column beside the grid."""
    tiles: list[Tile] = []
    if subject.options.show_input and subject.image is not None:
        image = subject.image
        height, across = image.shape[:2]
        small = _resized(image, _tile_size((height, across), width))
        tiles.append((("input", f"{across} × {height} pixels"), packed(small)))
    if not subject.arranged.rgb:
        size = _tile_size(subject.size, width)
        tiles += [_summary(name, subject, size) for name in subject.options.summaries]
    return tiles


def _summary(name: str, subject: Subject, size: tuple[int, int]) -> Tile:
    """One summary over all channels of the sample, on a scale of its own.

    Args:
        name: "mean", "max" or "pca".
        subject: The layer; where its scale is symmetric about zero, this one is too.
        size: (height, width) of the tile.
    """
    maps = subject.arranged.maps
    if name == "pca":
        parts, explained = measure.principal_components(maps)
        # min and max are shares of the layer's largest magnitude, a few numbers.
        low, high = (measure.fetch(end) for end in (parts.amin((1, 2)), parts.amax((1, 2))))
        three = to_levels(parts, low, high, flagged=False, size=size).levels
        rgb = np.moveaxis(np.where((high > low)[:, None, None], three, 0), 0, -1)
        percent = share(round(1e6 * explained), 1_000_000)
        caption = ("principal components", f"1–3 as RGB, {percent} of variance")
        return caption, enlarge(packed(rgb.astype(np.uint8))[None], size)[0]
    whole = (measure.mean_map if name == "mean" else measure.max_map)(maps)[None]
    ends = measure.extents(whole)
    first, last = ends.whole or (0.0, 0.0)
    if subject.scaling.symmetric:
        last = max(abs(first), abs(last))
        first = -last
    levels = to_levels(
        whole, np.array([first]), np.array([last]), flagged=not ends.all_finite, size=size
    )
    noun = subject.arranged.figure_kind.noun
    caption = (f"{name} of {maps.shape[0]} {noun}s", f"{value(first)} … {value(last)}")
    return caption, enlarge(colored(*levels, subject.table), size)[0]


def _tile_size(shape: tuple[int, ...], width: int) -> tuple[int, int]:
    """(height, width) of a tile in a column of that width, its aspect kept.

    A high and narrow one is made narrower, so that it is at most twice as high as the column is
    wide.
    """
    height = max(8, round(shape[0] * width / shape[1]))
    if height > 2 * width:
        return 2 * width, max(8, round(shape[1] * 2 * width / shape[0]))
    return height, width


def _place_side(sheet: Sheet, tiles: list[Tile], width: int) -> None:
    """Draw the tiles under each other, their captions above them."""
    face, top = sheet.face(7.0), sheet.top
    for caption, colors in tiles:
        for text, color in zip(caption, (sheet.palette.ink, None), strict=True):
            top += sheet.px(9.5)
            text = middle_ellipsis(text, width, face.width)
            sheet.write(text, sheet.margin, top - sheet.px(3.2), 7.0, color)
        rgba = colors.view(np.uint8).reshape(*colors.shape, 4)
        add_mosaic(sheet.figure, rgba, sheet.margin, top).set_label(caption[0])
        top += len(colors) + sheet.px(9)


def plan(
    subject: Subject, sheet: Sheet, room: int, longest: str, group: int = 1
) -> tuple[TileGrid, Face | None]:
    """The grid, and the font of the labels above its tiles.

    Args:
        subject: Its maps are the tiles.
        sheet: Where they stand.
        room: Width in pixels.
        longest: The longest label.
        group: Tiles of one channel, which stay in one row.

    Returns:
        A grid with room for the largest labels that fit; one without, and None, where none do.
    """
    for points, strip in ((7.0, 9.5), (6.0, 7.5)) * subject.options.labels:
        face, grid = sheet.face(points), choose_grid(subject, room, sheet.px(strip), group)
        if face.width(longest) + 2 <= grid.pitch[1]:
            return grid, face
    return choose_grid(subject, room, 0, group), None


def choose_grid(subject: Subject, room: int, strip: int, group: int = 1) -> TileGrid:
    """The grid that fills the room's width well and is about as high as wide.

    Args:
        subject: Its maps are the tiles.
        room: Width in pixels.
        strip: Height of the label's strip.
        group: Tiles of one channel, which stay in one row.
    """
    count = group * len(subject.channels)
    legal = range(group, max(group, min(count, room // 4)) + 1, group)
    if subject.options.ncols is not None:
        most = max(group, min(subject.options.ncols, legal[-1]))
        legal = range(most - most % group, most + 1, group)
    grids = (_grid(subject, count, room, strip, ncols) for ncols in legal)
    return min(grids, key=lambda grid: _cost(grid, room))


def _grid(subject: Subject, count: int, room: int, strip: int, ncols: int) -> TileGrid:
    height, width = subject.size
    behind = subject.behind
    gap = 8 if room // ncols >= 64 else 4 if strip else 2
    across = max(1, (room - gap * (ncols - 1)) // ncols)
    across = min(across, max(_LARGEST, width))
    scale = (0, 0)
    if behind is not None:
        tile = (max(1, round(across * (behind.shape[0] / behind.shape[1]))), across)
    elif across >= width:
        factor = across // width
        if height * factor > 2 * _LARGEST:
            factor = max(1, 2 * _LARGEST // height)
        tall = factor if height * factor >= _THINNEST else -(-_THINNEST // height)
        tile, scale = (height * tall, width * factor), (tall, factor)
        limit = _WASTEFUL if subject.options.ncols is None else _ASKED
        narrow = width * factor < limit * across
        if narrow and height > 1 and across * height < width * 2 * room:
            # Pixels of unequal width are the lesser evil where equal ones leave much room empty.
            tile, scale = (max(1, round(height * across / width)), across), (0, 0)
    else:
        tile = (max(_THINNEST if height == 1 else 1, round(height * across / width)), across)
    spare = room - ncols * tile[1] - gap * (ncols - 1)
    if ncols > 1 and spare > 0:
        gap += min(6, spare // (ncols - 1))
    head = 0
    if subject.arranged.apart is not None:
        head = max(3, scale[0] or round(tile[0] / height)) + 3
    return TileGrid(count, ncols, tile, scale, gap, strip, head)


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


def draw_tiles(
    subject: Subject, grid: TileGrid, part: int, scale: Scaling, table: ColorTable, *, flagged: bool
) -> tuple[NDArray[np.uint32], Levels]:
    """The page's channels in colors, and their levels.

    Args:
        subject: What is drawn.
        grid: Where the tiles will stand.
        part: Which of its maps: 0 and on are those ``beside``, -1 the maps themselves.
        scale: What the colors stand for.
        table: The colors.
        flagged: Whether any value may have no place on the scale.

    Returns:
        (n, h, w) packed colors, one per activation or of the tile's size; see `compose`.
    """
    maps = (*subject.arranged.beside, subject.arranged.maps)[part]
    channels, size = list(subject.channels), grid.size if grid.scale == (0, 0) else None
    levels = to_levels(
        take(maps, channels),
        scale.low[channels],
        scale.high[channels],
        flagged=flagged,
        size=size,
        shrink=subject.options.shrink,
    )
    tiles = colored(*levels, table)
    return tiles if size is None else enlarge(tiles, size), levels


def tile_levels(subject: Subject, largest: int) -> Levels:
    """The maps of a page as levels, neither colored nor placed: a screen does that by itself.

    Args:
        subject: What is drawn.
        largest: Values along the longer side of a map; a map that has more is shrunk, as in a
            figure whose tiles are that large.

    Returns:
        (n, h, w) levels and flags, of ``subject.channels`` in their order.

    Raises:
        RenderError: It is not drawn as maps of values.

    Examples:
        >>> import torch
        >>> from hookviz.render import GridOptions
        >>> levels, flags = tile_levels(Subject(torch.rand(1, 8, 64, 32), GridOptions()), 16)
        >>> levels.shape
        (8, 16, 8)
    """
    arranged, scale = subject.arranged, subject.scaling
    if subject.kind.draw is not draw_maps or arranged.rgb:
        raise RenderError("It is not drawn as maps.")
    height, width = subject.size
    share = min(1.0, largest / max(height, width))
    channels = list(subject.channels)
    return to_levels(
        take(arranged.maps, channels),
        scale.low[channels],
        scale.high[channels],
        flagged=subject.flagged,
        size=(max(1, round(height * share)), max(1, round(width * share))),
        shrink=subject.options.shrink,
    )


def _mosaic(subject: Subject, grid: TileGrid, colors: Palette) -> NDArray[np.uint8]:
    """(height, width, 4) uint8: every tile of the page, gutters in the page's own color."""
    arranged, scale, table = subject.arranged, subject.scaling, subject.table
    tiles, levels = draw_tiles(subject, grid, -1, scale, table, flagged=subject.flagged)
    channels = list(subject.channels)
    low, high = scale.low[channels], scale.high[channels]
    if scale.per_channel:
        _neutral(tiles, levels, low == high, colors)
    if subject.behind is not None:
        background = _resized(subject.behind, grid.size)
        tiles = _overlaid(tiles, background, subject.options.opacity)
    canvas = blank(grid, colors)
    compose(tiles, grid, canvas)
    if arranged.mark is not None:
        _outline(canvas, grid, arranged.mark, subject.size)
    if arranged.apart is not None:
        apart = take(arranged.apart, channels)[:, None, :]
        cells = colored(*to_levels(apart, low, high, flagged=subject.flagged), table)
        tall = grid.head - 3
        wide = min(tall, grid.size[1] // cells.shape[2])
        cells = cells.repeat(tall, axis=1).repeat(wide, axis=2)
        compose(cells, replace(grid, scale=(0, 0)), canvas, top=grid.head)
    return canvas.view(np.uint8).reshape(*canvas.shape, 4)


def _outline(
    canvas: NDArray[np.uint32], grid: TileGrid, place: tuple[int, int], size: tuple[int, int]
) -> None:
    """A black and a white line around one place of every map, seen on any color."""
    ends = []
    for at, count, pixels in zip(place, size, grid.size, strict=True):
        first, last = at * pixels // count, -(-(at + 1) * pixels // count)
        ends.append((max(0, first - 2), min(pixels, last + 2)))
    (top, bottom), (left, right) = ends
    for position in range(grid.count):
        y, x = grid.origin(position)
        for inset, color in enumerate(("white", "black")):
            part = canvas[
                y + top + inset : y + bottom - inset, x + left + inset : x + right - inset
            ]
            packed_ = packed_color(to_rgba(color))
            part[[0, -1]] = packed_
            part[:, [0, -1]] = packed_


def blank(grid: TileGrid, colors: Palette) -> NDArray[np.uint32]:
    """The mosaic without its tiles, in the page's own color."""
    # Upside down in memory, as the canvas wants it, so that no copy has to turn it.
    return np.full(grid.shape, packed_color(colors.face))[::-1]


def _neutral(
    tiles: NDArray[np.uint32], levels: Levels, constant: NDArray[np.bool_], colors: Palette
) -> None:
    """A map of one value has no place on a scale of its own: it takes the page's faint color."""
    for position in np.flatnonzero(constant):
        if levels.flags is None:
            tiles[position] = packed_color(colors.faint)
        elif levels.flags.shape == tiles.shape:
            tiles[position][levels.flags[position] == 0] = packed_color(colors.faint)


def _resized(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """A photo at (height, width), smoothly."""
    shrinks = image.shape[1] > size[1]
    method = Image.Resampling.BOX if shrinks else Image.Resampling.BICUBIC
    return np.asarray(Image.fromarray(image).resize((size[1], size[0]), method))


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


def _number_rows(subject: Subject, grid: TileGrid, sheet: Sheet, left: int, top: int) -> None:
    """Write the index of each row's first tile left of it."""
    small = min(6.5, grid.pitch[0] * 72 / sheet.options.dpi * 0.9)
    for position in range(0, grid.count, grid.ncols):
        base = top + grid.origin(position)[0] + min(grid.size[0], sheet.px(6))
        text = subject.arranged.index_text(subject.channels[position])
        sheet.write(text, left - sheet.px(3), base, small, right=True)


def _label(subject: Subject, grid: TileGrid, sheet: Sheet, face: Face, left: int, top: int) -> None:
    """Write each tile's index, and what must be known of it, into the strip above it."""
    found, palette = subject.extents, sheet.palette
    dead, arranged = found.dead, subject.arranged
    for position, channel in enumerate(subject.channels):
        y, x = grid.origin(position)
        base = top + y - grid.head - sheet.px(2.5)
        low, high = float(found.low[channel]), float(found.high[channel])
        text, mark = arranged.index_text(channel), ""
        if arranged.names:
            room = grid.size[1] - face.width(f"{text}  {_MARKED}")
            name = middle_ellipsis(arranged.names[channel], room, face.width)
            text += f"  {name}" if room > sheet.px(30) else ""
        if dead[channel]:
            mark = f" {arranged.figure_kind.dead_word}"
        elif low == high:
            mark = f" = {value(low)}"
        if mark and face.width(text + mark) > grid.size[1]:
            mark = "†" if dead[channel] else ""  # never by its color alone
        color = palette.warn if dead[channel] else palette.muted
        used = sheet.write(text + mark, left + x, base, face.points, color)
        if subject.scaling.per_channel and low < high:
            range_ = f"{value(low)} … {value(high)}"
            if face.width(range_) + used + sheet.px(5) <= grid.size[1]:
                sheet.write(range_, left + x + grid.size[1], base, face.points, right=True)
