"""A model ready to be looked at, with what is known about it.

In: a module and the facts found while loading. Out: a frozen LoadedModel.
Must not know: files, downloads, pictures, hooks.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hookviz._tensors import dense
from hookviz.errors import ModelError
from hookviz.models._devices import choose_device, move_module
from hookviz.models._report import WeightsReport

__all__ = ["SEED", "LoadedModel", "Task", "copy_module", "same_device"]

Task = Literal[
    "classification", "segmentation", "detection", "video", "optical_flow", "features", "unknown"
]
"""What a model answers: it decides how the model is fed and how its output is summarised."""

SEED = 0
"""Seed of an untrained model's random weights: two runs show the same pictures."""


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
        preprocess: Callable from a PIL image to the network's input (3, H, W), as torchvision's
            weights state it; None where nothing is known.
        categories: Class names in the order of the classifier's outputs; () where unknown.
        note: "", or a sentence for the user ("UNTRAINED …", "No classifier: …").
        documentation: What torchvision says of these weights, on one line; "" where nothing is.
        task: What the model answers.
        builder: Name of torchvision's builder; "" where the model is from elsewhere.
        no_classifier: Why there can be no predictions; "" where nothing stands against them.
        partial: True where only a part of the model's layers is loaded, because its full weights
            are not on this machine; loading ``weights="DEFAULT"`` gets them.
        report: What a checkpoint of one's own matched; None for other weights.
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

        Computed when first asked for, and again after the values changed.
        """
        state = self.module.state_dict()
        version = _version(state)
        if version is None:
            return _hash_state(state)
        if version not in self._hash:
            self._hash.clear()
            self._hash[version] = _hash_state(state)
        return self._hash[version]

    def to(self, device: str | torch.device) -> LoadedModel:
        """The model on another device.

        A module that hookviz built is moved; one that the user passed in is copied, because it
        has to stay as it was.

        Args:
            device: "auto", "cpu", "cuda", "cuda:N" or "mps".

        Returns:
            A LoadedModel on that device; this one where it is there already.

        Raises:
            DeviceError: The device is unknown, absent or out of memory.
        """
        target = choose_device(device)
        if same_device(self.device, target):
            return self
        module = copy_module(self.module, self.name) if self.passed_in else self.module
        return replace(self, module=move_module(module, target, None, self.name), passed_in=False)


def copy_module(module: nn.Module, name: str) -> nn.Module:
    """A deep copy of a module.

    Raises:
        ModelError: The module holds something that cannot be copied.
    """
    try:
        return copy.deepcopy(module)
    except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
        raise ModelError(
            f"The module '{name}' cannot be copied ({error}), and the one passed in is left alone.",
            remedy="Move it or load its weights yourself, then pass it in.",
        ) from error


def same_device(one: torch.device, other: torch.device) -> bool:
    """Whether two devices are the same one; "cuda" is "cuda:0"."""
    return one.type == other.type and (one.index or 0) == (other.index or 0)


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
    except (RuntimeError, NotImplementedError):  # inference tensors, sparse ones
        return None


def _hash_state(state: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name]
        if not isinstance(value, Tensor):  # packed parameters of quantized layers, extra state
            digest.update(f"{name} {value!r}\n".encode())
            continue
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        if value.is_meta or value.numel() == 0:
            continue
        flat = dense(value, "cpu").contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()[:12]
