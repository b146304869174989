"""The model that ships with hookviz: VGG16's thirteen pretrained convolutional layers.

In: assets/vgg16_features.safetensors. Out: a module with torchvision's layer names and no
classifier. Must not know: torch's cache, downloads.

The values are the Oxford ones of K. Simonyan and A. Zisserman (arXiv 1409.1556), stored as
float16 by tools/build_bundled_vgg16.py and used as float32; assets/README.md has the credits.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn
from torchvision.models import VGG16_Weights, vgg16

from hookviz.bundled import bundled_file
from hookviz.errors import HookvizError, WeightsError
from hookviz.models._loaded import LoadedModel

__all__ = ["BUNDLED_SHA256", "VGG16Features", "bundled_weights_ok", "load_bundled_vgg16"]

BUNDLED_FILE = "vgg16_features.safetensors"
BUNDLED_SHA256 = "10586c84acfb6eff46c7c52b7b1fbc72419ed5704ce28b242a4aa5356c2c4d67"
BUNDLED_NAME = "bundled Oxford VGG16 convolutions (IMAGENET1K_FEATURES)"
NO_CLASSIFIER = (
    "No classifier: these are VGG16's convolutional layers alone. For the full model with "
    "predictions use weights='DEFAULT' (a download of 528 MB)."
)


class VGG16Features(nn.Module):
    """VGG16 up to its average pooling, with torchvision's layer names.

    ``features.0`` … ``features.30`` and ``avgpool``; there is no ``classifier``.
    """

    def __init__(self) -> None:
        super().__init__()
        # The full model is laid out without memory, for its layers' definition alone.
        with torch.device("meta"):
            full = vgg16(weights=None)
        self.features: nn.Module = full.features
        self.avgpool: nn.Module = full.avgpool

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps of an image batch.

        Args:
            x: (N, 3, H, W) normalised by ``VGG16_Weights.IMAGENET1K_FEATURES.transforms()``;
                at least 32 × 32.

        Returns:
            (N, 512, 7, 7).
        """
        result: Tensor = self.avgpool(self.features(x))
        return result


def read_bundled(path: Path | None = None) -> dict[str, Tensor]:
    """The bundled tensors in float32, their file's hash checked.

    Args:
        path: The file; None for the one that ships with hookviz.

    Raises:
        WeightsError: The file is missing or damaged.
    """
    try:
        path = bundled_file("assets", BUNDLED_FILE) if path is None else path
        content = path.read_bytes()
    except HookvizError as error:
        raise WeightsError(error.message, remedy=error.remedy) from None
    except OSError as error:
        raise WeightsError(
            f"The bundled weights {path} cannot be read: {error.strerror}."
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != BUNDLED_SHA256:
        raise WeightsError(
            f"The bundled weights {path} are damaged: their SHA-256 begins with {found[:12]}, "
            f"expected {BUNDLED_SHA256[:12]}.",
            remedy="Install hookviz again.",
        )
    try:
        return {name: value.float() for name, value in load(content).items()}
    except SafetensorError as error:  # cannot happen while the hash holds
        raise WeightsError(f"The bundled weights {path} cannot be read: {error}.") from error


def bundled_weights_ok() -> tuple[bool, str]:
    """Whether the bundled weights are there and whole, and a sentence that says so."""
    try:
        read_bundled()
    except WeightsError as error:
        return False, str(error)
    return True, f"The bundled VGG16 weights are whole (SHA-256 {BUNDLED_SHA256[:12]}…)."


def load_bundled_vgg16(note: str = "") -> LoadedModel:
    """The bundled VGG16, in eval mode on the CPU in float32.

    Args:
        note: A sentence to put before the model's own note.

    Raises:
        WeightsError: The bundled file is missing or damaged.
    """
    module = VGG16Features()
    module.load_state_dict(read_bundled(), assign=True)
    enum = VGG16_Weights.IMAGENET1K_FEATURES
    return LoadedModel(
        module=module.eval(),
        name="vgg16",
        weights=BUNDLED_NAME,
        trained=True,
        preprocess=enum.transforms(),
        note=" ".join(part for part in (note, NO_CLASSIFIER) if part),
        documentation=" ".join(enum.meta["_docs"].split()),
        task="features",
        no_classifier=NO_CLASSIFIER,
        partial=True,
    )
