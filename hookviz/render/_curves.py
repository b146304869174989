"""Numbers over the steps of a training, as curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from hookviz.errors import RenderError
from hookviz.render._artists import GridFigure, figure_of
from hookviz.render._palette import Palette, palette
from hookviz.render._text import value

_NAMED = 10  # so many curves have each a color and a name; more are colored by their order
_DPI = 120.0
_BESIDE = 460  # pixels from which there is room for names beside the axes
_DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True, eq=False)
class Curve:
    """One line.

    Attributes:
        label: Its name.
        x: (S,) where on the abscissa, ascending.
        y: (S,) the values; NaN and Inf leave a gap.
    """

    label: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]


def draw_curves(
    curves: Sequence[Curve],
    *,
    title: str,
    unit: str = "",
    x_label: str = "step",
    marks: Sequence[tuple[float, str]] = (),
    share: bool = False,
    style: str | None = None,
    width: int = 900,
) -> GridFigure:
    """Curves in one pair of axes.

    Up to ten curves have a color and a name each. More are colored from dark to light in their
    order, and the first and the last are named. The names stand beside the axes, on a narrow page
    below them.

    Args:
        curves: At least one.
        title: What is shown.
        unit: What the ordinate counts.
        x_label: What the abscissa counts.
        marks: Places on the abscissa that are marked, with a word each.
        share: The values are shares: the ordinate goes from 0 to 1.
        style: "light", "dark", or None for matplotlib's rcParams.
        width: Pixels, from 300.

    Returns:
        A figure that pyplot does not know.

    Raises:
        RenderError: There is no curve, or the width is too small.

    Examples:
        >>> steps = np.arange(3.0)
        >>> figure = draw_curves([Curve("relu", steps, steps / 2)], title="zeros", width=600)
        >>> figure.axes[0].lines[0].get_ydata().tolist()
        [0.0, 0.5, 1.0]
    """
    if not curves:
        raise RenderError("There is no curve to draw.")
    if width < 300:
        raise RenderError(f"width is {width}; curves need 300 pixels at least.")
    page = palette(style)
    named = len(curves) <= _NAMED
    height = max(240, min(round(width * 0.42), 400))
    beside = min(180, round(width * 0.3)) if width >= _BESIDE else 20  # pixels for the names
    labels = [one.label for at, one in enumerate(curves) if named or at in (0, len(curves) - 1)]
    columns, below = 1, 0
    if width < _BESIDE:
        columns = max(1, min(len(labels), (width - 20) // (45 + 7 * max(map(len, labels)))))
        below = 8 + 19 * (-(-len(labels) // columns) + (not named))
        height += below
    figure = figure_of(width, height, _DPI, (*page.face[:3], 1.0))
    points = 72 / _DPI
    box = (70 / width, (50 + below) / height, 1 - (70 + beside) / width, 1 - (90 + below) / height)
    axes = figure.add_axes(box)
    axes.set_facecolor(page.face)
    table = mpl.colormaps["tab10" if named else "viridis"]
    last = max(1, len(curves) - 1)
    for at, curve in enumerate(curves):
        color = table(at) if named else table(0.95 * at / last)
        y = np.where(np.isfinite(curve.y), curve.y, np.nan)
        few = {"marker": "o", "markersize": 2.5} if np.isfinite(y).sum() < 30 else {}
        label = curve.label if named or at in (0, last) else None
        dashes = _DASHES[at % len(_DASHES)] if named else "-"  # told apart by more than color
        axes.plot(curve.x, y, dashes, color=color, linewidth=1.1, label=label, **few)  # type: ignore[arg-type]  # keywords of a line
    _dress(axes, page)
    if share:
        axes.set_ylim(-0.02, 1.02)
    left, right = axes.get_xlim()
    for at, (x, word) in enumerate(marks):
        late = x > (left + right) / 2  # its word would leave the axes
        axes.axvline(x, color=page.warn, linewidth=0.8, linestyle="--")
        axes.annotate(
            word, (x, 1), xycoords=("data", "axes fraction"), textcoords="offset points",
            xytext=(-2 if late else 2, -8 - 9 * (at % 3)), ha="right" if late else "left",
            fontsize=7, color=page.warn, family=page.family,
        )  # fmt: skip
    axes.set_xlabel(x_label, fontsize=8, color=page.muted, family=page.family)
    if 6.5 * len(unit) < height - 50:  # else the title alone has room for it
        axes.set_ylabel(unit, fontsize=8, color=page.muted, family=page.family)
    figure.text(
        14 / width, 1 - 14 / height, title, fontsize=10, color=page.ink, va="top",
        family=page.family, parse_math=False,
    )  # fmt: skip
    if not named:
        title = f"{len(curves)}, by order"
    legend = axes.legend(
        loc="lower left" if below else "upper left", frameon=False, ncols=columns,
        bbox_to_anchor=(14 / width, 8 / height) if below else (1.01, 1.0),
        bbox_transform=figure.transFigure if below else axes.transAxes,
        fontsize=7, labelcolor=page.ink, title=None if named else title, handlelength=1.8,
        borderaxespad=0, prop={"family": page.family, "size": 7},
    )  # fmt: skip
    legend.get_title().set(color=page.muted, fontsize=7, family=page.family)
    room = (width - 60 if below else beside - 30) * points
    for text in legend.get_texts():
        text.set_text(_short(text.get_text(), int(room / 4)))
        text.set_parse_math(False)
    return figure


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"…{text[1 - most :]}"


def _dress(axes: Axes, page: Palette) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda number, _: value(number)))
    axes.tick_params(colors=page.muted, labelsize=7, length=3, labelfontfamily=page.family[0])
    axes.grid(visible=True, color=page.faint, linewidth=0.5)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(page.faint)
