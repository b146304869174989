"""Copies of tensors that nobody else can change, taken at the moment a hook runs.

The rule: a tensor that cannot be kept is a reason (`CannotKeep`) for its layer alone, which
the hooks note; it never ends the forward. Only what the user asked for does: the memory limit and
an error in a transform.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from hookviz._text import bytes_text, error_text
from hookviz.capture._checks import check, check_count, check_function, check_returned
from hookviz.capture._module_hooks import is_tracing
from hookviz.errors import CaptureError, DeviceError

Snapshot: TypeAlias = Callable[[Tensor], Tensor]
Transform: TypeAlias = Callable[[Tensor], Tensor]

_in_inference = torch.is_inference_mode_enabled
_TO_DENSE = "transform=lambda t: t.to_dense() keeps it as a dense one"
_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory", re.IGNORECASE)


class CannotKeep(Exception):  # noqa: N818 - a reason, which no user meets as an error
    """What a tensor is that cannot be kept, as it stands after "its output is"."""


@dataclass(frozen=True)
class Copying:
    """How tensors are copied.

    Args:
        device: Where copies go; None leaves them where the tensor is. Tensors on the meta device
            have no values and stay there.
        dtype: What floating-point and complex copies become (complex ones take the complex dtype
            of the same precision); integer and boolean tensors keep theirs. Quantised tensors
            are dequantised. None keeps every dtype.
        transform: Applied to the tensor before it is copied, for a reduction or a slice that
            keeps less (``lambda t: t[:1]``, ``lambda t: t.amax(dim=(2, 3))``). It sees a
            detached tensor (with ``keep_graph`` the tensor itself) and must not change it.
        keep_graph: Keep the copy in autograd's graph instead of detaching it. This holds every
            tensor saved for backward as long as the copy lives.
        memory_limit: Bytes in all beyond which CaptureError is raised instead.

    Raises:
        DeviceError: The device is unknown or absent.
        CaptureError: ``dtype`` is no floating-point dtype, ``transform`` no function or
            ``memory_limit`` no positive number.
    """

    device: torch.device | str | int | None = None
    dtype: torch.dtype | None = None
    transform: Transform | None = None
    keep_graph: bool = False
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        dtype = self.dtype
        if self.device is not None:
            object.__setattr__(self, "device", known_device(self.device, "Captured tensors"))
        if dtype is not None:
            floats = isinstance(dtype, torch.dtype) and dtype.is_floating_point
            legal = "a floating-point torch.dtype such as torch.float32"
            check("dtype", dtype, legal, holds=floats)
        check_function("transform", self.transform)
        if self.memory_limit is not None:
            check_count("memory_limit (bytes)", self.memory_limit, 1)

    def snapshot(self) -> Snapshot:
        """A function that copies tensors, with a memory limit that begins at nothing kept.

        Returns:
            Tensor → copy with storage of its own. It raises CannotKeep where there is nothing to
            copy, CaptureError beyond the limit, and what the transform raises.
        """
        asked = self.device is not None or self.dtype is not None or self.keep_graph
        plain = not asked and self.transform is None
        copy = plain_snapshot if plain else self._converted
        if self.memory_limit is None:
            return copy
        return _limited(copy, self.memory_limit, same_size=plain)

    def _converted(self, tensor: Tensor) -> Tensor:
        if _in_inference():
            with torch.inference_mode(mode=False):
                copy = self._convert(tensor)
                # A transform that is a no-op on an inference tensor's view would still be one.
                return copy.clone() if copy.is_inference() else copy
        return self._convert(tensor)

    def _convert(self, tensor: Tensor) -> Tensor:
        source = tensor if self.keep_graph else tensor.detach()
        kept = source
        if self.transform is not None:
            with torch.set_grad_enabled(self.keep_graph and torch.is_grad_enabled()):
                kept = check_returned("The transform", self.transform(source))
        if _is_odd(kept):
            kept = _ordinary(kept)
        try:
            if self.dtype is not None and kept.is_quantized:
                kept = kept.dequantize()
            place = kept.device if self.device is None or kept.is_meta else self.device
            copy = kept.to(device=place, dtype=_dtype_for(kept, self.dtype))
            # Where nothing had to be converted, .to() hands back the tensor itself. A transform
            # may hand out a tensor that it goes on using, so its result is copied as well.
            # numpy refuses lazily conjugated or negated tensors: the copy holds the real values.
            return (copy.clone() if copy is kept else copy).resolve_conj().resolve_neg()
        except Exception as error:  # noqa: BLE001 - sorted there
            raise _refused(kept, error) from None


def of_fresh(snapshot: Snapshot) -> Snapshot:
    """The same for tensors that nobody else holds, which need no copy to be kept."""
    if snapshot is not plain_snapshot:
        return snapshot
    return lambda t: plain_snapshot(t) if t.is_inference() or _is_odd(t) else t


def plain_snapshot(tensor: Tensor) -> Tensor:
    """A detached copy on the same device and in the same dtype.

    Strides are kept where the tensor is dense (a channels-last map stays channels-last); a slice
    or an expanded tensor becomes dense, a nested one is padded with zeros. A quantised tensor
    becomes contiguous (torch's ``clone`` drops its layout). Either way the copy's storage holds
    its own values and no more, so that saving or pickling it never carries a whole batch along.

    Raises:
        CannotKeep: There is no dense array to keep.
    """
    if _is_odd(tensor):
        tensor = _ordinary(tensor)
    try:
        if _in_inference():
            # A copy made under inference mode would be an inference tensor, which autograd
            # refuses for ever; leaving the mode for the copy gives an ordinary one.
            with torch.inference_mode(mode=False):
                return tensor.detach().clone()
        # Outside autograd detaching would cost as much again. Lazily conjugated or negated values
        # are computed by clone, so that numpy takes every copy.
        return tensor.detach().clone() if tensor.requires_grad else tensor.clone()
    except Exception as error:  # noqa: BLE001 - sorted there
        raise _refused(tensor, error) from None


def _is_odd(tensor: Tensor) -> bool:
    """Whether a tensor has no ordinary memory; one look, since every call of a layer pays it."""
    try:
        # Copying freed memory (a storage resized to 0) would end the process.
        return not tensor.untyped_storage().data_ptr() or tensor.is_nested
    except Exception:  # noqa: BLE001 - each kind without a storage refuses in its own way
        return True


def _ordinary(tensor: Tensor) -> Tensor:
    """A tensor that can be cloned, in place of one that is odd.

    Raises:
        CannotKeep: There is none.
    """
    try:
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # noqa: SLF001 - there is no public sign
            raise CannotKeep(
                "a stand-in that torch.func (vmap, grad, jvp and their like) calls layers with; "
                "call the model outside of the transform"
            )
        if tensor.is_nested:
            padded: Tensor = torch.nested.to_padded_tensor(tensor, 0.0)
            return padded
        if tensor.layout is not torch.strided:
            if tensor.is_mkldnn:
                return tensor.to_dense()
            raise CannotKeep(
                f"a sparse tensor ({tensor.layout}) of shape {tuple(tensor.shape)}; {_TO_DENSE}"
            )
        # What is traced may capture in its own forward (FeatureExtractor): there they are kept.
        fake = type(tensor).__name__ == "FakeTensor" and not is_tracing()
        if fake or torch._is_functional_tensor(tensor):  # noqa: SLF001 - the same
            raise CannotKeep(f"a stand-in without values ({type(tensor).__name__})")
        freed = type(tensor) in (Tensor, torch.nn.Parameter) and not tensor.is_meta
        if freed and tensor.numel():
            raise CannotKeep(f"a tensor of shape {tuple(tensor.shape)} whose memory has been freed")
    except (RuntimeError, TypeError, ValueError) as error:
        raise _refused(tensor, error) from None
    return tensor


def _refused(tensor: Tensor, error: Exception) -> Exception:
    """Why torch could not copy a tensor; the error itself where memory ran out."""
    if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
        return error
    return CannotKeep(f"a {type(tensor).__name__} that torch cannot copy ({error_text(error)})")


def _limited(copy: Snapshot, limit: int, *, same_size: bool) -> Snapshot:
    """A snapshot that raises CaptureError instead of keeping more than ``limit`` bytes in all.

    Where the copy has the size of the tensor the refusal comes before the copy is made.
    """
    lock = threading.Lock()
    kept = 0

    def check_room(more: int) -> None:
        if kept + more > limit:
            size, before, most = (bytes_text(n, binary=True) for n in (more, kept, limit))
            raise CaptureError(
                f"keeping it ({size}) beside the {before} already kept would go beyond the memory "
                f"limit of {most}.",
                remedy="Select fewer layers, keep less with transform= or dtype=, or raise "
                "memory_limit.",
            )

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        if same_size and not _is_odd(tensor):
            check_room(tensor.nbytes)
        made = copy(tensor)
        with lock:
            check_room(made.nbytes)
            kept += made.nbytes
        return made

    return keep


def _dtype_for(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    if dtype is None:
        return tensor.dtype
    if tensor.is_complex():
        return dtype.to_complex()
    return dtype if tensor.is_floating_point() else tensor.dtype


def known_device(device: torch.device | str | int, what: str) -> torch.device:
    """A device that is there.

    Raises:
        DeviceError: It is unknown or absent, so that ``what`` cannot be moved there.
    """
    try:
        place = torch.device(device)
        if place.type not in ("cpu", "meta"):
            torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        text = error_text(error)
        raise DeviceError(f"{what} cannot be moved to device '{device}': {text}") from None
    return place
