"""Model source: torchvision's models by name, with the weights that its enums state."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, cast

import torchvision.models as tv
from torch import nn

from hookviz.errors import ModelError, WeightsError, did_you_mean
from hookviz.images import Preprocessing
from hookviz.models._build import build
from hookviz.models._checkpoint import is_own, own_content
from hookviz.models._fit import Buildable, fit_builder
from hookviz.models._loaded_model import (
    UNTRAINED,
    LoadedModel,
    ModelSource,
    Request,
    Task,
    WeightsInfo,
)
from hookviz.models._model_inputs import fixed_size, min_size
from hookviz.models._state_dict import class_names
from hookviz.models._weights_cache import cache_folder, fetch_state, is_whole

_FAMILIES_FIRST = ("vgg", "resnet")
_TASKS: tuple[Task, ...] = ("segmentation", "detection", "video", "optical_flow")


@dataclass(frozen=True)
class Architecture:
    """A builder of torchvision.

    Attributes:
        name: Its registered name.
    """

    name: str

    @property
    def family(self) -> str:
        """The module of torchvision that the builder is from."""
        return str(tv.get_model_builder(self.name).__module__)

    @property
    def task(self) -> Task:
        """What its models answer."""
        parts = self.family.split(".")
        return next((task for task in _TASKS if task in parts), "classification")

    @cached_property
    def members(self) -> list[Any]:
        """Torchvision's weights, as members of its enum, DEFAULT first."""
        enum = tv.get_model_weights(self.name)
        default = getattr(enum, "DEFAULT", None)
        return sorted(enum, key=lambda member: member is not default)

    @property
    def default(self) -> Any | None:
        """The member that torchvision calls DEFAULT; None where there are no weights."""
        return self.members[0] if self.members else None

    @property
    def options(self) -> frozenset[str]:
        """What a checkpoint may ask of the builder beside the number of classes."""
        base = self.name.removeprefix("quantized_")
        if self.task == "segmentation" and not base.startswith("lraspp"):
            return frozenset({"aux_loss"})
        if base in ("googlenet", "inception_v3"):
            return frozenset({"aux_logits"})
        return frozenset({"image_size"} if base.startswith("vit_") else ())

    @property
    def default_classes(self) -> int | None:
        """How many classes the builder makes by itself; None where it has none to choose."""
        if self.task == "optical_flow":
            return None
        if self.name.startswith("keypointrcnn"):
            return 2
        video = "swin3d", "mvit", "r3d", "mc3", "r2plus1d", "s3d"
        if self.name.startswith(video):
            return 400
        return {"detection": 91, "segmentation": 21}.get(self.task, 1000)

    def make(self, *, weights: Any = None, **options: Any) -> nn.Module:
        """Call the builder."""
        if self.task in ("segmentation", "detection"):
            # Their default would download an ImageNet backbone behind the user's back.
            options["weights_backbone"] = None
        if weights is None and self.name.endswith(("googlenet", "inception_v3")):
            options.setdefault("init_weights", True)  # as by default, but without its warning
        builder = tv.get_model_builder(self.name)
        return cast("nn.Module", builder(weights=weights, progress=False, **options))

    @property
    def buildable(self) -> Buildable:
        """How a checkpoint's model is built."""
        return Buildable(
            self.name,
            self.make,
            self.default_classes,
            self.options,
            lambda: (a.buildable for a in architectures() if a.family == self.family and a != self),
        )

    def build_filled(self, member: Any, state: Mapping[str, Any]) -> nn.Module:
        """The module of one of torchvision's weights, filled with tensors already read.

        torchvision's own builder does it, because some change the module to fit their weights
        (frozen BatchNorm, another epsilon, input transforms); only the reading, which would
        unpickle the file without limits, is replaced by the state dict given.

        Raises:
            WeightsError: The tensors do not fit.
        """
        options = {"quantize": True} if self.name.startswith("quantized_") else {}
        try:
            return build(lambda: self.make(weights=_Read(member, state), **options), "any")
        except (RuntimeError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise WeightsError(
                f"The weights {member.name} in {file_of(member)} do not fit '{self.name}': "
                f"{' '.join(str(error).split())[:200]}"
            ) from error


class _Read:
    """A member of a weights enum whose file has been read already.

    Equal to the member and an instance of its class for whoever asks; the enum itself, which
    belongs to the whole process, is left as it is.
    """

    def __init__(self, member: Any, state: Mapping[str, Any]) -> None:
        self._member = member
        self._state = state

    @property  # type: ignore[misc] # what isinstance() asks for
    def __class__(self) -> Any:
        return type(self._member)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._member, name)

    def __eq__(self, other: object) -> bool:
        return bool(self._member == other)

    def __hash__(self) -> int:
        return hash(self._member)

    def get_state_dict(self, *_: Any, **__: Any) -> Mapping[str, Any]:
        """What torchvision's own reads from the file."""
        return self._state


def architectures() -> list[Architecture]:
    """All of torchvision's builders: VGG first, then ResNet, then the others by name."""

    def rank(name: str) -> tuple[int, str]:
        for place, family in enumerate(_FAMILIES_FIRST):
            if name.startswith(family):
                return place, name
        return len(_FAMILIES_FIRST), name

    return [Architecture(name) for name in sorted(tv.list_models(), key=rank)]


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_")


def find_member(arch: Architecture, weights: Any) -> Any:
    """The weights of a builder that a name stands for.

    Args:
        arch: The builder.
        weights: A member's name, "DEFAULT", "ResNet18_Weights.IMAGENET1K_V1" or a member.

    Raises:
        WeightsError: The builder has no such weights; names those that it has.
    """
    if any(weights is member for member in arch.members):
        return weights
    given = (
        str(weights) if isinstance(weights, str | Enum | float | int) else type(weights).__name__
    )
    owner, _, asked = given.rpartition(".")
    by_name = {member.name: member for member in tv.get_model_weights(arch.name)}
    if arch.default is not None:
        by_name["DEFAULT"] = arch.default
    if asked.upper() in by_name and owner in ("", *(type(m).__name__ for m in arch.members)):
        return by_name[asked.upper()]
    raise WeightsError(
        f"'{arch.name}' has no weights '{given}': legal are {', '.join([*by_name, 'None'])}, or "
        "a path to a file.",
        remedy=did_you_mean(asked.upper(), by_name) or None,
    )


def file_of(member: Any) -> str:
    """The name that torch's cache gives a member's file."""
    return str(member.url).rpartition("/")[2]


def documentation(member: Any) -> str:
    """What torchvision says of a member, on one line."""
    return " ".join(str(member.meta.get("_docs") or "").replace("`", "").split())


def categories_of(member: Any) -> tuple[str, ...]:
    """A member's class names; () where it has none."""
    return tuple(member.meta.get("categories") or ())


def cached_member(arch: Architecture, request: Request) -> Any | None:
    """The best weights in torch's cache: DEFAULT, else another that has class names."""
    for member in arch.members:
        path = cache_folder() / file_of(member)
        if (member is arch.default or categories_of(member)) and is_whole(path, request.cancelled):
            return member
    return None


class Torchvision(ModelSource):
    """torchvision's models."""

    def recognises(self, model: object) -> bool:
        """A builder's name, in any case and with hyphens."""
        return isinstance(model, str) and _plain(model) in tv.list_models()

    def names(self, search: str) -> list[str]:
        """The names that contain every word of the search, or match it as a glob."""
        words = str(search or "").lower().split()
        return [
            arch.name
            for arch in architectures()
            if all(
                fnmatch.fnmatchcase(arch.name, word if set(word) & set("*?[") else f"*{word}*")
                for word in words
            )
        ]

    def weights(self, name: str) -> list[WeightsInfo]:
        """The members of torchvision's enum."""
        arch = Architecture(_plain(name))
        return [
            WeightsInfo(
                name=member.name,
                default=member is arch.default,
                file=file_of(member),
                url=str(member.url),
                megabytes=float(member.meta.get("_file_size", 0.0)),
                cached=(cache_folder() / file_of(member)).is_file(),
                classes=len(categories_of(member)),
                documentation=documentation(member),
            )
            for member in arch.members
        ]

    def is_local(self, name: str) -> bool:
        """Whether the default weights are in torch's cache."""
        default = Architecture(_plain(name)).default
        return default is not None and (cache_folder() / file_of(default)).is_file()

    def recall(self, weights: str) -> str | None:
        """A member's name."""
        return weights

    def load(self, model: Any, request: Request) -> LoadedModel:
        """One of torchvision's models."""
        arch = Architecture(_plain(model))
        weights = request.weights
        if request.untrained:
            return _untrained(arch, request)
        if is_own(weights):
            return _from_content(arch, *own_content(weights, arch.name), request)
        if request.num_classes is not None:
            raise ModelError(
                "num_classes goes with weights=None or a checkpoint of your own; torchvision's "
                "weights have their own number of classes."
            )
        if isinstance(weights, str) and weights.strip().lower() == "bundled":
            raise WeightsError(f"hookviz ships no weights for '{arch.name}', for 'vgg16' alone.")
        if request.automatic:
            member = cached_member(arch, request) or arch.default
        else:
            member = find_member(arch, weights)
        if member is None:
            raise WeightsError(
                f"torchvision has no weights for '{arch.name}'.",
                remedy="Pass a file with weights='…', or weights=None for an untrained model.",
                code="no-weights",
            )
        state = fetch_state(str(member.url), progress=request.progress, cancelled=request.cancelled)
        return _from_member(arch, member, arch.build_filled(member, state))


def _loaded(arch: Architecture, module: nn.Module, weights: str, **facts: Any) -> LoadedModel:
    preprocess = None if arch.default is None else _preprocess_for(module, arch.default)
    return LoadedModel(
        module=module,
        name=arch.name,
        weights=weights,
        trained=weights != "none",
        task=arch.task,
        builder=arch.name,
        **{"preprocess": preprocess, **facts},
    )


def _from_member(arch: Architecture, member: Any, module: nn.Module) -> LoadedModel:
    names = categories_of(member)
    missing = ""
    if not names and arch.task in ("classification", "video"):
        missing = f"No classifier: the weights {member.name} have none that was trained."
    return _loaded(
        arch,
        module,
        member.name,
        preprocess=member.transforms(),
        categories=names,
        note=missing,
        documentation=documentation(member),
        no_classifier=missing,
    )


def _untrained(arch: Architecture, request: Request) -> LoadedModel:
    # Of the size that the preprocessing shown ends in.
    size: dict[str, Any] = (
        {"image_size": min_size(arch.name)[0]} if "image_size" in arch.options else {}
    )
    module = arch.buildable.build(request.num_classes, **size)
    return _loaded(arch, module, "none", note=UNTRAINED)


def _from_content(arch: Architecture, content: Any, source: str, request: Request) -> LoadedModel:
    """A torchvision architecture with the user's checkpoint."""
    fitted = fit_builder(
        arch.buildable, content, source, strict=request.strict, num_classes=request.num_classes
    )
    names = class_names(content, fitted.classes)
    note = fitted.note
    if not names and arch.default is not None and not fitted.no_classifier:
        theirs = categories_of(arch.default)
        if len(theirs) == fitted.classes:
            names = theirs
            assumed = f"Class names assumed to be those of torchvision's {arch.default.name}."
            note = f"{assumed} {note}".strip()
    return _loaded(
        arch,
        fitted.module,
        fitted.report.label,
        categories=() if fitted.no_classifier else names,
        note=note,
        no_classifier=fitted.no_classifier,
        report=fitted.report,
    )


def _preprocess_for(module: nn.Module, member: Any) -> Any:
    """A member's preprocessing, ending in the one size that the module takes."""
    preset = member.transforms()
    size = fixed_size(module)
    if size is None or list(getattr(preset, "crop_size", size)) in ([size[0]], list(size)):
        return preset
    return Preprocessing(
        size[0], size, "crop", tuple(preset.mean), tuple(preset.std), preset.interpolation.value
    )
