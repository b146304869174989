"""A layer in numbers, and as a figure of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from hookviz.activation import Activation
from hookviz.render import _measure as measure
from hookviz.render._arrange import Arranged, arrange
from hookviz.render._bars import bare_axes, plain_units
from hookviz.render._kinds import Drawing, FigureFacts, FigureKind, Subject, register
from hookviz.render._measure import Extents, Numbers
from hookviz.render._number_format import counted, share, value
from hookviz.render._options import DrawingOptions, GridOptions, in_a_sentence
from hookviz.render._sheet import Sheet, ticks

_BINS = 120  # of the histogram: about five pixels each on a page of usual width


@dataclass(frozen=True, eq=False)
class ChannelStatistics:
    """Numbers of one sample of a layer, over its finite values.

    Attributes:
        minimum: (C,) float64, in the activation's units; NaN where no value is finite.
        maximum: (C,) likewise.
        mean: (C,) likewise.
        variance: (C,) of the population, in squared units.
        zeros: (C,) share of exact zeros, 0 to 1.
        dead: (C,) bool, zero everywhere.
        nan: (C,) how many values are NaN.
        posinf: (C,) how many are +Inf.
        neginf: (C,) how many are −Inf.
        size: Values in each channel.
        low: Smallest finite value of the layer; NaN where there is none.
        high: Largest.
        layer_mean: Mean over the layer.
        layer_std: Standard deviation over the layer (of the population).
        layer_zeros: Share of exact zeros in the layer.
    """

    minimum: Numbers
    maximum: Numbers
    mean: Numbers
    variance: Numbers
    zeros: Numbers
    dead: NDArray[np.bool_]
    nan: NDArray[np.int64]
    posinf: NDArray[np.int64]
    neginf: NDArray[np.int64]
    size: int
    low: float
    high: float
    layer_mean: float
    layer_std: float
    layer_zeros: float


def channel_statistics(
    source: Activation | Tensor,
    options: GridOptions | None = None,
    *,
    facts: FigureFacts | None = None,
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
    arranged = arrange(source, options or GridOptions(), facts.input_size if facts else None)
    with in_a_sentence(f"a tensor of shape {arranged.shape}"):
        return _measured(arranged)[1]


def _measured(arranged: Arranged) -> tuple[Extents, ChannelStatistics]:
    maps, apart = arranged.maps, arranged.apart
    found = measure.extents(maps, apart)
    if apart is not None:  # class tokens belong to their channel
        maps = torch.cat([apart[:, None, :], maps.flatten(1)[:, None, :]], dim=2)
    return found, _statistics(found, measure.moments(maps, found))


def _statistics(found: Extents, moments: measure.Moments) -> ChannelStatistics:
    count = found.size - found.nan - found.posinf - found.neginf
    total = max(1, int(count.sum()))
    low, high = found.whole or (np.nan, np.nan)
    # In units of the largest magnitude, so that neither sum nor square overflows.
    unit = max(abs(low), abs(high)) or 1.0
    mean = float(np.nansum(moments.mean / unit * count) / total)
    with np.errstate(over="ignore", under="ignore"):
        spread = np.sqrt(moments.variance) / unit
        power = np.nansum((spread**2 + (moments.mean / unit - mean) ** 2) * count) / total
        std = float(np.sqrt(power)) * unit
    nothing = np.isnan(low)
    return ChannelStatistics(
        found.low, found.high, moments.mean, moments.variance, moments.zeros, found.dead,
        found.nan, found.posinf, found.neginf, found.size, low, high,
        layer_mean=float("nan") if nothing else mean * unit,
        layer_std=float("nan") if nothing else std,
        layer_zeros=float(np.nansum(moments.zeros * count) / total),
    )  # fmt: skip


def layer_statistics(
    source: Activation | Tensor,
    *,
    facts: FigureFacts | None = None,
    **options: Unpack[DrawingOptions],
) -> Figure:
    """A small figure: histogram, numbers, and the range and mean of every channel.

    The same as ``feature_grid(source, figure="statistics")``.

    Args:
        source: An activation or tensor.
        facts: What the figure says about the source.
        **options: Fields of GridOptions: ``width``, ``style``, ``sample``, ``axes``, …

    Returns:
        A figure that pyplot does not know.

    Raises:
        RenderError: The tensor or an option does not allow it.

    Examples:
        >>> import torch
        >>> layer_statistics(torch.rand(1, 8, 6, 6), width=700).canvas.get_width_height()[0]
        700
    """
    return draw_statistics(source, GridOptions.of(**options), facts=facts).figure


def draw_statistics(
    source: Activation | Tensor,
    options: GridOptions | None = None,
    *,
    facts: FigureFacts | None = None,
) -> Drawing:
    """The same as a Drawing.

    Args:
        source: An activation or tensor.
        options: How; None is GridOptions().
        facts: What the figure says about the source.

    Returns:
        A page whose ``channels`` are all channels.

    Raises:
        RenderError: The tensor or an option does not allow it.
    """
    options = (options or GridOptions()).replace(figure="statistics", page=0)
    facts = facts or FigureFacts()
    arranged = arrange(source, options, facts.input_size)
    with in_a_sentence(f"a tensor of shape {arranged.shape}"):
        return _draw(Subject(source, arranged, options, facts))


def _draw(subject: Subject) -> Drawing:
    arranged, options = subject.arranged, subject.options
    extents, found = _measured(arranged)
    noun, channel_noun = arranged.noun, arranged.channel_noun
    said = (
        f"statistics of {counted(len(found.mean), noun)}",
        f"axes {arranged.statement}",
        *arranged.notes,
    )
    sheet = Sheet(options)
    ink = sheet.palette.ink
    height, gap = sheet.px(110), sheet.px(34)
    narrow = options.width < 640
    rows = _rows(found, channel_noun)
    line = sheet.px(12.5)
    table = line * len(rows)
    total = height + gap + height + (table + gap if narrow else 0) + sheet.px(14)
    figure = sheet.open(subject.header(said), max(total, table + sheet.px(20)))
    top = sheet.top + sheet.px(10)
    column = sheet.room if narrow else min(sheet.px(190), sheet.room // 3)
    wide = sheet.room if narrow else sheet.room - column - sheet.px(24)
    sheet.write("values (logarithmic count)", sheet.margin, top - sheet.px(4), 7.5, ink)
    _histogram(sheet, figure, arranged.maps, found, top, wide, height)
    below = top + height + gap
    text = f"range and mean of each {channel_noun}"
    sheet.write(text, sheet.margin, below - sheet.px(4), 7.5, ink)
    _ranges(sheet, figure, found, below, wide, height)
    left = sheet.margin if narrow else sheet.margin + wide + sheet.px(24)
    start = below + height + gap if narrow else top
    for number, (name, text) in enumerate(rows):
        base = start + line * number + sheet.px(8)
        sheet.write(name, left, base, 8.0)
        sheet.write(text, left + column, base, 8.0, ink, right=True)
    sheet.close(figure)
    return subject.drawing(figure, extents, tuple(range(len(found.mean))), cmap="")


register(FigureKind("statistics", _draw, paged=False, by_name=True))


def _rows(found: ChannelStatistics, noun: str) -> list[tuple[str, str]]:
    whole = found.size * len(found.mean)
    finite = whole - int((found.nan + found.posinf + found.neginf).sum())
    rows = [
        ("minimum", value(found.low, 4)),
        ("maximum", value(found.high, 4)),
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
    sheet: Sheet, figure: Figure, maps: Tensor, found: ChannelStatistics, top: int, width: int,
    height: int,
) -> None:  # fmt: skip
    if np.isnan(found.low):
        sheet.write("no value is finite", sheet.margin, top + height // 2, 8.0)
        return
    counts = measure.histogram(maps, found.low, found.high, _BINS)
    tall = np.log10(np.maximum(counts, 0.5)) - np.log10(0.5)
    axes = bare_axes(
        figure, sheet.margin, top, width, height, (0, _BINS), (0, float(tall.max()) or 1.0)
    )
    axes.stairs(tall, np.arange(_BINS + 1), fill=True, color=sheet.palette.accent, linewidth=0)
    axes.axhline(0, color=sheet.palette.muted, linewidth=0.8)
    marks = ticks((found.low, found.high), 8)
    face, base = sheet.face(7.0), top + height + sheet.px(9)
    taken: list[tuple[int, int]] = []
    for place, text in (marks[0], marks[-1], *marks[1:-1])[: len(marks)]:  # the ends have priority
        wide = face.width(text)
        left = round(place * width) - (wide if place > 0.98 else wide // 2 if place else 0)
        if all(left > end + 4 or left + wide + 4 < start for start, end in taken):
            taken.append((left, left + wide))
            sheet.write(text, sheet.margin + left, base, 7.0)


def _ranges(
    sheet: Sheet, figure: Figure, found: ChannelStatistics, top: int, width: int, height: int
) -> None:
    if np.isnan(found.low):
        return
    low, high = min(0.0, found.low), max(0.0, found.high)
    unit = plain_units((low, high))
    count = len(found.mean)
    axes = bare_axes(
        figure, sheet.margin, top, width, height, (0, count), (low / unit, high / unit)
    )
    palette = sheet.palette
    edges = np.arange(count + 1)
    bottom, above = (np.nan_to_num(v / unit) for v in (found.minimum, found.maximum))
    axes.stairs(above, edges, baseline=bottom, fill=True, color=palette.faint, linewidth=0)
    mean = found.mean / unit
    axes.hlines(mean, edges[:-1], edges[1:], colors=[palette.accent], linewidth=1.4)
    axes.axhline(0, color=palette.muted, linewidth=0.6)
    for at in np.flatnonzero(found.dead).tolist():
        axes.axvspan(at, at + 1, 0, 0.03, color=palette.warn, linewidth=1)
    base = top + height + sheet.px(9)
    last = str(count - 1)
    sheet.write("0", sheet.margin, base, 7.0)
    if count > 1:
        sheet.write(last, sheet.margin + width, base, 7.0, right=True)
    for place, text in ticks((low, high), 3):
        y = top + round((1 - place) * (height - 1))
        if place == 1.0 or (place == 0.0 and low < 0):
            sheet.write(
                text, sheet.margin + width - sheet.px(2),
                y + (sheet.px(8) if place else -sheet.px(3)), 7.0, right=True,
            )  # fmt: skip
