"""What an image may cost, and the checks that come before decoding.

Pillow reads headers lazily; what it acts on too late is looked at here (measured with Pillow 13 on
one core): a JPEG of 0.5 MB with 1,000 scans of 64 million grey pixels decodes for 5.6 s; a TIFF of
142 bytes with tiles of 16,000×16,000 takes 251 MB, one of 10 MB with 2.5 million strips 22 s to
open; images inside icons and GIF frames larger than their screen are only seen while they are
decoded.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from PIL import Image

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


class Refused(Exception):  # noqa: N818 - `refusing` makes a sentence of it
    """Why a file is not decoded: the end of the sentence "it is a PNG image …".

    Args:
        reason: That end.
        remedy: What helps against this fault.
    """

    def __init__(self, reason: str, remedy: str = "Save it again as a plain PNG or JPEG.") -> None:
        super().__init__(reason)
        self.remedy = remedy


@dataclass(frozen=True)
class Facts:
    """What an opened file says of itself.

    Attributes:
        size: Width and height as stored, not turned upright.
        bits: Bits per sample, where it matters later; 8 otherwise.
        inverted: Zero means white, in samples that Pillow does not turn over.
        oriented: The orientation that Pillow applies by itself (TIFF), 1 otherwise.
        frames: How many there are; 0 where Pillow counts them.
    """

    size: tuple[int, int]
    bits: int = 8
    inverted: bool = False
    oriented: int = 1
    frames: int = 0


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


def check_contents(data: bytes, pillow: str, max_pixels: int, *, every_frame: bool = False) -> int:
    """Looks for sizes that Pillow sees while it decodes only.

    Args:
        data: The whole file.
        pillow: Pillow's name of the format.
        max_pixels: Most pixels of an image.
        every_frame: Look at all frames, not at the first alone; all are counted then.

    Returns:
        The number of frames, at most one more than MAX_FRAMES_COUNTED; 0: left to Pillow.

    Raises:
        Refused: A size is too large.
        struct.error, IndexError: The file is cut short or makes no sense.
    """
    if pillow == "ICO":
        _ico(data, max_pixels)
    elif pillow == "WEBP" and data[12:16] == b"VP8X":
        sides = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
        check_size((next(sides), next(sides)), max_pixels)
    elif pillow == "TIFF" and (entries := _tiff_entries(data)) > 2_000_000:
        raise Refused(f"with {entries:,} entries in its directory, which is too much work")
    return _gif(data, max_pixels, every_frame=every_frame) if pillow == "GIF" else 0


def check_opened(image: Image.Image, data: bytes, max_pixels: int) -> Facts:
    """Checks what an opened file would take to decode.

    Args:
        image: As Pillow opened it, nothing decoded yet.
        data: The whole file.
        max_pixels: Most pixels of an image.

    Returns:
        What the file says of itself.

    Raises:
        Refused: It would be too large or too much work.
    """
    if image.format == "TIFF":
        return _tiff(image, data, max_pixels)
    check_size(image.size, max_pixels)
    if image.format in ("JPEG", "MPO") and image.info.get("progressive"):
        _check_scans(data, image.size)
    return Facts(image.size, bits=data[24] if image.format == "PNG" else 8)


def _check_scans(data: bytes, size: tuple[int, int]) -> None:
    """Refuses JPEG data of more scans than a usual file of that size has."""
    # Inside the compressed data every 0xFF is followed by 0x00 or a restart marker, so each FF DA
    # is a scan (or stands in a thumbnail, which counts little).
    scans, pixels = data.count(b"\xff\xda"), size[0] * size[1]
    if scans * pixels > max(MAX_SCAN_WORK, 16 * pixels):
        raise Refused(f"of {size[0]}×{size[1]} pixels in {scans:,} scans, which is too much work")


def _tiff_entries(data: bytes) -> int:
    """Values in all tags of the first directory of a TIFF or BigTIFF file."""
    order = "<" if data[:2] == b"II" else ">"
    big = 43 in (data[2], data[3])
    (place,) = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)
    (count,) = struct.unpack_from(order + ("Q" if big else "H"), data, place)
    place += 8 if big else 2
    entries = struct.iter_unpack(
        order + ("HHQ8s" if big else "HHI4s"), data[place : place + count * (20 if big else 12)]
    )
    return sum(number for _, _, number, _ in entries if number <= len(data))


def _tiff(image: Any, data: bytes, max_pixels: int) -> Facts:
    tags = image.tag_v2

    def first(tag: int, default: int) -> int:
        value = tags.get(tag, default)
        return int(value[0] if isinstance(value, tuple) else value)

    size = (first(256, 0), first(257, 0))
    check_size(size, max_pixels)
    tile = (first(322, size[0]), first(323, max(min(first(278, size[1]), size[1]), 1)))
    check_size(tile, max_pixels)
    tiles = -(-size[0] // tile[0]) * -(-size[1] // tile[1])
    if tiles * tile[0] * tile[1] > 4 * max(size[0] * size[1], 1_000_000):
        raise Refused(
            f"of {size[0]}×{size[1]} pixels in tiles of {tile[0]}×{tile[1]}, which is too much work"
        )
    if first(259, 1) in (6, 7):  # JPEG inside
        _check_scans(data, tile)
    bits = first(258, 1)
    # Pillow turns 8 bits over and leaves 16 and 32 as they are.
    return Facts(size, bits, first(262, 0) == 0 and bits > 8, first(274, 1))


def _gif(data: bytes, max_pixels: int, *, every_frame: bool) -> int:
    """Checks the sizes of the screen and of the first or all frames, and counts the frames."""
    size = struct.unpack_from("<HH", data, 6)
    if size[0] and size[1]:
        check_size(size, max_pixels)
    frames = 0
    place = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
    while place < len(data) and (every_frame or frames <= MAX_FRAMES_COUNTED):
        if data[place] == 0x2C:
            frames += 1
            # A frame may be larger than the screen; Pillow then enlarges the image.
            left, top, width, height = struct.unpack_from("<HHHH", data, place + 1)
            if frames == 1 or every_frame:
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
    return max(frames, 1)


def _ico(data: bytes, max_pixels: int) -> None:
    """Checks the sizes of the images inside an icon."""
    (count,) = struct.unpack_from("<H", data, 4)
    for i in range(count):
        length, offset = struct.unpack_from("<II", data, 6 + 16 * i + 8)
        inner = data[offset : offset + min(length, 64)]
        if inner.startswith(b"\x89PNG"):
            check_size(struct.unpack_from(">II", inner, 16), max_pixels)
        elif len(inner) >= 12 and int.from_bytes(inner[:4], "little") >= 40:
            width, height = struct.unpack_from("<ii", inner, 4)
            check_size((abs(width), max(abs(height) // 2, 1)), max_pixels)
