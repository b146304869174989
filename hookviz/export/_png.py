"""PNG files as what they are: a signature and chunks.

In: the bytes of a PNG. Out: the same picture with text chunks of ours in place of others, or the
texts that it holds. Must not know: what the texts say, tensors, figures.

Texts are read here and not with an image library because a file that comes from elsewhere may
declare gigantic texts: here nothing is inflated beyond a limit, no pixel is decoded, and a file
that was cut short is noticed.

Source: Portable Network Graphics (PNG) Specification, third edition, sections 5 and 11.3.3.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hookviz.errors import ExportError
from hookviz.export._files import checked_path

__all__ = [
    "SIGNATURE",
    "palette_png",
    "plain_text",
    "png_bytes_of",
    "png_size",
    "read_texts",
    "rgb_png",
    "text_chunks",
    "with_texts",
]

SIGNATURE = b"\x89PNG\r\n\x1a\n"

MAX_FILE = 512 * 1024 * 1024
MAX_TEXT = 1024 * 1024
MAX_TEXTS = 8 * 1024 * 1024
MAX_CHUNKS = 200_000

_PICTURE_CHUNKS = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"pHYs"})
"""What the pixels need, and the dots per inch. Texts, EXIF and times are not carried over."""


@dataclass(frozen=True)
class _Chunk:
    kind: bytes
    data: memoryview
    raw: memoryview


def png_bytes_of(png: str | Path | bytes, *, name: str | None = None) -> tuple[bytes, str]:
    """The bytes of a PNG and the name to use for it in messages.

    Args:
        png: A path, or the bytes themselves.
        name: What to call it; the file's own name by default.

    Raises:
        ExportError: There is no such file, it cannot be read, or it is above 512 MiB.
    """
    if isinstance(png, bytes | bytearray | memoryview):
        return bytes(png), name or "the picture"
    path = checked_path("png", png)
    told = name or path.name or str(path)
    try:
        # A pipe or a device has no size and may never end.
        if path.exists() and not path.is_file():
            raise ExportError(f"{told} is a folder or a device, not a PNG file.")
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ExportError(f"{told} cannot be read: {reason}.") from error
    if len(data) > MAX_FILE:
        raise ExportError(f"{told} has more than {MAX_FILE:,} bytes, which are the most.")
    return data, told


def _chunks(data: bytes, name: str) -> Iterator[_Chunk]:
    """Every chunk of a PNG, each checked, up to and with IEND."""
    if not data.startswith(SIGNATURE):
        found = "nothing" if not data else repr(data[:8])
        raise ExportError(f"{name} is not a PNG: it begins with {found}.")
    view, place = memoryview(data), len(SIGNATURE)
    for number in range(MAX_CHUNKS):
        if place + 12 > len(data):
            raise ExportError(
                f"{name} is cut short: it ends after {len(data):,} bytes, before its last chunk."
            )
        (length,) = struct.unpack_from(">I", data, place)
        kind, end = data[place + 4 : place + 8], place + 12 + length
        if end > len(data):
            raise ExportError(
                f"{name} is cut short: its chunk {kind!r} should end at byte {end:,}, and the file "
                f"has {len(data):,} bytes."
            )
        (sum_there,) = struct.unpack_from(">I", data, end - 4)
        if zlib.crc32(view[place + 4 : end - 4]) != sum_there:
            raise ExportError(f"{name} is damaged: the checksum of its chunk {kind!r} is wrong.")
        if (number == 0) != (kind == b"IHDR"):
            raise ExportError(f"{name} is damaged: its chunk {number + 1} is {kind!r}.")
        yield _Chunk(kind, view[place + 8 : end - 4], view[place:end])
        if kind == b"IEND":
            return
        place = end
    raise ExportError(f"{name} has more than {MAX_CHUNKS:,} chunks.")


def _inflated(data: bytes, limit: int) -> bytes | None:
    """``data`` unpacked, or None where it is damaged or longer than ``limit``."""
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(data, limit + 1)
    except zlib.error:
        return None
    return text if len(text) <= limit and stream.eof else None


def _decoded(chunk: _Chunk) -> tuple[str, str] | None:
    """Key and text of a text chunk; None where it is malformed or beyond the limits."""
    key, found, rest = bytes(chunk.data[: MAX_TEXT + 400]).partition(b"\0")
    if not found or not 1 <= len(key) <= 79 or len(chunk.data) > MAX_TEXT + 400:
        return None
    text: bytes | None
    encoding = "latin-1"
    if chunk.kind == b"tEXt":
        text = rest
    elif chunk.kind == b"zTXt":
        text = _inflated(rest[1:], MAX_TEXT) if rest[:1] == b"\0" else None
    else:
        encoding, flags, parts = "utf-8", rest[:2], rest[2:].split(b"\0", 2)
        if len(parts) != 3 or len(flags) != 2:
            return None
        text = parts[2]
        if flags[0] == 1:
            text = _inflated(text, MAX_TEXT) if flags[1] == 0 else None
    if text is None or len(text) > MAX_TEXT:
        return None
    try:
        return key.decode("latin-1"), text.decode(encoding)
    except UnicodeDecodeError:
        return None


def read_texts(data: bytes, name: str = "the picture") -> dict[str, str]:
    """The texts of a PNG by key; of equal keys the first counts.

    Args:
        data: The whole file.
        name: What to call it in messages.

    Returns:
        Texts of tEXt, zTXt and iTXt chunks. Malformed ones and those beyond 1 MiB are left out.

    Raises:
        ExportError: It is no PNG, is cut short or damaged, or its texts exceed 8 MiB together.
    """
    texts: dict[str, str] = {}
    total = 0
    for chunk in _chunks(data, name):
        if chunk.kind in {b"tEXt", b"zTXt", b"iTXt"} and (pair := _decoded(chunk)) is not None:
            total += len(pair[1])
            if total > MAX_TEXTS:
                raise ExportError(f"{name} holds more than {MAX_TEXTS:,} characters of text.")
            texts.setdefault(*pair)
    return texts


def png_size(data: bytes, name: str = "the picture") -> tuple[int, int]:
    """Width and height that a PNG declares, after every chunk has been checked."""
    first = next(iter(list(_chunks(data, name))))
    if len(first.data) != 13:
        raise ExportError(f"{name} is damaged: its header has {len(first.data)} bytes, not 13.")
    width, height = struct.unpack_from(">II", first.data)
    return int(width), int(height)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return b"".join(
        (
            struct.pack(">I", len(data)),
            kind,
            data,
            struct.pack(">I", zlib.crc32(data, zlib.crc32(kind))),
        )
    )


def plain_text(text: str) -> str:
    """``text`` without what a PNG text cannot hold: control characters, lone surrogates."""
    escaped = "".join(
        sign if (sign >= " " and sign != "\x7f") or sign == "\n" else f"\\x{ord(sign):02x}"
        for sign in text
    )
    return escaped.encode("utf-8", "backslashreplace").decode("utf-8")


def text_chunks(texts: Mapping[str, str]) -> bytes:
    r"""Text chunks: tEXt where Latin-1 is enough, else iTXt in UTF-8, uncompressed.

    Args:
        texts: Text by key. Keys have 1 to 79 characters of ASCII. Control characters and lone
            surrogates are written as escapes (``\x00``).
    """
    made: list[bytes] = []
    for key, text in texts.items():
        # Most texts are plain, and this runs for each of many small files.
        plain = text if text.isascii() and text.isprintable() else plain_text(text)
        try:
            made.append(_chunk(b"tEXt", key.encode("ascii") + b"\0" + plain.encode("latin-1")))
        except UnicodeEncodeError:
            made.append(
                _chunk(b"iTXt", key.encode("ascii") + b"\0\0\0\0\0" + plain.encode("utf-8"))
            )
    return b"".join(made)


def with_texts(data: bytes, chunks: bytes) -> bytes:
    """The same picture with these text chunks and no other metadata (no EXIF, no other texts).

    Args:
        data: A PNG.
        chunks: What :func:`text_chunks` made.
    """
    kept = [c.raw for c in _chunks(data, "the picture") if c.kind in _PICTURE_CHUNKS]
    return b"".join((SIGNATURE, kept[0], chunks, *kept[1:]))


def _png(
    size: tuple[int, int], colour_type: int, rows: NDArray[np.uint8], more: bytes, level: int
) -> bytes:
    """A PNG of 8 bits per sample; each row of ``rows`` begins with the number of its filter."""
    height, width = size
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    return b"".join(
        (
            SIGNATURE,
            _chunk(b"IHDR", header),
            more,
            _chunk(b"IDAT", zlib.compress(rows.data, level)),
            _chunk(b"IEND", b""),
        )
    )


def palette_png(
    levels: NDArray[np.uint8], palette: NDArray[np.uint8], chunks: bytes = b"", level: int = 6
) -> bytes:
    """A PNG whose pixels are numbers of palette colours.

    Args:
        levels: (H, W) uint8.
        palette: (256, 3) uint8, red, green, blue.
        chunks: Text chunks to carry.
        level: Of zlib, 0 to 9.
    """
    height, width = levels.shape
    # Neighbouring numbers of a palette say nothing about one another: no filter (PNG 12.7).
    rows = np.zeros((height, width + 1), np.uint8)
    rows[:, 1:] = levels
    return _png((height, width), 3, rows, _chunk(b"PLTE", palette.tobytes()) + chunks, level)


def rgb_png(picture: NDArray[np.uint8], chunks: bytes = b"", level: int = 6) -> bytes:
    """A PNG of plain colours.

    Args:
        picture: (H, W, 3) uint8.
        chunks: Text chunks to carry.
        level: Of zlib, 0 to 9.
    """
    height, width, _ = picture.shape
    rows = np.zeros((height, width * 3 + 1), np.uint8)
    rows[:, 1:] = picture.reshape(height, width * 3)
    return _png((height, width), 2, rows, chunks, level)
