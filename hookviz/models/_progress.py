"""How far a download is, told to a bar or a callable at a bearable rate.

In: bytes done and in all. Out: a bar on stderr, or calls. Must not know: what is downloaded.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from tqdm import tqdm

__all__ = ["Progress", "reporting"]

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all (0 where unknown) and the file's name, 10 times a second
at most, and once at the end."""

_REPORT_SECONDS = 0.1


@contextlib.contextmanager
def reporting(progress: bool | Progress, name: str) -> Iterator[Progress]:
    """A callable that is cheap to call for every piece."""
    bar: Any = None
    last = 0.0
    state = (0, 0)

    def tell(done: int, total: int) -> None:
        nonlocal bar
        if callable(progress):
            progress(done, total, name)
        elif progress and done:
            if bar is None:  # not before something arrives: offline shows a sentence, no bar
                bar = tqdm(unit="B", unit_scale=True, unit_divisor=1024, desc=name)
            bar.total = total or None
            bar.update(done - bar.n)

    def report(done: int, total: int, _name: str) -> None:
        nonlocal last, state
        state = (done, total)
        now = time.monotonic()
        if now - last >= _REPORT_SECONDS:
            last = now
            tell(done, total)

    try:
        yield report
        tell(*state)
    finally:
        if bar is not None:
            bar.close()
