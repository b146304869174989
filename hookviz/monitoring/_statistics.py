"""What one tensor is like, in a few exact numbers, by the cheapest passes over it.

On a CPU the passes cost, not the numbers that come back. So a tensor is taken in pieces that stay
in the processor's cache, each of them by fast reductions (``std``, ``isnan`` and ``count_nonzero``
take several times as long), and pieces are joined by Chan's formula (Chan, Golub & LeVeque 1983).
On other devices transfers cost: all numbers stay there until the step ends.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hookviz._axes import Hints, KnownAxes, read_axes
from hookviz.errors import HookvizError

_PIECE = 1 << 18
"""Values in a piece: 1 MiB of float32."""

_NUMBERS = 7
"""In front of the zeros by channel: count, mean, m2, min, max, NaN, Inf."""


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
        zeros: (C,) exact zeros of each channel; one number where no axis is known to be channels.
        total: All values, finite or not.
        by_channel: Whether ``zeros`` is by channel.
    """

    count: float = 0.0
    mean: float = 0.0
    m2: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    nan: float = 0.0
    inf: float = 0.0
    zeros: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    total: int = 0
    by_channel: bool = False

    def add(self, other: OutputNumbers) -> None:
        """Counts another one in, exactly as if their values were of one tensor."""
        count = self.count + other.count
        if other.count:
            apart = other.mean - self.mean
            self.mean += apart * other.count / count
            self.m2 += other.m2 + apart * apart * self.count * other.count / count
        self.count = count
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.nan += other.nan
        self.inf += other.inf
        if self.total == 0:
            self.by_channel = other.by_channel
            self.zeros = other.zeros.copy()
        elif self.zeros.shape == other.zeros.shape:
            self.zeros += other.zeros
            self.by_channel &= other.by_channel
        else:  # no two tensors of one layer need have as many channels
            self.zeros = np.array([self.zeros.sum() + other.zeros.sum()])
            self.by_channel = False
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
            "zeros": float(self.zeros.sum()) / total,
            "nan": self.nan / total,
            "inf": self.inf / total,
        }
        if self.by_channel and len(self.zeros):
            each = self.total / len(self.zeros)
            found["dead"] = float((self.zeros == each).mean())
        return found


@dataclass(frozen=True, eq=False)
class Measured:
    """Numbers of one tensor, on its device still.

    Attributes:
        packed: (7 + C,) floating point: what `OutputNumbers` has, in its order.
        total: Values of the tensor.
        by_channel: Whether the zeros are counted by channel.
    """

    packed: Tensor
    total: int
    by_channel: bool

    def tally(self, numbers: list[float]) -> OutputNumbers:
        """The tally of the packed numbers, once they are here."""
        zeros = np.array(numbers[_NUMBERS:])
        count, mean, m2, low, high, nan, inf = numbers[:_NUMBERS]
        return OutputNumbers(
            count, mean, m2, low, high, nan, inf, zeros, self.total, self.by_channel
        )


class CannotMeasure(Exception):  # noqa: N818 - becomes a reason
    """A tensor of which there are no such numbers; the text says why."""


class _Scratch(threading.local):
    """Room for a piece, one for each dtype, in each thread."""

    def __init__(self) -> None:
        self.rooms: dict[tuple[torch.dtype, int], Tensor] = {}

    def like(self, piece: Tensor, dtype: torch.dtype, number: int) -> Tensor:
        room = self.rooms.get((dtype, number))
        if room is None or room.numel() < piece.numel():
            with torch.inference_mode(False):
                room = torch.empty(max(piece.numel(), _PIECE), dtype=dtype)
            self.rooms[dtype, number] = room
        return room.as_strided(piece.shape, piece.stride())


class Meter:
    """Measures tensors; holds the scratch memory for it (two pieces of 1 MiB in each thread)."""

    def __init__(self) -> None:
        self._scratch = _Scratch()

    def measure(self, tensor: Tensor, module_type: str) -> Measured:
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
        packed = None
        if x.device.type == "cpu" and x.is_floating_point():
            packed = self._in_pieces(x, axis)
        if packed is None:
            packed = _on_its_device(x, axis)
        return Measured(packed, x.numel(), axis is not None)

    def _in_pieces(self, x: Tensor, axis: int | None) -> Tensor | None:
        """All numbers of a tensor on the CPU; None where some value is not finite."""
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        if x.dim() == 0:
            x = x.reshape(1)
            axis = None
        if not (x.is_contiguous() or _channels_last(x)):
            x = x.contiguous()
        step = max(1, _PIECE * len(x) // x.numel())
        found, zeros = OutputNumbers(), None
        for piece in torch.split(x, step):
            count = piece.numel()
            buffer = self._scratch.like(piece, dtype, 0)
            values = piece
            if piece.dtype != dtype:
                values = self._scratch.like(piece, dtype, 1).copy_(piece)
            mean = values.sum().item() / count
            low, high = values.amin().item(), values.amax().item()
            if not (math.isfinite(mean) and math.isfinite(low) and math.isfinite(high)):
                return None
            torch.sub(values, mean, out=buffer)
            # Not by vector_norm, which adds one after the other in float32: off by 2e-4 in a piece.
            m2 = torch.mul(buffer, buffer, out=buffer).sum().item()
            if not math.isfinite(m2):
                return None
            part = OutputNumbers(count, mean, m2, low, high, total=count)
            torch.eq(values, 0, out=buffer)
            here = _by_channel(buffer, axis)
            zeros = here if zeros is None else zeros + here
            found.add(part)
        assert zeros is not None  # noqa: S101 - a tensor that is not empty has a piece
        numbers = [found.count, found.mean, found.m2, found.low, found.high, 0.0, 0.0]
        return torch.cat([torch.tensor(numbers, dtype=torch.float64), zeros.reshape(-1)])


_PLAIN = (Tensor, torch.nn.Parameter)


def _channels_last(x: Tensor) -> bool:
    return (x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)) or (
        x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d)
    )


def _by_channel(ones: Tensor, axis: int | None) -> Tensor:
    """(C,) float64 sums of a float buffer of zeros and ones; (1,) without an axis of channels.

    Partial sums are of at most a piece or a sample, below 2^24 in float32, and so exact.
    """
    if axis is None:
        return ones.sum(dtype=torch.float64).reshape(1)
    axis %= ones.dim()
    if axis == ones.dim() - 1:
        return ones.reshape(-1, ones.shape[-1]).sum(0, dtype=torch.float64)
    places = math.prod(ones.shape[2:])
    if places >= 1 << 24 or axis != 1 or not ones.is_contiguous():
        others = [a for a in range(ones.dim()) if a != axis]
        return ones.sum(others, dtype=torch.float64)
    if places >= 32:  # rows are summed fast where they are long
        return ones.view(-1, places).sum(1).view(len(ones), -1).sum(0, dtype=torch.float64)
    return ones.sum(0).view(-1, places).sum(1, dtype=torch.float64)


def _on_its_device(x: Tensor, axis: int | None) -> Tensor:
    """All numbers of a tensor of any kind, without waiting for its device."""
    wide = torch.float32 if x.device.type == "mps" else torch.float64
    if x.device.type == "cpu" or not x.is_floating_point():
        x = x.to(wide)
    elif x.dtype not in (torch.float32, torch.float64):
        x = x.float()
    finite = torch.isfinite(x)
    count = finite.sum(dtype=wide)
    mean = torch.where(finite, x, 0).sum(dtype=wide) / count
    apart = torch.where(finite, x.to(wide) - mean, 0)
    nan = torch.isnan(x).sum(dtype=wide)
    numbers = [
        count, torch.where(count > 0, mean, 0), (apart * apart).sum(),
        torch.where(finite, x, math.inf).amin().to(wide),
        torch.where(finite, x, -math.inf).amax().to(wide),
        nan, x.numel() - count - nan,
    ]  # fmt: skip
    zero = x == 0
    dims = [a for a in range(x.dim()) if axis is not None and a != axis % x.dim()]
    zeros = zero.sum(dims, dtype=wide) if dims else zero.to(wide)
    if axis is None:
        zeros = zero.sum(dtype=wide)
    return torch.cat([torch.stack(numbers), zeros.reshape(-1)])


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
