"""Encoding and writing on a few threads while the next picture is drawn.

zlib and the operating system release the interpreter's lock, so threads help with large pictures;
small ones are bundled by the caller, because handing one over costs as much as writing it. At most
a few pieces wait, so that memory stays bounded.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["Cancelled", "Pipeline", "worker_count"]


class Cancelled(Exception):  # noqa: N818 - it is a way out, not an error, and stays in this part
    """The caller asked for the end."""


def worker_count() -> int:
    """Threads that are worth while: one per core that this program may use, at most four."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows
        cores = os.cpu_count() or 1
    return max(1, min(4, cores))


class Pipeline:
    """Runs pieces of work in order of arrival, a few at a time.

    Args:
        total: Files in all.
        progress: Called in the caller's thread after each file: done, total, name.
        cancelled: Asked in the caller's thread before each piece.
    """

    def __init__(
        self,
        total: int,
        progress: Callable[[int, int, str], None] | None,
        cancelled: Callable[[], bool] | None,
    ) -> None:
        self.total = total
        self.done: list[str] = []
        self._progress = progress
        self._cancelled = cancelled
        self._workers = worker_count()
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="hookviz-export")
        self._waiting: deque[tuple[Sequence[str], Future[None]]] = deque()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for what has begun; drops what has not."""
        # What has begun ends by itself within one file; its part is removed or named.
        self._pool.shutdown(wait=True, cancel_futures=True)

    def proceed(self) -> None:
        """Raises Cancelled where the caller asked for the end."""
        if self._cancelled is not None and self._cancelled():
            raise Cancelled

    def put(self, names: Sequence[str], work: Callable[[], None]) -> None:
        """Hands over one piece of work; waits while too many are under way.

        Args:
            names: The files that it writes.
            work: Writes them.

        Raises:
            Cancelled: The caller asked for the end.
            Exception: What an earlier piece raised.
        """
        self.proceed()
        self._waiting.append((names, self._pool.submit(work)))
        while self._waiting and (
            len(self._waiting) > 2 * self._workers or self._waiting[0][1].done()
        ):
            self._take()

    def wrote(self, name: str) -> None:
        """A file is finished; says so."""
        self.done.append(name)
        if self._progress is not None:
            self._progress(len(self.done), self.total, name)

    def drain(self) -> None:
        """Waits for all that is under way."""
        while self._waiting:
            self._take()
            self.proceed()

    def _take(self) -> None:
        names, future = self._waiting.popleft()
        future.result()
        for name in names:
            self.wrote(name)
