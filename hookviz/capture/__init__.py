"""Hooks in, Activations out: every call of every ticked layer, copied where it happens.

In: a PyTorch module, layer selectors, options. Out: Activations. Must not know: images, pictures,
files, widgets.
"""

from __future__ import annotations

from hookviz.capture.activation import Activation, Kind
from hookviz.capture.layers import LayerInfo, LayerSelector, list_layers, select_layers
from hookviz.capture.session import Capture

__all__ = [
    "Activation",
    "Capture",
    "Kind",
    "LayerInfo",
    "LayerSelector",
    "list_layers",
    "select_layers",
]
