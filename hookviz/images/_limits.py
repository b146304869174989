"""How large a picture may be, and the sentences' way of saying so.

In: nothing. Out: numbers. Must not know: anything.
"""

from __future__ import annotations

__all__ = ["MAX_BYTES", "MAX_PIXELS", "MAX_SECONDS", "SLOW_FORMATS", "megabytes", "megapixels"]

MAX_BYTES = 50_000_000
"""Bytes of a file."""

MAX_PIXELS = 64_000_000
"""Pixels of a picture, checked in its header before anything is decoded."""

MAX_SECONDS = 6.0
"""Seconds of this thread's processor time after which decoding is given up, where it can be."""


SLOW_FORMATS = {"JPEG2000": 24_000_000, "QOI": 16_000_000, "HEIF": 48_000_000}
"""Fewer pixels for formats whose decoders take several times longer than JPEG's."""


def megabytes(count: int) -> str:
    """A number of bytes for people.

    Examples:
        >>> megabytes(50_000_000), megabytes(1_250_000), megabytes(900)
        ('50 MB', '1.2 MB', '900 bytes')
    """
    if count < 100_000:
        return f"{count:,} bytes"
    value = count / 1e6
    return f"{value:,.0f} MB" if value >= 10 else f"{value:.1f} MB"


def megapixels(count: int) -> str:
    """A number of pixels for people.

    Examples:
        >>> megapixels(64_000_000), megapixels(400_000_000)
        ('64 million pixels', '400 million pixels')
    """
    return f"{count / 1e6:,.0f} million pixels" if count >= 10_000_000 else f"{count:,} pixels"
