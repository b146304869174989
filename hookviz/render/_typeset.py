"""Small text as pixels: each character is drawn once by matplotlib and then copied.

In: texts, a font, a size. Out: widths, and how much ink each pixel takes. Must not know: what the
texts say.

matplotlib lays out and draws a text in about a millisecond; a page of 64 maps has some 130 of
them. Copying cached characters costs a hundredth of that and looks the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties, findfont, get_font
from numpy.typing import NDArray

__all__ = ["Face", "Label", "face_of"]


@dataclass(frozen=True)
class Face:
    """A font at one size. ``face_of`` gives the same object for the same font, with its caches.

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
    _widths: dict[str, int] = field(default_factory=dict, compare=False, repr=False)
    _inks: dict[str, tuple[NDArray[np.uint8], int, int]] = field(
        default_factory=dict, compare=False, repr=False
    )
    _texts: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def pixels(self) -> float:
        """Size in pixels."""
        return self.points * self.dpi / 72.0

    @property
    def properties(self) -> FontProperties:
        """The same for matplotlib."""
        return FontProperties(family=list(self.family), size=self.points, weight=self.weight)

    def legible(self, text: str) -> str:
        """The text with a hollow square for each character that the font lacks."""
        found = self._texts.get(text)
        if found is None:
            found = "".join(c if _has(self.family, self.weight, c) else "□" for c in text)
            _keep(self._texts, text, found)
        return found

    def width(self, text: str) -> int:
        """Width of the text in whole pixels."""
        found = self._widths.get(text)
        if found is None:
            found = sum(_advance(self, c) for c in text)
            _keep(self._widths, text, found)
        return found

    def measured(self, text: str) -> float:
        """Width in pixels as matplotlib itself sets the text, kerning included."""
        font = get_font(findfont(self.properties))
        font.set_size(self.points, self.dpi)
        font.set_text(text, 0.0)
        return float(font.get_width_height()[0]) / 64.0

    def inked(self, text: str) -> tuple[NDArray[np.uint8], int, int]:
        """How much of each pixel a text covers.

        Args:
            text: One line.

        Returns:
            (height, width) uint8, not to be written to; how many columns lie left of where the
            text starts; how many rows lie above its baseline.
        """
        found = self._inks.get(text)
        if found is None:
            found = _inked(self, text)
            _keep(self._inks, text, found)
        return found


@lru_cache(maxsize=256)
def face_of(family: tuple[str, ...], points: float, dpi: float, weight: str = "normal") -> Face:
    """The font at that size; the same object each time, so that its caches serve every page."""
    return Face(family, points, dpi, weight)


def _keep(cache: dict[str, Any], text: str, found: Any) -> None:
    """Remember a result; a full cache is emptied, so that it never grows without end."""
    if len(cache) >= 4096:
        cache.clear()
    cache[text] = found


@dataclass(frozen=True)
class Label:
    """A small text at a place in an image.

    Attributes:
        text: What it says.
        x: Pixel of its left end (right end where ``right``).
        y: Pixel row of its baseline.
        colour: RGBA, 0 to 1.
        face: Font and size.
        right: ``x`` is the right end.
    """

    text: str
    x: int
    y: int
    colour: tuple[float, float, float, float]
    face: Face
    right: bool = False


def _inked(face: Face, text: str) -> tuple[NDArray[np.uint8], int, int]:
    """See Face.inked."""
    left, above, below = 2, int(face.pixels * 1.3) + 2, int(face.pixels * 0.5) + 2
    cover = np.zeros((above + below, face.width(text) + 2 * left + 2), np.uint8)
    x = left
    for character in text:
        glyph, offset, rise = _glyph(face, character)
        at, top = max(0, x + offset), max(0, above - rise)
        part = cover[top : top + glyph.shape[0], at : at + glyph.shape[1]]
        np.maximum(part, glyph[: part.shape[0], : part.shape[1]], out=part)
        x += _advance(face, character)
    return cover, left, above


@lru_cache(maxsize=4096)
def _has(family: tuple[str, ...], weight: str, character: str) -> bool:
    """Whether the font draws it; without the question matplotlib warns each time it does not."""
    font = get_font(findfont(FontProperties(family=list(family), weight=weight)))
    return font.get_char_index(ord(character)) != 0


@lru_cache(maxsize=4096)
def _advance(face: Face, character: str) -> int:
    font = get_font(findfont(face.properties))
    font.set_size(face.points, face.dpi)
    return max(1, round(font.load_char(ord(character)).linearHoriAdvance / 65536))


@lru_cache(maxsize=4096)
def _glyph(face: Face, character: str) -> tuple[NDArray[np.uint8], int, int]:
    """How much of each pixel the character covers, its left edge, its rows above the baseline."""
    size = int(face.pixels * 2.5) + 8
    base = int(face.pixels * 1.5) + 4
    renderer: Any = RendererAgg(size, size, face.dpi)  # type: ignore[no-untyped-call]
    context = renderer.new_gc()
    context.set_foreground((0.0, 0.0, 0.0, 1.0), isRGBA=True)
    renderer.draw_text(context, 4, base, character, face.properties, 0, False)
    cover = np.asarray(renderer.buffer_rgba())[..., 3]
    rows, columns = np.flatnonzero(cover.any(1)), np.flatnonzero(cover.any(0))
    if not rows.size:
        return np.zeros((0, 0), np.uint8), 0, 0
    cut = cover[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].copy()
    return cut, int(columns[0]) - 4, base - int(rows[0])
