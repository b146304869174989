"""How far two tensors are apart: a few numbers, in float64, piece by piece.

The rules: Differences are taken where both values are finite. NaN beside NaN and an infinity beside
the same infinity are alike; any other value that is not finite in one of the two is *mismatched*,
and mismatched values are beyond every tolerance. Complex values differ by the magnitude of their
difference; integers are subtracted as integers.

No copy of a whole tensor is made unless its memory is not in the order of its axes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_CHUNK = 2**18  # values at a time: they and what is made of them stay in the cache
_WIDE = (torch.float64, torch.complex128)  # whose squares may leave float64
_EXACT = 2**53  # float64 holds every integer up to here


@dataclass(frozen=True)
class Numbers:
    """What two tensors of one shape have in common.

    Attributes:
        count: Values compared: those that are finite in both.
        mismatched: Values that are not finite in one of the two and not alike.
        max_abs: Largest absolute difference, in the activation's units; NaN where ``count`` is 0.
        mean_abs: Mean absolute difference; likewise.
        magnitude: Largest magnitude of either tensor, finite values alone.
        cosine: Cosine similarity, −1 to 1; NaN where either tensor is zero everywhere. Of complex
            values the real part.
        correlation: Pearson's correlation, −1 to 1; NaN where either tensor is constant. Of
            complex values the real part.
        place: Index of the first mismatched value, else of the largest difference, one number for
            each axis; None where nothing differs.
    """

    count: int
    mismatched: int
    max_abs: float
    mean_abs: float
    magnitude: float
    cosine: float
    correlation: float
    place: tuple[int, ...] | None

    @property
    def relative(self) -> float:
        """Largest difference as a share of the largest magnitude, 0 to 2; NaN without values."""
        return self.max_abs / self.magnitude if self.magnitude else self.max_abs


def compare_tensors(a: Tensor, b: Tensor) -> Numbers:
    """The numbers of two dense tensors.

    Args:
        a: Any shape, dtype and device.
        b: Of the same shape. Where it is on another device, both are compared on the CPU.

    Returns:
        Python numbers.

    Raises:
        RuntimeError: torch cannot convert the dtype of one of them.
        TypeError: Likewise.

    Examples:
        >>> found = compare_tensors(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 4.0]]))
        >>> found.max_abs, found.mean_abs, found.relative, found.place
        (2.0, 1.0, 0.5, (0, 1))
    """
    together = a.device == b.device and a.device.type != "mps"  # which has no float64
    device = a.device if together else torch.device("cpu")
    flat = a.reshape(-1), b.reshape(-1)
    units = tuple(_unit(t) if t.dtype in _WIDE else 1.0 for t in flat)
    sums = _Sums(*units)
    size = _CHUNK if device.type == "cpu" else 32 * _CHUNK  # a pause for each piece costs there
    for x, y in zip(*(torch.split(t, size) for t in flat), strict=True):
        sums.add(x.to(device), y.to(device))
    return sums.numbers(a.shape)


def _unit(tensor: Tensor) -> float:
    """The largest finite magnitude, by which values are divided before they are squared."""
    sizes = [part.abs().nan_to_num(0.0, 0.0).amax().item() for part in torch.split(tensor, _CHUNK)]
    return float(max(sizes, default=0.0)) or 1.0


def _wide(values: Tensor) -> Tensor:
    return values.to(torch.complex128 if values.is_complex() else torch.float64)


def _is_whole(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def _distance(x: Tensor, y: Tensor, wide_x: Tensor, wide_y: Tensor) -> Tensor:
    """|b − a| in float64."""
    distance = (wide_y - wide_x).abs()
    if _is_whole(x.dtype) and _is_whole(y.dtype) and torch.uint64 not in (x.dtype, y.dtype):
        # Beyond 2**53 float64 rounds integers, so that neighbors would look alike.
        exact = (y.long() - x.long()).abs().to(torch.float64)
        distance = torch.where(distance < _EXACT, exact, distance)
    return distance


class _Sums:
    """What is known after some pieces; moments are merged as Chan, Golub and LeVeque do (1983)."""

    def __init__(self, unit_a: float, unit_b: float) -> None:
        self.units = (unit_a, unit_b)
        self.seen = self.count = self.mismatched = 0
        self.largest = self.total = self.magnitude = 0.0
        self.at: int | None = None
        self.dots = [0.0, 0.0, 0.0]  # aa, bb, ab
        self.centred = [0.0, 0.0, 0.0]
        self.means: list[complex] = [0.0, 0.0]

    def add(self, x: Tensor, y: Tensor) -> None:
        """Takes in one more piece of both."""
        if x.numel() == 0:
            return
        a, b = _wide(x), _wide(y)
        if a.is_complex() or b.is_complex():
            a, b = a.to(torch.complex128), b.to(torch.complex128)
        distance = _distance(x, y, a, b)
        finite = None
        if not math.isfinite((a.abs() + b.abs()).amax().item()):
            finite = a.isfinite() & b.isfinite()
            mismatched = ~(finite | (a == b) | (a.isnan() & b.isnan()))
            if not self.mismatched and mismatched.any():
                self.at = self.seen + int(mismatched.to(torch.uint8).argmax())
            self.mismatched += int(mismatched.sum())
            a, b, distance = (torch.where(finite, values, 0.0) for values in (a, b, distance))
        largest, at = (part.item() for part in distance.max(0))
        if largest > self.largest:
            self.largest = largest
            if not self.mismatched:
                self.at = self.seen + int(at)
        sizes = torch.stack((distance.sum(), a.abs().amax(), b.abs().amax())).tolist()
        self.total += sizes[0]
        self.magnitude = max(self.magnitude, *sizes[1:])
        self.seen += len(x)
        self._moments(a / self.units[0], b / self.units[1], finite)

    def _moments(self, a: Tensor, b: Tensor, finite: Tensor | None) -> None:
        count, before = len(a) if finite is None else int(finite.sum()), self.count
        if count == 0:
            return
        self.count = before + count
        means = torch.stack((a.sum(), b.sum())) / count
        off_a, off_b = a - means[0], b - means[1]
        if finite is not None:
            off_a, off_b = (torch.where(finite, values, 0.0) for values in (off_a, off_b))
        pairs = ((a, a), (b, b), (a, b), (off_a, off_a), (off_b, off_b), (off_a, off_b))
        found = torch.stack([torch.vdot(one, two).real for one, two in pairs]).tolist()
        moved = [new - old for new, old in zip(means.tolist(), self.means, strict=True)]
        weight = before * count / self.count
        between = [
            weight * (complex(moved[i]).conjugate() * moved[j]).real
            for i, j in ((0, 0), (1, 1), (0, 1))
        ]
        self.dots = [sum(parts) for parts in zip(self.dots, found[:3], strict=True)]
        self.centred = [sum(parts) for parts in zip(self.centred, found[3:], between, strict=True)]
        self.means = [
            old + step * count / self.count for old, step in zip(self.means, moved, strict=True)
        ]

    def numbers(self, shape: tuple[int, ...]) -> Numbers:
        """What it comes to."""
        nothing = self.count == 0
        return Numbers(
            count=self.count,
            mismatched=self.mismatched,
            max_abs=math.nan if nothing else self.largest,
            mean_abs=math.nan if nothing else self.total / self.count,
            magnitude=self.magnitude,
            cosine=_angle(*self.dots),
            correlation=math.nan if self._constant() else _angle(*self.centred),
            place=None if self.at is None else tuple(map(int, np.unravel_index(self.at, shape))),
        )

    def _constant(self) -> bool:
        """Whether one of the two varies by the rounding of its mean alone."""
        return any(
            spread <= self.count * (4 * torch.finfo(torch.float64).eps * abs(mean)) ** 2
            for spread, mean in zip(self.centred, self.means, strict=False)
        )


def _angle(aa: float, bb: float, ab: float) -> float:
    length = math.sqrt(aa * bb)
    return max(-1.0, min(1.0, ab / length)) if length > 0 else math.nan
