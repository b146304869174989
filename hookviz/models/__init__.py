"""What is looked at: models by name, file or module, from torchvision, timm or the user.

In: a name, a file or a module. Out: a LoadedModel. Must not know: figures, hooks, screens.
"""

from __future__ import annotations

from hookviz.models._input_size import InputSize, find_input_size
from hookviz.models._load import (
    cached_weights,
    is_local,
    list_models,
    list_weights,
    load_model,
    load_recorded,
)
from hookviz.models._loaded_model import LoadedModel, ModelSource, Recipe
from hookviz.models._model_inputs import expected_input, feed
from hookviz.models._modules import choose_device, out_of_memory
from hookviz.models._predictions import (
    Predictions,
    class_scores,
    classes_in,
    describe,
    predictions,
)
from hookviz.models._torchvision import bundled_weights_ok
from hookviz.models._weights_cache import cache_folder

__all__ = [
    "InputSize",
    "LoadedModel",
    "ModelSource",
    "Predictions",
    "Recipe",
    "bundled_weights_ok",
    "cache_folder",
    "cached_weights",
    "choose_device",
    "class_scores",
    "classes_in",
    "describe",
    "expected_input",
    "feed",
    "find_input_size",
    "is_local",
    "list_models",
    "list_weights",
    "load_model",
    "load_recorded",
    "out_of_memory",
    "predictions",
]
