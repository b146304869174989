"""What a file's header promises, checked before anything is decoded.

In: the bytes and the format. Out: size, frames and bit depth, or why the file is refused.
Must not know: Pillow, colours.

Only what Pillow would act on too late is read here: sizes that a decoder allocates for on opening,
pictures inside pictures, and headers that ask for work out of all proportion to the size.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from hookviz.images._limits import megapixels
from hookviz.images._tiff_header import tiff_header

__all__ = ["Header", "Refused", "check_size", "read_header"]

MAX_FRAMES_COUNTED = 1000
"""Frames beyond this are not counted: "first of more than 1,000 frames"."""

MAX_SCAN_WORK = 2_000_000_000
"""Scans of a progressive JPEG times its pixels. Usual files have about ten scans; one scan of
64 million pixels takes at least 0.05 s, whatever little is in it."""


class Refused(Exception):  # noqa: N818 - an answer inside this room, never seen outside
    """Why a file is not decoded: the end of the sentence "it is a PNG picture …".

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
        frames: Pictures in the file; MAX_FRAMES_COUNTED + 1 for "more"; None: left to Pillow.
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
        max_pixels: Most pixels of a picture.

    Returns:
        The header; all None where the format needs no look beforehand.

    Raises:
        Refused: The picture would be too large or too laborious.
        struct.error, IndexError, ValueError: The header is cut short or makes no sense.
    """
    reader = _READERS.get(pillow)
    return reader(data, max_pixels) if reader else Header()


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
                f"of {size[0]}×{size[1]} pixels in {scans:,} scans, which is too laborious"
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
            # A frame may be larger than the screen; Pillow then enlarges the picture.
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


def _tiff(data: bytes, max_pixels: int) -> Header:
    found = tiff_header(data, MAX_FRAMES_COUNTED)
    check_size(found.size, max_pixels)
    if found.tile is not None:
        check_size(found.tile, max_pixels)
        across, down = (-(-side // tile) for side, tile in zip(found.size, found.tile, strict=True))
        padded = across * down * found.tile[0] * found.tile[1]
        if padded > 4 * max(found.size[0] * found.size[1], 1_000_000):
            raise Refused(
                f"of {found.size[0]}×{found.size[1]} pixels in tiles of "
                f"{found.tile[0]}×{found.tile[1]}, which is too laborious"
            )
    if found.entries > 2_000_000:
        raise Refused(f"with {found.entries:,} entries in its directory, which is too laborious")
    if found.compression in (6, 7):
        scans = data.count(b"\xff\xda")
        piece = found.tile or (found.size[0], min(found.rows, found.size[1]))
        if scans * piece[0] * piece[1] > MAX_SCAN_WORK:
            raise Refused(f"of JPEG pieces in {scans:,} scans, which is too laborious")
    return Header(
        found.size,
        found.frames,
        found.bits,
        # Pillow turns 8 bits over and leaves 16 and 32 as they are.
        inverted=found.photometric == 0 and found.bits > 8,
        oriented=found.orientation,
    )


_READERS = {"PNG": _png, "WEBP": _webp, "JPEG": _jpeg, "GIF": _gif, "ICO": _ico, "TIFF": _tiff}
