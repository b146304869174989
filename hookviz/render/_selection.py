"""Which channels are drawn, in which order, on which page."""

from __future__ import annotations

import numpy as np

from hookviz.errors import RenderError
from hookviz.render import _measure as measure
from hookviz.render._arrange import Arranged
from hookviz.render._kinds import figure_kind
from hookviz.render._measure import Extents, Numbers
from hookviz.render._options import GridOptions, parse_channels


def choose_channels(arranged: Arranged, found: Extents, options: GridOptions) -> tuple[int, ...]:
    """All channels to draw, over all pages, in the order asked.

    Raises:
        RenderError: An index is beyond the layer, or nothing is left.
    """
    count = len(found.low)
    noun = arranged.channel_noun
    if options.channels is None:
        chosen = np.arange(count)
    else:
        chosen = np.array(parse_channels(options.channels), dtype=np.int64)
        beyond = chosen[chosen >= count]
        if beyond.size:
            raise RenderError(
                f"channels names {beyond[0]}, but the layer has {count} "
                f"({noun}s 0 to {count - 1}).",
                code="no-such-channel",
                details={"channel": int(beyond[0]), "last": count - 1, "noun": noun},
            )
    if options.hide_dead:
        chosen = chosen[~found.dead[chosen]]
        if not chosen.size:
            raise RenderError(
                f"Nothing to draw: every {noun} chosen is zero everywhere.",
                remedy="hide_dead=False shows them.",
                code="all-dead",
                details={"noun": noun},
            )
    if not chosen.size:
        raise RenderError("channels is empty; name at least one, for example '0'.")
    name, reference, descending = arranged.ordered(options)
    if name == "index":
        chosen = chosen[::-1] if descending else chosen
    else:
        key = _key(arranged, found, name, reference)[chosen]
        # What has no key (no finite value) comes last; equal keys stay in their order.
        key = np.where(np.isnan(key), np.inf, -key if descending else key)
        chosen = chosen[np.argsort(key, kind="stable")]
    if options.top is not None and figure_kind(arranged.kind).paged:
        chosen = chosen[: options.top]
    return tuple(int(c) for c in chosen)


def _key(arranged: Arranged, found: Extents, name: str, reference: str) -> Numbers:
    if name == "max":
        return found.high
    if name == "similarity":
        channel, count = int(reference), len(found.low)
        if channel >= count:
            raise RenderError(
                f"order is 'similarity:{channel}', but the layer has {count} "
                f"({arranged.channel_noun}s 0 to {count - 1})."
            )
        if arranged.maps[0].numel() == 1:
            raise RenderError("similarity needs maps; single values have none.")
        key = measure.correlation(arranged.maps, found, channel)
        key[channel] = np.inf  # itself first, also where others are exactly alike
        return key
    moments = measure.moments(arranged.maps, found)
    if name == "norm":
        return np.sqrt(moments.variance + moments.mean**2)  # of equally many values each
    found_keys = {"mean": moments.mean, "variance": moments.variance, "sparsity": moments.zeros}
    return found_keys[name]


def pages_of(total: int, options: GridOptions, *, paged: bool) -> int:
    """How many pages ``total`` tiles take; 1 where they are not paged."""
    return -(-total // options.per_page) if paged else 1


def page_of(chosen: tuple[int, ...], options: GridOptions, *, paged: bool) -> tuple[int, ...]:
    """The channels on the page asked for.

    Raises:
        RenderError: There is no such page.
    """
    pages = pages_of(len(chosen), options, paged=paged)
    if options.page >= pages:
        legal = "only page 0" if pages == 1 else f"0 to {pages - 1}"
        raise RenderError(f"page is {options.page}, but there are {pages}; legal: {legal}.")
    at = options.page * options.per_page
    return chosen[at : at + options.per_page] if paged else chosen
