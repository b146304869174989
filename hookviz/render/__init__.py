"""Activations as figures: honest, readable, fast.

In: Activations or tensors, GridOptions. Out: matplotlib Figures and single-channel arrays.
Must not know: models, hooks, files, widgets.
"""

# Importing the module of a figure kind makes the kind known.
from hookviz.render import (  # noqa: F401
    _attention,
    _attribution,
    _bars,
    _comparison,
    _filters,
    _maps,
    _strip,
    _visualization,
)
from hookviz.render._arrange import arrange
from hookviz.render._attribution import Attribution
from hookviz.render._channels import ChannelImage, SingleChannels
from hookviz.render._comparison import (
    ActivationPair,
    difference,
    draw_sides,
    on_one_grid,
    shared_end,
)
from hookviz.render._curves import Curve, draw_curves
from hookviz.render._draw import (
    FOR_SOME_LAYERS,
    Drawing,
    FigureFacts,
    Subject,
    draw,
    feature_grid,
    fitted,
    page_count,
)
from hookviz.render._held import HeldScales, Hold
from hookviz.render._kinds import FigureKind, figure_kinds, register
from hookviz.render._levels import shared_range, to_levels
from hookviz.render._maps import tile_levels
from hookviz.render._measure import Extents, extents, moments
from hookviz.render._options import Colors, DrawingOptions, GridOptions, parse_channels
from hookviz.render._palette import Flag, choose_cmap, color_table, packed, palette
from hookviz.render._sheet import dead_sentence, legend_of, page_sentence
from hookviz.render._statistics import ChannelStatistics, channel_statistics
from hookviz.render._strip import ChannelStrip
from hookviz.render._text import value
from hookviz.render._visualization import Visualization

__all__ = [
    "FOR_SOME_LAYERS",
    "ActivationPair",
    "Attribution",
    "ChannelImage",
    "ChannelStatistics",
    "ChannelStrip",
    "Colors",
    "Curve",
    "Drawing",
    "DrawingOptions",
    "Extents",
    "FigureFacts",
    "FigureKind",
    "Flag",
    "GridOptions",
    "HeldScales",
    "Hold",
    "SingleChannels",
    "Subject",
    "Visualization",
    "arrange",
    "channel_statistics",
    "choose_cmap",
    "color_table",
    "dead_sentence",
    "difference",
    "draw",
    "draw_curves",
    "draw_sides",
    "extents",
    "feature_grid",
    "figure_kinds",
    "fitted",
    "legend_of",
    "moments",
    "on_one_grid",
    "packed",
    "page_count",
    "page_sentence",
    "palette",
    "parse_channels",
    "register",
    "shared_end",
    "shared_range",
    "tile_levels",
    "to_levels",
    "value",
]
