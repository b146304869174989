"""What a capture refuses or warns of: too much memory, a model left in train mode.

In: tensors about to be kept, a model about to be run. Out: an error or a warning. Must not know:
hooks, records.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from hookviz._text import bytes_text
from hookviz.capture._snapshot import Snapshot, plain_snapshot
from hookviz.errors import CaptureError

__all__ = ["limited", "warn_of_training"]


def limited(snapshot: Snapshot, limit: int) -> Snapshot:
    """A snapshot that refuses to keep more than ``limit`` bytes in all.

    Args:
        snapshot: How tensors are copied.
        limit: Bytes.

    Returns:
        The same, raising CaptureError instead of going beyond the limit. Where the copy has the
        size of the tensor the refusal comes before the copy is made.

    Raises:
        CaptureError: The limit is not a positive number.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit <= 0:
        raise CaptureError(f"memory_limit is a positive number of bytes, not {limit!r}.")
    lock = threading.Lock()
    kept = 0

    def refuse(more: int) -> None:
        raise CaptureError(
            f"keeping it ({bytes_text(more, binary=True)}) beside the "
            f"{bytes_text(kept, binary=True)} already kept would go beyond "
            f"the memory limit of {bytes_text(limit, binary=True)}.",
            remedy="Tick fewer layers, keep less with transform= or dtype=, or raise memory_limit.",
        )

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        size = tensor.numel() * tensor.element_size()
        if snapshot is plain_snapshot and kept + size > limit:
            refuse(size)
        copy = snapshot(tensor)
        with lock:
            if kept + copy.nbytes > limit:
                refuse(copy.nbytes)
            kept += copy.nbytes
        return copy

    return keep


def warn_of_training(modules: Iterable[nn.Module], stacklevel: int) -> None:
    """Warn where a forward in train mode would be random or change the model.

    Dropout makes two forwards differ; BatchNorm takes its statistics from the batch and moves its
    running ones, under ``torch.no_grad()`` too.
    """
    training = [m for m in modules if m.training]
    random = [m for m in training if isinstance(m, _DropoutNd) and m.p > 0]
    moving = [m for m in training if isinstance(m, _BatchNorm) and m.track_running_stats]
    found = [
        text
        for text, there in (
            ("Dropout makes results differ from run to run", random),
            ("BatchNorm changes its running statistics", moving),
        )
        if there
    ]
    if found:
        warnings.warn(
            f"The model is in train mode: {' and '.join(found)}. Use eval_mode=True to capture in "
            "eval mode and have the mode put back, or eval_mode=False if train mode is meant.",
            UserWarning,
            stacklevel=stacklevel,
        )
