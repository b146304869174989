"""The public ways to draw: one page as a Drawing or a Figure, and how many pages there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import combinations
from typing import Any, TypeVar, Unpack

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from hookviz.activation import Activation
from hookviz.errors import RenderError

# Importing a module of a figure kind makes the kind known.
from hookviz.render import _bars, _comparison, _filters, _maps, _statistics  # noqa: F401
from hookviz.render._arrange import arrange, choose_channels, pages_of
from hookviz.render._kinds import Drawing, FigureFacts, Subject
from hookviz.render._measure import extents
from hookviz.render._options import DrawingOptions, GridOptions, in_a_sentence, parse_channels

Made = TypeVar("Made")

FOR_SOME_LAYERS: dict[str, Any] = {
    "overlay": False,
    "summary": "none",
    "channels": None,
    "hide_dead": False,
    "order": "index",
}
"""Options that only some layers can follow, with the value that all can."""


def draw(
    source: Activation | Tensor,
    options: GridOptions | None = None,
    *,
    facts: FigureFacts | None = None,
    background: NDArray[np.uint8] | None = None,
    categories: Sequence[str] = (),
) -> Drawing:
    """Draw one page of a layer.

    Args:
        source: An activation, or a bare tensor of 1 to 5 axes; any dtype, any device. It is not
            changed; only the page's uint8 levels and a few numbers per channel leave its device.
        options: What and how; None is GridOptions().
        facts: What the figure says about the source.
        background: (H, W, 3) uint8, what the network saw, for overlays and the input
            tile.
        categories: Class names, for vectors of that length.

    Returns:
        The page with what it says about itself; its figure is new.

    Raises:
        RenderError: The tensor or the options do not allow it; one sentence says why.

    Examples:
        >>> import torch
        >>> drawing = draw(torch.rand(1, 100, 14, 14), GridOptions(page=1))
        >>> drawing.kind, drawing.channels[0], drawing.pages, drawing.total
        ('maps', 64, 2, 100)
    """
    options = options or GridOptions()
    image = _checked(background, options)
    facts = facts or FigureFacts()
    size = facts.input_size
    if size is None and image is not None:
        size = (image.shape[0], image.shape[1])
    arranged = arrange(source, options, size)
    subject = Subject(source, arranged, options, facts, image, tuple(categories))
    with in_a_sentence(f"a tensor of shape {arranged.shape}"):
        return subject.kind.draw(subject)


def _checked(background: Any, options: GridOptions) -> NDArray[np.uint8] | None:
    if background is None:
        if options.opacity > 0 or options.show_input:
            raise RenderError(
                "The image that the network saw is needed for overlay and show_input, "
                "and a bare tensor carries none.",
                remedy="Pass it as background=, or draw through a Run.",
            )
        return None
    image = np.asarray(background)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise RenderError(
            f"background has shape {image.shape} and dtype {image.dtype}; "
            "it must be (H, W, 3) uint8."
        )
    return image


def feature_grid(
    source: Activation | Tensor,
    *,
    facts: FigureFacts | None = None,
    background: NDArray[np.uint8] | None = None,
    categories: Sequence[str] = (),
    **options: Unpack[DrawingOptions],
) -> Figure:
    """A matplotlib Figure of a layer's feature maps, one page in one Axes.

    Args:
        source: An activation, or a bare tensor of 1 to 5 axes.
        facts: What the figure says about the source.
        background: (H, W, 3) uint8, what the network saw.
        categories: Class names, for vectors of that length.
        **options: Fields of GridOptions: ``page``, ``per_page``, ``cmap``, ``scale``, …

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
    chosen = GridOptions.of(**options)
    return draw(source, chosen, facts=facts, background=background, categories=categories).figure


def page_count(
    source: Activation | Tensor,
    options: GridOptions | None = None,
    *,
    facts: FigureFacts | None = None,
) -> int:
    """How many pages ``draw`` has for these options; 1 for vectors and statistics.

    Args:
        source: An activation or tensor.
        options: Which channels, and how many on a page; None is GridOptions().
        facts: Its ``input_size`` helps to read the axes.

    Returns:
        At least 1.

    Raises:
        RenderError: The tensor cannot be drawn so, or no channel is left.

    Examples:
        >>> import torch
        >>> page_count(torch.zeros(1, 512, 2, 2)), page_count(torch.zeros(1, 1000))
        (8, 1)
    """
    options, facts = options or GridOptions(), facts or FigureFacts()
    arranged = arrange(source, options, facts.input_size)
    subject = Subject(source, arranged, options, facts)
    if options.figure != "auto" and not subject.kind.paged:
        return 1
    subject.behind()
    if not options.hide_dead and not options.order.startswith("similarity"):
        # The order does not change the number, and reading it may need every value.
        options = options.replace(order="index")
    with in_a_sentence(f"a tensor of shape {arranged.shape}"):
        found = extents(arranged.maps, arranged.apart)
    total = len(choose_channels(arranged, found, options))
    return pages_of(total, options, paged=subject.kind.paged)


def fitted(
    options: GridOptions, make: Callable[[GridOptions], Made]
) -> tuple[Made, GridOptions, RenderError | None]:
    """What one layer gives where the options are meant for several.

    Some choices make sense for some layers only (channel 64, an overlay of a vector). One that the
    layer cannot follow is left out; of ``channels`` those that it has are kept.

    Args:
        options: As they were chosen.
        make: What is wanted of the layer, for example its drawing.

    Returns:
        What ``make`` gave, for which options, and why these are not all that were chosen; None
        where they are.

    Raises:
        RenderError: ``make`` refuses them also without such choices.
    """
    refusals: list[RenderError] = []
    chosen = [name for name, plain in FOR_SOME_LAYERS.items() if getattr(options, name) != plain]
    for count in range(len(chosen) + 1):
        for names in combinations(chosen, count):
            fewer = options.replace(**{name: FOR_SOME_LAYERS[name] for name in names})
            try:
                return make(fewer), fewer, next(iter(refusals), None)
            except RenderError as error:
                refusals.append(error)
            if there := _channels_there(fewer, refusals[-1]):
                options, fewer = options.replace(channels=there), fewer.replace(channels=there)
                with suppress(RenderError):
                    return make(fewer), fewer, refusals[0]
    raise refusals[0]


def _channels_there(options: GridOptions, error: RenderError) -> tuple[int, ...]:
    """Those of the channels chosen that a layer has which lacks others."""
    if error.code != "no-such-channel" or options.channels is None:
        return ()
    last = int(str(error.details["last"]))
    return tuple(c for c in parse_channels(options.channels) if c <= last)
