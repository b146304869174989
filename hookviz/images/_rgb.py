"""Any of Pillow's modes → RGB: 8 bits, sRGB, opaque.

In: a loaded image. Out: an RGB image of the same size, and notes. Must not know: files, networks.

Policies:
- Transparency (alpha, palette, colour key) is laid on white.
- 16-bit grey: the whole range 0..65535 becomes 0..255 (12-bit TIFF: 0..4095), never clipped.
- 32-bit whole numbers within 0..255 are taken as they are, others are stretched from the smallest
  to the largest. Floats within 0..1 are taken as they are, others are stretched. NaN becomes black,
  ±Inf the ends; a constant picture outside the range becomes mid-grey. Each of these is said.
- An ICC profile is applied (relative colorimetric, black point compensation) unless it is sRGB in
  effect; a broken one is ignored, and said. CMYK without a profile goes by Pillow's formula.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image, ImageCms

__all__ = ["numbers_to_levels", "to_rgb"]

BAND_VALUES = 4_000_000
"""Values converted at a time: a picture of 64 million pixels needs no float copy of itself."""

MAX_PROFILE_BYTES = 8_000_000
PROFILE_TOLERANCE = 2
"""A profile that moves no colour by more than this many of 255 levels is sRGB in effect."""

_MODE_SPACES = {"RGB": "RGB ", "L": "GRAY", "CMYK": "CMYK", "LAB": "Lab "}


def to_rgb(
    image: Image.Image, *, bits: int = 8, inverted: bool = False, sixteen: bool = False
) -> tuple[Image.Image, tuple[str, ...]]:
    """Converts a loaded image.

    Args:
        image: Any mode; not changed.
        bits: Bits per sample in the file (12 for 12-bit TIFF, 16 for a colour key of 16 bits,
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
            alpha = _key_alpha(numbers[..., None], (key,))
        levels, said = _levels(numbers, image.mode, bits, sixteen)
        notes += said
        colour = Image.fromarray(255 - levels if inverted else levels)
    else:
        colour, alpha = _colour_and_alpha(image, bits)
    profile = image.info.get("icc_profile")
    if profile:
        colour, note = _to_srgb(colour, profile)
        notes += [note] if note else []
    if colour.mode == "LAB":
        colour = _lab_to_rgb(colour)
    if colour.mode != "RGB":
        colour = colour.convert("RGB")
    if alpha is not None and alpha.getextrema() != (255, 255):
        ground = Image.new("RGB", colour.size, "white")
        ground.paste(colour, mask=alpha)
        colour = ground
        notes.append("Transparent parts were laid on white.")
    result = colour.copy() if colour is image else colour
    # Neither EXIF (the orientation would be applied again) nor a profile goes along.
    result.info = {}
    return result, tuple(notes)


def _colour_and_alpha(image: Image.Image, bits: int) -> tuple[Image.Image, Image.Image | None]:
    """The colours in a mode that profiles know, and the alpha channel where there is one."""
    mode = image.mode
    key = image.info.get("transparency")
    if mode in ("1", "L", "RGB") and key is not None:
        return _keyed(image, key, bits)
    if mode == "P" or mode == "PA":
        transparent = mode == "PA" or key is not None or _palette_mode(image) == "RGBA"
        image = image.convert("RGBA" if transparent else "RGB")
        mode = image.mode
    if mode in ("RGBa", "La"):
        image = image.convert("RGBA" if mode == "RGBa" else "LA")
        mode = image.mode
    if mode == "RGBA":
        return image.convert("RGB"), image.getchannel("A")
    if mode == "LA":
        return image.getchannel("L"), image.getchannel("A")
    if mode == "1":
        return image.convert("L"), None
    if mode in ("L", "RGB", "CMYK", "LAB"):
        return image, None
    return image.convert("RGB"), None  # RGBX, YCbCr, HSV


def _palette_mode(image: Image.Image) -> str:
    return image.palette.mode if image.palette is not None else ""


def _keyed(image: Image.Image, key: Any, bits: int) -> tuple[Image.Image, Image.Image | None]:
    """A colour key (PNG's tRNS on grey and RGB): one colour is transparent.

    The key is in the file's own depth, the pixels have been brought to 8 bits.
    """
    colour = image.convert("L") if image.mode == "1" else image
    values = key if isinstance(key, tuple) else (key,)
    if len(values) != len(colour.getbands()) or not all(isinstance(v, int) for v in values):
        return colour, None
    if bits == 16:
        values = tuple(v >> 8 for v in values)
    elif bits in (2, 4):
        values = tuple(v * (255 // (2**bits - 1)) for v in values)
    numbers = np.asarray(colour)
    return colour, _key_alpha(numbers[..., None] if numbers.ndim == 2 else numbers, values)


def _key_alpha(numbers: np.ndarray, key: tuple[int, ...]) -> Image.Image:
    alpha = np.full(numbers.shape[:2], 255, np.uint8)
    for rows in _bands(numbers):
        band = numbers[rows]
        hit = band[..., 0] == key[0]
        for i, value in enumerate(key[1:], start=1):
            hit &= band[..., i] == value
        alpha[rows][hit] = 0
    return Image.fromarray(alpha)


def _levels(
    numbers: np.ndarray, mode: str, bits: int, sixteen: bool
) -> tuple[np.ndarray, list[str]]:
    if mode.startswith("I;16"):
        return numbers_to_levels(numbers, 0, 4095 if bits == 12 else 65535), []
    low, high, odd = _finite_range(numbers)
    notes = [f"{odd:,} values were not finite (NaN is shown black)."] if odd else []
    if mode == "I":
        full = 65535 if sixteen else 255 if low >= 0 and high <= 255 else 0
    else:
        full = 1 if low >= 0 and high <= 1 else 0
    if full:
        return numbers_to_levels(numbers, 0, full), notes
    if low == high:
        notes.append(f"All values are {low:g}; the picture is shown mid-grey.")
        return np.full(numbers.shape, 128, np.uint8), notes
    notes.append(f"Values from {low:g} to {high:g} were stretched to 0 to 255.")
    return numbers_to_levels(numbers, low, high), notes


def _finite_range(numbers: np.ndarray) -> tuple[float, float, int]:
    """Smallest and largest finite value (0 and 0 where there is none), and how many are not."""
    low, high, odd = np.inf, -np.inf, 0
    for rows in _bands(numbers):
        band = numbers[rows]
        if band.dtype.kind == "f":
            finite = band[np.isfinite(band)]
            odd += band.size - finite.size
            band = finite
        if band.size:
            low, high = min(low, float(band.min())), max(high, float(band.max()))
    return (0.0, 0.0, odd) if low > high else (low, high, odd)


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
    """The colours by their ICC profile in sRGB; the image itself where that changes nothing."""
    broken = "The colour profile in the file is broken and was ignored."
    if not isinstance(profile, bytes) or len(profile) > MAX_PROFILE_BYTES:
        return image, broken
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        space = source.profile.xcolor_space
        if space != _MODE_SPACES.get(image.mode):
            return image, f"The colour profile in the file is for {space.strip()} and was ignored."
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
        converted = ImageCms.applyTransform(image, transform)
        words = _profile_words(source)
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError, AttributeError, OverflowError):
        return image, broken
    if converted is None:
        return image, broken
    return converted, f"Converted from the colour profile {words}to sRGB."


def _changes_nothing(transform: ImageCms.ImageCmsTransform, mode: str) -> bool:
    """Tried on a sample of all colours: whether the transform leaves them as they are."""
    if mode == "L":
        probe = np.arange(256, dtype=np.uint8)[None]
        wanted = np.repeat(probe[..., None], 3, axis=2)
    else:
        steps = np.linspace(0, 255, 9).round().astype(np.uint8)
        wanted = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(1, -1, 3)
        probe = wanted
    found = ImageCms.applyTransform(Image.fromarray(probe), transform)
    if found is None:
        return False
    difference = np.abs(np.asarray(found).astype(int) - wanted.astype(int)).max()
    return bool(difference <= PROFILE_TOLERANCE)


def _profile_words(profile: ImageCms.ImageCmsProfile) -> str:
    text = profile.profile.profile_description or ""
    kept = "".join(c for c in text if c.isprintable()).strip()[:60]
    return f"“{kept}” " if kept else ""


def _lab_to_rgb(image: Image.Image) -> Image.Image:
    converted = ImageCms.profileToProfile(
        image, ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), outputMode="RGB"
    )
    return image.convert("L").convert("RGB") if converted is None else converted
