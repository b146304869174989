"""What the values of a layer are, channel by channel, counted where the tensor is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.float64]

# Dtypes on which torch compares and reduces; the others are widened first.
_DIRECT = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
)  # fmt: skip
_CHUNK = 4_000_000  # values widened to float64 at a time


@dataclass(frozen=True, eq=False)
class Extents:
    """The finite range of each channel, and what is not finite.

    Attributes:
        low: (C,) smallest finite value; NaN where there is none.
        high: (C,) largest finite value; NaN where there is none.
        nan: (C,) how many values are NaN.
        posinf: (C,) how many are +Inf.
        neginf: (C,) how many are −Inf.
        size: Values in each channel.
    """

    low: Numbers
    high: Numbers
    nan: NDArray[np.int64]
    posinf: NDArray[np.int64]
    neginf: NDArray[np.int64]
    size: int

    @property
    def all_finite(self) -> bool:
        """Whether every value is finite."""
        return not (self.nan.any() or self.posinf.any() or self.neginf.any())

    @property
    def dead(self) -> NDArray[np.bool_]:
        """(C,) channels that are zero everywhere."""
        bad = self.nan + self.posinf + self.neginf
        dead: NDArray[np.bool_] = (self.low == 0) & (self.high == 0) & (bad == 0)
        return dead

    @property
    def whole(self) -> tuple[float, float] | None:
        """The finite range over all channels, or None where no value is finite."""
        if np.isnan(self.low).all():
            return None
        return float(np.nanmin(self.low)), float(np.nanmax(self.high))


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean, variance and share of zeros of each channel, over its finite values.

    Attributes:
        mean: (C,) in the activation's units; NaN where no value is finite.
        variance: (C,) of the population (divided by n), in squared units.
        zeros: (C,) share of values that are exactly zero, 0 to 1.
    """

    mean: Numbers
    variance: Numbers
    zeros: Numbers


def fetch(tensor: Tensor) -> Numbers:
    """A few numbers, brought from the tensor's device as float64."""
    if tensor.dtype not in _DIRECT or tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    return tensor.cpu().numpy().astype(np.float64)


def widened(tensor: Tensor) -> Tensor:
    """In float64 where the device has it, else float32."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def comparable(tensor: Tensor) -> Tensor:
    """In a dtype that torch can compare and reduce, without loss."""
    if tensor.dtype in _DIRECT:
        return tensor
    if tensor.dtype in (torch.bool, torch.uint16) or tensor.is_floating_point():
        return tensor.float()
    return widened(tensor)


def extents(maps: Tensor, apart: Tensor | None = None) -> Extents:
    """The finite range of each channel, and counts of NaN, +Inf and −Inf.

    Args:
        maps: (C, H, W).
        apart: (C, K) further values of the same channels.
    """
    found = _extents(comparable(maps).flatten(1) if maps.is_contiguous() else comparable(maps))
    return found if apart is None else joined(found, _extents(comparable(apart)))


def _extents(values: Tensor) -> Extents:
    axes = tuple(range(1, values.dim()))
    low, high = values.amin(axes), values.amax(axes)
    ends = fetch(torch.stack((low, high)))
    channels, size = values.shape[0], values[0].numel()
    none = np.zeros(channels, np.int64)
    if np.isfinite(ends).all():
        return Extents(ends[0], ends[1], none, none, none, size)
    finite = values.isfinite()
    low = torch.where(finite, values, torch.inf).amin(axes)
    high = torch.where(finite, values, -torch.inf).amax(axes)
    ends = fetch(torch.stack((low, high)))
    ends[:, ~np.isfinite(ends).all(0)] = np.nan
    bad = (values.isnan(), values == torch.inf, values == -torch.inf)
    counts = torch.stack([b.sum(axes) for b in bad]).cpu().numpy()
    return Extents(ends[0], ends[1], counts[0], counts[1], counts[2], size)


def joined(one: Extents, other: Extents) -> Extents:
    """The extents of both together, channel by channel."""
    return Extents(
        np.fmin(one.low, other.low),
        np.fmax(one.high, other.high),
        one.nan + other.nan,
        one.posinf + other.posinf,
        one.neginf + other.neginf,
        one.size + other.size,
    )


def _normal(maps: Tensor, found: Extents) -> tuple[Tensor, Tensor, Numbers]:
    """Each channel divided by its largest magnitude, so that no sum overflows.

    Returns:
        (C, n) float64 with zero for what is not finite; which are finite; the (C,) magnitudes.
    """
    size = np.fmax(np.abs(found.low), np.abs(found.high))
    size = np.where(np.isfinite(size) & (size > 0), size, 1.0)
    wide = widened(maps).flatten(1)
    finite = wide.isfinite()
    wide = torch.where(finite, wide, 0.0)
    return wide / widened(torch.from_numpy(size)).to(maps.device)[:, None], finite, size


def moments(maps: Tensor, found: Extents) -> Moments:
    """Mean, variance and share of zeros of each channel of (C, H, W) maps."""
    step = max(1, _CHUNK // max(1, maps[0].numel()))
    parts = [
        _moments(maps[at : at + step], _part(found, at, step))
        for at in range(0, maps.shape[0], step)
    ]
    return Moments(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _moments(maps: Tensor, found: Extents) -> tuple[Numbers, Numbers, Numbers]:
    values, finite, size = _normal(maps, found)
    count = finite.sum(1)
    mean = values.sum(1) / count
    spread = torch.where(finite, values - mean[:, None], 0.0).square().sum(1) / count
    zeros = ((values == 0) & finite & (comparable(maps).flatten(1) == 0)).sum(1).to(mean) / count
    got = fetch(torch.stack((mean, spread, zeros)))
    with np.errstate(over="ignore", under="ignore"):
        return got[0] * size, got[1] * size * size, got[2]


def _part(found: Extents, at: int, step: int) -> Extents:
    cut = slice(at, at + step)
    return Extents(
        found.low[cut], found.high[cut], found.nan[cut], found.posinf[cut], found.neginf[cut],
        found.size,
    )  # fmt: skip


def correlation(maps: Tensor, found: Extents, reference: int) -> Numbers:
    """(C,) Pearson correlation of each channel with one of them, −1 to 1.

    What is not finite counts as zero; a constant channel has correlation 0, with itself 1.
    """
    step = max(1, _CHUNK // max(1, maps[0].numel()))

    def centred(at: int, count: int) -> Tensor:
        values = _normal(maps[at : at + count], _part(found, at, count))[0]
        values = values - values.mean(1, keepdim=True)
        length = values.norm(dim=1, keepdim=True)
        return torch.where(length > 0, values / length, 0.0)

    target = centred(reference, 1)[0]
    rows = [centred(at, step) @ target for at in range(0, maps.shape[0], step)]
    result = fetch(torch.cat(rows)).clip(-1.0, 1.0)
    result[reference] = 1.0
    return result


def percentiles(
    maps: Tensor, shares: Sequence[float], *, magnitude: bool = False
) -> tuple[float, ...] | None:
    """Percentiles of all finite values, by nearest rank; None where none is finite.

    Args:
        maps: Of any shape and real dtype.
        shares: 0 to 100.
        magnitude: Of the absolute values.
    """
    values = comparable(maps).detach().flatten()
    if values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    if values.is_floating_point():
        if magnitude:
            values = values.abs()
        finite = values.isfinite()
        values = values if finite.all() else values[finite]
    elif magnitude:
        values = widened(values).abs()  # int8 has no 128
    if values.numel() == 0:
        return None
    last = values.numel() - 1
    ranks = [round(share / 100.0 * last) for share in shares]
    if _in_main_memory(values):  # NumPy takes 3 ms for 3.2 million values, torch 15 to 29
        ends = np.partition(values.numpy(), ranks)[ranks].astype(np.float64)
    elif values.is_cuda and torch.are_deterministic_algorithms_enabled():
        ends = fetch(values.sort().values[ranks])  # kthvalue is refused there
    else:
        ends = fetch(torch.stack([values.kthvalue(rank + 1).values for rank in ranks]))
    return tuple(map(float, ends))


def _in_main_memory(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def clipped(maps: Tensor, low: float, high: float) -> tuple[int, int]:
    """How many finite values lie below ``low`` and above ``high``."""
    values = comparable(maps)
    if not values.is_floating_point():
        values = widened(values)  # else torch compares with the ends in its default dtype
    below, above = values < low, values > high
    if values.is_floating_point():
        below, above = below & (values > -torch.inf), above & (values < torch.inf)
    counts = torch.stack((below.sum(), above.sum())).cpu().numpy()
    return int(counts[0]), int(counts[1])


def histogram(maps: Tensor, low: float, high: float, bins: int) -> NDArray[np.int64]:
    """(bins,) how many finite values fall into equal parts of ``low`` to ``high``."""
    counts = np.zeros(bins, np.int64)
    step = max(1, _CHUNK // max(1, maps[0].numel()))
    half_low, half_range = low / 2, high / 2 - low / 2
    for at in range(0, maps.shape[0], step):
        values = widened(maps[at : at + step]).flatten()
        values = values[values.isfinite()]
        if half_range == 0:
            counts[bins // 2] += values.numel()
            continue
        part = ((values / 2 - half_low) / half_range * bins).long().clamp(0, bins - 1)
        counts += torch.bincount(part, minlength=bins).cpu().numpy()
    return counts


def _finite(maps: Tensor) -> tuple[Tensor, Tensor]:
    wide = widened(maps)
    finite = wide.isfinite()
    return torch.where(finite, wide, 0.0), finite


def _magnitude(found: Extents) -> float:
    whole = found.whole or (0.0, 0.0)
    return max(abs(whole[0]), abs(whole[1])) or 1.0


def mean_map(maps: Tensor, found: Extents) -> Tensor:
    """(H, W) mean of the finite values; NaN where there is none."""
    values, finite = _finite(maps)
    size = _magnitude(found)  # so that no sum overflows
    return (values / size).sum(0) / finite.sum(0) * size


def max_map(maps: Tensor) -> Tensor:
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
    # Components that are rounding alone would show noise stretched to full color.
    real = powers[-kept:].flip(0) > total * 1e-12
    scores = torch.where(real[:, None], scores, 0.0)
    sign = scores.pow(3).sum(1).sign()
    scores = scores * torch.where(sign == 0, 1.0, sign)[:, None]
    if kept < 3:
        scores = torch.cat([scores, scores.new_zeros(3 - kept, places)])
    explained = powers[-kept:].sum() / total.clamp(min=1e-300)
    return scores.reshape(3, *maps.shape[1:]), float(explained)
