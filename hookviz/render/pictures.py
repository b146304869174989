"""Activations as pictures: the room's front door.

In: an activation or a tensor, and GridOptions. Out: a Drawing, a Figure, or single pictures.
Must not know: models, hooks, files, widgets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from hookviz.capture.activation import Activation
from hookviz.errors import RenderError
from hookviz.render.artists import add_mosaic
from hookviz.render.bars import draw_bars
from hookviz.render.colours import choose_cmap, colour_table, palette
from hookviz.render.drawing import Drawing, PictureFacts
from hookviz.render.figure import coloured, label_tiles, mosaic_of, plan_tiles, take
from hookviz.render.heading import dead_sentence, heading, legend_of, page_sentence
from hookviz.render.layout import Arranged, arrange
from hookviz.render.levels import to_levels
from hookviz.render.measure import extents
from hookviz.render.options import GridOptions
from hookviz.render.page import Sheet, bar_width
from hookviz.render.scaling import scaling
from hookviz.render.selection import choose_channels, page_of, pages_of

__all__ = [
    "ChannelPicture",
    "channel_pictures",
    "draw",
    "feature_grid",
    "page_count",
    "single_channel",
]


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
    if arranged.kind == "bars":
        return draw_bars(source, arranged, options, facts, tuple(categories))
    return _draw_maps(source, arranged, options, facts, picture)


def _draw_maps(
    source: Activation | Tensor,
    arranged: Arranged,
    options: GridOptions,
    facts: PictureFacts | None,
    picture: NDArray[np.uint8] | None,
) -> Drawing:
    del picture
    found = extents(arranged.maps, arranged.apart)
    chosen = choose_channels(arranged, found, options)
    channels = page_of(arranged.kind, chosen, options)
    pages = pages_of(arranged.kind, len(chosen), options)
    scale = scaling(arranged, found, options)
    colours = palette(options.style)
    table = colour_table(choose_cmap(options, symmetric=scale.symmetric))
    sentences = (
        page_sentence(arranged, len(channels), len(chosen), options, pages),
        scale.sentence,
        f"axes {arranged.statement}",
        *arranged.notes,
        dead_sentence(arranged, found),
    )
    legend = legend_of(found, scale, table)
    header = heading(source, arranged, sentences, options, facts, legend)
    sheet = Sheet(header, options, colours)
    bar = bar_width(scale.ends, sheet.face(7.5)) + sheet.px(8) if options.colorbar else 0
    tiles = plan_tiles(channels, arranged, options, sheet, sheet.room - bar, None)
    grid = tiles.grid
    rgba = mosaic_of(arranged, channels, scale, found, table, grid, options, colours.face, None)
    figure = sheet.open(grid.shape[0])
    left, top = sheet.margin + tiles.aside, sheet.top
    add_mosaic(figure, rgba, left, top).set_label("maps")
    label_tiles(sheet, tiles, channels, found, scale, colours, left, top)
    if options.colorbar:
        start = top + grid.strip + grid.head
        sheet.colourbar(
            figure,
            left + grid.shape[1] + sheet.px(8),
            start,
            min(grid.shape[0] - grid.strip - grid.head, sheet.px(220)),
            table,
            scale.ends,
            clipped=(scale.below > 0, scale.above > 0),
        )
    sheet.close(figure)
    ends = scale.ends
    return Drawing(
        figure=figure,
        channels=channels,
        page=options.page,
        pages=pages,
        total=len(chosen),
        kind=arranged.kind,
        scale=scale.sentence,
        vmin=None if ends is None else ends[0],
        vmax=None if ends is None else ends[1],
        tile_ranges=tuple((float(scale.low[c]), float(scale.high[c])) for c in channels),
        tile_extents=tuple((float(found.low[c]), float(found.high[c])) for c in channels),
        cmap=table.name,
        nan=int(found.nan.sum()),
        posinf=int(found.posinf.sum()),
        neginf=int(found.neginf.sum()),
        below=scale.below,
        above=scale.above,
        dead=tuple(int(c) for c in found.dead.nonzero()[0]),
        layout=arranged.statement,
        notes=arranged.notes,
        options=options,
        places=tuple(
            (top + y, left + x, *grid.size)
            for y, x in (grid.origin(position) for position in range(len(channels)))
        ),
    )


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
