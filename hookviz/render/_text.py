"""Texts on a figure: how numbers and long names are written, and letters as pixels.

Any text may come: names of files, layers and classes are other people's. Every text is therefore
made `legible` before it is measured or drawn, here and nowhere else; both take the same characters.

Pillow sets the 130 texts of a page of 64 maps in 7 ms, and in 1 ms where they are known from the
page before; matplotlib's ``RendererAgg.draw_text`` needs 124 ms for them.
"""

from __future__ import annotations

import math
import unicodedata
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from matplotlib.font_manager import FontProperties, findfont, get_font
from numpy.typing import NDArray
from PIL import ImageFont, features

_MISSING = "□"


def value(number: float, digits: int = 3) -> str:
    """A number as it is written on a figure, with a true minus sign.

    Examples:
        >>> value(-344.06), value(0.00012345), value(12.0), value(1.5e9)
        ('−344', '0.000123', '12', '1.5e9')
        >>> value(65504.0), value(float("nan")), value(float("-inf"))
        ('65504', 'NaN', '−Inf')
    """
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "−Inf"
    if float(number).is_integer() and abs(number) < 1e6:
        text = str(int(number))
    elif 10**digits <= abs(number) < 1e6:
        text = str(round(number))
    else:
        text = f"{number:.{digits}g}"
    if "e" in text:
        mantissa, exponent = text.split("e")
        text = f"{mantissa}e{int(exponent)}"
    return text.replace("-", "−")


def share(part: int, whole: int) -> str:
    """A share as a percentage that never rounds something to nothing.

    Examples:
        >>> share(1, 1000000), share(0, 7), share(3, 200)
        ('< 0.01 %', '0 %', '1.5 %')
    """
    if whole == 0 or part == 0:
        return "0 %"
    percent = 100.0 * part / whole
    return "< 0.01 %" if percent < 0.01 else f"{percent:.2g} %" if percent < 99.5 else "100 %"


def counted(number: int, noun: str) -> str:
    """A count with its noun in the right number.

    Examples:
        >>> counted(1, "map"), counted(1000, "class")
        ('1 map', '1000 classes')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def middle_ellipsis(text: str, room: float, width: Callable[[str], float]) -> str:
    """The text, or its beginning and end where it is too wide.

    Args:
        text: For example a layer's long dotted name.
        room: Width that it may take.
        width: Measures a text.

    Examples:
        >>> middle_ellipsis("backbone.body.layer4.2.conv3", 15, len)
        'backbon…2.conv3'
    """
    if width(text) <= room:
        return text

    def cut(keep: int) -> str:
        return f"{text[: keep // 2]}…{text[len(text) - (keep + 1) // 2 :]}"

    # The most characters that still fit.
    return cut(bisect_right(range(1, len(text)), room, key=lambda keep: width(cut(keep))))


@dataclass(frozen=True)
class Face:
    """A font at one size.

    Attributes:
        family: Font families, best first.
        points: Size in points.
        dpi: Pixels per inch.
        weight: "normal" or "bold".
    """

    family: tuple[str, ...]
    points: float
    dpi: float
    weight: str = "normal"

    @property
    def properties(self) -> FontProperties:
        """The same for matplotlib."""
        return FontProperties(family=list(self.family), size=self.points, weight=self.weight)

    def legible(self, text: str) -> str:
        """The text on one line, with a hollow square for each character that cannot be drawn."""
        return _legible(self.family, self.weight, text)

    def width(self, text: str) -> int:
        """Width of the legible text in whole pixels."""
        return _width(self, self.legible(text))

    def inked(self, text: str) -> tuple[NDArray[np.uint8], int, int]:
        """How much of each pixel a legible text covers.

        Args:
            text: One line.

        Returns:
            (height, width) uint8, not to be written to; how many columns lie right of where the
            text starts; how many rows lie above its baseline.
        """
        return _inked(self, self.legible(text))


@dataclass(frozen=True)
class Label:
    """A small text at a place in an image.

    Attributes:
        text: What it says.
        x: Pixel of its left end (right end where ``right``).
        y: Pixel row of its baseline.
        color: RGBA, 0 to 1.
        face: Font and size.
        right: ``x`` is the right end.
    """

    text: str
    x: int
    y: int
    color: tuple[float, float, float, float]
    face: Face
    right: bool = False


@lru_cache(maxsize=4096)
def _legible(family: tuple[str, ...], weight: str, text: str) -> str:
    return "".join(_drawn(family, weight, character) for character in text)


@lru_cache(maxsize=4096)
def _drawn(family: tuple[str, ...], weight: str, character: str) -> str:
    """What stands for a character: itself, a space, a hollow square, or nothing."""
    kind = unicodedata.category(character)
    if character.isspace():
        return " "
    if kind == "Cf":  # joiners and direction marks, which must not turn the rest of a figure's text
        return ""
    if kind[0] == "C":  # control characters, lone surrogates, private ones
        return _MISSING
    properties = FontProperties(family=list(family), weight=weight)
    if get_font(findfont(properties)).get_char_index(ord(character)):
        return character
    return "" if kind in ("Mn", "Me") else _MISSING  # an accent leaves no gap of its own


@lru_cache(maxsize=256)
def _font(face: Face, *, shaped: bool) -> ImageFont.FreeTypeFont:
    path = findfont(face.properties)
    return ImageFont.truetype(
        path,
        face.points * face.dpi / 72.0,
        index=getattr(path, "face_index", 0),
        layout_engine=ImageFont.Layout.RAQM if shaped else ImageFont.Layout.BASIC,
    )


def _font_of(face: Face, text: str) -> ImageFont.FreeTypeFont:
    """The font; with the shaping that joined and right-to-left scripts need, where it is built in.

    All else is set by the simple layout, which rounds widths to pixels as the eye likes it.
    """
    shaped = not text.isascii() and any(
        unicodedata.bidirectional(c) in ("R", "AL") or unicodedata.combining(c) for c in text
    )
    return _font(face, shaped=shaped and bool(features.check("raqm")))


@lru_cache(maxsize=4096)
def _width(face: Face, text: str) -> int:
    return round(_font_of(face, text).getlength(text))


@lru_cache(maxsize=4096)
def _inked(face: Face, text: str) -> tuple[NDArray[np.uint8], int, int]:
    mask, (left, top) = _font_of(face, text).getmask2(text, "L", anchor="ls")
    width, height = mask.size
    cover = np.frombuffer(bytes(mask), np.uint8).reshape(height, width)
    return cover, int(left), -int(top)
