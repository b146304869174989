"""In: a folder. Out: the picture files, good and bad, that the journeys hand to the app.

Must not know: the browser and hookviz.
"""

from __future__ import annotations

import io
import random
import struct
import zlib
from pathlib import Path

from PIL import Image, ImageDraw


def photo(path: Path, *, size: tuple[int, int] = (640, 480), hue: int = 30) -> Path:
    """A picture with edges, ramps and round things; its format follows the suffix."""
    width, height = size
    ramp = Image.linear_gradient("L").resize(size)
    image = Image.merge("HSV", (Image.new("L", size, hue), ramp.transpose(0), ramp)).convert("RGB")
    draw = ImageDraw.Draw(image)
    step = max(width // 8, 4)
    for i, left in enumerate(range(0, width, step)):
        box = (left, height // 4, left + step * 3 // 4, height // 4 + step * 3 // 4)
        colour = (40 * i % 256, 255 - 30 * i % 256, 90)
        (draw.ellipse if i % 2 else draw.rectangle)(box, fill=colour, outline="white", width=2)
    draw.line((0, height, width, 0), fill="black", width=max(height // 60, 1))
    image.save(path)
    return path


def heavy_photo(path: Path, megabytes: float) -> Path:
    """A valid JPEG of at least this size: a photo, then bytes after its end, as some cameras
    append (a preview, a film): every reader accepts and ignores them."""
    photo(path, size=(1600, 1200))
    missing = int(megabytes * 1_000_000) - path.stat().st_size
    with path.open("ab") as file:
        file.write(random.Random(7).randbytes(max(missing, 0)))  # noqa: S311  (filler, no secret)
    return path


def bomb_png(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header declares width × height pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b""))


HEIC_BYTES = b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + b"\x00" * 400


def bad_files(folder: Path) -> dict[str, Path]:
    """One file of each bad kind, by kind."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = photo(folder / "whole.jpg").read_bytes()
    pages = io.BytesIO()
    Image.new("RGB", (60, 80), "white").save(
        pages, "PDF", save_all=True, append_images=[Image.new("RGB", (60, 80), "grey")]
    )
    contents = {
        "half": ("half.jpg", whole[: len(whole) // 2]),
        "empty": ("empty.png", b""),
        "html": ("page.png", b"<!DOCTYPE html><html><body>404 Not Found</body></html>"),
        "svg": (
            "drawing.svg",
            b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9"/></svg>',
        ),
        "heic": ("phone.jpg", HEIC_BYTES),
        "bomb": ("bomb.png", bomb_png(20_000, 20_000)),
        "pdf": ("paper.pdf", pages.getvalue()),
    }
    paths = {}
    for kind, (name, data) in contents.items():
        paths[kind] = folder / name
        paths[kind].write_bytes(data)
    return paths


def huge_file(path: Path, megabytes: int) -> Path:
    """A file of this size that takes no room on the disk (a hole)."""
    with path.open("wb") as file:
        file.truncate(megabytes * 1_000_000)
    return path
