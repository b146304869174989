"""The image input as a widget of its own: drop, paste, browse or a sample photo."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import traitlets

from hookviz.errors import ImageError
from hookviz.images import (
    ANIMATED,
    MAX_BYTES,
    NetworkInput,
    Picture,
    Preprocessing,
    network_input,
    read_image,
    sample_image,
    sample_images,
)
from hookviz.widget._bundle import built
from hookviz.widget._part import Handlers
from hookviz.widget._pictures import jpeg_bytes, png_bytes
from hookviz.widget._upload import TakesFiles
from hookviz.widget._worker import Worker

PREPROCESSING_CHOICES = (
    ("model", "the model's own"),
    ("pad", "whole picture, padded"),
    ("squash", "whole picture, stretched"),
    ("none", "whole picture, no crop"),
    ("own", "size and values of my own"),
)
_THUMBNAIL = 640


class ImageInput(TakesFiles):
    """Takes a photo by drop, paste, file dialog or from the samples and shows it.

    What a page sends is decoded on a thread of the widget's own (a large photo takes seconds), so
    observers of ``value`` are called there; what Python sets is read at once.

    Args:
        value: A first image, anything that `read_image` takes.
        preprocess: The model's preprocessing, to show what a network sees; None shows the
            picture alone.
        max_bytes: Larger files are refused in the browser, before they travel.

    Attributes:
        value: The `Picture`, or None. Set it to anything that `read_image` takes; observe it.
            The same file given again counts as a new picture.
        choice: Which preprocessing: "model", "pad", "squash", "none" or "own".
        own: What "own" is, as texts: ``size``, ``mean``, ``std``, ``channels`` and, where the size
            was found by trial, ``found``.
    """

    _esm = built("image.min.js")
    _css = built("image.min.css")

    value = traitlets.Any(allow_none=True)
    choice = traitlets.Enum([c for c, _ in PREPROCESSING_CHOICES], "model").tag(sync=True)
    choices: traitlets.List[Any] = traitlets.List().tag(sync=True)
    own: traitlets.Dict[str, str] = traitlets.Dict().tag(sync=True)
    info = traitlets.Dict().tag(sync=True)
    samples = traitlets.List(traitlets.Unicode()).tag(sync=True)
    max_bytes = traitlets.Int(MAX_BYTES).tag(sync=True)
    accept = traitlets.Unicode("image/*,.heic,.heif").tag(sync=True)

    def __init__(
        self,
        value: Any = None,
        preprocess: Any = None,
        *,
        max_bytes: int = MAX_BYTES,
        **traits: Any,
    ) -> None:
        self._preset = preprocess
        self._has_model = preprocess is not None
        self._reader = Worker("hookviz-image", self.show_problem)
        self._asked = 0
        super().__init__(
            max_bytes=max_bytes,
            samples=list(sample_images()),
            choices=[list(c) for c in PREPROCESSING_CHOICES],
            own=_as_texts(Preprocessing()),
            **traits,
        )
        if value is not None:
            self.value = value

    @traitlets.validate("value")
    def _read(self, proposal: Any) -> Picture | None:
        given = proposal["value"]
        if given is None or isinstance(given, Picture):
            return given
        return read_image(given, max_bytes=self.max_bytes)

    @property
    def preprocessing(self) -> Preprocessing:
        """What is done to the picture, as chosen."""
        return self._chosen(self.choice)

    def _chosen(self, choice: str) -> Preprocessing:
        own = Preprocessing.from_transforms(self._preset)
        if choice == "model":
            return own
        if choice == "own":
            return _from_texts(self.own)
        return own.fitted(choice)

    def choose(self, description: str) -> bool:
        """Chooses the preprocessing that is described so.

        Args:
            description: What `Preprocessing.describe` gave.

        Returns:
            Whether one of the choices is; else nothing is changed.
        """
        for choice in dict.fromkeys((self.choice, *(name for name, _ in PREPROCESSING_CHOICES))):
            with contextlib.suppress(ImageError):  # a function of the user's cannot be refitted
                if self._chosen(choice).describe() == description:
                    self.choice = choice
                    return True
        return False

    def set_preprocess(self, preset: Any) -> None:
        """Takes another model's preprocessing.

        Args:
            preset: Anything that `Preprocessing.from_transforms` takes.
        """
        self._preset, self._has_model = preset, True
        if self.choice == "own":
            self.choice = "model"
        self.own = _as_texts(Preprocessing.from_transforms(preset))
        self.refresh()

    def set_size(
        self, height: int, width: int, channels: int | None = None, found: str = ""
    ) -> None:
        """Takes a size of the input, and shows it with the other values where they can be changed.

        Args:
            height: In pixels.
            width: In pixels.
            channels: 1 or 3; None keeps what is set.
            found: How the size was found, in words.

        Raises:
            ImageError: The size is not legal; nothing is changed.
        """
        own = {**self.own, "size": f"{height} × {width}", "found": found}
        own = own if channels is None else {**own, "channels": str(channels)}
        _from_texts(own)  # raises before anything is taken over
        self.own = own
        self.choice = "own"

    def network_input(self, **where: Any) -> NetworkInput | None:
        """What a network is given for the picture; None without a picture.

        Args:
            **where: ``device`` and ``dtype``, see `hookviz.images._network_input`.
        """
        if self.value is None:
            return None
        return network_input(self.value, self.preprocessing, **where)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until what the page sent is read.

        Args:
            timeout: At most this many seconds; None for as long as it takes.

        Returns:
            Whether that came about.
        """
        return self._reader.wait(timeout)

    def close(self) -> None:
        """Ends the thread and takes the widget away."""
        self._reader.close()
        super().close()
        self._preset, self.info = None, {}

    def open(self) -> None:
        """Brings the widget up, also after `close`."""
        self._reader.reopen()
        super().open()
        self.observe(self.refresh, ["value", "choice", "own"])

    def refresh(self, _change: Any = None) -> None:
        """Publishes what there is to show and sends the pictures."""
        picture: Picture | None = self.value
        if picture is None:
            self.info = {}
            return
        size = "{} × {}".format(*picture.size)
        info: dict[str, Any] = {"name": picture.name, "size": size, "format": picture.format}
        seen: NetworkInput | None = None
        # A user's own preprocessing may raise anything.
        with self.showing_problems():
            seen = self.network_input() if self._has_model else None
        if seen is not None:
            _, _, rows, columns = seen.tensor.shape
            info["seen"] = f"{columns} × {rows} · {seen.description.split(', mean')[0]}"
            info["seen_long"] = seen.description
            if seen.box is not None:
                (wide, high), (left, top, right, bottom) = picture.size, seen.box
                info["crop"] = (left / wide, top / high, right / wide, bottom / high)
        # What `decode` says of an animation.
        if any(note.startswith("This is the first of ") for note in picture.notes):
            info["animated"] = picture.format in ANIMATED
        self.info = {**info, "notes": list(picture.notes)}
        original = {"type": "picture", "which": "original", "mime": "image/jpeg"}
        self.send(original, buffers=[jpeg_bytes(picture.image, _THUMBNAIL)])
        mime, pictures = "", []
        if seen is not None:
            shown = seen.picture()
            exact = max(shown.size) <= _THUMBNAIL
            mime = "image/png" if exact else "image/jpeg"
            pictures = [png_bytes(shown) if exact else jpeg_bytes(shown, _THUMBNAIL)]
        self.send({"type": "picture", "which": "seen", "mime": mime}, buffers=pictures)

    def _take(self, source: Any, name: str | None = None) -> None:
        picture = read_image(source, name=name, max_bytes=self.max_bytes)
        self.clear_problem()
        self.value = picture

    # ── what the page asks

    def _ask_pictures(self) -> None:
        self._reader.later("pictures", self.refresh)

    def _take_sample(self, name: str) -> None:
        self._read_soon(lambda: self._take(sample_image(name)))

    def _choose_preprocessing(self, choice: str) -> None:
        self._reader.later("choice", lambda _cancelled: self.set_trait("choice", choice))

    def _change_own(self, values: dict[str, Any]) -> None:
        name = next((name for name in values if name in self.own), "")
        if not name:
            return
        try:
            own = _as_texts(_from_texts({**self.own, name: str(values[name])}))
        except ImageError as error:
            self.show_problem(error, field=name)
            return
        self.clear_problem()
        self._reader.later("own", lambda _cancelled: self.set_trait("own", own))

    def take_file(self, name: str, data: bytes, upload: str) -> None:
        """See `TakesFiles`."""
        self._read_soon(lambda: self._take(data, name), upload)

    def _read_soon(self, read: Callable[[], None], upload: str = "") -> None:
        """Has a picture read on the thread, unless another one is asked for before its turn."""
        self._asked = asked = self._asked + 1

        def task(_cancelled: Any) -> None:
            with self.refusing(upload):
                if asked == self._asked:
                    read()
                if upload:
                    self.send({"type": "upload-done", "id": upload})

        self._reader.later(asked, task)

    def handlers(self) -> Handlers:
        """What the page asks."""
        return {
            **super().handlers(),
            "pictures": self._ask_pictures,
            "sample": self._take_sample,
            "own": self._change_own,
            "preprocess": self._choose_preprocessing,
        }


def _as_texts(steps: Preprocessing) -> dict[str, str]:
    """The values of `ImageInput.own` that come nearest to some preprocessing."""
    height, width = 224, 224
    with contextlib.suppress(ImageError):  # of a function that is called as it is, no size is known
        height, width = steps.fitted("crop").crop or (224, 224)
    mean, std = (
        ", ".join(f"{value:g}" for value in (values[:1] if len(set(values)) == 1 else values))
        for values in (steps.mean, steps.std)
    )
    size = f"{height} × {width}"
    return {"size": size, "mean": mean, "std": std, "channels": str(steps.channels), "found": ""}


def check_own(own: Mapping[str, str]) -> None:
    """Raises an ImageError where texts are none that `ImageInput.own` can be."""
    legal = _as_texts(Preprocessing())
    if own.keys() != legal.keys():
        raise ImageError(f"own has {', '.join(own) or 'nothing'}; it must have {', '.join(legal)}.")
    _from_texts(own)


def _from_texts(own: Mapping[str, str]) -> Preprocessing:
    """Preprocessing from the texts of `ImageInput.own`.

    Raises:
        ImageError: A text is not what it should be.
    """
    sides = [int(side) for side in re.findall(r"\d{1,6}", own["size"])]
    if not 1 <= len(sides) <= 2 or not re.fullmatch(r"[\d\s×xX*,;]+", own["size"]):
        raise ImageError(f"The size is “{own['size']}”; write 28, or height × width: 240 × 320.")
    if own["channels"] not in ("1", "3"):
        raise ImageError(f"The channels are “{own['channels']}”; legal are 3 (color) and 1 (grey).")
    channels = int(own["channels"])
    numbers: dict[str, Any] = {}
    for name in ("mean", "std"):
        try:
            values = [float(text) for text in re.split(r"[,;\s]+", own[name].strip(" ()[]"))]
        except ValueError:
            values = []
        if len(values) == 3 and channels == 1:
            values = [sum(values) / 3]
        if len(values) not in (1, channels) or not all(map(math.isfinite, values)):
            raise ImageError(f"{name} is “{own[name]}”; write one number, or one for each channel.")
        numbers[name] = values[0] if len(values) == 1 else values
    return Preprocessing.for_size((sides[0], sides[-1]), channels=channels, **numbers)
