"""torchvision's models, with weights of torchvision's, of hookviz's or of one's own.

In: an Architecture and what the user asked for. Out: a LoadedModel on the CPU.
Must not know: devices, timm, modules that were passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from hookviz.errors import ModelError, WeightsError
from hookviz.models._bundled_vgg16 import load_bundled_vgg16
from hookviz.models._download import Progress
from hookviz.models._feeding import fixed_size
from hookviz.models._fetching import fetch_state, is_cached_whole
from hookviz.models._fitting import Buildable, class_options, fit_builder
from hookviz.models._loaded import LoadedModel
from hookviz.models._notes import UNTRAINED, fit_notes, joined, source_name
from hookviz.models._presets import classification_preset
from hookviz.models._sources import is_none, is_path, own_content
from hookviz.models._unwrapping import class_names
from hookviz.models._weights import cached_path
from hookviz.models._zoo import (
    Architecture,
    default_member,
    documentation,
    find_member,
    members,
    min_size,
)
from hookviz.models._zoo import categories as categories_of

__all__ = ["load_torchvision"]


def load_torchvision(
    arch: Architecture,
    weights: Any,
    num_classes: int | None,
    progress: bool | Progress,
    cancelled: Callable[[], bool] | None,
    *,
    strict: bool,
) -> LoadedModel:
    """One of torchvision's models, on the CPU in float32; arguments as ``load_model`` has them."""
    if is_none(weights):
        return _untrained(arch, num_classes)
    if isinstance(weights, Mapping) or is_path(weights):
        content, source = own_content(weights, arch.name)
        return _from_content(arch, content, source, num_classes, strict=strict)
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
                code="no-weights",
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


def _untrained(arch: Architecture, num_classes: int | None) -> LoadedModel:
    member = default_member(arch.name)
    options: dict[str, Any] = class_options(num_classes)
    if "image_size" in arch.options:  # the size that the preprocessing shown ends in
        options["image_size"] = min_size(arch.name)[0]
    return LoadedModel(
        module=arch.build(**options),
        name=arch.name,
        weights="none",
        trained=False,
        preprocess=None if member is None else member.transforms(),
        note=UNTRAINED,
        task=arch.task,
        builder=arch.name,
    )


def _from_content(
    arch: Architecture, content: Any, source: str, num_classes: int | None, *, strict: bool
) -> LoadedModel:
    """A torchvision architecture with a checkpoint of one's own."""
    options = class_options(num_classes)
    fitted = fit_builder(_buildable(arch), content, source, strict=strict, **options)
    member = default_member(arch.name)
    names = class_names(content, fitted.classes)
    assumed = ""
    if not names and member is not None and len(categories_of(member)) == fitted.classes:
        names = categories_of(member)
        assumed = f"Class names assumed to be those of torchvision's {member.name}."
    note, missing = fit_notes(source, fitted)
    return LoadedModel(
        module=fitted.module,
        name=arch.name,
        weights=source_name(source),
        trained=True,
        preprocess=None if member is None else _preset_for(fitted.module, member),
        categories=() if missing else names,
        note=joined("" if missing else assumed, note),
        task=arch.task,
        builder=arch.name,
        no_classifier=missing,
        report=fitted.report,
    )


def _preset_for(module: nn.Module, member: Any) -> Any:
    """A member's preprocessing, ending in the one size that the module takes."""
    preset = member.transforms()
    size = fixed_size(module)
    if size is None or list(getattr(preset, "crop_size", size)) in ([size[0]], list(size)):
        return preset
    return classification_preset(
        [size[0]], list(size), preset.mean, preset.std, preset.interpolation
    )
