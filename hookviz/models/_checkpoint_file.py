"""Model source: a checkpoint file that says itself which architecture its weights are for.

By a name that a training script keeps beside the weights ("arch", "model_name" …), or by the names
and shapes of its tensors where they are those of one torchvision architecture alone.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hookviz.errors import ModelError, closest
from hookviz.models._checkpoint import SUFFIXES, Checkpoint, expanded, read_checkpoint
from hookviz.models._fit import find_weights, fits, shares_names, state_names, tables
from hookviz.models._loaded_model import LoadedModel, ModelSource, Request, WeightsInfo
from hookviz.models._torchvision import TorchvisionArchitecture, architectures

_KEYS = ("arch", "architecture", "model_name", "model", "name", "backbone")


class CheckpointFile(ModelSource):
    """A path in place of a model's name.

    Args:
        others: The sources that load a model by the name found.
    """

    def __init__(self, *others: ModelSource) -> None:
        self._others = others

    def recognises(self, model: object) -> bool:
        """A path object, a checkpoint's suffix, or the path of a file that is there."""
        if not isinstance(model, str):
            return isinstance(model, os.PathLike)
        text = model.strip()
        return text.lower().endswith(SUFFIXES) or (
            "\0" not in text and os.path.isfile(os.path.expanduser(text))  # noqa: PTH111, PTH113 - raise nothing
        )

    def weights(self, name: str) -> list[WeightsInfo]:
        """Its own."""
        path = expanded(name.strip())
        there = path.is_file()
        size = path.stat().st_size / 1e6 if there else 0.0
        text = f"file {path.name}"
        return [WeightsInfo("auto", path.name, megabytes=size, cached=there, documentation=text)]

    def load(self, model: Any, request: Request) -> LoadedModel:
        """The architecture that the file names or fits, with its weights.

        Raises:
            ModelError: The file does not say what it is; says what to write.
            WeightsError: It cannot be read, or other weights are asked for as well.
        """
        path = expanded(model.strip() if isinstance(model, str) else model)
        example = f"load_model('resnet18', weights={str(path)!r})"
        if request.word != "auto":
            raise ModelError(
                f"{path.name} is a file of weights and takes no others.",
                remedy=f"Name the architecture: {example}.",
            )
        opened = Checkpoint(read_checkpoint(path), path.name)
        request = replace(request, weights=opened)
        for stated in _stated(opened.content):
            for source in self._others:
                name = f"{source.prefix}{stated}"
                with suppress(ModelError):
                    if source.recognises(name):
                        loaded = source.load(name, request)
                        return _noted(loaded, f"{path.name} names its architecture.")
        found = _fitting(opened, path.stem)
        if len(found) == 1:
            loaded = self._others[0].load(found[0], request)
            return _noted(loaded, f"{path.name} has this architecture's names and shapes.")
        written = f"weights={str(path)!r})"
        message = f"{path.name} does not say which architecture its weights are for."
        remedy = f"Name it, {example}, or pass the module: load_model(module, {written}."
        if found:
            message = f"{path.name} fits {' and '.join(repr(name) for name in found)} alike."
            remedy = f"Name the architecture: load_model({found[0]!r}, {written}."
        raise ModelError(message, remedy=remedy, code="architecture-unknown")


def _noted(loaded: LoadedModel, sentence: str) -> LoadedModel:
    return replace(loaded, note=f"{loaded.note} {sentence}".strip())


def _stated(content: Any) -> Iterator[str]:
    """Names of architectures that a checkpoint keeps beside its weights."""
    for table in tables(content):
        for key in _KEYS:
            value = table.get(key)
            if isinstance(value, str) and 0 < len(value) < 100:
                yield value


@functools.cache
def _names(name: str) -> tuple[str, ...]:
    """Kept, as building one of each family to learn them takes two seconds."""
    return state_names(TorchvisionArchitecture(name))


def _fitting(given: Checkpoint, stem: str) -> list[str]:
    """Torchvision's architectures with a checkpoint's names and shapes: of one family alone."""
    known = [arch for arch in architectures() if not arch.name.startswith("quantized_")]
    likely = closest(stem.lower(), [arch.name for arch in known], 5)
    families: dict[str, list[TorchvisionArchitecture]] = {}
    for arch in sorted(known, key=lambda arch: arch.name not in likely):
        families.setdefault(arch.family, []).append(arch)
    for family in families.values() if find_weights(given, {}) else ():
        if shares_names(_names(family[0].name), given):
            found = [arch.name for arch in family if fits(arch, given)]
            if found:
                return found
    return []
