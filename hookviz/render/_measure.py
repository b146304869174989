"""What the values of a layer are, channel by channel, counted where the tensor is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
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
    numbers: Numbers = tensor.cpu().double().numpy()
    return numbers


def widest(device: torch.device) -> torch.dtype:
    """The floating dtype of the most digits that the device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def widened(tensor: Tensor) -> Tensor:
    """In the widest floating dtype of its device."""
    return tensor.to(widest(tensor.device))


def comparable(tensor: Tensor) -> Tensor:
    """In a dtype that torch can compare and reduce, without loss."""
    if tensor.dtype in _DIRECT:
        return tensor
    if tensor.dtype in (torch.bool, torch.uint16) or tensor.is_floating_point():
        return tensor.float()
    return widened(tensor)


def extents(maps: Tensor) -> Extents:
    """The finite range of each channel, and counts of NaN, +Inf and −Inf.

    Args:
        maps: (C, ...).
    """
    values = comparable(maps)
    if values.is_contiguous():
        values = values.flatten(1)
    axes = tuple(range(1, values.dim()))
    ends = fetch(torch.stack((values.amin(axes), values.amax(axes))))
    channels, size = values.shape[0], values[0].numel()
    counts = np.zeros((3, channels), np.int64)
    if not np.isfinite(ends).all():
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


def _chunks(maps: Tensor) -> tuple[Tensor, ...]:
    """The channels in parts that are small enough to be widened."""
    return torch.split(maps, max(1, _CHUNK // maps[0].numel()))


def _finite(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Widened, with zero for what is not finite; and which values are."""
    wide = widened(maps)
    finite = wide.isfinite()
    return torch.where(finite, wide, 0.0), finite


def _magnitude(values: Tensor, *axes: int) -> Tensor:
    """The largest magnitude along these axes, which stay; sums of values divided by it are safe."""
    size = torch.maximum(values.amax(axes, True), -values.amin(axes, True))
    return torch.where(size > 0, size, 1.0)


def moments(maps: Tensor) -> Moments:
    """Mean, variance and share of zeros of each channel of (C, ...) maps."""
    parts = [_moments(part.flatten(1)) for part in _chunks(maps)]
    return Moments(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _moments(maps: Tensor) -> tuple[Numbers, Numbers, Numbers]:
    values, finite = _finite(maps)
    unit = _magnitude(values, 1)
    values, count = values / unit, finite.sum(1)
    mean = values.sum(1) / count
    spread = torch.where(finite, values - mean[:, None], 0.0).square().sum(1) / count
    zeros = (comparable(maps) == 0).sum(1).to(mean) / count
    got = fetch(torch.stack((mean, spread, zeros, unit[:, 0])))
    with np.errstate(over="ignore", under="ignore"):
        return got[0] * got[3], got[1] * got[3] * got[3], got[2]


def correlation(maps: Tensor, reference: int) -> Numbers:
    """(C,) Pearson correlation of each channel with one of them, −1 to 1.

    What is not finite counts as zero; a constant channel has correlation 0, with itself 1.
    """

    def centred(part: Tensor) -> Tensor:
        values, _ = _finite(part.flatten(1))
        values = values / _magnitude(values, 1)
        values = values - values.mean(1, keepdim=True)
        length = values.norm(dim=1, keepdim=True)
        return torch.where(length > 0, values / length, 0.0)

    target = centred(maps[reference : reference + 1])[0]
    rows = [centred(part) @ target for part in _chunks(maps)]
    result = fetch(torch.cat(rows)).clip(-1.0, 1.0)
    result[reference] = 1.0
    return result


def percentiles(
    maps: Tensor, shares: Sequence[float], *, magnitude: bool = False
) -> list[float] | None:
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
        # The ends are not finite where any value is; telling of each value takes ten times as long.
        if values.numel() and not torch.stack((values.amin(), values.amax())).isfinite().all():
            values = values[values.isfinite()]
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
    return [float(end) for end in ends]


def _in_main_memory(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def beyond(maps: Tensor, low: float, high: float) -> tuple[int, int]:
    """How many values lie below ``low`` and above ``high``, infinities among them."""
    values = comparable(maps).detach()
    if not values.is_floating_point():
        values = widened(values)  # else torch compares with the ends in its default dtype
    if _in_main_memory(values):  # NumPy counts 3.2 million in 2 ms, torch in 14
        numbers = (values if values.dtype is torch.float64 else values.float()).numpy()
        return int(np.count_nonzero(numbers < low)), int(np.count_nonzero(numbers > high))
    counts = torch.stack(((values < low).sum(), (values > high).sum())).cpu().numpy()
    return int(counts[0]), int(counts[1])


def histogram(maps: Tensor, low: float, high: float, bins: int) -> NDArray[np.int64]:
    """(bins,) how many finite values fall into equal parts of ``low`` to ``high``."""
    counts = np.zeros(bins, np.int64)
    half_low, half_range = low / 2, high / 2 - low / 2
    for part in _chunks(maps):
        values = widened(part[part.isfinite()])
        if half_range == 0:
            counts[bins // 2] += values.numel()
            continue
        bin_of = ((values / 2 - half_low) / half_range * bins).long().clamp(0, bins - 1)
        counts += torch.bincount(bin_of, minlength=bins).cpu().numpy()
    return counts


def mean_map(maps: Tensor) -> Tensor:
    """(H, W) mean of the finite values; NaN where there is none."""
    values, finite = _finite(maps)
    size = _magnitude(values, 0, 1, 2)[0]
    return (values / size).sum(0) / finite.sum(0) * size


def max_map(maps: Tensor) -> Tensor:
    """(H, W) largest finite value; NaN where there is none."""
    values, finite = _finite(maps)
    top = torch.where(finite, values, -torch.inf).amax(0)
    return torch.where(finite.any(0), top, torch.nan)


def principal_components(maps: Tensor) -> tuple[Tensor, float]:
    """The three directions in channel space along which the places differ most.

    Args:
        maps: (C, H, W).

    Returns:
        (3, H, W) scores of each place, on the maps' device, in units of the layer's largest
        magnitude; zero for components that do not exist. The sign of each is the one whose
        scores have a positive skew, so that it does not depend on the solver. And the share of
        the variance that they explain together, 0 to 1.
    """
    values, _ = _finite(maps)
    flat = (values / _magnitude(values, 0, 1, 2)).flatten(1)
    flat = flat - flat.mean(1, keepdim=True)
    more_places = flat.shape[0] <= flat.shape[1]
    powers, vectors = torch.linalg.eigh(flat @ flat.T if more_places else flat.T @ flat)
    powers, vectors = powers.clamp(min=0).flip(0), vectors.flip(1)[:, :3]
    scores = vectors.T @ flat if more_places else vectors.T * powers[:3].sqrt()[:, None]
    total = powers.sum()
    # Components that are rounding alone would show noise stretched to full color.
    scores = torch.where((powers[:3] > total * 1e-12)[:, None], scores, 0.0)
    sign = scores.pow(3).sum(1).sign()
    scores = scores * torch.where(sign == 0, 1.0, sign)[:, None]
    scores = F.pad(scores, (0, 0, 0, 3 - scores.shape[0]))
    explained = powers[:3].sum() / total.clamp(min=1e-300)
    return scores.reshape(3, *maps.shape[1:]), float(explained)
