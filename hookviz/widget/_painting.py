"""One card's picture: pixels for the page and what is said beside them.

In: an activation, drawing options, where the values come from. Out: a PNG and the card's facts.
Must not know: widgets, messages, threads.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookviz.capture import Activation
from hookviz.errors import RenderError
from hookviz.render import (
    Drawing,
    GridOptions,
    PictureFacts,
    channel_statistics,
    draw,
    draw_statistics,
)
from hookviz.widget._layer_tree import shape_text

__all__ = ["Origin", "PaintBox", "Painted", "draw_card"]

_BYTES_KEPT = 96_000_000
_RANGES_KEPT = 2000


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
        return draw_statistics(activation, options, facts=origin.facts)
    wanted = options.show_input or options.overlay is not False
    return draw(
        activation,
        options,
        facts=origin.facts,
        background=origin.background if wanted else None,
        categories=origin.categories,
    )


class PaintBox:
    """Paints cards and keeps the last pictures, so that a layer ticked again is there at once.

    Any thread may ask: what is kept is guarded, drawing itself is not serialised.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Any, ...], tuple[Activation, Origin, Painted]] = OrderedDict()
        self._bytes = 0
        self._ranges: dict[int, tuple[Activation, dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Lets go of all pictures."""
        with self._lock:
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
        # A run's records are made anew at its end around the tensors that arrived before it.
        what = (activation.label, activation.module_type, activation.axes)
        key = (id(activation.tensor), what, id(origin), options, statistics)
        with self._lock:
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
            **self._range_of(activation, drawing, origin),
        }
        painted = Painted(png, facts)
        with self._lock:
            # The tensor is kept beside the picture: its id must not be given to another one.
            before = self._kept.pop(key, None)
            self._kept[key] = (activation, origin, painted)
            self._bytes += len(png) - (len(before[2].png) if before else 0)
            while self._bytes > _BYTES_KEPT and len(self._kept) > 1:
                _, (_, _, dropped) = self._kept.popitem(last=False)
                self._bytes -= len(dropped.png)
        return painted

    def _range_of(self, activation: Activation, drawing: Drawing, origin: Origin) -> dict[str, Any]:
        with self._lock:
            known = self._ranges.get(id(activation.tensor))
        if known is not None:
            return known[1]
        tensor = activation.tensor
        counts = ((drawing.nan, "NaN"), (drawing.posinf, "+Inf"), (drawing.neginf, "−Inf"))
        low, high = _span(activation, plain=not any(count for count, _ in counts), origin=origin)
        facts: dict[str, Any] = {
            "shape": shape_text(activation.shape),
            "bytes": tensor.numel() * tensor.element_size(),
            "low": low,
            "high": high,
            "dead": len(drawing.dead),
            "channels": drawing.total,
            "odd": " · ".join(f"{count} {word}" for count, word in counts if count),
        }
        with self._lock:
            if len(self._ranges) >= _RANGES_KEPT:
                self._ranges.clear()
            self._ranges[id(activation.tensor)] = (activation, facts)
        return facts


def _span(
    activation: Activation, *, plain: bool, origin: Origin
) -> tuple[float | None, float | None]:
    """Smallest and largest finite value of what is drawn; None where there is none."""
    tensor = activation.tensor
    one_sample = tensor.ndim > 1 and tensor.shape[0] == 1
    if plain and one_sample and tensor.is_floating_point() and tensor.numel():
        low, high = (float(v) for v in tensor.aminmax())
    else:
        # A tensor that can be drawn may still have no channels to count.
        try:
            found = channel_statistics(activation, facts=origin.facts)
        except RenderError:
            return None, None
        low, high = found.low, found.high
    return (None, None) if math.isnan(low) or math.isnan(high) else (low, high)
