"""Which windows a module cuts its map into, for the families that are known.

Swin shifts a map and cuts it into windows, MaxViT also takes every p-th place; attention then sees
one window as one sample. Where a window's tokens lie in the map is what the module's own code does
with rows and columns, which are independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from hookviz._axes import Windows

_Parts = tuple[tuple[int, ...], ...]


def windows_of(module: nn.Module, args: Any, kwargs: Any) -> Windows | None:
    """The windows of one call; None for a module of no known family.

    Args:
        module: A block or an attention layer, after or within its call.
        args: What it was called with.
        kwargs: The keyword arguments.
    """
    for kind in type(module).__mro__:
        family = _FAMILIES.get((kind.__module__, kind.__name__))
        if family is not None:
            try:
                return family(module, args, kwargs)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
                return None  # changed by another release: then nothing is known of it
    return None


def _shifted(size: int, window: int, shift: int, *, pads_first: bool) -> _Parts:
    """One axis cut into windows after a cyclic shift."""
    padded = -(-size // window) * window
    if pads_first:
        at = [(i + shift) % padded for i in range(padded)]
    else:
        at = [(i + shift) % size if i < size else -1 for i in range(padded)]
    at = [i if i < size else -1 for i in at]
    return tuple(tuple(at[i : i + window]) for i in range(0, padded, window))


def _torchvision_swin(module: Any, args: Any, kwargs: Mapping[str, Any]) -> Windows:
    sizes = (args[0] if args else kwargs["x"]).shape[1:3]
    parts = []
    for size, window, shift in zip(sizes, module.window_size, module.shift_size, strict=True):
        shift = 0 if window >= -(-size // window) * window else shift  # nothing to shift
        parts.append(_shifted(size, window, shift, pads_first=True))
    return Windows(*parts)


def _timm_swin(module: Any, args: Any, kwargs: Mapping[str, Any]) -> Windows:
    sizes = (args[0] if args else kwargs["x"]).shape[1:3]
    axes = zip(sizes, module.window_size, module.shift_size, strict=True)
    return Windows(*(_shifted(*axis, pads_first=False) for axis in axes))


def _transformers_swin(module: Any, args: Any, kwargs: Mapping[str, Any]) -> Windows:
    sizes = args[1] if len(args) > 1 else kwargs["input_dimensions"]
    window, shift = int(module.window_size), int(module.shift_size)
    return Windows(*(_shifted(int(size), window, shift, pads_first=True) for size in sizes))


def _torchvision_maxvit(module: Any, args: Any, kwargs: Mapping[str, Any]) -> Windows:
    sizes, p = (args[0] if args else kwargs["x"]).shape[2:4], module.p
    if module.partition_type == "window":
        return Windows(*(_shifted(size, p, 0, pads_first=True) for size in sizes))
    return Windows(*(tuple(tuple(range(i, size, p)) for i in range(p)) for size in sizes))


_FAMILIES: dict[tuple[str, str], Callable[[Any, Any, Any], Windows]] = {
    ("torchvision.models.swin_transformer", "ShiftedWindowAttention"): _torchvision_swin,
    ("torchvision.models.maxvit", "PartitionAttentionLayer"): _torchvision_maxvit,
    ("timm.models.swin_transformer", "SwinTransformerBlock"): _timm_swin,
    ("timm.models.swin_transformer_v2", "SwinTransformerV2Block"): _timm_swin,
    ("transformers.models.swin.modeling_swin", "SwinLayer"): _transformers_swin,
    ("transformers.models.swinv2.modeling_swinv2", "Swinv2Layer"): _transformers_swin,
}
"""Module and name of a class → its windows. Subclasses are read as it."""
