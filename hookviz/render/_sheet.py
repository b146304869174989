"""The page that every figure stands on: header, margins, colorbar, side column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL import Image

from hookviz.errors import RenderError
from hookviz.render._artists import Captions, GridFigure, add_mosaic, figure_of
from hookviz.render._glyphs import Face, Label
from hookviz.render._number_format import counted, middle_ellipsis, value
from hookviz.render._options import GridOptions
from hookviz.render._palette import ColorTable, Flag, packed, palette
from hookviz.render._tile_grid import TileGrid, enlarge

if TYPE_CHECKING:
    from hookviz.render._arrange import Arranged
    from hookviz.render._measure import Extents
    from hookviz.render._scaling import Scaling

Legend = tuple[tuple[tuple[int, int, int], str], ...]

_MAX_PIXELS = 250_000_000  # of 4 bytes


@dataclass(frozen=True)
class Header:
    """The texts above a figure.

    Attributes:
        title: The layer.
        details: Beside it: type, shape, dtype.
        sentences: Under it, each whole; joined by middle dots and wrapped.
        source: At the right: model and image.
        badge: A word that must not be overlooked, or "".
        legend: Colors with what they stand for.
    """

    title: str
    details: str
    sentences: tuple[str, ...]
    source: str = ""
    badge: str = ""
    legend: Legend = ()


class Sheet:
    """Sizes and texts of a page; first asked for its room, then opened under its header.

    Args:
        options: Width, dpi and style.

    Attributes:
        margin: Pixels left free on every side.
        room: Pixels between the left and right margin.
        top: Pixel row under the header, known once it is open.
    """

    def __init__(self, options: GridOptions) -> None:
        self.options, self.palette = options, palette(options.style)
        self.labels: list[Label] = []
        self.margin = self.px(14 if options.width >= 500 else 7)
        self.room = options.width - 2 * self.margin
        self.top = 0

    def px(self, points: float) -> int:
        """Points as whole pixels."""
        return round(points * self.options.dpi / 72.0)

    def face(self, points: float, weight: str = "normal") -> Face:
        """The page's font at a size."""
        return Face(self.palette.family, points, self.options.dpi, weight)

    def write(
        self,
        text: str,
        x: int,
        y: int,
        points: float = 7.5,
        color: tuple[float, float, float, float] | None = None,
        *,
        right: bool = False,
        weight: str = "normal",
    ) -> int:
        """Put a text's baseline at a pixel from the page's top left; returns its width."""
        face = self.face(points, weight)
        text = face.legible(text)
        if text:
            self.labels.append(Label(text, x, y, color or self.palette.muted, face, right))
        return face.width(text)

    def _write_header(self, header: Header) -> int:
        palette = self.palette
        bold = self.face(12.0, "bold")
        y = self.margin + self.px(11)
        room = self.room
        if header.badge:
            room -= self.write(
                header.badge, self.margin + room, y, 8.0, palette.warn, right=True
            ) + self.px(8)
        small = self.face(8.0)
        if header.source and room > self.px(300):
            source = middle_ellipsis(header.source, room * 0.4, small.width)
            room -= self.write(source, self.margin + room, y, 8.0, right=True) + self.px(12)
        details = small.width(header.details)
        keep = room - details - self.px(9)
        beside = keep >= bold.width(header.title)  # else the details take a line of their own
        title = header.title if beside else middle_ellipsis(header.title, room, bold.width)
        wide = self.write(title, self.margin, y, 12.0, palette.ink, weight="bold")
        if beside:
            self.write(header.details, self.margin + wide + self.px(8), y, 8.0)
        sentences = header.sentences if beside else (header.details, *header.sentences)
        line = self.px(12.5)
        for text in _wrapped(sentences, self.room, small):
            y += line if y > self.margin + self.px(11) else self.px(14.5)
            self.write(text, self.margin, y, 8.0)
        if header.legend:
            y += line
            self._write_legend(header.legend, y)
        return y + self.px(11)

    def _write_legend(self, legend: Legend, y: int) -> None:
        x = self.margin
        for rgb, text in legend:
            r, g, b = (c / 255 for c in rgb)
            x += self.write("■", x, y, 8.0, (r, g, b, 1.0)) + self.px(3)
            x += self.write(text, x, y, 8.0) + self.px(10)

    def open(self, header: Header, height: int) -> GridFigure:
        """The figure, with ``height`` pixels under the header; then ``close`` it.

        Raises:
            RenderError: The page would take more than a gigabyte.
        """
        self.top = self._write_header(header)
        width, height = self.options.width, self.top + height + self.margin
        if width * height > _MAX_PIXELS:
            raise RenderError(
                f"The page would be {width} × {height} pixels.",
                remedy="Draw fewer maps on a page, more of them in a row, or a narrower page.",
                code="page-too-large",
            )
        return figure_of(width, height, self.options.dpi, self.palette.face)

    def close(self, figure: GridFigure) -> None:
        """Put all small texts on the figure."""
        figure.add_artist(Captions(self.labels))

    def colorbar(
        self,
        figure: GridFigure,
        left: int,
        top: int,
        height: int,
        table: ColorTable,
        ends: tuple[float, float] | None,
        clipped: tuple[bool, bool] = (False, False),
    ) -> Axes:
        """A slim bar of all 256 colors with the values that they stand for.

        Args:
            figure: Where it goes.
            left: Pixel of its left edge.
            top: Pixel of its upper edge.
            height: Of bar and end marks together.
            table: Colors.
            ends: Values of the first and last color; None where they differ from map to map.
            clipped: Whether values lie below, above: their color is shown past the end.
        """
        wide, mark = self.px(8), max(4, self.px(7)) if any(clipped) else 0
        top, height = top + mark, max(8, height - 2 * mark)
        at = np.linspace(255, 0, height).round().astype(np.intp)
        bar = np.empty((height, wide, 4), np.uint8)
        bar[..., :3] = table.rgb[at][:, None]
        bar[..., 3] = 255
        limits = (0.0, 1.0) if ends is None or not _plottable(ends) else ends
        axes = add_mosaic(figure, bar, left, top, limits)
        axes.set_label("colorbar")
        marks = ((clipped[1], top - mark, Flag.ABOVE), (clipped[0], top + height + 2, Flag.BELOW))
        for past, row, flag in marks:
            if past:
                block = np.empty((mark - 2, wide, 4), np.uint8)
                block[...] = [*table.flags[flag], 255]
                add_mosaic(figure, block, left, row)
        x, half = left + wide + self.px(4), self.px(2.6)
        if ends is None:
            self.write("max", x, top + half * 2)
            self.write("min", x, top + height)
        else:
            for place, text in ticks(ends, max(2, height // self.px(34))):
                y = top + round((1.0 - place) * (height - 1)) + half
                self.write(text, x, min(max(y, top + 2 * half), top + height))
        return axes

    def side_height(self, tiles: list[SideTile], width: int) -> int:
        """Pixels that the column takes."""
        texts = sum(self.px(9.5) * len(tile.caption) + self.px(9) for tile in tiles)
        return texts + sum(tile_size(tile.colors.shape, width)[0] for tile in tiles)

    def place_side(self, figure: Figure, tiles: list[SideTile], width: int) -> None:
        """Draw the tiles under each other, their captions above them."""
        face, left, top = self.face(7.0), self.margin, self.top
        for tile in tiles:
            for number, text in enumerate(tile.caption):
                top += self.px(9.5)
                color = self.palette.ink if number == 0 else None
                text = middle_ellipsis(text, width, face.width)
                self.write(text, left, top - self.px(3.2), 7.0, color)
            size = tile_size(tile.colors.shape, width)
            if tile.smooth:
                rgb = tile.colors.view(np.uint8).reshape(*tile.colors.shape, 4)[..., :3]
                colors = packed(resized(np.ascontiguousarray(rgb), size))
            else:
                colors = enlarge(tile.colors[None], size)[0]
            rgba = np.ascontiguousarray(colors).view(np.uint8).reshape(*size, 4)
            add_mosaic(figure, rgba, left, top).set_label(tile.caption[0])
            top += size[0] + self.px(9)


def ticks(ends: tuple[float, float], count: int) -> list[tuple[float, str]]:
    """Where a scale is marked, 0 to 1, and what stands there: both ends and round values.

    Examples:
        >>> ticks((0.0, 10.0), 3)
        [(0.0, '0'), (0.5, '5'), (1.0, '10')]
    """
    low, high = ends
    if low == high:
        return [(0.5, value(low))]
    half = high / 2 - low / 2
    places = [(0.0, value(low)), (1.0, value(high))]
    if 1e-290 < half < 1e290 and max(abs(low), abs(high)) < half * 1e6:
        locator = MaxNLocator(nbins=count, steps=[1, 2, 2.5, 5, 10])
        for v in locator.tick_values(low, high):
            place = (v - low) / (2 * half)
            if 0.45 / count < place < 1 - 0.45 / count:
                places.append((float(place), value(0.0 if abs(v) < half * 1e-9 else float(v))))
    elif low < 0 < high and 0.05 < -low / 2 / half < 0.95:
        places.append((float(-low / 2 / half), "0"))
    return sorted(places)


def bar_width(ends: tuple[float, float] | None, face: Face) -> int:
    """Pixels that a colorbar takes with the texts at its side."""
    texts = ["min", "max"] if ends is None else [text for _, text in ticks(ends, 8)]
    gap = round(face.dpi / 72.0 * 12)
    return gap + max(face.width(text) for text in texts)


def _plottable(ends: tuple[float, float]) -> bool:
    """Whether matplotlib's axes can have these limits."""
    size = max(abs(ends[0]), abs(ends[1]))
    return ends[1] - ends[0] > max(1e-290, size * 1e-12) and size < 1e290


def _wrapped(sentences: tuple[str, ...], room: int, face: Face) -> list[str]:
    """Lines no wider than the room: broken between sentences, within one only where it must be."""
    lines: list[str] = []
    for sentence in sentences:
        joined = f"{lines[-1]}  ·  {sentence}" if lines else sentence
        if lines and face.width(joined) <= room:
            lines[-1] = joined
            continue
        words, line = sentence.split(" "), ""
        for word in words:
            longer = f"{line} {word}" if line else word
            if line and face.width(longer) > room:
                lines.append(line)
                longer = word
            line = longer
        lines.append(middle_ellipsis(line, room, face.width))
    return lines


def page_sentence(
    arranged: Arranged, shown: int, total: int, options: GridOptions, pages: int
) -> str:
    """What of the layer is on this page: "maps 65–128 of 512, by mean, largest first"."""
    noun, count = arranged.noun, arranged.maps.shape[0]
    if pages > 1:
        first = options.page * options.per_page + 1
        span = f"{first}–{first + shown - 1}" if shown > 1 else f"{first}"
        text = f"{noun}s {span} of {total}"
    elif total < count:
        text = f"{total} of {counted(count, noun)}"
    else:
        text = counted(total, noun)
    if total < count and pages > 1:
        text += f" chosen from {count}"
    name, reference, descending = arranged.ordered(options)
    if name == "similarity":
        text += f", by similarity to {arranged.channel_noun} {reference}"
    elif name != "index":
        text += f", by {name}"
    if name != "index":
        text += ", largest first" if descending else ", smallest first"
    elif descending:
        text += ", last first"
    if options.hide_dead:
        text += ", dead ones hidden"
    return text


def dead_sentence(arranged: Arranged, found: Extents) -> str:
    """How many channels are zero everywhere, and how many hold one other value."""
    dead = found.dead
    noun = arranged.channel_noun
    parts = []
    if dead.any():
        names = ", ".join(str(c) for c in dead.nonzero()[0][:4])
        more = ", …" if dead.sum() > 4 else ""
        parts.append(f"{counted(int(dead.sum()), f'dead {noun}')} ({names}{more})")
    constant = (found.low == found.high) & ~dead
    if constant.any() and found.size > 1:
        parts.append(counted(int(constant.sum()), f"constant {noun}"))
    return ", ".join(parts)


def pixel_sentence(arranged: Arranged, grid: TileGrid, options: GridOptions) -> str:
    """How many pixels show one value, or how many values one pixel shows."""
    tall, wide = grid.scale
    noun = arranged.value_noun
    if (tall, wide) == (1, 1):
        return f"1 pixel per {noun}"
    if wide:
        return f"{wide} × {tall} pixels per {noun}"
    height, width = arranged.maps.shape[-2:]
    if height > grid.size[0] or width > grid.size[1]:
        how = "the mean of" if options.shrink == "mean" else "the nearest of"
        across, down = (
            max(1.0, n / m) for n, m in zip((width, height), grid.size[::-1], strict=True)
        )
        return f"a pixel is {how} {across:.2g} × {down:.2g}"
    return ""


def legend_of(found: Extents, scale: Scaling, table: ColorTable) -> Legend:
    """The colors of what has no place on the colorbar, with counts over the layer's sample."""
    counts = {
        Flag.NAN: int(found.nan.sum()),
        Flag.POSINF: int(found.posinf.sum()),
        Flag.NEGINF: int(found.neginf.sum()),
        Flag.BELOW: scale.below,
        Flag.ABOVE: scale.above,
    }
    legend = []
    for flag, count in counts.items():
        if count:
            r, g, b = (int(v) for v in table.flags[flag])
            legend.append(((r, g, b), f"{flag.label}: {counted(count, 'value')}"))
    return tuple(legend)


@dataclass(frozen=True, eq=False)
class SideTile:
    """A tile that stands beside the grid.

    Attributes:
        caption: What it is and what its colors mean; lines.
        colors: (h, w) packed RGBA.
        smooth: It is a photo, to be resized smoothly.
    """

    caption: tuple[str, ...]
    colors: NDArray[np.uint32]
    smooth: bool = False


def resized(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """A photo at (height, width), smoothly."""
    shrinks = image.shape[1] > size[1]
    method = Image.Resampling.BOX if shrinks else Image.Resampling.BICUBIC
    return np.asarray(Image.fromarray(image).resize((size[1], size[0]), method))


def input_tile(image: NDArray[np.uint8]) -> SideTile:
    """What the network saw, as a tile."""
    height, width = image.shape[:2]
    return SideTile(("input", f"{width} × {height} pixels"), packed(image), smooth=True)


def tile_size(shape: tuple[int, ...], width: int) -> tuple[int, int]:
    """(height, width) of a tile in a column of that width, its aspect kept.

    A high and narrow one is made narrower, so that it is at most twice as high as the column is
    wide.
    """
    height = max(8, round(shape[0] * width / shape[1]))
    if height > 2 * width:
        return 2 * width, max(8, round(shape[1] * 2 * width / shape[0]))
    return height, width
