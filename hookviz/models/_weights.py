"""torch's cache of weights: what is there, whether it is whole.

In: the cache's folder. Out: what it holds, verified paths.
Must not know: how a file is downloaded or what its tensors fit.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torchvision.models as tv

from hookviz.errors import RunCancelled
from hookviz.models._bundled_vgg16 import BUNDLED_FILE, BUNDLED_NAME
from hookviz.models._zoo import categories, default_member, documentation, file_of, members

__all__ = [
    "CachedFile",
    "WeightsInfo",
    "cache_folder",
    "cached_path",
    "cached_weights",
    "expected_hash",
    "hash_matches",
    "list_weights",
]

_HASH_IN_NAME = re.compile(r"-([0-9a-f]{8,64})\.")  # the rule of torch.hub


@dataclass(frozen=True)
class WeightsInfo:
    """Weights that a model can be loaded with.

    Attributes:
        name: What ``load_model(weights=…)`` takes, for example "IMAGENET1K_V1".
        default: Whether torchvision calls them its DEFAULT.
        file: Name of the file in torch's cache.
        url: Where it is downloaded from; "" for the bundled one.
        megabytes: Size of the file in MB (10⁶ bytes as torchvision states them); 0 where unknown.
        cached: Whether the file is there (its hash is checked when it is loaded).
        classes: Number of class names; 0 where there are none.
        documentation: What torchvision says of them, on one line.
        metrics: For example {"ImageNet-1K acc@1": 71.592}.
    """

    name: str
    default: bool
    file: str
    url: str
    megabytes: float
    cached: bool
    classes: int
    documentation: str
    metrics: dict[str, float]


@dataclass(frozen=True)
class CachedFile:
    """A file in torch's cache.

    Attributes:
        path: Where it lies.
        bytes: Its size.
        models: Which weights it is, for example ("vgg16 IMAGENET1K_V1",); () where unknown.
        state: "whole" (hash checked), "corrupt", "partial" (left by a broken download),
            "unchecked", or "no hash" (its name carries none).
    """

    path: Path
    bytes: int
    models: tuple[str, ...]
    state: str


def cache_folder() -> Path:
    """Where torch keeps downloaded weights: ``torch.hub.get_dir()/checkpoints``."""
    return Path(torch.hub.get_dir()) / "checkpoints"


def cached_path(member: Any) -> Path:
    """Where a member's file lies, or would lie."""
    return cache_folder() / file_of(member)


def expected_hash(file: str) -> str:
    """The beginning of a file's SHA-256 that its name carries; "" where it carries none.

    Examples:
        >>> expected_hash("resnet18-f37072fd.pth")
        'f37072fd'
        >>> expected_hash("my.pth")
        ''
    """
    match = _HASH_IN_NAME.search(file)
    return match.group(1) if match else ""


_checked: dict[tuple[str, int, int, int], str] = {}


def file_hash(path: Path, cancelled: Callable[[], bool] | None = None) -> str:
    """A file's SHA-256; remembered while its size and times of change stay the same.

    Raises:
        OSError: The file cannot be read.
        RunCancelled: ``cancelled`` said so.
    """
    stat = path.stat()
    key = (str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    if key not in _checked:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(1 << 22):
                if cancelled is not None and cancelled():
                    raise RunCancelled(f"Checking {path.name} was cancelled.")
                digest.update(piece)
        _checked[key] = digest.hexdigest()
    return _checked[key]


def hash_matches(path: Path, cancelled: Callable[[], bool] | None = None) -> bool:
    """Whether a file is what its name says; True where the name carries no hash."""
    expected = expected_hash(path.name)
    return not expected or file_hash(path, cancelled).startswith(expected)


def list_weights(model: str) -> list[WeightsInfo]:
    """The weights that a torchvision model can be loaded with, DEFAULT first.

    Args:
        model: A builder's name.

    Returns:
        torchvision's members, and for "vgg16" the bundled ones.

    Raises:
        ModelError: The model is unknown.

    Examples:
        >>> [w.name for w in list_weights("vgg16")]
        ['IMAGENET1K_V1', 'IMAGENET1K_FEATURES', 'bundled']
    """
    default = default_member(model)
    found = [
        WeightsInfo(
            name=member.name,
            default=member is default,
            file=file_of(member),
            url=str(member.url),
            megabytes=float(member.meta.get("_file_size", 0.0)),
            cached=cached_path(member).is_file(),
            classes=len(categories(member)),
            documentation=documentation(member),
            metrics={
                f"{data} {name}": float(value)
                for data, values in (member.meta.get("_metrics") or {}).items()
                for name, value in values.items()
            },
        )
        for member in sorted(members(model), key=lambda member: member is not default)
    ]
    if model == "vgg16":
        text = f"Shipped with hookviz: {BUNDLED_NAME}; no classifier."
        found.append(WeightsInfo("bundled", False, BUNDLED_FILE, "", 29.4, True, 0, text, {}))
    return found


@cache
def _owners() -> dict[str, tuple[str, ...]]:
    owners: dict[str, list[str]] = {}
    for name in tv.list_models():
        for member in members(name):
            owners.setdefault(file_of(member), []).append(f"{name} {member.name}")
    return {file: tuple(names) for file, names in owners.items()}


def cached_weights(*, check: bool = False) -> list[CachedFile]:
    """What torch's cache holds.

    Args:
        check: Read every file and compare its hash with its name (about a second per GB).

    Returns:
        Its files by name; empty where the folder does not exist.
    """
    folder = cache_folder()
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError:
        return []
    return [
        CachedFile(path, path.stat().st_size, _owners().get(path.name, ()), _state(path, check))
        for path in paths
    ]


def _state(path: Path, check: bool) -> str:
    if path.suffix == ".partial":
        return "partial"
    if not expected_hash(path.name):
        return "no hash"
    if not check:
        return "unchecked"
    try:
        return "whole" if hash_matches(path) else "corrupt"
    except OSError:
        return "unchecked"
