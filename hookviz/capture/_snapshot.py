"""Copies of tensors that nobody else can change, taken at the moment a hook runs.

In: a tensor of a running model and the wishes for its copy. Out: a tensor with storage of its
own. Must not know: hooks, layers, records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from hookviz.errors import CaptureError, DeviceError

__all__ = ["Snapshot", "Transform", "make_snapshot", "plain_snapshot"]

Snapshot: TypeAlias = Callable[[Tensor], Tensor]
Transform: TypeAlias = Callable[[Tensor], Tensor]

_in_inference = torch.is_inference_mode_enabled


def plain_snapshot(tensor: Tensor) -> Tensor:
    """A detached copy on the same device and in the same dtype.

    Strides are kept where the tensor is dense (a channels-last map stays channels-last); a slice
    or an expanded tensor becomes dense. A quantised tensor becomes contiguous (torch's ``clone``
    drops its layout). Either way the copy's storage holds its own values and
    no more, so that saving or pickling it never carries a whole batch along.

    Raises:
        CaptureError: The tensor is sparse or nested: there is no dense array to keep.
    """
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise _not_dense(tensor)
    if _in_inference():
        # A copy made under inference mode would be an inference tensor, which autograd refuses
        # for ever; leaving the mode for the copy gives an ordinary one.
        with torch.inference_mode(mode=False):
            copy = tensor.detach().clone()
    elif tensor.requires_grad:
        copy = tensor.detach().clone()
    else:
        copy = tensor.clone()  # outside autograd, where detaching would cost as much again
    return _resolved(copy) if copy.is_conj() or copy.is_neg() else copy


def make_snapshot(
    *,
    device: torch.device | str | int | None = None,
    dtype: torch.dtype | None = None,
    transform: Transform | None = None,
    keep_graph: bool = False,
) -> Snapshot:
    """A function that copies tensors as wished.

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

    Returns:
        Tensor → copy with storage of its own.

    Raises:
        DeviceError: The device is unknown or absent.
        CaptureError: ``dtype`` is no floating-point dtype.
    """
    target = None if device is None else _device(device)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise CaptureError(
            f"dtype must be a floating-point torch.dtype such as torch.float32, not {dtype!r}."
        )
    if target is None and dtype is None and transform is None and not keep_graph:
        return plain_snapshot

    def convert(tensor: Tensor) -> Tensor:
        source = tensor if keep_graph else tensor.detach()
        kept = source
        if transform is not None:
            with torch.set_grad_enabled(keep_graph and torch.is_grad_enabled()):
                kept = transform(source)
            if not isinstance(kept, Tensor):
                raise CaptureError(
                    f"The transform must return a tensor, but returned {type(kept).__name__}."
                )
        if kept.layout is not torch.strided or kept.is_nested:
            raise _not_dense(kept)
        if dtype is not None and kept.is_quantized:
            kept = kept.dequantize()
        place = kept.device if target is None or kept.is_meta else target
        copy = kept.to(device=place, dtype=_dtype_for(kept, dtype))
        # Where nothing had to be converted, .to() hands back the tensor itself. A transform may
        # hand out a tensor that it goes on using, so its result is copied as well.
        return _resolved(copy.clone() if copy is kept else copy)

    def snapshot(tensor: Tensor) -> Tensor:
        if _in_inference():
            with torch.inference_mode(mode=False):
                copy = convert(tensor)
                # A transform that is a no-op on an inference tensor's view would still be one.
                return copy.clone() if copy.is_inference() else copy
        return convert(tensor)

    return snapshot


def _resolved(copy: Tensor) -> Tensor:
    # numpy refuses lazily conjugated or negated tensors, so the copy holds the real values.
    if copy.is_conj():
        copy = copy.resolve_conj()
    if copy.is_neg():
        copy = copy.resolve_neg()
    return copy


def _dtype_for(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    if dtype is None:
        return tensor.dtype
    if tensor.is_complex():
        return dtype.to_complex()
    return dtype if tensor.is_floating_point() else tensor.dtype


def _device(device: torch.device | str | int) -> torch.device:
    try:
        place = torch.device(device)
        if place.type not in ("cpu", "meta"):
            torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise DeviceError(
            f"Captured tensors cannot be moved to device '{device}': {first}"
        ) from None
    return place


def _not_dense(tensor: Tensor) -> CaptureError:
    if tensor.is_nested:
        found = "a nested tensor"
    else:
        found = f"a sparse tensor ({tensor.layout}) of shape {tuple(tensor.shape)}"
    return CaptureError(
        f"{found[0].upper()}{found[1:]} cannot be captured, only dense ones.",
        remedy="A transform may make it dense, for example transform=lambda t: t.to_dense().",
    )
