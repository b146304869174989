"""Pillow's warnings, collected for one thread and left alone for everyone else.

In: Pillow's modules. Out: the texts that Pillow warned about inside a ``with`` block.
Must not know: pictures.

``warnings.catch_warnings`` swaps the filters of the whole process: two threads inside it at once
leave the wrong filters behind, and another thread's warnings would vanish meanwhile. So the name
``warnings`` inside those modules of Pillow that warn while reading is bound to a stand-in, which
collects within our block (per thread) and hands on to the real module everywhere else.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from PIL import (
    IcoImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
)

__all__ = ["collected_warnings"]

_local = threading.local()

MAX_COLLECTED = 20
"""A hostile file may cause thousands; no more than this are kept."""


class _Warnings:
    """Stands in for the module ``warnings`` inside one module of Pillow."""

    def __getattr__(self, name: str) -> Any:
        return getattr(warnings, name)

    def warn(
        self,
        message: str | Warning,
        category: type[Warning] | None = None,
        stacklevel: int = 1,
        source: Any = None,
        **more: Any,
    ) -> None:
        collected: list[str] | None = getattr(_local, "collected", None)
        if collected is None:
            # One level more, for this method: the warning is reported where it was.
            warnings.warn(message, category, stacklevel + 1, source, **more)
        elif len(collected) < MAX_COLLECTED:
            collected.append(str(message))


_stand_in = _Warnings()


def _bind(module: ModuleType) -> None:
    # Only where the name is the real module: nothing that someone else put there is replaced.
    if getattr(module, "warnings", None) is warnings:
        module.warnings = _stand_in  # type: ignore[attr-defined]


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Within the block, this thread's warnings from Pillow go to the list instead of the user.

    Yields:
        The list, at most 20 texts; it may be read after the block.
    """
    for module in (Image, IcoImagePlugin, JpegImagePlugin, PngImagePlugin, TiffImagePlugin):
        _bind(module)
    outer = getattr(_local, "collected", None)
    collected: list[str] = []
    _local.collected = collected
    try:
        yield collected
    finally:
        _local.collected = outer
