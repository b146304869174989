"""The static picture of a saved notebook keeps the colors of what it shows."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import torch
from PIL import Image

from hookviz.render import feature_grid
from hookviz.widget._still import still_picture


def grid(cmap: str, seed: int) -> bytes:
    """A page of maps whose values crowd about their middle, as those of trained layers do."""
    values = torch.randn(1, 64, 40, 40, generator=torch.Generator().manual_seed(seed)) ** 3
    file = BytesIO()
    figure = feature_grid(values, cmap=cmap, width=900)
    figure.savefig(file, format="png")
    return file.getvalue()


def test_a_color_bar_is_not_banded_beside_grids_of_other_colors() -> None:
    pngs = [grid("viridis", 1), grid("RdBu_r", 2), grid("magma", 3)]
    still = np.asarray(Image.open(BytesIO(still_picture(pngs))).convert("RGB")).astype(int)
    first = np.asarray(Image.open(BytesIO(pngs[0])).convert("RGB")).astype(int)
    # The bar: the column right of the maps that holds most colors.
    columns = range(first.shape[1] * 4 // 5, first.shape[1])
    bar = max(columns, key=lambda x: len(np.unique(first[:, x], axis=0)))
    assert len(np.unique(first[:, bar], axis=0)) > 150
    assert np.abs(still[: len(first), bar] - first[:, bar]).max() <= 8
