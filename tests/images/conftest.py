"""Images that these tests make."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

Encode = Callable[..., bytes]


@pytest.fixture
def encode() -> Encode:
    """The bytes of an image in a format, with Pillow's options."""

    def do(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:  # noqa: A002 - Pillow's word
        stream = io.BytesIO()
        image.save(stream, format, **options)
        return stream.getvalue()

    return do


@pytest.fixture
def chunk() -> Callable[[bytes, bytes], bytes]:
    """One chunk of a PNG."""

    def do(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    return do


@pytest.fixture
def png(chunk: Callable[[bytes, bytes], bytes]) -> Callable[..., bytes]:
    """A PNG by hand: width, height, bits, color type, filtered rows, other chunks before them."""

    def do(
        width: int, height: int, bits: int, color: int, rows: bytes, *extra: tuple[bytes, bytes]
    ) -> bytes:
        header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
        return b"".join((
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            *(chunk(kind, body) for kind, body in extra),
            chunk(b"IDAT", zlib.compress(rows)),
            chunk(b"IEND", b""),
        ))  # fmt: skip

    return do


@pytest.fixture
def quarters() -> Image.Image:
    """A 40×20 picture whose corners tell how it is turned: red, green / blue, yellow."""
    image = Image.new("RGB", (40, 20), "red")
    image.paste("lime", (20, 0, 40, 10))
    image.paste("blue", (0, 10, 20, 20))
    image.paste("yellow", (20, 10, 40, 20))
    return image
