"""The panel "Inspect": what the pinned place sees, and which channels answer there."""

from __future__ import annotations

from typing import Any

import traitlets

from hookviz.errors import HookvizError
from hookviz.widget._app import Panel
from hookviz.widget._bundle import built
from hookviz.widget._part import Handlers
from hookviz.widget._pictures import jpeg_bytes
from hookviz.widget._pointing import Shown, exact_text, nearest
from hookviz.widget._worker import Cancelled

_FIRST = 10
_MORE = 50
_THUMBNAIL = 640


class InspectPlace(Panel):
    """Shows the pinned place of the app: its receptive field, and its values in every layer.

    Attributes:
        place: The app's ``pin``; {} for none.
        field: What `Run.receptive_field` says of it; {"state": "looking"} while it is looked for.
        photo: (width, height) of the photo of that run; [] without one.
        vectors: Per layer, its values at that place, largest first.
        region: The app's ``region``; [] for none.
        inside: Per layer, its channels by how much more they answer inside than outside.
    """

    title = "Inspect"
    beside = True

    _esm = built("panel_inspect.min.js")
    _css = built("panel_inspect.min.css")

    place = traitlets.Dict().tag(sync=True)
    field = traitlets.Dict().tag(sync=True)
    photo: traitlets.List[Any] = traitlets.List().tag(sync=True)
    vectors: traitlets.List[Any] = traitlets.List().tag(sync=True)
    region: traitlets.List[Any] = traitlets.List().tag(sync=True)
    inside: traitlets.List[Any] = traitlets.List().tag(sync=True)

    def __init__(self, app: Any, **traits: Any) -> None:
        self._counts: dict[str, int] = {}
        self._asked: tuple[Any, ...] = ()
        self._asked_region: tuple[Any, ...] = ()
        self._picture: Any = None
        super().__init__(app, **traits)

    def refresh(self) -> None:
        """See `Panel`."""
        with self.app.lock:
            pin = self.app.pin
            self.place = pin
            self.region = self.app.region
            own = self.app.pointing.shown(pin["key"]) if pin else None
            self.vectors = [] if own is None else self._vectors(own, pin)
            self._look_for_field(own, pin)
            self._look_inside()
            self._show_photo(own)

    def close(self) -> None:
        """Takes the panel away and lets go of what it held."""
        super().close()
        self._asked = self._asked_region = ()
        self._picture = None
        self.place, self.field, self.vectors, self.inside = {}, {}, [], []

    # ── the channel vector

    def _vectors(self, own: Shown, pin: dict[str, Any]) -> list[dict[str, Any]]:
        """Each layer's values at the place; the pinned layer's first."""
        cards = self.app.gallery.shown_cards
        found = []
        for card in sorted(cards, key=lambda card: card.key != own.card.key):
            try:
                shown = own if card is own.card else self.app.pointing.shown(card.key)
                if shown is None or shown.run.image is not own.run.image:
                    continue
                y, x = pin["y"], pin["x"]
                if shown is not own:
                    if shown.size == (1, 1):
                        y = x = 0
                    elif not (shown.on_image and own.on_image):
                        continue  # its places are none of the image
                    elif None in (
                        known := [self.app.pointing.centers(c) for c in (own.card, card)]
                    ):
                        continue  # it follows once they are found
                    else:
                        y, x = nearest((y, x), *known)
                vector = shown.vector(y, x)
            except HookvizError:
                continue  # it cannot be read as maps: its card says so
            count = self._counts.get(card.key, _FIRST)
            first = vector.order[:count]
            numbers = [_real(vector.values[c].item()) for c in first]
            largest = max((abs(n) for n in numbers if n is not None), default=0.0)
            found.append(
                {
                    "key": card.key,
                    "label": vector.layer,
                    "y": y,
                    "x": x,
                    "rows": shown.size[0],
                    "cols": shown.size[1],
                    "of": len(vector.order),
                    "bars": [
                        [c, exact_text(vector.values[c]), _share(n, largest)]
                        for c, n in zip(first, numbers, strict=True)
                    ],
                }
            )
        return found

    def _show_more(self, key: str) -> None:
        with self.app.lock:
            self._counts[key] = self._counts.get(key, _FIRST) + _MORE
            self._asked_region = ()
            self.refresh()

    def _show_channel(self, key: str, channel: int) -> None:
        self.app.gallery.show_channel(key, channel)
        self.app.send({"type": "show-channel", "key": key, "channel": channel})

    # ── the receptive field

    def _look_for_field(self, own: Shown | None, pin: dict[str, Any]) -> None:
        """Has the receptive field computed on the app's thread; a layer's first takes a second."""
        if own is None:
            self._asked, self.field = (), {}
            return
        asked = (self.app.results[own.card.layer].run, own.card.key, pin["y"], pin["x"])
        if self._asked == asked:
            return
        self._asked = asked
        self.field = {"state": "looking"}

        def task(_cancelled: Cancelled) -> None:
            found, _ = own.field(pin["y"], pin["x"])
            with self.app.lock:
                if self._asked == asked:
                    self.field = found

        self.app.jobs.later("field", task)

    # ── the region

    def _look_inside(self) -> None:
        """Has each layer's channels compared inside and outside the region."""
        region = list(self.app.region)
        runs = [f.run for f in self.app.results.all_fresh() if f.run is not None]
        asked = (region, runs, [card.key for card in self.app.gallery.shown_cards])
        if not region:
            self._asked_region, self.inside = (), []
            return
        if self._asked_region == asked:
            return
        self._asked_region = asked

        def task(cancelled: Cancelled) -> None:
            found = []
            for card in list(self.app.gallery.shown_cards):
                if card.stale or cancelled():
                    continue
                try:
                    shown = self.app.pointing.shown(card.key)
                    if shown is not None and shown.on_image:
                        found.append(_inside_of(shown, region, self._counts.get(card.key, _FIRST)))
                except HookvizError as error:
                    fault = {"message": error.message, "code": error.code}
                    found.append({"key": card.key, "label": card.layer, "bars": [], **fault})
            with self.app.lock:
                if self._asked_region == asked:
                    self.inside = found

        self.app.jobs.later("region", task)

    # ── the photo

    def _show_photo(self, own: Shown | None) -> None:
        """Sends the photo of the run that the place is of, or of the region, where it is new."""
        picture = own.run.image if own is not None else self.app.image if self.region else None
        if picture is None:
            self.photo = []
        elif picture is not self._picture:
            self._send_photo(picture)
        if picture is not None:
            self.photo = list(picture.size)
        self._picture = picture

    def _send_photo(self, picture: Any) -> None:
        self.send({"type": "photo"}, buffers=[jpeg_bytes(picture.image, _THUMBNAIL)])

    def _ask_photo(self) -> None:
        if self._picture is not None:
            self._send_photo(self._picture)

    def handlers(self) -> Handlers:
        """What the page asks."""
        return {
            **super().handlers(),
            "photo": self._ask_photo,
            "more": self._show_more,
            "show": self._show_channel,
            "open-channel": self.app.pointing.open,
            "unpin": self.app.pointing.unpin,
            "no-region": self.app.pointing.unmark,
        }


def _real(value: Any) -> float | None:
    """A value as a bar can show it: of complex ones the magnitude; None for what is not finite."""
    number = abs(value) if isinstance(value, complex) else float(value)
    return number if abs(number) < float("inf") else None


def _share(number: float | None, largest: float) -> float:
    return 0.0 if number is None or not largest else number / largest


def _inside_of(shown: Shown, region: list[int], count: int) -> dict[str, Any]:
    """One layer's channels by how much more they answer in a region, as the page shows them."""
    found = shown.run.channels_in(shown.card.layer, region, **shown.where)
    first = found.order[:count]
    numbers = [_real(found.difference[c].item()) for c in first]
    largest = max((abs(n) for n in numbers if n is not None), default=0.0)
    return {
        "key": shown.card.key,
        "label": found.layer,
        "of": len(found.order),
        "places": int(found.places.sum()),
        "note": found.note,
        "bars": [
            [
                c,
                f"{found.inside[c].item():.4g} / {found.outside[c].item():.4g}",
                _share(n, largest),
            ]
            for c, n in zip(first, numbers, strict=True)
        ],
    }
