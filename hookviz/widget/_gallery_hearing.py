"""What the page asks of the gallery.

In: messages {"type": …}. Out: changed cards and options. Must not know: how a picture is drawn.
"""

from __future__ import annotations

from typing import Any

import traitlets

from hookviz.render import GridOptions
from hookviz.widget._cards import Card
from hookviz.widget._painting import Painted
from hookviz.widget._part import Part
from hookviz.widget._view_options import changed_options, view_of

__all__ = ["GalleryHearing"]


class GalleryHearing(Part):
    """The messages that the gallery understands; `MapGallery` is the gallery itself."""

    cards: traitlets.List[Any] = traitlets.List().tag(sync=True)
    view = traitlets.Dict().tag(sync=True)
    options = traitlets.Instance(GridOptions)

    _cards: dict[str, Card]
    _near: set[str]
    _look: dict[str, Any] | None
    _current: str
    _turned: str
    _sent: dict[str, int]

    @property
    def current(self) -> Card | None:
        """The card that was used last; the first one where none was."""
        card = self._cards.get(self._current)
        return card or next(iter(self._cards.values()), None)

    def _publish(self) -> None:
        self.cards = [card.public() for card in self._cards.values()]

    def _repaint(self) -> None:
        raise NotImplementedError

    def _order(self, key: str) -> None:
        raise NotImplementedError

    def _painted(self, card: Card) -> Painted | None:
        raise NotImplementedError

    def _take_look(self, content: dict[str, Any]) -> None:
        ratio = min(3.0, max(1.0, float(content.get("ratio", 1.0))))
        self._look = {
            "width": min(6000, max(200, int(content.get("width", 1200)))),
            "dpi": 100.0 * ratio,
            "style": "dark" if content.get("style") == "dark" else "light",
        }

    def _hear_hello(self, content: dict[str, Any], _buffers: Any) -> None:
        # A page begins to look: a first one, or one that was loaded again.
        self._take_look(content)
        self._sent.clear()
        self._repaint()

    def _hear_look(self, content: dict[str, Any], _buffers: Any) -> None:
        self._take_look(content)
        for card in self._cards.values():
            card.renew()
        self._publish()
        self._repaint()

    def _hear_near(self, content: dict[str, Any], _buffers: Any) -> None:
        self._near = {str(key) for key in content.get("keys", [])}
        self._repaint()

    def _hear_current(self, content: dict[str, Any], _buffers: Any) -> None:
        self._current = str(content.get("key", ""))

    def _hear_view(self, content: dict[str, Any], _buffers: Any) -> None:
        try:
            self.options = changed_options(self.options, content["changes"], self._range())
        finally:
            self._restate()
        self.clear_problem()

    def _restate(self) -> None:
        # A refused value must not stay in the control that it was typed into.
        self.view = {}
        self.view = view_of(self.options)

    def _range(self) -> tuple[float, float] | None:
        """The values that a fixed scale begins with: those of the current card."""
        card = self.current
        painted = None if card is None else self._painted(card)
        if painted is None or painted.facts["low"] is None:
            return None
        return painted.facts["low"], painted.facts["high"]

    def _change(self, content: dict[str, Any]) -> Card | None:
        card = self._cards.get(str(content.get("key", "")))
        if card is not None:
            self._current = card.key
            card.renew()
        return card

    def _hear_page(self, content: dict[str, Any], _buffers: Any) -> None:
        if card := self._change(content):
            card.page = max(0, int(content.get("page", 0)))
            self._turned = card.key
            # The page itself counts up as well: nothing but the picture has to travel.
            self._trait_values["cards"] = [c.public() for c in self._cards.values()]
            self._order(card.key)

    def _hear_collapse(self, content: dict[str, Any], _buffers: Any) -> None:
        if card := self._change(content):
            card.collapsed = bool(content.get("on"))
            self._publish()
            self._repaint()

    def _hear_statistics(self, content: dict[str, Any], _buffers: Any) -> None:
        if card := self._change(content):
            card.statistics, card.page = bool(content.get("on")), 0
            self._publish()
            self._repaint()

    def _hear_leaf(self, content: dict[str, Any], _buffers: Any) -> None:
        card = self._cards.get(str(content.get("key", "")))
        if card is not None and str(content.get("leaf", "")) in card.leaves:
            self._change(content)
            card.leaf, card.page = str(content["leaf"]), 0
            self._publish()
            self._repaint()
