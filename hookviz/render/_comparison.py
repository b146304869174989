"""Comparisons: what two runs give for one layer, and the difference, side by side.

The rules: ``a`` and ``b`` share a scale, symmetric about zero unless the options say otherwise. The
difference is b − a; its scale is always symmetric about zero. It is that of ``a`` and ``b`` where
it fills at least a sixteenth of it, so that sizes can be compared by eye; a smaller one has a scale
of its own, and the figure says how much finer. The automatic scale spans 98 % of the values of each
by magnitude, see `hookviz.render._levels.reach`. Maps of different sizes are averaged over the
coarser grid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hookviz._text import shape_text
from hookviz.activation import Activation
from hookviz.errors import RenderError
from hookviz.render._arrange import Arranged, arrange
from hookviz.render._artists import add_mosaic
from hookviz.render._bars import LINE, NAMED, channel_name, draw_list, draw_profile
from hookviz.render._draw import Drawing, Subject
from hookviz.render._kinds import FigureKind, register
from hookviz.render._levels import ROBUST, Scaling, clipping, reach, scaling
from hookviz.render._maps import TileGrid, blank, compose, draw_tiles, pixel_sentence, plan
from hookviz.render._measure import Extents, extents, fetch, joined, widened
from hookviz.render._options import GIVEN_SCALES, GridOptions
from hookviz.render._palette import ColorTable, choose_cmap, color_table
from hookviz.render._sheet import Legend, Sheet, legend_of, page_sentence
from hookviz.render._text import Face, value

_FINER = 16  # times: a smaller difference would show fewer than 8 of the 128 colors of its sign
_MINUS = "b − a"
_OF_VALUES = ("arranged", "extents", "chosen")  # what is known of a subject, however it is drawn
_WITH_PLACES = {"maps", "volume", "tokens"}  # kinds whose places are those of the image


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ActivationPair(Activation):
    """Two records that are drawn together. Nothing is copied; what a record has is that of ``a``.

    Attributes:
        a: The first record.
        b: The second record.
        sizes: (height, width) of what each of the two networks saw; None where that is unknown.
        sides: What ``a`` and ``b`` are, in words; the figure says so.
    """

    a: Activation
    b: Activation
    sizes: tuple[tuple[int, int] | None, tuple[int, int] | None] = (None, None)
    sides: tuple[str, str] = ("", "")

    @classmethod
    def of(
        cls,
        a: Activation,
        b: Activation,
        *,
        sizes: tuple[tuple[int, int] | None, tuple[int, int] | None] = (None, None),
        sides: tuple[str, str] = ("", ""),
    ) -> ActivationPair:
        """The pair of two records.

        Args:
            a: The first.
            b: The second.
            sizes: See the attribute.
            sides: See the attribute.
        """
        shared = vars(a) | {"kind": "comparison"}
        return cls(**shared, a=a, b=b, sizes=sizes, sides=sides)

    @property
    def label(self) -> str:
        """The layer as people read it; both names where they differ."""
        a, b = self.a.label, self.b.label
        return a if a == b else f"{a} | {b}"


def on_one_grid(a: Arranged, b: Arranged) -> tuple[Tensor, Tensor, str]:
    """The maps of two samples on the coarser of their grids.

    Args:
        a: One sample.
        b: The other.

    Returns:
        Two tensors (C, H, W) of one size on one device, views where nothing had to be averaged,
        and a sentence where something had.

    Raises:
        RenderError: They have different numbers of channels, or sizes and no places in an image.

    Examples:
        >>> fine, coarse = torch.rand(1, 8, 6, 6), torch.rand(1, 8, 3, 3)
        >>> one, other = (arrange(t, GridOptions()) for t in (fine, coarse))
        >>> on_one_grid(one, other)[2]
        'compared on the coarser grid 3×3: a has 6×6, b has 3×3'
    """
    one, other = a.maps, b.maps
    shapes = f"a has shape {shape_text(a.shape)}, b has {shape_text(b.shape)}"
    if one.shape[0] != other.shape[0]:
        raise RenderError(f"The numbers of {a.figure_kind.channel_noun}s differ: {shapes}.")
    if one.shape != other.shape and not {a.kind, b.kind} <= _WITH_PLACES:
        # Tokens in no known order, attention and sequences have no coarser grid.
        raise RenderError(f"The sizes differ, and what differs in size is no map: {shapes}.")
    if one.device != other.device:
        one, other = one.cpu(), other.cpu()
    rows, columns = (min(one.shape[axis], other.shape[axis]) for axis in (1, 2))
    size = (rows, columns)
    if one.shape == other.shape:
        return one, other, ""
    was = [shape_text(maps.shape[1:]) for maps in (one, other)]
    one, other = (
        maps if maps.shape[1:] == size else F.adaptive_avg_pool2d(widened(maps)[None], size)[0]
        for maps in (one, other)
    )
    return (
        one,
        other,
        f"compared on the coarser grid {shape_text(size)}: a has {was[0]}, b has {was[1]}",
    )


def difference(a: Tensor, b: Tensor, *, relative: bool = False) -> Tensor:
    """The difference b − a as figures show it; values that are alike, infinities too, differ by 0.

    Args:
        a: Of any shape.
        b: Of the same shape, on the same device.
        relative: As a share of the larger magnitude of the two values, −2 to 2; NaN where one of
            them alone is infinite.

    Returns:
        A new tensor, float32 where both are of at most so many digits, else float64.

    Examples:
        >>> difference(torch.tensor([1.0, 0.0, 2.0]), torch.tensor([3.0, 0.0, -2.0]))
        tensor([ 2.,  0., -4.])
        >>> difference(torch.tensor([1.0, 0.0, 2.0]), torch.tensor([2.0, 0.0, -2.0]), relative=True)
        tensor([ 0.5000,  0.0000, -2.0000])
    """
    narrow = all(t.dtype in (torch.float32, torch.float16, torch.bfloat16) for t in (a, b))
    one, other = (t.float() if narrow else widened(t) for t in (a, b))
    apart = torch.where(one == other, 0.0, other - one)
    if relative:
        apart = torch.where(apart == 0, apart, apart / torch.maximum(one.abs(), other.abs()))
    return apart


def _arrange(record: Activation, options: GridOptions) -> Arranged:
    """The difference as maps, ``a`` and ``b`` beside it."""
    if not isinstance(record, ActivationPair):
        raise RenderError("A comparison is drawn of two records; see hookviz.compare.")
    one = arrange(record.a, options, record.sizes[0])
    other = arrange(record.b, options, record.sizes[1])
    a, b, note = on_one_grid(one, other)
    apart = one.apart is not None or other.apart is not None
    notes = dict.fromkeys((note, *one.notes, *other.notes, "class tokens left out" * apart))
    dtype = one.dtype if one.dtype == other.dtype else f"{one.dtype} | {other.dtype}"
    return replace(
        one,
        kind="comparison" if a[0].numel() > 1 else "comparison-bars",
        maps=difference(a, b, relative=options.relative),
        beside=(a, b),
        apart=None,
        notes=tuple(n for n in notes if n),
        dtype=dtype,
    )


def _largest(found: Extents) -> float:
    low, high = found.whole or (0.0, 0.0)
    return max(abs(low), abs(high))


def _scales(
    arranged: Arranged,
    ab: Extents,
    apart: Extents,
    options: GridOptions,
    base: Scaling | None = None,
) -> tuple[Scaling, Scaling]:
    """The scale of ``a`` and ``b`` and that of the difference; one object where they are one."""
    base = base or _base_scale(arranged, ab, options)
    noun, largest = _noun(options), _largest(apart)
    if base.per_channel:
        ends = np.nan_to_num(np.fmax(np.abs(apart.low), np.abs(apart.high)))
        sentence = f"{noun} of each from minus to plus its largest"
        return base, Scaling("channel", -ends, ends, sentence, symmetric=True)
    end = reach([arranged.maps], largest) if options.scale == "auto" else largest
    size = float(base.high[0]) if base.symmetric and not options.relative else 0.0
    asked = options.scale in GIVEN_SCALES
    if (size > 0 and end * _FINER >= size and not (asked and end > size)) or largest == 0 < size:
        three = (*arranged.beside, arranged.maps)
        names = f"a, b and {_MINUS}"
        both = _around_zero(names, joined(ab, apart), max(size, end), three, asked=asked)
        return both, both
    sentence = f"{noun} on its own scale"
    if end < largest:
        sentence += f" for {ROBUST:g} % of its values"
    sentence += f", symmetric about zero: ±{value(end)}"
    if 0 < end < size:
        sentence += f", {value(size / end, 2)} times finer"
    return base, clipping(apart, "symmetric", (-end, end), sentence, [arranged.maps])


def _base_scale(arranged: Arranged, ab: Extents, options: GridOptions) -> Scaling:
    """The scale of ``a`` and ``b``."""
    if options.scale in ("auto", "full", "symmetric") and ab.whole is not None:
        largest = _largest(ab)
        end = reach(arranged.beside, largest) if options.scale == "auto" else largest
        return _around_zero("a and b", ab, end, arranged.beside)
    maps = torch.cat([widened(part).flatten(1) for part in arranged.beside], 1)[:, None]
    base = scaling(replace(arranged, maps=maps), ab, options)
    return replace(base, sentence=f"a and b: {base.sentence.replace(' for the layer', '')}")


def _around_zero(
    names: str, found: Extents, end: float, parts: Sequence[Tensor], *, asked: bool = False
) -> Scaling:
    """One scale for some maps, from −end to end, which was ``asked`` for or found."""
    sentence, robust = f"fixed scale for {names}: ±{value(end)}", end < _largest(found)
    if not asked:
        of = f"{ROBUST:g} % of the values of {names}" if robust else names
        sentence = f"one scale for {of}, symmetric about zero: ±{value(end)}"
    name = "fixed" if asked else "auto" if robust else "symmetric"
    return clipping(found, name, (-end, end), sentence, parts)


def _noun(options: GridOptions) -> str:
    return "relative difference (b − a) / max(|a|, |b|)" if options.relative else _MINUS


@dataclass(frozen=True, eq=False)
class _Page:
    """What is known of a page before it is laid out.

    Attributes:
        subject: What is drawn.
        ab: The extents of ``a`` and ``b``, all channels.
        scales: Of ``a``, of ``b`` and of the difference.
        tables: Their colors.
        sentences: What the figure says, so far.
    """

    subject: Subject
    ab: Extents
    scales: tuple[Scaling, Scaling, Scaling]
    tables: tuple[ColorTable, ColorTable, ColorTable]
    sentences: tuple[str, ...] = ()

    @property
    def joint(self) -> bool:
        """Whether all three share a scale."""
        return self.scales[0] is self.scales[2]

    @property
    def parts(self) -> tuple[int, ...]:
        """Which are drawn: 0 is ``a``, 1 is ``b``, 2 the difference."""
        side = self.subject.options.side
        return (0, 1, 2) if side == "all" else (("a", "b", "difference").index(side),)

    def legend(self) -> Legend:
        """The colors of what has no place on the scales."""
        found, scale = joined(self.ab, self.subject.extents), self.scales[0]
        if not self.joint:
            both = (scale.below + self.scales[2].below, scale.above + self.scales[2].above)
            scale = replace(scale, below=both[0], above=both[1])
        return legend_of(found, scale, self.tables[2])


def draw_comparison(subject: Subject) -> Drawing:
    """One page: ``a``, ``b`` and b − a of each channel side by side."""
    subject.behind  # noqa: B018  # a comparison has no place on the image
    return _drawn(_measured(subject))


def draw_sides(pair: ActivationPair, options: GridOptions) -> dict[str, Drawing]:
    """The same channels of ``a``, of ``b``, of the difference and of the relative difference.

    Args:
        pair: What is drawn.
        options: How; the channels are those of its page of the difference, or of the last page.

    Returns:
        By "a", "b", "difference" and "relative" a page each, whose tiles all stand at the same
        places; by "all" the whole figure alone where the tensor holds no maps.

    Raises:
        RenderError: The two cannot be drawn together.

    Examples:
        >>> from hookviz import Activation
        >>> a, b = (
        ...     Activation("conv", 1, 1, 1, 1, "output", "", "Conv2d", torch.rand(1, 3, 4, 4))
        ...     for _ in range(2)
        ... )
        >>> sides = draw_sides(ActivationPair.of(a, b), GridOptions(bare=True))
        >>> list(sides), sides["a"].places == sides["relative"].places
        (['a', 'b', 'difference', 'relative'], True)
    """
    subject = Subject(pair, options.replace(side="difference", relative=False, page=0))
    with subject.in_a_sentence():
        if not subject.kind.paged:
            whole = options.replace(side="all", bare=False, page=0)
            return {"all": draw_comparison(Subject(pair, whole))}
        subject = _again(subject, page=min(options.page, subject.pages - 1))
        page = _measured(subject)
        found = {
            side: _drawn(replace(page, subject=_again(subject, side=side)))
            for side in ("a", "b", "difference")
        }
        same = {"channels": subject.channels, "per_page": len(subject.channels)}
        plain = {"order": "index", "descending": None, "top": None, "hide_dead": False}
        relative = options.replace(side="difference", relative=True, page=0, **same, **plain)
        measured = _measured(Subject(pair, relative), base=page.scales[0])
        return {**found, "relative": _drawn(measured)}


def shared_end(pairs: Iterable[ActivationPair], options: GridOptions) -> float:
    """The end of one scale for ``a`` and ``b`` of several pairs: the largest of theirs.

    Args:
        pairs: What will be drawn with ``scale="fixed"`` from minus to plus this value.
        options: How each would be drawn alone.
    """
    scales = (_measured(Subject(pair, options)).scales[0] for pair in pairs)
    return max(max(abs(end) for end in scale.ends or (0.0,)) for scale in scales)


def _again(subject: Subject, **changes: Any) -> Subject:
    """The same subject with other options that leave its values and their order as they are."""
    again, known = replace(subject, options=subject.options.replace(**changes)), vars(subject)
    vars(again).update({name: known[name] for name in _OF_VALUES if name in known})
    return again


def _measured(subject: Subject, base: Scaling | None = None) -> _Page:
    """What a page needs to know of the values; ``base`` is the scale of a and b, where known."""
    arranged, options, apart = subject.arranged, subject.options, subject.extents
    a, b = (extents(part) for part in arranged.beside)
    ab = joined(a, b)
    base, own = _scales(arranged, ab, apart, options, base)
    first, second = (
        color_table(choose_cmap(options.cmap, options.style, symmetric=scale.symmetric))
        for scale in (base, own)
    )
    return _Page(subject, ab, (base, base, own), (first, first, second))


def _drawn(page: _Page) -> Drawing:
    subject = page.subject
    arranged, apart = subject.arranged, subject.extents
    base, _, own = page.scales
    sides = subject.source.sides if isinstance(subject.source, ActivationPair) else ("", "")
    sentence = base.sentence if base is own else f"{base.sentence}; {own.sentence}"
    sentences = (
        re.sub(r", by (\w+)", rf", by \1 of {_MINUS}", page_sentence(subject)),
        *(f"{name} = {side}" for name, side in zip("ab", sides, strict=True) if side),
        *sentence.split("; "),
        f"axes {arranged.statement}",
        *arranged.notes,
        "a and b are the same" if apart.whole == (0.0, 0.0) and apart.all_finite else "",
    )
    page, sheet = replace(page, sentences=sentences), Sheet(subject)
    places: Places = ()
    if subject.kind.paged:
        places = _draw_tiles(page, sheet)
    else:
        _draw_values(page, sheet)
    shown = page.parts[-1]
    scale = replace(page.scales[shown], sentence=sentence)
    return subject.drawing(sheet.close(), cmap=page.tables[shown].name, scale=scale, places=places)


register(
    FigureKind("comparison", draw_comparison, bare=True, record="comparison", arrange=_arrange)
)
register(FigureKind("comparison-bars", draw_comparison, "value", paged=False))


Places = tuple[tuple[int, int, int, int], ...]


def _draw_tiles(page: _Page, sheet: Sheet) -> Places:
    """A tile of each part for each channel."""
    subject, options, parts = page.subject, page.subject.options, page.parts
    shown = parts[:1] if page.joint or len(parts) == 1 else (0, 2)
    bars = shown * (options.colorbar and not sheet.bare)
    bar = sum(sheet.bar_width(page.scales[part]) for part in bars)
    longest = f"{max(subject.channels)}  a"
    grid, face = plan(subject, sheet, sheet.room - bar, longest, group=len(parts))
    sentences = (*page.sentences, pixel_sentence(subject, grid))
    sheet.open(sentences, grid.shape[0], page.legend())
    left, top = sheet.margin, sheet.top
    add_mosaic(sheet.figure, _mosaic(page, grid, sheet), left, top).set_label("maps")
    if face is not None:
        _label(page, grid, face, sheet)
    x = left + grid.shape[1] + sheet.px(8)
    tall = min(grid.shape[0] - grid.strip, sheet.px(220))
    for part in bars:
        scale = page.scales[part]
        sheet.colorbar(x, top + grid.strip, tall, page.tables[part], scale)
        if not page.joint and grid.strip:
            name = _noun_short(options) if part == 2 else "a, b"
            sheet.write(name, x, top + grid.strip - sheet.px(2.5), 7.0)
        x += sheet.bar_width(scale)
    each = len(parts)
    origins = (grid.origin(each * position + each - 1) for position in range(len(subject.channels)))
    return tuple((top + y, left + x, *grid.size) for y, x in origins)


def _noun_short(options: GridOptions) -> str:
    return "relative" if options.relative else _MINUS


def _mosaic(page: _Page, grid: TileGrid, sheet: Sheet) -> NDArray[np.uint8]:
    """(height, width, 4) uint8, upside down in memory as the canvas wants it."""
    tiles = [
        draw_tiles(page.subject, grid, part, page.scales[part], page.tables[part], flagged=True)[0]
        for part in page.parts
    ]
    canvas = blank(grid, sheet.palette)
    compose(np.stack(tiles, 1).reshape(-1, *tiles[0].shape[1:]), grid, canvas)
    return canvas.view(np.uint8).reshape(*canvas.shape, 4)


def _label(page: _Page, grid: TileGrid, face: Face, sheet: Sheet) -> None:
    """The channel above the first, which part a tile is, and its range where it has its own."""
    apart, parts = page.subject.extents, page.parts
    same = (apart.low == 0) & (apart.high == 0)
    third = _noun_short(page.subject.options)
    for position, channel in enumerate(page.subject.channels):
        names = ("a", "b", f"{third} = 0" if same[channel] else third)
        for column, part in enumerate(parts):
            text = names[part] if column else f"{channel}  {names[part]}"
            y, x = grid.origin(len(parts) * position + column)
            base = sheet.top + y - sheet.px(2.5)
            if face.width(text) > grid.pitch[1]:
                continue
            used = sheet.write(text, sheet.margin + x, base, face.points)
            scale = page.scales[part]
            low, high = float(scale.low[channel]), float(scale.high[channel])
            if not scale.per_channel or low >= high:
                continue
            span = f"±{value(high)}" if part == 2 else f"{value(low)} … {value(high)}"
            if face.width(span) + used + sheet.px(5) <= grid.size[1]:
                sheet.write(span, sheet.margin + x + grid.size[1], base, face.points, right=True)


def _draw_values(page: _Page, sheet: Sheet) -> None:
    """A vector: a profile of ``a``, of ``b`` and of the difference, and the largest by name."""
    subject, noun = page.subject, _noun(page.subject.options)
    arranged, chosen = subject.arranged, list(subject.channels)
    a, b, apart = (fetch(part.flatten())[chosen] for part in (*arranged.beside, arranged.maps))
    size = np.where(np.isnan(apart), np.inf, np.abs(apart))
    named = np.argsort(-size, kind="stable")[: subject.options.top or NAMED]
    profile, gap = sheet.px(70), sheet.px(28)
    sheet.open(page.sentences, 3 * (profile + gap) + sheet.px(LINE) * len(named), page.legend())
    top = sheet.top
    for values, scale, name in zip((a, b, apart), page.scales, ("a", "b", noun), strict=True):
        sheet.write(name, sheet.margin, top + sheet.px(2), 7.5)
        draw_profile(sheet, values, scale, top + sheet.px(9), profile)
        top += profile + gap
    sheet.write(f"largest {noun}", sheet.margin, top - sheet.px(2), 7.5)
    count, categories = arranged.maps.shape[0], subject.categories
    names = [
        f"{channel_name(chosen[i], count, categories)}:  {value(a[i], 4)} → {value(b[i], 4)}"
        for i in named
    ]
    draw_list(sheet, names, apart[named], _reach(apart), top + sheet.px(3))


def _reach(values: NDArray[np.float64]) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return min(0.0, finite.min(initial=0.0)), max(0.0, finite.max(initial=0.0))
