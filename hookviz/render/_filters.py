"""Filters: the kernels of a convolution, as colors or as maps of one input channel."""

from __future__ import annotations

from hookviz.render._kinds import FigureKind, register
from hookviz.render._maps import draw_maps

register(FigureKind("filters", draw_maps, "filter", "channel", record="weight"))
