"""Arrays and tensors as pictures.

In: a NumPy array or a tensor. Out: an RGB image and notes, or one sentence. Must not know: files.

The rule for axes: (H, W) is grey. Of three axes the channel axis is the one of length 1, 3 or 4
(2 as well, where nothing else fits: grey and alpha): the last for an array (H, W, C), the first for
a tensor (C, H, W); where only the other one fits, that one; where both fit, the kind's own order is
taken and a note says so. A batch of one loses its first axis, a larger one is refused.

The rule for values: bool; uint8; uint16 (0..65535); other whole numbers within 0..255; floats
within 0..1. Everything else is refused: a guess between 0..1, 0..255 and normalised values would be
wrong in silence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

from hookviz.errors import ImageError
from hookviz.images._headers import Refused, check_size
from hookviz.images._rgb import numbers_to_levels, to_rgb

__all__ = ["array_to_rgb", "tensor_to_array"]

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
    values = tensor.detach()
    if values.is_quantized:
        values = values.dequantize()
    if values.layout != torch.strided:
        values = values.to_dense()
    if values.is_floating_point():
        values = values.to(torch.float32)
    return np.asarray(values.cpu().resolve_conj().resolve_neg().numpy())


def array_to_rgb(
    array: np.ndarray, *, name: str, layout: str | None, first: str, max_pixels: int
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
        ImageError: Shape, dtype or values are not a picture's.
    """
    if layout is not None and layout not in LAYOUTS:
        raise ImageError(f"layout='{layout}' is unknown; it is HWC or CHW.")
    shape = "×".join(map(str, array.shape)) or "no axes"
    pixels, notes = _channels_last(array, shape, name, layout, first)
    try:
        check_size((pixels.shape[1], pixels.shape[0]), max_pixels)
    except Refused as refused:
        raise ImageError(f"'{name}' cannot be read: it is an array {refused}.") from None
    levels = np.ascontiguousarray(_levels(pixels, name))
    image = Image.fromarray(levels[..., 0] if levels.shape[2] == 1 else levels)
    rgb, said = to_rgb(image)
    return rgb, (*notes, *said)


def _channels_last(
    array: np.ndarray, shape: str, name: str, layout: str | None, first: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    legal = "a picture has the shape (H, W), (H, W, C) or (C, H, W) with C 1, 3 or 4"
    if array.ndim == 4:
        if array.shape[0] != 1:
            raise ImageError(
                f"'{name}' has the shape {shape}, a batch of {array.shape[0]}; {legal}.",
                remedy="Give one picture of the batch.",
            )
        array = array[0]
    if array.ndim == 2:
        return array[..., None], ()
    if array.ndim != 3:
        raise ImageError(f"'{name}' has the shape {shape}; {legal}.")
    fits = {"HWC": array.shape[2], "CHW": array.shape[0]}
    legal_layouts = [k for k in LAYOUTS if fits[k] in (1, 3, 4)] or [
        k for k in LAYOUTS if fits[k] == 2
    ]
    if layout is not None:
        if fits[layout] not in (1, 2, 3, 4):
            raise ImageError(f"'{name}' has the shape {shape}, which is not {layout}; {legal}.")
        return (array if layout == "HWC" else np.moveaxis(array, 0, 2)), ()
    if not legal_layouts:
        raise ImageError(f"'{name}' has the shape {shape}; {legal}.")
    unclear = len(legal_layouts) > 1
    chosen = first if unclear else legal_layouts[0]
    notes = (f"The shape {shape} was taken as {first}.",) if unclear else ()
    return (array if chosen == "HWC" else np.moveaxis(array, 0, 2)), notes


def _levels(pixels: np.ndarray, name: str) -> np.ndarray:
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
            f"'{name}' has the dtype {dtype}; a picture has uint8, uint16, bool "
            f"or floats within 0..1."
        )
    low, high = pixels.min(), pixels.max()
    if dtype.kind in "iu":
        if low < 0 or high > 255:
            raise ImageError(
                f"'{name}' has {dtype} values from {low} to {high}; whole numbers must be uint16 "
                f"or lie within 0..255."
            )
        return pixels.astype(np.uint8)
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ImageError(f"'{name}' has values that are not finite (NaN or Inf).")
    if low < -SLACK or high > 1 + SLACK:
        raise ImageError(
            f"'{name}' has float values from {float(low):.4g} to {float(high):.4g}; floats must "
            f"lie within 0..1.",
            remedy=_float_remedy(float(low), float(high)),
        )
    return numbers_to_levels(pixels, 0, 1)


def _float_remedy(low: float, high: float) -> str:
    if low >= 0 and high <= 255:
        return "Divide by 255, or give uint8."
    return "Undo the normalisation first, or scale the values."


def is_array(source: Any) -> bool:
    """Whether NumPy can say what it is without guessing."""
    return isinstance(source, (np.ndarray, np.generic))
