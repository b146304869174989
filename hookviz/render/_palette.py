"""Colors: colormaps, what has no place on them, and those of the page itself.

On a dark page a diverging map's middle must be dark and without a hue, or a layer's zeros glow.
Of matplotlib's three with a dark middle, managua's is purple, berlin's warm side is half as light
as its cold one, and vanimo's middle is blacker than the page. ``hookviz_dark`` is blue for
negative and orange for positive values, as far as possible from both kinds of red-green blindness;
its lightness (L of Oklab, https://bottosson.github.io/posts/oklab) rises evenly from 0.30 at zero
to 0.88 at either end, equally on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from numpy.typing import NDArray

Rgb = NDArray[np.uint8]
Color = tuple[float, float, float, float]
"""RGBA, 0 to 1."""


class Flag(IntEnum):
    """Why a value has no place on the scale; 0 is a value that has one."""

    BELOW = 1
    ABOVE = 2
    NEGINF = 3
    POSINF = 4
    NAN = 5

    @property
    def label(self) -> str:
        """How a figure names it."""
        return ("below the scale", "above the scale", "−Inf", "+Inf", "NaN")[self - 1]


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


# The colors that NaN and infinities may have, best first: each table takes those that stand out
# from its own. White and black, which pages have too, come last.
_STRANGE = (
    (255, 0, 200), (0, 229, 255), (255, 140, 0), (57, 255, 20), (150, 75, 0), (0, 0, 0),
    (255, 255, 255),
)  # fmt: skip
_APART = 110.0  # summed difference of red, green and blue that the eye does not miss


@dataclass(frozen=True, eq=False)
class ColorTable:
    """256 colors for levels, and five for what has no level.

    Attributes:
        name: Of the colormap.
        rgb: (256, 3) uint8.
        flags: (6, 3) uint8, by the flags of hookviz.render._levels (row 0 is unused): clipped
            below, clipped above, −Inf, +Inf, NaN.
    """

    name: str
    rgb: Rgb
    flags: Rgb

    def color_of(self, flag: Flag) -> Color:
        """The color of what has no level."""
        red, green, blue = (int(part) / 255 for part in self.flags[flag])
        return red, green, blue, 1.0

    def receding(self, page: Palette) -> ColorTable:
        """The same where NaN is no value: it takes the page's faint color."""
        flags = self.flags.copy()
        flags[Flag.NAN] = np.round(np.array(page.faint[:3]) * 255)
        return replace(self, flags=flags)


@lru_cache(maxsize=64)
def color_table(name: str) -> ColorTable:
    """The table of a matplotlib colormap."""
    cmap = colormaps[name]
    # bytes=True would cut fractions off, which puts gray levels one too low.
    rgb = np.round(cmap(np.linspace(0.0, 1.0, 256))[:, :3] * 255).astype(np.uint8)
    palette = [np.array(c, np.int64) for c in _STRANGE]
    distance = [float(np.abs(rgb.astype(np.int64) - c).sum(1).min()) for c in palette]
    # Those far enough in the order of preference, then the farthest of the rest.
    order = sorted(range(len(palette)), key=lambda i: (-min(distance[i], _APART), i))
    nan, posinf, neginf = (palette[i] for i in order[:3])
    flags = np.zeros((6, 3), np.uint8)
    flags[Flag.BELOW], flags[Flag.ABOVE] = _beyond(rgb[0]), _beyond(rgb[-1])
    flags[Flag.NEGINF], flags[Flag.POSINF], flags[Flag.NAN] = neginf, posinf, nan
    return ColorTable(name, rgb, flags)


def _beyond(end: Rgb) -> Rgb:
    """A color that reads as "past the end" of a colormap: lighter where it ends light."""
    light = float(end @ np.array([0.299, 0.587, 0.114])) > 150
    target = 255.0 if light else 0.0
    return np.round(end + (target - end) * 0.55).astype(np.uint8)


def choose_cmap(cmap: str, style: str | None, *, symmetric: bool) -> str:
    """The colormap's name, "auto" resolved.

    A diverging map's middle must recede: white on a light page, dark on a dark one.
    """
    if cmap != "auto":
        return cmap
    if not symmetric:
        return "viridis"
    return DARK_DIVERGING if palette(style).dark else "RdBu_r"


def packed(rgb: Rgb) -> NDArray[np.uint32]:
    """(..., 3) uint8 as one uint32 per color, whose bytes are red, green, blue and 255 (alpha)."""
    rgba = np.full((*rgb.shape[:-1], 4), 255, np.uint8)
    rgba[..., :3] = rgb
    return rgba.view(np.uint32)[..., 0]


def colored(
    levels: NDArray[np.uint8], flags: NDArray[np.uint8] | None, table: ColorTable
) -> NDArray[np.uint32]:
    """Levels and flags as packed RGBA colors.

    Args:
        levels: (n, h, w), colored by the table; or (n, 3, h, w), which are colors themselves.
        flags: Of the same shape; None where every level counts.
        table: Colors of levels and flags.

    Returns:
        (n, h, w).
    """
    if levels.ndim == 4:
        colors = packed(np.moveaxis(levels, 1, -1))
        flags = None if flags is None else flags.max(1)
    else:
        colors = packed(table.rgb).take(levels)
    if flags is not None:
        flagged = flags > 0
        colors[flagged] = packed(table.flags)[flags[flagged]]
    return colors


def packed_color(color: Color) -> np.uint32:
    """A color in the same form."""
    one: np.uint32 = np.round(np.array(color) * 255).astype(np.uint8).view(np.uint32)[0]
    return one


@dataclass(frozen=True)
class Palette:
    """The page's own colors and its font.

    Attributes:
        face: The page.
        ink: Titles.
        muted: Small text.
        faint: Frames and axes.
        accent: Bars and lines.
        warn: What the reader must not overlook.
        family: Font families, best first.
        dark: Whether the page is dark.
    """

    face: Color
    ink: Color
    muted: Color
    faint: Color
    accent: Color
    warn: Color
    family: tuple[str, ...] = ("DejaVu Sans",)
    dark: bool = False


_PINNED = {
    "light": ("#ffffff", "#1b1f24", "#626b76", "#d9dde2", "#31688e", "#b3261e"),
    "dark": ("#14161a", "#e8eaed", "#9aa3ad", "#353a42", "#6cb6d9", "#ff8a80"),
}


def palette(style: str | None) -> Palette:
    """The colors of "light", "dark", or of matplotlib's rcParams (None)."""
    if style is not None:
        face, ink, muted, faint, accent, warn = map(to_rgba, _PINNED[style])
        return Palette(face, ink, muted, faint, accent, warn, dark=style == "dark")
    rc = mpl.rcParams
    face, ink = to_rgba(rc["figure.facecolor"]), to_rgba(rc["text.color"])
    ground = face if face[3] > 0 else (1.0, 1.0, 1.0, 1.0)
    dark = float(np.dot(ground[:3], (0.299, 0.587, 0.114))) < 0.5
    family = rc["font.family"]
    return replace(
        palette("dark" if dark else "light"),
        face=face,
        ink=ink,
        muted=_mix(ink, ground, 0.36),
        faint=_mix(ink, ground, 0.82),
        family=(family,) if isinstance(family, str) else tuple(family),
    )


def _mix(one: Color, other: Color, share: float) -> Color:
    r, g, b = (a + (z - a) * share for a, z in zip(one[:3], other[:3], strict=True))
    return (r, g, b, 1.0)
