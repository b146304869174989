"""A model by name, file or module, ready to be looked at: whatever source it is from.

torch's global settings (default device and dtype, inference mode, generators) neither matter to
what is loaded nor change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hookviz.errors import HookvizError, ImageError, ModelError, did_you_mean
from hookviz.images import Preprocessing
from hookviz.models._checkpoint import expanded, is_path
from hookviz.models._checkpoint_file import CheckpointFile
from hookviz.models._loaded_model import (
    LoadedModel,
    ModelSource,
    Recipe,
    Request,
    WeightsInfo,
)
from hookviz.models._modules import choose_device, plain_torch
from hookviz.models._own_module import OwnModule
from hookviz.models._timm import Timm
from hookviz.models._torchvision import Torchvision
from hookviz.models._weights_cache import CachedFile, Progress, cached_files

_NAMED = (Torchvision(), Timm())
SOURCES: tuple[ModelSource, ...] = (*_NAMED, CheckpointFile(*_NAMED), OwnModule())
"""Where models come from; the first that recognises one loads it."""

_DTYPES = ("float16", "bfloat16", "float32", "float64")
_SHORT = {"half": 0, "fp16": 0, "bf16": 1, "float": 2, "double": 3}


def load_model(
    model: str | nn.Module | LoadedModel,
    weights: Any = "auto",
    *,
    device: str | torch.device = "auto",
    dtype: torch.dtype | str | None = None,
    progress: bool | Progress = True,
    cancelled: Callable[[], bool] | None = None,
    name: str | None = None,
    preprocess: Any = None,
    categories: Sequence[str] | None = None,
    num_classes: int | None = None,
    strict: bool = True,
) -> LoadedModel:
    """Load a model with weights, preprocessing and class names.

    Args:
        model: A name of torchvision's ("vgg16", "resnet18", … see ``list_models``), "timm:NAME",
            a checkpoint's path where the file says which architecture it is for, or a module. A
            module is left as it was: its mode, device, values and gradients; where another device,
            dtype or weights are asked for, a copy gets them.
        weights: "auto": torch's cache where the file is there, else what ships with hookviz
            ("vgg16"), else a download. None: untrained. A name of torchvision's enum
            ("DEFAULT", "IMAGENET1K_V1"), "bundled", a path to a checkpoint (.safetensors,
            .pth, .pt, .ckpt), or a state dict.
        device: "auto" (CUDA, then MPS, then CPU; for a module: where it is), "cpu", "cuda",
            "cuda:N", "mps".
        dtype: For example "float16"; None for float32 (for a module: its own).
        progress: True shows a download's progress on stderr; a callable gets (bytes done, bytes
            in all or 0, file name).
        cancelled: Asked during a download; True ends it with RunCancelled.
        name: Shown in place of the model's own name.
        preprocess: In place of the weights' own: anything that
            ``hookviz.Preprocessing.from_transforms`` takes, for example a pipeline of torchvision,
            timm's data config or a Hugging Face image processor. A module that comes without gets
            the input size and channels that its forward takes, where they can be found.
        categories: Class names, in place of the weights' own.
        num_classes: For a checkpoint or an untrained model; None takes the checkpoint's.
        strict: Whether a checkpoint that does not fit beyond the classifier is an error; False
            loads what fits and says so in ``note``.

    Returns:
        The model, in eval mode where hookviz built it.

    Raises:
        ModelError: The model is unknown or cannot be built.
        WeightsError: Weights are missing, corrupt, unsafe, not reachable or do not fit.
        DeviceError: The device is unknown, absent or out of memory.
        RunCancelled: ``cancelled`` said so.

    Examples:
        >>> model = load_model("vgg16", weights="bundled", device="cpu")
        >>> model.weights
        'bundled Oxford VGG16 convolutions (IMAGENET1K_FEATURES)'
        >>> load_model("resnet18", weights=None, device="cpu").note
        'UNTRAINED: random weights (seed 0).'
    """
    chosen_dtype = choose_dtype(dtype)
    if preprocess is not None:
        try:
            how = Preprocessing.from_transforms(preprocess)
        except ImageError as error:
            raise ModelError(error.message, remedy=error.remedy) from None
        preprocess = preprocess if callable(preprocess) else how  # a config becomes steps
    if categories is not None:
        if isinstance(categories, str) or not isinstance(categories, Iterable):
            raise ModelError(f"categories are a list of class names, not {categories!r}.")
        categories = tuple(map(str, categories))
    own: object = model.builder or model.module if isinstance(model, LoadedModel) else model
    request = Request(weights, progress, cancelled, num_classes, strict, preprocess, categories)
    loaded = model if isinstance(model, LoadedModel) and request.word == "auto" else None
    in_place = (loaded is not None or isinstance(own, nn.Module)) and str(device) == "auto"
    if not in_place:
        choose_device(device)  # an unknown device is said before anything is downloaded
    with plain_torch():
        if loaded is None:
            source = _source(own)
            loaded = source.load(own, request)
            loaded = replace(loaded, recipe=_recipe(own, source, request, loaded))
        loaded = loaded.to(loaded.device if in_place else device, chosen_dtype)
    given = {"name": name or None, "preprocess": preprocess, "categories": categories}
    changes = {key: value for key, value in given.items() if value is not None}
    return replace(loaded, **changes) if changes else loaded


def _recipe(own: object, source: ModelSource, request: Request, loaded: LoadedModel) -> Recipe:
    module = isinstance(own, nn.Module)
    weights = request.weights
    if request.word == "none":
        weights = None
    elif request.word != "auto" and is_path(weights):
        weights = str(expanded(weights).absolute())
    else:
        weights = (None if module else source.recall(loaded.weights)) or "auto"
    path = isinstance(source, CheckpointFile)
    named = str(expanded(str(own).strip()).absolute()) if path else loaded.name
    return Recipe(
        model=None if module else named,
        weights=weights,
        own_weights=isinstance(request.weights, Mapping),
        num_classes=request.num_classes,
        strict=request.strict,
        name=loaded.name,
        preprocess=loaded.preprocess,
        categories=loaded.categories,
    )


def _source(model: object) -> ModelSource:
    """The source that a model is from.

    Raises:
        ModelError: There is none.
    """
    for source in SOURCES:
        if source.recognises(model):
            return source
    if not isinstance(model, str):
        raise ModelError(
            f"A model is a name or a torch.nn.Module, not {type(model).__name__}.",
            remedy="Pass for example 'vgg16', or the module itself (not its class).",
        )
    names = list_models()
    shown = model if len(model) <= 100 else f"{model[:100]}…"
    others = "".join(f"'{source.prefix}NAME', " for source in SOURCES if source.prefix)
    raise ModelError(
        f"Unknown model '{shown}': legal are torchvision's {len(names)} names, {others}a "
        "checkpoint's path or a module.",
        remedy=did_you_mean(model.strip().lower().replace("-", "_"), names) or None,
    )


def load_recorded(facts: Mapping[str, str]) -> LoadedModel:
    """The model that an exported file names, with the weights that it names.

    Args:
        facts: "model" and "weights" as ``LoadedModel.name`` and ``LoadedModel.weights`` were.

    Returns:
        The model as the source that recognises the name loads it again.

    Raises:
        HookvizError: They are not at hand: a module or a file of the user's.
    """
    name, weights = facts["model"], facts.get("weights", "")
    own = weights.startswith("file ") or weights in ("as passed in", "state dict")
    for source in () if own else SOURCES:
        if source.recognises(name):
            again = "none" if weights == "none" else source.recall(weights)
            if again is not None:
                return load_model(name, weights=again)
    raise HookvizError(
        f"The weights of {name} ({weights}) are not at hand.",
        remedy="Pass the model: reproduce(png, model=...).",
        code="model-not-at-hand",
    )


def list_models(search: str = "") -> list[str]:
    """Names of models: VGG first, then ResNet, then the others by name.

    Args:
        search: Words that the name has to contain, in any order and case, or a glob ("vgg1?");
            "" for all of torchvision's. A search that begins with "timm:" lists timm's.

    Returns:
        Names that ``load_model`` takes; empty where nothing matches.

    Examples:
        >>> list_models("vgg bn")
        ['vgg11_bn', 'vgg13_bn', 'vgg16_bn', 'vgg19_bn']
        >>> list_models()[:2]
        ['vgg11', 'vgg11_bn']
    """
    return [name for source in SOURCES for name in source.names(search)]


def list_weights(model: str) -> list[WeightsInfo]:
    """The weights that a model can be loaded with, DEFAULT first.

    Args:
        model: A name that ``load_model`` takes.

    Returns:
        torchvision's members, and for "vgg16" the bundled ones; for "timm:NAME" those that the
        name stands for.

    Raises:
        ModelError: The model is unknown.

    Examples:
        >>> [w.name for w in list_weights("vgg16")]
        ['IMAGENET1K_V1', 'IMAGENET1K_FEATURES', 'bundled']
    """
    return _source(model).weights(model)


def is_local(model: str) -> bool:
    """Whether a model can be loaded with ``weights="auto"`` without a download.

    Args:
        model: A name that ``load_model`` takes.

    Returns:
        True where its best weights are in a cache, in a file or ship with hookviz.

    Raises:
        ModelError: The name is unknown.
    """
    return _source(model).is_local(model)


def cached_weights(*, check: bool = False) -> list[CachedFile]:
    """What torch's cache holds.

    Args:
        check: Read every file and compare its hash with its name (about a second per GB).

    Returns:
        Its files by name; empty where the folder does not exist.
    """
    owners: dict[str, tuple[str, ...]] = {}
    for name in list_models():
        for info in list_weights(name):
            if info.url:
                owners[info.file] = (*owners.get(info.file, ()), f"{name} {info.name}")
    return cached_files(owners, check=check)


def choose_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The floating-point dtype that a name stands for; None for None.

    Raises:
        ModelError: It is none that models run in.

    Examples:
        >>> choose_dtype("float16")
        torch.float16
    """
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.").lower()
    name = _DTYPES[_SHORT[name]] if name in _SHORT else name
    found = getattr(torch, name) if name in _DTYPES else None
    if not isinstance(found, torch.dtype) or not isinstance(dtype, str | torch.dtype):
        raise ModelError(f"Unknown dtype '{dtype}': legal are {', '.join(_DTYPES)}.")
    return found
