"""What an image may cost, checked in its header before anything is decoded.

Hand-written for what Pillow acts on too late (measured with Pillow 13 on one core): a JPEG of
0.5 MB with 1,000 scans of 64 million grey pixels decodes for 5.6 s; a TIFF of 142 bytes with tiles
of 16,000×16,000 takes 251 MB; images inside icons and GIF frames larger than their screen are
refused by Pillow from 179 million pixels only, a limit that can only be set for the whole process.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

__all__ = [
    "MAX_BYTES",
    "MAX_FRAMES_COUNTED",
    "MAX_PIXELS",
    "MAX_SECONDS",
    "SLOW_FORMATS",
    "Header",
    "Refused",
    "check_size",
    "megapixels",
    "read_header",
]

MAX_BYTES = 50_000_000
"""Bytes of a file."""

MAX_PIXELS = 64_000_000
"""Pixels of an image."""

MAX_SECONDS = 6.0
"""Seconds of this thread's processor time after which decoding is given up, where it can be."""

SLOW_FORMATS = {"JPEG2000": 24_000_000, "QOI": 16_000_000, "HEIF": 48_000_000}
"""Fewer pixels for formats whose decoders take several times longer than JPEG's."""

MAX_FRAMES_COUNTED = 1000
"""Frames beyond this are not counted: "first of more than 1,000 frames"."""

MAX_SCAN_WORK = 2_000_000_000
"""Scans of a progressive JPEG times its pixels. Usual files have about ten scans; one scan of
64 million pixels takes at least 0.05 s, whatever little is in it."""


class Refused(Exception):  # noqa: N818 - an answer inside this room, never seen outside
    """Why a file is not decoded: the end of the sentence "it is a PNG image …".

    Args:
        reason: That end.
        remedy: What helps against this fault.
    """

    def __init__(self, reason: str, remedy: str = "Save it again as a plain PNG or JPEG.") -> None:
        super().__init__(reason)
        self.remedy = remedy


@dataclass(frozen=True)
class Header:
    """What a header says.

    Attributes:
        size: Width and height as stored; None where the format is left to Pillow.
        frames: Images in the file; MAX_FRAMES_COUNTED + 1 for "more"; None: left to Pillow.
        bits: Bits per sample, where it matters later; 8 otherwise.
        inverted: Zero means white, in samples that Pillow does not turn over.
        oriented: The orientation that Pillow applies by itself (TIFF), 1 otherwise.
    """

    size: tuple[int, int] | None = None
    frames: int | None = None
    bits: int = 8
    inverted: bool = False
    oriented: int = 1


def read_header(data: bytes, pillow: str, max_pixels: int) -> Header:
    """Reads the header of a file.

    Args:
        data: The whole file.
        pillow: Pillow's name of the format.
        max_pixels: Most pixels of an image.

    Returns:
        The header; all None where the format needs no look beforehand.

    Raises:
        Refused: The image would be too large or too much work.
        struct.error, IndexError, ValueError: The header is cut short or makes no sense.
    """
    reader = _READERS.get(pillow)
    return reader(data, max_pixels) if reader else Header()


def megapixels(count: int) -> str:
    """A number of pixels for people.

    Examples:
        >>> megapixels(64_000_000), megapixels(999)
        ('64 million pixels', '999 pixels')
    """
    return f"{count / 1e6:,.0f} million pixels" if count >= 10_000_000 else f"{count:,} pixels"


def check_size(size: tuple[int, int], max_pixels: int) -> None:
    """Refuses a size of nothing or of too many pixels."""
    width, height = size
    if width < 1 or height < 1:
        raise Refused(f"of {width}×{height} pixels, which is no size", "Save or download it again.")
    if width * height > max_pixels:
        raise Refused(
            f"of {width}×{height} pixels ({megapixels(width * height)}), and at most "
            f"{megapixels(max_pixels)} are read",
            "Make it smaller.",
        )


def _png(data: bytes, max_pixels: int) -> Header:
    if data[12:16] != b"IHDR":
        raise ValueError("no IHDR")
    width, height, bits = struct.unpack_from(">IIB", data, 16)
    check_size((width, height), max_pixels)
    return Header((width, height), bits=bits)


def _webp(data: bytes, max_pixels: int) -> Header:
    kind = data[12:16]
    if kind == b"VP8X":
        size = (
            int.from_bytes(data[24:27], "little") + 1,
            int.from_bytes(data[27:30], "little") + 1,
        )
    elif kind == b"VP8L":
        packed = int.from_bytes(data[21:25], "little")
        size = ((packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1)
    elif kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        size = (width & 0x3FFF, height & 0x3FFF)
    else:
        raise ValueError("no VP8 chunk")
    check_size(size, max_pixels)
    return Header(size)


_JPEG_MARKER = re.compile(rb"\xff+([^\x00\xff])")


def _jpeg(data: bytes, max_pixels: int) -> Header:
    place = 2
    size = None
    progressive = False
    while place < len(data):
        found = _JPEG_MARKER.match(data, place)
        if not found:
            break
        marker = found.group(1)[0]
        place = found.end()
        if marker in (0x01, *range(0xD0, 0xD9)):
            continue
        (length,) = struct.unpack_from(">H", data, place)
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, place + 3)
            size = (width, height)
            progressive = marker in (0xC2, 0xC6, 0xCA, 0xCE)
        if marker in (0xDA, 0xD9):
            break
        place += max(length, 2)
    if size is None:
        # No frame before the first scan: Pillow says what it thinks of that.
        return Header()
    check_size(size, max_pixels)
    if progressive:
        # Inside the compressed data every 0xFF is followed by 0x00 or a restart marker, so each
        # FF DA is a scan (or stands in a thumbnail, which counts little).
        scans = data.count(b"\xff\xda")
        if scans * size[0] * size[1] > max(MAX_SCAN_WORK, 16 * size[0] * size[1]):
            raise Refused(
                f"of {size[0]}×{size[1]} pixels in {scans:,} scans, which is too much work"
            )
    return Header(size)


def _gif(data: bytes, max_pixels: int) -> Header:
    size = struct.unpack_from("<HH", data, 6)
    if size[0] and size[1]:
        check_size(size, max_pixels)
    frames = 0
    place = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    while place < len(data) and frames <= MAX_FRAMES_COUNTED:
        if data[place] == 0x2C:
            frames += 1
            # A frame may be larger than the screen; Pillow then enlarges the image.
            left, top, width, height = struct.unpack_from("<HHHH", data, place + 1)
            if frames == 1:
                check_size((max(left + width, 1), max(top + height, 1)), max_pixels)
            packed = data[place + 9]
            place += 10 + (3 << (packed & 7) + 1 if packed & 0x80 else 0) + 1
        elif data[place] == 0x21:
            place += 2
        else:
            break
        while place < len(data) and data[place]:
            place += data[place] + 1
        place += 1
    return Header((size[0], size[1]), frames=max(frames, 1))


def _ico(data: bytes, max_pixels: int) -> Header:
    (count,) = struct.unpack_from("<H", data, 4)
    for i in range(count):
        length, offset = struct.unpack_from("<II", data, 6 + 16 * i + 8)
        inner = data[offset : offset + min(length, 64)]
        if inner.startswith(b"\x89PNG"):
            _png(inner, max_pixels)
        elif len(inner) >= 12 and int.from_bytes(inner[:4], "little") >= 40:
            width, height = struct.unpack_from("<ii", inner, 4)
            check_size((abs(width), max(abs(height) // 2, 1)), max_pixels)
    return Header()


# TIFF's types by number: bytes of one value.
_UNIT = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}  # fmt: skip # noqa: E501
_FORMAT = {1: "B", 3: "H", 4: "I", 16: "Q"}


def _tiff(data: bytes, max_pixels: int) -> Header:
    order = "<" if data[:2] == b"II" else ">"
    big = 43 in (data[2], data[3])
    (place,) = (
        struct.unpack_from(order + "Q", data, 8)
        if big
        else struct.unpack_from(order + "I", data, 4)
    )
    tags, entries, following = _directory(data, place, order, big=big)
    size, tile = (tags.get(256, 0), tags.get(257, 0)), (tags.get(322), tags.get(323))
    check_size(size, max_pixels)
    piece = (size[0], min(max(tags.get(278, 2**32 - 1), 1), size[1]))
    if tile[0] is not None and tile[1] is not None:
        piece = (tile[0], tile[1])
        check_size(piece, max_pixels)
        tiles = -(-size[0] // piece[0]) * -(-size[1] // piece[1])
        if tiles * piece[0] * piece[1] > 4 * max(size[0] * size[1], 1_000_000):
            raise Refused(
                f"of {size[0]}×{size[1]} pixels in tiles of {piece[0]}×{piece[1]}, which is too "
                "much work"
            )
    if entries > 2_000_000:
        raise Refused(f"with {entries:,} entries in its directory, which is too much work")
    if tags.get(259) in (6, 7):  # JPEG inside
        scans = data.count(b"\xff\xda")
        if scans * piece[0] * piece[1] > MAX_SCAN_WORK:
            raise Refused(f"of JPEG pieces in {scans:,} scans, which is too much work")
    bits = tags.get(258, 1)
    return Header(
        size,
        _count_directories(data, place, following, order, big=big),
        bits,
        # Pillow turns 8 bits over and leaves 16 and 32 as they are.
        inverted=tags.get(262, 0) == 0 and bits > 8,
        oriented=tags.get(274, 1),
    )


def _directory(
    data: bytes, place: int, order: str, *, big: bool, skip: bool = False
) -> tuple[dict[int, int], int, int]:
    """First value of each tag that is a whole number; values in all; the next directory."""
    count_format, entry_size, inline = ("Q", 20, 8) if big else ("H", 12, 4)
    address = order + ("Q" if big else "I")
    (count,) = struct.unpack_from(order + count_format, data, place)
    place += struct.calcsize(order + count_format)
    end = place + count * entry_size
    if end > len(data):
        raise struct.error("the directory is longer than the file")
    tags: dict[int, int] = {}
    total = 0
    for entry in () if skip else range(place, end, entry_size):
        tag, kind, number = struct.unpack_from(order + ("HHQ" if big else "HHI"), data, entry)
        unit = _UNIT.get(kind, 0)
        total += number if unit and number * unit <= len(data) else 0
        if kind in _FORMAT and number and tag not in tags:
            at = entry + entry_size - inline
            if number * unit > inline:
                (at,) = struct.unpack_from(address, data, at)
            if at + unit <= len(data):
                tags[tag] = struct.unpack_from(order + _FORMAT[kind], data, at)[0]
    cut = end + struct.calcsize(address) > len(data)
    return tags, total, 0 if cut else struct.unpack_from(address, data, end)[0]


def _count_directories(data: bytes, first: int, following: int, order: str, *, big: bool) -> int:
    """Directories in the chain, at most one more than MAX_FRAMES_COUNTED."""
    seen = {first}
    while following and following not in seen and len(seen) <= MAX_FRAMES_COUNTED:
        seen.add(following)
        try:
            following = _directory(data, following, order, big=big, skip=True)[2]
        except struct.error:
            break
    return len(seen)


_READERS = {"PNG": _png, "WEBP": _webp, "JPEG": _jpeg, "GIF": _gif, "ICO": _ico, "TIFF": _tiff}
