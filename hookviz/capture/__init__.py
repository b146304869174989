"""Hooks in, Activations out: every call of every ticked layer, copied where it happens.

In: a PyTorch module, layer selectors, options. Out: Activations. Must not know: images, pictures,
files, widgets.
"""

from __future__ import annotations

from hookviz.capture._changes import (
    add_noise,
    clamp_gradients,
    patch,
    replace_gradient,
    replace_input,
    replace_output,
)
from hookviz.capture._channels import scale_channels, zero_channels
from hookviz.capture._clip import GradientClipping, clip_gradients
from hookviz.capture._edits import Editing, edit
from hookviz.capture._effect import Effect, effect
from hookviz.capture._layers import LayerInfo, LayerSelector, list_layers, select_layers
from hookviz.capture._loaders import extract_features
from hookviz.capture._session import Capture
from hookviz.capture._shapes import layer_shapes
from hookviz.capture._sites import Edit
from hookviz.capture._verbose import ExecutionRow, VerboseExecution
from hookviz.capture._wrappers import FeatureExtractor

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
