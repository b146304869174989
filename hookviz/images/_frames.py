"""The frames of an animated file, one by one: GIF, WebP, APNG and AVIF, as Pillow composes them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from hookviz.bundled import SAMPLE_CLIP, bundled_file
from hookviz.errors import ImageError
from hookviz.images._decode import open_frames, refusing
from hookviz.images._formats import file_kind
from hookviz.images._limits import MAX_BYTES, MAX_PIXELS
from hookviz.images._picture import Picture, pixel_hash
from hookviz.images._read import bytes_of, check_limits, upright
from hookviz.images._rgb import to_rgb

ANIMATED = ("GIF", "WEBP", "PNG", "AVIF")
"""Pillow's names of the formats whose frames are composed."""

_BEFORE_ANY = 0.1  # seconds of a frame that says nothing of its own


class Frames(Sequence[Picture]):
    """The frames of one file, decoded when they are asked for; none is kept.

    A frame is a `Picture` with its ``number`` from 0 (the one that Pillow's ``seek`` takes) and
    ``seconds``, when it is shown. Going forward decodes one frame after another; going back begins
    anew at the first. Any thread may ask.

    Args:
        data: The whole file.
        name: What to call it.
        max_pixels: Largest frame.
        every: 5 leaves frames 0, 5, 10, …

    Attributes:
        name: The file's name.
        every: As given.
    """

    def __init__(self, data: bytes, name: str, max_pixels: int, every: int = 1) -> None:
        self._data, self.name, self._max_pixels, self.every = data, name, max_pixels, every
        self._lock = threading.RLock()
        # When each frame begins, and last the end, as far as it was decoded.
        self._starts = [0.0]
        kind = file_kind(data, name)
        if kind.pillow not in ANIMATED:
            words = kind.words if kind.pillow else f"{kind.words}, which is not read"
            raise ImageError(
                f"'{name}' has no frames that can be read: it is {words}.",
                remedy="Give an animated GIF, WebP, PNG or AVIF.",
            )
        self._kind = kind
        with self._decoding():
            self._open()
            self._count = int(getattr(self._image, "n_frames", 1))

    def __len__(self) -> int:
        return -(-self._count // self.every)

    def __repr__(self) -> str:
        return f"<{len(self)} frames of '{self.name}'>"

    @overload
    def __getitem__(self, index: int) -> Picture: ...
    @overload
    def __getitem__(self, index: slice) -> list[Picture]: ...
    def __getitem__(self, index: int | slice) -> Picture | list[Picture]:
        places = range(0, self._count, self.every)[index]
        return self._frame(places) if isinstance(places, int) else [*map(self._frame, places)]

    def __iter__(self) -> Iterator[Picture]:
        return map(self._frame, range(0, self._count, self.every))

    def seconds(self, number: int) -> float:
        """How long a frame is shown, in seconds; it is decoded where it was not yet."""
        with self._lock:
            if number + 1 >= len(self._starts):
                self._frame(number)
            return self._starts[number + 1] - self._starts[number]

    def _frame(self, number: int) -> Picture:
        with self._lock, self._decoding():
            if number < self._image.tell():
                self._open()
            # Step by step, which is what seek does inside, as each frame alone knows its duration.
            for at in range(self._image.tell(), number + 1):
                self._set_clock()
                self._image.seek(at)
                self._image.load()
                if at + 1 == len(self._starts):
                    lasts = float(self._image.info.get("duration") or 0) / 1000 or _BEFORE_ANY
                    self._starts.append(self._starts[at] + lasts)
            image, notes = to_rgb(self._image, self._bits)
            image, turned = upright(self._image, image)
            return Picture(
                image,
                f"{self.name} frame {number}",
                pixel_hash(image),
                self._kind.pillow,
                self._image.size,
                (*notes, *turned),
                number=number,
                seconds=self._starts[number],
            )

    def _open(self) -> None:
        self._image, self._bits, self._set_clock = open_frames(
            self._data, self._kind.pillow, self._max_pixels
        )

    def _decoding(self) -> Any:
        return refusing(self.name, self._kind.words)


def read_frames(
    source: Any,
    *,
    every: int = 1,
    name: str | None = None,
    max_bytes: int = MAX_BYTES,
    max_pixels: int = MAX_PIXELS,
) -> Frames:
    """The frames of an animated GIF, WebP, PNG or AVIF, decoded one by one as they are asked for.

    Args:
        source: A path, the file's bytes, or an open binary file.
        every: How far it is from one frame to the next: 5 gives frames 0, 5, 10, …
        name: What to call it; default the file's base name.
        max_bytes: Largest file, default 50 million bytes.
        max_pixels: Largest frame, default 64 million pixels.

    Returns:
        A sequence of pictures, each with ``number`` and ``seconds``; its pixels are those that
        Pillow composes, made RGB as `read_image` does. A file with a single image is one frame.

    Raises:
        ImageError: It cannot be read, or is of another format; while it is gone through, that a
            frame is damaged or beyond the limits.

    Examples:
        >>> import io
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> shades = [Image.new("L", (2, 2), level) for level in (0, 99, 200)]
        >>> shades[0].save(file, "GIF", save_all=True, append_images=shades[1:], duration=40)
        >>> frames = read_frames(file.getvalue(), name="shades.gif")
        >>> [(f.number, f.seconds, f.image.getpixel((0, 0))) for f in frames]
        [(0, 0.0, (0, 0, 0)), (1, 0.04, (99, 99, 99)), (2, 0.08, (200, 200, 200))]
        >>> frames[2].name
        'shades.gif frame 2'
    """
    check_limits(max_bytes=max_bytes, max_pixels=max_pixels)
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ImageError(f"every={every!r:.80} is not a step; give a whole number from 1 up.")
    data, label = bytes_of(source, name, max_bytes)
    return Frames(data, label, max_pixels, every)


def sample_frames(every: int = 1) -> Frames:
    """The frames of the short clip that ships with hookviz, free of rights (assets/README.md).

    Args:
        every: As for `read_frames`.

    Examples:
        >>> frames = sample_frames()
        >>> len(frames), frames[0].size
        (36, (192, 144))
    """
    return read_frames(bundled_file("assets", SAMPLE_CLIP), every=every)


def frames_in(picture: Picture) -> Frames | None:
    """The frames of the file that a picture is the first frame of; None where it has one alone.

    Args:
        picture: As `read_image` gave it.
    """
    if picture.number is not None or picture.format not in ANIMATED:
        return None
    if not picture.data and not picture.path:
        return None
    frames = read_frames(picture.data or picture.path, name=picture.name)
    return frames if len(frames) > 1 else None


def are_images(source: Any) -> bool:
    """Whether something is several images, gone through one by one, and not one image.

    A list or tuple, an iterator or generator, `Frames` and every other iterable are several. One
    image is whatever `read_image` takes: also an array or tensor, an open file, and the value of a
    ``FileUpload``, though Python can go through these as well.

    Examples:
        >>> are_images(["a.png", "b.png"]), are_images(iter([])), are_images("a.png")
        (True, True, False)
    """
    if isinstance(source, list | tuple):
        # The value of a FileUpload is a tuple of mappings; an empty one has a sentence of its own.
        return bool(source) and not all(isinstance(item, Mapping) for item in source)
    if isinstance(source, str | bytes | bytearray | memoryview | Mapping | os.PathLike):
        return False
    if hasattr(source, "read") or hasattr(source, "__array__") or isinstance(source, Picture):
        return False
    return isinstance(source, Iterable)
