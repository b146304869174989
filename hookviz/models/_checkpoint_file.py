"""Model source: a checkpoint file that says itself which architecture its weights are for.

By a name that a training script keeps beside the weights ("arch", "model_name" …), or by the names
and shapes of its tensors where they are those of one torchvision architecture alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hookviz.errors import ModelError, closest
from hookviz.models._checkpoint import SUFFIXES, Opened, expanded, read_checkpoint
from hookviz.models._fit import fits
from hookviz.models._loaded_model import LoadedModel, ModelSource, Request, WeightsInfo
from hookviz.models._state_dict import find_weights
from hookviz.models._torchvision import Architecture, architectures

_KEYS = ("arch", "architecture", "model_name", "model", "name", "backbone")
_PLACES = ("args", "hyper_parameters", "config", "cfg", "meta", "opt")


class CheckpointFile(ModelSource):
    """A path in place of a model's name.

    Args:
        others: The sources that load a model by the name found.
    """

    def __init__(self, *others: ModelSource) -> None:
        self._others = others

    def recognises(self, model: object) -> bool:
        """A path object, a checkpoint's suffix, or the path of a file that is there."""
        if isinstance(model, os.PathLike):
            return True
        if not isinstance(model, str):
            return False
        text = model.strip()
        if text.lower().endswith(SUFFIXES):
            return True
        try:
            return (os.sep in text or text[:1] == "~") and Path(text).expanduser().is_file()
        except (OSError, RuntimeError, ValueError):
            return False

    def weights(self, name: str) -> list[WeightsInfo]:
        """Its own."""
        path = expanded(name.strip())
        there = path.is_file()
        size = path.stat().st_size / 1e6 if there else 0.0
        return [WeightsInfo("auto", True, path.name, "", size, there, 0, f"file {path.name}")]

    def load(self, model: Any, request: Request) -> LoadedModel:
        """The architecture that the file names or fits, with its weights.

        Raises:
            ModelError: The file does not say what it is; says what to write.
            WeightsError: It cannot be read, or other weights are asked for as well.
        """
        path = expanded(model.strip() if isinstance(model, str) else model)
        example = f"load_model('resnet18', weights={str(path)!r})"
        if not request.automatic:
            raise ModelError(
                f"{path.name} is a file of weights and takes no others.",
                remedy=f"Name the architecture: {example}.",
            )
        opened = Opened(read_checkpoint(path), path.name)
        for stated in _stated(opened.content):
            for source in self._others:
                name = f"{source.prefix}{stated}"
                try:
                    if source.recognises(name) and name in source.names(name):
                        loaded = source.load(name, replace(request, weights=opened))
                        return _noted(loaded, f"{path.name} names its architecture.")
                except ModelError:
                    continue
        found = _fitting(opened.content, path.stem)
        if len(found) == 1:
            for source in self._others:
                if source.recognises(found[0]):
                    loaded = source.load(found[0], replace(request, weights=opened))
                    return _noted(loaded, f"{path.name} has this architecture's names and shapes.")
        if found:
            raise ModelError(
                f"{path.name} fits {' and '.join(repr(name) for name in found)} alike.",
                remedy=f"Name the architecture: load_model({found[0]!r}, weights={str(path)!r}).",
                code="architecture-unknown",
            )
        raise ModelError(
            f"{path.name} does not say which architecture its weights are for.",
            remedy=f"Name it, {example}, or pass the module: load_model(module, "
            f"weights={str(path)!r}).",
            code="architecture-unknown",
        )


def _noted(loaded: LoadedModel, sentence: str) -> LoadedModel:
    return replace(loaded, note=f"{loaded.note} {sentence}".strip())


def _stated(content: Any) -> Iterator[str]:
    """Names of architectures that a checkpoint keeps beside its weights."""
    if not isinstance(content, Mapping):
        return
    for place in (content, *(content.get(key) for key in _PLACES)):
        table = place if isinstance(place, Mapping) else getattr(place, "__dict__", {})
        for key in _KEYS:
            value = table.get(key)
            if isinstance(value, str) and 0 < len(value) < 100:
                yield value


def _fitting(content: Any, stem: str) -> list[str]:
    """Torchvision's architectures with a checkpoint's names and shapes: of one family alone."""
    known = [arch for arch in architectures() if not arch.name.startswith("quantized_")]
    likely = closest(stem.lower(), [arch.name for arch in known], 5)
    families: dict[str, list[Architecture]] = {}
    for arch in sorted(known, key=lambda arch: arch.name not in likely):
        families.setdefault(arch.family, []).append(arch)
    for family in families.values() if find_weights(content, {}) else ():
        if _alike(family[0], content):
            found = [arch.name for arch in family if fits(arch.buildable, content)]
            if found:
                return found
    return []


def _alike(arch: Architecture, content: Any) -> bool:
    """Whether a checkpoint shares names with an architecture, as all of its family do."""
    shapes = dict.fromkeys(arch.buildable.state())
    found = [set(selection.values) for selection in find_weights(content, shapes)[:1]]
    return any(3 * len(names & set(shapes)) >= min(len(names), len(shapes)) for names in found)
