"""The page that every figure stands on: header, margins, colorbar, and the sentences on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import MaxNLocator

from hookviz._text import shape_text
from hookviz.errors import RenderError
from hookviz.render._artists import Captions, GridFigure, add_block, add_mosaic, figure_of
from hookviz.render._options import parse_channels
from hookviz.render._palette import Color, ColorTable, Flag, palette
from hookviz.render._text import Face, Label, counted, middle_ellipsis, value

if TYPE_CHECKING:
    from hookviz.render._draw import Subject
    from hookviz.render._levels import Scaling
    from hookviz.render._measure import Extents

Legend = list[tuple[Color, str]]
"""Colors with what they stand for."""

_MAX_PIXELS = 250_000_000  # of 4 bytes


class Sheet:
    """Sizes and texts of a page; first asked for its room, then opened under its header.

    Args:
        subject: What is drawn, with its width, dpi and style.

    Attributes:
        margin: Pixels left free on every side.
        room: Pixels between the left and right margin.
        bare: Whether it has no header and no colorbar.
        top: Pixel row under the header, known once it is open.
        figure: What is drawn on, there once it is open.
    """

    figure: GridFigure

    def __init__(self, subject: Subject) -> None:
        self.subject, self.options = subject, subject.options
        options = self.options
        self.palette = palette(options.style)
        self.labels: list[Label] = []
        self.bare = options.bare and subject.kind.bare
        self.margin = self.px(1 if self.bare else 14 if options.width >= 500 else 7)
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
        color: Color | None = None,
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

    def _write_header(self, sentences: list[str], legend: Legend) -> int:
        """The title line and the sentences under it; returns the first pixel row below."""
        subject, palette = self.subject, self.palette
        facts, arranged = subject.facts, subject.arranged
        bold, small = self.face(12.0, "bold"), self.face(8.0)
        y = self.margin + self.px(11)
        room = self.room
        if facts.edits:
            sentences = [f"edited: {facts.edits}", *sentences]
        if not facts.trained:
            wide = self.write("UNTRAINED", self.margin + room, y, 8.0, palette.warn, right=True)
            room -= wide + self.px(8)
        source = _joined(facts.model, facts.image)
        if source and room > self.px(300):
            source = middle_ellipsis(source, room * 0.4, small.width)
            room -= self.write(source, self.margin + room, y, 8.0, right=True) + self.px(12)
        title = self.options.title
        if title is None:
            title = getattr(subject.source, "label", "tensor")
        layer_type = getattr(subject.source, "module_type", "")
        details = _joined(layer_type, shape_text(arranged.shape), arranged.dtype)
        keep = room - small.width(details) - self.px(9)
        beside = keep >= bold.width(title)  # else the details take a line of their own
        if not beside:
            title = middle_ellipsis(title, room, bold.width)
            sentences = [details, *sentences]
        wide = self.write(title, self.margin, y, 12.0, palette.ink, weight="bold")
        if beside:
            self.write(details, self.margin + wide + self.px(8), y, 8.0)
        line = self.px(12.5)
        for text in _wrapped(sentences, self.room, small):
            y += line if y > self.margin + self.px(11) else self.px(14.5)
            self.write(text, self.margin, y, 8.0)
        x = self.margin
        if legend:
            y += line
        for color, text in legend:
            wide = small.width("■") + self.px(3) + small.width(text)
            if x > self.margin and x + wide > self.margin + self.room:
                x, y = self.margin, y + line
            self.write(text, x + self.write("■", x, y, 8.0, color) + self.px(3), y, 8.0)
            x += wide + self.px(10)
        return y + self.px(11)

    def open(self, sentences: tuple[str, ...], height: int, legend: Legend | None = None) -> None:
        """Make the figure, with ``height`` pixels under the header; then ``close`` it.

        Args:
            sentences: Under the title, each whole; joined by middle dots and wrapped.
            height: Pixels under the header.
            legend: See `legend_of`.

        Raises:
            RenderError: The page would take more than a gigabyte.
        """
        self.top = self.margin
        if not self.bare:
            self.top = self._write_header([s for s in sentences if s], legend or [])
        width, height = self.options.width, self.top + height + self.margin
        if width * height > _MAX_PIXELS:
            raise RenderError(
                f"The page would be {width} × {height} pixels.",
                remedy="Draw fewer maps on a page, more of them in a row, or a narrower page.",
                code="page-too-large",
            )
        self.figure = figure_of(width, height, self.options.dpi, self.palette.face)

    def close(self) -> GridFigure:
        """The figure with all small texts on it."""
        self.figure.add_artist(Captions(self.figure, self.labels))
        return self.figure

    def bar_width(self, scale: Scaling) -> int:
        """Pixels that a colorbar takes with the texts at its side and the gap before it."""
        ends, face = scale.ends, self.face(7.5)
        texts = [_lowest(scale), "max"] if ends is None else [text for _, text in ticks(ends, 8)]
        return self.px(12) + self.px(8) + max(face.width(text) for text in texts)

    def colorbar(self, left: int, top: int, height: int, table: ColorTable, scale: Scaling) -> None:
        """A slim bar of all 256 colors with the values that they stand for.

        Where values lie below or above the scale, their color is shown past the end.

        Args:
            left: Pixel of its left edge.
            top: Pixel of its upper edge.
            height: Of bar and end marks together.
            table: The colors.
            scale: What they stand for.
        """
        ends = scale.ends
        wide, mark = self.px(8), max(4, self.px(7)) if scale.below or scale.above else 0
        top, height = top + mark, max(8, height - 2 * mark)
        at = np.linspace(255, 0, height).round().astype(np.intp)
        bar = np.full((height, wide, 4), 255, np.uint8)
        bar[..., :3] = table.rgb[at][:, None]
        limits = (0.0, 1.0) if ends is None or not _plottable(ends) else ends
        add_mosaic(self.figure, bar, left, top, limits).set_label("colorbar")
        marks = ((scale.above, top - mark, Flag.ABOVE), (scale.below, top + height + 2, Flag.BELOW))
        for count, row, flag in marks:
            if count:
                add_block(self.figure, (left, row, wide, mark - 2), table.flags[flag])
        x, half = left + wide + self.px(4), self.px(2.6)
        if ends is None:
            self.write("max", x, top + half * 2)
            self.write(_lowest(scale), x, top + height)
        else:
            for place, text in ticks(ends, max(2, height // self.px(34))):
                y = top + round((1.0 - place) * (height - 1)) + half
                self.write(text, x, min(max(y, top + 2 * half), top + height))


def _lowest(scale: Scaling) -> str:
    """What the first color stands for where each channel has its own range."""
    return "−max" if scale.symmetric else "min"


def _joined(*parts: str) -> str:
    return "  ·  ".join(part for part in parts if part)


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


def _plottable(ends: tuple[float, float]) -> bool:
    """Whether matplotlib's axes can have these limits."""
    size = max(abs(ends[0]), abs(ends[1]))
    return ends[1] - ends[0] > max(1e-290, size * 1e-12) and size < 1e290


def _wrapped(sentences: list[str], room: int, face: Face) -> list[str]:
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


def page_sentence(subject: Subject) -> str:
    """What of the layer is on this page: "maps 65–128 of 512, by mean, largest first"."""
    arranged, options, pages = subject.arranged, subject.options, subject.pages
    kind, count = arranged.figure_kind, arranged.maps.shape[0]
    total, shown = len(subject.chosen), len(subject.channels)
    if pages > 1:
        first = options.page * options.per_page + 1
        span = f"{first}–{first + shown - 1}" if shown > 1 else f"{first}"
        text = f"{kind.noun}s {span} of {total}"
        text += f" chosen from {count}" if total < count else ""
    elif total < count:
        text = f"{total} of {counted(count, kind.noun)}"
    else:
        text = counted(total, kind.noun)
    name, reference, descending = arranged.ordered(options)
    if name == "similarity":
        text += f", by similarity to {kind.channel_noun} {reference}"
    elif name != "index":
        text += f", by {name}"
    if name != "index":
        text += ", largest first" if descending else ", smallest first"
    elif descending:
        text += ", last first"
    if options.first is not None:
        text += f", first {', '.join(map(str, parse_channels(options.first)))}"
    return text + (", dead ones hidden" if options.hide_dead else "")


def dead_sentence(subject: Subject) -> str:
    """How many channels are zero everywhere, and how many hold one other value."""
    found, kind = subject.extents, subject.arranged.figure_kind
    noun = kind.channel_noun
    dead = found.dead
    parts = []
    if dead.any():
        names = ", ".join(str(c) for c in dead.nonzero()[0][:4])
        more = ", …" if dead.sum() > 4 else ""
        parts.append(f"{counted(int(dead.sum()), f'{kind.dead_word} {noun}')} ({names}{more})")
    constant = (found.low == found.high) & ~dead
    if constant.any() and found.size > 1:
        parts.append(counted(int(constant.sum()), f"constant {noun}"))
    return ", ".join(parts)


def legend_of(found: Extents, scale: Scaling, table: ColorTable, absent: str = "") -> Legend:
    """The colors of what has no place on the colorbar, with counts over the layer's sample.

    Args:
        found: The layer's extents.
        scale: Its scale.
        table: Its colors.
        absent: What NaN is called where it stands for no value.
    """
    counts = {
        Flag.NAN: int(found.nan.sum()),
        Flag.POSINF: int(found.posinf.sum()),
        Flag.NEGINF: int(found.neginf.sum()),
        Flag.BELOW: scale.below,
        Flag.ABOVE: scale.above,
    }
    return [
        (table.color_of(flag), f"{absent}: {counted(count, 'place')}")
        if flag is Flag.NAN and absent
        else (table.color_of(flag), f"{flag.label}: {counted(count, 'value')}")
        for flag, count in counts.items()
        if count
    ]
