"""Vectors as bars, the largest by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.ticker import MaxNLocator

from hookviz.render._artists import Ends, bare_axes, plain_units
from hookviz.render._draw import Drawing, Subject
from hookviz.render._kinds import FigureKind, register
from hookviz.render._levels import Scaling
from hookviz.render._measure import Numbers, fetch
from hookviz.render._palette import Flag
from hookviz.render._sheet import Sheet, legend_of, page_sentence, ticks
from hookviz.render._text import middle_ellipsis, value

LINE = 13  # points from one named value to the next
NAMED = 10  # of the largest values, where ``top`` asks for no other number
_ALL_NAMED = 24  # so few that a list alone shows them all


def draw_bars(subject: Subject) -> Drawing:
    """A profile of all values, and under it the largest by name."""
    subject.behind  # noqa: B018  # bars have no place on the image
    # A value alone has no range, and bars need no middle.
    scale = "layer" if subject.options.scale in ("auto", "channel") else subject.options.scale
    subject = replace(subject, options=subject.options.replace(scale=scale, cmap="viridis"))
    arranged, chosen = subject.arranged, subject.channels
    values = fetch(arranged.maps.flatten())[list(chosen)]
    dead = int((values == 0).sum())
    sentences = (
        page_sentence(subject),
        subject.scaling.sentence.replace("one scale for the layer: ", ""),
        f"axes {arranged.statement}",
        *arranged.notes,
        f"{dead} of them zero" if dead else "",
    )
    sheet = Sheet(subject)
    few = len(values) <= _ALL_NAMED
    # +Inf first, NaN never before a number.
    largest = np.argsort(np.where(np.isnan(values), np.inf, -values), kind="stable")
    named = np.arange(len(values)) if few else largest[: subject.options.top or NAMED]
    profile, gap = (0, 0) if few else (sheet.px(120), sheet.px(30))
    legend = legend_of(subject.extents, subject.scaling, subject.table)
    sheet.open(sentences, profile + gap + sheet.px(LINE) * len(named), legend)
    ends = subject.scaling.around_zero
    if profile:
        draw_profile(sheet, values, subject.scaling, sheet.top, profile)
        sheet.write("largest", sheet.margin, sheet.top + profile + gap - sheet.px(5), 7.5)
    names = [channel_name(chosen[i], arranged.maps.shape[0], subject.categories) for i in named]
    shown = values[named][np.isfinite(values[named])].clip(*ends)
    reach = (min(0.0, shown.min(initial=0.0)), max(0.0, shown.max(initial=0.0)))
    draw_list(sheet, names, values[named], reach, sheet.top + profile + gap)
    return subject.drawing(sheet.close(), cmap="viridis")


register(FigureKind("bars", draw_bars, "value", "value", paged=False))


def channel_name(channel: int, count: int, categories: tuple[str, ...]) -> str:
    """The index, and the class of that index where there are so many."""
    return f"{channel}  {categories[channel]}" if len(categories) == count else str(channel)


def draw_profile(sheet: Sheet, values: Numbers, scale: Scaling, top: int, height: int) -> None:
    """Every value as a bar, in the order chosen; peaks stay where bars are thinner than a pixel."""
    chosen, ends = sheet.subject.channels, scale.around_zero
    palette = sheet.palette
    marks = ticks(ends, 4)
    aside = max(sheet.face(7.5).width(text) for _, text in marks) + sheet.px(5)
    left, width = sheet.margin + aside, sheet.room - aside
    unit = plain_units(ends)
    low, high = ends[0] / unit, ends[1] / unit
    axes = bare_axes(sheet.figure, (left, top, width, height), (0, len(values)), (low, high))
    for place, text in marks:
        y = top + round((1 - place) * (height - 1))
        axes.axhline(low + place * (high - low), color=palette.faint, linewidth=0.6, zorder=0)
        sheet.write(text, left - sheet.px(4), y + sheet.px(2.6), 7.5, right=True)
    finite = np.nan_to_num(values / unit, nan=0.0, posinf=high, neginf=low)
    columns = min(len(values), width)
    starts = (np.arange(columns) * len(values)) // columns
    tops = np.maximum.reduceat(np.maximum(finite, 0), starts)
    bottoms = np.minimum.reduceat(np.minimum(finite, 0), starts)
    edges = np.append(starts, len(values))
    for part in (tops, bottoms):
        if part.any():
            axes.stairs(part.clip(low, high), edges, fill=True, color=palette.accent, linewidth=0)
    axes.axhline(0.0, color=palette.muted, linewidth=0.6)
    tests = ((Flag.NAN, np.isnan), (Flag.POSINF, np.isposinf), (Flag.NEGINF, np.isneginf))
    for flag, test in tests:
        for at in np.flatnonzero(test(values))[:500]:
            axes.axvspan(at, at + 1, color=sheet.subject.table.color_of(flag), linewidth=0.8)
    base = top + height + sheet.px(9)
    ordered = chosen == tuple(range(chosen[0], chosen[0] + len(chosen)))
    places = MaxNLocator(nbins=10, integer=True).tick_values(0, len(values))
    for at in (int(p) for p in places if 0 <= p < len(values) and ordered):
        x = left + round((at + 0.5) / len(values) * width)
        text = str(chosen[at])
        if x + sheet.face(7.0).width(text) < sheet.margin + sheet.room:
            sheet.write(text, x, base, 7.0)
    if not ordered:
        sheet.write("in the order chosen", left, base, 7.0)


def draw_list(sheet: Sheet, names: list[str], values: Numbers, ends: Ends, top: int) -> None:
    """One row for each value: name, bar, number."""
    line = sheet.px(LINE)
    face = sheet.face(8.0)
    palette = sheet.palette
    names = [middle_ellipsis(name, sheet.room * 0.36, face.width) for name in names]
    before = max(face.width(name) for name in names) + sheet.px(8)
    after = max(face.width(value(v, 4)) for v in values) + sheet.px(6)
    width = min(sheet.room - before - after, sheet.px(420))
    unit = plain_units(ends)
    low, high = ends[0] / unit, ends[1] / unit
    span = high - low or 1.0
    left = sheet.margin + before
    xlim = (low, high if high > low else low + 1)
    box = (left, top, width, line * len(names))
    axes = bare_axes(sheet.figure, box, xlim, (len(names), 0))
    shapes = []
    for row, (name, number) in enumerate(zip(names, values, strict=True)):
        base = top + row * line + round(line * 0.5 + sheet.px(2.9))
        sheet.write(name, left - sheet.px(8), base, 8.0, palette.ink, right=True)
        end = 0.0 if np.isnan(number) else float(np.clip(number / unit, low, high))
        shapes.append([(0, row + 0.2), (end, row + 0.2), (end, row + 0.8), (0, row + 0.8)])
        reach = left + round((max(end, 0.0) - low) / span * width)
        sheet.write(value(float(number), 4), reach + sheet.px(5), base, 8.0)
    axes.add_collection(
        PolyCollection(shapes, facecolors=[palette.accent], linewidths=0), autolim=False
    )
    if low < 0:
        axes.axvline(0.0, color=palette.muted, linewidth=0.6)
