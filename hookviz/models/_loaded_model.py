"""A model ready to be looked at, what is known about it, and what every source of models gives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookviz._tensors import dense
from hookviz.models._build import SEED
from hookviz.models._devices import choose_device, copy_module, move_module, same_device
from hookviz.models._fit import WeightsReport
from hookviz.models._weights_cache import Progress

Task = Literal[
    "classification", "segmentation", "detection", "video", "optical_flow", "features", "unknown"
]
"""What a model answers: it decides how the model is fed and how its output is summarised."""

UNTRAINED = f"UNTRAINED: random weights (seed {SEED})."


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
    _hash: dict[object, str] = field(default_factory=dict, repr=False)

    @property
    def device(self) -> torch.device:
        """The device of the first parameter or buffer, where the input has to be; CPU without."""
        tensor = next(_tensors(self.module), None)
        return torch.device("cpu") if tensor is None else tensor.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first floating-point parameter or buffer; float32 without one."""
        for tensor in _tensors(self.module):
            if tensor.is_floating_point():
                return tensor.dtype
        return torch.float32

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
        if version is None:
            return _hash_state(state)
        if version not in self._hash:
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
        default: Whether the library calls them its DEFAULT.
        file: Name of the file.
        url: Where it is downloaded from; "" for what needs no download.
        megabytes: Size of the file in MB (10⁶ bytes); 0 where unknown.
        cached: Whether they are on this machine (a hash is checked when they are loaded).
        classes: Number of class names; 0 where there are none.
        documentation: What the library says of them, on one line.
    """

    name: str
    default: bool
    file: str
    url: str
    megabytes: float
    cached: bool
    classes: int
    documentation: str


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
    def untrained(self) -> bool:
        """Whether an untrained model is asked for: None, "none" or "untrained"."""
        weights = self.weights
        return weights is None or (
            isinstance(weights, str) and weights.strip().lower() in ("none", "untrained")
        )

    @property
    def automatic(self) -> bool:
        """Whether the best weights at hand are asked for."""
        return isinstance(self.weights, str) and self.weights.strip().lower() == "auto"


class ModelSource(Protocol):
    """One place that models come from: an extension point.

    ``load_model``, ``list_models``, ``list_weights``, ``reproduce``, the app and the command line
    ask every source that is registered in `hookviz.models._load`, in its order; the first that
    recognises and takes a model loads it.

    Attributes:
        prefix: What its names begin with, for example "timm:"; "" for plain names.
    """

    prefix: str = ""

    def recognises(self, model: object) -> bool:
        """Whether a name or object is one of this source's; quick, and raises nothing."""
        ...

    def load(self, model: Any, request: Request) -> LoadedModel:
        """The model on the CPU in float32; a module that was passed in as it is.

        Raises:
            ModelError: It is unknown or cannot be built.
            WeightsError: Its weights are missing, unsafe or do not fit.
        """
        ...

    def takes(self, request: Request) -> bool:  # noqa: ARG002 - for others to use
        """Whether a model that it recognises is for it to load, with these weights."""
        return True

    def names(self, search: str) -> list[str]:  # noqa: ARG002 - as above
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
