"""A model by name, file or module, ready to be looked at.

In: what the user asked for. Out: a LoadedModel.
Must not know: pictures, hooks, screens.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hookviz.errors import ModelError, WeightsError
from hookviz.models.bundled_vgg16 import load_bundled_vgg16
from hookviz.models.checkpoints import read_checkpoint
from hookviz.models.devices import choose_device, move_module
from hookviz.models.download import Progress
from hookviz.models.fetching import fetch_state, is_cached_whole
from hookviz.models.fitting import Buildable, Fitted, fit_builder
from hookviz.models.loaded import LoadedModel
from hookviz.models.passed_in import faults_note, head_note, load_module
from hookviz.models.presets import as_preset
from hookviz.models.timm_models import timm_buildable, timm_facts, timm_pretrained
from hookviz.models.unwrapping import class_names
from hookviz.models.weights import cached_path
from hookviz.models.zoo import (
    SEED,
    Architecture,
    architecture,
    default_member,
    documentation,
    find_member,
    members,
)
from hookviz.models.zoo import categories as categories_of

__all__ = ["load_model"]

UNTRAINED = f"UNTRAINED: random weights (seed {SEED})."
_SUFFIXES = (".safetensors", ".pth", ".pt", ".ckpt", ".bin", ".pkl", ".tar", ".zip")


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
        content, source = _own_content(weights, type(model).__name__)
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
        loaded = _load_timm(model.strip()[5:], weights, num_classes, strict=strict)
    else:
        loaded = _load_torchvision(
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


def _own_content(weights: Any, name: str) -> tuple[Any, str]:
    """What to load into a module that was passed in: (content or None, its name)."""
    if weights is None or (isinstance(weights, str) and weights in ("auto", "none", "")):
        return None, ""
    if isinstance(weights, Mapping):
        return weights, "state dict"
    if _is_path(weights):
        path = Path(weights).expanduser()
        return read_checkpoint(path), path.name
    raise WeightsError(
        f"Weights for the module {name} are a path to a file or a state dict, not {weights!r}."
    )


def _is_path(weights: Any) -> bool:
    if isinstance(weights, os.PathLike):
        return True
    if not isinstance(weights, str):
        return False
    text = weights.lower()
    return (
        text.endswith(_SUFFIXES)
        or os.sep in weights
        or "/" in weights
        or weights.startswith("~")
        or (not text.isupper() and Path(weights).exists())
    )


def _load_torchvision(
    arch: Architecture,
    weights: Any,
    num_classes: int | None,
    progress: bool | Progress,
    cancelled: Callable[[], bool] | None,
    *,
    strict: bool,
) -> LoadedModel:
    if weights is None or (isinstance(weights, str) and weights.lower() in ("none", "untrained")):
        return _untrained(_buildable(arch), num_classes, arch)
    if isinstance(weights, Mapping):
        return _from_content(arch, weights, "state dict", num_classes, strict=strict)
    if _is_path(weights):
        path = Path(weights).expanduser()
        return _from_content(arch, read_checkpoint(path), path.name, num_classes, strict=strict)
    if num_classes is not None:
        raise ModelError(
            "num_classes goes with weights=None or a checkpoint of one's own; torchvision's "
            "weights have their own number of classes."
        )
    if isinstance(weights, str) and weights.lower() == "bundled":
        if arch.name == "vgg16":
            return load_bundled_vgg16()
        raise WeightsError(f"hookviz ships weights for 'vgg16' alone, not for '{arch.name}'.")
    member = None
    if isinstance(weights, str) and weights.lower() == "auto":
        member = _cached_member(arch.name, cancelled)
        if member is None and arch.name == "vgg16":
            return load_bundled_vgg16(_damaged_note(arch.name))
        member = member or default_member(arch.name)
        if member is None:
            raise WeightsError(
                f"torchvision has no weights for '{arch.name}'.",
                remedy="Pass a file with weights='…', or weights=None for an untrained model.",
            )
    else:
        member = find_member(arch.name, weights)
    state = fetch_state(member, progress=progress, cancelled=cancelled)
    return _from_member(arch, member, arch.build_filled(member, state))


def _cached_member(name: str, cancelled: Callable[[], bool] | None) -> Any | None:
    """The best weights in torch's cache: DEFAULT, else another that has class names."""
    default = default_member(name)
    others = [m for m in members(name) if m is not default and categories_of(m)]
    for member in [default, *others]:
        if member is not None and is_cached_whole(member, cancelled):
            return member
    return None


def _damaged_note(name: str) -> str:
    path = cached_path(default_member(name))
    return (
        f"The file {path} is damaged (its hash is wrong) and was not used."
        if path.is_file()
        else ""
    )


def _from_member(arch: Architecture, member: Any, module: nn.Module) -> LoadedModel:
    names = categories_of(member)
    missing = ""
    if not names and arch.task in ("classification", "video"):
        missing = f"No classifier: the weights {member.name} have none that was trained."
    return LoadedModel(
        module=module,
        name=arch.name,
        weights=member.name,
        trained=True,
        preprocess=member.transforms(),
        categories=names,
        note=missing,
        documentation=documentation(member),
        task=arch.task,
        builder=arch.name,
        no_classifier=missing,
    )


def _buildable(arch: Architecture) -> Buildable:
    return Buildable(
        arch.name,
        arch.build,
        arch.default_classes,
        arch.options,
        lambda: (_buildable(sibling) for sibling in arch.siblings()),
    )


def _untrained(what: Buildable, num_classes: int | None, arch: Architecture | None) -> LoadedModel:
    options = {} if num_classes is None else {"num_classes": _checked_classes(num_classes)}
    member = default_member(arch.name) if arch is not None else None
    return LoadedModel(
        module=what.build(**options),
        name=what.name,
        weights="none",
        trained=False,
        preprocess=None if member is None else member.transforms(),
        note=UNTRAINED,
        task="classification" if arch is None else arch.task,
        builder="" if arch is None else arch.name,
    )


def _checked_classes(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 1_000_000:
        raise ModelError(f"num_classes is a whole number from 1 to 1000000, not {count!r}.")
    return count


def _from_content(
    arch: Architecture, content: Any, source: str, num_classes: int | None, *, strict: bool
) -> LoadedModel:
    """A torchvision architecture with a checkpoint of one's own."""
    fitted = _fit(_buildable(arch), content, source, num_classes, strict=strict)
    member = default_member(arch.name)
    names = class_names(content, fitted.classes)
    assumed = ""
    if not names and member is not None and len(categories_of(member)) == fitted.classes:
        names = categories_of(member)
        assumed = f"Class names assumed to be those of torchvision's {member.name}."
    note, missing = head_note(source, fitted.head_missing)
    parts = ("" if missing else assumed, note, faults_note(fitted.report.faults))
    return LoadedModel(
        module=fitted.module,
        name=arch.name,
        weights=_source(source),
        trained=True,
        preprocess=None if member is None else member.transforms(),
        categories=() if missing else names,
        note=" ".join(part for part in parts if part),
        task=arch.task,
        builder=arch.name,
        no_classifier=missing,
        report=fitted.report,
    )


def _source(source: str) -> str:
    return source if source == "state dict" else f"file {source}"


def _fit(
    what: Buildable, content: Any, source: str, num_classes: int | None, *, strict: bool
) -> Fitted:
    fixed = {} if num_classes is None else {"num_classes": _checked_classes(num_classes)}
    return fit_builder(what, content, source, strict=strict, **fixed)


def _load_timm(name: str, weights: Any, num_classes: int | None, *, strict: bool) -> LoadedModel:
    what = timm_buildable(name, SEED)
    if weights is None or (isinstance(weights, str) and weights.lower() in ("none", "untrained")):
        loaded = _untrained(what, num_classes, None)
        return replace(loaded, preprocess=timm_facts(loaded.module))
    if isinstance(weights, Mapping) or _is_path(weights):
        content, source = _own_content(weights, name)
        fitted = _fit(what, content, source, num_classes, strict=strict)
        note, missing = head_note(source, fitted.head_missing)
        module, text, report = fitted.module, _source(source), fitted.report
        names = class_names(content, fitted.classes) or _imagenet(fitted.classes)
        note = " ".join(part for part in (note, faults_note(report.faults)) if part)
    elif isinstance(weights, str) and weights in ("auto", "DEFAULT"):
        module, text = timm_pretrained(name)
        names, note, missing, report = _imagenet(getattr(module, "num_classes", None)), "", "", None
    else:
        raise WeightsError(
            f"'timm:{name}' takes weights='DEFAULT', None or a path, not {weights!r}.",
            remedy="Other weights of timm are part of the name: 'timm:resnet18.a1_in1k'.",
        )
    return LoadedModel(
        module=module,
        name=what.name,
        weights=text,
        trained=True,
        preprocess=timm_facts(module),
        categories=() if missing else names,
        note=note,
        task="classification",
        no_classifier=missing,
        report=report,
    )


def _imagenet(classes: int | None) -> tuple[str, ...]:
    """ImageNet's class names where a model has just as many classes."""
    names = categories_of(default_member("resnet18"))
    return names if classes == len(names) else ()
