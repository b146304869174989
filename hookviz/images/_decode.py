"""From the bytes of an image file to decoded pixels, within limits.

What is guaranteed: only the formats of an allow-list are opened, each by the decoder that its first
bytes name; size and frames are checked before anything is decoded; Pillow's global settings
(``MAX_IMAGE_PIXELS``, ``LOAD_TRUNCATED_IMAGES``) are not touched (who sets
``LOAD_TRUNCATED_IMAGES`` gets files that are cut short); whatever a decoder raises becomes one
sentence. Time: a clock on every read ends decoders that ask for data in pieces (PNG, GIF, JPEG,
BMP, PNM, QOI …) after MAX_SECONDS of this thread's processor time; decoders that take the file at
once (WebP, AVIF, TIFF, JPEG 2000) are bounded by their number of pixels.

Pillow's warnings about small faults go where the user's warnings filters send them. Filters belong
to the whole process, so they are changed only where the user has made errors of warnings.
"""

from __future__ import annotations

import io
import re
import struct
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from PIL import Image

from hookviz.errors import ImageError
from hookviz.images._formats import ACCEPTED, FileKind
from hookviz.images._limits import (
    MAX_FRAMES_COUNTED,
    MAX_SECONDS,
    SLOW_FORMATS,
    Header,
    Refused,
    check_size,
    megapixels,
    read_header,
)
from hookviz.images._picture import Picture

__all__ = ["Decoded", "decode", "load_open_image", "warnings_as_notes"]

_SMALLER = "Make it smaller."
_AGAIN = f"Save or download it again; hookviz opens {ACCEPTED}."


@dataclass(frozen=True)
class Decoded:
    """A decoded first frame.

    Attributes:
        image: Pillow's image, loaded, in the file's own mode, not yet turned upright.
        format: Pillow's name.
        size: Width and height as stored.
        header: What was read beforehand.
        notes: Sentences.
    """

    image: Image.Image
    format: str
    size: tuple[int, int]
    header: Header
    notes: tuple[str, ...]


class _TooLong(Exception):  # noqa: N818 - passes through Pillow, never seen outside
    pass


class _TimedBytes(io.BytesIO):
    """Bytes whose every read looks at the clock: a decoder that goes on for ever is ended."""

    def __init__(self, data: bytes, seconds: float) -> None:
        super().__init__(data)
        self._until = time.thread_time() + seconds

    def read(self, size: int | None = -1, /) -> bytes:
        if time.thread_time() > self._until:
            raise _TooLong
        return super().read(size)


def decode(data: bytes, kind: FileKind, name: str, *, max_pixels: int) -> Decoded:
    """Decodes the first frame.

    Args:
        data: The whole file.
        kind: What ``file_kind`` said; its ``pillow`` is not empty.
        name: Cleaned, for sentences.
        max_pixels: Most pixels of the image.

    Returns:
        The decoded frame.

    Raises:
        ImageError: Too large, damaged, cut short, or takes too long.
    """
    limit = min(max_pixels, SLOW_FORMATS.get(kind.pillow, max_pixels))
    with _refusing(name, kind, limit):
        header = read_header(data, kind.pillow, limit)
        image, size, notes = _open_and_load(data, kind.pillow, header, limit)
    return Decoded(image, image.format or kind.pillow, size, header, notes)


def load_open_image(image: Image.Image, name: str, *, max_pixels: int) -> None:
    """Loads the pixels of an image that the user opened, with the same sentences.

    Args:
        image: The user's image; loading is all that happens to it.
        name: Cleaned, for sentences.
        max_pixels: Most pixels of the image.

    Raises:
        ImageError: Too large, or its file is damaged or closed.
    """
    with _refusing(name, FileKind(f"an image of mode {image.mode}"), max_pixels):
        check_size(image.size, max_pixels)
        image.load()


@contextmanager
def _refusing(name: str, kind: FileKind, limit: int) -> Iterator[None]:
    """Makes one sentence of whatever decoding raises."""
    cause: Exception | None = None
    try:
        yield
        return
    except Warning:
        raise  # the user's filters made an error of it: see `warnings_as_notes`
    except Refused as refused:
        reason, remedy = str(refused), refused.remedy
    except _TooLong:
        reason = f"that takes more than {MAX_SECONDS:g} seconds to decode"
        remedy = _SMALLER
    except Image.DecompressionBombError as bomb:
        reason, remedy = _bomb(bomb, limit), _SMALLER
    except MemoryError:
        reason, remedy = "that does not fit into memory", _SMALLER
    except Exception as error:  # noqa: BLE001
        # Pillow's plugins raise almost anything for damaged files (OSError, SyntaxError,
        # ValueError, struct.error, KeyError, AttributeError …); none may get through.
        reason, remedy, cause = _damage(error), _AGAIN, error
    raise ImageError(
        f"'{name}' cannot be read: it is {kind.words} {reason}.", remedy=remedy
    ) from cause


_one_at_a_time = threading.Lock()


def warnings_as_notes(read: Callable[[], Picture]) -> Picture:
    """What ``read`` gives, also where the user's filters make errors of Pillow's warnings.

    Args:
        read: May be called twice.

    Returns:
        Its image; with a note where a warning would have ended it.
    """
    try:
        return read()
    except Warning:
        with _one_at_a_time, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            picture = read()
        return replace(
            picture, notes=(*picture.notes, "The file has small faults that were ignored.")
        )


def _open_and_load(
    data: bytes, pillow: str, header: Header, max_pixels: int
) -> tuple[Image.Image, tuple[int, int], tuple[str, ...]]:
    if pillow == "HEIF":
        return _heif(data, max_pixels)
    notes: list[str] = []
    try:
        image = _opened(data, pillow, max_pixels)
        image.load()
    except ValueError as error:
        # Pillow's words: "Decompressed data too large …", "Too much memory used in text chunks".
        if pillow != "PNG" or not str(error).startswith(("Decompressed data", "Too much memory")):
            raise
        image = _opened(png_essentials(data), pillow, max_pixels)
        image.load()
        notes.append("Oversized texts in the file were left out.")
    frames = header.frames if header.frames is not None else getattr(image, "n_frames", 1)
    if frames > MAX_FRAMES_COUNTED:
        notes.insert(0, f"This is the first of more than {MAX_FRAMES_COUNTED:,} frames.")
    elif frames > 1:
        notes.insert(0, f"This is the first of {frames} frames.")
    return image, header.size or image.size, tuple(notes)


def _opened(data: bytes, pillow: str, max_pixels: int) -> Image.Image:
    image = Image.open(_TimedBytes(data, MAX_SECONDS), formats=[pillow])
    check_size(image.size, max_pixels)
    return image


def _heif(data: bytes, max_pixels: int) -> tuple[Image.Image, tuple[int, int], tuple[str, ...]]:
    """HEIC by the optional plugin, used directly: Pillow's registry is not touched."""
    try:
        import pillow_heif
    except ImportError:
        raise Refused(
            "that needs the plugin pillow-heif, which is not installed "
            "(pip install 'hookviz[heic]')"
        ) from None
    opened = pillow_heif.open_heif(io.BytesIO(data), convert_hdr_to_8bit=True)
    check_size(opened.size, max_pixels)
    image: Image.Image = opened.to_pillow()
    image.load()
    image.format = "HEIF"
    notes = (f"This is the first of {len(opened)} frames.",) if len(opened) > 1 else ()
    return image, image.size, notes


def png_essentials(data: bytes) -> bytes:
    """A PNG without its texts and profile, for files that hide too much in them."""
    kept = [data[:8]]
    place = 8
    while place + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, place)
        end = place + 12 + length
        if data[place + 4 : place + 8] not in (b"tEXt", b"zTXt", b"iTXt", b"iCCP"):
            kept.append(data[place:end])
        place = end
    return b"".join(kept)


def _bomb(error: Image.DecompressionBombError, limit: int) -> str:
    """Pillow's own check came first: by our limit where that is broken too, else by Pillow's."""
    found = re.search(r"\((\d+) pixels\)", str(error))
    if found and int(found.group(1)) > limit:
        return f"of {megapixels(int(found.group(1)))}, and at most {megapixels(limit)} are read"
    return "of more pixels than PIL.Image.MAX_IMAGE_PIXELS allows"


def _damage(error: Exception) -> str:
    text = str(error).lower()
    signs = ("truncated", "eof", "not enough", "unexpected end", "read 0")
    if isinstance(error, EOFError) or any(sign in text for sign in signs):
        return "that is cut short"
    if isinstance(error, (struct.error, IndexError, zlib.error)):
        return "that is cut short or damaged"
    return "that is damaged, or of a kind that Pillow does not know"
