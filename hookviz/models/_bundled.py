"""Model source: VGG16's thirteen pretrained convolutional layers, which ship with hookviz.

The values are the Oxford ones of K. Simonyan and A. Zisserman (arXiv 1409.1556), stored as
float16 by tools/build_bundled_vgg16.py and used as float32; assets/README.md has the credits.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn
from torchvision.models import VGG16_Weights, vgg16

from hookviz.bundled import bundled_file
from hookviz.errors import HookvizError, ModelError, WeightsError
from hookviz.models._build import build
from hookviz.models._loaded_model import LoadedModel, ModelSource, Request, WeightsInfo
from hookviz.models._torchvision import Architecture, cached_member, file_of
from hookviz.models._weights_cache import cache_folder

BUNDLED_FILE = "vgg16_features.safetensors"
BUNDLED_SHA256 = "10586c84acfb6eff46c7c52b7b1fbc72419ed5704ce28b242a4aa5356c2c4d67"
BUNDLED_NAME = "bundled Oxford VGG16 convolutions (IMAGENET1K_FEATURES)"
VGG16 = Architecture("vgg16")
NO_CLASSIFIER = (
    "No classifier: these are VGG16's convolutional layers alone. For the full model with "
    "predictions use weights='DEFAULT' "
    f"(a download of {VGG16.members[0].meta['_file_size']:.0f} MB)."
)


class VGG16Features(nn.Module):
    """VGG16 up to its average pooling, with torchvision's layer names.

    ``features.0`` … ``features.30`` and ``avgpool``; there is no ``classifier``.
    """

    def __init__(self) -> None:
        super().__init__()
        # The full model is laid out without memory, for its layers' definition alone.
        full: Any = build(lambda: vgg16(weights=None), "none")
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


class Bundled(ModelSource):
    """The model that ships with hookviz: "vgg16", with layers' names as torchvision has them."""

    def recognises(self, model: object) -> bool:
        """VGG16 alone."""
        return isinstance(model, str) and model.strip().lower() == VGG16.name

    def takes(self, request: Request) -> bool:
        """Where it is asked for, or torch's cache has no VGG16."""
        asked = isinstance(request.weights, str) and request.weights.strip().lower() == "bundled"
        return asked or (request.automatic and cached_member(VGG16, request) is None)

    def weights(self, name: str) -> list[WeightsInfo]:  # noqa: ARG002 - there is one name
        """The one file."""
        size = bundled_file("assets", BUNDLED_FILE).stat().st_size
        text = f"Shipped with hookviz: {BUNDLED_NAME}; no classifier."
        return [WeightsInfo("bundled", False, BUNDLED_FILE, "", size / 1e6, True, 0, text)]

    def recall(self, weights: str) -> str | None:
        """The one file."""
        return "bundled" if weights == BUNDLED_NAME else None

    def load(self, model: Any, request: Request) -> LoadedModel:  # noqa: ARG002 - as above
        """The bundled VGG16.

        Raises:
            WeightsError: The bundled file is missing or damaged.
            ModelError: Another number of classes is asked for.
        """
        if request.num_classes is not None:
            raise ModelError(
                "num_classes goes with weights=None or a checkpoint of your own; the bundled "
                "weights have no classifier."
            )
        module = build(VGG16Features, "none")
        module.load_state_dict(read_bundled(), assign=True)
        path = cache_folder() / file_of(VGG16.default)
        damaged = f"The file {path} is damaged (its hash is wrong) and was not used. "
        enum = VGG16_Weights.IMAGENET1K_FEATURES
        return LoadedModel(
            module=module,
            name=VGG16.name,
            weights=BUNDLED_NAME,
            trained=True,
            preprocess=enum.transforms(),
            note=(damaged if request.automatic and path.is_file() else "") + NO_CLASSIFIER,
            documentation=" ".join(enum.meta["_docs"].split()),
            task="features",
            builder=VGG16.name,
            no_classifier=NO_CLASSIFIER,
            partial=True,
        )


def bundled_weights_ok() -> tuple[bool, str]:
    """Whether the bundled weights are there and whole, and a sentence that says so."""
    try:
        read_bundled()
    except WeightsError as error:
        return False, str(error)
    return True, f"The bundled VGG16 weights are whole (SHA-256 {BUNDLED_SHA256[:12]}…)."
