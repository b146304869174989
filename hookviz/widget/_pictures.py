"""Pictures for a page: how it looks at them, and their bytes."""

from __future__ import annotations

import io
import math
from typing import Any

from PIL import Image


def look_of(width: int, ratio: float, style: str, widest: float = math.inf) -> dict[str, Any]:
    """How a page looks, as `GridOptions` takes it; whatever it says is brought within limits.

    Args:
        width: Pixels of the screen for a picture.
        ratio: Pixels of the screen to one of the page.
        style: "light" or "dark".
        widest: Pixels of the page that a picture gets at most.

    Examples:
        >>> look_of(1800, 2.0, "dark", widest=520)
        {'width': 1040, 'dpi': 200.0, 'style': 'dark'}
    """
    ratio = min(3.0, max(1.0, ratio))
    return {
        "width": int(min(6000, widest * ratio, max(200, width))),
        "dpi": 100.0 * ratio,
        "style": "dark" if style == "dark" else "light",
    }


def jpeg_bytes(image: Image.Image, longest: int | None = None) -> bytes:
    """A picture as a JPEG.

    Args:
        image: RGB; it is left as it is.
        longest: Pixels that its longer side has at most; None leaves its size.
    """
    if longest is not None:
        image = image.copy()
        image.thumbnail((longest, longest))
    return _saved(image, "JPEG", quality=90)


def png_bytes(image: Image.Image, compress_level: int = 1) -> bytes:
    """A picture as a PNG, quickly made rather than small."""
    return _saved(image, "PNG", compress_level=compress_level)


def fewer_colors(image: Image.Image, compress_level: int = 1) -> bytes:
    """An RGB picture as a PNG of 256 colors, with about a third of the bytes.

    A grid has the 256 colors of its colormap and the grays of its texts, so that little changes.
    """
    # MAXCOVERAGE keeps rare colors: by Pillow's default a color bar's ends, which few pixels have,
    # came out in bands (off by 17 of 255; by 3 so).
    return png_bytes(image.quantize(256, Image.Quantize.MAXCOVERAGE), compress_level)


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
