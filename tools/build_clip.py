"""Makes assets/clip.webp: a slow way over the sample photos, for where there is no camera.

`python tools/build_clip.py` writes it again, the same to the byte with one version of Pillow.
"""

from __future__ import annotations

import math
from pathlib import Path

from PIL import Image

from hookviz.images import sample_image

COUNT = 36
SIZE = (192, 144)
LASTS = 80  # milliseconds of each frame
TARGET = Path(__file__).parent.parent / "assets" / "clip.webp"


def frame(number: int) -> Image.Image:
    """A window that moves over the cat, and from there to the cup of coffee."""
    part, place = divmod(number, COUNT // 2)
    share = place / (COUNT // 2 - 1)
    image = sample_image(("chelsea.png", "coffee.png")[part]).image
    width, height = image.size
    high = height * (0.95 - 0.35 * math.sin(math.pi * share))
    wide = min(width, high * SIZE[0] / SIZE[1])
    left, top = (width - wide) * share, (height - high) * 0.4
    box = (left, top, left + wide, top + wide * SIZE[1] / SIZE[0])
    return image.resize(SIZE, Image.Resampling.BICUBIC, box=box)


if __name__ == "__main__":
    first, *others = map(frame, range(COUNT))
    first.save(
        TARGET, save_all=True, append_images=others, duration=LASTS, loop=0, quality=80, method=6
    )
    print(f"{TARGET.name}: {TARGET.stat().st_size:,} bytes")
