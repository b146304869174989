"""What a figure is asked to show, what it says about itself, and the public ways to draw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, TypeVar, Unpack

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hookviz._text import error_text
from hookviz.errors import RenderError
from hookviz.render._arrange import Arranged, Source, arrange, choose_channels
from hookviz.render._artists import pixels_of, png_of
from hookviz.render._kinds import KINDS, FigureKind
from hookviz.render._levels import Scaling, scaling
from hookviz.render._measure import Extents, extents
from hookviz.render._options import DrawingOptions, GridOptions, one_of, parse_channels
from hookviz.render._palette import ColorTable, choose_cmap, color_table, palette

Made = TypeVar("Made")

FOR_SOME_LAYERS: dict[str, Any] = {
    "overlay": False,
    "summary": "none",
    "channels": None,
    "first": None,
    "hide_dead": False,
    "order": "index",
    "query": None,
}
"""Options that only some layers can follow, with the value that all can."""


@dataclass(frozen=True)
class FigureFacts:
    """What a figure says about where its values come from. All of it may stay empty.

    Attributes:
        model: Name of the model.
        weights: Which weights it has.
        trained: False puts UNTRAINED on the figure.
        image: Name of the image.
        input_size: (height, width) of what the network saw, in pixels: finds patch grids and
            settles which axes are rows and columns.
        edits: What was changed while the model ran, in words.
    """

    model: str = ""
    weights: str = ""
    trained: bool = True
    image: str = ""
    input_size: tuple[int, int] | None = None
    edits: str = ""


@dataclass(frozen=True, eq=False)
class Drawing:
    """One page, drawn.

    Attributes:
        figure: A matplotlib Figure with an Agg canvas, registered nowhere.
        channels: Index of each channel drawn, in the order drawn.
        page: Which page, from 0.
        pages: How many there are.
        total: Channels chosen, over all pages.
        kind: Name of the figure kind: "maps", "tokens", "volume", "signal", "attention",
            "attention-map", "bars", "statistics" or "filters".
        scale: The sentence on the figure.
        vmin: Value of the first color; None where each channel has its own.
        vmax: Value of the last color; None likewise.
        tile_ranges: (first, last) value of the colors of each channel drawn.
        cmap: Name of the colormap used.
        nan: NaN values in the sample, all channels.
        posinf: +Inf values.
        neginf: −Inf values.
        below: Values clipped at the low end.
        above: Values clipped at the high end.
        dead: Channels that are zero everywhere, of all channels.
        axes: How the tensor's axes were read.
        notes: Further sentences on the figure.
        options: What it was drawn with.
        places: (top, left, height, width) in pixels of each tile; () for bars.
        size: (height, width) of one map in activations.
        on_image: Whether a place of a map is a place of the image.
    """

    figure: Figure
    channels: tuple[int, ...]
    page: int
    pages: int
    total: int
    kind: str
    scale: str
    vmin: float | None
    vmax: float | None
    tile_ranges: tuple[tuple[float, float], ...]
    cmap: str
    nan: int
    posinf: int
    neginf: int
    below: int
    above: int
    dead: tuple[int, ...]
    axes: str
    notes: tuple[str, ...]
    options: GridOptions
    places: tuple[tuple[int, int, int, int], ...] = ()
    size: tuple[int, int] = (1, 1)
    on_image: bool = False

    def pixels(self) -> NDArray[np.uint8]:
        """(height, width, 4) uint8 RGBA as drawn; a copy."""
        return pixels_of(self.figure).copy()

    def png_bytes(
        self, compress_level: int = 1, metadata: Mapping[str, str] | None = None
    ) -> bytes:
        """The page as a PNG, exactly ``options.width`` pixels wide.

        Args:
            compress_level: 0 to 9; 1 is fast, 6 smaller.
            metadata: Text keys to write; nothing else is written, so that the same page gives
                the same bytes.
        """
        return png_of(self.figure, compress_level, metadata)


@dataclass(frozen=True, eq=False)
class Subject:
    """What a kind is asked to draw. What is measured of it is measured once, when asked for.

    Attributes:
        source: The record, or a bare tensor of 1 to 5 axes.
        options: How.
        facts: What the figure says about the source.
        image: (H, W, 3) uint8, what the network saw; None where there is none.
        categories: Class names, for vectors of that length.
    """

    source: Source
    options: GridOptions
    facts: FigureFacts = FigureFacts()
    image: NDArray[np.uint8] | None = None
    categories: tuple[str, ...] = ()

    @cached_property
    def arranged(self) -> Arranged:
        """One sample of the source, turned to (C, H, W)."""
        size = self.facts.input_size
        if size is None and self.image is not None:
            size = (self.image.shape[0], self.image.shape[1])
        return arrange(self.source, self.options, size)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of one map in activations."""
        height, width = self.arranged.maps.shape[-2:]
        return height, width

    @property
    def kind(self) -> FigureKind:
        """The kind that draws it.

        Raises:
            RenderError: ``options.figure`` names none that can be asked for.
        """
        names = ("auto", *(kind.name for kind in KINDS.values() if kind.by_name))
        name = one_of("figure", self.options.figure, names)
        return self.arranged.figure_kind if name == "auto" else KINDS[name]

    @cached_property
    def extents(self) -> Extents:
        """The range of each channel."""
        return extents(self.arranged.values)

    @cached_property
    def scaling(self) -> Scaling:
        """What the colors stand for."""
        return scaling(self.arranged, self.extents, self.options)

    @property
    def flagged(self) -> bool:
        """Whether some value has no place between the ends of the scale."""
        scale = self.scaling
        return not self.extents.all_finite or scale.below > 0 or scale.above > 0

    @cached_property
    def table(self) -> ColorTable:
        """The colors."""
        if self.arranged.rgb:
            return color_table("gray")
        options = self.options
        symmetric = self.scaling.symmetric
        table = color_table(choose_cmap(options.cmap, options.style, symmetric=symmetric))
        return table.receding(palette(options.style)) if self.arranged.absent else table

    @cached_property
    def chosen(self) -> tuple[int, ...]:
        """All channels to draw, over all pages, in order."""
        return choose_channels(self.arranged, self.extents, self.options)

    @property
    def pages(self) -> int:
        """How many pages they take."""
        total = len(self.chosen)
        return -(-total // self.options.per_page) if self.kind.paged else 1

    @cached_property
    def channels(self) -> tuple[int, ...]:
        """Those on the page asked for.

        Raises:
            RenderError: There is no such page.
        """
        page, pages = self.options.page, self.pages
        if page >= pages:
            legal = "only page 0" if pages == 1 else f"0 to {pages - 1}"
            raise RenderError(f"page is {page}, but there are {pages}; legal: {legal}.")
        each = self.options.per_page if self.kind.paged else len(self.chosen)
        return self.chosen[page * each : (page + 1) * each]

    @cached_property
    def behind(self) -> NDArray[np.uint8] | None:
        """The image to lay the figure over, or None where that was not asked for.

        Raises:
            RenderError: The figure has no place on the image.
        """
        arranged = self.arranged
        if self.options.opacity == 0:
            return None
        if not self.kind.on_image:
            noun = "single value" if self.kind.name == "bars" else self.kind.noun
            fault = f"maps that lie over the image; shape {arranged.shape} holds {noun}s"
        elif arranged.part:
            fault = f"maps of the whole image; shape {arranged.shape} holds one a {arranged.part}"
        else:
            return self.image
        raise RenderError(
            f"overlay needs {fault}.", remedy="Draw it without overlay.", code="overlay-needs-maps"
        )

    def drawing(
        self,
        figure: Figure,
        channels: tuple[int, ...] | None = None,
        *,
        cmap: str = "",
        scale: Scaling | None = None,
        places: tuple[tuple[int, int, int, int], ...] = (),
    ) -> Drawing:
        """The finished page.

        Args:
            figure: As drawn.
            channels: Those on it; None is those of the page asked for.
            cmap: Name of the colormap used; "" where values did not become colors.
            scale: What the colors stand for; None is ``scaling``.
            places: (top, left, height, width) in pixels of each tile.
        """
        found = self.extents
        if cmap and scale is None:
            scale = self.scaling
        ends = scale.ends if scale else found.whole
        shown = self.channels if channels is None else channels
        return Drawing(
            figure=figure,
            channels=shown,
            page=self.options.page if self.kind.paged else 0,
            pages=self.pages if channels is None else 1,
            total=len(self.chosen if channels is None else shown),
            kind=self.kind.name,
            scale=scale.sentence if scale else "",
            vmin=ends[0] if ends else None,
            vmax=ends[1] if ends else None,
            tile_ranges=tuple((float(scale.low[c]), float(scale.high[c])) for c in shown)
            if scale
            else (),
            cmap=cmap,
            nan=int(found.nan.sum()),
            posinf=int(found.posinf.sum()),
            neginf=int(found.neginf.sum()),
            below=scale.below if scale else 0,
            above=scale.above if scale else 0,
            dead=tuple(found.dead.nonzero()[0].tolist()),
            axes=self.arranged.statement,
            notes=self.arranged.notes,
            options=self.options,
            places=places,
            size=self.size,
            on_image=self.kind.on_image and not self.arranged.part,
        )

    @contextmanager
    def in_a_sentence(self) -> Iterator[None]:
        """Raise RenderError where torch, numpy or matplotlib fails: none of their errors passes."""
        what = f"a tensor of shape {self.arranged.shape}"
        try:
            yield
        except MemoryError as error:
            raise RenderError(f"There is not enough memory to draw {what}.") from error
        except (RuntimeError, TypeError, ValueError, IndexError, ArithmeticError) as error:
            raise RenderError(f"Drawing {what} failed: {error_text(error)}") from error


def draw(
    source: Source,
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
    subject = Subject(source, options, facts or FigureFacts(), image, tuple(categories))
    with subject.in_a_sentence():
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
    source: Source,
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
    source: Source, options: GridOptions | None = None, *, facts: FigureFacts | None = None
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
    options = options or GridOptions()
    if not options.order.startswith("similarity"):
        # The order does not change the number, and reading it may need every value.
        options = options.replace(order="index")
    subject = Subject(source, options, facts or FigureFacts())
    if options.figure != "auto" and not subject.kind.paged:
        return 1
    subject.behind  # noqa: B018  # refused alike
    with subject.in_a_sentence():
        return subject.pages


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
                options, fewer = options.replace(**there), fewer.replace(**there)
                with suppress(RenderError):
                    return make(fewer), fewer, refusals[0]
    raise refusals[0]


def _channels_there(options: GridOptions, error: RenderError) -> dict[str, tuple[int, ...]]:
    """Those of the channels chosen that a layer has which lacks others; {} where there are none."""
    name = str(error.details.get("option", "channels"))
    if error.code != "no-such-channel" or getattr(options, name) is None:
        return {}
    last = int(str(error.details["last"]))
    there = tuple(c for c in parse_channels(getattr(options, name)) if c <= last)
    return {name: there} if there else {}
