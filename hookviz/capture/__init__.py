"""Hooks in, Activations out: every call of every selected layer, copied where it happens.

In: a PyTorch module, layer selectors, options. Out: Activations. Must not know: images, figures,
files, widgets.
"""

from __future__ import annotations

from hookviz.capture._clip import GradientClipping, clip_gradients
from hookviz.capture._edit_effect import Effect, effect
from hookviz.capture._edit_functions import (
    add_noise,
    clamp_gradients,
    patch,
    replace_gradient,
    replace_input,
    replace_output,
    scale_channels,
    zero_channels,
)
from hookviz.capture._editing import Edit, Editing, edit
from hookviz.capture._feature_extractor import FeatureExtractor, extract_features
from hookviz.capture._leaves import change_leaves
from hookviz.capture._session import Capture, layer_shapes
from hookviz.capture._tree import LayerInfo, LayerSelector, list_layers, select_layers
from hookviz.capture._verbose import ExecutionRow, VerboseExecution

__all__ = [
    "Capture",
    "Edit",
    "Editing",
    "Effect",
    "ExecutionRow",
    "FeatureExtractor",
    "GradientClipping",
    "LayerInfo",
    "LayerSelector",
    "VerboseExecution",
    "add_noise",
    "change_leaves",
    "clamp_gradients",
    "clip_gradients",
    "edit",
    "effect",
    "extract_features",
    "layer_shapes",
    "list_layers",
    "patch",
    "replace_gradient",
    "replace_input",
    "replace_output",
    "scale_channels",
    "select_layers",
    "zero_channels",
]
