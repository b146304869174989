"""hookviz visualizes the output of every layer of a PyTorch vision model for an image.

The public names are loaded when they are first used: ``import hookviz`` loads neither torch nor
matplotlib nor ipywidgets.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hookviz.version import __version__

_NAMES = {
    "hookviz.activation": "Activation",
    "hookviz.capture": "Capture FeatureExtractor VerboseExecution clip_gradients list_layers",
    "hookviz.models": "LoadedModel load_model",
    "hookviz.images": "Picture Preprocessing read_frames read_image sample_image",
    "hookviz.render": "feature_grid",
    "hookviz.run": "Run feature_maps filters",
    "hookviz.comparison": "Comparison compare",
    "hookviz.surveys": "Survey open_survey survey",
    "hookviz.explanation": "Explanation explain feature_visualization sweep",
    "hookviz.monitoring": "Monitor monitor open_monitor",
    "hookviz.errors": "HookvizError",
    "hookviz._reproduce": "reproduce",
    "hookviz.widget": "explore",
}
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}

if TYPE_CHECKING:
    from hookviz._reproduce import reproduce as reproduce
    from hookviz.activation import Activation as Activation
    from hookviz.capture import Capture as Capture
    from hookviz.capture import FeatureExtractor as FeatureExtractor
    from hookviz.capture import VerboseExecution as VerboseExecution
    from hookviz.capture import clip_gradients as clip_gradients
    from hookviz.capture import list_layers as list_layers
    from hookviz.comparison import Comparison as Comparison
    from hookviz.comparison import compare as compare
    from hookviz.errors import HookvizError as HookvizError
    from hookviz.explanation import Explanation as Explanation
    from hookviz.explanation import explain as explain
    from hookviz.explanation import feature_visualization as feature_visualization
    from hookviz.explanation import sweep as sweep
    from hookviz.images import Picture as Picture
    from hookviz.images import Preprocessing as Preprocessing
    from hookviz.images import read_frames as read_frames
    from hookviz.images import read_image as read_image
    from hookviz.images import sample_image as sample_image
    from hookviz.models import LoadedModel as LoadedModel
    from hookviz.models import load_model as load_model
    from hookviz.monitoring import Monitor as Monitor
    from hookviz.monitoring import monitor as monitor
    from hookviz.monitoring import open_monitor as open_monitor
    from hookviz.render import feature_grid as feature_grid
    from hookviz.run import Run as Run
    from hookviz.run import feature_maps as feature_maps
    from hookviz.run import filters as filters
    from hookviz.surveys import Survey as Survey
    from hookviz.surveys import open_survey as open_survey
    from hookviz.surveys import survey as survey
    from hookviz.widget import explore as explore

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'hookviz' has no attribute '{name}'")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
