"""An image that was read: upright RGB pixels and where they came from."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass, field

from PIL import Image

MAX_NAME = 80
_JOINERS = "\u200c\u200d"


@dataclass(frozen=True, eq=False)
class Picture:
    """An image as hookviz looks at it. Equal only to itself; the same source has the same sha256.

    Attributes:
        image: The pixels, a PIL image of mode RGB, upright, fully decoded. Treat it as read-only;
            it is shared, not copied.
        name: Base name of the source, without control characters, at most 80 characters.
        sha256: Hex digest of the source's bytes; of size and pixels where there were no bytes
            (PIL image, array, tensor).
        format: "PNG", "JPEG", … as Pillow names it; "array", "tensor" or "image" where no file
            was read.
        source_size: Width and height of the source, before it was turned upright.
        notes: What was done to the image, one sentence each; empty where nothing was.
        path: Absolute path of the file that was read; "" where it came without one.
        data: The source's bytes where they came without a path (an upload), so that it can be read
            again; b"" for files, PIL images, arrays and tensors.
        number: Which frame of an animation or of a camera it is, from 0; None where it is none.
        seconds: When that frame is shown, from the first one on; None likewise.
    """

    image: Image.Image
    name: str
    sha256: str
    format: str
    source_size: tuple[int, int]
    notes: tuple[str, ...] = ()
    path: str = ""
    data: bytes = field(default=b"", repr=False)
    number: int | None = None
    seconds: float | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, upright."""
        return self.image.size

    def describe(self) -> str:
        """One line for people: name, format, size and what was done.

        Examples:
            >>> Picture(Image.new("RGB", (4, 3)), "dot.png", "00", "PNG", (4, 3)).describe()
            'dot.png: PNG, 4×3 pixels'
        """
        text = f"{self.name}: {self.format}, {self.image.width}×{self.image.height} pixels"
        return f"{text}. {' '.join(self.notes)}" if self.notes else text


def clean_name(name: str, default: str = "image") -> str:
    r"""A source's base name that is safe to print: no folders, no control characters, not long.

    Args:
        name: A file name or path, with either kind of slash, from anywhere.
        default: What to say where nothing is left.

    Returns:
        At most 80 characters; a longer name keeps its beginning and its ending.

    Examples:
        >>> clean_name("C:\\photos\\my\ncat.png")
        'mycat.png'
        >>> clean_name("../../etc/passwd")
        'passwd'
    """
    base = re.split(r"[\\/]", name.rstrip("\\/"))[-1]
    # What goes: control, format (with the bidirectional overrides that make "gpj.exe" read
    # "exe.jpg"), surrogates, unassigned, line breaks. Spaces of all widths stay, and the two
    # joiners: Persian, Indic scripts and emoji are spelled with them.
    shown = (c for c in base if c.isprintable() or unicodedata.category(c) == "Zs" or c in _JOINERS)
    kept = " ".join("".join(shown).split())
    if kept in ("", ".", "..") or not any(c.isprintable() for c in kept):
        return default
    if len(kept) > MAX_NAME:
        tail = 16
        kept = f"{kept[: MAX_NAME - tail - 1]}…{kept[-tail:]}"
    return kept


def pixel_hash(image: Image.Image) -> str:
    """SHA-256 (hex) over mode, size and pixels, for sources that have no bytes of their own."""
    digest = hashlib.sha256(f"{image.mode} {image.width}x{image.height} ".encode())
    digest.update(image.tobytes())
    return digest.hexdigest()
