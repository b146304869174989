"""Pointing: which place of which map the user means, and what stands there.

Two rules. Values come from the captured tensor, by `Run.values_around`, never from colors; the page
gets them as the shortest decimal that is that value in the tensor's dtype, those around a place
along with it, so that the next one is said at once. And a place of one layer is, in another layer
and on the photo, the one whose center in the network's input is nearest (`Run.centers`, as
`Run.place_at` has it); the page knows the centers (``App.centers``) and finds it by itself.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hookviz.activation import Activation
from hookviz.errors import HookvizError, LayerError
from hookviz.render import GridOptions, arrange
from hookviz.run import ChannelSummary, ChannelVector, ReceptiveField, Run
from hookviz.widget._app import App
from hookviz.widget._cards import Card
from hookviz.widget._part import Handlers
from hookviz.widget._worker import Cancelled

_PLACES, _VALUES = 576, 73_728
"""For how many places around one it is answered, too, at most; and of how many values, those of all
channels together, their ranks are found: about a millisecond's work."""
READ_BY = ("sample", "frame", "axes", "grid")
"""The drawing options that say which map and place of a tensor is meant."""


def exact_text(value: Tensor) -> str:
    """A value as the shortest decimal that is no other value of its dtype.

    Args:
        value: Of one element.

    Examples:
        >>> exact_text(torch.tensor(0.1)), exact_text(torch.tensor(0.1, dtype=torch.float64))
        ('0.1', '0.1')
        >>> exact_text(torch.tensor(1 / 3)), exact_text(torch.tensor(True))
        ('0.33333334', '1')
    """
    number = value.item()
    if isinstance(number, (bool, int)):
        return str(int(number))
    if isinstance(number, complex):
        return str(number).strip("()")
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "+Inf" if number > 0 else "-Inf"
    if value.dtype == torch.float64:
        return repr(number)
    return str(np.float16(number) if value.dtype == torch.float16 else np.float32(number))


Centers: TypeAlias = tuple[Tensor, Tensor]
"""Of rows and of columns, in pixels of the network's input."""


def nearest(place: tuple[int, int], centers: Centers, others: Centers) -> tuple[int, int]:
    """The place of another layer whose center is nearest to that of a place.

    Args:
        place: Row and column.
        centers: Those of its layer.
        others: Those of the other layer.

    Examples:
        >>> fine, coarse = torch.arange(4) + 0.5, torch.tensor([1.0, 3.0])
        >>> nearest((3, 1), (fine, fine), (coarse, coarse))
        (1, 0)
    """
    y, x = (
        int((other - own[index]).abs().argmin())
        for index, own, other in zip(place, centers, others, strict=True)
    )
    return y, x


def _as_numbers(centers: Tensor) -> list[float] | dict[str, float]:
    """Centers as the page gets them: start, step and count where they are regular."""
    numbers = [float(c) for c in centers]
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 0.0
    if all(n == numbers[0] + i * step for i, n in enumerate(numbers)):
        return {"start": numbers[0], "step": step, "count": len(numbers)}
    return numbers


@dataclass(frozen=True, eq=False)
class Shown:
    """What a card shows, as a run that can be asked.

    Attributes:
        card: The card.
        run: Its run, with the tensors that are kept of it.
        size: (rows, columns) of one map.
        channels: How many maps there are.
        on_image: Whether a place of a map is a place of the image.
        how: How its axes are read, as `Run.vector` takes it.
    """

    card: Card
    run: Run
    size: tuple[int, int]
    channels: int
    on_image: bool
    how: dict[str, Any]

    @property
    def where(self) -> dict[str, Any]:
        """What names the tensor, as `Run.vector` takes it."""
        return {"call": self.card.call, "leaf": self.card.leaf or None, **self.how}

    @property
    def activation(self) -> Activation:
        """The tensor."""
        return self.run.select(self.card.layer, self.card.call, self.card.leaf or None)

    @property
    def label(self) -> str:
        """The layer, with call and leaf where there are several."""
        return self.activation.label

    def vector(self, y: int, x: int) -> ChannelVector:
        """All channels at a place; see `Run.vector`."""
        return self.run.vector(self.card.layer, y, x, **self.where)

    def summary(self, channel: int) -> ChannelSummary:
        """One channel; see `Run.channel`."""
        return self.run.channel(self.card.layer, channel, **self.where)

    def field(self, y: int, x: int) -> tuple[dict[str, Any], ReceptiveField | None]:
        """A receptive field as the page describes it, and itself; None where it is not known."""
        try:
            field = self.run.receptive_field(self.card.layer, y, x, **self.where)
        except HookvizError as error:
            return {"state": "none", "message": error.message, "code": error.code}, None
        described = {
            "state": "known",
            "size": list(field.size),
            "box": field.image_box and list(field.image_box),
            "beyond": list(field.beyond),
            "whole": field.whole,
            "note": field.note,
            "picture": list(field.image_size),
        }
        return described, field


class Pointing:
    """Answers where the page points, and keeps what is pinned.

    The app's traits ``pin``, ``region``, ``channel`` and ``centers`` are the state; they change
    here alone.

    Args:
        app: The app.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._image: Any = None
        self._asked = False
        self._wanted: dict[str, Any] | None = None
        self._wanted_region: list[int] = []
        self._centers: dict[str, tuple[Any, Centers | None, Any]] = {}

    def handlers(self) -> Handlers:
        """What the page asks."""
        return {
            "point": self._answer,
            "point-photo": self._answer_photo,
            "pin": self.pin,
            "open-channel": self.open,
            "unpin": self.unpin,
            "region": self.mark,
            "no-region": self.unmark,
        }

    def shown(self, key: str) -> Shown | None:
        """What a card shows; None where it shows nothing, or its run is not over.

        Raises:
            HookvizError: Its values cannot be read as maps.
        """
        card, results = self._app.gallery.card(key), self._app.results
        found = results.get(card.layer) if card is not None else None
        if card is None or card.activation is None or found is None or found.run is None:
            return None
        same = [a for f in list(results.values()) if f.run is found.run for a in f.activations]
        run = replace(found.run, activations=tuple(same))
        options = card.drawn or self._app.gallery.options
        how = {name: getattr(options, name) for name in READ_BY}
        height, width = run.input.tensor.shape[-2:]
        read = arrange(card.activation, GridOptions(**how), (int(height), int(width)))
        channels, (rows, columns) = read.maps.shape[0], read.maps.shape[-2:]
        on_image = read.figure_kind.on_image and not read.part
        return Shown(card, run, (int(rows), int(columns)), int(channels), on_image, how)

    # ── which places belong together

    def _reading(self, card: Card) -> Any:
        """What a card's centers depend on; None where its run is not over."""
        found, options = self._app.results.get(card.layer), self._app.gallery.options
        if card.activation is None or found is None or found.run is None:
            return None
        of = (id(found.run.model.module), found.run.input.tensor.shape, card.activation.shape)
        return (*of, card.leaf, *(getattr(options, name) for name in READ_BY))

    def centers(self, card: Card) -> Centers | None:
        """Where a card's places lie; None while that is not known, or they are none of the image.

        The first time that they are asked for they are found out on the app's thread (a second or
        two for a model); then the app's trait ``centers`` has them, and its panels are refreshed.
        """
        return self._centers[card.key][1] if self._is_known(card) else None

    def _is_known(self, card: Card) -> bool:
        known = self._centers.get(card.key)
        return known is not None and known[0] == self._reading(card)

    def find_centers(self) -> None:
        """Has the centers found out that are not known; see `centers`."""
        self._asked = True
        cards = [c for c in self._app.gallery.shown_cards if self._reading(c) is not None]
        if all(map(self._is_known, cards)):
            self._publish_centers()
        else:
            self._app.jobs.later("centers", self._find_centers)

    def _find_centers(self, cancelled: Cancelled) -> None:
        for card in self._app.gallery.shown_cards:
            reading = self._reading(card)
            if reading is None or self._is_known(card):
                continue
            if cancelled():
                self._app.jobs.later("centers", self._find_centers)  # after the run
                return
            found, numbers = None, None
            # Where it cannot be read as maps, its card says so.
            with contextlib.suppress(HookvizError):
                if shown := self.shown(card.key):
                    found = shown.run.centers(card.layer, **shown.where)
                    numbers = [_as_numbers(axis) for axis in found]
            self._centers[card.key] = (reading, found, numbers)
        with self._app.lock:
            self._publish_centers()
            self._app.refresh_panels()

    def _publish_centers(self) -> None:
        known = [c.key for c in self._app.gallery.shown_cards if self._is_known(c)]
        self._centers = {key: self._centers[key] for key in known}
        self._app.centers = {
            key: numbers for key, (_, _, numbers) in self._centers.items() if numbers
        }

    # ── while the pointer moves

    def _answer(self, ask: int, key: str, version: int, channel: int, y: int, x: int) -> None:
        """Says what stands at a place; nothing where the page has an older picture."""
        answer: dict[str, Any] = {"type": "pointed", "ask": ask, "key": key}
        answer |= {"version": version, "channel": channel, "y": y, "x": x}
        card = self._app.gallery.card(key)
        try:
            drawn = card is not None and (card.drawn is not None or key == self._opened)
            if card is not None and card.version == version and drawn:
                answer |= self._facts(key, channel, y, x, around=True)
        except HookvizError:
            pass  # the picture has changed since: the page will ask again
        finally:
            self._app.send(answer)
        if not self._asked:
            self.find_centers()

    def _facts(
        self, key: str, channel: int, y: int, x: int, *, around: bool = False
    ) -> dict[str, Any]:
        """What stands at a place; with what stands around it, row by row."""
        shown = self.shown(key)
        if shown is None:
            return {}
        own = shown.card.activation
        most = min(_VALUES, _PLACES * shown.channels) if around else 1
        found = shown.run.values_around(shown.card.layer, channel, y, x, most=most, **shown.where)
        values = [exact_text(value) for value in found.values.cpu().flatten()]
        ranks = [rank or None for rank in found.ranks.flatten().tolist()]
        rows, columns = found.values.shape
        at = (y - found.top) * columns + x - found.left
        facts = {
            "value": values[at],
            "rank": ranks[at],
            "of": shown.channels,
            "rows": shown.size[0],
            "cols": shown.size[1],
            "image": shown.on_image,
            "label": "" if own is None else own.label,
        }
        if around:
            box = {"y": found.top, "x": found.left, "rows": rows, "cols": columns}
            facts["around"] = {**box, "values": values, "ranks": ranks}
        return facts

    def _answer_photo(self, ask: int, which: str, y: int, x: int) -> None:
        """Says what a pixel is: red, green and blue of the photo, or what the network is given."""
        answer: dict[str, Any] = {"type": "pointed", "ask": ask, "which": which, "y": y, "x": x}
        try:
            picture, run = self._app.image, self._latest()
            if which == "original" and picture is not None:
                width, height = picture.size
                if 0 <= y < height and 0 <= x < width:
                    answer["values"] = [str(v) for v in picture.image.getpixel((x, y))]
            elif which == "seen" and run is not None and min(y, x) >= 0:
                answer["values"] = [exact_text(v) for v in run.input.tensor[0, :, y, x]]
        except (HookvizError, IndexError):
            pass  # another picture has come
        finally:
            self._app.send(answer)
        if not self._asked:
            self.find_centers()

    def _latest(self) -> Run | None:
        """The last run over the present photo, without tensors."""
        runs = [found.run for found in self._app.results.all_fresh() if found.run is not None]
        return runs[-1] if runs else None

    # ── what is pinned

    def pin(self, key: str, channel: int, y: int, x: int) -> None:
        """Pins a place.

        Raises:
            HookvizError: There is no such place; the one before stays.
        """
        with self._app.lock:
            self._app.pin = self._pinned(key, channel, y, x)
            self.find_centers()

    def _pinned(self, key: str, channel: int, y: int, x: int) -> dict[str, Any]:
        facts = self._facts(key, channel, y, x)
        if not facts:
            raise LayerError(f"'{key}' shows nothing that a place can be pinned on.")
        return {"key": key, "channel": channel, "y": y, "x": x, **facts}

    @property
    def _opened(self) -> str:
        """The card whose channel has a page, which has a picture of its own; "" for none."""
        key: str = self._app.channel.get("key", "")
        return key

    def open(self, key: str, channel: int) -> None:
        """Opens a channel's page.

        Raises:
            HookvizError: There is no such channel; the one before stays.
        """
        with self._app.lock:
            shown = self.shown(key)
            if shown is None:
                raise LayerError(f"'{key}' shows nothing whose channel could be opened.")
            if not 0 <= channel < shown.channels:
                last = shown.channels - 1
                raise LayerError(
                    f"'{key}' has no channel {channel}; legal are 0 to {last}.",
                    code="no-such-channel",
                    details={"channel": channel, "last": last, "noun": "channel"},
                )
            self._app.channel = {"key": key, "channel": channel}
        self._app.send({"type": "show-panel", "panel": "channel"})

    def unpin(self) -> None:
        """Takes the pin away."""
        with self._app.lock:
            self._app.pin = {}

    def mark(self, left: int, top: int, right: int, bottom: int) -> None:
        """Marks a region of the photo, in its pixels, right and bottom past the last one.

        Raises:
            HookvizError: It holds no pixel of the photo; the one before stays.
        """
        with self._app.lock:
            width, height = self._app.image.size if self._app.image is not None else (0, 0)
            left, top = max(0, left), max(0, top)
            right, bottom = min(width, right), min(height, bottom)
            if left >= right or top >= bottom:
                raise HookvizError("The region holds no pixel of the photo.")
            self._image = self._app.image
            self._app.region = [left, top, right, bottom]

    def unmark(self) -> None:
        """Takes the region away."""
        with self._app.lock:
            self._app.region = []

    def want(self, pin: dict[str, Any] | None, region: list[int]) -> None:
        """Has a place pinned and a region marked once there is a run, and a photo, that has them.

        Args:
            pin: As arguments of `pin`; None for none.
            region: As arguments of `mark`; [] for none.
        """
        with self._app.lock:
            self._wanted, self._wanted_region = pin, region
            self._take_wanted()

    def _take_wanted(self) -> None:
        app = self._app
        region = self._wanted_region
        if region and app.image is not None:
            self._wanted_region = []
            with contextlib.suppress(HookvizError):  # another photo
                self.mark(*region)
        wanted = self._wanted
        card = app.gallery.card(wanted["key"]) if wanted else None
        found = app.results.get(card.layer) if card is not None else None
        if wanted and found is not None and found.run is not None:
            self._wanted = None
            with contextlib.suppress(HookvizError):  # the place is there no more
                self.pin(**wanted)

    def refresh(self) -> None:
        """Brings pin and region up to what is there; they go with what they were set on."""
        app = self._app
        opened = app.gallery.card(self._opened) if app.channel else None
        if opened is None or opened.activation is None:
            app.channel = {}
        self._take_wanted()
        pin = app.pin
        card = app.gallery.card(pin["key"]) if pin else None
        if card is None or card.activation is None:
            app.pin = {}
        else:
            try:
                found = app.results.get(card.layer)
                if found is not None and found.run is None:  # its run goes on
                    app.pin = {**pin, "value": "", "rank": None}
                else:
                    app.pin = self._pinned(pin["key"], pin["channel"], pin["y"], pin["x"])
            except HookvizError:
                app.pin = {}
        if app.region and app.image is not self._image:
            app.region = []
        if self._asked:
            self.find_centers()
        run = self._latest()
        if run is None or run.input.box is None:
            app.photo = {}
        else:
            width, height = run.image.size
            left, top, right, bottom = run.input.box
            rows, columns = run.input.tensor.shape[-2:]
            app.photo = {
                "size": [width, height],
                "crop": [left / width, top / height, right / width, bottom / height],
                "seen": [int(columns), int(rows)],
            }
