"""torchvision's weights as tensors: from torch's cache, or downloaded into it.

In: a member of a weights enum. Out: its state dict, read safely.
Must not know: modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from hookviz.errors import WeightsError
from hookviz.models._checkpoints import read_checkpoint
from hookviz.models._download import Progress, download, mirrored
from hookviz.models._weights import cached_path, expected_hash, hash_matches

__all__ = ["fetch_state", "is_cached_whole"]


def is_cached_whole(member: Any, cancelled: Callable[[], bool] | None = None) -> bool:
    """Whether torch's cache has a member's file and its hash is right."""
    path = cached_path(member)
    try:
        return path.is_file() and path.stat().st_size > 0 and hash_matches(path, cancelled)
    except OSError:
        return False


def fetch_state(
    member: Any,
    *,
    progress: bool | Progress = True,
    cancelled: Callable[[], bool] | None = None,
) -> dict[str, Tensor]:
    """The state dict of one of torchvision's weights.

    A file in the cache with a wrong hash is fetched again: resumed where it is only cut off, and
    replaced when the new one is whole.

    Raises:
        WeightsError: Not there and not to be had; names the file, the folder and the way out.
        RunCancelled: ``cancelled`` said so.
    """
    path = cached_path(member)
    if not is_cached_whole(member, cancelled):
        cached = path.is_file()
        damaged = "the file there is damaged and " if cached else ""
        download(
            mirrored(str(member.url)),
            path,
            expected=expected_hash(path.name),
            start_from=path if cached and path.stat().st_size else None,
            progress=progress,
            cancelled=cancelled,
            remedy=f"Put {path.name} into {path.parent} ({damaged}it is at {member.url}), or use "
            "weights=None for an untrained model.",
        )
    content = read_checkpoint(path)
    if not isinstance(content, dict):
        raise WeightsError(f"{path.name} holds a {type(content).__name__}, no state dict.")
    return content
