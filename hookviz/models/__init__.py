"""What is looked at: torchvision's models, bundled weights, one's own checkpoints.

In: a name, a file or a module. Out: a LoadedModel. Must not know: pictures, hooks, screens.
"""

from __future__ import annotations

from hookviz.models._bundled_vgg16 import bundled_weights_ok
from hookviz.models._devices import choose_device, free_memory, is_out_of_memory, out_of_memory
from hookviz.models._feeding import InputHints, expected_input, feed
from hookviz.models._input_size import InputSize, find_input_size
from hookviz.models._loaded import LoadedModel, Task
from hookviz.models._loading import load_model
from hookviz.models._predictions import Predictions, predictions
from hookviz.models._report import WeightsReport
from hookviz.models._weights import (
    CachedFile,
    WeightsInfo,
    cache_folder,
    cached_weights,
    list_weights,
)
from hookviz.models._zoo import list_models

__all__ = [
    "CachedFile",
    "InputHints",
    "InputSize",
    "LoadedModel",
    "Predictions",
    "Task",
    "WeightsInfo",
    "WeightsReport",
    "bundled_weights_ok",
    "cache_folder",
    "cached_weights",
    "choose_device",
    "expected_input",
    "feed",
    "find_input_size",
    "free_memory",
    "is_out_of_memory",
    "list_models",
    "list_weights",
    "load_model",
    "out_of_memory",
    "predictions",
]
