"""What a file is, told by its first bytes and never by its name.

In: the bytes of a file. Out: its kind, in words, and Pillow's name for it where hookviz opens it.
Must not know: how anything is decoded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["ACCEPTED", "FileKind", "file_kind"]

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


# The first match counts. Patterns are anchored at the first byte.
_SIGNATURES: tuple[tuple[bytes, FileKind], ...] = (
    (rb"\x89PNG\r\n\x1a\n", FileKind("a PNG picture", "PNG")),
    (rb"\xff\xd8\xff", FileKind("a JPEG picture", "JPEG")),
    (rb"RIFF....WEBP", FileKind("a WebP picture", "WEBP")),
    (rb"GIF8[79]a", FileKind("a GIF picture", "GIF")),
    (rb"(II[\x2a\x2b]\x00|MM\x00[\x2a\x2b])", FileKind("a TIFF picture", "TIFF")),
    (rb"BM.{4}\x00\x00\x00\x00", FileKind("a BMP picture", "BMP")),
    (rb"BM.{8}[\x00-\xff]{2}\x00\x00", FileKind("a BMP picture", "BMP")),
    (rb"\x00\x00\x01\x00[^\x00]\x00|\x00\x00\x01\x00\x00[^\x00]", FileKind("an icon", "ICO")),
    (rb"\x00\x00\x00\x0cjP  \r\n\x87\n", FileKind("a JPEG 2000 picture", "JPEG2000")),
    (rb"\xff\x4f\xff\x51", FileKind("a JPEG 2000 picture", "JPEG2000")),
    (rb"P[1-6fF0][\s#]|Py[\s#]", FileKind("a PNM picture", "PPM")),
    (rb"qoif", FileKind("a QOI picture", "QOI")),
    (rb"8BPS\x00\x01", FileKind("a Photoshop picture", "PSD")),
    (rb"\x0a[\x00\x02\x03\x05][\x00\x01][\x01\x02\x04\x08]", FileKind("a PCX picture", "PCX")),
    (rb"\x01\xda[\x00\x01][\x01\x02]", FileKind("an SGI picture", "SGI")),
    # Not opened, but named.
    (rb"%PDF-", FileKind("a PDF document", advice="Save the page as a PNG first.")),
    (rb"%!PS|\xc5\xd0\xd3\xc6", FileKind("a PostScript file", advice="Save it as a PNG first.")),
    (rb"\x00\x00\x00\x0cJXL \r\n\x87\n|\xff\x0a", FileKind("a JPEG XL picture")),
    (rb"8BPS\x00\x02", FileKind("a large Photoshop document (PSB)")),
    (rb"icns", FileKind("an Apple icon file (ICNS)")),
    (rb"\x00\x00\x02\x00[^\x00]\x00", FileKind("a Windows cursor")),
    (rb"SIMPLE  =", FileKind("a FITS file", advice="Give its array instead.")),
    (rb"\x89HDF\r\n\x1a\n", FileKind("an HDF5 file", advice="Give one of its arrays instead.")),
    (rb"\x93NUMPY", FileKind("a NumPy file", advice="Load it with numpy.load and give the array.")),
    (rb"DDS ", FileKind("a DDS texture")),
    (rb"\x76\x2f\x31\x01", FileKind("an OpenEXR picture")),
    (rb"#\?(RADIANCE|RGBE)", FileKind("a Radiance HDR picture")),
    (rb"PK(\x03\x04|\x05\x06|\x07\x08)", FileKind("a ZIP archive", advice="Unpack it first.")),
    (rb"\x1f\x8b", FileKind("a gzip archive", advice="Unpack it first.")),
    (rb"BZh[1-9]", FileKind("a bzip2 archive", advice="Unpack it first.")),
    (rb"\xfd7zXZ\x00", FileKind("an xz archive", advice="Unpack it first.")),
    (rb"\x28\xb5\x2f\xfd", FileKind("a Zstandard archive", advice="Unpack it first.")),
    (rb"7z\xbc\xaf\x27\x1c", FileKind("a 7-Zip archive", advice="Unpack it first.")),
    (rb"Rar!\x1a\x07", FileKind("a RAR archive", advice="Unpack it first.")),
    (rb"RIFF....AVI ", FileKind("an AVI video", advice="Save one frame as a PNG first.")),
    (rb"RIFF....WAVE", FileKind("a WAV sound")),
    (rb"\x1a\x45\xdf\xa3", FileKind("a Matroska or WebM video", advice="Save one frame first.")),
    (rb"\x00\x00\x01[\xb3\xba]", FileKind("an MPEG video", advice="Save one frame first.")),
    (rb"FLV\x01", FileKind("a Flash video", advice="Save one frame first.")),
    (rb"OggS", FileKind("an Ogg sound or video")),
    (rb"ID3|\xff[\xfb\xf3\xf2]", FileKind("an MP3 sound")),
    (rb"fLaC", FileKind("a FLAC sound")),
    (rb"\x7fELF|MZ", FileKind("a program")),
    (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", FileKind("an old Office document")),
    (rb"SQLite format 3\x00", FileKind("an SQLite database")),
    (rb"\{\\rtf", FileKind("an RTF document")),
    (rb"\x80[\x02-\x05]", FileKind("a Python pickle")),
)
_COMPILED = tuple((re.compile(pattern, re.DOTALL), kind) for pattern, kind in _SIGNATURES)

_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_AVIF_BRANDS = {b"avif", b"avis"}
_HEIF = FileKind("a HEIC picture", "HEIF")
_AVIF = FileKind("an AVIF picture", "AVIF")
_TGA = FileKind("a TGA picture", "TGA")

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
    if not data:
        return FileKind("an empty file")
    head = data[:4096]
    if not head.strip(b"\x00"):
        return FileKind("a file of zeros")
    if head[4:8] == b"ftyp":
        return _box_kind(head)
    for pattern, kind in _COMPILED:
        if pattern.match(head):
            return kind
    if data[-18:-1] == b"TRUEVISION-XFILE." or name.lower().endswith(
        (".tga", ".vda", ".icb", ".vst")
    ):
        return _TGA
    return _text_kind(head)


def _box_kind(head: bytes) -> FileKind:
    """ISO base media files: the brands tell AVIF and HEIC from video."""
    length = min(int.from_bytes(head[:4], "big"), len(head))
    major = head[8:12]
    brands = {major} | {head[i : i + 4] for i in range(16, max(length, 16), 4)}
    if major in _AVIF_BRANDS or (brands & _AVIF_BRANDS and major in (b"mif1", b"msf1", b"miaf")):
        return _AVIF
    if brands & _HEIF_BRANDS:
        return _HEIF
    if major.startswith(b"crx"):
        return FileKind("a Canon raw picture")
    if major.startswith((b"M4A", b"M4B")):
        return FileKind("an M4A sound")
    return FileKind("an MP4 or QuickTime video", advice="Save one frame as a PNG first.")


def _text_kind(head: bytes) -> FileKind:
    utf16 = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    start = head
    for bom in _BOMS:
        start = start.removeprefix(bom)
    if utf16:
        start = start.replace(b"\x00", b"")
    lower = start.lstrip().lower()
    if b"<svg" in lower and lower.startswith((b"<?xml", b"<svg", b"<!--", b"<!doctype svg")):
        return FileKind("an SVG drawing", advice="Save it as a PNG first.")
    if lower.startswith(
        (b"<!doctype html", b"<html", b"<head", b"<body", b"<title", b"<script")
    ) or (lower.startswith((b"<?xml", b"<!--", b"<!doctype")) and b"<html" in lower):
        return FileKind("an HTML page", advice="Download the picture itself, not its page.")
    if lower.startswith(b"<?xml"):
        return FileKind("an XML file")
    if lower.startswith(b"data:image/"):
        return FileKind("the text of a data: address", advice="Decode it with base64 first.")
    if lower.startswith(b"version https://git-lfs"):
        return FileKind("a Git LFS pointer", advice="Fetch the file with 'git lfs pull'.")
    if lower.startswith((b"{", b"[")):
        try:
            lower.decode("utf-8")
        except UnicodeDecodeError:
            pass
        else:
            return FileKind("a JSON text")
    if utf16 or not re.search(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]", start):
        # Cut in the middle of a character, the last bytes may not decode.
        try:
            start[:-4].decode("utf-8") if len(head) == 4096 else start.decode("utf-8")
        except UnicodeDecodeError:
            pass
        else:
            return FileKind("a text")
    return FileKind("a file of an unknown kind")
