"""Matplotlib's colormaps, and the one that it lacks.

In: nothing. Out: the registry of colormaps by name. Must not know: figures, tensors.

On a dark page a diverging map's middle must be dark and without a hue, or a layer's zeros glow.
Of matplotlib's three with a dark middle, managua's is purple, berlin's warm side is half as light
as its cold one, and vanimo's middle is blacker than the page. ``hookviz_dark`` is blue for
negative and orange for positive values, as far as possible from both kinds of red-green blindness;
its lightness (L of Oklab, https://bottosson.github.io/posts/oklab) rises evenly from 0.30 at zero
to 0.88 at either end, equally on both sides.
"""

from __future__ import annotations

import matplotlib as mpl
from matplotlib.colors import LinearSegmentedColormap

__all__ = ["DARK_DIVERGING", "colormaps"]

DARK_DIVERGING = "hookviz_dark"

# Thirteen steps from −x to +x: hue 225° to 255° and 40° to 80°, chroma up to 0.17 within sRGB.
_STEPS = (
    "#9fe3fe", "#58c7f7", "#0aa7e6", "#0586c4", "#1e669a", "#2e4965",
    "#2e2e2e",
    "#613d2b", "#904d1c", "#b76601", "#d7850a", "#e7ac59", "#f8d190",
)  # fmt: skip

colormaps = mpl.colormaps
if DARK_DIVERGING not in colormaps:  # it is there already where this module is loaded anew
    _map = LinearSegmentedColormap.from_list(DARK_DIVERGING, _STEPS)
    colormaps.register(_map)
    colormaps.register(_map.reversed())
