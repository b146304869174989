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

from hookviz.errors import ModelError, WeightsError, did_you_mean
from hookviz.images import Preprocessing
from hookviz.models._build import build
from hookviz.models._checkpoint import is_own, own_content
from hookviz.models._fit import Buildable, fit_builder
from hookviz.models._loaded_model import UNTRAINED, LoadedModel, ModelSource, Request, WeightsInfo
from hookviz.models._state_dict import class_names
from hookviz.models._torchvision import Architecture, categories_of
from hookviz.models._weights_cache import CONNECT_SECONDS

_HUB = "huggingface.co"


class Timm(ModelSource):
    """timm's models: "timm:NAME"."""

    prefix = "timm:"

    def recognises(self, model: object) -> bool:
        """A name with the prefix."""
        return isinstance(model, str) and model.strip().lower().startswith(self.prefix)

    def names(self, search: str) -> list[str]:
        """Names for a search that begins with the prefix; there are too many to list unasked."""
        if not self.recognises(search):
            return []
        words = _plain(search).lower().split()
        names = _timm().list_models()
        return [f"{Timm.prefix}{name}" for name in names if all(word in name for word in words)]

    def weights(self, name: str) -> list[WeightsInfo]:
        """The one that the name stands for; other weights of timm's are part of the name."""
        what = _buildable(_plain(name))
        config = _timm().get_pretrained_cfg(_plain(name))
        if not _has_weights(config):
            return []
        return [
            WeightsInfo(
                name="DEFAULT",
                default=True,
                file=str(config.hf_hub_filename or "model.safetensors"),
                url=str(config.url or f"https://{_HUB}/{config.hf_hub_id}"),
                megabytes=0.0,
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
        name = _plain(model)
        what, weights = _buildable(name), request.weights
        module, fitted = None, None
        names: tuple[str, ...] = ()
        if request.untrained:
            module, text, note = what.build(request.num_classes), "none", UNTRAINED
        elif is_own(weights):
            content, source = own_content(weights, what.name)
            fitted = fit_builder(
                what, content, source, strict=request.strict, num_classes=request.num_classes
            )
            module, text, note = fitted.module, fitted.report.label, fitted.note
            if not fitted.no_classifier:
                names = class_names(content, fitted.classes) or _imagenet(fitted.classes)
        elif isinstance(weights, str) and weights.strip().upper() in ("AUTO", "DEFAULT"):
            if request.num_classes is not None:
                raise ModelError(
                    "num_classes goes with weights=None or a checkpoint of your own; timm's "
                    "weights have their own number of classes."
                )
            (module, text), note = _pretrained(name), ""
            names = _imagenet(getattr(module, "num_classes", None))
        else:
            given = repr(weights) if isinstance(weights, str) else type(weights).__name__
            raise WeightsError(
                f"'{what.name}' takes weights='DEFAULT', None or a path, not {given}.",
                remedy="Other weights of timm are part of the name: 'timm:resnet18.a1_in1k'.",
            )
        return LoadedModel(
            module=module,
            name=what.name,
            weights=text,
            trained=text != "none",
            preprocess=Preprocessing.from_transforms(
                _timm().data.resolve_model_data_config(module)
            ),
            categories=names,
            note=note,
            task="classification",
            builder=what.name,
            no_classifier="" if fitted is None else fitted.no_classifier,
            report=None if fitted is None else fitted.report,
        )


def _plain(name: str) -> str:
    return name.strip()[len(Timm.prefix) :].strip()


def _imagenet(classes: int | None) -> tuple[str, ...]:
    """ImageNet's class names where a model has just as many classes."""
    names = categories_of(Architecture("resnet18").default)
    return names if classes == len(names) else ()


def _timm() -> Any:
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        raise ModelError(
            "Models named 'timm:…' need the package timm, which is not installed.",
            remedy="pip install 'hookviz[timm]'",
        ) from error


def _buildable(name: str) -> Buildable:
    """How timm builds a model without weights.

    Raises:
        ModelError: timm is not installed or has no such model.
    """
    timm = _timm()
    base, _, tag = name.partition(".")
    # Not by its list, which timm sorts anew each time (7 ms).
    if not (timm.is_model_pretrained(name) if tag else timm.is_model(name)):
        names = timm.list_models(pretrained=bool(tag))
        others = [n for n in names if n.partition(".")[0] == base]
        choices = others or timm.list_models()
        raise ModelError(
            f"timm {timm.__version__} has no model '{name}'.",
            remedy=did_you_mean(name, choices) or did_you_mean(base, choices) or None,
        )
    return Buildable(
        f"{Timm.prefix}{name}",
        lambda **options: cast("nn.Module", timm.create_model(name, pretrained=False, **options)),
        int(getattr(timm.get_pretrained_cfg(name), "num_classes", 1000) or 1000),
        convert=_convert,
    )


def _convert(module: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Timm's own conversion of a family's older and original checkpoints, where it has one."""
    filter_ = getattr(sys.modules[type(module).__module__], "checkpoint_filter_fn", None)
    return state if filter_ is None else cast("Mapping[str, Any]", filter_(dict(state), module))


def _tag(config: Any) -> str:
    return str(getattr(config, "tag", "") or "default")


def _has_weights(config: Any) -> bool:
    return config is not None and bool(config.hf_hub_id or config.url or config.file)


def _pretrained(name: str) -> tuple[nn.Module, str]:
    """A pretrained model of timm and its weights' name, from the Hugging Face cache or hub.

    Raises:
        WeightsError: timm has no weights for it, or they are neither cached nor reachable.
    """
    timm = _timm()
    config = timm.get_pretrained_cfg(name)
    if not _has_weights(config):
        raise WeightsError(
            f"timm has no pretrained weights for '{name}'.",
            remedy="Use weights=None.",
            code="no-weights",
        )
    if not _cached(config) and not _reachable(_HUB):
        raise WeightsError(
            f"The weights of timm:{name} ({config.hf_hub_id or config.url}) are not in the Hugging "
            f"Face cache, and {_HUB} cannot be reached.",
            remedy="Pass a file with weights='…', or weights=None for an untrained model.",
            code="no-weights",
        )
    try:
        module = build(lambda: timm.create_model(name, pretrained=True), "any")
    except Exception as error:
        # timm and the hub raise what requests, httpx and torch raise.
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise WeightsError(
            f"The weights of timm:{name} could not be loaded: {first}",
            remedy="Pass a file with weights='…', or weights=None for an untrained model.",
            code="no-weights",
        ) from error
    return module, f"timm {_tag(config)}"


def _cached(config: Any) -> bool:
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        return False
    if not config.hf_hub_id:
        return False
    files = (config.hf_hub_filename, "model.safetensors", "pytorch_model.bin")
    return any(
        isinstance(hub.try_to_load_from_cache(config.hf_hub_id, name), str)
        for name in files
        if name
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
