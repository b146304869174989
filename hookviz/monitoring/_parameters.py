"""Norms of a model's gradients, weights and updates, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookviz.monitoring._statistics import from_device


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
        there = [p for key, p in parameters.items() if _fits(self._before.get(key), p)]
        if len(there) != len(parameters):
            self._before = {}
        for key, p in parameters.items():
            if key not in self._before:
                self._before[key] = torch.empty_like(p, dtype=_wide(p), requires_grad=False)
        copies = [self._before[key] for key in parameters]
        if copies:
            torch._foreach_copy_(copies, list(parameters.values()))

    @torch.no_grad()
    def numbers(self) -> dict[str, dict[str, float]]:
        """Norms over each layer: "gradient", "weight", and "update" as a share of "weight".

        The weights are those before the step where they were kept, else those of now.
        """
        own = self._own()
        unique = {id(p): p for found in own.values() for _, p in found}
        with_gradient = {key: p.grad for key, p in unique.items() if p.grad is not None}
        kept = {key: copy for key, copy in self._before.items() if key in unique}
        groups = [
            _norms(list(with_gradient.values())),
            _norms(list(kept.values()) if kept else list(unique.values())),
        ]
        if kept:
            pairs = [(copy, unique[key]) for key, copy in kept.items()]
            alike = [(copy, p) for copy, p in pairs if _fits(copy, p)]
            if len(alike) == len(pairs):
                copies = [copy for copy, _ in pairs]
                torch._foreach_sub_(copies, [p for _, p in pairs])
                groups.append(_norms(copies))
        numbers = iter(from_device([norm for group in groups for norm in group]))
        gradient = {key: next(numbers)[0] for key in with_gradient}
        weight = {key: next(numbers)[0] for key in (kept or unique)}
        moved = {key: next(numbers)[0] for key in kept} if len(groups) > 2 else {}
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


def _norms(tensors: list[Tensor]) -> list[Tensor]:
    """L2 norms, accumulated in float32 at least, on their devices."""
    plain = [_values(t) for t in tensors]
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for at, one in enumerate(plain):
        groups.setdefault((one.device, one.dtype), []).append(at)
    norms: dict[int, Tensor] = {}
    for (_, dtype), places in groups.items():
        wide = None if dtype in (torch.float32, torch.float64) else torch.float32
        found = torch._foreach_norm([plain[at] for at in places], 2, dtype=wide)  # noqa: SLF001 - as above
        norms |= dict(zip(places, found, strict=True))
    return [norms[at] for at in range(len(plain))]


def _together(norms: Mapping[int, float], keys: list[int]) -> float:
    # NaN stays NaN: hypot would make Inf of NaN and Inf.
    return math.sqrt(sum(norms[key] ** 2 for key in dict.fromkeys(keys) if key in norms))
