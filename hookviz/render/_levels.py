"""Values to levels: uint8 from 0 at the low end of a range to 255 at its high end, and flags.

The values are scaled where the tensor is; only levels leave its device. Nothing here depends on
torch's default device or dtype, and no tensor is kept between calls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hookviz.render._measure import widened
from hookviz.render._palette import Flag

_NARROW = (
    torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.bool,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Levels:
    """A page of maps as levels, off the device.

    Attributes:
        levels: (n, h, w) or (n, 3, h, w) uint8; level k stands for low + k / 255 · (high − low).
        flags: Of the same shape, 0 where the level counts, else a Flag; None where every
            level counts.
    """

    levels: NDArray[np.uint8]
    flags: NDArray[np.uint8] | None


def take(maps: Tensor, channels: Sequence[int]) -> Tensor:
    """Those channels of (C, H, W); a view where they are neighbors."""
    first = channels[0]
    if list(channels) == list(range(first, first + len(channels))):
        return maps[first : first + len(channels)]
    return maps.index_select(0, torch.tensor(channels, device=maps.device))


def to_levels(
    maps: Tensor,
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    *,
    flagged: bool,
    size: tuple[int, int] | None = None,
    shrink: str = "mean",
) -> Levels:
    """Scale on the tensor's own device; only uint8 leaves it.

    Args:
        maps: (n, H, W), any real dtype; or (n, 3, H, W), whose three share a range.
        low: (n,) value of level 0 in each map.
        high: (n,) value of level 255. Where it equals ``low``, that value has level 128.
        flagged: Whether any value may be outside the range or not finite.
        size: (h, w) of the levels where a map is too large for its tile; None or a larger size
            leaves it. Flags of NaN and infinities never vanish in shrinking.
        shrink: "mean" or "nearest".
    """
    if maps.dim() == 4:
        count = maps.shape[1]
        flat = to_levels(
            maps.flatten(0, 1), low.repeat(count), high.repeat(count),
            flagged=flagged, size=size, shrink=shrink,
        )  # fmt: skip
        shape = (*maps.shape[:2], *flat.levels.shape[1:])
        marks = None if flat.flags is None else flat.flags.reshape(shape)
        return Levels(flat.levels.reshape(shape), marks)
    height, width = maps.shape[1:]
    target = (height, width) if size is None else (min(size[0], height), min(size[1], width))
    smaller = target != (height, width)
    linear = _is_tame(maps, low, high) and bool((high > low).all())
    if smaller and not flagged and (shrink == "nearest" or linear):
        # Scaling is linear, so that the mean may come first: fewer values remain to be scaled.
        maps = _nearest(maps, target) if shrink == "nearest" else _averaged(maps.float(), target)
        smaller = False
    units = _units(maps, low, high)
    flags = _not_finite(maps) if flagged else None
    if smaller:
        units, flags = _shrunk(units, flags, target, shrink)
    elif flags is not None:
        units = torch.where(flags > 0, 0.0, units)
    if flags is not None:
        edge = 0.5 / 255  # half a level outside the range still rounds to the end's level
        flags = torch.where((flags == 0) & (units < -edge * 1e-3), int(Flag.BELOW), flags)
        flags = torch.where((flags == 0) & (units > 1 + edge * 1e-3), int(Flag.ABOVE), flags)
    levels = units.mul_(255).round_().clamp_(0, 255).to(torch.uint8).cpu().numpy()
    if flags is None:
        return Levels(levels, None)
    return Levels(levels, flags.to(torch.uint8).cpu().numpy())


def _units(maps: Tensor, low: NDArray[np.float64], high: NDArray[np.float64]) -> Tensor:
    """A new tensor: 0 at each map's low end, 1 at its high end, not yet clamped."""
    low = np.where(np.isfinite(low), low, 0.0)
    high = np.where(np.isfinite(high), high, low)
    with np.errstate(over="ignore"):
        span = high - low  # infinite where it leaves float64
    real = span > 0
    device = maps.device
    if _is_tame(maps, low, high) or device.type == "mps":
        start = torch.from_numpy(low).to(device, torch.float32)[:, None, None]
        scale = np.divide(1.0, span, out=np.zeros_like(span), where=real)
        factor = torch.from_numpy(scale).to(device, torch.float32)[:, None, None]
        units = maps.float().sub(start).mul_(factor)
    else:
        units = _wide_units(maps, low, high, span)
    if not real.all():
        start = widened(torch.from_numpy(low)).to(device)[:, None, None]
        constant = torch.from_numpy(~real).to(device)[:, None, None]
        units = torch.where(constant, 0.5 + widened(maps).sub(start).sign(), units)
    return units


def _is_tame(maps: Tensor, low: NDArray[np.float64], high: NDArray[np.float64]) -> bool:
    """Whether float32 holds the values and their distances well enough for 256 levels."""
    if maps.dtype not in _NARROW:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        span = high - low
    largest = float(np.fmax(np.abs(low), np.abs(high)).max())
    smallest = float(span[span > 0].min()) if (span > 0).any() else 1.0
    return smallest > 1e-30 and largest < 1e36 and largest < smallest * 1e4


def _wide_units(
    maps: Tensor, low: NDArray[np.float64], high: NDArray[np.float64], span: NDArray[np.float64]
) -> Tensor:
    """The same for huge, tiny or wide values: in float64, brought near 1 by powers of two."""
    exponent = np.where(
        np.isinf(span),
        np.frexp(high / 2 - low / 2)[1] + 1,
        np.frexp(np.where(span > 0, span, 1))[1],
    )
    # 2**-exponent itself can leave float64, so that it is applied in two steps.
    first = np.ldexp(1.0, -(exponent // 2))
    second = np.ldexp(1.0, -(exponent - exponent // 2))
    start = low * first * second
    range_ = high * first * second - start
    scale = np.divide(1.0, range_, out=np.zeros_like(range_), where=range_ > 0)
    steps = [
        torch.from_numpy(s).to(maps.device)[:, None, None] for s in (first, second, start, scale)
    ]
    return (maps.double() * steps[0] * steps[1]).sub_(steps[2]).mul_(steps[3])


def _not_finite(maps: Tensor) -> Tensor:
    flags = torch.zeros(maps.shape, dtype=torch.uint8, device=maps.device)
    if not maps.is_floating_point():
        return flags
    values = maps.float() if maps.dtype is not torch.float64 else maps
    if maps.dtype is torch.float64 and maps.device.type == "mps":
        values = maps.float()
    flags = torch.where(values.isnan(), int(Flag.NAN), flags)
    flags = torch.where(values == math.inf, int(Flag.POSINF), flags)
    return torch.where(values == -math.inf, int(Flag.NEGINF), flags)


def _shrunk(
    units: Tensor, flags: Tensor | None, target: tuple[int, int], shrink: str
) -> tuple[Tensor, Tensor | None]:
    units = units.clamp_(-1, 2).to(torch.float32)
    if flags is None:
        return _averaged(units, target), None
    kept = F.adaptive_max_pool2d(flags[None].float(), target)[0].to(torch.uint8)
    good = flags == 0
    units = torch.where(good, units, 0.0)
    if shrink == "nearest":
        return _nearest(units, target), kept
    total, share = _averaged(units, target), _averaged(good.float(), target)
    return torch.where(share > 0, total / share.clamp(min=1e-12), 0.0), kept


def _averaged(maps: Tensor, target: tuple[int, int]) -> Tensor:
    """The mean of what lies under each pixel, parts of activations counted in part.

    As two products with narrow band matrices, which take a fifth of the time of torch's adaptive
    pooling on a CPU.
    """
    rows, columns = (
        torch.from_numpy(_coverage(have, want)).to(maps.device)
        for have, want in zip(maps.shape[1:], target, strict=True)
    )
    # Inside someone's autocast the products would lose most of their digits.
    with torch.autocast(maps.device.type, enabled=False):
        return rows @ (maps @ columns.T)


@lru_cache(maxsize=32)
def _coverage(have: int, want: int) -> NDArray[np.float32]:
    """(want, have) share of each pixel that each activation covers; rows sum to 1.

    Not a tensor: one that is kept would keep the device and the mode it was made in.
    """
    edges, cells = np.linspace(0, have, want + 1), np.arange(have, dtype=np.float64)
    shared = np.minimum(edges[1:, None], cells + 1) - np.maximum(edges[:-1, None], cells)
    return (shared.clip(min=0) * (want / have)).astype(np.float32)


def _nearest(maps: Tensor, target: tuple[int, int]) -> Tensor:
    for axis, count in zip((1, 2), target, strict=True):
        length = maps.shape[axis]
        if count != length:
            at = ((np.arange(count) + 0.5) * (length / count)).astype(np.int64)
            index = torch.from_numpy(np.minimum(at, length - 1)).to(maps.device)
            maps = maps.index_select(axis, index)
    return maps
