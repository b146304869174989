"""Activations as pictures: honest, readable, fast.

In: Activations or tensors, GridOptions. Out: matplotlib Figures and single-channel arrays.
Must not know: models, hooks, files, widgets.
"""

from hookviz.render._channels import ChannelPicture, channel_pictures, single_channel
from hookviz.render._checks import parse_channels
from hookviz.render._colours import ColourTable, choose_cmap, colour_table, palette
from hookviz.render._drawing import Drawing, PictureFacts
from hookviz.render._layout import Arranged, arrange
from hookviz.render._levels import Levels, to_levels
from hookviz.render._measure import Extents, extents, moments
from hookviz.render._options import GridOptions
from hookviz.render._pictures import draw, feature_grid, page_count
from hookviz.render._scaling import Scaling, scaling, shared_range
from hookviz.render._statistics import (
    ChannelStatistics,
    channel_statistics,
    draw_statistics,
    layer_statistics,
)

__all__ = [
    "Arranged",
    "ChannelPicture",
    "ChannelStatistics",
    "ColourTable",
    "Drawing",
    "Extents",
    "GridOptions",
    "Levels",
    "PictureFacts",
    "Scaling",
    "arrange",
    "channel_pictures",
    "channel_statistics",
    "choose_cmap",
    "colour_table",
    "draw",
    "draw_statistics",
    "extents",
    "feature_grid",
    "layer_statistics",
    "moments",
    "page_count",
    "palette",
    "parse_channels",
    "scaling",
    "shared_range",
    "single_channel",
    "to_levels",
]
