"""PNG files: pixels and texts, by Pillow.

It checks every checksum, inflates no text beyond its limits (1 MiB each, 64 MiB together) and
decodes no pixel until asked.
"""

from __future__ import annotations

import io
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


def encoded_png(
    pixels: NDArray[np.uint8], info: PngInfo, palette: NDArray[np.uint8] | None = None
) -> bytes:
    """A PNG with these texts and no other metadata.

    Args:
        pixels: (H, W, 3) or (H, W, 4) uint8, or (H, W) numbers of palette colors.
        info: The texts.
        palette: (256, 3) uint8, red, green, blue.
    """
    image, file = Image.fromarray(pixels), io.BytesIO()
    if palette is not None:
        image.putpalette(palette.tobytes())
    image.save(file, "PNG", compress_level=LEVEL, pnginfo=info)
    return file.getvalue()
