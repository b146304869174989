"""Which device a model runs on, and what to do when its memory is full."""

from __future__ import annotations

import copy
import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hookviz.errors import DeviceError, ModelError, did_you_mean

_LEGAL = "'auto', 'cpu', 'cuda', 'cuda:N' or 'mps'"


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
    text = f"cuda:{device}" if isinstance(device, int) else str(device).strip().lower()
    count = _cuda_devices()
    if text == "auto":
        if count:
            return torch.device("cuda", 0)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    if re.fullmatch(r"cpu(:0)?", text):
        return torch.device("cpu")
    if re.fullmatch(r"mps(:0)?", text):
        if torch.backends.mps.is_available():
            return torch.device("mps")
        raise DeviceError("This machine has no MPS device.", remedy=_offer())
    match = re.fullmatch(r"cuda(?::(\d{1,9}))?", text)
    if match is None:
        hint = did_you_mean(text, ["auto", "cpu", "cuda", "mps"])
        raise DeviceError(f"Unknown device '{device}': legal are {_LEGAL}.", remedy=hint or None)
    number = int(match.group(1) or 0)
    if not count:
        built = "" if torch.version.cuda else " (this torch is built without CUDA)"
        raise DeviceError(f"This machine has no CUDA device{built}.", remedy=_offer())
    if number >= count:
        last = f"cuda:{count - 1}"
        raise DeviceError(f"Device '{text}' does not exist: the last CUDA device is '{last}'.")
    return torch.device("cuda", number)


def _cuda_devices() -> int:
    try:
        return torch.cuda.device_count() if torch.cuda.is_available() else 0
    except Warning:  # a driver that is too old, where warnings are errors: no device
        return 0


def _offer() -> str:
    return f"Use device='{choose_device('auto').type}'."


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that a device's memory is full.

    Args:
        error: Anything that a forward or a move raised.

    Returns:
        True for torch's own error, and for a RuntimeError whose text says so.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    # MPS, cuDNN and the CPU's allocator raise a plain RuntimeError whose text alone tells.
    return isinstance(error, RuntimeError) and bool(
        re.search(
            r"out of memory|can't allocate memory|STATUS_ALLOC_FAILED", str(error), re.IGNORECASE
        )
    )


def free_memory() -> None:
    """Give unused memory back to the device: collect garbage and empty torch's caches."""
    gc.collect()
    if _cuda_devices():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()


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
    failure: DeviceError | None = None
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not (isinstance(error, MemoryError) or is_out_of_memory(error)):
            raise
        offer = (
            "Use a smaller image or fewer layers."
            if device.type == "cpu"
            else "Use device='cpu', a smaller image or fewer layers."
        )
        failure = DeviceError(
            f"Out of memory on '{device}' while {what}.", remedy=offer, code="out-of-memory"
        )
    # Raised outside the handler: the first exception's traceback would keep the tensors alive.
    if failure is not None:
        free_memory()
        raise failure


def same_device(one: torch.device, other: torch.device) -> bool:
    """Whether two devices are the same one; "cuda" is "cuda:0"."""
    return one.type == other.type and (one.index or 0) == (other.index or 0)


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
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"The module '{name}' cannot be copied ({first}), and the one passed in is left alone.",
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
    if len(homes) > 1:
        raise DeviceError(
            f"The module '{name}' lies on several devices ({', '.join(sorted(map(str, homes)))}) "
            "and is not moved to one.",
            remedy="Leave out device, or move the module yourself.",
        )
    home = next(iter(homes), torch.device("cpu"))
    if home.type == "meta":
        raise DeviceError(
            f"The module '{name}' has no values yet (it is on the meta device).",
            remedy="Load its weights first.",
        )
    if device.type != "cpu" and any(_is_quantized(part) for part in module.modules()):
        raise DeviceError(f"'{name}' is quantized and runs on the CPU alone.", remedy=_cpu())
    try:
        with out_of_memory(f"moving '{name}' there", device):
            return module.to(device=device, dtype=dtype)
    except (TypeError, NotImplementedError) as error:  # MPS has no float64, some types no half
        module.to(home)
        raise DeviceError(
            f"'{name}' cannot be moved to '{device}': {error}", remedy=_cpu()
        ) from None
    except DeviceError:
        module.to(home)
        free_memory()
        raise


def _is_quantized(part: nn.Module) -> bool:
    return "quantized" in type(part).__module__.split(".")


def _cpu() -> str:
    return "Use device='cpu'."
