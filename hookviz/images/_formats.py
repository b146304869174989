"""What a file is, told by its first bytes and never by its name.

Pillow's own tests know images alone, and not what else was dropped on the app; they also load all
of its plugins (0.07 s). Of 60,000 files of a Linux system that are no images they take 3 texts for
images, these patterns none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

ACCEPTED = "PNG, JPEG, WebP, AVIF, GIF, TIFF, BMP, ICO, JPEG 2000, PNM, TGA, QOI, PSD, PCX and SGI"
"""The formats that are opened, for people."""


@dataclass(frozen=True)
class FileKind:
    """The kind of a file.

    Attributes:
        words: The kind with its article, for a sentence: "a PDF document".
        pillow: Pillow's name of the format, where hookviz opens it; "" otherwise. "HEIF" is opened
            by the optional plugin alone.
        advice: What to do instead, where there is something to say.
    """

    words: str
    pillow: str = ""
    advice: str = ""


_FRAME = "Save one frame as a PNG first."
_UNPACK = "Unpack it first."


def _table(*rows: Any) -> list[tuple[re.Pattern[bytes], FileKind]]:
    """Patterns, anchored at the first byte, with what they show; the first match counts."""
    return [(re.compile(pattern, re.DOTALL), FileKind(*kind)) for pattern, *kind in rows]


_SIGNATURES = _table(
    (rb"\x89PNG\r\n\x1a\n", "a PNG image", "PNG"),
    (rb"\xff\xd8\xff", "a JPEG image", "JPEG"),
    (rb"RIFF....WEBP", "a WebP image", "WEBP"),
    (rb"GIF8[79]a", "a GIF image", "GIF"),
    (rb"II[\x2a\x2b]\x00|MM\x00[\x2a\x2b]", "a TIFF image", "TIFF"),
    (rb"BM.{4}\x00{4}|BM.{10}\x00\x00", "a BMP image", "BMP"),
    (rb"\x00\x00\x01\x00([^\x00]\x00|\x00[^\x00])", "an icon", "ICO"),
    (rb"\x00\x00\x00\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51", "a JPEG 2000 image", "JPEG2000"),
    (rb"P[1-6fF0][\s#]|Py[\s#]", "a PNM image", "PPM"),
    (rb"qoif", "a QOI image", "QOI"),
    (rb"8BPS\x00\x01", "a Photoshop image", "PSD"),
    (rb"\x0a[\x00\x02\x03\x05][\x00\x01][\x01\x02\x04\x08]", "a PCX image", "PCX"),
    (rb"\x01\xda[\x00\x01][\x01\x02]", "an SGI image", "SGI"),
    # Not opened, but named.
    (rb"%PDF-", "a PDF document", "", "Save the page as a PNG first."),
    (rb"%!PS|\xc5\xd0\xd3\xc6", "a PostScript file", "", "Save it as a PNG first."),
    (rb"\x00\x00\x00\x0cJXL \r\n\x87\n|\xff\x0a", "a JPEG XL image", "", "Save it as a PNG."),
    (rb"\x93NUMPY", "a NumPy file", "", "Load it with numpy.load and give the array."),
    (rb"\x89HDF\r\n\x1a\n", "an HDF5 file", "", "Give one of its arrays instead."),
    (rb"PK(\x03\x04|\x05\x06|\x07\x08)", "a ZIP archive", "", _UNPACK),
    (rb"\x1f\x8b", "a gzip archive", "", _UNPACK),
    (rb"BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|7z\xbc\xaf|Rar!", "a packed archive", "", _UNPACK),
    (rb"RIFF....AVI ", "an AVI video", "", _FRAME),
    (rb"\x1a\x45\xdf\xa3", "a Matroska or WebM video", "", _FRAME),
    (rb"RIFF....WAVE|OggS|fLaC|ID3", "a sound"),
    (rb"\x7fELF|MZ", "a program"),
    (rb"\x80[\x02-\x05]", "a Python pickle"),
)

_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_AVIF_BRANDS = {b"avif", b"avis"}

# Texts, by how they begin in lower case.
_TEXTS = _table(
    (rb"(<\?xml|<svg|<!--|<!doctype svg).*<svg|<svg", "an SVG drawing", "", "Save it as a PNG."),
    (
        rb"<!doctype html|<(html|head|body|title|script)|(<\?xml|<!--|<!doctype).*<html",
        "an HTML page",
        "",
        "Download the image itself, not its page.",
    ),
    (rb"data:image/", "the text of a data: address", "", "Decode it with base64 first."),
    (rb"version https://git-lfs", "a Git LFS pointer", "", "Fetch the file with 'git lfs pull'."),
    (rb"<\?xml", "an XML file"),
    (rb"[{\[]", "a JSON text"),
    (rb"", "a text"),
)
_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


def file_kind(data: bytes, name: str = "") -> FileKind:
    """What the bytes are.

    Args:
        data: The file, or at least its first 4 kB.
        name: The file's name; it decides for TGA alone, which has no signature.

    Returns:
        The kind; "a file of an unknown kind" where no signature fits.

    Examples:
        >>> file_kind(b"%PDF-1.7 ...").words
        'a PDF document'
        >>> file_kind(b"<!DOCTYPE html><title>404</title>", "cat.png").words
        'an HTML page'
        >>> file_kind(b"hello").words
        'a text'
    """
    head = data[:4096]
    if not head:
        return FileKind("an empty file")
    if not head.strip(b"\x00"):
        return FileKind("a file of zeros")
    if head[4:8] == b"ftyp":
        return _box_kind(head)
    for pattern, kind in _SIGNATURES:
        if pattern.match(head):
            return kind
    named = name.lower().endswith((".tga", ".vda", ".icb", ".vst"))
    if named or data[-18:-1] == b"TRUEVISION-XFILE.":
        return FileKind("a TGA image", "TGA")
    return _text_kind(head) or FileKind("a file of an unknown kind")


def _box_kind(head: bytes) -> FileKind:
    """ISO base media files: the brands tell AVIF and HEIC from video."""
    length = min(int.from_bytes(head[:4], "big"), len(head))
    major = head[8:12]
    brands = {major} | {head[i : i + 4] for i in range(16, max(length, 16), 4)}
    if major in _AVIF_BRANDS or (brands & _AVIF_BRANDS and major in (b"mif1", b"msf1", b"miaf")):
        return FileKind("an AVIF image", "AVIF")
    if brands & _HEIF_BRANDS:
        return FileKind("a HEIC image", "HEIF")
    return FileKind("an MP4 or QuickTime video", advice=_FRAME)


def _text_kind(head: bytes) -> FileKind | None:
    utf16 = head.startswith(_BOMS[1:])
    start = head
    for bom in _BOMS:
        start = start.removeprefix(bom)
    if utf16:
        start = start.replace(b"\x00", b"")
    elif re.search(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]", start):
        return None
    try:
        # Cut in the middle of a character, the last bytes may not decode.
        (start[:-4] if len(head) == 4096 else start).decode("utf-8")
    except UnicodeDecodeError:
        return None
    lower = start.lstrip().lower()
    return next(kind for pattern, kind in _TEXTS if pattern.match(lower))
