"""The panel "What if": parts of the model are changed, and what that does to its answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import traitlets

from hookviz.capture import Edit, edit, edit_from_json, parts_of, select_layers
from hookviz.errors import HookvizError, RunCancelled
from hookviz.explanation import Progress, Sweep, effect_on, sweep, wanted_targets
from hookviz.images import MAX_BYTES, Picture, read_image, sample_image, sample_images
from hookviz.models import LoadedModel, classes_in, predictions
from hookviz.render import parse_channels
from hookviz.run import ImageEdit, Run, patch_from, run_model
from hookviz.widget._app import Panel
from hookviz.widget._as_python import sample_named
from hookviz.widget._bundle import built
from hookviz.widget._part import Handlers
from hookviz.widget._upload import TakesFiles
from hookviz.widget._worker import Cancelled

_CLASSES = 5
_RANKED = 20
_MOST_EDITS = 100
_OTHER_IMAGE = "other_image"
_KINDS = ("zero", "scale", "replace_by_mean", "replace_by_noise", _OTHER_IMAGE)
_PHOTO_BYTES = 50_000_000
"""Of photos that are kept to take a layer's value from, pixels and files; the oldest go first."""
_LARGEST_FACTOR = 1000.0


@dataclass(frozen=True, eq=False)
class _Choice:
    """One edit of the list.

    Attributes:
        edit: The edit.
        on: Whether it is switched on.
        factor: Of those that scale, what by, to make them anew with another one; else None.
    """

    edit: Edit
    on: bool = True
    factor: float | None = None

    @classmethod
    def of(cls, edit: Edit, *, on: bool = True) -> _Choice:
        """An edit from elsewhere."""
        factor = (edit.recipe or {}).get("factor")
        return cls(edit, on, factor if isinstance(factor, float) else None)


class WhatIf(Panel, TakesFiles):
    """A list of edits, the predictions without and with them, and a ranking of channels.

    Attributes:
        edits: The edits in the order in which they are made: ``text``, ``on``, and ``factor`` of
            those that scale, else None.
        run_edited: Whether the app's runs are made with the edits, so that all that it shows is of
            the edited model; else they are tried here alone.
        layer: The layer that the fields propose: that of the card in use.
        layers: All layers, for the field to choose from.
        parts: What can be named of the layer in the field: ``layer``, the number of its
            ``channels`` and ``heads``, and ``places`` along each axis; 0 and [] where not known.
        pinned: The place that is pinned: ``layer``, ``channel``, ``y``, ``x``; {} for none.
        target: What the effect is read from, as it was typed; "" is the likeliest class.
        undoable: How many steps can be undone.
        why_not: Why nothing can be tried now, in words; "" where something can.
        found: The last answer: ``effect`` (a sentence), ``classes`` ([name, before, after] as
            shares of 1), ``reason`` where there are no classes, ``stale``; {} for none.
        ranking: The last sweep: ``title``, ``rows`` ([channel, effect, share of the largest]),
            ``of`` (how many channels), ``layer``, ``edited`` (whether there were edits, which
            are not in it), ``stale``; {} for none.
        images: The images that a layer's value can be taken from, each with its key and its name:
            photos of this session, then the samples.
    """

    title = "What if"

    _esm = built("panel_whatif.min.js")
    _css = built("panel_whatif.min.css")

    edits: traitlets.List[Any] = traitlets.List().tag(sync=True)
    run_edited = traitlets.Bool(False).tag(sync=True)
    layer = traitlets.Unicode().tag(sync=True)
    layers: traitlets.List[Any] = traitlets.List().tag(sync=True)
    parts = traitlets.Dict().tag(sync=True)
    pinned = traitlets.Dict().tag(sync=True)
    target = traitlets.Unicode().tag(sync=True)
    undoable = traitlets.Int().tag(sync=True)
    why_not = traitlets.Unicode().tag(sync=True)
    found = traitlets.Dict().tag(sync=True)
    ranking = traitlets.Dict().tag(sync=True)
    images: traitlets.List[Any] = traitlets.List([[n, n] for n in sample_images()]).tag(sync=True)
    max_bytes = traitlets.Int(MAX_BYTES).tag(sync=True)

    def __init__(self, app: Any, **traits: Any) -> None:
        self._choices: list[_Choice] = []
        self._before: list[list[_Choice]] = []
        self._of: tuple[Any, Any] = (None, None)
        self._sweep: Sweep | None = None
        self._handed: tuple[Edit, ...] = ()
        self._handing = False
        self._photos: dict[str, Picture] = {}
        super().__init__(app, **traits)

    def refresh(self) -> None:
        """See `Panel`."""
        with self.app.lock:
            model, image = self.app.model, self.app.image
            of = self._of[0]
            if of is not None and (model is None or of.module is not model.module):
                # Edits name the layers of their model.
                self._of, self._sweep = (None, None), None
                self._choices, self._before = [], []
                self.found, self.ranking = {}, {}
                self._publish()
            if self.app.edits != self._handed and not self._handing:
                self._take(self.app.edits)
            if image is not None:
                self._note(image)
            stale = self._of[1] is not image
            for name in ("found", "ranking"):
                if shown := getattr(self, name):
                    setattr(self, name, {**shown, "stale": stale})
            card = self.app.gallery.current
            self.layer = card.layer if card is not None else ""
            self.layers = [name for name in self.app.tree.names if name]
            pin = self.app.pin
            self.pinned = (
                {
                    "layer": pin["key"].rpartition("#")[0],
                    **{n: pin[n] for n in ("channel", "y", "x")},
                }
                if pin
                else {}
            )
            self._tell_parts(self.parts.get("layer") or self.layer)
            self.why_not = (
                "Choose a model." if model is None else "Choose an image." if image is None else ""
            )

    def close(self) -> None:
        """Takes the panel away and lets go of what it held."""
        super().close()
        self._choices, self._before, self._sweep = [], [], None
        self._of, self._handed, self._photos = (None, None), (), {}
        self.edits, self.found, self.ranking = [], {}, {}
        self.run_edited = False

    @property
    def chosen(self) -> tuple[Edit, ...]:
        """The edits that are switched on, as ``feature_maps(…, edits=…)`` takes them."""
        return tuple(choice.edit for choice in self._choices if choice.on)

    # ── the list

    def _publish(self) -> None:
        self.edits = [{"text": str(c.edit), "on": c.on, "factor": c.factor} for c in self._choices]
        self.undoable = len(self._before)

    @property
    def choices(self) -> tuple[tuple[Edit, bool], ...]:
        """All edits of the list, each with whether it is switched on."""
        return tuple((choice.edit, choice.on) for choice in self._choices)

    def restore(self, choices: Iterable[tuple[Edit, bool]], *, run_edited: bool) -> None:
        """Takes a list of edits, as `choices` gave it.

        Raises:
            HookvizError: The model has no such layer, or the layer no such heads.
        """
        with self.app.lock:
            given = [_Choice.of(one, on=on) for one, on in choices]
            edit(self.app.model.module, *(choice.edit for choice in given))
            for one in given:
                if isinstance(one.edit, ImageEdit):
                    self._note(one.edit.image)
            self._of = (self.app.model, self._of[1])
            self.run_edited = run_edited and bool(given)
            self._set(given)

    def _take(self, edits: tuple[Edit, ...]) -> None:
        """Shows what was set elsewhere: by a cell, by a run that was made there."""
        self._handed = edits
        self.run_edited = bool(edits)
        if edits != self.chosen:
            self._of = (self.app.model, self._of[1])
            self._set([_Choice.of(one) for one in edits])

    def _hand_on(self) -> None:
        """Has runs made with the edits, or without."""
        self._handing = True
        try:
            self.app.edits = self.chosen if self.run_edited else ()
        finally:
            self._handing, self._handed = False, self.app.edits

    def _run_with(self, on: bool) -> None:
        with self.app.lock:
            self.run_edited = on
            self._hand_on()

    def _set(self, choices: list[_Choice], *, remember: bool = True) -> None:
        if remember:
            self._before = [*self._before, self._choices][-_MOST_EDITS:]
        self._choices = choices
        self.alert = {}
        self._publish()
        self._hand_on()
        self._try()

    def _add(
        self,
        what: str,
        layer: str,
        channels: str = "",
        place: str = "",
        heads: str = "",
        factor: float = 0.5,
        image: str = "",
    ) -> None:
        """Adds an edit; what does not suit is said at the fields."""
        try:
            if self.app.model is None:
                raise HookvizError("Choose a model first.")
            if len(self._choices) >= _MOST_EDITS:
                raise HookvizError(f"The list holds {_MOST_EDITS} edits at most.")
            record = _record(what, layer, channels, place, heads, factor)
            other = self._image(image) if what == _OTHER_IMAGE else None
            made = _edit_of(self.app.model, record, other)
            choice = _Choice(made, True, record.get("factor"))
        except HookvizError as error:
            self.show_problem(error, field="edit")
            return
        with self.app.lock:
            self._of = (self.app.model, self._of[1])
            self._set([*self._choices, choice])

    def _at(self, index: int) -> _Choice:
        if not 0 <= index < len(self._choices):
            raise HookvizError(f"There is no edit {index}; there are {len(self._choices)}.")
        return self._choices[index]

    def _with(self, index: int, *new: _Choice) -> list[_Choice]:
        return [*self._choices[:index], *new, *self._choices[index + 1 :]]

    def _switch(self, index: int, on: bool) -> None:
        with self.app.lock:
            self._set(self._with(index, replace(self._at(index), on=on)))

    def _rescale(self, index: int, factor: float) -> None:
        with self.app.lock:
            choice = self._at(index)
            if choice.factor is None or not abs(factor) <= _LARGEST_FACTOR:
                raise HookvizError(f"The edit '{choice.edit}' cannot have the factor {factor:g}.")
            record = {**choice.edit.to_json(), "edit": "scale", "factor": factor}
            made = replace(choice, edit=edit_from_json(record), factor=factor)
            self._set(self._with(index, made))

    def _remove(self, index: int) -> None:
        with self.app.lock:
            self._at(index)
            self._set(self._with(index))

    def _move(self, index: int, to: int) -> None:
        with self.app.lock:
            choice = self._at(index)
            self._at(to)
            rest = self._with(index)
            self._set([*rest[:to], choice, *rest[to:]])

    def _undo(self) -> None:
        with self.app.lock:
            if self._before:
                *self._before, choices = self._before
                self._set(choices, remember=False)

    def _tell_parts(self, layer: str) -> None:
        """Tells what can be named of a layer."""
        model, layer = self.app.model, layer.strip()
        known: dict[str, Any] = {"channels": 0, "places": [], "heads": 0}
        if model is not None and layer in self.layers:
            run, foreseen = self.app.run, self.app.running.shapes
            ran = (
                {a.layer: a.shape for a in reversed(run.activations) if a.kind == "output"}
                if run is not None and run.image is self.app.image
                else {}
            )
            shape = ran.get(layer) or foreseen.get(layer, ())
            channels, places, heads = parts_of(model.module, layer, shape)
            # What a run found out is truer: then nothing is said of places that were foreseen.
            if layer not in ran and any(foreseen.get(n) != found for n, found in ran.items()):
                places = ()
            known = {"channels": channels, "places": list(places), "heads": heads}
        self.parts = {"layer": layer, **known}

    # ── other images

    def _note(self, picture: Picture) -> None:
        """Keeps a photo of this session, so that a layer's value for it can be had."""
        if not sample_named(picture):  # the samples are at hand without being kept
            if next(reversed(self._photos), None) == picture.sha256:
                return
            self._photos.pop(picture.sha256, None)
            self._photos[picture.sha256] = picture
            while sum(map(_bytes, self._photos.values())) > _PHOTO_BYTES and len(self._photos) > 1:
                del self._photos[next(iter(self._photos))]
        photos = reversed(self._photos.values())
        samples = [[name, name] for name in sample_images()]
        self.images = [*([one.sha256, one.name] for one in photos), *samples]

    def _image(self, key: str) -> Picture:
        """The image that the page names.

        Raises:
            HookvizError: There is none.
        """
        if key in self._photos:
            return self._photos[key]
        if key not in sample_images():
            raise HookvizError("That image is not there any more: choose another one.")
        return sample_image(key)

    def take_file(self, name: str, data: bytes, upload: str) -> None:
        """Takes a photo that the page sends, for edits alone."""

        def read(_cancelled: Cancelled) -> None:
            try:
                with self.refusing(upload):
                    picture = read_image(data, name=name, max_bytes=self.max_bytes)
            except HookvizError as error:
                self.show_problem(error, field="edit")
                return
            with self.app.lock:
                self.alert = {}
                self._note(picture)
            self.send({"type": "upload-done", "id": upload, "image": picture.sha256})

        self.app.jobs.later(f"photo {upload}", read)

    # ── the answer

    def _set_target(self, target: str) -> None:
        with self.app.lock:
            self.target = " ".join(target.split())
            self.alert = {}
            self._try()

    def _try(self) -> None:
        """Has the model run without and with the edits, once the present job is done."""
        if self.why_not or not self._choices:
            self.found = {}
            return
        app, target, edits = self.app, self.target, self.chosen
        model, image, how = app.model, app.image, app.image_input.preprocessing

        def task(cancelled: Cancelled) -> None:
            try:
                with app.jobs.turn:  # edits act in all threads, on live frames as well
                    found = _answer(model, image, how, target, edits, cancelled)
            except RunCancelled:
                return
            except HookvizError as error:
                if (app.model, self.target) == (model, target):
                    self.show_problem(error, field="target")
                return
            with app.lock:
                if (app.model, self.chosen, self.target) == (model, edits, target):
                    self._of = (model, image)
                    self.found = {**found, "stale": app.image is not image}

        self.app.jobs.later("what-if", task)

    def _compare_maps(self) -> None:
        """Shows the ticked layers without and with the edits in Compare."""
        app, edits = self.app, self.chosen
        if self.why_not or not edits:
            raise HookvizError(self.why_not or "Switch an edit on first.")
        if not app.tree.selected:
            raise HookvizError("Tick the layers that are to be compared.")
        model, image, how = app.model, app.image, app.image_input.preprocessing
        layers = list(app.tree.selected)

        def task(cancelled: Cancelled) -> None:
            run = partial(run_model, model, image, layers, preprocess=how, cancelled=cancelled)
            try:
                before, after = run(), run(edits=edits)
            except RunCancelled:
                app.end("Cancelled.", "cancelled")
                return
            app.compare(before, after, titles=("before", "after"))
            app.end("Before and after stand in Compare.")

        app.clear_problem()
        app.begin("running", "Running before and after …", task)

    # ── the ranking

    def _rank(self, layer: str) -> None:
        """Ranks a layer's channels by what the target loses or wins without each."""
        app, target = self.app, self.target
        if self.why_not:
            raise HookvizError(self.why_not)
        model, image, how = app.model, app.image, app.image_input.preprocessing

        def work(progress: Progress, cancelled: Cancelled) -> str:
            found = sweep(
                model,
                image,
                layer,
                target=target or None,
                preprocess=how,
                progress=progress,
                cancelled=cancelled,
            )
            with app.lock:
                if app.model is model:
                    self._sweep, self._of = found, (model, image)
                    stale, edited = app.image is not image, bool(self.chosen)
                    self.ranking = {**_ranking(found), "stale": stale, "edited": edited}
            return f"{len(found.order)} channels ranked."

        self.compute(f"Ranking the channels of {layer}", "channels", work, field="target")

    def _send_table(self) -> None:
        if self._sweep is None:
            raise HookvizError("No channels were ranked yet.")
        name = re.sub(r"\W+", "_", self._sweep.layer or "model").strip("_")
        self.send({"type": "table", "name": f"effects_{name}.csv", "text": self._sweep.to_csv()})

    def handlers(self) -> Handlers:
        """What the page asks."""
        return {
            **super().handlers(),
            "add": self._add,
            "layer": self._tell_parts,
            "switch": self._switch,
            "factor": self._rescale,
            "remove": self._remove,
            "move": self._move,
            "undo": self._undo,
            "run-edited": self._run_with,
            "target": self._set_target,
            "compare": self._compare_maps,
            "rank": self._rank,
            "table": self._send_table,
        }


def _record(
    kind: str, layer: str, channels: str, place: str, heads: str, factor: float
) -> dict[str, Any]:
    """What the page's fields describe, as `edit_from_json` reads it.

    Raises:
        HookvizError: A field cannot be read.
    """
    if kind not in _KINDS:
        raise HookvizError(f"There is no edit {kind!r:.80}.")
    record: dict[str, Any] = {"edit": kind, "layers": [layer.strip()]}
    if channels.strip():
        record["channels"] = list(parse_channels(channels))
    if heads.strip():
        record["heads"] = list(parse_channels(heads, "heads"))
    if place.strip():
        numbers = [part.strip() for part in place.split(",")]
        if not all(part.isdecimal() for part in numbers):
            raise HookvizError(f"The place is {place!r:.40}; write a row and a column: 5, 7.")
        record["place"] = [int(part) for part in numbers]
        if len(numbers) == 1:
            record["place"] = int(numbers[0])
    if kind == "scale":
        if not abs(factor) <= _LARGEST_FACTOR:
            raise HookvizError(f"The factor is {factor:g}; it must be a number up to 1000.")
        record["factor"] = factor
    if kind == "replace_by_noise":
        record["seed"] = 0
    return record


def _edit_of(model: LoadedModel, record: dict[str, Any], other: Picture | None) -> Edit:
    """The edit of a record.

    Args:
        model: The model.
        record: What the fields describe.
        other: The image whose value is taken; None where the edit takes none.

    Raises:
        HookvizError: The model has no such layer, or the layer no such part.
    """
    select_layers(model.module, record["layers"])
    if other is None:
        return edit_from_json(record)
    parts = {name: record[name] for name in ("channels", "heads", "place") if name in record}
    if isinstance(parts.get("place"), list):
        parts["place"] = tuple(parts["place"])
    made: Callable[..., Edit] = patch_from
    return made(other, record["layers"], **parts)


def _bytes(picture: Picture) -> int:
    return 3 * picture.size[0] * picture.size[1] + len(picture.data)


def _answer(
    model: LoadedModel,
    image: Picture,
    how: Any,
    target: str,
    edits: tuple[Edit, ...],
    cancelled: Cancelled,
) -> dict[str, Any]:
    """The model's answer without and with edits, as the page shows it."""
    (wanted,) = wanted_targets(model, target or None)
    layers = ["" if wanted.layer is None else wanted.layer]
    run = partial(
        run_model, model, image, layers, preprocess=how, cancelled=cancelled, find_axes=False
    )
    before: Run = run()
    after: Run = run(edits=edits)
    count = max(1, classes_in(model, before.output))
    shares = [
        {index: (name, share) for index, name, share in predictions(model, r.output, count).items}
        for r in (before, after)
    ]
    reason, effect, problem = before.predictions.reason, "", ""
    first = dict.fromkeys([*list(shares[0])[:_CLASSES], *list(shares[1])[:_CLASSES]])
    try:
        effect = str(effect_on(before, after, target or None))
    except HookvizError as error:
        if target:
            raise
        problem = error.message  # no classifier, and nothing else was asked for
    return {
        "effect": effect,
        "classes": [[shares[0][i][0], shares[0][i][1], shares[1][i][1]] for i in first],
        "reason": reason or problem,
    }


def _ranking(found: Sweep) -> dict[str, Any]:
    """A sweep as the page shows it."""
    top = found.top(_RANKED)
    largest = max((abs(effect) for _, effect in top), default=0.0)
    return {
        "title": f"{found.layer or '(model)'}: without each channel, {found.target}",
        "layer": found.layer,
        "of": len(found.order),
        "rows": [
            [channel, f"{effect:+.4g}".replace("-", "−"), effect / largest if largest else 0.0]
            for channel, effect in top
        ],
    }
