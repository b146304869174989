"""Pixels of any kind → RGB: 8 bits, sRGB, opaque.

Images of any of Pillow's modes:

- Transparency (alpha, palette, color key) is laid on white.
- 16-bit grey: the whole range 0..65535 becomes 0..255 (12-bit TIFF: 0..4095), never clipped.
- 32-bit whole numbers within 0..255 are taken as they are, others are stretched from the smallest
  to the largest. Floats within 0..1 are taken as they are, others are stretched. NaN becomes black,
  ±Inf the ends; a constant image outside the range becomes mid-grey. Each of these is said.
- An ICC profile is applied (relative colorimetric, black point compensation) unless it is sRGB in
  effect; a broken one is ignored, and said. CMYK without a profile goes by Pillow's formula.

Arrays and tensors:

- Axes: (H, W) is grey. Of three axes the channel axis is the one of length 1, 3 or 4 (2 as well,
  where nothing else fits: grey and alpha): the last for an array (H, W, C), the first for a tensor
  (C, H, W); where only the other one fits, that one; where both fit, the kind's own order is taken
  and a note says so. A batch of one loses its first axis, a larger one is refused.
- Values: bool; uint8; uint16 (0..65535); other whole numbers within 0..255; floats within 0..1.
  Everything else is refused: a guess between 0..1, 0..255 and normalised values would be wrong in
  silence.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageChops, ImageCms

from hookviz._tensors import dense
from hookviz._text import shape_text
from hookviz.errors import ImageError
from hookviz.images._limits import check_size

BAND_VALUES = 4_000_000
"""Values converted at a time: an image of 64 million pixels needs no float copy of itself."""

MAX_PROFILE_BYTES = 8_000_000
PROFILE_TOLERANCE = 2
"""A profile that moves no color by more than this many of 255 levels is sRGB in effect."""

_MODE_SPACES = {"RGB": "RGB ", "L": "GRAY", "CMYK": "CMYK", "LAB": "Lab "}


def to_rgb(
    image: Image.Image, bits: int = 8, inverted: bool = False, sixteen: bool = False
) -> tuple[Image.Image, tuple[str, ...]]:
    """Converts a loaded image.

    Args:
        image: Any mode; not changed.
        bits: Bits per sample in the file (12 for 12-bit TIFF, 16 for a color key of 16 bits,
            1, 2 or 4 for a key in small samples).
        inverted: Zero means white in the numbers.
        sixteen: Mode I holds 0..65535 (PNM).

    Returns:
        A new RGB image and the notes.

    Examples:
        >>> clear = Image.new("RGBA", (1, 1), (255, 0, 0, 0))
        >>> rgb, notes = to_rgb(clear)
        >>> rgb.getpixel((0, 0)), notes
        ((255, 255, 255), ('Transparent parts were laid on white.',))
    """
    notes: list[str] = []
    alpha: Image.Image | None = None
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        numbers = np.asarray(image)
        key = image.info.get("transparency")
        if isinstance(key, int) and image.mode.startswith("I;16"):
            alpha = _key_alpha(np.atleast_3d(numbers), (key,))
        levels, said = _levels(numbers, image.mode, bits, sixteen)
        notes += said
        color = Image.fromarray(255 - levels if inverted else levels)
    else:
        color, alpha = _color_and_alpha(image, bits)
    profile = image.info.get("icc_profile")
    if profile:
        color, note = _to_srgb(color, profile)
        notes += [note] if note else []
    if color.mode == "LAB":
        lab, srgb = (ImageCms.createProfile(space) for space in ("LAB", "sRGB"))
        color = ImageCms.buildTransform(lab, srgb, "LAB", "RGB").apply(color)
    if color.mode != "RGB":
        color = color.convert("RGB")
    if alpha is not None and alpha.getextrema() != (255, 255):
        ground = Image.new("RGB", color.size, "white")
        ground.paste(color, mask=alpha)
        color = ground
        notes.append("Transparent parts were laid on white.")
    result = color.copy() if color is image else color
    # Neither EXIF (the orientation would be applied again) nor a profile goes along.
    result.info = {}
    return result, tuple(notes)


def _color_and_alpha(image: Image.Image, bits: int) -> tuple[Image.Image, Image.Image | None]:
    """The colors in a mode that profiles know, and the alpha channel where there is one."""
    key = image.info.get("transparency")
    if image.mode in ("1", "L", "RGB") and key is not None:
        return _keyed(image, key, bits)
    if image.mode in ("P", "PA"):
        palette = image.palette.mode if image.palette is not None else ""
        image = image.convert(
            "RGBA" if image.mode == "PA" or key is not None or palette == "RGBA" else "RGB"
        )
    elif image.mode in ("RGBa", "La"):
        image = image.convert(image.mode.upper())
    if image.mode in ("RGBA", "LA"):
        return image.convert(image.mode[:-1]), image.getchannel("A")
    if image.mode == "1":
        return image.convert("L"), None
    if image.mode in _MODE_SPACES:
        return image, None
    return image.convert("RGB"), None  # RGBX, YCbCr, HSV


def _keyed(image: Image.Image, key: Any, bits: int) -> tuple[Image.Image, Image.Image | None]:
    """A color key (PNG's tRNS on grey and RGB): one color is transparent.

    The key is in the file's own depth, the pixels have been brought to 8 bits.
    """
    color = image.convert("L") if image.mode == "1" else image
    values = key if isinstance(key, tuple) else (key,)
    if len(values) != len(color.getbands()) or not all(isinstance(v, int) for v in values):
        return color, None
    if bits == 16:
        values = tuple(v >> 8 for v in values)
    elif bits in (2, 4):
        values = tuple(v * (255 // (2**bits - 1)) for v in values)
    return color, _key_alpha(np.atleast_3d(np.asarray(color)), values)


def _key_alpha(numbers: np.ndarray, key: tuple[int, ...]) -> Image.Image:
    """The alpha channel of (H, W, C) numbers in which one color is transparent."""
    alpha = np.empty(numbers.shape[:2], np.uint8)
    for rows in _bands(numbers):
        alpha[rows] = (numbers[rows] != np.array(key)).any(axis=2) * np.uint8(255)
    return Image.fromarray(alpha)


def _levels(
    numbers: np.ndarray, mode: str, bits: int, sixteen: bool
) -> tuple[np.ndarray, list[str]]:
    if mode.startswith("I;16"):
        return numbers_to_levels(numbers, 0, 4095 if bits == 12 else 65535), []
    low, high, odd = _finite_range(numbers)
    notes = [f"{odd:,} values were not finite (NaN is shown black)."] if odd else []
    full = 1 if mode == "F" else 65535 if sixteen else 255
    if low >= 0 and high <= full:
        return numbers_to_levels(numbers, 0, full), notes
    if low == high:
        notes.append(f"All values are {low:g}; the image is shown mid-grey.")
        return np.full(numbers.shape, 128, np.uint8), notes
    notes.append(f"Values from {low:g} to {high:g} were stretched to 0 to 255.")
    return numbers_to_levels(numbers, low, high), notes


def _finite_range(numbers: np.ndarray) -> tuple[float, float, int]:
    """Smallest and largest finite value (0 and 0 where there is none), and how many are not."""
    finite = np.isfinite(numbers)
    if not finite.any():
        return 0.0, 0.0, numbers.size
    some = numbers.flat[finite.argmax()]
    low, high = (float(find(where=finite, initial=some)) for find in (numbers.min, numbers.max))
    return low, high, int(numbers.size - np.count_nonzero(finite))


def numbers_to_levels(numbers: np.ndarray, low: float, high: float) -> np.ndarray:
    """Numbers → uint8 levels: low becomes 0, high 255, rounded, the rest in between.

    Args:
        numbers: Any shape with rows first, any real dtype. NaN becomes 0, beyond the ends is
            clipped (only ±Inf is, where low and high are the finite range).
        low: Becomes 0.
        high: Becomes 255; larger than low.

    Returns:
        A new array, uint8, of the same shape.

    Examples:
        >>> numbers_to_levels(np.array([[0, 257, 65535]], np.uint16), 0, 65535)
        array([[  0,   1, 255]], dtype=uint8)
    """
    levels = np.empty(numbers.shape, np.uint8)
    span = float(high) - float(low)
    # A signalling NaN makes NumPy warn while it is cast; errstate is this thread's own.
    with np.errstate(invalid="ignore"):
        for rows in _bands(numbers):
            band = (numbers[rows].astype(np.float64) - low) / span
            np.nan_to_num(band, copy=False, nan=0.0, posinf=1.0, neginf=0.0)
            np.clip(band, 0.0, 1.0, out=band)
            levels[rows] = np.rint(band * 255.0)
    return levels


def _bands(numbers: np.ndarray) -> list[slice]:
    per_row = max(1, int(np.prod(numbers.shape[1:])))
    step = max(1, BAND_VALUES // per_row)
    return [slice(i, i + step) for i in range(0, numbers.shape[0], step)]


def _to_srgb(image: Image.Image, profile: Any) -> tuple[Image.Image, str]:
    """The colors by their ICC profile in sRGB; the image itself where that changes nothing."""
    broken = "The color profile in the file is broken and was ignored."
    if not isinstance(profile, bytes) or len(profile) > MAX_PROFILE_BYTES:
        return image, broken
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        space = source.profile.xcolor_space
        if space != _MODE_SPACES.get(image.mode):
            return image, f"The color profile in the file is for {space.strip()} and was ignored."
        transform = ImageCms.buildTransform(
            source,
            ImageCms.createProfile("sRGB"),
            image.mode,
            "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC,
            ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
        if image.mode in ("RGB", "L") and _changes_nothing(transform, image.mode):
            return image, ""
        name = source.profile.profile_description or ""
        words = "".join(c for c in name if c.isprintable()).strip()[:60]
        quoted = f"“{words}” " if words else ""
        return transform.apply(image), f"Converted from the color profile {quoted}to sRGB."
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError, AttributeError, OverflowError):
        return image, broken


def _changes_nothing(transform: ImageCms.ImageCmsTransform, mode: str) -> bool:
    """Tried on a sample of all colors: whether the transform leaves them as they are."""
    steps = np.linspace(0, 255, 9).round().astype(np.uint8)
    colors = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(1, -1, 3)
    probe = Image.fromarray(np.arange(256, dtype=np.uint8)[None] if mode == "L" else colors)
    difference = ImageChops.difference(transform.apply(probe), probe.convert("RGB"))
    return bool(np.asarray(difference).max() <= PROFILE_TOLERANCE)


# Arrays and tensors

LAYOUTS = ("HWC", "CHW")
# Rounding (bfloat16, resampling) may leave 1.0 by a little.
SLACK = 1e-3


def tensor_to_array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as an array on the CPU; bfloat16 and half as float32, quantised ones as numbers.

    Args:
        tensor: Any device and dtype.

    Returns:
        A new or shared array.
    """
    values = dense(tensor, "cpu")
    return np.asarray((values.to(torch.float32) if values.is_floating_point() else values).numpy())


def array_to_rgb(
    array: np.ndarray, name: str, layout: str | None, first: str, max_pixels: int
) -> tuple[Image.Image, tuple[str, ...]]:
    """An array as an RGB image.

    Args:
        array: See the module's rules.
        name: Cleaned, for sentences.
        layout: "HWC" or "CHW" to decide the axes; None applies the rule.
        first: The layout preferred where both fit.
        max_pixels: Most pixels.

    Returns:
        A new RGB image and the notes.

    Raises:
        ImageError: Shape, dtype or values are not an image's.
        Refused: It has too many pixels.
    """
    if layout is not None and layout not in LAYOUTS:
        raise ImageError(f"layout='{layout}' is unknown; it is HWC or CHW.")
    shape = shape_text(array.shape, "no axes")
    pixels, notes = _channels_last(array, shape, name, layout, first)
    check_size((pixels.shape[1], pixels.shape[0]), max_pixels)
    levels = np.ascontiguousarray(_array_levels(pixels, name))
    image = Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels)
    rgb, said = to_rgb(image)
    return rgb, (*notes, *said)


def _channels_last(
    array: np.ndarray, shape: str, name: str, layout: str | None, first: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    legal = "an image has the shape (H, W), (H, W, C) or (C, H, W) with C 1, 3 or 4"
    if array.ndim == 4:
        if array.shape[0] != 1:
            raise ImageError(
                f"'{name}' has the shape {shape}, a batch of {array.shape[0]}; {legal}.",
                remedy="Give one image of the batch.",
            )
        array = array[0]
    if array.ndim == 2:
        return array[..., None], ()
    if array.ndim != 3:
        raise ImageError(f"'{name}' has the shape {shape}; {legal}.")
    fits = {"HWC": array.shape[2], "CHW": array.shape[0]}
    usual = [k for k in LAYOUTS if fits[k] in (1, 3, 4)] or [k for k in LAYOUTS if fits[k] == 2]
    wanted = usual if layout is None else [layout]
    if not wanted or fits[wanted[0]] not in (1, 2, 3, 4):
        which = "" if layout is None else f", which is not {layout}"
        raise ImageError(f"'{name}' has the shape {shape}{which}; {legal}.")
    unclear = len(wanted) > 1
    notes = (f"The shape {shape} was taken as {first}.",) if unclear else ()
    chosen = first if unclear else wanted[0]
    return (array if chosen == "HWC" else np.moveaxis(array, 0, 2)), notes


def _array_levels(pixels: np.ndarray, name: str) -> np.ndarray:
    """Values → uint8."""
    dtype = pixels.dtype
    if dtype == np.uint8:
        return pixels
    if dtype == np.bool_:
        return pixels.astype(np.uint8) * np.uint8(255)
    if dtype == np.uint16:
        return numbers_to_levels(pixels, 0, 65535)
    if dtype.kind not in "iuf":
        raise ImageError(
            f"'{name}' has the dtype {dtype}; an image has uint8, uint16, bool or floats within "
            "0..1."
        )
    low, high = pixels.min(), pixels.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ImageError(f"'{name}' has values that are not finite (NaN or Inf).")
    whole = dtype.kind in "iu"
    most, slack = (255, 0.0) if whole else (1, SLACK)
    if low < -slack or high > most + slack:
        legal = "whole numbers must be uint16 or" if whole else "floats must"
        levels = not whole and low >= 0 and high <= 255
        raise ImageError(
            f"'{name}' has {dtype} values from {low:g} to {high:g}; {legal} lie within 0..{most}.",
            remedy="Divide by 255, or give uint8."
            if levels
            else "Undo the normalisation first, or scale the values.",
        )
    return numbers_to_levels(pixels, 0, most)
