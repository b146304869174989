"""The sheet that every picture stands on: title, what must be said, margins, colourbar.

In: texts and the size of what is to be shown. Out: a Figure with room left free. Must not know:
tensors, channels, how the picture inside is made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from hookviz.errors import RenderError
from hookviz.render._artists import Captions, GridFigure, add_mosaic, figure_of
from hookviz.render._colours import ColourTable, Palette
from hookviz.render._options import GridOptions
from hookviz.render._typeset import Face, Label
from hookviz.render._wording import middle_ellipsis, value

_MAX_PIXELS = 250_000_000  # of 4 bytes

__all__ = ["Header", "Sheet", "bar_width", "ticks"]


@dataclass(frozen=True)
class Header:
    """The texts above a picture.

    Attributes:
        title: The layer.
        details: Beside it: type, shape, dtype.
        sentences: Under it, each whole; joined by middle dots and wrapped.
        source: At the right: model and picture.
        badge: A word that must not be overlooked, or "".
        legend: Colours with what they stand for.
    """

    title: str
    details: str
    sentences: tuple[str, ...]
    source: str = ""
    badge: str = ""
    legend: tuple[tuple[tuple[int, int, int], str], ...] = ()


class Sheet:
    """Sizes and texts of a page; first asked for its room, then opened.

    Args:
        header: Texts.
        options: Width, dpi and style.
        palette: Colours.
    """

    def __init__(self, header: Header, options: GridOptions, palette: Palette) -> None:
        self.options, self.palette, self.header = options, palette, header
        self.labels: list[Label] = []
        self.margin = self.px(14 if options.width >= 500 else 7)
        self.room = options.width - 2 * self.margin
        self.top = self._write_header()

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
        colour: tuple[float, float, float, float] | None = None,
        *,
        right: bool = False,
        weight: str = "normal",
    ) -> int:
        """Put a text's baseline at a pixel from the page's top left; returns its width."""
        face = self.face(points, weight)
        text = face.legible(text)
        if text:
            self.labels.append(Label(text, x, y, colour or self.palette.muted, face, right))
        return face.width(text)

    def _write_header(self) -> int:
        header, palette = self.header, self.palette
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
            self._write_legend(y)
        return y + self.px(11)

    def _write_legend(self, y: int) -> None:
        x = self.margin
        for rgb, text in self.header.legend:
            r, g, b = (c / 255 for c in rgb)
            x += self.write("■", x, y, 8.0, (r, g, b, 1.0)) + self.px(3)
            x += self.write(text, x, y, 8.0) + self.px(10)

    def open(self, height: int) -> GridFigure:
        """The figure, with ``height`` pixels under the header; then ``close`` it.

        Raises:
            RenderError: The page would take more than a gigabyte.
        """
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

    def colourbar(
        self,
        figure: GridFigure,
        left: int,
        top: int,
        height: int,
        table: ColourTable,
        ends: tuple[float, float] | None,
        names: tuple[str, str] = ("min", "max"),
        clipped: tuple[bool, bool] = (False, False),
    ) -> Axes:
        """A slim bar of all 256 colours with the values that they stand for.

        Args:
            figure: Where it goes.
            left: Pixel of its left edge.
            top: Pixel of its upper edge.
            height: Of bar and end marks together.
            table: Colours.
            ends: Values of the first and last colour; None writes ``names`` there.
            names: What the ends are where they differ from map to map.
            clipped: Whether values lie below, above: their colour is shown past the end.
        """
        wide, mark = self.px(8), self.px(7) if any(clipped) else 0
        top, height = top + mark, max(8, height - 2 * mark)
        at = np.linspace(255, 0, height).round().astype(np.intp)
        bar = np.empty((height, wide, 4), np.uint8)
        bar[..., :3] = table.rgb[at][:, None]
        bar[..., 3] = 255
        limits = (0.0, 1.0) if ends is None or not _plottable(ends) else ends
        axes = add_mosaic(figure, bar, left, top, limits)
        axes.set_label("colourbar")
        for past, row, colour in ((clipped[1], top - mark, 2), (clipped[0], top + height, 1)):
            if past:
                block = np.empty((mark - 2, wide, 4), np.uint8)
                block[...] = [*table.flags[colour], 255]
                add_mosaic(figure, block, left, row + (0 if colour == 2 else 2))
        x, half = left + wide + self.px(4), self.px(2.6)
        if ends is None:
            self.write(names[1], x, top + half * 2)
            self.write(names[0], x, top + height)
        else:
            for place, text in ticks(ends, max(2, height // self.px(34))):
                y = top + round((1.0 - place) * (height - 1)) + half
                self.write(text, x, min(max(y, top + 2 * half), top + height))
        return axes


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
    """Pixels that a colourbar takes with the texts at its side."""
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
