"""The image input as a widget of its own: drop, paste, browse or a sample photo.

In: bytes in pieces from the page, or a picture from Python. Out: a Picture. Must not know: models
beyond their preprocessing, runs, layers.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import traitlets
from PIL import Image

from hookviz.errors import ImageError
from hookviz.images import (
    MAX_BYTES,
    NetworkInput,
    Picture,
    Preprocessing,
    UploadBuffer,
    network_input,
    read_image,
    sample_image,
    sample_images,
)
from hookviz.widget._bundle import built
from hookviz.widget._jobs import Worker
from hookviz.widget._part import Part, guarded

__all__ = ["PREPROCESSING_CHOICES", "ImageInput"]

PREPROCESSING_CHOICES = (
    ("model", "the model's own"),
    ("pad", "whole picture, padded"),
    ("squash", "whole picture, stretched"),
    ("none", "whole picture, no crop"),
)
_THUMBNAIL = 640
_DEFAULT_SIDE = 224


class ImageInput(Part):
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
        choice: Which preprocessing: "model", "pad", "squash" or "none".
    """

    _esm = built("image.min.js")
    _css = built("image.min.css")

    value = traitlets.Any(allow_none=True)
    choice = traitlets.Enum([c for c, _ in PREPROCESSING_CHOICES], "model").tag(sync=True)
    choices: traitlets.List[Any] = traitlets.List().tag(sync=True)
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
        self._upload = UploadBuffer(max_bytes)
        self._preset = preprocess
        self._has_model = preprocess is not None
        self._reader = Worker("hookviz-image", self.show_problem)
        self._asked = 0
        super().__init__(
            max_bytes=max_bytes,
            samples=list(sample_images()),
            choices=[list(c) for c in PREPROCESSING_CHOICES],
            **traits,
        )
        self.observe(self._on_value, "value")
        self.observe(self._on_choice, "choice")
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
        own = Preprocessing.from_transforms(self._preset)
        if self.choice == "model":
            return own
        side = own.crop or (own.resize if isinstance(own.resize, tuple) else None)
        if side is None:
            short = own.resize if isinstance(own.resize, int) else _DEFAULT_SIDE
            side = (short, short)
        if self.choice == "none":
            return replace(own, resize=own.resize or min(side), crop=None, fit="none")
        return replace(own, resize=None, crop=side, fit=self.choice)

    def set_preprocess(self, preset: Any) -> None:
        """Takes another model's preprocessing.

        Args:
            preset: Anything that `Preprocessing.from_transforms` takes.
        """
        self._preset, self._has_model = preset, True
        self.refresh()

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

    def open(self) -> None:
        """Brings the widget up, also after `close`."""
        self._reader.reopen()
        super().open()

    def _on_value(self, _change: Any) -> None:
        self.refresh()

    @guarded
    def _on_choice(self, _change: Any) -> None:
        self.refresh()

    def refresh(self) -> None:
        """Tells the page what there is to show and sends the pictures."""
        picture: Picture | None = self.value
        if picture is None:
            self.info = {}
            return
        width, height = picture.size
        info: dict[str, Any] = {
            "name": picture.name,
            "size": f"{width} × {height}",
            "format": picture.format,
            "notes": list(picture.notes),
        }
        seen = self._seen()
        if seen is not None:
            _, _, rows, columns = seen.tensor.shape
            steps = seen.description.split(", mean")[0]
            info["seen"] = f"{columns} × {rows} · {steps}"
            info["seen_long"] = seen.description
        self.info = info
        self._send_pictures(picture, seen)

    def _seen(self) -> NetworkInput | None:
        if not self._has_model:
            return None
        try:
            return self.network_input()
        except ImageError as error:
            self.show_problem(error)
            return None

    def _send_pictures(self, picture: Picture, seen: NetworkInput | None) -> None:
        small = picture.image.copy()
        small.thumbnail((_THUMBNAIL, _THUMBNAIL))
        self._send_picture("original", small, "JPEG")
        if seen is None:
            self.send({"type": "picture", "which": "seen", "mime": ""})
            return
        shown = seen.picture()
        exact = max(shown.size) <= _THUMBNAIL
        if not exact:
            shown.thumbnail((_THUMBNAIL, _THUMBNAIL))
        self._send_picture("seen", shown, "PNG" if exact else "JPEG")

    def _send_picture(self, which: str, image: Image.Image, kind: str) -> None:
        file = io.BytesIO()
        image.save(file, kind, **({"quality": 88} if kind == "JPEG" else {"compress_level": 1}))
        message = {"type": "picture", "which": which, "mime": f"image/{kind.lower()}"}
        self.send(message, buffers=[file.getvalue()])

    def _take(self, source: Any, name: str | None = None) -> None:
        picture = read_image(source, name=name, max_bytes=self.max_bytes)
        self.clear_problem()
        self.value = picture

    # ── messages of the page

    def _hear_pictures(self, _content: dict[str, Any], _buffers: Any) -> None:
        def send(_cancelled: Any) -> None:
            if self.value is not None:
                self._send_pictures(self.value, self._seen())

        self._reader.later("pictures", send)

    def _hear_sample(self, content: dict[str, Any], _buffers: Any) -> None:
        name = str(content.get("name", ""))
        self._read_soon(lambda: self._take(sample_image(name)))

    def _hear_preprocess(self, content: dict[str, Any], _buffers: Any) -> None:
        choice = str(content.get("choice", "model"))
        self._reader.later("choice", lambda _cancelled: self.set_trait("choice", choice))

    def _hear_upload_start(self, content: dict[str, Any], _buffers: Any) -> None:
        upload = str(content.get("id", ""))
        with self._refusing(upload):
            begun = self._upload.begin(upload, str(content.get("name", "")), content.get("size", 0))
            self._acknowledge(begun.upload_id, begun.received, done=begun.done)

    def _hear_upload_piece(self, content: dict[str, Any], buffers: Any) -> None:
        upload = str(content.get("id", ""))
        if upload != self._upload.active:
            return  # late pieces of an upload that a newer one replaced
        with self._refusing(upload):
            piece = buffers[0] if buffers else b""
            progress = self._upload.add(upload, content.get("offset", 0), piece)
            self._acknowledge(upload, progress.received, done=progress.done)

    def _hear_upload_abort(self, content: dict[str, Any], _buffers: Any) -> None:
        self._upload.cancel(str(content.get("id", "")))

    def _acknowledge(self, upload: str, received: int, *, done: bool) -> None:
        self.send({"type": "upload-ack", "id": upload, "received": received})
        if done:
            name, data = self._upload.take(upload)
            self._read_soon(lambda: self._take(data, name), upload)

    def _read_soon(self, read: Callable[[], None], upload: str = "") -> None:
        """Has a picture read on the thread, unless another one is asked for before its turn."""
        self._asked = asked = self._asked + 1

        def task(_cancelled: Any) -> None:
            with self._refusing(upload):
                if asked == self._asked:
                    read()
                if upload:
                    self.send({"type": "upload-done", "id": upload})

        self._reader.later(asked, task)

    def _refusing(self, upload: str) -> _Refusing:
        return _Refusing(self, upload)


class _Refusing:
    """Lets the page's upload end where Python refuses it; the error goes on to the guard."""

    def __init__(self, owner: ImageInput, upload: str) -> None:
        self.owner = owner
        self.upload = upload

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_rest: Any) -> None:
        if kind is not None and self.upload:
            self.owner.send({"type": "upload-refused", "id": self.upload})
