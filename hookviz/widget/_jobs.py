"""One worker thread: long work off the kernel's message loop.

In: tasks. Out: their effects, one task at a time. Must not know: widgets, models, pictures.

A kernel handles a widget's messages one by one, so a long handler would block every control.
Handlers only put tasks here. The thread is started when there is something to do and ends by
itself when there was nothing for a few seconds, so that a forgotten widget keeps no thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable
from typing import Any

__all__ = ["Worker"]

Cancelled = Callable[[], bool]
Task = Callable[[Cancelled], None]


class Worker:
    """Runs tasks on one thread: one exclusive job at a time, and small keyed tasks beside it.

    Args:
        name: Name of the thread.
        report: Called on the thread with what a task raised.
        rank: Order of the small tasks: the one whose key has the smallest rank is next.
        idle: Seconds without a task after which the thread ends.
    """

    def __init__(
        self,
        name: str,
        report: Callable[[BaseException], None],
        *,
        rank: Callable[[Hashable], Any] | None = None,
        idle: float = 3.0,
    ) -> None:
        self.name = name
        self._report = report
        self._rank = rank
        self._idle = idle
        self._lock = threading.Condition()
        self._job: tuple[str, Task] | None = None
        self._tasks: dict[Hashable, Task] = {}
        self._thread: threading.Thread | None = None
        self._busy = ""
        self._working = False
        self._cancel = threading.Event()
        self._closed = False

    @property
    def busy(self) -> str:
        """Label of the job that is waiting or running; "" for none."""
        with self._lock:
            return self._job[0] if self._job else self._busy

    @property
    def cancelled(self) -> bool:
        """Whether the running job was asked to end."""
        return self._cancel.is_set()

    def start(self, label: str, task: Task) -> bool:
        """Starts a job unless one is waiting or running.

        Args:
            label: What the job is, for `busy`.
            task: Called with a function that says whether the job should end.

        Returns:
            Whether it was taken: a double click starts one job.
        """
        with self._lock:
            if self._closed or self._job or self._busy:
                return False
            self._cancel = threading.Event()
            self._job = (label, task)
            self._wake()
            return True

    def later(self, key: Hashable, task: Task) -> None:
        """Adds a small task; one that waits under the same key is replaced.

        Args:
            key: What the task is about.
            task: Called like a job's.
        """
        with self._lock:
            if self._closed:
                return
            self._tasks[key] = task
            self._wake()

    def forget(self, key: Hashable | None = None) -> None:
        """Drops a waiting small task, or all of them."""
        with self._lock:
            if key is None:
                self._tasks.clear()
            else:
                self._tasks.pop(key, None)
            self._lock.notify_all()

    def cancel(self) -> bool:
        """Asks the job to end.

        Returns:
            Whether there was one.
        """
        with self._lock:
            if not (self._job or self._busy):
                return False
            self._cancel.set()
            return True

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until nothing is waiting or running.

        Args:
            timeout: At most this many seconds; None for as long as it takes.

        Returns:
            Whether that came about.
        """
        with self._lock:
            return self._lock.wait_for(
                lambda: not (self._job or self._tasks or self._working), timeout
            )

    def close(self, timeout: float = 2.0) -> None:
        """Ends the thread: what waits is dropped, what runs is asked to end.

        Args:
            timeout: Seconds to wait for the running task; afterwards it ends on its own.
        """
        with self._lock:
            self._closed = True
            self._cancel.set()
            self._job = None
            self._tasks.clear()
            self._lock.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def reopen(self) -> None:
        """Takes tasks again after `close`."""
        with self._lock:
            self._closed = False

    def _wake(self) -> None:
        # The lock is held.
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=self.name, daemon=True)
            self._thread.start()
        self._lock.notify_all()

    def _next(self) -> Task | None:
        with self._lock:
            self._busy, self._working = "", False
            self._lock.notify_all()
            found = self._lock.wait_for(
                lambda: self._closed or self._job or self._tasks, self._idle
            )
            if self._closed or not found:
                self._thread = None
                self._lock.notify_all()
                return None
            self._working = True
            if self._job:
                self._busy, task = self._job
                self._job = None
                return task
            keys = list(self._tasks)
            rank = self._rank
            key = keys[0] if rank is None else min(keys, key=rank)
            return self._tasks.pop(key)

    def _loop(self) -> None:
        while (task := self._next()) is not None:
            try:
                task(self._cancel.is_set)
            except BaseException as error:  # noqa: BLE001 - a task's failure must not end the thread
                with contextlib.suppress(Exception):
                    self._report(error)
            # Otherwise the last task's widget would live until the next one comes.
            del task
