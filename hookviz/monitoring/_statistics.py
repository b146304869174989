"""What one tensor is like, in a few exact numbers, by the cheapest passes over it.

On a CPU the passes cost, not the numbers that come back. So a tensor is taken in pieces that stay
in the processor's cache, each of them by the fast reductions of NumPy alone (``std``, ``isnan`` and
``count_nonzero`` of floats take several times as long, and torch's code would have to come into the
cache, too), and a pass is left out where the others have answered it already.
On other devices transfers cost: all numbers stay there until the step ends.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookviz._axes import Hints, KnownAxes, read_axes
from hookviz.errors import HookvizError

PIECE = 1 << 17
"""Values in a piece: 512 KiB of float32."""

_ROW = 1 << 10
"""Values that are added up in their own dtype; of more, float32 loses digits: 4e-4 of 2 million."""

_NUMBERS = 8
"""In front of the dead channels: count, mean, m2, min, max, NaN, Inf, zeros."""


@dataclass
class OutputNumbers:
    """Numbers of the finite values of one or several tensors.

    Attributes:
        count: Finite values.
        mean: Their mean.
        m2: Sum of the squared distances from it.
        low: The smallest.
        high: The largest.
        nan: NaN values.
        inf: Values that are +Inf or −Inf.
        zeros: Exact zeros.
        total: All values, finite or not.
        dead: (C,) whether each channel is zero everywhere; (0,) where no axis is known to be
            channels.
    """

    count: float = 0.0
    mean: float = 0.0
    m2: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    nan: float = 0.0
    inf: float = 0.0
    zeros: float = 0.0
    total: int = 0
    dead: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))

    def add(self, other: OutputNumbers) -> None:
        """Counts another one in, as if their values were of one tensor.

        Means and deviations join by Chan's formula (Chan, Golub & LeVeque 1983).
        """
        count = self.count + other.count
        if other.count:
            apart = other.mean - self.mean
            self.mean += apart * other.count / count
            self.m2 += other.m2 + apart * apart * self.count * other.count / count
        self.count = count
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.nan += other.nan
        self.inf += other.inf
        self.zeros += other.zeros
        if self.total == 0:
            self.dead = other.dead
        elif self.dead.shape == other.dead.shape:
            self.dead = self.dead & other.dead
        else:  # no two tensors of one layer need have as many channels
            self.dead = np.zeros(0, bool)
        self.total += other.total

    def numbers(self) -> dict[str, float]:
        """By the names of `hookviz.monitoring.QUANTITIES`."""
        known = self.count > 0
        total = self.total or math.nan
        found = {
            "mean": self.mean if known else math.nan,
            "std": math.sqrt(self.m2 / self.count) if known else math.nan,
            "min": self.low if known else math.nan,
            "max": self.high if known else math.nan,
            "zeros": self.zeros / total,
            "nan": self.nan / total,
            "inf": self.inf / total,
        }
        if len(self.dead):
            found["dead"] = np.count_nonzero(self.dead) / len(self.dead)
        return found


@dataclass(frozen=True, eq=False)
class OnDevice:
    """Numbers of one tensor, on its device still.

    Attributes:
        packed: (8 + C,) floating point: what `OutputNumbers` has, in its order but for ``total``.
        total: Values of the tensor.
    """

    packed: Tensor
    total: int

    def tally(self, numbers: list[float]) -> OutputNumbers:
        """The tally of the packed numbers, once they are here."""
        count, mean, m2, low, high, nan, inf, zeros = numbers[:_NUMBERS]
        dead = np.array(numbers[_NUMBERS:]) > 0
        return OutputNumbers(count, mean, m2, low, high, nan, inf, zeros, self.total, dead)


class CannotMeasure(Exception):  # noqa: N818 - becomes a reason
    """A tensor of which there are no such numbers; the text says why."""


class _Scratch(threading.local):
    """Room for a piece, one for each dtype and use, in each thread."""

    def __init__(self) -> None:
        self.rooms: dict[tuple[type[Any], int], NDArray[Any]] = {}

    def room(self, count: int, dtype: type[Any], use: int = 0) -> NDArray[Any]:
        room = self.rooms.get((dtype, use))
        if room is None:
            room = self.rooms[dtype, use] = np.empty(PIECE, dtype)
        return room[:count]


class Meter:
    """Measures tensors; holds the scratch memory for it (about 1 MiB in each thread)."""

    def __init__(self) -> None:
        self._scratch = _Scratch()

    def measure(self, tensor: Tensor, module_type: str) -> OutputNumbers | OnDevice:
        """Measures a tensor; nothing is synchronised on devices other than the CPU.

        Args:
            tensor: Any shape, any dtype of numbers.
            module_type: Class name of the module that gave it, which helps to know its channels.

        Raises:
            CannotMeasure: It is empty, complex, sparse, quantized or has no values of its own.
        """
        x = tensor.detach()
        if x.layout is not torch.strided or x.is_quantized or x.is_meta or type(x) not in _PLAIN:
            kind = "without values" if x.is_meta else f"{type(x).__name__} {x.layout} {x.dtype}"
            raise CannotMeasure(f"it is no plain tensor ({kind})")
        if x.is_complex():
            raise CannotMeasure("its values are complex")
        if not x.numel():
            raise CannotMeasure(f"it is empty: shape {list(x.shape)}")
        axis = channel_axis(tuple(x.shape), module_type)
        if x.device.type == "cpu" and x.is_floating_point():
            with np.errstate(all="ignore"):
                found = self._in_pieces(x.resolve_neg(), axis)
            if found is not None:
                return found
        return OnDevice(_on_its_device(x, axis), x.numel())

    def _in_pieces(self, x: Tensor, axis: int | None) -> OutputNumbers | None:
        """All numbers of a tensor on the CPU; None where some value or sum is not finite."""
        count, flat = x.numel(), _memory_of(x)
        total = squares = 0.0
        low, high, zeros = math.inf, -math.inf, 0
        for values in self._pieces(flat):
            # A value that is not finite makes the sum so.
            part, square = _sum(values), square_sum(values)
            if not math.isfinite(part + square):
                return None
            total, squares = total + part, squares + square
            smallest, largest = float(values.min()), float(values.max())
            low, high = min(low, smallest), max(high, largest)
            if smallest <= 0 <= largest:
                equal = self._scratch.room(len(values), np.bool_)
                zeros += int(np.count_nonzero(np.equal(values, 0, out=equal)))
        mean = total / count
        m2 = squares - total * mean
        # Where the mean is large beside the deviation, or squares vanish, digits would be lost.
        if m2 < squares / 4 or (m2 == 0.0 and low != high):
            mean, m2 = self._about(flat, mean)
        return OutputNumbers(
            count, mean, m2, low, high, 0.0, 0.0, zeros, count, _dead(x, axis, zeros)
        )

    def _pieces(self, flat: Tensor) -> Iterator[NDArray[Any]]:
        """Pieces in a dtype that sums are taken in."""
        if flat.dtype in _SUMMED:
            values = flat.numpy()
            yield from (values[at : at + PIECE] for at in range(0, len(values), PIECE))
            return
        for piece in torch.split(flat, PIECE):
            wide = self._scratch.room(len(piece), np.float32, 1)
            torch.from_numpy(wide).copy_(piece)
            yield wide

    def _about(self, flat: Tensor, mean: float) -> tuple[float, float]:
        """Mean, and squared distances from it, by way of a mean that is nearly right."""
        total = squares = 0.0
        for values in self._pieces(flat):
            room = self._scratch.room(len(values), values.dtype.type)
            apart = np.subtract(values, mean, out=room)
            total, squares = total + _sum(apart), squares + square_sum(apart)
        return mean + total / len(flat), max(0.0, squares - total * total / len(flat))


_SUMMED = (torch.float32, torch.float64)
_PLAIN = (Tensor, torch.nn.Parameter)


def _memory_of(x: Tensor) -> Tensor:
    """(N,) the values in the order in which they lie in memory; a view where they lie close."""
    if not x.is_contiguous() and not (
        (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last))
        or (x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d))
    ):
        x = x.contiguous()
    return x.as_strided((x.numel(),), (1,))


def _sum(values: NDArray[Any]) -> float:
    """The sum of (N,) values, as `square_sum` takes that of their squares."""
    rows, rest = _rows(values)
    found = float(np.vecdot(rows, np.ones(_ROW, values.dtype)).sum(dtype=np.float64))
    return found + float(rest.sum(dtype=np.float64))


def square_sum(values: NDArray[Any]) -> float:
    """The sum of the squares of (N,) values, to seven digits at least, however many there are."""
    rows, rest = _rows(values)
    return float(np.vecdot(rows, rows).sum(dtype=np.float64)) + float(np.vecdot(rest, rest))


def _rows(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """(M, _ROW) and what is left."""
    long = len(values) - len(values) % _ROW
    return values[:long].reshape(-1, _ROW), values[long:]


def _dead(x: Tensor, axis: int | None, zeros: int) -> NDArray[np.bool_]:
    """(C,) which channels are zero everywhere, as `OutputNumbers` has it."""
    if axis is None:
        return np.zeros(0, bool)
    if zeros * x.shape[axis] < x.numel():  # too few for a single one
        return np.zeros(x.shape[axis], bool)
    # Most channels answer in the first sample already.
    dead = _all_zero(x[:1] if axis else x, axis)
    if axis and dead.any():
        maybe = np.flatnonzero(dead)
        dead[maybe] = _all_zero(x.index_select(axis, torch.from_numpy(maybe)), axis)
    return dead


def _all_zero(x: Tensor, axis: int) -> NDArray[np.bool_]:
    """(C,) which channels are zero."""
    zero = (x if x.dtype in _SUMMED else x.float()).numpy() == 0
    found: NDArray[np.bool_] = zero.all(tuple(a for a in range(x.dim()) if a != axis))
    return found


def _on_its_device(x: Tensor, axis: int | None) -> Tensor:
    """All numbers of a tensor of any kind, without waiting for its device."""
    wide = torch.float32 if x.device.type == "mps" else torch.float64
    if x.device.type == "cpu" or not x.is_floating_point():
        x = x.to(wide)
    elif x.dtype not in _SUMMED:
        x = x.float()
    finite = torch.isfinite(x)
    count = finite.sum(dtype=wide)
    mean = torch.where(finite, x, 0).sum(dtype=wide) / count
    apart = torch.where(finite, x.to(wide) - mean, 0)
    nan = torch.isnan(x).sum(dtype=wide)
    zero = x == 0
    numbers = [
        count, torch.where(count > 0, mean, 0), (apart * apart).sum(),
        torch.where(finite, x, math.inf).amin().to(wide),
        torch.where(finite, x, -math.inf).amax().to(wide),
        nan, x.numel() - count - nan, zero.sum(dtype=wide),
    ]  # fmt: skip
    if axis is None:
        return torch.stack(numbers)
    others = [a for a in range(x.dim()) if a != axis % x.dim()]
    dead = zero.all(others) if others else zero
    return torch.cat([torch.stack(numbers), dead.to(wide)])


@lru_cache(maxsize=512)
def channel_axis(shape: tuple[int, ...], module_type: str) -> int | None:
    """Which axis counts channels, by the layer's type and the shape alone; None in doubt.

    Examples:
        >>> channel_axis((8, 64, 14, 14), "Conv2d"), channel_axis((8, 10), "Linear")
        (1, 1)
        >>> channel_axis((8, 50, 192), "LayerNorm"), channel_axis((8, 14, 14, 96), "LayerNorm")
        (2, 3)
    """
    if len(shape) < 3:
        return 1 if len(shape) == 2 else None
    hints = Hints(module_type=module_type, known=KnownAxes(batch=shape[0]))
    try:
        reading = read_axes(shape, "auto", hints)
    except HookvizError:
        return None
    if len(shape) == 3 and "possibly" in reading.doubt:  # an activation after Conv1d or in a Block
        return None
    return next(at for at, letter in enumerate(reading.axes) if letter in "CDQ")


def from_device(packed: list[Tensor]) -> list[list[float]]:
    """Tensors as numbers, by one transfer from each device."""
    by_device: dict[Any, list[int]] = {}
    for at, one in enumerate(packed):
        by_device.setdefault(one.device, []).append(at)
    found: list[list[float]] = [[] for _ in packed]
    for places in by_device.values():
        numbers = torch.cat([packed[at].reshape(-1) for at in places]).tolist()
        start = 0
        for at in places:
            found[at] = numbers[start : start + packed[at].numel()]
            start += packed[at].numel()
    return found
