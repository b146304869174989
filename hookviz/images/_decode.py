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
import struct
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from PIL import Image

from hookviz.errors import ImageError
from hookviz.images._formats import ACCEPTED
from hookviz.images._limits import (
    MAX_FRAMES_COUNTED,
    MAX_SECONDS,
    SLOW_FORMATS,
    Facts,
    Refused,
    check_contents,
    check_opened,
    check_size,
)
from hookviz.images._picture import Picture

_SMALLER = "Make it smaller."
_AGAIN = f"Save or download it again; hookviz opens {ACCEPTED}."


class _TimedBytes(io.BytesIO):
    """Bytes whose every read looks at the clock: a decoder that goes on for ever is ended."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.begin()

    def begin(self) -> None:
        """Sets the clock to zero; it is that of the thread that calls this."""
        self._until = time.thread_time() + MAX_SECONDS

    def read(self, size: int | None = -1, /) -> bytes:
        if time.thread_time() > self._until:
            raise Refused(f"that takes more than {MAX_SECONDS:g} seconds to decode", _SMALLER)
        return super().read(size)


def decode(data: bytes, pillow: str, max_pixels: int) -> tuple[Image.Image, Facts, tuple[str, ...]]:
    """Decodes the first frame; whatever it raises, `refusing` makes a sentence of.

    Args:
        data: The whole file.
        pillow: Pillow's name of the format, "HEIF" for the plugin's.
        max_pixels: Most pixels of the image.

    Returns:
        Pillow's image, loaded, in the file's own mode and not turned upright; what the file says
        of itself; notes.
    """
    max_pixels = min(max_pixels, SLOW_FORMATS.get(pillow, max_pixels))
    frames = check_contents(data, pillow, max_pixels)
    open_it = _heif if pillow == "HEIF" else _opened
    notes: tuple[str, ...] = ()
    try:
        image, facts = open_it(data, pillow, max_pixels)
    except ValueError as error:
        # Pillow's words: "Decompressed data too large …", "Too much memory used in text chunks".
        if pillow != "PNG" or not str(error).startswith(("Decompressed data", "Too much memory")):
            raise
        image, facts = _opened(png_essentials(data), pillow, max_pixels)
        notes = ("Oversized texts in the file were left out.",)
    frames = frames or facts.frames or getattr(image, "n_frames", 1)
    if frames > 1:
        number = f"more than {MAX_FRAMES_COUNTED:,}" if frames > MAX_FRAMES_COUNTED else f"{frames}"
        notes = (f"This is the first of {number} frames.", *notes)
    return image, facts, notes


@contextmanager
def refusing(name: str, words: str) -> Iterator[None]:
    """Makes one sentence of whatever reading an image raises.

    Args:
        name: Cleaned, for the sentence.
        words: What it is, with its article.

    Raises:
        ImageError: Too large, damaged, cut short, or takes too long.
    """
    cause: Exception | None = None
    try:
        yield
        return
    except (ImageError, Warning):
        raise  # Warning: the user's filters made an error of it, see `warnings_as_notes`
    except Refused as refused:
        reason, remedy = str(refused), refused.remedy
    except Image.DecompressionBombError:
        reason, remedy = "of more pixels than PIL.Image.MAX_IMAGE_PIXELS allows", _SMALLER
    except MemoryError:
        reason, remedy = "that does not fit into memory", _SMALLER
    except Exception as error:  # noqa: BLE001
        # Pillow's plugins raise almost anything for damaged files (OSError, SyntaxError,
        # ValueError, struct.error, KeyError, AttributeError …); none may get through.
        reason, remedy, cause = _damage(error), _AGAIN, error
    raise ImageError(f"'{name}' cannot be read: it is {words} {reason}.", remedy=remedy) from cause


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


def _opened(data: bytes, pillow: str, max_pixels: int) -> tuple[Image.Image, Facts]:
    """The first frame, loaded."""
    image, facts, _ = _unloaded(data, pillow, max_pixels)
    image.load()
    return image, facts


def _unloaded(data: bytes, pillow: str, max_pixels: int) -> tuple[Image.Image, Facts, _TimedBytes]:
    if pillow not in Image.OPEN:
        Image.init()
    stream = _TimedBytes(data)
    # The plugin itself: Image.open() warns of sizes that are checked here anyhow.
    image = Image.OPEN[pillow][0](stream, "")
    facts = check_opened(image, data, max_pixels)
    bomb = 2 * (Image.MAX_IMAGE_PIXELS or max_pixels)
    if facts.size[0] * facts.size[1] > bomb:
        raise Image.DecompressionBombError
    return image, facts, stream


def open_frames(
    data: bytes, pillow: str, max_pixels: int
) -> tuple[Image.Image, int, Callable[[], None]]:
    """An animation, nothing decoded yet; whatever it raises, `refusing` makes a sentence of.

    Args:
        data: The whole file.
        pillow: Pillow's name of the format.
        max_pixels: Most pixels of a frame.

    Returns:
        Pillow's image; bits per sample; what to call before a frame is decoded, as each has
        MAX_SECONDS.
    """
    check_contents(data, pillow, max_pixels, every_frame=True)
    image, facts, stream = _unloaded(data, pillow, max_pixels)
    return image, facts.bits, stream.begin


def _heif(data: bytes, _pillow: str, max_pixels: int) -> tuple[Image.Image, Facts]:
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
    return image, Facts(image.size, frames=len(opened))


def png_essentials(data: bytes) -> bytes:
    """A PNG without its texts and profile, for files that hide too much in them."""
    kept, place = [data[:8]], 8
    while place + 12 <= len(data):
        end = place + 12 + int.from_bytes(data[place : place + 4], "big")
        if data[place + 4 : place + 8] not in (b"tEXt", b"zTXt", b"iTXt", b"iCCP"):
            kept.append(data[place:end])
        place = end
    return b"".join(kept)


def _damage(error: Exception) -> str:
    text = str(error).lower()
    signs = ("truncated", "eof", "not enough", "unexpected end", "read 0")
    if isinstance(error, EOFError) or any(sign in text for sign in signs):
        return "that is cut short"
    if isinstance(error, (struct.error, IndexError, zlib.error)):
        return "that is cut short or damaged"
    return "that is damaged, or of a kind that Pillow does not know"
