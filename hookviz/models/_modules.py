"""Modules in memory: built, copied and moved without touching torch's global state.

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

import copy
import functools
import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hookviz._text import error_text
from hookviz.errors import DeviceError, ModelError, did_you_mean

SEED = 0
"""Seed of an untrained model's random weights: two runs show the same figures."""

Values = Literal["random", "any", "none"]
"""What the parameters of a module hold: random numbers, whatever is cheap, or nothing (meta)."""

_LARGE = 1 << 16
"""Elements of a tensor whose random numbers are spared; small ones may be more than parameters."""

MOST_CLASSES = 1_000_000
"""More are not built, whatever a file says."""

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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if _SEEDED in func.tags:
            if first is not None and first.is_meta and func._schema.is_mutable:  # noqa: SLF001 - as above
                return first  # nothing to fill; torch would go through Python to find that out
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
        named = "dtype" not in _arguments(func) or given.get("dtype") is not None
        if first is not None or named or torch.get_default_dtype() == torch.float32:
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


# --- devices ------------------------------------------------------------------------------------


def choose_device(device: str | torch.device | int = "auto") -> torch.device:
    """The device that a name stands for.

    Args:
        device: "auto" (CUDA where there is one, then MPS, then CPU), "cpu", "cuda", "cuda:N",
            "mps", a ``torch.device``, or a CUDA device's number.

    Returns:
        A device that exists on this machine; CUDA devices carry their number.

    Raises:
        DeviceError: The name is unknown, or the machine has no such device.

    Examples:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    counts = {"cuda": _cuda_devices(), "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    best = next(kind for kind, count in counts.items() if count)
    text = f"cuda:{device}" if isinstance(device, int) else str(device).strip().lower()
    text = best if text == "auto" else text
    if re.fullmatch(r"(cpu|mps)(:0)?|cuda(:\d{1,9})?", text) is None:
        raise DeviceError(
            f"Unknown device '{device}': legal are 'auto', 'cpu', 'cuda', 'cuda:N' or 'mps'.",
            remedy=did_you_mean(text, ["auto", *counts]) or None,
        )
    kind, _, number = text.partition(":")
    if not counts[kind]:
        built = "" if kind == "mps" or torch.version.cuda else " (this torch is built without CUDA)"
        raise DeviceError(
            f"This machine has no {kind.upper()} device{built}.", remedy=f"Use device='{best}'."
        )
    if int(number or 0) >= counts[kind]:
        last = f"cuda:{counts[kind] - 1}"
        raise DeviceError(f"Device '{text}' does not exist: the last CUDA device is '{last}'.")
    return torch.device(kind, int(number or 0)) if kind == "cuda" else torch.device(kind)


def _cuda_devices() -> int:
    try:
        return torch.cuda.device_count() if torch.cuda.is_available() else 0
    except Warning:  # a driver that is too old, where warnings are errors: no device
        return 0


def same_device(one: torch.device, other: torch.device) -> bool:
    """Whether two devices are the same one; "cuda" is "cuda:0"."""
    return one.type == other.type and (one.index or 0) == (other.index or 0)


@contextmanager
def out_of_memory(what: str, device: torch.device) -> Iterator[None]:
    """Turn a full memory inside the block into one DeviceError, with memory freed.

    Args:
        what: What was under way, for the sentence: "running vgg16".
        device: Where.

    Returns:
        A context manager; other exceptions pass through it unchanged.

    Raises:
        DeviceError: Out of memory; offers the CPU where the device is another one.
    """
    try:
        yield
        return
    except (RuntimeError, MemoryError) as error:
        # MPS, cuDNN and the CPU's allocator raise a plain RuntimeError whose text alone tells.
        full = r"out of memory|can't allocate memory|STATUS_ALLOC_FAILED"
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not re.search(
            full, str(error), re.IGNORECASE
        ):
            raise
    # Outside the handler: the first exception's traceback would keep the tensors alive.
    gc.collect()
    if _cuda_devices():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
    offer = "a smaller image or fewer layers."
    raise DeviceError(
        f"Out of memory on '{device}' while {what}.",
        remedy=f"Use {offer}" if device.type == "cpu" else f"Use device='cpu', {offer}",
        code="out-of-memory",
    )


# --- modules of the user's ----------------------------------------------------------------------


def last_layer(module: nn.Module) -> tuple[str, int | None]:
    """Name and outputs of the last linear layer or convolution, which mostly is the classifier."""
    found: tuple[str, int | None] = "", None
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear):
            found = name, part.out_features
        elif isinstance(part, nn.Conv2d):
            found = name, part.out_channels
    return found


def copy_module(module: nn.Module, name: str) -> nn.Module:
    """A deep copy of a module.

    Raises:
        ModelError: The module holds something that cannot be copied.
    """
    memo: dict[int, Any] = {}
    for part in module.modules():
        # What weight_norm and spectral_norm compute before each forward hangs on the graph, which
        # cannot be copied and need not be.
        for hook in part._forward_pre_hooks.values():  # noqa: SLF001 - torch has no public list of them
            value = part.__dict__.get(str(getattr(hook, "name", "")))
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        # A module may hold anything, and says in its own way that it cannot be copied.
        raise ModelError(
            f"The module '{name}' cannot be copied ({error_text(error)}), and the one passed in "
            "is left alone.",
            remedy="Move it or load its weights yourself, then pass it in.",
        ) from error


def move_module(
    module: nn.Module, device: torch.device, dtype: torch.dtype | None, name: str
) -> nn.Module:
    """Move a module in place; back where it was if the device cannot hold it.

    Args:
        module: What to move.
        device: Where to; it exists.
        dtype: For floating-point parameters and buffers; None leaves theirs.
        name: For the sentence.

    Returns:
        The same module.

    Raises:
        DeviceError: Out of memory, or the device cannot hold such a module.
    """
    homes = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
    home = next(iter(homes), torch.device("cpu"))
    if len(homes) > 1:
        raise DeviceError(
            f"The module '{name}' lies on several devices ({', '.join(sorted(map(str, homes)))}) "
            "and is not moved to one.",
            remedy="Leave out device, or move the module yourself.",
        )
    if home.type == "meta":
        raise DeviceError(
            f"The module '{name}' has no values yet (it is on the meta device).",
            remedy="Load its weights first.",
        )
    packages = [type(part).__module__.split(".") for part in module.modules()]
    if device.type != "cpu" and any("quantized" in package for package in packages):
        raise DeviceError(
            f"'{name}' is quantized and runs on the CPU alone.", remedy="Use device='cpu'."
        )
    try:
        with out_of_memory(f"moving '{name}' there", device):
            return module.to(device=device, dtype=dtype)
    except (TypeError, NotImplementedError) as error:  # MPS has no float64, some types no half
        module.to(home)
        raise DeviceError(
            f"'{name}' cannot be moved to '{device}': {error}", remedy="Use device='cpu'."
        ) from None
    except DeviceError:
        module.to(home)
        raise
