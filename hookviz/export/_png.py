"""PNG files: pixels and texts.

Reading and writing grids is Pillow's: it checks every checksum, inflates no text beyond its limits
(1 MiB each, 64 MiB together) and decodes no pixel until asked. Single channels, of which an export
has many hundreds, are written by hand: one of 14×14 with 30 texts takes 10 µs of processor time
where Pillow takes 54, one of 56×56 29 instead of 76, one of 224×224 802 instead of 862, since what
all files of a layer say is encoded once.

Source: Portable Network Graphics (PNG) Specification, third edition, sections 5 and 11.3.3.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngImageFile, PngInfo

from hookviz.errors import ExportError
from hookviz.export._folder import checked_path

# Of zlib. Grids and channels of VGG16 are within 4 % of the size at level 6 and take half the time.
LEVEL = 4
MAX_FILE = 512 * 1024 * 1024
_END = b"IEND\xaeB`\x82"


def open_png(png: str | Path | bytes) -> tuple[PngImageFile, str]:
    """A PNG whose chunks have all been checked and whose pixels have not been decoded.

    Args:
        png: A path, or the bytes themselves.

    Returns:
        It, and the name to use for it in messages.

    Raises:
        ExportError: There is no such file, it cannot be read, is above 512 MiB or no PNG, is cut
            short or damaged, or its texts are beyond the limits.
    """
    name, data = "the file", b""
    if isinstance(png, bytes | bytearray | memoryview):
        data = bytes(png)
    else:
        path = checked_path("png", png)
        name = path.name or str(path)
        try:
            # A pipe or a device has no size and may never end.
            if path.exists() and not path.is_file():
                raise ExportError(f"{name} is a folder or a device, not a PNG file.")
            with path.open("rb") as file:
                data = file.read(MAX_FILE + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ExportError(f"{name} cannot be read: {reason}.") from error
    if len(data) > MAX_FILE:
        raise ExportError(f"{name} has more than {MAX_FILE:,} bytes, which are the most.")
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        found = repr(data[:8]) if data else "nothing"
        raise ExportError(f"{name} is not a PNG: it begins with {found}.")
    if _END not in data:
        raise ExportError(f"{name} is cut short: it ends after {len(data):,} bytes without an end.")
    try:
        PngImageFile(io.BytesIO(data)).verify()
        return PngImageFile(io.BytesIO(data)), name
    except IndexError as error:
        raise ExportError(f"{name} is damaged: it holds no pixels.") from error
    except (SyntaxError, OSError, ValueError, Warning) as error:
        raise ExportError(f"{name} is damaged or cut short: {error}.") from error


def plain_text(text: str) -> str:
    """``text`` without what a PNG text cannot hold: control characters, lone surrogates."""
    escaped = "".join(
        char if (char >= " " and char != "\x7f") or char == "\n" else f"\\x{ord(char):02x}"
        for char in text
    )
    return escaped.encode("utf-8", "backslashreplace").decode("utf-8")


def png_info(texts: Mapping[str, str]) -> PngInfo:
    r"""Text chunks: tEXt where Latin-1 is enough, else iTXt in UTF-8, uncompressed.

    Args:
        texts: Text by key. Keys have 1 to 79 characters of ASCII. Control characters and lone
            surrogates are written as escapes (``\x00``).
    """
    info = PngInfo()
    for key, text in texts.items():
        # Most texts are plain, and this runs for each of many small files.
        info.add_text(key, text if text.isascii() and text.isprintable() else plain_text(text))
    return info


def encoded_png(pixels: NDArray[np.uint8], texts: Mapping[str, str]) -> bytes:
    """A PNG of (H, W, 3) or (H, W, 4) uint8 with these texts and no other metadata."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=LEVEL, pnginfo=png_info(texts))
    return file.getvalue()


def text_chunks(texts: Mapping[str, str]) -> bytes:
    """The chunks of `png_info`, for `small_png`."""
    return b"".join(_chunk(kind, data) for kind, data, *_ in png_info(texts).chunks)


def small_png(
    pixels: NDArray[np.uint8], chunks: bytes, palette: NDArray[np.uint8] | None = None
) -> bytes:
    """A PNG, written at once.

    Args:
        pixels: (H, W, 3) uint8, or (H, W) numbers of palette colors.
        chunks: Its text chunks.
        palette: (256, 3) uint8, red, green, blue.
    """
    height, width = pixels.shape[:2]
    rows = np.zeros((height, 1 + pixels[0].size), np.uint8)  # each begins with its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    kind, colors = (2, b"") if palette is None else (3, _chunk(b"PLTE", palette.tobytes()))
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)),
            colors + chunks,
            _chunk(b"IDAT", zlib.compress(rows.data, LEVEL)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    sums = struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))
    return b"".join((struct.pack(">I", len(data)), kind, data, sums))
