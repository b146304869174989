"""What must be said above a picture, in words.

In: the facts of one page. Out: a Header. Must not know: pixels, how anything is drawn.
"""

from __future__ import annotations

from torch import Tensor

from hookviz.activation import Activation
from hookviz.render._colours import ColourTable
from hookviz.render._drawing import PictureFacts
from hookviz.render._layout import Arranged
from hookviz.render._measure import Extents
from hookviz.render._options import GridOptions
from hookviz.render._page import Header
from hookviz.render._scaling import Scaling
from hookviz.render._tiles import TileGrid
from hookviz.render._wording import counted, dimensions

__all__ = ["dead_sentence", "heading", "legend_of", "page_sentence", "pixel_sentence"]


def heading(
    source: Activation | Tensor,
    arranged: Arranged,
    sentences: tuple[str, ...],
    options: GridOptions,
    facts: PictureFacts | None,
    legend: tuple[tuple[tuple[int, int, int], str], ...] = (),
) -> Header:
    """The title line and the sentences under it."""
    facts = facts or PictureFacts()
    if isinstance(source, Activation):
        title, kind = source.label, source.module_type
    else:
        title, kind = "tensor", ""
    parts = [kind, dimensions(arranged.shape), arranged.dtype]
    return Header(
        title=options.title if options.title is not None else title,
        details="  ·  ".join(part for part in parts if part),
        sentences=tuple(s for s in sentences if s),
        source="  ·  ".join(part for part in (facts.model, facts.image) if part),
        badge="" if facts.trained else "UNTRAINED",
        legend=legend,
    )


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
    name, _, reference = options.order.partition(":")
    if name == "similarity":
        text += f", by similarity to {arranged.channel_noun} {reference}"
    elif name != "index":
        text += f", by {name}"
    descending = options.descending if options.descending is not None else name != "index"
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
    """How many pixels show one activation, or how many activations one pixel shows."""
    tall, wide = grid.scale
    if (tall, wide) == (1, 1):
        return "1 pixel per activation"
    if wide:
        return f"{wide} × {tall} pixels per activation"
    height, width = arranged.maps.shape[1:]
    if height > grid.size[0] or width > grid.size[1]:
        how = "the mean of" if options.shrink == "mean" else "the nearest of"
        across, down = (
            max(1.0, n / m) for n, m in zip((width, height), grid.size[::-1], strict=True)
        )
        return f"a pixel is {how} {across:.2g} × {down:.2g}"
    return ""


def legend_of(
    found: Extents, scale: Scaling, table: ColourTable
) -> tuple[tuple[tuple[int, int, int], str], ...]:
    """The colours of what has no place on the colourbar, with counts over the layer's sample."""
    counts = (
        (5, "NaN", int(found.nan.sum())),
        (4, "+Inf", int(found.posinf.sum())),
        (3, "−Inf", int(found.neginf.sum())),
        (1, "below the scale", scale.below),
        (2, "above the scale", scale.above),
    )
    legend = []
    for flag, name, count in counts:
        if count:
            r, g, b = (int(v) for v in table.flags[flag])
            legend.append(((r, g, b), f"{name}: {counted(count, 'value')}"))
    return tuple(legend)
