"""torchvision's models by name, with their weights as torchvision's enums state them.

In: a builder's name. Out: names, weights and untrained or filled modules.
Must not know: where files lie, how they are downloaded.
"""

from __future__ import annotations

import fnmatch
import threading
import warnings
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import torch
import torchvision.models as tv
from torch import Tensor, nn

from hookviz.errors import ModelError, WeightsError, did_you_mean
from hookviz.models._filling import without_filling
from hookviz.models._loaded import SEED, Task

__all__ = [
    "Architecture",
    "architecture",
    "default_member",
    "find_member",
    "list_models",
    "members",
    "min_size",
]

_FAMILIES_FIRST = ("vgg", "resnet")
_TASKS: dict[str, Task] = {
    "segmentation": "segmentation",
    "detection": "detection",
    "video": "video",
    "optical_flow": "optical_flow",
}
_BUILDING = threading.Lock()


def list_models(search: str = "") -> list[str]:
    """Names of torchvision's models: VGG first, then ResNet, then the others by name.

    Args:
        search: Words that the name has to contain, in any order and case, or a glob ("vgg1?");
            "" for all.

    Returns:
        Names that ``load_model`` takes; empty where nothing matches.

    Examples:
        >>> list_models("vgg bn")
        ['vgg11_bn', 'vgg13_bn', 'vgg16_bn', 'vgg19_bn']
        >>> list_models()[:2]
        ['vgg11', 'vgg11_bn']
    """
    words = search.lower().split()

    def matches(name: str) -> bool:
        return all(
            fnmatch.fnmatchcase(name, word) if any(c in word for c in "*?[") else word in name
            for word in words
        )

    def rank(name: str) -> tuple[int, str]:
        for place, family in enumerate(_FAMILIES_FIRST):
            if name.startswith(family):
                return place, name
        return len(_FAMILIES_FIRST), name

    return sorted((name for name in tv.list_models() if matches(name)), key=rank)


@dataclass(frozen=True)
class Architecture:
    """A builder of torchvision.

    Attributes:
        name: Its registered name.
        task: What its models answer.
    """

    name: str
    task: Task

    @property
    def quantized(self) -> bool:
        """Whether the builder's own weights are of 8 bits."""
        return self.name.startswith("quantized_")

    def siblings(self) -> list[Architecture]:
        """Builders of the same family, this one left out: those of the same file of torchvision."""
        home = tv.get_model_builder(self.name).__module__
        names = [n for n in tv.list_models() if tv.get_model_builder(n).__module__ == home]
        return [Architecture(name, self.task) for name in names if name != self.name]

    @property
    def options(self) -> frozenset[str]:
        """What a checkpoint may ask of the builder beside the number of classes."""
        options: dict[str, set[str]] = {
            "googlenet": {"aux_logits"},
            "inception_v3": {"aux_logits"},
            "vit": {"image_size"},
        }
        base = self.name.removeprefix("quantized_")
        found = options.get("vit" if base.startswith("vit_") else base, set())
        if self.task == "segmentation" and not base.startswith("lraspp"):
            found = {"aux_loss"}
        return frozenset(found)

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

    def build(self, **options: Any) -> nn.Module:
        """An untrained module in eval mode; torch's random numbers are left as they were."""
        kwargs = dict(options)
        if self.task in ("segmentation", "detection"):
            # Their default would download an ImageNet backbone behind the user's back.
            kwargs["weights_backbone"] = None
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # The initialisation of old builders warns about itself.
            warnings.simplefilter("ignore")
            torch.manual_seed(SEED)
            try:
                module = tv.get_model_builder(self.name)(weights=None, **kwargs)
            except (RuntimeError, ValueError, TypeError, AssertionError) as error:
                raise ModelError(f"torchvision cannot build '{self.name}': {error}.") from error
        return cast("nn.Module", module).eval()

    def build_filled(self, member: Any, state: Mapping[str, Tensor]) -> nn.Module:
        """The module of one of torchvision's weights, filled with tensors already read.

        torchvision's own builder does it, because some change the module to fit their weights
        (frozen BatchNorm, another epsilon, input transforms); only the reading, which would
        unpickle the file without limits, is replaced by the state dict given.

        Raises:
            WeightsError: The tensors do not fit.
        """
        kwargs: dict[str, Any] = {"quantize": True} if self.quantized else {}
        if self.task in ("segmentation", "detection"):
            kwargs["weights_backbone"] = None
        with _BUILDING, ExitStack() as stack, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stack.enter_context(torch.random.fork_rng(devices=[]))
            # One attribute on this one member, taken off again: another thread that builds the
            # same weights meanwhile gets the same tensors, whose hash has been checked.
            member.get_state_dict = lambda *_args, **_kwargs: state
            stack.callback(delattr, member, "get_state_dict")
            stack.enter_context(without_filling())
            try:
                module = tv.get_model_builder(self.name)(weights=member, progress=False, **kwargs)
            except (RuntimeError, ValueError, KeyError, AttributeError, TypeError) as error:
                raise WeightsError(
                    f"The weights {member.name} in {file_of(member)} do not fit '{self.name}': "
                    f"{' '.join(str(error).split())[:200]}"
                ) from error
        return cast("nn.Module", module).eval()


def architecture(name: str) -> Architecture:
    """Torchvision's builder of that name.

    Raises:
        ModelError: There is none; offers the closest names.
    """
    asked = name.strip().lower().replace("-", "_")
    names = tv.list_models()
    if asked not in names:
        raise ModelError(
            f"Unknown model '{name}': legal are torchvision's {len(names)} names, 'timm:NAME' or "
            "a module.",
            remedy=did_you_mean(asked, names) or None,
        )
    rooms = tv.get_model_builder(asked).__module__.split(".")
    task = next((_TASKS[room] for room in rooms if room in _TASKS), "classification")
    return Architecture(asked, cast("Task", task))


def members(name: str) -> list[Any]:
    """Torchvision's weights of a builder, as members of its enum; empty where it has none."""
    return list(tv.get_model_weights(architecture(name).name))


def default_member(name: str) -> Any | None:
    """The member that torchvision calls DEFAULT; None where a builder has no weights."""
    enum = tv.get_model_weights(architecture(name).name)
    return getattr(enum, "DEFAULT", None)


def find_member(name: str, weights: Any) -> Any:
    """The weights of a builder that a name stands for.

    Args:
        name: A builder.
        weights: A member's name, "DEFAULT", "ResNet18_Weights.IMAGENET1K_V1" or a member.

    Raises:
        WeightsError: The builder has no such weights; names those that it has.
    """
    choices = members(name)
    if weights in choices:
        return weights
    asked = str(weights).rpartition(".")[2]
    by_name = {member.name.upper(): member for member in choices}
    default = default_member(name)
    if default is not None:
        by_name["DEFAULT"] = default
    owner = str(weights).rpartition(".")[0]
    if asked.upper() in by_name and owner in ("", *(type(c).__name__ for c in choices)):
        return by_name[asked.upper()]
    legal = _or([*by_name, "None"])
    raise WeightsError(
        f"'{name}' has no weights '{weights}': legal are {legal}, or a path to a file.",
        remedy=did_you_mean(asked.upper(), by_name) or None,
    )


def _or(names: Iterable[str]) -> str:
    return ", ".join(names)


def file_of(member: Any) -> str:
    """The name that torch's cache gives a member's file."""
    return str(member.url).rpartition("/")[2]


def documentation(member: Any) -> str:
    """What torchvision says of a member, on one line."""
    return " ".join(str(member.meta.get("_docs") or "").replace("`", "").split())


def categories(member: Any) -> tuple[str, ...]:
    """A member's class names; () where it has none."""
    return tuple(member.meta.get("categories") or ())


def min_size(name: str) -> tuple[int, int]:
    """The smallest (height, width) that torchvision states for a builder; (1, 1) where none."""
    member = default_member(name) if name in tv.list_models() else None
    if member is None:
        return 1, 1
    height, width = member.meta.get("min_size", (1, 1))
    return int(height), int(width)
