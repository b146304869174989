"""A layer in numbers, and as a figure of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hookviz.render import _measure as measure
from hookviz.render._arrange import Source
from hookviz.render._artists import bare_axes, plain_units
from hookviz.render._draw import Drawing, FigureFacts, Subject
from hookviz.render._kinds import FigureKind, register
from hookviz.render._measure import Extents, Numbers
from hookviz.render._options import GridOptions
from hookviz.render._sheet import Sheet, ticks
from hookviz.render._text import counted, share, value

_BINS = 120  # of the histogram: about five pixels each on a page of usual width


@dataclass(frozen=True, eq=False)
class ChannelStatistics(Extents):
    """Numbers of one sample of a layer, over its finite values: its `Extents`, and their like.

    Attributes:
        mean: (C,) float64, in the activation's units; NaN where no value is finite.
        variance: (C,) of the population, in squared units.
        zeros: (C,) share of exact zeros, 0 to 1.
        layer_mean: Mean over the layer; NaN where no value is finite.
        layer_std: Standard deviation over the layer (of the population).
        layer_zeros: Share of exact zeros in the layer.
    """

    mean: Numbers
    variance: Numbers
    zeros: Numbers
    layer_mean: float
    layer_std: float
    layer_zeros: float


def channel_statistics(
    source: Source, options: GridOptions | None = None, *, facts: FigureFacts | None = None
) -> ChannelStatistics:
    """Minimum, maximum, mean, variance and zeros of each channel of one sample.

    Args:
        source: An activation or tensor of 1 to 5 axes, on any device; only the results leave it.
        options: Its ``sample``, ``frame``, ``axes`` and ``grid`` are used.
        facts: Its ``input_size`` helps to read the axes.

    Returns:
        Numbers over the finite values, in the activation's units.

    Raises:
        RenderError: The shape cannot be read.

    Examples:
        >>> import torch
        >>> found = channel_statistics(torch.tensor([[[[0.0, 2.0]], [[0.0, 0.0]]]]))
        >>> found.mean.tolist(), found.zeros.tolist(), found.dead.tolist()
        ([1.0, 0.0], [0.5, 1.0], [False, True])
    """
    subject = Subject(source, options or GridOptions(), facts or FigureFacts())
    with subject.in_a_sentence():
        return _statistics(subject)


def _statistics(subject: Subject) -> ChannelStatistics:
    found, moments = subject.extents, measure.moments(subject.arranged.values)
    count = found.size - found.nan - found.posinf - found.neginf
    total = max(1, int(count.sum()))
    low, high = found.whole or (np.nan, np.nan)
    # In units of the largest magnitude, so that neither sum nor square overflows.
    unit = max(abs(low), abs(high)) or 1.0
    mean = float(np.nansum(moments.mean / unit * count) / total)
    with np.errstate(over="ignore", under="ignore"):
        spread = np.sqrt(moments.variance) / unit
        power = np.nansum((spread**2 + (moments.mean / unit - mean) ** 2) * count) / total
    return ChannelStatistics(
        **vars(found),
        **vars(moments),
        layer_mean=mean * unit,  # NaN, as the unit is, where no value is finite
        layer_std=float(np.sqrt(power)) * unit,
        layer_zeros=float(np.nansum(moments.zeros * count) / total),
    )


def draw_statistics(subject: Subject) -> Drawing:
    """Histogram, numbers, and the range and mean of every channel."""
    arranged, found = subject.arranged, _statistics(subject)
    kind, whole = arranged.figure_kind, found.whole
    sentences = (
        f"statistics of {counted(len(found.mean), kind.noun)}",
        f"axes {arranged.statement}",
        *arranged.notes,
    )
    sheet = Sheet(subject)
    ink, margin = sheet.palette.ink, sheet.margin
    height, gap = sheet.px(110), sheet.px(34)
    narrow = subject.options.width < 640
    rows = _rows(found, kind.channel_noun)
    line = sheet.px(12.5)
    table = line * len(rows)
    total = height + gap + height + (table + gap if narrow else 0) + sheet.px(14)
    sheet.open(sentences, max(total, table + sheet.px(20)))
    top = sheet.top + sheet.px(10)
    column = sheet.room if narrow else min(sheet.px(190), sheet.room // 3)
    wide = sheet.room if narrow else sheet.room - column - sheet.px(24)
    below = top + height + gap
    sheet.write("values (logarithmic count)", margin, top - sheet.px(4), 7.5, ink)
    text = f"range and mean of each {kind.channel_noun}"
    sheet.write(text, margin, below - sheet.px(4), 7.5, ink)
    if whole is None:
        sheet.write("no value is finite", margin, top + height // 2, 8.0)
    else:
        _histogram(sheet, arranged.maps, whole, top, wide, height)
        _ranges(sheet, found, below, wide, height)
    left = margin if narrow else margin + wide + sheet.px(24)
    start = below + height + gap if narrow else top
    for number, (name, text) in enumerate(rows):
        base = start + line * number + sheet.px(8)
        sheet.write(name, left, base, 8.0)
        sheet.write(text, left + column, base, 8.0, ink, right=True)
    return subject.drawing(sheet.close(), tuple(range(len(found.mean))))


register(FigureKind("statistics", draw_statistics, paged=False, by_name=True))


def _rows(found: ChannelStatistics, noun: str) -> list[tuple[str, str]]:
    whole = found.size * len(found.mean)
    finite = whole - int((found.nan + found.posinf + found.neginf).sum())
    low, high = found.whole or (np.nan, np.nan)
    rows = [
        ("minimum", value(low, 4)),
        ("maximum", value(high, 4)),
        ("mean", value(found.layer_mean, 4)),
        ("standard deviation", value(found.layer_std, 4)),
        ("zeros", share(round(found.layer_zeros * finite), finite)),
        (f"dead {noun}s", f"{int(found.dead.sum())} of {len(found.mean)}"),
        ("values", f"{whole:,}".replace(",", " ")),
    ]
    for name, counts in (("NaN", found.nan), ("+Inf", found.posinf), ("−Inf", found.neginf)):
        if counts.any():
            rows.append((name, f"{int(counts.sum())} in {counted(int((counts > 0).sum()), noun)}"))
    return rows


def _histogram(
    sheet: Sheet, maps: Tensor, ends: tuple[float, float], top: int, width: int, height: int
) -> None:
    counts = measure.histogram(maps, *ends, _BINS)
    tall = np.log10(np.maximum(counts, 0.5)) - np.log10(0.5)
    ylim = (0, float(tall.max()) or 1.0)
    axes = bare_axes(sheet.figure, (sheet.margin, top, width, height), (0, _BINS), ylim)
    axes.stairs(tall, np.arange(_BINS + 1), fill=True, color=sheet.palette.accent, linewidth=0)
    axes.axhline(0, color=sheet.palette.muted, linewidth=0.8)
    marks = ticks(ends, 8)
    face, base = sheet.face(7.0), top + height + sheet.px(9)
    taken: list[tuple[int, int]] = []
    for place, text in (marks[0], marks[-1], *marks[1:-1])[: len(marks)]:  # the ends have priority
        wide = face.width(text)
        left = round(place * width) - (wide if place > 0.98 else wide // 2 if place else 0)
        if all(left > end + 4 or left + wide + 4 < start for start, end in taken):
            taken.append((left, left + wide))
            sheet.write(text, sheet.margin + left, base, 7.0)


def _ranges(sheet: Sheet, found: ChannelStatistics, top: int, width: int, height: int) -> None:
    low, high = found.whole or (0.0, 0.0)
    low, high = min(0.0, low), max(0.0, high)
    unit = plain_units((low, high))
    count = len(found.mean)
    box, ylim = (sheet.margin, top, width, height), (low / unit, high / unit)
    axes = bare_axes(sheet.figure, box, (0, count), ylim)
    palette = sheet.palette
    edges = np.arange(count + 1)
    bottom, above = (np.nan_to_num(v / unit) for v in (found.low, found.high))
    axes.stairs(above, edges, baseline=bottom, fill=True, color=palette.faint, linewidth=0)
    mean = found.mean / unit
    axes.hlines(mean, edges[:-1], edges[1:], colors=[palette.accent], linewidth=1.4)
    axes.axhline(0, color=palette.muted, linewidth=0.6)
    for at in np.flatnonzero(found.dead).tolist():
        axes.axvspan(at, at + 1, 0, 0.03, color=palette.warn, linewidth=1)
    base = top + height + sheet.px(9)
    sheet.write("0", sheet.margin, base, 7.0)
    if count > 1:
        sheet.write(str(count - 1), sheet.margin + width, base, 7.0, right=True)
    for place, text in ticks((low, high), 3):
        y = top + round((1 - place) * (height - 1)) + (sheet.px(8) if place else -sheet.px(3))
        if place == 1.0 or (place == 0.0 and low < 0):
            sheet.write(text, sheet.margin + width - sheet.px(2), y, 7.0, right=True)
