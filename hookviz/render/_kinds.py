"""Figure kinds: the ways in which a record becomes a figure.

A kind is one object: what it is called, what its tiles and channels are called, whether it
takes pages and lies over the image, and how it is drawn. Which kind a record gets follows from
what the record is and how its axes are read (`arrange`); ``GridOptions.figure`` asks for another
one by name, so that every figure can be shown, exported and reproduced alike.

To add a kind, touch at most three files: a module of its own with a function that takes a
`Subject` and ends in ``subject.drawing(...)``, and with ``register(FigureKind(...))`` below it;
an import of that module in ``_draw.py``; and, where it has options of its own, fields of
`GridOptions`. Paging, export, `reproduce` and the app need no change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hookviz._text import shape_text
from hookviz.errors import RenderError, did_you_mean
from hookviz.render._artists import pixels_of, png_of
from hookviz.render._options import GridOptions
from hookviz.render._sheet import Header

if TYPE_CHECKING:
    from hookviz.activation import Activation
    from hookviz.render._arrange import Arranged, Source
    from hookviz.render._measure import Extents
    from hookviz.render._scaling import Scaling

    Arrange = Callable[[Activation, GridOptions], Arranged]


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
    """

    model: str = ""
    weights: str = ""
    trained: bool = True
    image: str = ""
    input_size: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class Drawing:
    """One page, drawn.

    Attributes:
        figure: A matplotlib Figure with an Agg canvas, registered nowhere.
        channels: Index of each channel drawn, in the order drawn.
        page: Which page, from 0.
        pages: How many there are.
        total: Channels chosen, over all pages.
        kind: Name of the figure kind: "maps", "tokens", "volume", "signal", "attention", "bars",
            "statistics" or "filters".
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
    places: tuple[tuple[int, int, int, int], ...] = field(default=())

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
class FigureKind:
    """One way of drawing.

    Attributes:
        name: Of the kind, for example "maps".
        draw: Draws one page of a subject.
        noun: What one tile is called, for example "map".
        channel_noun: What its index counts, for example "channel".
        value_noun: What one value is called, for example "activation".
        paged: Whether many tiles are spread over pages; else everything stands on one.
        on_image: Whether its tiles may be laid over the image.
        by_name: Whether ``GridOptions.figure`` may ask for it, whatever the record is.
        record: The kind of records that are always drawn so, for example "weight"; "" for none.
        arrange: How such a record is turned to (C, H, W).
    """

    name: str
    draw: Callable[[Subject], Drawing]
    noun: str = "map"
    channel_noun: str = "channel"
    value_noun: str = "activation"
    paged: bool = True
    on_image: bool = False
    by_name: bool = False
    record: str = ""
    arrange: Arrange | None = None


_KINDS: dict[str, FigureKind] = {}


def register(kind: FigureKind) -> None:
    """Make a kind known under its name."""
    _KINDS[kind.name] = kind


def figure_kinds() -> tuple[FigureKind, ...]:
    """All kinds, in the order in which they were registered."""
    return tuple(_KINDS.values())


def figure_kind(name: str) -> FigureKind:
    """The kind of that name."""
    return _KINDS[name]


def kind_of_record(record: str) -> FigureKind | None:
    """The kind that draws records of that kind whatever their shape, or None."""
    return next((kind for kind in _KINDS.values() if record and kind.record == record), None)


@dataclass(frozen=True, eq=False)
class Subject:
    """What a kind is asked to draw.

    Attributes:
        source: The record, or a bare tensor.
        arranged: One sample of it, turned to (C, H, W).
        options: How.
        facts: What the figure says about the source.
        image: (H, W, 3) uint8, what the network saw; None where there is none.
        categories: Class names, for vectors of that length.
    """

    source: Source
    arranged: Arranged
    options: GridOptions
    facts: FigureFacts
    image: NDArray[np.uint8] | None = None
    categories: tuple[str, ...] = ()

    @property
    def kind(self) -> FigureKind:
        """The kind that draws it.

        Raises:
            RenderError: ``options.figure`` names none that can be asked for.
        """
        name = self.options.figure
        if name == "auto":
            return figure_kind(self.arranged.kind)
        kind = _KINDS.get(name)
        if kind is None or not kind.by_name:
            legal = ("auto", *(k.name for k in _KINDS.values() if k.by_name))
            raise RenderError(
                f"figure is {name!r}; legal are {', '.join(map(repr, legal))}.",
                remedy=did_you_mean(name, legal) or None,
            )
        return kind

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

    def header(
        self, sentences: Iterable[str], legend: tuple[tuple[tuple[int, int, int], str], ...] = ()
    ) -> Header:
        """The title line and the sentences under it."""
        arranged, facts = self.arranged, self.facts
        label = getattr(self.source, "label", "tensor")
        parts = (
            getattr(self.source, "module_type", ""),
            shape_text(arranged.shape),
            arranged.dtype,
        )
        return Header(
            title=self.options.title if self.options.title is not None else label,
            details="  ·  ".join(part for part in parts if part),
            sentences=tuple(s for s in sentences if s),
            source="  ·  ".join(part for part in (facts.model, facts.image) if part),
            badge="" if facts.trained else "UNTRAINED",
            legend=legend,
        )

    def drawing(
        self,
        figure: Figure,
        found: Extents,
        channels: tuple[int, ...],
        *,
        cmap: str,
        scale: Scaling | None = None,
        pages: int = 1,
        total: int | None = None,
        places: tuple[tuple[int, int, int, int], ...] = (),
    ) -> Drawing:
        """The finished page.

        Args:
            figure: As drawn.
            found: The extents of all channels.
            channels: Those on this page.
            cmap: Name of the colormap used.
            scale: How values became colors; None where none did.
            pages: How many pages there are.
            total: Channels chosen over all pages; None is those on this page.
            places: (top, left, height, width) in pixels of each tile.
        """
        arranged, ends = self.arranged, found.whole if scale is None else scale.ends
        return Drawing(
            figure=figure,
            channels=channels,
            page=self.options.page if self.kind.paged else 0,
            pages=pages,
            total=len(channels) if total is None else total,
            kind=self.kind.name,
            scale="" if scale is None else scale.sentence,
            vmin=None if ends is None else ends[0],
            vmax=None if ends is None else ends[1],
            tile_ranges=()
            if scale is None
            else tuple((float(scale.low[c]), float(scale.high[c])) for c in channels),
            cmap=cmap,
            nan=int(found.nan.sum()),
            posinf=int(found.posinf.sum()),
            neginf=int(found.neginf.sum()),
            below=0 if scale is None else scale.below,
            above=0 if scale is None else scale.above,
            dead=tuple(int(c) for c in found.dead.nonzero()[0]),
            axes=arranged.statement,
            notes=arranged.notes,
            options=self.options,
            places=places,
        )
