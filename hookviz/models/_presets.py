"""Preprocessing objects of other libraries in torchvision's words.

In: a callable, timm's data config or a Hugging Face image processor. Out: a torchvision preset.
Must not know: models, pictures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torchvision.transforms import InterpolationMode
from torchvision.transforms._presets import ImageClassification

from hookviz.errors import ModelError

__all__ = ["as_preset", "classification_preset", "timm_preset"]

_PIL_MODES = {
    0: InterpolationMode.NEAREST,
    1: InterpolationMode.LANCZOS,
    2: InterpolationMode.BILINEAR,
    3: InterpolationMode.BICUBIC,
    4: InterpolationMode.BOX,
    5: InterpolationMode.HAMMING,
}


def classification_preset(
    resize: Sequence[int],
    crop: Sequence[int],
    mean: Sequence[float],
    std: Sequence[float],
    interpolation: InterpolationMode,
) -> Any:
    """Torchvision's ImageClassification with sizes that need not be square.

    Args:
        resize: (short side,) or (height, width).
        crop: (side,) or (height, width).
        mean: Per channel, in 0…1.
        std: Per channel.
        interpolation: torchvision's mode.
    """
    preset = ImageClassification(
        crop_size=crop[0],
        resize_size=resize[0],
        mean=tuple(mean),
        std=tuple(std),
        interpolation=interpolation,
        antialias=True,
    )
    preset.crop_size = list(crop)
    preset.resize_size = list(resize)
    return preset


def timm_preset(config: Mapping[str, Any]) -> Any:
    """The preset of timm's data config (``timm.data.resolve_model_data_config``).

    As timm's own evaluation transform: resized to floor(size / crop_pct), then cropped; with
    ``crop_mode`` "squash" or "border" both sides are resized.
    """
    height, width = (int(side) for side in config["input_size"][-2:])
    share = float(config.get("crop_pct") or 1.0)
    name = str(config.get("interpolation") or "bicubic")
    interpolation = InterpolationMode.BICUBIC if name == "random" else InterpolationMode(name)
    if config.get("crop_mode", "center") == "center" and height == width:
        resize = [math.floor(height / share)]
    else:
        resize = [math.floor(height / share), math.floor(width / share)]
    return classification_preset(
        resize, [height, width], config["mean"], config["std"], interpolation
    )


def as_preset(preprocess: Any) -> Any:
    """What the user gave as preprocessing, as a callable.

    Args:
        preprocess: A callable, or a Hugging Face image processor (told by its ``image_mean``).

    Raises:
        ModelError: It is neither.
    """
    if preprocess is None or not hasattr(preprocess, "image_mean"):
        if preprocess is None or callable(preprocess):
            return preprocess
        raise ModelError(
            f"The preprocessing is a {type(preprocess).__name__}; legal is a callable from a "
            "picture to a tensor."
        )
    size = _sides(getattr(preprocess, "size", None) or {"shortest_edge": 256})
    crop = size
    if getattr(preprocess, "do_center_crop", False):
        crop = _sides(preprocess.crop_size)
    elif len(size) == 1:
        crop = [size[0], size[0]]
    normal = getattr(preprocess, "do_normalize", True)
    mode = _PIL_MODES.get(int(getattr(preprocess, "resample", 2) or 0), InterpolationMode.BILINEAR)
    mean = preprocess.image_mean if normal else (0.0, 0.0, 0.0)
    std = preprocess.image_std if normal else (1.0, 1.0, 1.0)
    return classification_preset(size, crop, mean, std, mode)


def _sides(size: Any) -> list[int]:
    if isinstance(size, int):
        return [size]
    sides = dict(size) if isinstance(size, Mapping) else vars(size)
    if sides.get("height") and sides.get("width"):
        return [int(sides["height"]), int(sides["width"])]
    return [int(sides.get("shortest_edge") or sides.get("longest_edge") or 224)]
