"""A module that the user built, as a LoadedModel.

In: a module. Out: a LoadedModel around the very same object, or around a filled copy.
Must not know: names of models, downloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from hookviz.errors import ModelError
from hookviz.models._devices import choose_device, move_module
from hookviz.models._feeding import infer_task, is_hugging_face, unwrapped
from hookviz.models._fitting import fit_module
from hookviz.models._loaded import LoadedModel, copy_module, same_device
from hookviz.models._notes import fit_notes, joined, source_name
from hookviz.models._presets import as_preset, classification_preset
from hookviz.models._unwrapping import class_names

__all__ = ["load_module"]


def load_module(
    module: nn.Module,
    content: Any,
    source: str,
    *,
    device: str | torch.device,
    dtype: torch.dtype | None,
    name: str | None,
    preprocess: Any,
    categories: Sequence[str] | None,
    strict: bool,
) -> LoadedModel:
    """Wrap a module without changing it.

    Args:
        module: The user's; stays in its mode, on its device, with its values and gradients.
        content: What a checkpoint holds, to be loaded into a copy; None for the module's own
            weights.
        source: The checkpoint's name.
        device: "auto" leaves it where it is; elsewhere goes a copy.
        dtype: None leaves it; another one gets a copy.
        name: None takes the class's name.
        preprocess: As ``load_model`` says.
        categories: Class names; None takes those of a Hugging Face config or the checkpoint.
        strict: As ``load_model`` says.

    Raises:
        ModelError: TorchScript; or a copy is needed and cannot be made.
        WeightsError: The checkpoint does not fit.
        DeviceError: The device is unknown, absent or out of memory.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelError(
            "TorchScript modules are not supported: their layers cannot be hooked.",
            remedy="Pass the Python model that it was made from.",
        )
    inner = unwrapped(module)
    name = name or type(inner).__name__
    classes: int | None = None
    report, note, missing = None, "", ""
    result = module
    if content is not None:
        result = copy_module(module, name).eval()
        fitted = fit_module(result, content, source, name, strict=strict)
        report, classes = fitted.report, fitted.classes
        note, missing = fit_notes(source, fitted)
    result = _moved(result, module, device, dtype, name)
    names = tuple(categories or ()) or _config_names(inner)
    if not names and content is not None:
        names = class_names(content, classes or _outputs(result))
    if preprocess is None and is_hugging_face(inner):
        preprocess, assumed = _assumed_preset(inner)
        note = joined(note, assumed)
    return LoadedModel(
        module=result,
        name=name,
        weights=source_name(source) if content is not None else "as passed in",
        trained=True,
        preprocess=as_preset(preprocess),
        categories=names,
        note=note,
        task=infer_task(inner),
        no_classifier=missing,
        report=report,
        passed_in=result is module,
    )


def _moved(
    result: nn.Module,
    module: nn.Module,
    device: str | torch.device,
    dtype: torch.dtype | None,
    name: str,
) -> nn.Module:
    """The module where and as it is wanted: itself if it is there already, else a copy."""
    now = LoadedModel(module=result, name=name, weights="", trained=True)
    target = now.device if str(device) == "auto" else choose_device(device)
    if same_device(now.device, target) and dtype in (None, now.dtype):
        return result
    if result is module:
        result = copy_module(module, name)
    return move_module(result, target, dtype, name)


def _config_names(module: nn.Module) -> tuple[str, ...]:
    """Class names of a Hugging Face config; () where they are only "LABEL_0" or absent."""
    table = getattr(getattr(module, "config", None), "id2label", None)
    if not isinstance(table, dict) or not table:
        return ()
    try:
        names = {int(index): str(label) for index, label in table.items()}
    except (TypeError, ValueError):
        return ()
    if sorted(names) != list(range(len(names))):
        return ()
    return tuple(names[i] for i in range(len(names)))


def _outputs(module: nn.Module) -> int | None:
    count = None
    for part in module.modules():
        if isinstance(part, nn.Linear):
            count = part.out_features
    return count


def _assumed_preset(module: nn.Module) -> tuple[Any, str]:
    size = getattr(getattr(module, "config", None), "image_size", None)
    sides = [size, size] if isinstance(size, int) else list(size or (224, 224))
    from torchvision.transforms import InterpolationMode

    half = (0.5, 0.5, 0.5)
    preset = classification_preset(sides, sides, half, half, InterpolationMode.BILINEAR)
    return preset, (
        "Preprocessing assumed (mean and std 0.5); pass preprocess=AutoImageProcessor… for the "
        "model's own."
    )
