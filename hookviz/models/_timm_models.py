"""timm's models by name, with timm's own preprocessing.

In: "timm:NAME". Out: a LoadedModel. Must not know: devices, downloads of torchvision's.

timm is optional (extra ``timm``) and imported here alone, when it is asked for.
"""

from __future__ import annotations

import importlib
import socket
import threading
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn

from hookviz.errors import ModelError, WeightsError, did_you_mean
from hookviz.models._download import CONNECT_SECONDS
from hookviz.models._fitting import Buildable, class_options, fit_builder
from hookviz.models._loaded import SEED, LoadedModel
from hookviz.models._notes import UNTRAINED, fit_notes, source_name
from hookviz.models._presets import timm_preset
from hookviz.models._sources import is_none, is_path, own_content
from hookviz.models._unwrapping import class_names
from hookviz.models._zoo import categories, default_member

__all__ = ["load_timm", "timm_buildable"]

_HUB = "huggingface.co"


def load_timm(name: str, weights: Any, num_classes: int | None, *, strict: bool) -> LoadedModel:
    """A model of timm's, on the CPU in float32; arguments as ``load_model`` has them."""
    what = timm_buildable(name)
    names: tuple[str, ...] = ()
    report, note, missing = None, "", ""
    if is_none(weights):
        module, text, note = what.build(**class_options(num_classes)), "none", UNTRAINED
    elif isinstance(weights, Mapping) or is_path(weights):
        content, source = own_content(weights, what.name)
        options = class_options(num_classes)
        fitted = fit_builder(what, content, source, strict=strict, **options)
        note, missing = fit_notes(source, fitted)
        module, text, report = fitted.module, source_name(source), fitted.report
        names = class_names(content, fitted.classes) or _imagenet(fitted.classes)
    elif isinstance(weights, str) and weights in ("auto", "DEFAULT"):
        module, text = _pretrained(name)
        names = _imagenet(getattr(module, "num_classes", None))
    else:
        raise WeightsError(
            f"'timm:{name}' takes weights='DEFAULT', None or a path, not {weights!r}.",
            remedy="Other weights of timm are part of the name: 'timm:resnet18.a1_in1k'.",
        )
    return LoadedModel(
        module=module,
        name=what.name,
        weights=text,
        trained=text != "none",
        preprocess=_preprocessing(module),
        categories=() if missing else names,
        note=note,
        task="classification",
        no_classifier=missing,
        report=report,
    )


def _imagenet(classes: int | None) -> tuple[str, ...]:
    """ImageNet's class names where a model has just as many classes."""
    names = categories(default_member("resnet18"))
    return names if classes == len(names) else ()


def _timm() -> Any:
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        raise ModelError(
            "Models named 'timm:…' need the package timm, which is not installed.",
            remedy="pip install 'hookviz[timm]'",
        ) from error


def timm_buildable(name: str) -> Buildable:
    """How timm builds a model without weights.

    Raises:
        ModelError: timm is not installed or has no such model.
    """
    timm = _timm()
    base = name.partition(".")[0]
    if base not in timm.list_models():
        raise ModelError(
            f"timm {timm.__version__} has no model '{name}'.",
            remedy=did_you_mean(base, timm.list_models()) or None,
        )

    def build(**options: Any) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            try:
                return cast(
                    "nn.Module", timm.create_model(name, pretrained=False, **options)
                ).eval()
            except (RuntimeError, ValueError, TypeError, AssertionError) as error:
                raise ModelError(f"timm cannot build '{name}': {error}.") from error

    classes = timm.get_pretrained_cfg(name)
    return Buildable(f"timm:{name}", build, int(getattr(classes, "num_classes", 1000) or 1000))


def _preprocessing(module: nn.Module) -> Any:
    """The preprocessing that timm states for one of its models."""
    return timm_preset(_timm().data.resolve_model_data_config(module))


def _pretrained(name: str) -> tuple[nn.Module, str]:
    """A pretrained model of timm and its weights' name, from the Hugging Face cache or hub.

    Raises:
        WeightsError: timm has no weights for it, or they are neither cached nor reachable.
    """
    timm = _timm()
    config = timm.get_pretrained_cfg(name)
    tag = str(getattr(config, "tag", "") or "default")
    if config is None or not (config.hf_hub_id or config.url or config.file):
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
        with torch.random.fork_rng(devices=[]):
            module = timm.create_model(name, pretrained=True)
    except Exception as error:
        # timm and the hub raise what requests, httpx and torch raise.
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise WeightsError(
            f"The weights of timm:{name} could not be loaded: {first}",
            remedy="Pass a file with weights='…', or weights=None for an untrained model.",
            code="no-weights",
        ) from error
    return cast("nn.Module", module).eval(), f"timm {tag}"


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
