"""A survey's channels as a figure: the strongest crops with their values, and a histogram."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from hookviz.errors import SurveyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hookviz.surveys._reader import LayerStatistics, Survey

_CELL = 1.0  # inches, of a crop


def draw_channels(survey: Survey, layer: str, channels: list[int], count: int) -> Figure:
    """See `Survey.figure`."""
    if count < 1 or not channels:
        raise SurveyError("A figure shows at least one channel and one crop.")
    statistics = survey.statistics(layer)
    rows = [survey.top(layer, channel, count) for channel in channels]
    wide = _CELL * count + 2.6
    figure = Figure(figsize=(wide, (_CELL + 0.32) * len(rows) + 0.5), dpi=120)
    grid = figure.add_gridspec(
        len(rows), count + 1, width_ratios=[1.0] * count + [2.0], left=0.6 / wide, right=0.99,
        bottom=0.3 / figure.get_figheight(), top=1 - 0.5 / figure.get_figheight(),
        wspace=0.08, hspace=0.34,
    )  # fmt: skip
    facts = survey.facts
    figure.suptitle(
        f"{facts['model']} · {layer} · strongest of {statistics.images} images, with the largest "
        "value in each",
        fontsize=8, x=0.01, y=0.995, ha="left",
    )  # fmt: skip
    for row, (channel, hits) in enumerate(zip(channels, rows, strict=True)):
        for column in range(count):
            axes = figure.add_subplot(grid[row, column])
            axes.set_axis_off()
            if column < len(hits):
                hit = hits[column]
                axes.set_title(f"{hit.value:.4g}", fontsize=6, pad=2)
                if (crop := hit.crop) is not None:
                    axes.imshow(np.asarray(crop))
                else:
                    axes.text(0.5, 0.5, hit.name, fontsize=5, ha="center", wrap=True)
            if column == 0:
                axes.text(
                    -0.12, 0.5, str(channel), transform=axes.transAxes, fontsize=8, ha="right",
                    va="center",
                )  # fmt: skip
        _histogram(figure.add_subplot(grid[row, count]), statistics, channel)
    return figure


def _histogram(axes: Axes, statistics: LayerStatistics, channel: int) -> None:
    """Values below and above zero as counts in 60 equal steps, and the share of zeros as text."""
    low, high = statistics.min[channel], statistics.max[channel]
    axes.tick_params(labelsize=5, length=2, pad=1)
    axes.set_yticks([])
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    zeros = statistics.zero_share[channel]
    axes.set_title(f"mean {statistics.mean[channel]:.3g}, zeros {zeros:.1%}", fontsize=6, pad=2)
    counts, steps = statistics.equal_bins(channel)
    if not len(counts):
        axes.set_xticks([] if not np.isfinite(low) else [low])
        return
    axes.stairs(counts, steps, fill=True, color="#3b6ea8")
    axes.set_xlim(low, high)
