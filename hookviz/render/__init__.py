"""Activations as pictures: honest, readable, fast.

In: Activations or tensors, GridOptions. Out: matplotlib Figures and single-channel arrays.
Must not know: models, hooks, files, widgets.
"""

from hookviz.render.channels import ChannelPicture, channel_pictures, single_channel
from hookviz.render.drawing import Drawing, PictureFacts
from hookviz.render.options import GridOptions
from hookviz.render.pictures import draw, feature_grid, page_count
from hookviz.render.scaling import shared_range
from hookviz.render.statistics import (
    ChannelStatistics,
    channel_statistics,
    draw_statistics,
    layer_statistics,
)

__all__ = [
    "ChannelPicture",
    "ChannelStatistics",
    "Drawing",
    "GridOptions",
    "PictureFacts",
    "channel_pictures",
    "channel_statistics",
    "draw",
    "draw_statistics",
    "feature_grid",
    "layer_statistics",
    "page_count",
    "shared_range",
    "single_channel",
]
