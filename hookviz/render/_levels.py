"""Values to levels: which value is which end of the colors, and each value as a step between them.

A level is a uint8 from 0 at the low end of a range to 255 at its high end; flags mark what has no
place there. The values are scaled where the tensor is; only levels leave its device. Nothing here
depends on torch's default device or dtype, and no tensor is kept between calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hookviz.errors import RenderError
from hookviz.render import _measure as measure
from hookviz.render._arrange import Arranged, Source, arrange
from hookviz.render._measure import Extents, Numbers, widened, widest
from hookviz.render._options import GridOptions
from hookviz.render._palette import Flag
from hookviz.render._text import share, value

_NARROW = (
    torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.bool,
)  # fmt: skip
# Percent of a layer's values, by magnitude, that lie within the automatic scale. A few places of a
# ReLU layer are many times as strong as all others: on the full range, 93 % of the live maps of
# VGG16's features.30 stay below 30 % of the scale for a photo of a cat; with the 99th percentile
# 41 % do, with the 98th 32 %.
ROBUST = 98.0
# The full range stays where it is less than so many times as wide: nothing is clipped for little.
_WORTH_IT = 1.25


@dataclass(frozen=True, eq=False)
class Scaling:
    """The range that the colors span in each channel.

    Attributes:
        name: "auto", "channel", "layer", "shared", "symmetric", "percentile" or "fixed".
        low: (C,) value of the first color.
        high: (C,) value of the last color.
        sentence: As written on the figure.
        symmetric: Zero is the middle.
        below: Finite values of the layer below the range.
        above: Finite values of the layer above it.
    """

    name: str
    low: Numbers
    high: Numbers
    sentence: str
    symmetric: bool
    below: int = 0
    above: int = 0

    @property
    def per_channel(self) -> bool:
        """Whether each channel has a range of its own."""
        return self.name == "channel"

    @property
    def ends(self) -> tuple[float, float] | None:
        """The one range, or None where each channel has its own."""
        return None if self.per_channel else (float(self.low[0]), float(self.high[0]))

    @property
    def around_zero(self) -> tuple[float, float]:
        """The one range, and zero; zero alone where each channel has its own."""
        low, high = self.ends or (0.0, 0.0)
        return min(0.0, low), max(0.0, high)


def scaling(arranged: Arranged, found: Extents, options: GridOptions) -> Scaling:
    """Resolve the scale mode for one layer.

    Args:
        arranged: The layer's maps.
        found: Their extents, all channels.
        options: ``scale``, ``vmin``, ``vmax`` and ``percentile`` are used.
    """
    if found.whole is None:
        return _one(found, "layer", (0.0, 0.0), "no value is finite")
    whole, name = found.whole, options.scale
    signed, largest = whole[0] < 0 or arranged.rgb, max(abs(whole[0]), abs(whole[1]))
    robust = largest
    if name == "auto" and not arranged.rgb:
        robust = reach([arranged.maps], largest)
    if name == "full" or (name == "auto" and not max(whole[0], 0.0) < robust < largest):
        name = "symmetric" if signed else "layer"
    if name == "channel":
        noun = arranged.figure_kind.noun
        sentence = f"each {noun} on its own scale, from its minimum to its maximum"
        lows, highs = np.nan_to_num(found.low), np.nan_to_num(found.high)
        return Scaling(name, lows, highs, sentence, symmetric=False)
    if name == "symmetric":
        sentence = f"one scale for the layer, symmetric about zero: ±{value(largest)}"
        return _one(found, name, (-largest, largest), sentence)
    if name == "layer":
        return _one(found, name, whole, f"one scale for the layer: {_span(whole)}")
    if name == "auto":
        ends = (-robust, robust) if signed else (whole[0], robust)
        span = f"symmetric about zero: ±{value(robust)}" if signed else _span(ends)
        sentence = f"one scale for {ROBUST:g} % of the layer's values, {span}"
    elif name == "percentile":
        low, high = measure.percentiles(arranged.maps, options.percentile) or whole
        ends, (first, last) = (low, high), options.percentile
        sentence = f"percentiles {first:g} to {last:g} of the layer: {_span(ends)}"
    else:  # GridOptions refuses these scales without both ends
        ends = cast("tuple[float, float]", (options.vmin, options.vmax))
        sentence = f"{name} scale: {_span(ends)}"
    return clipping(found, name, ends, sentence, [arranged.maps])


def reach(parts: Sequence[Tensor], largest: float) -> float:
    """The end of the automatic scale: 98 % of the values of each part are at most as large.

    Args:
        parts: Maps that share a scale.
        largest: The largest finite magnitude in any of them, which is the end where it is not
            much larger, and where almost all values are zero.
    """
    ends = (measure.percentiles(part, [ROBUST], magnitude=True) for part in parts)
    end = max((found[0] for found in ends if found), default=0.0)
    return end if 0.0 < end < largest / _WORTH_IT else largest


def clipping(
    found: Extents, name: str, ends: tuple[float, float], sentence: str, parts: Sequence[Tensor]
) -> Scaling:
    """One range for all channels of some maps; what lies beyond it is counted and said.

    Args:
        found: Their extents together.
        name: Of the scale.
        ends: Values of the first and the last color.
        sentence: As written on the figure, where nothing is clipped.
        parts: The maps.
    """
    counts = [measure.beyond(part, *ends) for part in parts]
    below, above = (sum(side) for side in zip(*counts, strict=True))
    below, above = below - int(found.neginf.sum()), above - int(found.posinf.sum())
    total = sum(part.numel() for part in parts)
    if below or above:
        sentence += f", clipped {share(below, total)} below and {share(above, total)} above"
    return _one(found, name, ends, sentence, below, above)


def _one(
    found: Extents, name: str, ends: tuple[float, float], sentence: str, *clipped: int
) -> Scaling:
    low, high = (np.full(len(found.low), end) for end in ends)
    return Scaling(name, low, high, sentence, ends[0] == -ends[1] and ends[1] > 0, *clipped)


def _span(ends: tuple[float, float]) -> str:
    if ends[0] == ends[1]:
        return f"every value is {value(ends[0])}"
    return f"{value(ends[0])} to {value(ends[1])}"


def shared_range(
    sources: Iterable[Source], options: GridOptions | None = None
) -> tuple[float, float]:
    """The finite range over several layers or images, for ``scale="shared"``.

    Args:
        sources: Activations or tensors.
        options: Its sample, frame and axes are used.

    Returns:
        (vmin, vmax); symmetric about zero where any value is negative.

    Raises:
        RenderError: No value is finite, or there are no sources.

    Examples:
        >>> import torch
        >>> shared_range([torch.zeros(1, 2, 3, 3), torch.full((1, 2, 3, 3), 5.0)])
        (0.0, 5.0)
    """
    options = options or GridOptions()
    ends = [measure.extents(arrange(source, options).maps).whole for source in sources]
    found = [pair for pair in ends if pair is not None]
    if not found:
        raise RenderError("A shared scale needs at least one layer with a finite value.")
    low, high = min(pair[0] for pair in found), max(pair[1] for pair in found)
    if low < 0:
        size = max(abs(low), abs(high))
        return -size, size
    return (low, high) if low < high else (low, low + 1.0)


class Levels(NamedTuple):
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
    low: Numbers,
    high: Numbers,
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
    height, width = maps.shape[-2:]
    target = (height, width) if size is None else (min(size[0], height), min(size[1], width))
    smaller = target != (height, width)
    linear = _is_tame(maps, low, high) and bool((high > low).all())
    finite = not flagged or _all_finite(maps)
    if smaller and finite and (shrink == "nearest" or linear):
        # Scaling is linear, so that the mean may come first: fewer values remain to be scaled.
        maps = _nearest(maps, target) if shrink == "nearest" else _averaged(maps.float(), target)
        smaller = False
    units = _units(maps, low, high)
    flags = None if finite else _not_finite(maps)
    if smaller:
        units, flags = _shrunk(units, flags, target, shrink)
    elif flags is not None:
        units = torch.where(flags > 0, 0.0, units)
    if flagged:
        edge = 0.5 / 255  # half a level outside the range still rounds to the end's level
        clipped = (units < -edge * 1e-3).to(torch.uint8).mul_(int(Flag.BELOW))
        clipped += (units > 1 + edge * 1e-3).to(torch.uint8).mul_(int(Flag.ABOVE))
        flags = clipped if flags is None else torch.where(flags > 0, flags, clipped)
    levels = units.mul_(255).round_().clamp_(0, 255).to(torch.uint8).cpu().numpy()
    return Levels(levels, None if flags is None else flags.to(torch.uint8).cpu().numpy())


def _beside(numbers: Numbers, maps: Tensor) -> Tensor:
    """A number for each map, on its device, to be computed with all its values."""
    there = torch.from_numpy(numbers).to(maps.device, widest(maps.device))
    return there.reshape(-1, *(1 for _ in maps.shape[1:]))


def _units(maps: Tensor, low: Numbers, high: Numbers) -> Tensor:
    """A new tensor: 0 at each map's low end, 1 at its high end, not yet clamped."""
    low = np.where(np.isfinite(low), low, 0.0)
    high = np.where(np.isfinite(high), high, low)
    with np.errstate(over="ignore"):
        span = high - low  # infinite where it leaves float64
    real = span > 0
    if _is_tame(maps, low, high) or maps.device.type == "mps":
        scale = np.divide(1.0, span, out=np.zeros_like(span), where=real)
        start, factor = (_beside(numbers, maps).float() for numbers in (low, scale))
        units = maps.float().sub(start).mul_(factor)
    else:
        units = _wide_units(maps, low, high, span)
    if not real.all():
        steps = 0.5 + widened(maps).sub(_beside(low, maps)).sign()
        units = torch.where(_beside(span, maps) > 0, units, steps)
    return units


def _is_tame(maps: Tensor, low: Numbers, high: Numbers) -> bool:
    """Whether float32 holds the values and their distances well enough for 256 levels."""
    if maps.dtype not in _NARROW:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        span = high - low
    largest = float(np.fmax(np.abs(low), np.abs(high)).max())
    smallest = float(span[span > 0].min()) if (span > 0).any() else 1.0
    return smallest > 1e-30 and largest < 1e36 and largest < smallest * 1e4


def _wide_units(maps: Tensor, low: Numbers, high: Numbers, span: Numbers) -> Tensor:
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
    one, two, begin, factor = (_beside(n, maps) for n in (first, second, start, scale))
    return (maps.double() * one * two).sub_(begin).mul_(factor)


def _all_finite(maps: Tensor) -> bool:
    """Whether no value is NaN or infinite: the ends are, where any value is."""
    if not maps.is_floating_point():
        return True
    values = measure.comparable(maps)
    return bool((values.amin().isfinite() & values.amax().isfinite()).item())


def _not_finite(maps: Tensor) -> Tensor:
    flags = torch.zeros(maps.shape, dtype=torch.uint8, device=maps.device)
    if maps.is_floating_point():
        values = maps if maps.dtype is torch.float64 else maps.float()
        flags[values.isnan()] = int(Flag.NAN)
        flags[values.isposinf()] = int(Flag.POSINF)
        flags[values.isneginf()] = int(Flag.NEGINF)
    return flags


def _shrunk(
    units: Tensor, flags: Tensor | None, target: tuple[int, int], shrink: str
) -> tuple[Tensor, Tensor | None]:
    units = units.clamp_(-1, 2).to(torch.float32)
    if flags is None:
        return _averaged(units, target), None
    kept = F.adaptive_max_pool2d(flags.float(), target).to(torch.uint8)
    good = flags == 0
    units = torch.where(good, units, 0.0)
    if shrink == "nearest":
        return _nearest(units, target), kept
    total, known = _averaged(units, target), _averaged(good.float(), target)
    return torch.where(known > 0, total / known.clamp(min=1e-12), 0.0), kept


def _averaged(maps: Tensor, target: tuple[int, int]) -> Tensor:
    """The mean of what lies under each pixel, parts of activations counted in part.

    As two products with narrow band matrices, which take a fifth of the time of torch's adaptive
    pooling on a CPU.
    """
    rows, columns = (
        torch.from_numpy(_coverage(have, want)).to(maps.device)
        for have, want in zip(maps.shape[-2:], target, strict=True)
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
    for axis, count in zip((-2, -1), target, strict=True):
        length = maps.shape[axis]
        if count != length:
            at = ((np.arange(count) + 0.5) * (length / count)).astype(np.int64)
            index = torch.from_numpy(np.minimum(at, length - 1)).to(maps.device)
            maps = maps.index_select(axis, index)
    return maps
