"""The pieces that matplotlib draws: the figure, a mosaic shown pixel for pixel, small texts."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.transforms import IdentityTransform
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from hookviz.render._text import Label

if TYPE_CHECKING:
    from matplotlib.backend_bases import RendererBase


Ends = tuple[float, float]
"""The two ends of a range of values."""


class GridFigure(Figure):
    """A matplotlib Figure that a notebook shows as it is, without pyplot."""

    def _repr_png_(self) -> bytes:
        return png_of(self)


def figure_of(
    width: int, height: int, dpi: float, face: tuple[float, float, float, float]
) -> GridFigure:
    """An empty figure of exactly ``width`` by ``height`` pixels, with an Agg canvas."""
    # A thousandth of a pixel keeps the canvas from rounding 1200 down to 1199.
    inches = ((width + 1e-3) / dpi, (height + 1e-3) / dpi)
    figure = GridFigure(
        figsize=inches,
        dpi=dpi,
        facecolor=face,
        edgecolor="none",
        linewidth=0,
        layout="none",  # type: ignore[arg-type]  # legal, though matplotlib's types omit it
    )
    FigureCanvasAgg(figure)
    return figure


def pixels_of(figure: Figure) -> NDArray[np.uint8]:
    """(height, width, 4) uint8 of the figure as drawn at its own dpi."""
    canvas: Any = figure.canvas
    if not isinstance(canvas, FigureCanvasAgg):
        canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def png_of(
    figure: Figure, compress_level: int = 1, metadata: Mapping[str, str] | None = None
) -> bytes:
    """The figure as a PNG with these text keys and no others; opaque ones are stored as RGB."""
    rgba = pixels_of(figure)
    image = Image.fromarray(rgba)
    if to_rgba(figure.get_facecolor())[3] == 1.0:
        image = image.convert("RGB")
    stream = io.BytesIO()
    keys = PngInfo()
    for key, text in (metadata or {}).items():
        keys.add_itxt(key, text)
    image.save(stream, "PNG", compress_level=compress_level, pnginfo=keys)
    return stream.getvalue()


class Mosaic(AxesImage):
    """An image whose pixels are the screen's: copied where they fit one to one, else resampled.

    Args:
        axes: Where it stands.
        rgba: (height, width, 4) uint8, first row on top.
    """

    def __init__(self, axes: Axes, rgba: NDArray[np.uint8], **settings: Any) -> None:
        super().__init__(axes, interpolation="nearest", origin="upper", resample=False, **settings)
        # Not by set_data, which would check and copy all of it.
        self._A = self._given = rgba
        self._upturned = np.ascontiguousarray(rgba[::-1])

    def make_image(
        self, renderer: Any, magnification: float = 1.0, unsampled: bool = False
    ) -> tuple[Any, float, float, Any]:
        """See matplotlib; copying saves its resampling, which costs more than all the rest."""
        box = self.get_window_extent()
        rows, columns = self._upturned.shape[:2]
        fits = (
            self._A is self._given
            and isinstance(renderer, RendererAgg)
            and magnification == 1.0
            and not unsampled
            and abs(box.width - columns) < 0.5
            and abs(box.height - rows) < 0.5
        )
        if not fits:
            return super().make_image(renderer, magnification, unsampled)
        return self._upturned, round(box.x0), round(box.y0), IdentityTransform()


class PlainAxes(Axes):
    """Axes made without the grid lines that a figure never has, which halves their cost."""

    _ready = False

    def grid(self, *args: Any, **settings: Any) -> None:
        """See matplotlib; while the axes are being made, nothing happens."""
        if self._ready:
            super().grid(*args, **settings)


def add_mosaic(
    figure: Figure, rgba: NDArray[np.uint8], left: int, top: int, limits: Ends | None = None
) -> Axes:
    """An Axes that is exactly as large as the image, placed in pixels from the top left.

    Args:
        figure: Where it goes.
        rgba: (height, width, 4) uint8.
        left: Pixels from the figure's left edge.
        top: Pixels from its upper edge.
        limits: The y axis' (low, high) in data units; None is rows of pixels from the top.
    """
    height, width = rgba.shape[:2]
    low, high = (height, 0) if limits is None else limits
    across = width if limits is None else 1
    axes = bare_axes(figure, (left, top, width, height), (0, across), (low, high))
    axes.add_image(Mosaic(axes, rgba, extent=(0.0, across, low, high)))
    return axes


def bare_axes(figure: Figure, box: tuple[int, int, int, int], xlim: Ends, ylim: Ends) -> Axes:
    """Axes without frame, ticks or grid.

    Args:
        figure: Where they go.
        box: Left edge, upper edge, width and height in pixels, from the figure's top left.
        xlim: Values at the left and right edge.
        ylim: Values at the lower and upper edge.
    """
    left, top, width, height = box
    # Figure fractions are of the true size, which is a thousandth of a pixel larger.
    across, down = figure.bbox.width, figure.bbox.height
    bottom = np.floor(down) - top - height
    axes = PlainAxes(figure, (left / across, bottom / down, width / across, height / down))
    axes._ready = True  # noqa: SLF001  # its own flag
    axes.set_axis_off()
    if ylim[0] == ylim[1]:
        ylim = (ylim[0] - 0.5, ylim[1] + 0.5)
    axes.set(xlim=xlim, ylim=ylim, autoscale_on=False)
    figure.add_axes(axes)
    return axes


def add_block(figure: Figure, box: tuple[int, int, int, int], color: Sequence[int]) -> None:
    """A rectangle of one color; an Axes for it would take 6 ms.

    Args:
        figure: Where it goes.
        box: Left edge, upper edge, width and height in pixels, from the figure's top left.
        color: Red, green and blue, 0 to 255.
    """
    left, top, width, height = box
    across, down = figure.bbox.width, figure.bbox.height
    corner = (left / across, (np.floor(down) - top - height) / down)
    block = Rectangle(
        corner, width / across, height / down, transform=figure.transFigure,
        facecolor=[int(part) / 255 for part in color], linewidth=0, antialiased=False,
    )  # fmt: skip
    figure.add_artist(block)


def plain_units(ends: Ends) -> float:
    """1, or what values must be divided by so that matplotlib's axes can hold them."""
    size = max(abs(ends[0]), abs(ends[1]))
    return 1.0 if 1e-200 < size < 1e200 or size == 0 else size


class Captions(Artist):
    """All small texts of a page, placed in pixels from its top left corner.

    Bitmaps on a screen or in a PNG, real text in PDF and SVG. ``findobj`` finds them as Text
    artists; once these have been handed out they are what is drawn, so that they can be changed.

    Args:
        page: The figure, which they are then added to.
        labels: Texts with their places.
    """

    def __init__(self, page: Figure, labels: list[Label]) -> None:
        super().__init__()
        self._page, self._labels = page, labels
        self._texts: list[Text] | None = None
        self.set_zorder(5)

    def get_children(self) -> list[Artist]:
        """The same texts as matplotlib's own artists."""
        if self._texts is None:
            self._texts = [self._text(label) for label in self._labels]
        return list(self._texts)

    def _text(self, label: Label) -> Text:
        # As it was laid out: SVG and PDF are drawn at another dpi.
        width, height = self._page.get_size_inches() * label.face.dpi
        text = Text(
            label.x / width,
            (np.floor(height) - label.y) / height,
            label.text,
            color=label.color,
            fontproperties=label.face.properties,
            horizontalalignment="right" if label.right else "left",
            verticalalignment="baseline",
            parse_math=False,
            usetex=False,
        )
        text.set_figure(self._page)
        text.set_transform(self._page.transFigure)
        return text

    def draw(self, renderer: RendererBase) -> None:
        """Draw every label."""
        if not self.get_visible():
            return
        if self._texts is None and isinstance(renderer, RendererAgg):
            context = renderer.new_gc()
            for label in self._labels:
                self._ink(renderer, context, label)
        else:
            for text in self._texts or map(self._text, self._labels):
                text.draw(renderer)
        self.stale = False

    def _ink(self, renderer: RendererAgg, context: Any, label: Label) -> None:
        face, zoom = label.face, self._page.dpi / label.face.dpi
        if zoom != 1.0:
            face = replace(face, dpi=self._page.dpi)
        left = label.x * zoom - (face.width(label.text) if label.right else 0)
        cover, start, above = face.inked(label.text)
        ink = np.empty((*cover.shape, 4), np.uint8)
        ink[..., :3] = [round(255 * c) for c in label.color[:3]]
        ink[..., 3] = cover[::-1]
        bottom = int(renderer.height) - round(label.y * zoom) - (len(cover) - above)
        renderer.draw_image(context, round(left) + start, bottom, ink)
