"""Hooks in, Activations out: every call of every selected layer, copied where it happens.

In: a PyTorch module, layer selectors, options. Out: Activations. Must not know: images, figures,
files, widgets.
"""

from __future__ import annotations

from hookviz.capture._clip import GradientClipping, clip_gradients
from hookviz.capture._edit_effect import Effect, effect
from hookviz.capture._edit_functions import (
    EditPart,
    add_noise,
    clamp_gradients,
    edit_from_json,
    patch,
    replace_by_mean,
    replace_by_noise,
    replace_gradient,
    replace_input,
    replace_output,
    scale,
    scale_channels,
    zero,
    zero_channels,
)
from hookviz.capture._edit_parts import Parts, parts_of
from hookviz.capture._edit_region import Region
from hookviz.capture._editing import Edit, Editing, Layers, Site, Where, edit
from hookviz.capture._feature_extractor import FeatureExtractor, extract_features
from hookviz.capture._late_start import LateStart
from hookviz.capture._leaves import change_leaves, leaves
from hookviz.capture._module_hooks import StaysHere, belongs_to, set_forward_hook, set_pre_hook
from hookviz.capture._session import Capture, layer_shapes
from hookviz.capture._store import backward_is_running
from hookviz.capture._tree import (
    LayerInfo,
    LayerSelector,
    is_compiled_wrapper,
    list_layers,
    resolve,
    select_layers,
)
from hookviz.capture._verbose import ExecutionRow, VerboseExecution

__all__ = [
    "Capture",
    "Edit",
    "EditPart",
    "Editing",
    "Effect",
    "ExecutionRow",
    "FeatureExtractor",
    "GradientClipping",
    "LateStart",
    "LayerInfo",
    "LayerSelector",
    "Layers",
    "Parts",
    "Region",
    "Site",
    "StaysHere",
    "VerboseExecution",
    "Where",
    "add_noise",
    "backward_is_running",
    "belongs_to",
    "change_leaves",
    "clamp_gradients",
    "clip_gradients",
    "edit",
    "edit_from_json",
    "effect",
    "extract_features",
    "is_compiled_wrapper",
    "layer_shapes",
    "leaves",
    "list_layers",
    "parts_of",
    "patch",
    "replace_by_mean",
    "replace_by_noise",
    "replace_gradient",
    "replace_input",
    "replace_output",
    "resolve",
    "scale",
    "scale_channels",
    "select_layers",
    "set_forward_hook",
    "set_pre_hook",
    "zero",
    "zero_channels",
]
