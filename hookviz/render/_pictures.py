"""Activations as pictures: the room's front door.

In: an activation or a tensor, and GridOptions. Out: a Drawing or a Figure. Must not know: models,
hooks, files, widgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from hookviz.activation import Activation
from hookviz.errors import RenderError
from hookviz.render._bars import draw_bars
from hookviz.render._checks import in_a_sentence
from hookviz.render._drawing import Drawing, PictureFacts
from hookviz.render._grid import draw_maps
from hookviz.render._layout import arrange
from hookviz.render._measure import extents
from hookviz.render._options import GridOptions
from hookviz.render._selection import choose_channels, pages_of

__all__ = ["draw", "feature_grid", "page_count"]


def draw(
    source: Activation | Tensor,
    options: GridOptions | None = None,
    *,
    facts: PictureFacts | None = None,
    background: NDArray[np.uint8] | None = None,
    categories: Sequence[str] = (),
) -> Drawing:
    """Draw one page of a layer.

    Args:
        source: An activation, or a bare tensor of 1 to 5 axes; any dtype, any device. It is not
            changed; only the page's uint8 levels and a few numbers per channel leave its device.
        options: What and how; None is GridOptions().
        facts: What the figure says about the source.
        background: (H, W, 3) uint8, the picture that the network saw, for overlays and the input
            tile.
        categories: Class names, for vectors of that length.

    Raises:
        RenderError: The tensor or the options do not allow it; one sentence says why.

    Examples:
        >>> import torch
        >>> drawing = draw(torch.rand(1, 100, 14, 14), GridOptions(page=1))
        >>> drawing.kind, drawing.channels[0], drawing.pages, drawing.total
        ('maps', 64, 2, 100)
    """
    options = options or GridOptions()
    picture = _checked(background, options)
    size = facts.input_size if facts is not None else None
    if size is None and picture is not None:
        size = (picture.shape[0], picture.shape[1])
    arranged = arrange(source, options, size)
    with in_a_sentence(f"a tensor of shape {arranged.shape}"):
        if arranged.kind == "bars":
            return draw_bars(source, arranged, options, facts, tuple(categories))
        return draw_maps(source, arranged, options, facts, picture)


def _checked(background: Any, options: GridOptions) -> NDArray[np.uint8] | None:
    if background is None:
        if options.opacity > 0 or options.show_input:
            raise RenderError(
                "The picture that the network saw is needed for overlay and show_input, "
                "and a bare tensor carries none.",
                remedy="Pass it as background=, or draw through a Run.",
            )
        return None
    picture = np.asarray(background)
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise RenderError(
            f"background has shape {picture.shape} and dtype {picture.dtype}; "
            "it must be (H, W, 3) uint8."
        )
    return picture


def feature_grid(
    source: Activation | Tensor,
    *,
    page: int = 0,
    per_page: int = 64,
    cmap: str = "auto",
    scale: str = "auto",
    facts: PictureFacts | None = None,
    background: NDArray[np.uint8] | None = None,
    categories: Sequence[str] = (),
    **options: Any,
) -> Figure:
    """A matplotlib Figure of a layer's feature maps, one page in one Axes.

    Args:
        source: An activation, or a bare tensor of 1 to 5 axes.
        page: Which page, from 0.
        per_page: Maps on a page.
        cmap: Name of a matplotlib colormap.
        scale: "auto", "channel", "layer", "shared", "symmetric", "percentile" or "fixed".
        facts: What the figure says about the source.
        background: (H, W, 3) uint8, the picture that the network saw.
        categories: Class names, for vectors of that length.
        **options: Any other field of GridOptions.

    Returns:
        A figure that pyplot does not know; ``savefig`` writes PNG, PDF or SVG.

    Raises:
        RenderError: The tensor or an option does not allow it.

    Examples:
        >>> import torch
        >>> figure = feature_grid(torch.rand(1, 8, 14, 14), scale="channel", width=600)
        >>> figure.canvas.get_width_height()[0]
        600
    """
    chosen = GridOptions.of(page=page, per_page=per_page, cmap=cmap, scale=scale, **options)
    return draw(source, chosen, facts=facts, background=background, categories=categories).figure


def page_count(
    source: Activation | Tensor,
    options: GridOptions | None = None,
    *,
    facts: PictureFacts | None = None,
) -> int:
    """How many pages ``draw`` has for these options; 1 for vectors.

    Examples:
        >>> import torch
        >>> page_count(torch.zeros(1, 512, 2, 2)), page_count(torch.zeros(1, 1000))
        (8, 1)
    """
    options = options or GridOptions()
    arranged = arrange(source, options, facts.input_size if facts else None)
    if arranged.kind == "bars":
        return 1
    if not options.hide_dead:
        # The order does not change the number, and reading it may need every value.
        options = options.replace(order="index")
    found = extents(arranged.maps, arranged.apart)
    return pages_of(arranged.kind, len(choose_channels(arranged, found, options)), options)
