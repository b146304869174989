"""What a survey's numbers depend on beside its images, and models that travel as a text."""

from __future__ import annotations

import hashlib
import importlib
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from hookviz.errors import SurveyError
from hookviz.images import Preprocessing
from hookviz.models import LoadedModel, load_model
from hookviz.surveys._inputs import Inputs
from hookviz.surveys._plan import FORMAT

_FUNCTION = re.compile(r"(?!timm:)[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def facts_of(model: LoadedModel, names: list[str], kind: str, inputs: Inputs) -> dict[str, Any]:
    """The facts of a model and of this machine.

    Args:
        model: The model.
        names: Its layers that are surveyed.
        kind: Of the data, see `Source`.
        inputs: Makes the network's input.
    """
    device = model.device
    chip = torch.backends.cpu.get_cpu_capability()
    if device.type == "cuda":
        chip = torch.cuda.get_device_name(device)
    return {
        "format": FORMAT,
        "model": model.name,
        "weights": model.weights,
        "weights_hash": model.weights_hash,
        "structure": _structure(model.module),
        "layers": names,
        "preprocessing": inputs.how.describe(),
        "data": kind,
        "torch": torch.__version__,
        "device": f"{device.type} ({chip})",
        "threads": torch.get_num_threads(),
    }


def _structure(module: nn.Module) -> str:
    """A hash over names and types of all layers, with what they print of themselves."""
    text = "\n".join(
        f"{name} {type(one).__name__} {one.extra_repr()}" for name, one in module.named_modules()
    )
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def names_function(text: str) -> bool:
    """Whether a text is "package.module:function", and not the name of a model.

    Examples:
        >>> names_function("my_package.nets:large"), names_function("timm:resnet18")
        (True, False)
    """
    return _FUNCTION.fullmatch(text) is not None


def model_from(text: str) -> LoadedModel | None:
    """The model that "package.module:function" gives; None where the text is not of that kind.

    Raises:
        SurveyError: There is no such module or function, or it gives no model.
    """
    if not names_function(text):
        return None
    module, _, name = text.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SurveyError(f"There is no function '{text}': {error}.") from error
    found = function()
    if not isinstance(found, LoadedModel | nn.Module):
        raise SurveyError(
            f"'{text}' gave a {type(found).__name__}; it must give a model: an nn.Module or what "
            "hookviz.load_model gives."
        )
    return load_model(found)


@dataclass(frozen=True)
class ModelText:
    """A model as texts and numbers, from which another process builds it again.

    Attributes:
        model: A name, a checkpoint's path, or "package.module:function".
        weights: What `load_model` takes.
        num_classes: Likewise.
        strict: Likewise.
        device: "cpu", "cuda" …
        preprocess: A `Preprocessing` as a mapping, where it is not the model's own.
    """

    model: str
    weights: str | None
    num_classes: int | None
    strict: bool
    device: str
    preprocess: dict[str, Any] | None = None

    @classmethod
    def of(cls, model: LoadedModel, function: str | None) -> ModelText:
        """What a loaded model is made of.

        Args:
            model: The model.
            function: "package.module:function" that gave it, if one did.

        Raises:
            SurveyError: It cannot be written down: a module, own weights, an own preprocessing.
        """
        device, how = model.device.type, model.preprocess
        recipe = model.recipe
        if function is not None:
            return cls(function, "auto", None, True, device)
        if recipe is None or recipe.model is None or recipe.own_weights:
            raise SurveyError(
                "Processes elsewhere have to build the model anew, and a module cannot be sent.",
                remedy="Give a name, a checkpoint's path, or 'package.module:function'.",
            )
        changed = None
        if how is not recipe.preprocess:
            if type(how) is not Preprocessing:
                raise SurveyError(
                    "A preprocessing of your own cannot be sent to processes elsewhere.",
                    remedy="Describe it by hookviz.Preprocessing, or give the model as "
                    "'package.module:function', whose LoadedModel has it.",
                )
            changed = asdict(how)
        return cls(recipe.model, recipe.weights, recipe.num_classes, recipe.strict, device, changed)

    def build(self) -> LoadedModel:
        """The model.

        Raises:
            HookvizError: It cannot be built here.
        """
        found = model_from(self.model)
        if found is not None:
            return found.to(self.device)
        found = load_model(
            self.model, self.weights, device=self.device, num_classes=self.num_classes,
            strict=self.strict, progress=False,
        )  # fmt: skip
        if self.preprocess is None:
            return found
        return replace(found, preprocess=Preprocessing(**self.preprocess))
