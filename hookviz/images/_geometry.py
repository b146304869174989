"""Where a network's input lies in the picture it was made from.

In: sizes. Out: sizes and boxes, by the rules (and the rounding) of torchvision's transforms.
Must not know: pixels, tensors.
"""

from __future__ import annotations

__all__ = ["Box", "crop_offset", "input_box", "resized_size"]

Box = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels of the picture; right and bottom lie past the last pixel."""

Sides = tuple[int, int]


def resized_size(size: Sides, resize: int | Sides | None, crop: Sides | None, fit: str) -> Sides:
    """Width and height after resizing, before cropping or padding.

    Args:
        size: Width and height of the picture.
        resize: Length of the short side, or exact (height, width), or None.
        crop: (height, width) of the input, or None.
        fit: "crop", "pad", "squash" or "none".

    Returns:
        Width and height, each at least 1.

    Examples:
        >>> resized_size((451, 300), 256, (224, 224), "crop")
        (384, 256)
        >>> resized_size((451, 300), None, (224, 224), "pad")
        (224, 149)
    """
    width, height = size
    if fit == "squash" and crop:
        return crop[1], crop[0]
    if fit in ("pad", "crop") and crop and resize is None:
        ratios = (crop[1] / width, crop[0] / height)
        if fit == "pad":
            ratio = min(ratios)
            return (
                min(crop[1], max(1, round(width * ratio))),
                min(crop[0], max(1, round(height * ratio))),
            )
        ratio = max(ratios)
        return max(crop[1], round(width * ratio)), max(crop[0], round(height * ratio))
    if resize is None:
        return width, height
    if not isinstance(resize, int):
        return resize[1], resize[0]
    # torchvision's own rule, truncation included.
    short, long = (width, height) if width <= height else (height, width)
    new_short, new_long = resize, int(resize * long / short)
    return (new_short, new_long) if width <= height else (new_long, new_short)


def input_box(size: Sides, resize: int | Sides | None, crop: Sides | None, fit: str) -> Box:
    """Where the edges of the input lie in the picture; arguments as for ``resized_size``.

    Examples:
        >>> input_box((40, 20), 20, (30, 50), "crop")
        (-5.0, -5.0, 45.0, 25.0)
    """
    width, height = size
    if crop is None or fit in ("none", "squash"):
        return (0.0, 0.0, float(width), float(height))
    new_width, new_height = resized_size(size, resize, crop, fit)
    left, top = crop_offset(new_width, crop[1]), crop_offset(new_height, crop[0])
    across, down = width / new_width, height / new_height
    return (left * across, top * down, (left + crop[1]) * across, (top + crop[0]) * down)


def crop_offset(length: int, crop: int) -> int:
    """Where torchvision's centre crop begins; negative where it adds a frame first."""
    if crop > length:
        return -((crop - length) // 2)
    return round((length - crop) / 2.0)
