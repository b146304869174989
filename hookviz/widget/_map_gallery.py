"""The gallery of feature maps as a widget of its own.

In: activations. Out: cards with matplotlib grids, drawn when a page looks at them. Must not know:
models, runs, images.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping
from typing import Any

import traitlets
from matplotlib.figure import Figure

from hookviz.capture import Activation
from hookviz.errors import RenderError
from hookviz.render import GridOptions
from hookviz.widget._bundle import built
from hookviz.widget._cards import Card, arrange_cards
from hookviz.widget._gallery_hearing import GalleryHearing
from hookviz.widget._jobs import Worker
from hookviz.widget._painting import Origin, PaintBox, Painted, draw_card
from hookviz.widget._view_options import VIEW_CHOICES, view_of

__all__ = ["Figures", "MapGallery"]

# Cards beyond these are drawn when they come near the screen.
_DRAWN_AHEAD = 128
_EMPTY = "Nothing to show yet."


class Figures(Mapping[str, Figure]):
    """The shown layers' figures by label, drawn when they are asked for.

    A label is the layer's name, with "call 2 of 3" where it ran several times.
    """

    def __init__(self, gallery: MapGallery) -> None:
        self._gallery = gallery

    def _cards(self) -> dict[str, Card]:
        return {
            card.activation.label: card
            for card in self._gallery.shown_cards
            if card.activation is not None
        }

    def __getitem__(self, label: str) -> Figure:
        return self._gallery.draw(self._cards()[label].key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._cards())

    def __len__(self) -> int:
        return len(self._cards())

    # A Mapping is compared by its values: each comparison, and traitlets makes one whenever the
    # trait is set, would draw every figure twice.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"Figures({list(self)})"


class MapGallery(GalleryHearing):
    """Shows activations as cards: one per layer and call, in order of execution.

    Nothing is drawn before a page shows the widget, and pictures never become part of the
    notebook. What a page shows is drawn on a thread of its own, near cards first.

    Args:
        activations: What to show first.
        options: How to draw.

    Attributes:
        activations: The tensors shown. Set it to show others.
        options: How they are drawn (a `GridOptions`). Set it, also in part: `draw_with`.
        figures: Mapping from label to matplotlib Figure, drawn on access.
    """

    _esm = built("gallery.min.js")
    _css = built("gallery.min.css")

    choices = traitlets.Dict().tag(sync=True)
    empty = traitlets.Unicode(_EMPTY).tag(sync=True)
    activations = traitlets.Tuple()

    def __init__(
        self,
        activations: Iterable[Activation] = (),
        options: GridOptions | None = None,
        **traits: Any,
    ) -> None:
        start = options or GridOptions()
        self._cards: dict[str, Card] = {}
        self._waiting: Mapping[str, tuple[str, str]] = {}
        self._plain = Origin()
        self._box = PaintBox()
        self._near: set[str] = set()
        self._look: dict[str, Any] | None = None
        self._current = ""
        self._turned = ""
        self._sent: dict[str, int] = {}
        self._after_painting: Callable[[], None] | None = None
        self._painter = Worker("hookviz-paint", self.show_problem, rank=self._rank)
        super().__init__(options=start, view=view_of(start), choices=VIEW_CHOICES, **traits)
        self.observe(self._on_options, "options")
        self.observe(self._on_activations, "activations")
        self.activations = tuple(activations)

    # ── what Python sets

    def show(
        self,
        activations: Iterable[Activation],
        *,
        waiting: Mapping[str, tuple[str, str]] | None = None,
        origins: Mapping[str, Origin] | None = None,
        stale: Container[str] = (),
        order: Mapping[str, int] | None = None,
    ) -> None:
        """Shows activations, and names the layers that are still waited for.

        Args:
            activations: What to show.
            waiting: Type and what to say, by layer, for layers without an activation.
            origins: Where the values come from, by layer.
            stale: Layers whose values are from an earlier image or model.
            order: Place in the order of execution by "layer#call", see `arrange_cards`.
        """
        self._waiting = dict(waiting or {})
        shown = tuple(activations)
        self._trait_values["activations"] = shown
        self._cards = arrange_cards(self._cards, shown, self._waiting, order)
        for card in self._cards.values():
            card.origin = (origins or {}).get(card.layer)
            card.stale = card.layer in stale and card.activation is not None
        self._publish()
        self._repaint()

    def draw_with(self, **changes: Any) -> None:
        """Changes some of the options, by the names of `GridOptions`.

        Raises:
            RenderError: A value is not legal; nothing is changed.
        """
        self.options = self.options.replace(**changes)

    def draw(self, key: str) -> Figure:
        """A card's figure, new each time.

        Args:
            key: The card's key, "layer#call".
        """
        card = self._cards[key]
        if card.activation is None:
            raise RenderError(f"Layer '{card.layer}' has nothing to show: {card.reason}")
        options = self.options_of(card)
        return draw_card(
            card.activation, options, card.origin or self._plain, statistics=card.statistics
        ).figure

    @property
    def figures(self) -> Figures:
        """The shown layers' figures by label, drawn when they are asked for."""
        return Figures(self)

    @property
    def shown_cards(self) -> list[Card]:
        """The cards with something to show, in order of execution."""
        return [card for card in self._cards.values() if card.activation is not None]

    def card(self, key: str) -> Card | None:
        """A card by its key."""
        return self._cards.get(key)

    def options_of(self, card: Card) -> GridOptions:
        """How a card is drawn on the page now: its page, the page's width and theme."""
        look = self._look or {}
        return self.options.replace(page=card.page, **look)

    def pictures(self, count: int) -> list[bytes]:
        """The PNGs of the first shown cards, painted where they are not there yet."""
        return [painted.png for painted in map(self._painted, self.shown_cards[:count]) if painted]

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until everything near the screen is drawn."""
        return self._painter.wait(timeout)

    def after_painting(self, task: Callable[[], None] | None) -> None:
        """Sets what is called on the drawing thread once nothing is left to draw."""
        self._after_painting = task

    def close(self) -> None:
        """Ends the drawing thread and takes the widget away."""
        self._painter.close()
        self._box.forget()
        self._look = None
        super().close()

    def open(self) -> None:
        """Brings the widget up, also after `close`."""
        self._painter.reopen()
        super().open()

    # ── inside

    def _on_activations(self, _change: Any) -> None:
        self.show(self.activations)

    def _on_options(self, _change: Any) -> None:
        self.view = view_of(self.options)
        for card in self._cards.values():
            card.renew()
            card.page = 0
        self._publish()
        self._repaint()

    def _rank(self, key: Hashable) -> tuple[int, int]:
        """What is drawn next: the card in use, what is near the screen, the rest, pages ahead."""
        if key == "after":
            return (3, 0)
        if isinstance(key, tuple):  # a page that nobody has asked for yet
            return (4, 0)
        place = list(self._cards).index(str(key)) if key in self._cards else 0
        return (0 if key == self._current else 1 if key in self._near else 2, place)

    def _repaint(self) -> None:
        """Has all cards drawn that a page looks at and whose picture it does not have."""
        if self._look is None:
            return
        for place, card in enumerate(self._cards.values()):
            wanted = place < _DRAWN_AHEAD or card.key in self._near
            fresh = self._sent.get(card.key) == card.version
            if card.activation is not None and not card.collapsed and wanted and not fresh:
                self._order(card.key)
        if self._after_painting is not None:
            task = self._after_painting
            self._painter.later("after", lambda _cancelled: task())

    def _order(self, key: str) -> None:
        self._painter.later(key, lambda _cancelled: self._send_picture(key))

    def _painted(self, card: Card) -> Painted | None:
        shown = card.activation
        if shown is None:
            return None
        options = self.options_of(card)
        return self._box.paint(
            shown, options, card.origin or self._plain, statistics=card.statistics
        )

    def _send_picture(self, key: str) -> None:
        card = self._cards.get(key)
        if card is None or self.comm is None:
            return
        version = card.version
        if self._sent.get(key) == version:
            return  # ordered again while it was being drawn
        message = {"type": "pixels", "key": key, "version": version}
        try:
            painted = self._painted(card)
        except Exception as error:  # noqa: BLE001 - said on the card, and where it is unforeseen
            self.send({**message, "error": str(error) or type(error).__name__})
            self._sent[key] = version
            if not isinstance(error, RenderError):
                self.show_problem(error)
            return
        if painted is None or card.version != version or self._cards.get(key) is not card:
            return  # a newer order is waiting
        card.page = painted.facts["page"]
        self._sent[key] = version
        self.send({**message, **painted.facts}, buffers=[painted.png])
        if key == self._turned and card.page + 1 < painted.facts["pages"]:
            self._painter.later(("ahead", key), lambda _cancelled: self._paint_ahead(key))
        self._turned = ""

    def _paint_ahead(self, key: str) -> None:
        """Paints the page after the one that was turned to: who turns pages will ask for it."""
        card = self._cards.get(key)
        if card is None or card.activation is None or card.statistics:
            return
        options = self.options_of(card).replace(page=card.page + 1)
        with contextlib.suppress(RenderError):
            self._box.paint(card.activation, options, card.origin or self._plain)
