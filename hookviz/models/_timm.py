"""Model source: timm's models by name, with timm's own preprocessing.

timm is optional (extra ``timm``) and imported here alone, when it is asked for.
"""

from __future__ import annotations

import importlib
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any, cast

from torch import nn
from torchvision.models import ResNet18_Weights

from hookviz._text import error_text
from hookviz.errors import ModelError, WeightsError, did_you_mean
from hookviz.images import Preprocessing
from hookviz.models._loaded_model import (
    Buildable,
    LoadedModel,
    ModelSource,
    Request,
    WeightsInfo,
)
from hookviz.models._modules import build
from hookviz.models._weights_cache import CONNECT_SECONDS

_HUB = "huggingface.co"


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
        what, config = _buildable(_plain(name))
        if not _has_weights(config):
            return []
        return [
            WeightsInfo(
                name="DEFAULT",
                file=str(config.hf_hub_filename or "model.safetensors"),
                url=str(config.url or f"https://{_HUB}/{config.hf_hub_id}"),
                cached=_cached(config),
                classes=what.default_classes or 0,
                documentation=f"timm {_tag(config)}",
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
        what, config = _buildable(_plain(model))
        return what.load(request, lambda: _pretrained(what, config, request))


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


def _buildable(name: str) -> tuple[Buildable, Any]:
    """How timm builds a model without weights, and its config.

    Raises:
        ModelError: timm is not installed or has no such model.
    """
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
    config = timm.get_pretrained_cfg(name)
    what = Buildable(
        name=f"{Timm.prefix}{name}",
        library="timm",
        make=lambda **options: cast("nn.Module", timm.create_model(name, **options)),
        preprocessing=lambda module: Preprocessing.from_transforms(
            timm.data.resolve_model_data_config(module)
        ),
        default_classes=int(getattr(config, "num_classes", 1000) or 1000),
        names=tuple(ResNet18_Weights.DEFAULT.meta["categories"]),
        names_of="ImageNet",
        convert=_convert,
    )
    return what, config


def _convert(module: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Timm's own conversion of a family's older and original checkpoints, where it has one."""
    filter_ = getattr(sys.modules[type(module).__module__], "checkpoint_filter_fn", None)
    return state if filter_ is None else cast("Mapping[str, Any]", filter_(dict(state), module))


def _tag(config: Any) -> str:
    return str(getattr(config, "tag", "") or "default")


def _has_weights(config: Any) -> bool:
    return config is not None and bool(config.hf_hub_id or config.url or config.file)


def _pretrained(what: Buildable, config: Any, request: Request) -> LoadedModel:
    """A model with timm's weights, from the Hugging Face cache or hub.

    Raises:
        WeightsError: timm has no such weights, or they are neither cached nor reachable.
    """
    weights = request.weights
    if request.word not in ("auto", "default"):
        given = repr(weights) if isinstance(weights, str) else type(weights).__name__
        raise WeightsError(
            f"'{what.name}' takes weights='DEFAULT', None or a path, not {given}.",
            remedy="Other weights of timm are part of the name: 'timm:resnet18.a1_in1k'.",
        )
    fault = ""
    remedy = "Pass a file with weights='…', or weights=None for an untrained model."
    if not _has_weights(config):
        fault = f"timm has no pretrained weights for '{_plain(what.name)}'."
    elif not _cached(config) and not _reachable(_HUB):
        fault = (
            f"The weights of {what.name} ({config.hf_hub_id or config.url}) are not in the Hugging "
            f"Face cache, and {_HUB} cannot be reached."
        )
    if fault:
        raise WeightsError(fault, remedy=remedy, code="no-weights")
    try:
        module = build(lambda: what.make(pretrained=True), "any")
    except Exception as error:
        # timm and the hub raise what requests, httpx and torch raise.
        fault = f"The weights of {what.name} could not be loaded: {error_text(error)}"
        raise WeightsError(fault, remedy=remedy, code="no-weights") from error
    known = getattr(module, "num_classes", None) == len(what.names)
    return what.loaded(module, f"timm {_tag(config)}", categories=what.names if known else ())


def _cached(config: Any) -> bool:
    hub = importlib.import_module("huggingface_hub")
    files = (config.hf_hub_filename, "model.safetensors", "pytorch_model.bin")
    return bool(config.hf_hub_id) and any(
        isinstance(hub.try_to_load_from_cache(config.hf_hub_id, file), str)
        for file in filter(None, files)
    )


def _reachable(host: str) -> bool:
    """Whether a host takes a connection; asked in a thread, since a look-up has no time limit."""
    answer: list[bool] = []

    def knock() -> None:
        try:
            socket.create_connection((host, 443), timeout=CONNECT_SECONDS).close()
        except OSError:
            return
        answer.append(True)

    thread = threading.Thread(target=knock, name="hookviz-knock", daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    return bool(answer)
