"""Single channels as images, one pixel per activation.

In: an activation or a tensor, and GridOptions. Out: uint8 arrays with the range that they stand
for. Must not know: figures, files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hookviz.activation import Activation
from hookviz.errors import RenderError
from hookviz.render._colours import choose_cmap, colour_table
from hookviz.render._drawing import PictureFacts
from hookviz.render._figure import coloured, take
from hookviz.render._layout import arrange
from hookviz.render._levels import to_levels
from hookviz.render._measure import extents
from hookviz.render._options import GridOptions
from hookviz.render._scaling import scaling
from hookviz.render._selection import choose_channels

__all__ = ["ChannelPicture", "channel_pictures", "single_channel"]


@dataclass(frozen=True, eq=False)
class ChannelPicture:
    """One channel as an image.

    Attributes:
        channel: Its index.
        rgb: (H, W, 3) uint8, or (H, W) uint8 where the colormap is grey throughout; one pixel
            (or a square of ``factor``) per activation.
        vmin: Value of the first colour.
        vmax: Value of the last colour.
    """

    channel: int
    rgb: NDArray[np.uint8]
    vmin: float
    vmax: float


def channel_pictures(
    source: Activation | Tensor,
    options: GridOptions | None = None,
    *,
    factor: int = 1,
    facts: PictureFacts | None = None,
    batch: int = 64,
) -> Iterator[ChannelPicture]:
    """Each chosen channel as an image of its own; the layer is measured once.

    Args:
        source: An activation or tensor whose kind is not "bars".
        options: ``channels``, ``order``, ``top``, ``hide_dead``, ``scale``, ``cmap``, ``sample``
            and ``frame`` are used; paging is not.
        factor: Pixels per activation in both directions, at least 1.
        facts: Its ``input_size`` helps to read the axes.
        batch: Channels scaled at a time.

    Raises:
        RenderError: Single values have no maps; or as in ``draw``.
    """
    options = options or GridOptions()
    if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:
        raise RenderError(f"factor is {factor!r}; it must be a whole number of at least 1.")
    arranged = arrange(source, options, facts.input_size if facts else None)
    if arranged.kind == "bars":
        raise RenderError(
            f"The layer of shape {arranged.shape} holds single values; it has no maps to save."
        )
    found = extents(arranged.maps, arranged.apart)
    scale = scaling(arranged, found, options)
    table = colour_table(choose_cmap(options, symmetric=scale.symmetric))
    flagged = not found.all_finite or scale.below > 0 or scale.above > 0
    chosen = choose_channels(arranged, found, options)
    for at in range(0, len(chosen), batch):
        channels = chosen[at : at + batch]
        low, high = scale.low[list(channels)], scale.high[list(channels)]
        levels = to_levels(take(arranged.maps, channels), low, high, flagged=flagged)
        colours = coloured(levels, table)
        if factor > 1:
            colours = np.repeat(np.repeat(colours, factor, axis=1), factor, axis=2)
        rgb = colours.view(np.uint8).reshape(*colours.shape, 4)[..., :3]
        grey = not flagged and bool((table.rgb == table.rgb[:, :1]).all())
        for position, channel in enumerate(channels):
            picture = rgb[position, ..., 0] if grey else rgb[position]
            yield ChannelPicture(
                channel, np.ascontiguousarray(picture), float(low[position]), float(high[position])
            )


def single_channel(
    source: Activation | Tensor,
    channel: int,
    options: GridOptions | None = None,
    factor: int = 1,
    *,
    facts: PictureFacts | None = None,
) -> NDArray[np.uint8]:
    """One channel as an image of one pixel (or ``factor`` by ``factor``) per activation.

    Returns:
        (H · factor, W · factor, 3) uint8, or (H · factor, W · factor) for a grey colormap.

    Raises:
        RenderError: There is no such channel, or as in ``draw``.

    Examples:
        >>> import torch
        >>> single_channel(torch.rand(1, 8, 5, 7), 3, factor=2).shape
        (10, 14, 3)
    """
    options = (options or GridOptions()).replace(
        channels=(channel,), top=None, hide_dead=False, order="index"
    )
    return next(channel_pictures(source, options, factor=factor, facts=facts)).rgb
