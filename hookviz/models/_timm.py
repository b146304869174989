"""Model source: timm's models by name, with timm's own preprocessing.

timm is optional (extra ``timm``) and imported here alone, when it is asked for.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any, cast

from torch import nn
from torchvision.models import ResNet18_Weights

from hookviz._text import error_text
from hookviz.errors import ModelError, WeightsError, did_you_mean
from hookviz.images import Preprocessing
from hookviz.models._loaded_model import (
    Architecture,
    LoadedModel,
    ModelSource,
    Request,
    WeightsInfo,
)
from hookviz.models._modules import build
from hookviz.models._weights_cache import reachable


class Timm(ModelSource):
    """timm's models: "timm:NAME"."""

    prefix = "timm:"

    def names(self, search: str) -> list[str]:
        """Names for a search that begins with the prefix; there are too many to list unasked."""
        if not self.recognises(search):
            return []
        words = _plain(search).lower().split()
        names = _timm().list_models()
        return [f"{self.prefix}{name}" for name in names if all(word in name for word in words)]

    def weights(self, name: str) -> list[WeightsInfo]:
        """The one that the name stands for; other weights of timm's are part of the name."""
        arch = TimmArchitecture(_plain(name))
        config = arch.config
        if not arch.has_weights:
            return []
        return [
            WeightsInfo(
                name="DEFAULT",
                file=str(config.hf_hub_filename or "model.safetensors"),
                url=str(config.url or f"{_hub().constants.ENDPOINT}/{config.hf_hub_id}"),
                cached=_cached(config),
                classes=arch.default_classes,
                documentation=arch.weights_name,
            )
        ]

    def is_local(self, name: str) -> bool:
        """Whether the Hugging Face cache has them."""
        return any(info.cached for info in self.weights(name))

    def recall(self, weights: str) -> str | None:  # noqa: ARG002 - part of the name
        """Which weights of timm's it is, is part of the model's name."""
        return "DEFAULT"

    def load(self, model: Any, request: Request) -> LoadedModel:
        """A model of timm's."""
        return TimmArchitecture(_plain(model)).load(request)


def _plain(name: str) -> str:
    return name.strip()[len(Timm.prefix) :].strip()


def _timm() -> Any:
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        raise ModelError(
            "Models named 'timm:…' need the package timm, which is not installed.",
            remedy="pip install 'hookviz[timm]'",
        ) from error


class TimmArchitecture(Architecture):
    """A model of timm's.

    Args:
        name: Timm's name, with or without the tag of its weights.

    Raises:
        ModelError: timm is not installed or has no such model.
    """

    library = "timm"
    names = tuple(ResNet18_Weights.DEFAULT.meta["categories"])
    names_of = "ImageNet"

    def __init__(self, name: str) -> None:
        timm = _timm()
        base, _, tag = name.partition(".")
        # Not by its list, which timm sorts anew each time (7 ms).
        if not (timm.is_model_pretrained(name) if tag else timm.is_model(name)):
            others = [n for n in timm.list_models(pretrained=True) if n.partition(".")[0] == base]
            choices = others or timm.list_models()
            raise ModelError(
                f"timm {timm.__version__} has no model '{name}'.",
                remedy=did_you_mean(name, choices) or did_you_mean(base, choices) or None,
            )
        self.convert = _convert
        self.plain, self.name = name, f"{Timm.prefix}{name}"
        self.config = config = timm.get_pretrained_cfg(name)
        self.has_weights = bool(config and (config.hf_hub_id or config.url or config.file))
        self.weights_name = f"timm {getattr(config, 'tag', '') or 'default'}"
        self.default_classes = int(getattr(config, "num_classes", 1000) or 1000)

    def make(self, **options: Any) -> nn.Module:
        """Call timm's ``create_model``."""
        return cast("nn.Module", _timm().create_model(self.plain, **options))

    def preprocessing(self, module: nn.Module) -> Preprocessing:
        """What timm states."""
        return Preprocessing.from_transforms(_timm().data.resolve_model_data_config(module))

    def pretrained(self, request: Request) -> LoadedModel:
        """The model with timm's weights, from the Hugging Face cache or hub."""
        weights, config = request.weights, self.config
        if request.word not in ("auto", "default"):
            given = repr(weights) if isinstance(weights, str) else type(weights).__name__
            raise WeightsError(
                f"'{self.name}' takes weights='DEFAULT', None or a path, not {given}.",
                remedy="Other weights of timm are part of the name: 'timm:resnet18.a1_in1k'.",
            )
        if not self.has_weights:
            raise _no_weights(f"timm has no pretrained weights for '{self.plain}'.")
        if not _cached(config) and not reachable(_hub().constants.ENDPOINT):
            raise _no_weights(
                f"The weights of {self.name} ({config.hf_hub_id or config.url}) are not in the "
                f"Hugging Face cache, and {_hub().constants.ENDPOINT} cannot be reached."
            )
        try:
            module = build(lambda: self.make(pretrained=True), "any")
        except Exception as error:  # what requests, httpx and torch raise
            text = error_text(error)
            raise _no_weights(f"The weights of {self.name} could not be loaded: {text}") from error
        known = getattr(module, "num_classes", None) == len(self.names)
        return self.loaded(module, self.weights_name, categories=self.names if known else ())


def _no_weights(fault: str) -> WeightsError:
    remedy = "Pass a file with weights='…', or weights=None for an untrained model."
    return WeightsError(fault, remedy=remedy, code="no-weights")


def _convert(module: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Timm's own conversion of a family's older and original checkpoints, where it has one."""
    change = getattr(sys.modules[type(module).__module__], "checkpoint_filter_fn", None)
    return state if change is None else cast("Mapping[str, Any]", change(dict(state), module))


def _hub() -> Any:
    return importlib.import_module("huggingface_hub")  # timm needs it


def _cached(config: Any) -> bool:
    files = (config.hf_hub_filename, "model.safetensors", "pytorch_model.bin")
    return bool(config.hf_hub_id) and any(
        isinstance(_hub().try_to_load_from_cache(config.hf_hub_id, file), str)
        for file in filter(None, files)
    )
