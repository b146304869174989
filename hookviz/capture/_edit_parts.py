"""What of a layer edits can name: its channels, places and attention heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from hookviz.capture._edit_heads import count_heads
from hookviz.capture._edit_region import own_axis, place_axes
from hookviz.capture._editing import Site


class Parts(NamedTuple):
    """What of a layer's output edits can name.

    Attributes:
        channels: How many channels there are; 0 where it is not known which axis holds them.
        places: How many there are along each axis of places; () where there are none.
        heads: How many attention heads; 0 where there are none.
    """

    channels: int
    places: tuple[int, ...]
    heads: int


def parts_of(model: nn.Module, layer: str, shape: Sequence[int]) -> Parts:
    """What of a layer's output edits can name by number, each from 0.

    Args:
        model: The model.
        layer: A layer, by its name in ``model.named_modules()``.
        shape: The shape of what it gives, batch included.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.MultiheadAttention(16, 4))
        >>> parts_of(net, "0", (1, 8, 30, 20))
        Parts(channels=8, places=(30, 20), heads=0)
        >>> parts_of(net, "1", (1, 9, 16)).heads
        4
    """
    module = model.get_submodule(layer)
    heads = count_heads(layer, module)
    axis = own_axis(Site(layer, module, 1, "output", ""), tuple(shape))
    if axis is None or not 0 <= axis < len(shape):
        return Parts(0, (), heads)
    places = place_axes(axis, torch.empty(tuple(shape), device="meta"))
    return Parts(shape[axis], tuple(shape[n] for n in places), heads)
