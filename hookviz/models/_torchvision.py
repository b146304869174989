"""Model source: torchvision's models by name, with the weights that its enums state.

VGG16's thirteen convolutional layers ship with hookviz, for the first look without a download. The
values are the Oxford ones of K. Simonyan and A. Zisserman (arXiv 1409.1556), stored as float16 by
tools/build_bundled_vgg16.py and used as float32; assets/README.md has the credits.
"""

from __future__ import annotations

import fnmatch
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, cast

import torchvision.models as tv
from safetensors.torch import load
from torch import Tensor, nn

from hookviz.bundled import bundled_file
from hookviz.errors import HookvizError, WeightsError, did_you_mean
from hookviz.images import Preprocessing
from hookviz.models._loaded_model import (
    Architecture,
    LoadedModel,
    ModelSource,
    Request,
    WeightsInfo,
    task_of,
)
from hookviz.models._model_inputs import fixed_size
from hookviz.models._modules import build
from hookviz.models._weights_cache import cache_folder, fetch_state, is_whole

BUNDLED_FILE = "vgg16_features.safetensors"
BUNDLED_SHA256 = "10586c84acfb6eff46c7c52b7b1fbc72419ed5704ce28b242a4aa5356c2c4d67"
BUNDLED_NAME = "bundled Oxford VGG16 convolutions (IMAGENET1K_FEATURES)"
_BUNDLED_MODEL = "vgg16"


class TorchvisionArchitecture(Architecture):
    """A builder of torchvision.

    Args:
        name: Its registered name.

    Attributes:
        family: The module of torchvision that the builder is from.
        members: Torchvision's weights, as members of its enum, DEFAULT first.
        default: The member that torchvision calls DEFAULT.
    """

    library = "torchvision"

    def __init__(self, name: str) -> None:
        self.name = name
        self.family = str(tv.get_model_builder(name).__module__)
        self.task = task_of(self.family)
        enum: Any = tv.get_model_weights(name)
        self.default = enum.DEFAULT
        self.members: list[Any] = sorted(enum, key=lambda member: member is not enum.DEFAULT)
        self.names = categories_of(self.default)
        self.names_of = f"torchvision's {self.default.name}"
        self.default_classes = len(self.names) or None
        if self.task == "segmentation" and not name.startswith("lraspp"):
            self.options = frozenset({"aux_loss"})
        elif name.endswith(("googlenet", "inception_v3")):
            self.options = frozenset({"aux_logits"})
        elif name.startswith("vit_"):
            self.options = frozenset({"image_size"})

    def make(self, *, weights: Any = None, **options: Any) -> nn.Module:
        """Call the builder."""
        if self.task in ("segmentation", "detection"):
            # Their default would download an ImageNet backbone behind the user's back.
            options["weights_backbone"] = None
        if weights is None and self.name.endswith(("googlenet", "inception_v3")):
            options.setdefault("init_weights", True)  # as by default, but without its warning
        if weights is None and "image_size" in self.options:
            # Of the size that the preprocessing shown ends in.
            options.setdefault("image_size", self.default.meta["min_size"][0])
        builder = tv.get_model_builder(self.name)
        return cast("nn.Module", builder(weights=weights, progress=False, **options))

    def siblings(self) -> Iterator[TorchvisionArchitecture]:
        """Those of the same family."""
        return (a for a in architectures() if a.family == self.family and a.name != self.name)

    def preprocessing(self, module: nn.Module) -> Any:
        """The default weights' preprocessing, ending in the one size that the module takes."""
        preset, size = self.default.transforms(), fixed_size(module)
        if size is None or list(getattr(preset, "crop_size", size)) in ([size[0]], list(size)):
            return preset
        return Preprocessing(
            size[0], size, "crop", tuple(preset.mean), tuple(preset.std), preset.interpolation.value
        )

    def cached_member(self, cancelled: Callable[[], bool] | None) -> Any | None:
        """The best weights in torch's cache: DEFAULT, else another that has class names."""
        for member in self.members:
            path = cache_folder() / file_of(member)
            if (member is self.default or categories_of(member)) and is_whole(path, cancelled):
                return member
        return None

    def find_member(self, weights: Any) -> Any:
        """The weights that a name stands for.

        Args:
            weights: A member's name, "DEFAULT", "ResNet18_Weights.IMAGENET1K_V1" or a member.

        Raises:
            WeightsError: There are no such weights; names those that there are.
        """
        if any(weights is member for member in self.members):
            return weights
        plain = isinstance(weights, str | Enum | float | int)
        given = str(weights) if plain else type(weights).__name__
        owner, _, asked = given.rpartition(".")
        by_name = {member.name: member for member in tv.get_model_weights(self.name)}
        by_name["DEFAULT"] = self.default
        if asked.upper() in by_name and owner in ("", *(type(m).__name__ for m in self.members)):
            return by_name[asked.upper()]
        raise WeightsError(
            f"'{self.name}' has no weights '{given}': legal are {', '.join([*by_name, 'None'])}, "
            "or a path to a file.",
            remedy=did_you_mean(asked.upper(), by_name) or None,
        )

    def pretrained(self, request: Request) -> LoadedModel:
        """The model with weights of torchvision's, or with those that ship with hookviz.

        Raises:
            WeightsError: There are no such weights, or they are not to be had.
        """
        if request.word == "auto":
            member = self.cached_member(request.cancelled)
            if member is None and self.name == _BUNDLED_MODEL:
                path = cache_folder() / file_of(self.default)
                damaged = f"The file {path} is damaged (its hash is wrong) and was not used. "
                return self._bundled(damaged if path.is_file() else "")
            member = member or self.default
        elif request.word == "bundled":
            return self._bundled()
        else:
            member = self.find_member(request.weights)
        state = fetch_state(str(member.url), progress=request.progress, cancelled=request.cancelled)
        return self.with_member(member, self.build_filled(member, state))

    def with_member(self, member: Any, module: nn.Module, **facts: Any) -> LoadedModel:
        """The model with a module that holds a member's weights; ``facts`` are of `LoadedModel`."""
        missing = ""
        if not categories_of(member) and self.task in ("classification", "video"):
            missing = f"No classifier: the weights {member.name} have none that was trained."
        known = {
            "weights": member.name,
            "preprocess": member.transforms(),
            "categories": categories_of(member),
            "note": missing,
            "documentation": documentation(member),
            "no_classifier": missing,
        }
        return self.loaded(module, **{**known, **facts})

    def _bundled(self, note: str = "") -> LoadedModel:
        if self.name != _BUNDLED_MODEL:
            raise WeightsError(
                f"hookviz ships no weights for '{self.name}', for '{_BUNDLED_MODEL}' alone."
            )

        def features() -> nn.Module:
            full: Any = self.make()
            return nn.Sequential(OrderedDict(features=full.features, avgpool=full.avgpool))

        module = build(features, "none")
        module.load_state_dict(_read_bundled(), assign=True)
        missing = (
            "No classifier: these are VGG16's convolutional layers alone. For the full model with "
            "predictions use weights='DEFAULT' (a download of "
            f"{self.default.meta['_file_size']:.0f} MB)."
        )
        return self.with_member(
            tv.VGG16_Weights.IMAGENET1K_FEATURES,
            module,
            weights=BUNDLED_NAME,
            note=note + missing,
            task="features",
            no_classifier=missing,
            partial=True,
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


def architectures() -> list[TorchvisionArchitecture]:
    """All of torchvision's builders: VGG first, then ResNet, then the others by name."""

    def rank(name: str) -> tuple[bool, bool, str]:
        return not name.startswith("vgg"), not name.startswith("resnet"), name

    return [TorchvisionArchitecture(name) for name in sorted(tv.list_models(), key=rank)]


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_")


def file_of(member: Any) -> str:
    """The name that torch's cache gives a member's file."""
    return str(member.url).rpartition("/")[2]


def documentation(member: Any) -> str:
    """What torchvision says of a member, on one line."""
    return " ".join(str(member.meta.get("_docs") or "").replace("`", "").split())


def categories_of(member: Any) -> tuple[str, ...]:
    """A member's class names; () where it has none."""
    return tuple(member.meta.get("categories") or ())


def _read_bundled() -> dict[str, Tensor]:
    """The bundled tensors in float32, their file's hash checked."""
    path = bundled_file("assets", BUNDLED_FILE)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WeightsError(
            f"The bundled weights {path} cannot be read: {error.strerror}."
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != BUNDLED_SHA256:
        raise WeightsError(
            f"The bundled weights {path} are damaged: their SHA-256 begins with {found[:12]}, "
            f"expected {BUNDLED_SHA256[:12]}.",
            remedy="Install hookviz again.",
        )
    return {name: value.float() for name, value in load(content).items()}


def bundled_weights_ok() -> tuple[bool, str]:
    """Whether the bundled weights are there and whole, and a sentence that says so."""
    try:
        _read_bundled()
    except HookvizError as error:
        return False, str(error)
    return True, f"The bundled VGG16 weights are whole (SHA-256 {BUNDLED_SHA256[:12]}…)."


class Torchvision(ModelSource):
    """torchvision's models."""

    def recognises(self, model: object) -> bool:
        """A builder's name, in any case and with hyphens."""
        return isinstance(model, str) and _plain(model) in tv.list_models()

    def names(self, search: str) -> list[str]:
        """The names that contain every word of the search, or match it as a glob."""
        globs = [
            word if set(word) & set("*?[") else f"*{word}*"
            for word in str(search or "").lower().split()
        ]
        names = [arch.name for arch in architectures()]
        return [n for n in names if all(fnmatch.fnmatchcase(n, glob) for glob in globs)]

    def weights(self, name: str) -> list[WeightsInfo]:
        """The members of torchvision's enum, and for VGG16 the bundled ones."""
        arch = TorchvisionArchitecture(_plain(name))
        found = [
            WeightsInfo(
                name=member.name,
                file=file_of(member),
                default=member is arch.default,
                url=str(member.url),
                megabytes=float(member.meta.get("_file_size", 0.0)),
                cached=(cache_folder() / file_of(member)).is_file(),
                classes=len(categories_of(member)),
                documentation=documentation(member),
            )
            for member in arch.members
        ]
        if arch.name == _BUNDLED_MODEL:
            size = bundled_file("assets", BUNDLED_FILE).stat().st_size / 1e6
            text = f"Shipped with hookviz: {BUNDLED_NAME}; no classifier."
            found.append(
                WeightsInfo("bundled", BUNDLED_FILE, False, megabytes=size, documentation=text)
            )
        return found

    def is_local(self, name: str) -> bool:
        """Whether the default weights are in torch's cache, or others ship with hookviz."""
        arch = TorchvisionArchitecture(_plain(name))
        cached = (cache_folder() / file_of(arch.default)).is_file()
        return cached or arch.name == _BUNDLED_MODEL

    def recall(self, weights: str) -> str | None:
        """A member's name."""
        return "bundled" if weights == BUNDLED_NAME else weights

    def load(self, model: Any, request: Request) -> LoadedModel:
        """One of torchvision's models."""
        return TorchvisionArchitecture(_plain(model)).load(request)
