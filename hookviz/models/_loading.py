"""A model by name, file or module, ready to be looked at.

In: what the user asked for. Out: a LoadedModel.
Must not know: pictures, hooks, screens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hookviz.errors import ModelError
from hookviz.models._devices import choose_device, move_module
from hookviz.models._download import Progress
from hookviz.models._loaded import LoadedModel
from hookviz.models._passed_in import load_module
from hookviz.models._presets import as_preset
from hookviz.models._sources import is_none, own_content
from hookviz.models._timm_models import load_timm
from hookviz.models._torchvision_models import load_torchvision
from hookviz.models._zoo import architecture

__all__ = ["load_model"]


def load_model(
    model: str | nn.Module | LoadedModel,
    weights: Any = "auto",
    *,
    device: str | torch.device = "auto",
    dtype: torch.dtype | str | None = None,
    progress: bool | Progress = True,
    cancelled: Callable[[], bool] | None = None,
    name: str | None = None,
    preprocess: Any = None,
    categories: Sequence[str] | None = None,
    num_classes: int | None = None,
    strict: bool = True,
) -> LoadedModel:
    """Load a model with weights, preprocessing and class names.

    Args:
        model: A name of torchvision's ("vgg16", "resnet18", … see ``list_models``), "timm:NAME",
            or a module. A module is left as it was: its mode, device, values and gradients; where
            another device, dtype or weights are asked for, a copy gets them.
        weights: "auto": torch's cache where the file is there, else what ships with hookviz
            ("vgg16"), else a download. None: untrained. A name of torchvision's enum
            ("DEFAULT", "IMAGENET1K_V1"), "bundled", a path to a file of one's own (.safetensors,
            .pth, .pt, .ckpt), or a state dict.
        device: "auto" (CUDA, then MPS, then CPU; for a module: where it is), "cpu", "cuda",
            "cuda:N", "mps".
        dtype: For example "float16"; None for float32 (for a module: its own).
        progress: True shows a download's progress on stderr; a callable gets (bytes done, bytes
            in all or 0, file name).
        cancelled: Asked during a download; True ends it with RunCancelled.
        name: Shown in place of the model's own name.
        preprocess: In place of the weights' own: a callable such as
            ``torchvision.transforms._presets.ImageClassification``, or a Hugging Face image
            processor.
        categories: Class names, in place of the weights' own.
        num_classes: For a checkpoint or an untrained model; None takes the checkpoint's.
        strict: Whether a checkpoint that does not fit beyond the classifier is an error; False
            loads what fits and says so in ``note``.

    Returns:
        The model, in eval mode where hookviz built it.

    Raises:
        ModelError: The model is unknown or cannot be built.
        WeightsError: Weights are missing, corrupt, unsafe, not reachable or do not fit.
        DeviceError: The device is unknown, absent or out of memory.
        RunCancelled: ``cancelled`` said so.

    Examples:
        >>> model = load_model("vgg16", weights="bundled", device="cpu")
        >>> model.weights
        'bundled Oxford VGG16 convolutions (IMAGENET1K_FEATURES)'
        >>> load_model("resnet18", weights=None, device="cpu").note
        'UNTRAINED: random weights (seed 0).'
    """
    chosen_dtype = choose_dtype(dtype)
    if isinstance(model, LoadedModel):
        if isinstance(weights, str) and weights == "auto":
            return model if str(device) == "auto" else model.to(device)
        model = model.builder or model.module
    if isinstance(model, nn.Module):
        own = not (is_none(weights) or (isinstance(weights, str) and weights == "auto"))
        content, source = own_content(weights, type(model).__name__) if own else (None, "")
        return load_module(
            model,
            content,
            source,
            device=device,
            dtype=chosen_dtype,
            name=name,
            preprocess=preprocess,
            categories=categories,
            strict=strict,
        )
    if not isinstance(model, str):
        raise ModelError(
            f"A model is a name or a torch.nn.Module, not a {type(model).__name__}.",
            remedy="Pass for example 'vgg16', or the module itself (not its class).",
        )
    target = choose_device(device)  # an unknown device is told before anything is downloaded
    if model.strip().lower().startswith("timm:"):
        loaded = load_timm(model.strip()[5:], weights, num_classes, strict=strict)
    else:
        loaded = load_torchvision(
            architecture(model), weights, num_classes, progress, cancelled, strict=strict
        )
    module = move_module(loaded.module, target, chosen_dtype, loaded.name)
    return replace(
        loaded,
        module=module,
        name=name or loaded.name,
        preprocess=loaded.preprocess if preprocess is None else as_preset(preprocess),
        categories=loaded.categories if categories is None else tuple(categories),
    )


def choose_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The floating-point dtype that a name stands for; None for None.

    Raises:
        ModelError: It is none that models run in.

    Examples:
        >>> choose_dtype("float16")
        torch.float16
    """
    if dtype is None or isinstance(dtype, torch.dtype):
        found = dtype
    else:
        names = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32"}
        text = str(dtype).removeprefix("torch.").lower()
        found = getattr(torch, names.get(text, text), None)
        if not isinstance(found, torch.dtype):
            found = torch.bool
    legal = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    if found is not None and found not in legal:
        raise ModelError(
            f"Unknown dtype '{dtype}': legal are float32, float16, bfloat16 and float64."
        )
    return found
