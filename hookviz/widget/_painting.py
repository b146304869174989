"""One card's grid: pixels for the page and what is said beside them."""

from __future__ import annotations

import math
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hookviz.activation import Activation
from hookviz.errors import RenderError
from hookviz.render import (
    Drawing,
    FigureFacts,
    Flag,
    GridOptions,
    channel_statistics,
    color_table,
    draw,
    fitted,
    page_count,
)
from hookviz.widget._layer_tree import short_shape

PICTURE_BYTES = 96_000_000
"""PNG bytes that a gallery keeps, so that a layer ticked again is there at once."""


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a gallery's values come from.

    Attributes:
        facts: What figures say of it.
        background: (H, W, 3) uint8, what the network saw, for overlays; None without an image.
        categories: Class names of the model's last layer.
    """

    facts: FigureFacts = field(default_factory=FigureFacts)
    background: NDArray[np.uint8] | None = None
    categories: tuple[str, ...] = ()


NOWHERE = Origin()
"""Of values that nothing is known of."""


@dataclass(frozen=True, eq=False)
class Painted:
    """A picture and what goes with it.

    Attributes:
        png: The picture.
        facts: What the page writes beside it.
        values: Those of them that are of the tensor, however it is drawn.
        options: What it was drawn with, where the view could not be followed in full, too.
        refusal: Why a choice of the view could not be followed; None where all were.
    """

    png: bytes
    facts: dict[str, Any]
    values: dict[str, Any]
    options: GridOptions
    refusal: RenderError | None


def draw_card(
    activation: Activation, options: GridOptions, origin: Origin
) -> tuple[Drawing, RenderError | None]:
    """A card's drawing.

    One view serves all cards: a card leaves out what its layer cannot follow, see `fitted`.

    Returns:
        The drawing, and why a choice was left out; None where all were followed.

    Raises:
        RenderError: The activation cannot be drawn in any such way.
    """
    facts = origin.facts

    def drawn(chosen: GridOptions) -> Drawing:
        wanted = chosen.show_input or chosen.overlay is not False
        image = origin.background if wanted else None

        def page(number: int) -> Drawing:
            options = chosen.replace(page=number)
            return draw(
                activation, options, facts=facts, background=image, categories=origin.categories
            )

        try:
            return page(chosen.page)
        except RenderError:
            # Fewer channels have fewer pages.
            last = page_count(activation, chosen, facts=facts) - 1
            if last >= chosen.page:
                raise
            return page(last)

    drawing, _, refusal = fitted(options, drawn)
    return drawing, refusal


@dataclass(frozen=True, eq=False)
class _Kept:
    """A picture, and weakly what it was painted from: an id may be given to another object."""

    tensor: weakref.ref[Tensor]
    origin: weakref.ref[Origin]
    painted: Painted

    def shows(self, tensor: Tensor, origin: Origin) -> bool:
        return self.tensor() is tensor and self.origin() is origin


class PaintBox:
    """Paints cards and keeps the last pictures, so that a layer ticked again is there at once.

    Pictures are kept up to `PICTURE_BYTES`, tensors not at all: with its tensor a picture goes.
    Any thread may ask: what is kept is guarded, drawing itself is not serialised.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Any, ...], _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Lets go of all pictures."""
        with self._lock:
            self._kept.clear()

    @property
    def bytes(self) -> int:
        """Bytes of the pictures that are kept."""
        return sum(len(kept.painted.png) for kept in list(self._kept.values()))

    def paint(self, activation: Activation, options: GridOptions, origin: Origin) -> Painted:
        """A card's picture, painted or kept from before; see `draw_card`.

        Raises:
            RenderError: The activation cannot be drawn in that way.
        """
        # A run's records are made anew at its end around the tensors that arrived before it.
        what = (activation.label, activation.module_type, activation.axes)
        key = (id(activation.tensor), what, id(origin), options)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept.shows(activation.tensor, origin):
                self._kept.move_to_end(key)
                return kept.painted
        drawing, refusal = draw_card(activation, options, origin)
        png = drawing.png_bytes(compress_level=1)
        width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
        title = f"{activation.label} {activation.module_type}"
        facts = {
            "page": drawing.page,
            "pages": drawing.pages,
            "width": width,
            "height": height,
            "scale": drawing.scale,
            "bar": bar_of(drawing),
            "tiles": tiles_of(drawing, activation),
            "alt": f"{title}: {drawing.kind}, page {drawing.page + 1} of {drawing.pages}. "
            f"{drawing.scale}",
        }
        values = self._values(activation, drawing, origin)
        painted = Painted(png, {**facts, **values}, values, drawing.options, refusal)
        with self._lock:
            self._kept[key] = _Kept(weakref.ref(activation.tensor), weakref.ref(origin), painted)
            self._kept.move_to_end(key)
            self._trim()
        return painted

    def _trim(self) -> None:
        # The lock is held.
        gone = [k for k, kept in self._kept.items() if None in (kept.tensor(), kept.origin())]
        for key in gone:
            del self._kept[key]
        while self.bytes > PICTURE_BYTES and len(self._kept) > 1:
            self._kept.popitem(last=False)

    def _values(self, activation: Activation, drawing: Drawing, origin: Origin) -> dict[str, Any]:
        tensor = activation.tensor
        with self._lock:
            for kept in self._kept.values():
                if kept.shows(tensor, origin):
                    return kept.painted.values
        counts = ((drawing.nan, "NaN"), (drawing.posinf, "+Inf"), (drawing.neginf, "−Inf"))
        low, high = _span(activation, plain=not any(count for count, _ in counts), origin=origin)
        return {
            "shape": short_shape(activation.shape),
            "bytes": tensor.numel() * tensor.element_size(),
            "low": low,
            "high": high,
            "dead": len(drawing.dead),
            "channels": drawing.total,
            "odd": " · ".join(f"{count} {word}" for count, word in counts if count),
        }


def bar_of(drawing: Drawing) -> dict[str, Any]:
    """The colorbar of a page that stands in its card's head; {} where there is no one scale."""
    if not drawing.options.bare or not drawing.places or drawing.cmap in ("", "RGB"):
        return {}
    table = color_table(drawing.cmap)
    colors = ["#" + bytes(color).hex() for color in table.rgb[::15]]
    ends = () if drawing.vmin is None else (drawing.vmin, drawing.vmax)
    marks = {Flag.BELOW: drawing.below, Flag.ABOVE: drawing.above}
    beyond = ["#" + bytes(table.flags[f][:3]).hex() if n else "" for f, n in marks.items()]
    return {"colors": colors, "ends": ends, "beyond": beyond}


def tiles_of(drawing: Drawing, activation: Activation) -> dict[str, Any]:
    """Where the maps of a page stand in its picture, for the page to point at them.

    Returns:
        In pixels of the picture: ``left`` and ``top`` of the first map, ``width`` and ``height`` of
        each, how far it is ``across`` and ``down`` from one to the next. In a row stand ``columns``
        of them. ``channels`` are those shown, in order; each has ``rows`` × ``cols`` activations.
        ``image``: whether these are places of the image. {} where there is nothing to point at.
    """
    places = drawing.places
    if len(places) != len(drawing.channels) or not places or activation.kind == "weight":
        return {}
    (top, left, height, width), tops = places[0], [place[0] for place in places]
    columns = tops.count(top)
    return {
        "left": left,
        "top": top,
        "width": width,
        "height": height,
        "across": places[1][1] - left if columns > 1 else width,
        "down": tops[columns] - top if len(tops) > columns else height,
        "columns": columns,
        "channels": list(drawing.channels),
        "rows": drawing.size[0],
        "cols": drawing.size[1],
        "image": drawing.on_image,
    }


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
        low, high = found.whole or (math.nan, math.nan)
    return (None, None) if math.isnan(low) or math.isnan(high) else (low, high)
