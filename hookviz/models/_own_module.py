"""Model source: a module that the user built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hookviz.errors import ModelError, WeightsError
from hookviz.images import Preprocessing
from hookviz.models._checkpoint import open_checkpoint
from hookviz.models._fit import as_names, class_names, fit_module
from hookviz.models._input_size import InputSize, find_input_size
from hookviz.models._loaded_model import LoadedModel, ModelSource, Request
from hookviz.models._model_inputs import infer_task, is_hugging_face, unwrapped


class OwnModule(ModelSource):
    """A module, used as it is; a checkpoint goes into a copy.

    The user's own stays in its mode, on its device, with its values and gradients.
    """

    def recognises(self, model: object) -> bool:
        """Any module."""
        return isinstance(model, nn.Module)

    def load(self, model: Any, request: Request) -> LoadedModel:
        """Wrap a module without changing it.

        Raises:
            ModelError: TorchScript; or a copy is needed and cannot be made.
            WeightsError: The checkpoint does not fit.
        """
        if isinstance(model, torch.jit.ScriptModule):
            raise ModelError(
                "TorchScript modules are not supported: their layers cannot be hooked.",
                remedy="Pass the Python model that it was made from.",
            )
        if request.num_classes is not None:
            raise ModelError("num_classes goes with a model's name; a module has its own.")
        inner = unwrapped(model)
        name = type(inner).__name__
        labels = getattr(getattr(inner, "config", None), "id2label", None)  # Hugging Face's
        names = tuple(request.categories or ()) or as_names(labels)
        preprocess, note = _assumed(inner) if request.preprocess is None else (None, "")
        loaded = LoadedModel(
            module=model,
            name=name,
            weights="as passed in",
            trained=True,
            preprocess=preprocess,
            categories=names,
            note=note,
            task=infer_task(inner),
            passed_in=True,
        )
        if request.word in ("auto", "none"):
            return loaded
        given = open_checkpoint(request.weights)
        if given is None:
            what = request.weights
            shown = repr(what) if isinstance(what, str) else type(what).__name__
            raise WeightsError(
                f"Weights for {name} are a path to a file or a state dict, not {shown}."
            )
        fitted = fit_module(model, given, name, strict=request.strict)
        return replace(
            loaded,
            module=fitted.module,
            weights=fitted.report.label,
            categories=names or class_names(given.content, fitted.classes),
            note=f"{fitted.note} {note}".strip(),
            no_classifier=fitted.no_classifier,
            report=fitted.report,
            passed_in=False,
        )


def _assumed(module: nn.Module) -> tuple[Preprocessing | None, str]:
    """Preprocessing for a module that comes without: what its forward takes, and a note."""
    if is_hugging_face(module):
        size = getattr(getattr(module, "config", None), "image_size", None)
        sides = size if isinstance(size, int) else tuple(size or (224, 224))
        return Preprocessing.for_size(sides, "squash", mean=0.5, std=0.5), (
            "Preprocessing assumed (mean and std 0.5); pass preprocess=AutoImageProcessor… for the "
            "model's own."
        )
    if infer_task(module) not in ("classification", "segmentation", "unknown"):
        return None, ""
    found = find_input_size(module)
    if found is None or found == InputSize(3):
        return None, ""
    if found.size is None:
        return Preprocessing(mean=(0.0,), std=(1.0,)), ""
    how = Preprocessing.for_size(found.size, channels=found.channels, mean=0, std=1)
    return how, f"Input size found by trial: {found.describe()}, values 0 to 1."
