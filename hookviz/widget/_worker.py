"""Worker threads: long work off the kernel's message loop.

A kernel handles a widget's messages one by one, so a long handler would block every control.
Handlers only put tasks here. The thread is started when there is something to do and ends by
itself when there was nothing for a few seconds, so that a forgotten widget keeps no thread.

At interpreter exit every thread is ended before Python is: a thread that is inside torch when
the interpreter goes away takes the process down with it (exit code 134).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

Cancelled = Callable[[], bool]
Task = Callable[[Cancelled], object]

# Seconds at interpreter exit in which a job may end by its cancel flag, and in which an exception
# may end it.
_EXIT_BY_FLAG = 0.5
_EXIT_BY_ERROR = 0.3
_LONGEST_COMPUTATION = 60.0


class Worker:
    """Runs tasks on one thread: one exclusive job at a time, and small keyed tasks beside it.

    Args:
        name: Name of the thread.
        report: Called on the thread with what a task raised.
        rank: Order of the small tasks: the one whose key has the smallest rank is next.
        idle: Seconds without a task after which the thread ends.

    Attributes:
        busy: Label of the job that is waiting or running; "" for none.
        turn: Held while a job is running, which waits while somebody else holds it.
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
        self._job: Task | None = None
        self._tasks: dict[Hashable, tuple[float, Task]] = {}
        self._thread: threading.Thread | None = None
        self.busy = ""
        self.turn = threading.Lock()
        self._working = False
        self._cancel = threading.Event()
        self._closed = False
        _workers.add(self)

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
            if self._closed or self.busy:
                return False
            self._cancel = threading.Event()
            self.busy, self._job = label, task
            self._wake()
            return True

    def later(self, key: Hashable, task: Task, delay: float = 0.0) -> None:
        """Adds a small task; one that waits under the same key is replaced.

        Args:
            key: What the task is about.
            task: Called with a function that says whether a job waits, or the thread is to end.
            delay: Seconds before its turn. Where a task of that key waits already, the earlier of
                the two times counts, so that a stream of events cannot put it off for ever;
                `forget` the key first to begin anew.
        """
        due = time.monotonic() + delay
        with self._lock:
            if self._closed:
                return
            waiting = self._tasks.get(key)
            self._tasks[key] = (due if waiting is None else min(due, waiting[0]), task)
            self._wake()

    def forget(self, key: Hashable) -> None:
        """Drops a waiting small task."""
        with self._lock:
            self._tasks.pop(key, None)
            self._lock.notify_all()

    def cancel(self) -> bool:
        """Asks the job to end.

        Returns:
            Whether there was one.
        """
        with self._lock:
            if self.busy:
                self._cancel.set()
            return bool(self.busy)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until nothing is running and nothing is due; tasks of a later time do not count.

        Args:
            timeout: At most this many seconds; None for as long as it takes.

        Returns:
            Whether that came about.
        """
        with self._lock:
            return self._lock.wait_for(
                lambda: not (self._job or self._working or self._due()), timeout
            )

    def close(self, timeout: float = 2.0) -> None:
        """Ends the thread: what waits is dropped, what runs is asked to end.

        Args:
            timeout: Seconds to wait for the running task; afterwards it ends on its own.
        """
        thread = self.end()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def reopen(self) -> None:
        """Takes tasks again after `close`."""
        with self._lock:
            self._closed = _exiting

    def end(self) -> threading.Thread | None:
        """Begins to end the thread, and gives it; see `close`."""
        with self._lock:
            self._closed = True
            self._cancel.set()
            self._job = None
            self._tasks.clear()
            self._lock.notify_all()
            return self._thread

    def _wake(self) -> None:
        # The lock is held.
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=self.name, daemon=True)
            _threads.add(self._thread)
            self._thread.start()
        self._lock.notify_all()

    def _due(self) -> list[Hashable]:
        # The lock is held.
        now = time.monotonic()
        return [key for key, (due, _) in self._tasks.items() if due <= now]

    def _has_job(self) -> bool:
        return self._job is not None or self._closed

    def _next(self) -> Callable[[], object] | None:
        with self._lock:
            self._working = False
            if self._job is None:
                self.busy = ""
            self._lock.notify_all()
            end = time.monotonic() + self._idle
            while not self._closed:
                if task := self._job:
                    self._working, self._job = True, None
                    return partial(self._in_turn, task)
                if keys := self._due():
                    self._working = True
                    key = keys[0] if self._rank is None else min(keys, key=self._rank)
                    return partial(self._tasks.pop(key)[1], self._has_job)
                now = time.monotonic()
                if self._tasks:
                    self._lock.wait(max(0.0, min(due for due, _ in self._tasks.values()) - now))
                elif now < end:
                    self._lock.wait(end - now)
                else:
                    break
            self._thread = None
            self._lock.notify_all()
            return None

    def _in_turn(self, job: Task) -> None:
        with self.turn:
            job(self._cancel.is_set)

    def _loop(self) -> None:
        try:
            while (task := self._next()) is not None:
                try:
                    task()
                except BaseException as error:  # noqa: BLE001 - a failing task must not end the thread
                    if not _exiting:
                        with contextlib.suppress(Exception):
                            self._report(error)
                # Otherwise the last task's widget would live until the next one comes.
                del task
        finally:
            _threads.discard(threading.current_thread())

    def after_fork(self) -> None:
        """Ends the worker in a forked child: its thread, and who held its lock, stayed behind."""
        self._lock, self._thread = threading.Condition(), None
        self.turn = threading.Lock()
        self.end()


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()
_threads: set[threading.Thread] = set()
_exiting = False


def _end_threads() -> None:
    """Ends all threads, whatever they are doing.

    A job that looks at its cancel flag ends by that; Python code that does not gets one exception
    at its next instruction. What is left then is one call into C: a computation is waited for, as
    torch must not come back to an interpreter that is gone; a thread that only sleeps (a socket,
    a lock) can be left behind.
    """
    global _exiting
    _exiting = True
    for worker in list(_workers):
        worker.end()
    alive = _wait_for(list(_threads), _EXIT_BY_FLAG)
    # Once each: a second one would break what the first one has begun to put in order. That an
    # exception comes between opening a file and entering its `with` is why the flag comes first.
    for thread in alive:
        if thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
            )
    alive = _wait_for(alive, _EXIT_BY_ERROR)
    end = time.monotonic() + _LONGEST_COMPUTATION
    for thread in alive:
        while thread.is_alive() and _computes(thread) and time.monotonic() < end:
            thread.join(0.05)


def _wait_for(threads: list[threading.Thread], seconds: float) -> list[threading.Thread]:
    """Waits for the end of some threads; those that are left after so many seconds."""
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return [thread for thread in threads if thread.is_alive()]


def _computes(thread: threading.Thread) -> bool:
    """Whether a thread used the processor in the last few milliseconds."""
    if not hasattr(time, "pthread_getcpuclockid") or thread.ident is None:
        return False
    try:
        clock = time.pthread_getcpuclockid(thread.ident)
        before = time.clock_gettime_ns(clock)
        thread.join(0.05)
        return thread.is_alive() and time.clock_gettime_ns(clock) - before > 1_000_000
    except OSError:
        return False  # it ended meanwhile


def _forget_threads() -> None:
    _threads.clear()
    for worker in list(_workers):
        worker.after_fork()


atexit.register(_end_threads)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
