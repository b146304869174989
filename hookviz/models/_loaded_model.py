"""A model ready to be looked at, what is known about it, and what every source of models gives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookviz._tensors import dense
from hookviz.errors import ModelError
from hookviz.models._checkpoint import open_checkpoint
from hookviz.models._fit import Convert, WeightsReport, class_names, fit_builder
from hookviz.models._modules import (
    MOST_CLASSES,
    SEED,
    Values,
    build,
    choose_device,
    copy_module,
    move_module,
    same_device,
)
from hookviz.models._weights_cache import Progress

Task = Literal[
    "classification", "segmentation", "detection", "video", "optical_flow", "features", "unknown"
]
"""What a model answers: it decides how the model is fed and how its output is summarised."""
_TASKS: tuple[Task, ...] = ("segmentation", "detection", "video", "optical_flow")


def task_of(package: str) -> Task:
    """What the models of a package of torchvision's or timm's answer; "unknown" for others."""
    parts = package.split(".")
    if parts[:2] not in (["torchvision", "models"], ["timm", "models"]):
        return "unknown"
    return next((task for task in _TASKS if task in parts), "classification")


@dataclass(frozen=True, eq=False)
class Recipe:
    """How `load_model` made a model, as far as that can be written down.

    Attributes:
        model: Its name, or a checkpoint's absolute path; None for a module of the user's.
        weights: What ``weights=…`` takes to get the same again: "auto", a name of the library's, a
            file's absolute path, None for untrained ones.
        own_weights: Whether they are a state dict of the user's, which no text names.
        num_classes: As it was asked for.
        strict: As it was asked for.
        name: The model's name as its source gave it, before the caller changed it.
        preprocess: Its preprocessing, likewise.
        categories: Its class names, likewise.
    """

    model: str | None
    weights: str | None
    own_weights: bool
    num_classes: int | None
    strict: bool
    name: str
    preprocess: Any
    categories: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model with its weights, its preprocessing and its class names.

    Attributes:
        module: The module itself. In eval mode where hookviz built it; one that the user passed in
            is the very object, in the mode and on the device that it had.
        name: Short name, for example "vgg16", "timm:resnet18" or a class name.
        weights: Where the weights are from: "IMAGENET1K_V1",
            "bundled Oxford VGG16 convolutions (IMAGENET1K_FEATURES)", "file my.pth", "none"
            or "as passed in".
        trained: False where the weights are random: say so wherever the model is shown.
        preprocess: How an image becomes the network's input, as the weights state it: anything
            that ``hookviz.Preprocessing.from_transforms`` takes; None where nothing is known.
        categories: Class names in the order of the classifier's outputs; () where unknown.
        note: "", or a sentence for the user ("UNTRAINED …", "No classifier: …").
        documentation: What torchvision says of these weights, on one line; "" where nothing is.
        task: What the model answers.
        builder: The name that ``load_model`` builds it from again; "" for a module.
        no_classifier: Why there can be no predictions; "" where nothing stands against them.
        partial: True where only a part of the model's layers is loaded, because its full weights
            are not on this machine; loading ``weights="DEFAULT"`` gets them.
        report: What the user's checkpoint matched; None for other weights.
        passed_in: True where the module is the user's own object, which is never changed.
        recipe: How `load_model` made it; None where it did not.
    """

    module: nn.Module
    name: str
    weights: str
    trained: bool
    preprocess: Callable[..., Any] | None = None
    categories: tuple[str, ...] = ()
    note: str = ""
    documentation: str = ""
    task: Task = "unknown"
    builder: str = ""
    no_classifier: str = ""
    partial: bool = False
    report: WeightsReport | None = None
    passed_in: bool = False
    recipe: Recipe | None = field(default=None, repr=False)
    _hash: dict[object, str] = field(default_factory=dict, repr=False)

    @property
    def device(self) -> torch.device:
        """The device of the first parameter or buffer, where the input has to be; CPU without."""
        tensor = next(_tensors(self.module), None)
        return torch.device("cpu") if tensor is None else tensor.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first floating-point parameter or buffer; float32 without one."""
        floating = (t.dtype for t in _tensors(self.module) if t.is_floating_point())
        return next(floating, torch.float32)

    @property
    def weights_hash(self) -> str:
        """Twelve hex digits of a SHA-256 over names, shapes, dtypes and values of the state dict.

        Computed when first asked for, and again after the values changed; "" where the module
        gives no state dict.
        """
        try:
            state = dict(self.module.state_dict())
        except Exception:  # noqa: BLE001 - a class of the user's may do anything there
            return ""
        version = _version(state)
        if version is None or version not in self._hash:
            self._hash.clear()
            self._hash[version] = _hash_state(state)
        return self._hash[version]

    def to(self, device: str | torch.device, dtype: torch.dtype | None = None) -> LoadedModel:
        """The model on another device or in another dtype.

        A module that hookviz built is moved; one that the user passed in is copied, because it
        has to stay as it was.

        Args:
            device: "auto", "cpu", "cuda", "cuda:N" or "mps".
            dtype: Of floating-point parameters and buffers; None leaves theirs.

        Returns:
            A LoadedModel on that device; this one where nothing changes.

        Raises:
            DeviceError: The device is unknown, absent or out of memory.
            ModelError: The module was passed in and cannot be copied.
        """
        here = isinstance(device, torch.device) and same_device(device, self.device)
        target = self.device if here else choose_device(device)
        if same_device(self.device, target) and dtype in (None, self.dtype):
            return self
        module = copy_module(self.module, self.name) if self.passed_in else self.module
        return replace(self, module=move_module(module, target, dtype, self.name), passed_in=False)


@dataclass(frozen=True)
class WeightsInfo:
    """Weights that a model can be loaded with.

    Attributes:
        name: What ``load_model(weights=…)`` takes, for example "IMAGENET1K_V1".
        file: Name of the file.
        default: Whether the library calls them its DEFAULT.
        url: Where it is downloaded from; "" for what needs no download.
        megabytes: Size of the file in MB (10⁶ bytes); 0 where unknown.
        cached: Whether they are on this machine (a hash is checked when they are loaded).
        classes: Number of class names; 0 where there are none.
        documentation: What the library says of them, on one line.
    """

    name: str
    file: str
    default: bool = True
    url: str = ""
    megabytes: float = 0.0
    cached: bool = True
    classes: int = 0
    documentation: str = ""


@dataclass(frozen=True)
class Request:
    """What ``load_model`` was asked for, as it describes it."""

    weights: Any = "auto"
    progress: bool | Progress = True
    cancelled: Callable[[], bool] | None = None
    num_classes: int | None = None
    strict: bool = True
    preprocess: Any = None
    categories: Sequence[str] | None = None

    @property
    def word(self) -> str:
        """The weights in lower case where they are a text; "none" for None, "" for all others."""
        if self.weights is None:
            return "none"
        word = self.weights.strip().lower() if isinstance(self.weights, str) else ""
        return "none" if word == "untrained" else word


class ModelSource(Protocol):
    """One place that models come from: an extension point.

    ``load_model``, ``list_models``, ``list_weights``, ``reproduce``, the app and the command line
    ask the sources that are registered in `hookviz.models._load`, in its order; the first that
    recognises a model loads it.

    Attributes:
        prefix: What its names begin with, for example "timm:"; "" for plain names.
    """

    prefix: str = ""

    def recognises(self, model: object) -> bool:
        """Whether a name or object is one of this source's; quick, and raises nothing.

        By itself: a name with the prefix.
        """
        named = isinstance(model, str) and model.strip().lower().startswith(self.prefix)
        return named and self.prefix != ""

    def load(self, model: Any, request: Request) -> LoadedModel:
        """The model on the CPU in float32; a module that was passed in as it is.

        Raises:
            ModelError: It is unknown or cannot be built.
            WeightsError: Its weights are missing, unsafe or do not fit.
        """
        ...

    def names(self, search: str) -> list[str]:  # noqa: ARG002 - for others to use
        """Names of models that a search may mean; empty where no list makes sense."""
        return []

    def weights(self, name: str) -> list[WeightsInfo]:  # noqa: ARG002 - as above
        """The weights of a model that it recognises, DEFAULT first."""
        return []

    def is_local(self, name: str) -> bool:  # noqa: ARG002 - as above
        """Whether ``weights="auto"`` needs no download, for a name that it recognises."""
        return True

    def recall(self, weights: str) -> str | None:  # noqa: ARG002 - as above
        """``weights=…`` that loads again what ``LoadedModel.weights`` names; None if it cannot."""
        return None


class Architecture(Protocol):
    """An architecture of a library's, built anew for the weights that are asked for.

    Attributes:
        name: What ``load_model`` takes.
        library: Whose it is, for sentences.
        default_classes: How many classes it has without ``num_classes``; None where fixed.
        task: What it answers.
        names: Class names for a checkpoint that has none of its own and as many classes.
        names_of: Whose they are.
        options: "aux_logits", "aux_loss", "image_size" where the builder takes them.
        convert: The library's own conversion of older or foreign checkpoints for such a module;
            None where it has none.
    """

    name: str
    library: str
    default_classes: int | None
    task: Task = "classification"
    names: tuple[str, ...] = ()
    names_of: str = ""
    options: frozenset[str] = frozenset()
    convert: Convert | None = None

    def make(self, **options: Any) -> nn.Module:
        """Call the builder with ``num_classes`` and what ``options`` names."""
        ...

    def preprocessing(self, module: nn.Module) -> Any:
        """How an image becomes the input of a module that was built."""
        ...

    def pretrained(self, request: Request) -> LoadedModel:
        """The model with weights of the library's.

        Raises:
            WeightsError: There are no such weights, or they are not to be had.
        """
        ...

    def siblings(self) -> Iterable[Architecture]:
        """Those of the same family, tried for advice where a checkpoint does not fit."""
        return ()

    def build(
        self, num_classes: Any = None, values: Values = "random", **options: Any
    ) -> nn.Module:
        """A module in eval mode on the CPU; see `hookviz.models._modules.build`.

        Raises:
            ModelError: The number of classes is none, or the library cannot build the module.
        """
        if num_classes is not None:
            whole = isinstance(num_classes, Integral) and not isinstance(num_classes, bool)
            if not (whole and 1 <= num_classes <= MOST_CLASSES):
                raise ModelError(
                    f"num_classes is a whole number from 1 to {MOST_CLASSES}, not {num_classes!r}."
                )
            if self.default_classes is None:
                raise ModelError(f"'{self.name}' has no classes whose number could be chosen.")
            options["num_classes"] = int(num_classes)
        try:
            return build(lambda: self.make(**options), values)
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            first = " ".join(str(error).split())[:200]
            raise ModelError(f"'{self.name}' cannot be built with {options}: {first}") from error

    def load(self, request: Request) -> LoadedModel:
        """An untrained model, one with the user's checkpoint, or else a pretrained one."""
        if request.word == "none":
            module = self.build(request.num_classes)
            note = f"UNTRAINED: random weights (seed {SEED})."
            return self.loaded(module, "none", note=note)
        given = None if request.word == "auto" else open_checkpoint(request.weights)
        if given is None:
            if request.num_classes is not None:
                raise ModelError(
                    "num_classes goes with weights=None or a checkpoint of your own; weights of "
                    f"{self.library}'s have their own number of classes."
                )
            return self.pretrained(request)
        fitted = fit_builder(self, given, strict=request.strict, num_classes=request.num_classes)
        names: tuple[str, ...] = ()
        note = fitted.note
        if not fitted.no_classifier:
            names = class_names(given.content, fitted.classes)
            if not names and len(self.names) == fitted.classes:
                names = self.names
                note = f"Class names assumed to be those of {self.names_of}. {note}".strip()
        return self.loaded(
            fitted.module,
            fitted.report.label,
            categories=names,
            note=note,
            no_classifier=fitted.no_classifier,
            report=fitted.report,
        )

    def loaded(self, module: nn.Module, weights: str, **facts: Any) -> LoadedModel:
        """The model with a module that was built; ``facts`` are attributes of `LoadedModel`."""
        if "preprocess" not in facts:
            facts["preprocess"] = self.preprocessing(module)
        known = {"trained": weights != "none", "task": self.task, "builder": self.name}
        return LoadedModel(module, self.name, weights, **{**known, **facts})


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _version(state: dict[str, Any]) -> object:
    """What changes whenever a value of the state dict changes; None where that is unknown."""
    try:
        return tuple(
            (name, value.data_ptr(), value.dtype, value._version)  # noqa: SLF001 - torch's counter of in-place changes has no public name
            for name, value in state.items()
            if isinstance(value, Tensor)
        )
    except (RuntimeError, NotImplementedError, ValueError):  # inference tensors, sparse, lazy ones
        return None


def _hash_state(state: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name]
        if not isinstance(value, Tensor) or is_lazy(value):
            # Packed parameters of quantized layers, extra state, values that are not made yet.
            digest.update(f"{name} {value!r}\n".encode())
            continue
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        if value.is_meta or value.numel() == 0:
            continue
        flat = dense(value, "cpu").contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()[:12]
