"""Resizing and cropping by torchvision's own functions.

In: an RGB image, sizes. Out: uint8 levels (3, h, w). Must not know: normalisation, presets.
"""

from __future__ import annotations

import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F
from torchvision.transforms.v2 import functional as v2_functional

from hookviz.errors import ImageError
from hookviz.images._geometry import Box

__all__ = ["MAX_INPUT_PIXELS", "check_sides", "part_resized", "resized_picture", "resized_tensor"]

MAX_INPUT_PIXELS = 64_000_000
"""An input (or the resized picture it is cut from) of more pixels is refused or avoided."""

Sides = tuple[int, int]


def resized_picture(
    image: Image.Image, size: Sides | None, crop: Sides | None, mode: InterpolationMode
) -> torch.Tensor:
    """Resized as a PIL image, as the presets do: Pillow averages where it shrinks.

    Args:
        image: RGB.
        size: Width and height, or None to leave them.
        crop: Height and width of the centre crop, or None.
        mode: The interpolation.

    Returns:
        New, uint8 (3, h, w).
    """
    if size is not None:
        # antialias is not passed: Pillow always averages, and False would only warn.
        image = F.resize(image, [size[1], size[0]], interpolation=mode)
    if crop is not None:
        image = F.center_crop(image, list(crop))
    levels: torch.Tensor = F.pil_to_tensor(image)
    return levels


def resized_tensor(
    image: Image.Image,
    size: Sides | None,
    crop: Sides | None,
    mode: InterpolationMode,
    *,
    antialias: bool,
    v2: bool,
) -> torch.Tensor:
    """Resized as a uint8 tensor, as the video preset and chains of transforms v2 do.

    Args:
        image: RGB.
        size: Width and height, or None to leave them.
        crop: Height and width of the centre crop, or None.
        mode: The interpolation.
        antialias: Whether shrinking averages.
        v2: By transforms v2, which rounds differently.

    Returns:
        New, uint8 (3, h, w).
    """
    batch: torch.Tensor = F.pil_to_tensor(image)[None]
    if size is not None:
        resize = v2_functional.resize if v2 else F.resize
        batch = resize(batch, [size[1], size[0]], interpolation=mode, antialias=antialias)
    if crop is not None:
        batch = F.center_crop(batch, list(crop))
    return batch[0]


def part_resized(
    image: Image.Image, size: Sides, crop: Sides, box: Box, interpolation: str
) -> torch.Tensor:
    """For very long pictures: only what the crop keeps is resized.

    A strip of 1×10,000 with its short side resized to 256 would have 655 million pixels, of which
    the crop keeps 0.008 %.

    Args:
        image: RGB.
        size: Width and height that the whole picture would have.
        crop: Height and width of the centre crop.
        box: Where the crop lies in the picture.
        interpolation: By its name.

    Returns:
        New, uint8 (3, height, width).
    """
    inside = (
        max(box[0], 0.0),
        max(box[1], 0.0),
        min(box[2], float(image.width)),
        min(box[3], float(image.height)),
    )
    target = (min(size[0], crop[1]), min(size[1], crop[0]))
    resample = getattr(Image.Resampling, interpolation.split("-")[0].upper())
    part = image.resize(target, resample, box=inside)
    levels: torch.Tensor = F.pil_to_tensor(F.center_crop(part, list(crop)))
    return levels


def check_sides(word: str, sides: int | tuple[int, int] | None) -> None:
    """Refuses a size that is none, or larger than MAX_INPUT_PIXELS."""
    values = () if sides is None else (sides,) if isinstance(sides, int) else tuple(sides)
    if sides is not None and not isinstance(sides, int) and len(values) != 2:
        raise ImageError(f"{word}={sides!r} is not a size; give (height, width).")
    if any(not isinstance(v, int) or v < 1 for v in values):
        raise ImageError(f"{word}={sides!r} is not a size; sides are whole numbers from 1 up.")
    product = values[0] * values[-1] if values else 0
    if product > MAX_INPUT_PIXELS:
        raise ImageError(
            f"{word}={sides!r} asks for {product / 1e6:.0f} million pixels; at most "
            f"{MAX_INPUT_PIXELS // 1_000_000} million are legal."
        )
