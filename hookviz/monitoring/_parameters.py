"""Norms of a model's gradients, weights and updates, layer by layer.

On a CPU memory is what costs: all that is asked of a piece is computed while the processor's cache
has it. Elsewhere torch's own loops over all parameters do it, without waiting for the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookviz.monitoring._statistics import PIECE, from_device, square_sum

Norm = float | Tensor
"""A norm; a tensor where it lies on another device than the CPU still."""


class Fault(NamedTuple):
    """A gradient that is not finite: of which parameter, and how many of its values."""

    layer: str
    parameter: str
    nan: int
    inf: int
    total: int


class Parameters:
    """Reads norms off the parameters of layers; nothing is hooked.

    Args:
        layers: The layers by name; each stands for all parameters in it.
        updates: Keep a copy of the weights for the length of a step, to know how far it moved them.
    """

    def __init__(self, layers: Mapping[str, nn.Module], *, updates: bool) -> None:
        self._layers, self._updates = dict(layers), updates
        self._before: dict[int, Tensor] = {}

    def _own(self) -> dict[str, list[tuple[str, nn.Parameter]]]:
        return {
            name: found
            for name, layer in self._layers.items()
            if (found := [(n, p) for n, p in layer.named_parameters() if _has_values(p)])
        }

    @torch.no_grad()
    def before(self) -> None:
        """Keeps the weights as they are before a step."""
        if not self._updates:
            return
        parameters = {id(p): p for found in self._own().values() for _, p in found}
        if any(not _fits(self._before.get(key), p) for key, p in parameters.items()):
            self._before = {}
        for key, p in parameters.items():
            if key not in self._before:
                self._before[key] = torch.empty_like(p, dtype=_wide(p), requires_grad=False)
        if parameters:
            torch._foreach_copy_(
                [self._before[key] for key in parameters], list(parameters.values())
            )

    @torch.no_grad()
    def numbers(self, *, again: bool = False) -> dict[str, dict[str, float]]:
        """Norms over each layer: "gradient", "weight", and "update" as a share of "weight".

        The weights are those before the step where they were kept, else those of now.

        Args:
            again: The next step is measured, too: what `before` does is done on the way.
        """
        own = self._own()
        unique = {id(p): p for found in own.values() for _, p in found}
        kept = {key: copy for key, copy in self._before.items() if key in unique}
        gradients = {key: p.grad for key, p in unique.items() if p.grad is not None}
        if kept and all(_fits(copy, unique[key]) for key, copy in kept.items()):
            sizes, ways = self._moved(kept, unique, again=again)
        else:
            sizes, ways = _norms(kept or unique), {}
        gradient, weight, moved = _arrived(_norms(gradients), sizes, ways)
        if again and (not moved or kept.keys() != unique.keys()):
            self.before()
        found: dict[str, dict[str, float]] = {}
        for name, parameters in own.items():
            keys = [id(p) for _, p in parameters]
            found[name] = {}
            if any(key in gradient for key in keys):
                found[name]["gradient"] = _together(gradient, keys)
            found[name]["weight"] = _together(weight, keys)
            if moved:
                size = found[name]["weight"]
                way = _together(moved, keys)
                found[name]["update"] = way / size if size else (math.inf if way else 0.0)
        return found

    def _moved(
        self, kept: Mapping[int, Tensor], now: Mapping[int, Tensor], *, again: bool
    ) -> tuple[dict[int, Norm], dict[int, Norm]]:
        """Norms of the weights that were kept, and of how far those of now are from them."""
        sizes: dict[int, Norm] = {}
        ways: dict[int, Norm] = {}
        far: dict[int, Tensor] = {}
        for key, copy in kept.items():
            if _near(now[key]) and _near(copy):
                sizes[key], ways[key] = _moved_by(now[key], copy, renew=again)
            else:
                far[key] = copy
        if far:
            apart = torch._foreach_sub([now[key] for key in far], list(far.values()))  # noqa: SLF001 - as above
            ways |= _norms(dict(zip(far, apart, strict=True)))
            sizes |= _norms(far)
            if again:
                torch._foreach_copy_(list(far.values()), [now[key] for key in far])
        return sizes, ways

    @torch.no_grad()
    def faults(self, numbers: Mapping[str, Mapping[str, float]]) -> Iterator[Fault]:
        """The gradients that are not finite, of the layers whose norm is not."""
        for name, found in self._own().items():
            if math.isfinite(numbers.get(name, {}).get("gradient", 0.0)):
                continue
            for parameter, p in found:
                if p.grad is None:
                    continue
                values = _values(p.grad)
                nan, inf = int(values.isnan().sum()), int(values.isinf().sum())
                if nan or inf:
                    yield Fault(name, parameter, nan, inf, values.numel())


def _has_values(p: nn.Parameter) -> bool:
    return not is_lazy(p) and not p.is_meta and p.numel() > 0


def _wide(p: Tensor) -> torch.dtype:
    return torch.float32 if p.dtype in (torch.float16, torch.bfloat16) else p.dtype


def _fits(copy: Tensor | None, p: Tensor) -> bool:
    return (
        copy is not None
        and copy.shape == p.shape
        and copy.device == p.device
        and copy.dtype == _wide(p)
    )


def _values(gradient: Tensor) -> Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _near(t: Tensor) -> bool:
    """Whether NumPy sees its values where they lie."""
    return (
        t.device.type == "cpu"
        and t.layout is torch.strided
        and t.dtype in (torch.float32, torch.float64)
        and t.is_contiguous()
    )


def _pieces(*tensors: Tensor) -> Iterator[tuple[NDArray[Any], ...]]:
    """The same places of several tensors, piece by piece, where they lie."""
    flat = [t.detach().numpy().reshape(-1) for t in tensors]
    # Half as long as elsewhere: three at a time are to stay in the processor's cache.
    length = PIECE // 2
    for at in range(0, len(flat[0]), length):
        yield tuple(values[at : at + length] for values in flat)


def _moved_by(now: Tensor, before: Tensor, *, renew: bool) -> tuple[float, float]:
    """Norm of the weights before, and how far those of now are from them.

    Args:
        now: The weights.
        before: Their copy.
        renew: Copies them again.
    """
    size = way = 0.0
    room: NDArray[Any] | None = None
    with np.errstate(all="ignore"):
        for new, old in _pieces(now, before):
            if room is None:
                room = np.empty_like(new)
            way += square_sum(np.subtract(new, old, out=room[: len(new)]))
            size += square_sum(old)
            if renew:
                old[:] = new
    return math.sqrt(size), math.sqrt(way)


def _norms(tensors: Mapping[int, Tensor]) -> dict[int, Norm]:
    """L2 norms, accumulated in float32 at least; on their devices where these are not the CPU."""
    found: dict[int, Norm] = {}
    groups: dict[tuple[torch.device, torch.dtype], dict[int, Tensor]] = {}
    for key, one in tensors.items():
        plain = _values(one.detach())
        if _near(plain):
            found[key] = _norm(plain)
        else:
            groups.setdefault((plain.device, plain.dtype), {})[key] = plain
    for (_, dtype), group in groups.items():
        wide = None if dtype in (torch.float32, torch.float64) else torch.float32
        norms = torch._foreach_norm(list(group.values()), 2, dtype=wide)  # noqa: SLF001 - as above
        found |= dict(zip(group, norms, strict=True))
    return found


def _norm(t: Tensor) -> float:
    with np.errstate(all="ignore"):
        size = math.sqrt(square_sum(t.numpy().reshape(-1)))
    if math.isfinite(size):
        return size
    # Its squares may have left float32.
    return float(torch.linalg.vector_norm(t, dtype=torch.float64).item())


def _arrived(*groups: Mapping[int, Norm]) -> list[dict[int, float]]:
    """Norms as numbers, by one transfer from each device."""
    waiting = [norm for group in groups for norm in group.values() if isinstance(norm, Tensor)]
    numbers = iter(from_device(waiting))
    return [
        {key: next(numbers)[0] if isinstance(norm, Tensor) else norm for key, norm in group.items()}
        for group in groups
    ]


def _together(norms: Mapping[int, float], keys: list[int]) -> float:
    # NaN stays NaN: hypot would make Inf of NaN and Inf.
    return math.sqrt(sum(norms[key] ** 2 for key in dict.fromkeys(keys) if key in norms))
