"""The first directory of a TIFF file.

In: the bytes. Out: the few tags that decide how much work the file is. Must not know: limits.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = ["TiffHeader", "tiff_header"]

# TIFF's types by number: bytes of one value.
_UNIT = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}  # fmt: skip # noqa: E501
_FORMAT = {1: "B", 3: "H", 4: "I", 16: "Q"}


@dataclass(frozen=True)
class TiffHeader:
    """Tags of the first directory.

    Attributes:
        size: Width and height as stored, not turned by the orientation.
        tile: Width and height of a tile, or None where the file has strips.
        rows: Rows of a strip.
        bits: Bits of the first sample.
        photometric: 0 where zero means white.
        compression: TIFF's number.
        orientation: 1 to 8.
        entries: Values in all tags together.
        frames: Directories in the chain, at most one more than asked for.
    """

    size: tuple[int, int]
    tile: tuple[int, int] | None
    rows: int
    bits: int
    photometric: int
    compression: int
    orientation: int
    entries: int
    frames: int


def tiff_header(data: bytes, max_frames: int) -> TiffHeader:
    """Reads the first directory of a TIFF or BigTIFF file.

    Args:
        data: The whole file.
        max_frames: Directories are counted up to one more than this.

    Returns:
        The header, with TIFF's defaults for tags that are not there (size 0×0).

    Raises:
        struct.error: The file ends before its directory does.
    """
    order = "<" if data[:2] == b"II" else ">"
    big = 43 in (data[2], data[3])
    (place,) = (
        struct.unpack_from(order + "Q", data, 8)
        if big
        else struct.unpack_from(order + "I", data, 4)
    )
    tags, entries, following = _directory(data, place, order, big)
    seen = {place}
    while following and following not in seen and len(seen) <= max_frames:
        seen.add(following)
        try:
            following = _next_directory(data, following, order, big)
        except struct.error:
            break
    tile = (tags[322], tags[323]) if 322 in tags and 323 in tags else None
    if tile is not None and (tile[0] < 1 or tile[1] < 1):
        raise ValueError("empty tiles")
    return TiffHeader(
        size=(tags.get(256, 0), tags.get(257, 0)),
        tile=tile,
        rows=max(tags.get(278, 2**32 - 1), 1),
        bits=tags.get(258, 1),
        photometric=tags.get(262, 0),
        compression=tags.get(259, 1),
        orientation=tags.get(274, 1),
        entries=entries,
        frames=len(seen),
    )


def _directory(data: bytes, place: int, order: str, big: bool) -> tuple[dict[int, int], int, int]:
    """First value of each tag that is a whole number; values in all; the next directory."""
    count_format, entry_size, inline = ("Q", 20, 8) if big else ("H", 12, 4)
    if place >= len(data):
        raise struct.error("the directory lies beyond the file")
    (count,) = struct.unpack_from(order + count_format, data, place)
    place += struct.calcsize(order + count_format)
    if count * entry_size > len(data) - place:
        raise struct.error("the directory is longer than the file")
    tags: dict[int, int] = {}
    total = 0
    for _ in range(count):
        tag, kind, number = struct.unpack_from(order + ("HHQ" if big else "HHI"), data, place)
        unit = _UNIT.get(kind, 0)
        total += number if unit and number * unit <= len(data) else 0
        if kind in _FORMAT and number and tag not in tags:
            at = place + entry_size - inline
            if number * unit > inline:
                (at,) = struct.unpack_from(order + ("Q" if big else "I"), data, at)
            if at + unit <= len(data):
                tags[tag] = struct.unpack_from(order + _FORMAT[kind], data, at)[0]
        place += entry_size
    try:
        (following,) = struct.unpack_from(order + ("Q" if big else "I"), data, place)
    except struct.error:
        following = 0
    return tags, total, following


def _next_directory(data: bytes, place: int, order: str, big: bool) -> int:
    count_format, entry_size = ("Q", 20) if big else ("H", 12)
    if place >= len(data):
        raise struct.error("the directory lies beyond the file")
    (count,) = struct.unpack_from(order + count_format, data, place)
    end = place + struct.calcsize(order + count_format) + count * entry_size
    if end >= len(data):
        raise struct.error("the directory is longer than the file")
    (following,) = struct.unpack_from(order + ("Q" if big else "I"), data, end)
    return int(following)
