"""Reading other libraries' preprocessing: torchvision's presets, chains of transforms, timm.

In: an object that turns a PIL image into a tensor. Out: the ``Preprocessing`` with the same
numbers; for other callables one that calls them; else an ImageError.
Must not know: models, pictures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torchvision.transforms import InterpolationMode

from hookviz.errors import ImageError
from hookviz.images._function_preprocessing import FunctionPreprocessing
from hookviz.images._preprocessing import Preprocessing

__all__ = ["interpret"]

REMEDY = "Describe it with hookviz.Preprocessing(resize=…, crop=(height, width), mean=…, std=…)."

# Steps that only change the container or the dtype; Preprocessing does the same.
CONTAINER_STEPS = frozenset({
    "ToTensor", "PILToTensor", "MaybeToTensor", "MaybePILToTensor", "ToImage", "ToPureTensor",
    "ConvertImageDtype", "ToDtype", "ConvertDtype", "RGB", "Identity",
})  # fmt: skip


def interpret(transforms: Any) -> Preprocessing:
    """See ``Preprocessing.from_transforms``."""
    try:
        return _interpret(transforms)
    except ImageError:
        # What cannot be looked into can still be called.
        if not callable(transforms) or isinstance(transforms, type):
            raise
        return FunctionPreprocessing(function=transforms, name=_short(transforms))


def _interpret(transforms: Any) -> Preprocessing:
    if transforms is None:
        return Preprocessing()
    if isinstance(transforms, Preprocessing):
        return transforms
    if isinstance(transforms, Mapping):
        return _from_timm(transforms)
    steps = getattr(transforms, "transforms", None)
    if isinstance(steps, Iterable):
        return _from_chain(list(steps))
    name = type(transforms).__name__
    if name == "ObjectDetection":
        return Preprocessing()
    if name == "OpticalFlow":
        # The preset takes two pictures and has no attributes; its text says [-1, 1].
        return Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    if hasattr(transforms, "mean") and hasattr(transforms, "std"):
        return _from_attributes(transforms)
    raise ImageError(
        f"The preprocessing {_short(transforms)} is none that hookviz knows.", remedy=REMEDY
    )


def _from_attributes(preset: Any) -> Preprocessing:
    crop = _pair(getattr(preset, "crop_size", None))
    resize = _resize(getattr(preset, "resize_size", None))
    # Its preset takes frames as a tensor and never averages; it is the one without the attribute.
    video = type(preset).__name__ == "VideoClassification"
    antialias = getattr(preset, "antialias", not video)
    if crop is not None and resize is None:
        resize = crop
    return Preprocessing(
        resize=resize,
        crop=crop,
        fit="none" if crop is None else "crop",
        mean=_three(preset.mean),
        std=_three(preset.std),
        interpolation=_interpolation(getattr(preset, "interpolation", None)),
        antialias=True if antialias is None else bool(antialias),
        on_tensor=video,
    )


def _from_chain(steps: list[Any]) -> Preprocessing:
    found: dict[str, Any] = {}
    on_tensor = False
    for step in _flat(steps):
        name = type(step).__name__
        if name in CONTAINER_STEPS:
            if "resize" not in found and name in ("ToTensor", "PILToTensor", "ToImage"):
                on_tensor = True
            if name in ("ConvertImageDtype", "ToDtype", "ConvertDtype") and not _to_float32(step):
                raise ImageError(
                    f"The preprocessing step {_short(step)} gives another dtype than float32.",
                    remedy=REMEDY,
                )
            continue
        if name in found or (name == "Resize" and ("CenterCrop" in found or "Normalize" in found)):
            raise ImageError(f"The preprocessing repeats or reorders {name}.", remedy=REMEDY)
        if name == "Resize":
            if getattr(step, "max_size", None) is not None:
                raise ImageError("The preprocessing step Resize has a max_size.", remedy=REMEDY)
            found["Resize"] = step
            found["resize"] = _resize(step.size)
        elif name in ("CenterCrop", "Normalize"):
            found[name] = step
        else:
            raise ImageError(
                f"The preprocessing step {_short(step)} cannot be repeated and undone for display.",
                remedy=REMEDY,
            )
    if "CenterCrop" in found and "Resize" not in found:
        raise ImageError("The preprocessing crops without resizing first.", remedy=REMEDY)
    if on_tensor and "Resize" in found and "ToTensor" in {type(s).__name__ for s in _flat(steps)}:
        # ToTensor before Resize interpolates floats without rounding: other numbers than ours.
        raise ImageError("The preprocessing resizes after ToTensor.", remedy=REMEDY)
    resize, crop, normalize = found.get("Resize"), found.get("CenterCrop"), found.get("Normalize")
    antialias = getattr(resize, "antialias", True)
    return Preprocessing(
        resize=found.get("resize"),
        crop=_pair(crop.size) if crop is not None else None,
        fit="none" if crop is None else "crop",
        mean=_three(normalize.mean) if normalize is not None else (0.0, 0.0, 0.0),
        std=_three(normalize.std) if normalize is not None else (1.0, 1.0, 1.0),
        interpolation=_interpolation(getattr(resize, "interpolation", None)),
        antialias=True if antialias is None else bool(antialias),
        on_tensor=on_tensor and resize is not None,
        v2=any(type(s).__name__ == "ToDtype" for s in _flat(steps)),
    )


def _from_timm(config: Mapping[str, Any]) -> Preprocessing:
    """The library timm's data config: input_size, crop_pct, crop_mode, interpolation, mean, std."""
    size = config.get("input_size")
    if size is None or not {"mean", "std"} <= set(config):
        raise ImageError(
            "The preprocessing is a mapping without input_size, mean and std.", remedy=REMEDY
        )
    height, width = (int(v) for v in tuple(size)[-2:])
    mode = config.get("crop_mode") or "center"
    pct = float(config.get("crop_pct") or 0.875)
    numbers: dict[str, Any] = {
        "mean": _three(config["mean"]),
        "std": _three(config["std"]),
        "interpolation": _interpolation(config.get("interpolation")),
    }
    scaled = (math.floor(height / pct), math.floor(width / pct))
    if mode == "squash":
        return Preprocessing(scaled, (height, width), "crop", **numbers)
    if mode != "center":
        raise ImageError(f"timm's crop mode '{mode}' is none that hookviz knows.", remedy=REMEDY)
    if height == width:
        return Preprocessing(scaled[0], (height, width), "crop", **numbers)
    raise ImageError(
        f"timm's centre crop to {width}×{height} keeps a ratio that hookviz does not repeat.",
        remedy=REMEDY,
    )


def _flat(steps: Iterable[Any]) -> Iterable[Any]:
    for step in steps:
        inner = getattr(step, "transforms", None)
        if isinstance(inner, Iterable):
            yield from _flat(inner)
        else:
            yield step


def _to_float32(step: Any) -> bool:
    dtype = getattr(step, "dtype", None)
    scale = getattr(step, "scale", True)
    return str(dtype) == "torch.float32" and bool(scale)


def _resize(value: Any) -> int | tuple[int, int] | None:
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return int(value[0]) if len(value) == 1 else (int(value[0]), int(value[1]))
    return int(value)


def _pair(value: Any) -> tuple[int, int] | None:
    sides = _resize(value)
    return (sides, sides) if isinstance(sides, int) else sides


def _three(values: Any) -> tuple[float, ...]:
    items = [float(v) for v in (values if isinstance(values, Iterable) else [values])]
    return tuple(items * 3 if len(items) == 1 else items)


def _interpolation(value: Any) -> str:
    if value is None:
        return "bilinear"
    if isinstance(value, InterpolationMode):
        return str(value.value)
    if isinstance(value, int):
        # Pillow's numbers, which timm and old torchvision use.
        return {
            0: "nearest",
            1: "lanczos",
            2: "bilinear",
            3: "bicubic",
            4: "box",
            5: "hamming",
        }.get(value, "bilinear")
    # A name, timm's "random" (which evaluates as bilinear) included.
    name = str(getattr(value, "name", value)).lower().removeprefix("interpolationmode.")
    return "bilinear" if name == "random" else name


def _short(thing: Any) -> str:
    text = getattr(thing, "__name__", None) or type(thing).__name__
    return str(text)
