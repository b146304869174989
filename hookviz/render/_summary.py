"""A whole layer as one tile: its mean, its maximum, its principal components.

In: (C, H, W) maps on any device. Out: small arrays with what their colours mean. Must not know:
figures, where the tiles stand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookviz.render._colours import ColourTable, packed
from hookviz.render._figure import coloured
from hookviz.render._layout import Arranged
from hookviz.render._levels import to_levels
from hookviz.render._measure import Extents, extents, widened
from hookviz.render._wording import share, value

__all__ = ["SideTile", "principal_components", "summary_tile"]


@dataclass(frozen=True, eq=False)
class SideTile:
    """A tile that stands beside the grid.

    Attributes:
        caption: What it is and what its colours mean; lines.
        colours: (h, w) packed RGBA.
        smooth: It is a photo, to be resized smoothly.
    """

    caption: tuple[str, ...]
    colours: NDArray[np.uint32]
    smooth: bool = False


def summary_tile(
    name: str,
    arranged: Arranged,
    found: Extents,
    table: ColourTable,
    size: tuple[int, int],
    *,
    symmetric: bool,
) -> SideTile:
    """One summary over all channels of the sample, on a scale of its own.

    Args:
        name: "mean", "max" or "pca".
        arranged: The layer.
        found: Its extents.
        table: Colours.
        size: (height, width) that the tile will have: larger maps are shrunk.
        symmetric: The layer's own scale is symmetric about zero, so this one is too.
    """
    maps = arranged.maps
    if name == "pca":
        parts, explained = principal_components(maps, found)
        low, high = parts.flatten(1).amin(1), parts.flatten(1).amax(1)
        # min and max are shares of the layer's largest magnitude, a few numbers.
        three = to_levels(
            parts, low.cpu().numpy().astype(float), high.cpu().numpy().astype(float),
            flagged=False, size=size,
        ).levels  # fmt: skip
        rgb = np.moveaxis(np.where((high > low).cpu().numpy()[:, None, None], three, 0), 0, -1)
        percent = share(round(1e6 * explained), 1_000_000)
        return SideTile(
            ("principal components", f"1–3 as RGB, {percent} of variance"),
            packed(np.ascontiguousarray(rgb, np.uint8)),
        )
    whole = _mean(maps, found) if name == "mean" else _max(maps)
    ends = extents(whole[None])
    low_, high_ = ends.whole or (0.0, 0.0)
    if symmetric:
        largest = max(abs(low_), abs(high_))
        low_, high_ = -largest, largest
    levels = to_levels(
        whole[None], np.array([low_]), np.array([high_]), flagged=not ends.all_finite, size=size
    )
    return SideTile(
        (f"{name} of {maps.shape[0]} {arranged.noun}s", f"{value(low_)} … {value(high_)}"),
        coloured(levels, table)[0],
    )


def _finite(maps: Tensor) -> tuple[Tensor, Tensor]:
    wide = widened(maps)
    finite = wide.isfinite()
    return torch.where(finite, wide, 0.0), finite


def _magnitude(found: Extents) -> float:
    whole = found.whole or (0.0, 0.0)
    return max(abs(whole[0]), abs(whole[1])) or 1.0


def _mean(maps: Tensor, found: Extents) -> Tensor:
    """(H, W) mean of the finite values; NaN where there is none."""
    values, finite = _finite(maps)
    size = _magnitude(found)  # so that no sum overflows
    return (values / size).sum(0) / finite.sum(0) * size


def _max(maps: Tensor) -> Tensor:
    """(H, W) largest finite value; NaN where there is none."""
    wide = widened(maps)
    finite = wide.isfinite()
    top = torch.where(finite, wide, -torch.inf).amax(0)
    return torch.where(finite.any(0), top, torch.nan)


def principal_components(maps: Tensor, found: Extents) -> tuple[Tensor, float]:
    """The three directions in channel space along which the places differ most.

    Args:
        maps: (C, H, W).
        found: Their extents.

    Returns:
        (3, H, W) scores of each place, on the maps' device, in units of the layer's largest
        magnitude; zero for components that do not exist. The sign of each is the one whose
        scores have a positive skew, so that it does not depend on the solver. And the share of
        the variance that they explain together, 0 to 1.
    """
    values, _ = _finite(maps)
    flat = (values / _magnitude(found)).flatten(1)
    flat = flat - flat.mean(1, keepdim=True)
    channels, places = flat.shape
    small = flat @ flat.T if channels <= places else flat.T @ flat
    powers, vectors = torch.linalg.eigh(small)
    kept = min(3, powers.shape[0])
    vectors = vectors[:, -kept:].flip(1)
    powers = powers.clamp(min=0)
    if channels <= places:
        scores = vectors.T @ flat
    else:
        scores = vectors.T * powers[-kept:].flip(0).sqrt()[:, None]
    total = powers.sum()
    # Components that are rounding alone would show noise stretched to full colour.
    real = powers[-kept:].flip(0) > total * 1e-12
    scores = torch.where(real[:, None], scores, 0.0)
    sign = scores.pow(3).sum(1).sign()
    scores = scores * torch.where(sign == 0, 1.0, sign)[:, None]
    if kept < 3:
        scores = torch.cat([scores, scores.new_zeros(3 - kept, places)])
    explained = powers[-kept:].sum() / total.clamp(min=1e-300)
    return scores.reshape(3, *maps.shape[1:]), float(explained)
