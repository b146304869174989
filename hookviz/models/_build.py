"""Building modules without touching torch's global state.

The rule: whatever the user has set and drawn stays as it is, on every thread. Default device and
dtype, inference mode and the generators of CPU, CUDA, MPS, NumPy and `random` neither matter to
what is built nor move. torch's own means will not do: ``fork_rng`` and ``manual_seed`` act on the
whole process, so that another thread would draw from our seed and be rewound. A dispatch mode
belongs to its thread alone, and sees every random operation with its generator argument.

It also spares the random numbers of a module whose values are loaded afterwards (a full VGG16 is
built and filled in 0.8 s instead of 2.3 s), and lays a module out without memory. The meta device
with ``load_state_dict(assign=True)`` takes as long and does less: torchvision's RegNets compute
with small tensors while they are built, SSDlite runs its backbone, other detection models keep
tensors outside of their state dict, and torchvision's own builders copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

SEED = 0
"""Seed of an untrained model's random weights: two runs show the same figures."""

Values = Literal["random", "any", "none"]
"""What the parameters of a module hold: random numbers, whatever is cheap, or nothing (meta)."""

_LARGE = 1 << 16
"""Elements of a tensor whose random numbers are spared; small ones may be more than parameters."""

_SEEDED = torch.Tag.nondeterministic_seeded


@functools.cache
def _arguments(function: Any) -> frozenset[str]:
    return frozenset(argument.name for argument in function._schema.arguments)  # noqa: SLF001 - how torch names an operator's arguments


class _Building(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's
    """Random numbers from generators of its own, and float32 where no dtype is named."""

    def __init__(self, values: Values) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self._values = values
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if _SEEDED in func.tags:
            if first is not None and self._values != "random" and first.numel() >= _LARGE:
                # Of all values the middle one: a truncated normal draws until all are in bounds.
                if func is torch.ops.aten.normal_.default:
                    return first.fill_(args[1] if len(args) > 1 else 0.0)
                if func is torch.ops.aten.uniform_.default:
                    low, high = (*args[1:], 0.0, 1.0)[:2] if len(args) != 2 else (args[1], 1.0)
                    return first.fill_((low + high) / 2)
            func = _with_generator(func)
            device = torch.device(given.get("device") or "cpu") if first is None else first.device
            if "generator" in _arguments(func) and device.type != "meta":
                if device not in self._generators:
                    self._generators[device] = torch.Generator(device).manual_seed(SEED)
                given["generator"] = self._generators[device]
        elif self._values == "none" and func is torch.ops.aten.empty.memory_format:
            given["device"] = torch.device("meta")
        if first is not None or "dtype" not in _arguments(func) or given.get("dtype") is not None:
            return func(*args, **given)
        if torch.get_default_dtype() == torch.float32:
            return func(*args, **given)
        if _SEEDED in func.tags and "randint" not in str(func) and "randperm" not in str(func):
            return func(*args, **{**given, "dtype": torch.float32})
        made = func(*args, **given)
        if made.dtype == torch.get_default_dtype():
            made = func(*args, **{**given, "dtype": torch.float32})
        return made


def _with_generator(func: Any) -> Any:
    """The same operator with a generator argument; itself where there is none."""
    if "generator" in _arguments(func):
        return func
    packet, overload = func.overloadpacket, func._overloadname  # noqa: SLF001 - as above
    name = "generator" if overload == "default" else f"{overload}_generator"
    return getattr(packet, name) if name in packet.overloads() else func


@contextmanager
def plain_torch() -> Iterator[None]:
    """Inside the block default device and inference mode are torch's own; on this thread alone."""
    with torch.inference_mode(False), torch.enable_grad(), torch.device("cpu"):
        yield


def build(make: Callable[[], nn.Module], values: Values = "random") -> nn.Module:
    """A module on the CPU in float32, in eval mode.

    Args:
        make: Makes it.
        values: "random": the same numbers each time. "any": for a module whose every stored value
            is loaded afterwards; large tensors hold one number. "none": for its names and shapes
            alone; parameters are on the meta device.

    Raises:
        Exception: What ``make`` raises.
    """
    with plain_torch(), _Building(values):
        try:
            module = make().eval()
        except RuntimeError:
            if values != "none":
                raise
            with torch.device("meta"):  # SSDlite runs its backbone while it is built
                module = make().eval()
    # What was made from Python numbers alone has the default dtype all the same.
    return module if torch.get_default_dtype() == torch.float32 else module.float()
