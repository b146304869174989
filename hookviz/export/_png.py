"""PNG files: texts in and out, and single channels written without an image library.

Reading is Pillow's: it checks every checksum, inflates no text beyond its limits (1 MiB each,
64 MiB together) and decodes no pixel until asked. The writer of single channels is our own because
an export has many hundred small ones, and it takes 0.73 of the time that Pillow takes for them
(``python -m benchmarks.export``): it filters nothing and packs each file in one call of zlib.

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


def png_bytes_of(png: str | Path | bytes) -> tuple[bytes, str]:
    """The bytes of a PNG and the name to use for it in messages.

    Args:
        png: A path, or the bytes themselves.

    Raises:
        ExportError: There is no such file, it cannot be read, or it is above 512 MiB.
    """
    if isinstance(png, bytes | bytearray | memoryview):
        return bytes(png), "the file"
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
    return data, name


def open_png(data: bytes, name: str) -> PngImageFile:
    """A PNG whose chunks have all been checked and whose pixels have not been decoded.

    Args:
        data: The whole file.
        name: What to call it in messages.

    Raises:
        ExportError: It is no PNG, is cut short or damaged, or its texts are beyond the limits.
    """
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        found = repr(data[:8]) if data else "nothing"
        raise ExportError(f"{name} is not a PNG: it begins with {found}.")
    if _END not in data:
        raise ExportError(f"{name} is cut short: it ends after {len(data):,} bytes without an end.")
    try:
        PngImageFile(io.BytesIO(data)).verify()
        return PngImageFile(io.BytesIO(data))
    except IndexError as error:
        raise ExportError(f"{name} is damaged: it holds no pixels.") from error
    except (SyntaxError, OSError, ValueError, Warning) as error:
        raise ExportError(f"{name} is damaged or cut short: {error}.") from error


def texts_of(image: PngImageFile) -> dict[str, str]:
    """The texts that stand before the pixels, by key; of equal keys the last counts."""
    return {str(key): str(text) for key, text in image.info.items() if isinstance(text, str)}


def plain_text(text: str) -> str:
    """``text`` without what a PNG text cannot hold: control characters, lone surrogates."""
    escaped = "".join(
        char if (char >= " " and char != "\x7f") or char == "\n" else f"\\x{ord(char):02x}"
        for char in text
    )
    return escaped.encode("utf-8", "backslashreplace").decode("utf-8")


def _info(texts: Mapping[str, str]) -> PngInfo:
    info = PngInfo()
    for key, text in texts.items():
        # Most texts are plain, and this runs for each of many small files.
        info.add_text(key, text if text.isascii() and text.isprintable() else plain_text(text))
    return info


def text_chunks(texts: Mapping[str, str]) -> bytes:
    r"""Text chunks: tEXt where Latin-1 is enough, else iTXt in UTF-8, uncompressed.

    Args:
        texts: Text by key. Keys have 1 to 79 characters of ASCII. Control characters and lone
            surrogates are written as escapes (``\x00``).
    """
    return b"".join(_chunk(kind, data) for kind, data, *_ in _info(texts).chunks)


def encoded_png(pixels: NDArray[np.uint8], texts: Mapping[str, str]) -> bytes:
    """A PNG of (H, W, 3) or (H, W, 4) uint8 with these texts and no other metadata."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=LEVEL, pnginfo=_info(texts))
    return file.getvalue()


def _chunk(kind: bytes, data: bytes) -> bytes:
    sums = struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))
    return b"".join((struct.pack(">I", len(data)), kind, data, sums))


def _png(width: int, color_type: int, rows: NDArray[np.uint8], more: bytes) -> bytes:
    """A PNG of 8 bits per sample; each row of ``rows`` begins with the number of its filter."""
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, len(rows), 8, color_type, 0, 0, 0)),
            more,
            _chunk(b"IDAT", zlib.compress(rows.data, LEVEL)),
            _chunk(b"IEND", b""),
        )
    )


def palette_png(levels: NDArray[np.uint8], palette: NDArray[np.uint8], chunks: bytes) -> bytes:
    """A PNG whose pixels are numbers of palette colors.

    Args:
        levels: (H, W) uint8.
        palette: (256, 3) uint8, red, green, blue.
        chunks: Text chunks to carry.
    """
    height, width = levels.shape
    # Neighbouring numbers of a palette say nothing about one another: no filter (PNG 12.7).
    rows = np.zeros((height, width + 1), np.uint8)
    rows[:, 1:] = levels
    return _png(width, 3, rows, _chunk(b"PLTE", palette.tobytes()) + chunks)


def rgb_png(pixels: NDArray[np.uint8], chunks: bytes) -> bytes:
    """A PNG of plain colors.

    Args:
        pixels: (H, W, 3) uint8.
        chunks: Text chunks to carry.
    """
    height, width, _ = pixels.shape
    rows = np.zeros((height, width * 3 + 1), np.uint8)
    rows[:, 1:] = pixels.reshape(height, width * 3)
    return _png(width, 2, rows, chunks)
