"""Vectors as bars. In: values. Out: a Drawing. Must not know: models."""

from __future__ import annotations

from torch import Tensor

from hookviz.capture.activation import Activation
from hookviz.errors import RenderError
from hookviz.render.drawing import Drawing, PictureFacts
from hookviz.render.layout import Arranged
from hookviz.render.options import GridOptions

__all__ = ["draw_bars"]


def draw_bars(
    source: Activation | Tensor,
    arranged: Arranged,
    options: GridOptions,
    facts: PictureFacts | None,
    categories: tuple[str, ...],
) -> Drawing:
    """Draw a vector."""
    raise RenderError(f"Bars are still to come: {source} {arranged} {options} {facts} {categories}")
