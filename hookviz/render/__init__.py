"""Activations as pictures: honest, readable, fast.

In: Activations or tensors, GridOptions. Out: matplotlib Figures and single-channel arrays.
Must not know: models, hooks, files, widgets.
"""

from hookviz.render.drawing import Drawing, PictureFacts
from hookviz.render.options import GridOptions
from hookviz.render.pictures import (
    ChannelPicture,
    channel_pictures,
    draw,
    feature_grid,
    page_count,
    single_channel,
)
from hookviz.render.scaling import shared_range

__all__ = [
    "ChannelPicture",
    "Drawing",
    "GridOptions",
    "PictureFacts",
    "channel_pictures",
    "draw",
    "feature_grid",
    "page_count",
    "shared_range",
    "single_channel",
]
