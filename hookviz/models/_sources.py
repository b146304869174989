"""Where one's own weights come from: a path, a state dict, or neither.

In: what the user gave as ``weights``. Out: what it holds, and its name.
Must not know: models.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookviz.errors import WeightsError
from hookviz.models._checkpoints import read_checkpoint

__all__ = ["is_none", "is_path", "own_content"]

_WORDS = ("auto", "bundled", "default", "")
_SUFFIXES = (".safetensors", ".pth", ".pt", ".ckpt", ".bin", ".pkl", ".tar", ".zip")


def is_none(weights: Any) -> bool:
    """Whether an untrained model is asked for: None, "none" or "untrained"."""
    return weights is None or (
        isinstance(weights, str) and weights.lower() in ("none", "untrained")
    )


def own_content(weights: Any, name: str) -> tuple[Any, str]:
    """What a state dict or file of the user's holds.

    Args:
        weights: A path or a state dict.
        name: The model's name, for the sentence.

    Returns:
        (the content, its name for people).

    Raises:
        WeightsError: It is neither, or cannot be read.
    """
    if isinstance(weights, Mapping):
        return weights, "state dict"
    if is_path(weights):
        path = Path(weights).expanduser()
        return read_checkpoint(path), path.name
    raise WeightsError(f"Weights for {name} are a path to a file or a state dict, not {weights!r}.")


def is_path(weights: Any) -> bool:
    """Whether weights name a file, not one of torchvision's enums."""
    if isinstance(weights, os.PathLike):
        return True
    if not isinstance(weights, str):
        return False
    text = weights.lower()
    return (
        text.endswith(_SUFFIXES)
        or os.sep in weights
        or "/" in weights
        or weights.startswith("~")
        or (text not in _WORDS and Path(weights).exists())
    )
