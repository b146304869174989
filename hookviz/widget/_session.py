"""The session file: the app's choices as JSON, and an app made of them again.

It holds choices, no tensors: how the model is loaded, the image (by its path where it has one, else
its bytes), preprocessing, layers, edits and view. A file may come from anybody: it is checked in
whole before anything of it is used, it names files to be read only, and weights are loaded by
`load_model`, which unpickles nothing.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from hookviz._text import bytes_text
from hookviz.capture import Edit
from hookviz.errors import CaptureError, ExportError, HookvizError, ImageError
from hookviz.images import MAX_BYTES, Picture, Preprocessing, read_image, sample_image
from hookviz.models import LoadedModel, load_model
from hookviz.render import GridOptions
from hookviz.run import ImageEdit, edits_from_json
from hookviz.version import __version__
from hookviz.widget._app import App
from hookviz.widget._as_python import (
    changed_from_default,
    is_pixels,
    load_arguments,
    named_model,
    own_preprocessing,
    sample_named,
)
from hookviz.widget._choosing import available_devices
from hookviz.widget._image_input import PREPROCESSING_CHOICES, check_own

SUFFIX = ".hookviz.json"
_FORMAT = 1
_MOST_BYTES = 2 * MAX_BYTES
"""Of a file: an image's bytes take a third more as text."""


def is_session(source: object) -> bool:
    """Whether a value is the path of a session file, by its name."""
    return isinstance(source, (str, os.PathLike)) and os.fsdecode(source).lower().endswith(SUFFIX)


# ── write


def save_session(app: App, path: str | Path) -> Path:
    """Writes an app's choices to a file, in place of an older one.

    Args:
        app: The app.
        path: A name that ends with ".hookviz.json".

    Returns:
        The file's absolute path.

    Raises:
        ExportError: The app has no model, the name is another one, the image is too large to be
            held in the file, or the file cannot be written.
    """
    if not is_session(path):
        raise ExportError(f"A session's name ends with {SUFFIX}; '{path}' does not.")
    file = Path(path).expanduser().absolute()
    with app.lock:
        content = choices_of(app)
    text = json.dumps(content, indent=1, allow_nan=False)
    part = file.with_name(f"{file.name}.{uuid.uuid4().hex}.part")
    try:
        # Until the new file is whole, the older one stays.
        with part.open("x", encoding="utf-8") as stream:
            stream.write(text)
        part.replace(file)
    except OSError as error:
        part.unlink(missing_ok=True)
        reason = error.strerror or "it cannot be opened"
        raise ExportError(f"The session cannot be written to '{file}': {reason}.") from error
    return file


def choices_of(app: App, *, photo: bool = True) -> dict[str, Any]:
    """An app's choices, as a session file holds them.

    Args:
        app: The app.
        photo: Hold the bytes of an image that has no path; False leaves that image out.

    Raises:
        ExportError: The app has no model, or the image is too large.
    """
    with app.lock:
        if app.model is None:
            raise ExportError("There is no session to save: the app has no model.")
        image: dict[str, Any] | None = None
        if app.image is not None and (photo or app.image.path or sample_named(app.image)):
            image = _image_entry(app.image)
        return {
            "hookviz_session": _FORMAT,
            "hookviz_version": __version__,
            "model": model_entry(app.model, app.device),
            "image": image,
            "preprocessing": {"choice": app.image_input.choice, "own": app.image_input.own},
            "layers": list(app.tree.selected),
            "hidden_calls": list(app.tree.hidden_calls),
            "view": changed_from_default(app.gallery.options),
            "cards": app.gallery.card_settings(),
            "auto_run": app.auto_run,
            "pin": {name: app.pin[name] for name in _PIN} if app.pin else None,
            "region": list(app.region),
            "edits": _edit_entries(app, photo=photo),
            "run_edited": app.what_if.run_edited,
        }


def model_entry(model: LoadedModel, device: str) -> dict[str, Any]:
    """What a session file says of a model and its device."""
    entry: dict[str, Any] = {"model": named_model(model), "device": device, **load_arguments(model)}
    own = ""
    if entry["model"] is None:
        own = f"your own {type(model.module).__name__}"
    elif model.recipe is not None and model.recipe.own_weights:
        own = f"{model.name} with a state dict of your own"
    if own_preprocessing(model):
        how = Preprocessing.from_transforms(model.preprocess)
        if type(how) is Preprocessing:
            entry["preprocess"] = {f.name: getattr(how, f.name) for f in fields(how)}
        else:
            own = own or f"{model.name} with a preprocessing of your own"
    return {"own": own, "device": device} if own else entry


def _edit_entries(app: App, *, photo: bool) -> list[dict[str, Any]]:
    """The list of What if."""
    entries = []
    for one, on in app.what_if.choices:
        entry: dict[str, Any] = {"on": on}
        try:
            entry["edit"] = one.to_json()
        except CaptureError as error:
            raise ExportError(
                f"{error.message.rstrip('.')}, a session neither.", remedy="Remove it from What if."
            ) from error
        if isinstance(one, ImageEdit):
            if not (photo or one.image.path or sample_named(one.image)):
                continue
            entry["image"] = _image_entry(one.image)
        entries.append(entry)
    return entries


def _image_entry(picture: Picture) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": picture.name, "sha256": picture.sha256}
    if sample := sample_named(picture):
        return {**entry, "sample": sample}
    if picture.path:
        return {**entry, "path": picture.path}
    data = picture.data
    if is_pixels(picture):
        file = io.BytesIO()
        picture.image.save(file, "PNG")
        data = file.getvalue()
    if len(data) > MAX_BYTES:
        raise ExportError(
            f"'{picture.name}' takes {bytes_text(len(data))}, and a session holds an image of at "
            f"most {bytes_text(MAX_BYTES)}.",
            remedy="Save it as a file and open that by its path.",
        )
    pixels = {"pixels": True} if is_pixels(picture) else {}
    return {**entry, **pixels, "data": base64.b64encode(data).decode("ascii")}


# ── read


class Session:
    """The choices of a session file, checked.

    Args:
        path: The file.
        data: What is in it; None reads it.

    Attributes:
        layers: Names of the ticked layers.
        own_model: Whether the model was the user's own, which no file holds.

    Raises:
        ExportError: It cannot be read, or it is no session; says what is wrong.
    """

    def __init__(self, path: str | Path, data: bytes | None = None) -> None:
        self._file = Path(os.fsdecode(path)).expanduser()
        content = self._parsed(self._read() if data is None else data)
        self._model = self._table(content["model"], "model", _MODEL, ["device"])
        if not self._model.keys() & {"model", "own"}:
            self._refuse("model has no name")
        self._image: dict[str, Any] | None = None
        if content["image"] is not None:
            self._image = self._table(content["image"], "image", _IMAGE, ["name", "sha256"])
        how = self._table(content["preprocessing"], "preprocessing", _HOW, _HOW)
        self._preprocessing = how
        self.layers: list[str] = content["layers"]
        self._hidden: list[str] = content["hidden_calls"]
        self._auto_run: bool = content["auto_run"]
        self.own_model = "own" in self._model
        self._pin: dict[str, Any] | None = None
        if content.get("pin") is not None:
            self._pin = self._table(content["pin"], "pin", _PIN, _PIN)
        self._region: list[int] = content.get("region") or []
        self._edits = [
            self._table(entry, f"edits[{n}]", _EDIT, ["edit", "on"])
            for n, entry in enumerate(content.get("edits") or [])
        ]
        self._run_edited: bool = content.get("run_edited", False)
        self._cards = {
            key: self._table(card, f"cards[{key!r:.60}]", _CARD)
            for key, card in content["cards"].items()
        }
        for card in self._cards.values():
            with self._refusing("cards"):
                GridOptions(channels=card.get("channels") or None, first=card.get("first") or None)
        with self._refusing("view"):
            self._options = GridOptions.from_json(json.dumps(content["view"]))
        with self._refusing("preprocessing"):
            check_own(self._preprocessing["own"])
        with self._refusing("model"):
            if (steps := self._model.get("preprocess")) is not None:
                self._model["preprocess"] = _steps(steps)
        with self._refusing("edits"):
            for entry in self._edits:
                if "image" not in entry:
                    edits_from_json(json.dumps([entry["edit"]]))
        for entry in self._edits:
            if "image" in entry:
                entry["image"] = self._table(entry["image"], "image", _IMAGE, ["name", "sha256"])
                self._decode(entry["image"])
        if self._image is not None:
            self._decode(self._image)

    def has_model(self, entry: Mapping[str, Any]) -> bool:
        """Whether its model is the one of a `model_entry`, on whatever device."""
        own = {**entry, "device": ""}
        if isinstance(own.get("preprocess"), dict):
            own["preprocess"] = _steps(own["preprocess"])
        return own == {**self._model, "device": ""}

    def summary(self) -> str:
        """What was chosen, in one line."""
        model = self._model.get("own") or self._model["model"]
        parts = [Path(model).name or model]
        parts.append(self._image["name"] if self._image else "no photo, or one that is not kept")
        parts.append(f"{len(self.layers)} layer{'s' if len(self.layers) != 1 else ''}")
        parts += ["preprocessing"] if self._preprocessing["choice"] != "model" else []
        changed = self._options != GridOptions() or self._cards
        parts += ["view"] if changed else []
        parts += ["a pinned place"] if self._pin else []
        parts += ["a region"] if self._region else []
        if self._edits:
            parts.append(f"{len(self._edits)} edit{'s' if len(self._edits) != 1 else ''}")
        return ", ".join(parts)

    def load_model(self, device: str) -> LoadedModel:
        """The model, on the session's device where this machine has it.

        Args:
            device: Where instead; "auto" for the session's.

        Raises:
            HookvizError: It was the user's own, or cannot be loaded.
        """
        given = dict(self._model)
        if own := given.pop("own", ""):
            raise ExportError(
                f"The session '{self._file.name}' is of {own}, which no file holds.",
                remedy="Pass it: explore(model, session=…).",
            )
        saved = given.pop("device")
        if device == "auto" and saved in available_devices():
            device = saved
        return load_model(given.pop("model"), **given, device=device)

    def picture(self) -> Picture | None:
        """The image; None where none was chosen.

        Raises:
            ImageError: Its file is gone, is another one by now, or cannot be read.
        """
        return None if self._image is None else self._picture(self._image)

    def _picture(self, entry: dict[str, Any]) -> Picture:
        try:
            if "sample" in entry:
                found = sample_image(entry["sample"])
            elif "path" in entry:
                found = read_image(entry["path"])
            else:
                found = read_image(entry["data"], name=entry["name"])
                if entry.get("pixels"):
                    found = read_image(found.image, name=entry["name"])
        except ImageError as error:
            raise ImageError(
                f"The image of the session '{self._file.name}' cannot be had: {error.message}",
                remedy="Pass it, or another: explore(session, image=…).",
            ) from error
        if found.sha256 != entry["sha256"]:
            raise ImageError(
                f"The image '{found.name}' of the session '{self._file.name}' has changed since.",
                remedy="Pass it, or another: explore(session, image=…).",
            )
        return read_image(found, name=entry["name"])

    def restore(self, app: App, *, ticks: bool = True) -> None:
        """Makes the choices in an app that has its model.

        Args:
            app: The app.
            ticks: Tick the layers, too.

        Raises:
            HookvizError: The model has no such layers, or cannot be given such an input.
        """
        if ticks:
            app.tree.selected = self.layers
        app.tree.hidden_calls = app.tree.page_value("hidden_calls", self._hidden)
        app.image_input.own = self._preprocessing["own"]
        app.image_input.choice = self._preprocessing["choice"]
        app.gallery.options = self._options
        app.gallery.restore(self._cards)
        app.what_if.restore(
            [(self._edit(entry), entry["on"]) for entry in self._edits],
            run_edited=self._run_edited,
        )
        app.auto_run = self._auto_run
        app.pointing.want(self._pin, self._region if self._image else [])

    def _edit(self, entry: dict[str, Any]) -> Edit:
        others = [self._picture(entry["image"])] if "image" in entry else []
        with self._refusing("edits"):
            (found,) = edits_from_json(json.dumps([entry["edit"]]), others)
        return found

    # ── inside

    def _refuse(self, fault: str, cause: BaseException | None = None) -> NoReturn:
        raise ExportError(f"The session '{self._file.name}' cannot be opened: {fault}.") from cause

    @contextmanager
    def _refusing(self, where: str) -> Iterator[None]:
        """Says of which part of the file a fault is that another part of hookviz finds in it."""
        try:
            yield
        except HookvizError as error:
            self._refuse(f"in its {where}, {error.message.rstrip('.')}", error)
        except (TypeError, ValueError, OverflowError) as error:
            self._refuse(f"its {where} cannot be used", error)

    def _read(self) -> bytes:
        try:
            if not self._file.is_file():
                self._refuse("there is no such file")
            with self._file.open("rb") as stream:
                data = stream.read(_MOST_BYTES + 1)
        except (OSError, ValueError) as error:
            self._refuse(getattr(error, "strerror", None) or "its path is not legal", error)
        return data

    def _parsed(self, data: bytes) -> dict[str, Any]:
        if len(data) > _MOST_BYTES:
            self._refuse(f"it is larger than {bytes_text(_MOST_BYTES)}")
        try:
            content = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            self._refuse("it is not JSON", error)
        found = content.get("hookviz_session") if isinstance(content, dict) else None
        if not isinstance(found, int) or found < 1:
            self._refuse("it is JSON, but not a session of hookviz's")
        if found > _FORMAT:
            self._refuse(f"it was written by a later hookviz than this one, {__version__}")
        return self._table(content, "it", _SESSION, _SESSION.keys() - _LATER)

    def _table(
        self, table: Any, where: str, kinds: _Kinds, needed: Collection[str] = ()
    ) -> dict[str, Any]:
        """A table whose fields are all known and right."""
        if not isinstance(table, dict):
            self._refuse(f"{where} is {table!r:.60}; it must be a table of names and values")
        for field, value in table.items():
            if field not in kinds:
                self._refuse(f"{where} has {field!r:.60}; known are {', '.join(kinds)}")
            is_right, words = kinds[field]
            if not is_right(value):
                self._refuse(f"{field} of {where} is {value!r:.60}; it must be {words}")
        if missing := [field for field in needed if field not in table]:
            self._refuse(f"{where} lacks {' and '.join(missing)}")
        return dict(table)

    def _decode(self, entry: dict[str, Any]) -> None:
        """Puts the bytes of an image in the place of their text."""
        if len({"sample", "path", "data"} & entry.keys()) != 1:
            self._refuse("its image must have one of sample, path and data")
        try:
            if "data" in entry:
                entry["data"] = base64.b64decode(entry["data"], validate=True)
        except (binascii.Error, ValueError) as error:
            self._refuse("the data of its image are not base64", error)


def _steps(table: dict[str, Any]) -> Preprocessing:
    known = [field.name for field in fields(Preprocessing)]
    if unknown := [name for name in table if name not in known]:
        raise ImageError(f"preprocess has {unknown[0]!r:.60}; known are {', '.join(known)}.")
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in table.items()}
    return Preprocessing(**values)


_Kinds = Mapping[str, tuple[Callable[[Any], bool], str]]


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


_TEXT = (lambda value: isinstance(value, str), "a text")
_TEXT_OR_NULL = (lambda value: value is None or isinstance(value, str), "a text or null")
_BOOL = (lambda value: isinstance(value, bool), "true or false")
_TEXTS = (_is_texts, "a list of texts")
_COUNT = (_is_count, "a whole number from 0")
_COUNTS = (
    lambda value: isinstance(value, list) and all(map(_is_count, value)),
    "a list of whole numbers from 0",
)
_TABLE = (lambda value: isinstance(value, dict), "a table of names and values")

_SESSION: _Kinds = {
    "hookviz_session": _COUNT, "hookviz_version": _TEXT, "model": _TABLE,
    "image": (lambda value: value is None or isinstance(value, dict), "a table or null"),
    "preprocessing": _TABLE, "layers": _TEXTS, "hidden_calls": _TEXTS, "view": _TABLE,
    "cards": _TABLE, "auto_run": _BOOL,
    "pin": (lambda value: value is None or isinstance(value, dict), "a table or null"),
    "region": (
        lambda value: isinstance(value, list) and [len(value), *map(_is_count, value)]
        in ([0], [4, True, True, True, True]),
        "four whole numbers from 0, or none",
    ),
    "edits": (lambda value: isinstance(value, list), "a list"), "run_edited": _BOOL,
}  # fmt: skip
_LATER = {"pin", "region", "edits", "run_edited"}
"""What files of earlier versions do not have."""
_PIN: _Kinds = {"key": _TEXT, "channel": _COUNT, "y": _COUNT, "x": _COUNT}
_MODEL: _Kinds = {
    "model": _TEXT, "own": _TEXT, "device": _TEXT, "weights": _TEXT_OR_NULL,
    "num_classes": _COUNT, "strict": _BOOL, "name": _TEXT, "categories": _TEXTS, "dtype": _TEXT,
    "preprocess": _TABLE,
}  # fmt: skip
_IMAGE: _Kinds = {
    "name": _TEXT, "sha256": _TEXT, "sample": _TEXT, "path": _TEXT, "data": _TEXT, "pixels": _BOOL,
}  # fmt: skip
_EDIT: _Kinds = {"edit": _TABLE, "on": _BOOL, "image": _TABLE}
_CHOICES = [choice for choice, _ in PREPROCESSING_CHOICES]
_HOW: _Kinds = {
    "choice": (lambda value: value in _CHOICES, f"one of {', '.join(_CHOICES)}"),
    "own": (
        lambda value: isinstance(value, dict) and all(isinstance(v, str) for v in value.values()),
        "a table of texts",
    ),
}
_CARD: _Kinds = {
    "page": _COUNT, "leaf": _TEXT, "statistics": _BOOL, "filters": _BOOL, "collapsed": _BOOL,
    "channels": _TEXT, "first": _COUNTS,
}  # fmt: skip
