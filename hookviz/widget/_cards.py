"""The cards of the gallery: which layer, which call, what is to be drawn.

There is one for each layer and call, in order of execution, with what the user set on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hookviz.activation import Activation
from hookviz.render import GridOptions
from hookviz.widget._painting import NOWHERE, Origin

_VERSIONS = itertools.count(1)
_PUBLIC = (
    "key", "layer", "call", "calls", "type", "reason", "leaf", "stale", "collapsed", "statistics",
    "version", "channels", "first",
)  # fmt: skip
_SETTINGS = ("page", "leaf", "statistics", "filters", "collapsed", "channels", "first")


def card_key(layer: str, call: int) -> str:
    """The name of a card, which also is how a single call is unticked.

    Examples:
        >>> card_key("layer1.0.relu", 2)
        'layer1.0.relu#2'
    """
    return f"{layer}#{call}"


@dataclass
class Card:
    """One layer and call in the gallery.

    Attributes:
        key: See `card_key`.
        layer: The layer's name.
        call: Which call, from 1.
        leaves: The call's activations by leaf; {} while it was not captured.
        type: Class name of the module.
        reason: What to say instead of a picture; "" where there is one.
        leaf: Which leaf is shown.
        page: Which page, from 0.
        turned: When the page was turned last, by the page's clock in milliseconds: a picture that
            is older than that does not turn it back.
        collapsed: Whether only the head is shown.
        statistics: Whether the statistics are shown in place of the maps.
        filters: Whether the layer's filters are shown in place of the maps.
        channels: Which channels are shown, in place of the view's; "" for those.
        first: Channels that come first, whatever the view's order.
        has_filters: Whether it has any.
        stale: Whether the image or the model changed since.
        origin: Where the values come from.
        drawn: What the picture that the page has was drawn with; None before there is one.
        version: Grows with every change of what is to be drawn. No two cards ever share one: a
            card that comes back is not mistaken for the one that went.
    """

    key: str
    layer: str
    call: int
    leaves: dict[str, Activation] = field(default_factory=dict)
    type: str = ""
    reason: str = ""
    leaf: str = ""
    page: int = 0
    turned: float = 0
    collapsed: bool = False
    statistics: bool = False
    filters: bool = False
    channels: str = ""
    first: list[int] = field(default_factory=list)
    has_filters: bool = False
    stale: bool = False
    origin: Origin = NOWHERE
    drawn: GridOptions | None = None
    version: int = 0

    @property
    def activation(self) -> Activation | None:
        """What is shown; None where there is nothing."""
        return self.leaves.get(self.leaf)

    @property
    def calls(self) -> int:
        """How many times the layer was called; 1 where that is not known."""
        shown = self.activation
        return 1 if shown is None else shown.calls

    @property
    def settings(self) -> dict[str, Any]:
        """What the user set on it, where that is not the default."""
        values = {name: getattr(self, name) for name in _SETTINGS}
        if len(self.leaves) < 2:
            del values["leaf"]
        return {name: value for name, value in values.items() if value}

    def own(self, view: GridOptions) -> GridOptions:
        """A view with what is set on this card alone."""
        changes: dict[str, Any] = {"channels": self.channels} if self.channels else {}
        if self.first:
            changes["first"] = self.first
        return view.replace(**changes) if changes else view

    def restore(self, settings: Mapping[str, Any]) -> None:
        """Sets on a captured card what `settings` gave of one; a leaf that it has not is left."""
        for name, value in settings.items():
            if name != "leaf" or value in self.leaves:
                setattr(self, name, value)
        self.renew()

    def renew(self) -> None:
        """Makes the version grow: what is to be drawn has changed."""
        self.version = next(_VERSIONS)
        self.drawn = None

    def take(self, leaves: dict[str, Activation]) -> None:
        """Takes newly captured tensors; the version grows where the picture has to."""
        before = self.activation
        self.leaves = leaves
        if self.leaf not in leaves:
            self.leaf = next(iter(leaves), "")
        now = self.activation
        same = now is before
        if now is not None and before is not None:
            same = now.tensor is before.tensor and now.calls == before.calls
        if not same:
            self.renew()
        if leaves:
            self.reason = ""

    def public(self) -> dict[str, Any]:
        """The card as the page knows it."""
        return {
            **{name: getattr(self, name) for name in _PUBLIC},
            "edited": self.origin.facts.edits,
            "state": "pending" if self.activation is None else "shown",
            "leaves": list(self.leaves) if len(self.leaves) > 1 else [],
            "filters": self.filters if self.has_filters else None,
        }


def arrange_cards(
    old: Mapping[str, Card],
    activations: Iterable[Activation],
    waiting: Mapping[str, tuple[str, str]],
    order: Mapping[str, int],
) -> dict[str, Card]:
    """The cards for what is to be shown now; what the user set on old ones is kept.

    Args:
        old: The cards so far, by key.
        activations: What is shown; several leaves of one call share a card.
        waiting: Layers without an activation: type and what to say, by layer.
        order: Place in the order of execution by key, where it is known better than by the
            activations' own (which count each forward anew).

    Returns:
        Cards by key: captured ones in order of execution, then the waiting ones.
    """
    groups: dict[str, dict[str, Activation]] = {}
    places: dict[str, tuple[int, int, int]] = {}
    for activation in activations:
        key = card_key(activation.layer, activation.call)
        groups.setdefault(key, {})[activation.leaf] = activation
        places[key] = (order.get(key, 0), activation.run, activation.order)
    cards: dict[str, Card] = {}
    for key in sorted(groups, key=places.__getitem__):
        leaves = groups[key]
        first = next(iter(leaves.values()))
        card = old.get(key) or Card(key, first.layer, first.call)
        card.type = first.module_type
        card.take(leaves)
        cards[key] = card
    for layer, (kind, reason) in waiting.items():
        key = card_key(layer, 1)
        card = old.get(key) or Card(key, layer, 1)
        card.type, card.reason = kind, reason
        card.take({})
        cards[key] = card
    return cards
