"""The gallery of feature maps as a widget of its own: cards that are drawn when a page looks."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import traitlets
from matplotlib.figure import Figure
from PIL import Image

from hookviz.activation import Activation
from hookviz.errors import RenderError
from hookviz.render import FOR_SOME_LAYERS, GridOptions, Subject, fitted, page_count
from hookviz.widget._bundle import built
from hookviz.widget._cards import Card, arrange_cards
from hookviz.widget._painting import (
    NOWHERE,
    Origin,
    PaintBox,
    Painted,
    draw_card,
)
from hookviz.widget._part import Handlers, Part, problem
from hookviz.widget._pictures import fewer_colors, look_of
from hookviz.widget._view_options import VIEW_CHOICES, changed_options, view_of
from hookviz.widget._worker import Cancelled, Worker

# Cards beyond these are drawn when they come near the screen.
_DRAWN_AHEAD = 128
_EMPTY = "Nothing to show yet."
# Smallest and largest tile, in pixels of the page.
_TILE = (24, 448)


class Figures(Mapping[str, Figure]):
    """The shown layers' figures by label, drawn when they are asked for.

    A label is the layer's name, with "call 2 of 3" where it ran several times.
    """

    def __init__(self, gallery: MapGallery) -> None:
        self._gallery = gallery

    def _cards(self) -> dict[str, Card]:
        return {
            card.activation.label: card for card in self._gallery.shown_cards if card.activation
        }

    def __getitem__(self, label: str) -> Figure:
        return self._gallery.draw(self._cards()[label].key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._cards())

    def __len__(self) -> int:
        return len(self._cards())

    # A Mapping is compared by its values: each comparison would draw every figure twice.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Figures({list(self)})"


class MapGallery(Part):
    """Shows activations as cards: one per layer and call, in order of execution.

    Nothing is drawn before a page shows the widget, and pixels never become part of the
    notebook. What a page shows is drawn on a thread of its own, near cards first.

    Args:
        activations: What to show first.
        options: How to draw.

    Attributes:
        options: How they are drawn (a `GridOptions`). A choice that some layers cannot follow
            (channel 64) is left out on their cards, which say so.
        tile: Width of a map on the page in its pixels; as many as fit stand in a row.
        small: Whether pages get pictures of 256 colors, with about a third of the bytes: for a
            slow link. Values and exported files stay as they are.
        current_key: The card that was used last, "layer#call"; "" for none.
        weights_of: Gives a layer's weights as a record, for cards that show filters.
        after_painting: Called on the drawing thread once nothing is left to draw.
        figures: Mapping from label to matplotlib Figure of what is shown, drawn on access.
    """

    _esm = built("gallery.min.js")
    _css = built("gallery.min.css")

    cards: traitlets.List[Any] = traitlets.List().tag(sync=True)
    view = traitlets.Dict().tag(sync=True)
    choices = traitlets.Dict().tag(sync=True)
    empty = traitlets.Unicode(_EMPTY).tag(sync=True)
    tile = traitlets.Int(64, min=_TILE[0], max=_TILE[1]).tag(sync=True)
    small = traitlets.Bool(default_value=False).tag(sync=True)
    options = traitlets.Instance(GridOptions)
    current_key = traitlets.Unicode()

    def __init__(
        self,
        activations: Iterable[Activation] = (),
        options: GridOptions | None = None,
        **traits: Any,
    ) -> None:
        start = options or GridOptions()
        self._cards: dict[str, Card] = {}
        self.figures = Figures(self)
        self._box = PaintBox()
        self._near: set[str] = set()
        self.weights_of: Callable[[str], Activation] | None = None
        self._weights: dict[str, Activation] = {}
        self._look: dict[str, Any] = {}
        self._restored: dict[str, Mapping[str, Any]] = {}
        self._turned = ""
        self._sent: dict[str, int] = {}
        self.after_painting: Callable[[], None] | None = None
        self.painter = Worker("hookviz-paint", self.show_problem, rank=self._rank)
        super().__init__(options=start, view=view_of(start), choices=VIEW_CHOICES, **traits)
        self.show(activations)

    # ── what Python sets

    def show(
        self,
        activations: Iterable[Activation],
        waiting: Mapping[str, tuple[str, str]] = MappingProxyType({}),
        origins: Mapping[str, Origin] = MappingProxyType({}),
        stale: Container[str] = (),
        with_filters: Container[str] = (),
        order: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Shows activations, and names the layers that are still waited for.

        Args:
            activations: What to show.
            waiting: Type and what to say, by layer, for layers without an activation.
            origins: Where the values come from, by layer.
            stale: Layers whose values are from an earlier image or model.
            with_filters: Layers that have filters, which `weights_of` gives.
            order: Place in the order of execution by "layer#call", see `arrange_cards`.
        """
        with self.lock:
            cards = arrange_cards(self._cards, activations, waiting, order)
            for key in [key for key in self._restored if key in cards and cards[key].leaves]:
                cards[key].restore(self._restored.pop(key))
            for card in cards.values():
                card.origin = origins.get(card.layer, NOWHERE)
                card.stale = card.layer in stale and card.activation is not None
                card.has_filters = card.layer in with_filters
                card.filters = card.filters and card.has_filters
            shown = {card.layer for card in cards.values() if card.activation is not None}
            self._weights = {name: w for name, w in self._weights.items() if name in shown}
            self._cards = cards
            self._sent = {key: sent for key, sent in self._sent.items() if key in cards}
            self._publish()

    def card_settings(self) -> dict[str, dict[str, Any]]:
        """What the user set on cards, by key: page, leaf, channels and the like, see `Card`."""
        waiting = {key: dict(settings) for key, settings in self._restored.items()}
        shown = {card.key: card.settings for card in self.shown_cards if card.settings}
        return {**waiting, **shown}

    def restore(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Sets on cards what `card_settings` gave, on each once it has something to show."""
        self._restored = dict(settings)

    def draw(self, key: str) -> Figure:
        """A card's figure, new each time.

        Args:
            key: The card's key, "layer#call".

        Returns:
            What the page shows, as a figure that is not registered with pyplot.

        Raises:
            RenderError: The card has nothing to show, or it cannot be drawn.
        """
        card = self._cards[key]
        shown = self.record_of(card)
        if shown is None:
            raise RenderError(f"Layer '{card.layer}' has nothing to show: {card.reason}")
        return draw_card(shown, self.options_of(card), card.origin)[0].figure

    @property
    def activations(self) -> tuple[Activation, ...]:
        """The tensors shown; set it to show others."""
        return tuple(a for card in self._cards.values() for a in card.leaves.values())

    @activations.setter
    def activations(self, activations: Iterable[Activation]) -> None:
        self.show(activations)

    @property
    def shown_cards(self) -> list[Card]:
        """The cards with something to show, in order of execution."""
        return [card for card in self._cards.values() if card.activation is not None]

    @property
    def current(self) -> Card | None:
        """The card that was used last; the first one where none was."""
        card = self._cards.get(self.current_key)
        return card or next(iter(self._cards.values()), None)

    def card(self, key: str) -> Card | None:
        """The card of a key, "layer#call"; None where there is none."""
        return self._cards.get(key)

    @property
    def page_options(self) -> GridOptions:
        """The view at the page's width, in its theme, on the first page."""
        return self.options.replace(page=0, **self._look)

    def options_of(
        self, card: Card, options: GridOptions | None = None, *, on_page: bool = False
    ) -> GridOptions:
        """How a card is drawn: at the page's width, in its theme.

        Args:
            card: The card.
            options: The view and the page; None is the present view on the card's own page. What
                is set on the card alone goes before it.
            on_page: For the page, which has a place of its own for title, facts and colorbar and
                makes the tiles as wide as `tile` says.
        """
        view = self.options.replace(page=card.page) if options is None else options
        if card.filters:
            # The view is of activations: their scale, channels and order are not the weights'.
            view = GridOptions(per_page=view.per_page, cmap=view.cmap, page=view.page)
        elif card.statistics:
            view = view.replace(figure="statistics", page=0)
        else:
            view = card.own(view)
        view = view.replace(**self._look)
        if on_page:
            pixels = view.dpi / 100.0  # of the screen in a pixel of the page
            columns = int((view.width / pixels + 6) // (self.tile + 6))
            view = view.replace(bare=True, ncols=view.ncols or max(1, columns))
        return view

    def record_of(self, card: Card) -> Activation | None:
        """What a card shows now: an activation, or its layer's weights; None for nothing."""
        if not card.filters or card.activation is None or self.weights_of is None:
            return card.activation
        if card.layer not in self._weights:
            self._weights[card.layer] = self.weights_of(card.layer)
        return self._weights[card.layer]

    def show_channel(self, key: str, channel: int) -> None:
        """Turns a card to the page of its maps that shows a channel.

        Args:
            key: The card's key, "layer#call".
            channel: The channel.

        Raises:
            RenderError: The view leaves that channel out; nothing is changed.
        """
        card = self._cards.get(key)
        shown = None if card is None else card.activation
        if card is None or shown is None:
            raise RenderError(f"There is no card '{key}' with maps to show.")
        facts = card.origin.facts
        view = card.own(self.options.replace(page=0))
        chosen, view, _ = fitted(view, lambda options: Subject(shown, options, facts).chosen)
        if channel not in chosen:
            raise RenderError(
                f"The view leaves out channel {channel} of '{card.layer}'.",
                remedy="Choose all channels, and show those that are zero everywhere.",
            )
        page = chosen.index(channel) // view.per_page
        self._change(card, collapsed=False, statistics=False, filters=False, page=page)

    def pictures(self, count: int) -> list[bytes]:
        """The PNGs of the first ``count`` cards; of those that can be drawn."""
        painted = []
        for card in self.shown_cards[:count]:
            with contextlib.suppress(RenderError):
                painted.append(self._painted(card, on_page=False))
        return [one.png for one in painted if one is not None]

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until everything near the screen is drawn.

        Args:
            timeout: At most this many seconds; None for as long as it takes.

        Returns:
            Whether that came about.
        """
        return self.painter.wait(timeout)

    def close(self) -> None:
        """Ends the drawing thread, lets go of all tensors and pictures, takes the widget away."""
        self.painter.close()
        super().close()
        self._box.forget()
        self._cards, self._sent, self._weights, self._look = {}, {}, {}, {}
        self._restored = {}
        self.cards = []

    def open(self) -> None:
        """Brings the widget up, also after `close`."""
        self.painter.reopen()
        super().open()
        self.observe(self._on_options, "options")

    # ── what the page asks

    def _take_look(self, width: int, ratio: float = 1.0, style: str = "light") -> None:
        # A page begins to look (a first one, or one that was loaded again), or looks otherwise.
        with self.lock:
            self._look = look_of(width, ratio, style)
            self._renew_all()

    def _come_near(self, keys: list[str]) -> None:
        with self.lock:
            self._near = set(keys)
            self._repaint()

    def _resize_tiles(self, size: int) -> None:
        with self.lock:
            self.tile = min(_TILE[1], max(_TILE[0], size))
            self._renew_all()

    def _make_small(self, on: bool) -> None:
        with self.lock:
            self.small = on
            self._renew_all()

    def _make_current(self, key: str) -> None:
        self.current_key = key

    def _change_view(self, changes: dict[str, Any]) -> None:
        refusal: RenderError | None = None
        try:
            wanted = changed_options(self.options, changes, self._range)
            if FOR_SOME_LAYERS.keys() & changes and wanted != self.options:
                others = {n: v for n, v in FOR_SOME_LAYERS.items() if n not in changes}
                self._refuse_what_no_card_can(wanted, wanted.replace(**others))
            self.options = wanted
        except RenderError as error:
            refusal = error
        # A control may hold another text than the value that stands: it gets that back.
        with self.lock:
            self.view = {}
            self.view = view_of(self.options)
        if refusal is None:
            self.alert = {}
        else:
            self.show_problem(refusal, field=next(iter(changes), ""))

    def _refuse_what_no_card_can(self, options: GridOptions, alone: GridOptions) -> None:
        """Raises the current card's reason where no shown card can follow a choice.

        Args:
            options: The view with it.
            alone: The same without what was chosen before for some layers, which may be what a
                card cannot follow.
        """
        reasons: list[RenderError] = []
        # Statistics are of all channels, filters of the weights.
        cards = [c for c in self.shown_cards if not (c.statistics or c.filters)]
        for tried in dict.fromkeys((options, alone)):
            reasons = []
            for card in sorted(cards, key=lambda card: card is not self.current):
                plain = replace(card, channels="", first=[])  # the choice is for all layers
                with contextlib.suppress(RenderError):  # it could not be drawn before either
                    painted = self._painted(plain, tried.replace(page=0))
                    if painted is None or painted.refusal is None:
                        return
                    reasons.append(painted.refusal)
        if reasons:
            raise reasons[0]

    def _range(self) -> tuple[float, float] | None:
        """The values that a fixed scale begins with: those of the current card."""
        with contextlib.suppress(RenderError):
            painted = self.current and self._painted(self.current)
            if painted and painted.facts["low"] is not None:
                return painted.facts["low"], painted.facts["high"]
        return None

    def _turn_page(self, key: str, page: int, at: float = 0) -> None:
        self._turned = key
        if card := self._cards.get(key):
            self._change(card, page=max(0, page), turned=max(card.turned, at))

    def _collapse(self, key: str, on: bool) -> None:
        if card := self._cards.get(key):
            self._change(card, collapsed=on)

    def _show_statistics(self, key: str, on: bool) -> None:
        if card := self._cards.get(key):
            self._change(card, statistics=on, filters=False, page=0)

    def _show_filters(self, key: str, on: bool) -> None:
        card = self._cards.get(key)
        if card is not None and card.has_filters:
            self._weights.pop(card.layer, None)  # a training may have changed them
            self._change(card, filters=on, statistics=False, page=0)

    def choose_leaf(self, key: str, leaf: str) -> None:
        """Has a card show another tensor of its layer, where it has that."""
        card = self._cards.get(key)
        if card is not None and leaf in card.leaves:
            self._change(card, leaf=leaf, page=0)

    def _choose_channels(self, key: str, channels: str) -> None:
        card = self._cards.get(key)
        if card is not None:
            self._change_own(card, channels=channels.strip(), page=0)

    def keep_first(self, key: str, channel: int, on: bool) -> None:
        """Keeps a channel before all others of its card, or no longer does.

        Args:
            key: The card's key, "layer#call".
            channel: The channel.
            on: Whether it is kept first; the one that came last is the last of these.
        """
        card = self._cards.get(key)
        if card is not None:
            others = [c for c in card.first if c != channel]
            self._change_own(card, first=[*others, channel] if on else others)

    def _keep_none_first(self, key: str) -> None:
        if card := self._cards.get(key):
            self._change_own(card, first=[])

    def _change_own(self, card: Card, **changes: Any) -> None:
        """Sets on a card what its layer can follow; what it cannot is said at the field."""
        tried = replace(card, **changes)
        try:
            if card.activation is not None:
                options = tried.own(self.options.replace(page=0))
                page_count(card.activation, options, facts=card.origin.facts)
        except RenderError as error:
            self.show_problem(error, field="channels" if "channels" in changes else "")
            return
        self.alert = {}
        self._change(card, **changes)

    def _change(self, card: Card, **changes: Any) -> None:
        """Changes the card that the user works with, and publishes it."""
        with self.lock:
            for name, value in changes.items():
                setattr(card, name, value)
            card.renew()
            self.current_key = card.key
            self._publish()

    # ── inside

    def _on_options(self, _change: Any) -> None:
        with self.lock:
            self.view = view_of(self.options)
            for card in self._cards.values():
                card.page = 0
            self._renew_all()

    def _renew_all(self) -> None:
        for card in self._cards.values():
            card.renew()
        self._publish()

    def _publish(self) -> None:
        self.cards = [card.public() for card in self._cards.values()]
        self._repaint()

    def _rank(self, key: Hashable) -> tuple[int, int]:
        """What is drawn next: the card in use, what is near the screen, the rest, pages ahead."""
        if key == "after":
            return (3, 0)
        if isinstance(key, tuple):  # a page that nobody has asked for yet
            return (4, 0)
        keys = list(self._cards)
        if key not in keys:
            return (-1, 0)  # what the app asks for, see `Explorer`: it is quick
        return (
            0 if key == self.current_key else 1 if key in self._near else 2,
            keys.index(str(key)),
        )

    def _repaint(self) -> None:
        """Has all cards drawn that a page looks at and whose picture it does not have."""
        if not self._look:
            return
        for place, card in enumerate(self._cards.values()):
            wanted = place < _DRAWN_AHEAD or card.key in self._near
            fresh = self._sent.get(card.key) == card.version
            if card.activation is not None and not card.collapsed and wanted and not fresh:
                self.painter.later(card.key, partial(self._send_picture, card.key))
        if (task := self.after_painting) is not None:
            self.painter.later("after", lambda _cancelled: task())

    def _painted(
        self, card: Card, options: GridOptions | None = None, *, on_page: bool = True
    ) -> Painted | None:
        """A card drawn as `options_of` says; None without an activation."""
        shown = self.record_of(card)
        if shown is None:
            return None
        wanted = self.options_of(card, options, on_page=on_page)
        return self._box.paint(shown, wanted, card.origin)

    def _send_picture(self, key: str, _cancelled: Cancelled) -> None:
        card = self._cards.get(key)
        if card is None or self.comm is None:
            return
        version = card.version
        if self._sent.get(key) == version:
            return  # ordered again while it was being drawn
        message: dict[str, Any] = {"type": "pixels", "key": key, "version": version}
        message["turned"] = card.turned
        painted: Painted | None = None
        try:
            painted = self._painted(card)
        except Exception as error:  # noqa: BLE001 - said on the card, and where it is unforeseen
            message = {**problem(error), **message, "error": str(error) or type(error).__name__}
            if not isinstance(error, RenderError):
                self.show_problem(error)
        png = painted.png if painted is not None else b""
        if png and self.small:
            png = fewer_colors(Image.open(io.BytesIO(png)))
        with self.lock:
            if card.version != version or self._cards.get(key) is not card:
                return  # a newer order is waiting
            self._sent[key] = version
            if painted is None:
                self.send(message)
                return
            card.page, card.drawn = painted.facts["page"], painted.options
            note = {} if painted.refusal is None else {"note": problem(painted.refusal)}
            self.send({**message, **painted.facts, **note}, buffers=[png])
            turned, self._turned = self._turned, ""
        if key == turned and card.page + 1 < painted.facts["pages"]:
            self.painter.later(("ahead", key), lambda _cancelled: self._paint_ahead(card))

    def _paint_ahead(self, card: Card) -> None:
        """Paints the page after the one that was turned to: who turns pages will ask for it."""
        if self._cards.get(card.key) is not card:
            return
        with contextlib.suppress(RenderError):
            self._painted(card, self.options.replace(page=card.page + 1))

    def handlers(self) -> Handlers:
        """What the page asks."""
        return {
            **super().handlers(),
            "look": self._take_look,
            "near": self._come_near,
            "current": self._make_current,
            "view": self._change_view,
            "tile": self._resize_tiles,
            "small": self._make_small,
            "page": self._turn_page,
            "collapse": self._collapse,
            "filters": self._show_filters,
            "statistics": self._show_statistics,
            "leaf": self.choose_leaf,
            "channels": self._choose_channels,
            "first": self.keep_first,
            "none-first": self._keep_none_first,
        }
