"""One card's picture: pixels for the page and what is said beside them.

In: an activation, drawing options, where the values come from. Out: a PNG and the card's facts.
Must not know: widgets, messages, threads.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookviz.capture.activation import Activation
from hookviz.render import Drawing, GridOptions, PictureFacts, draw
from hookviz.widget.layer_tree import shape_text

__all__ = ["Origin", "PaintBox", "Painted", "draw_card"]

try:  # TEMP
    from hookviz.render import channel_statistics, layer_statistics
except ImportError:
    from types import SimpleNamespace

    def channel_statistics(a):
        t = a.tensor.float()
        c = t[0].flatten(1) if t.ndim > 2 else t.flatten().reshape(-1, 1)
        return SimpleNamespace(minimum=c.amin(1).numpy(), maximum=c.amax(1).numpy(), dead=[i for i in range(len(c)) if not c[i].any()], nan=0, posinf=0, neginf=0)

    def layer_statistics(a, options, facts=None):
        return draw(a, options, facts=facts)

_BYTES_KEPT = 96_000_000


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a gallery's values come from.

    Attributes:
        facts: What figures say of it.
        background: (H, W, 3) uint8, what the network saw, for overlays; None without an image.
        categories: Class names of the model's last layer.
    """

    facts: PictureFacts = field(default_factory=PictureFacts)
    background: NDArray[np.uint8] | None = None
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Painted:
    """A picture and what goes with it.

    Attributes:
        png: The picture.
        facts: What the page writes beside it.
    """

    png: bytes
    facts: dict[str, Any]


def draw_card(
    activation: Activation, options: GridOptions, origin: Origin, *, statistics: bool = False
) -> Drawing:
    """A card's drawing: the maps, or the statistics of the channels.

    Raises:
        RenderError: The activation cannot be drawn in that way.
    """
    if statistics:
        return layer_statistics(activation, options, facts=origin.facts)
    wanted = options.show_input or options.overlay is not False
    return draw(
        activation,
        options,
        facts=origin.facts,
        background=origin.background if wanted else None,
        categories=origin.categories,
    )


class PaintBox:
    """Paints cards and keeps the last pictures, so that a layer ticked again is there at once."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Any, ...], tuple[Activation, Origin, Painted]] = OrderedDict()
        self._bytes = 0
        self._ranges: dict[int, tuple[Activation, dict[str, Any]]] = {}

    def forget(self) -> None:
        """Lets go of all pictures."""
        self._kept.clear()
        self._ranges.clear()
        self._bytes = 0

    def paint(
        self,
        activation: Activation,
        options: GridOptions,
        origin: Origin,
        *,
        statistics: bool = False,
    ) -> Painted:
        """A card's picture, painted or kept from before.

        Raises:
            RenderError: The activation cannot be drawn in that way.
        """
        key = (id(activation), id(origin), options, statistics)
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept[2]
        drawing = draw_card(activation, options, origin, statistics=statistics)
        png = drawing.png_bytes(compress_level=1)
        width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
        title = f"{activation.label} {activation.module_type}"
        facts = {
            "page": drawing.page,
            "pages": drawing.pages,
            "width": width,
            "height": height,
            "scale": drawing.scale,
            "alt": f"{title}: {drawing.kind}, page {drawing.page + 1} of {drawing.pages}. "
            f"{drawing.scale}",
            **self._range_of(activation),
        }
        painted = Painted(png, facts)
        # The activation is kept beside the picture: its id must not be given to another one.
        self._kept[key] = (activation, origin, painted)
        self._bytes += len(png)
        while self._bytes > _BYTES_KEPT and len(self._kept) > 1:
            _, (_, _, dropped) = self._kept.popitem(last=False)
            self._bytes -= len(dropped.png)
        return painted

    def _range_of(self, activation: Activation) -> dict[str, Any]:
        known = self._ranges.get(id(activation))
        if known is not None:
            return known[1]
        found = channel_statistics(activation)
        low = float(np.nanmin(found.minimum)) if len(found.minimum) else math.nan
        high = float(np.nanmax(found.maximum)) if len(found.maximum) else math.nan
        odd = [
            f"{count} {word}"
            for count, word in ((found.nan, "NaN"), (found.posinf, "+Inf"), (found.neginf, "−Inf"))
            if count
        ]
        facts = {
            "shape": shape_text(activation.shape).replace("×", " × "),
            "low": None if math.isnan(low) else low,
            "high": None if math.isnan(high) else high,
            "dead": len(found.dead),
            "channels": len(found.minimum),
            "bytes": activation.tensor.numel() * activation.tensor.element_size(),
            "odd": " · ".join(odd),
        }
        if len(self._ranges) > 4000:
            self._ranges.clear()
        self._ranges[id(activation)] = (activation, facts)
        return facts
