"""When something is told: at most so often, or once all is quiet.

In: events. Out: calls, fewer than events. Must not know: what is told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Quiet", "Teller", "Throttle"]


class Throttle:
    """Says when something may be told again: at most ten times a second.

    Args:
        interval: Seconds between two tellings.
    """

    def __init__(self, interval: float = 0.1) -> None:
        self.interval = interval
        self._last = float("-inf")

    def ready(self) -> bool:
        """Whether enough time went by; if so, the time counts anew."""
        now = time.monotonic()
        if now - self._last < self.interval:
            return False
        self._last = now
        return True


class Teller:
    """Calls something at most ten times a second; what is asked for last is told too, a bit late.

    A `Throttle` alone would keep the last of several quick events to itself until the next one.

    Args:
        tell: What is called, on the asking thread or, late, on a timer's; never twice at once.
        report: Called with what ``tell`` raised on the timer's thread.
        interval: Seconds between two calls.
    """

    def __init__(
        self,
        tell: Callable[[], None],
        report: Callable[[BaseException], None],
        interval: float = 0.1,
    ) -> None:
        self._tell, self._report = tell, report
        self._interval = interval
        self._last = float("-inf")
        self._timer: threading.Timer | None = None
        self._ended = False
        self._lock = threading.Lock()

    def ask(self) -> None:
        """Calls at once where enough time went by, else as soon as it has."""
        with self._lock:
            wait = self._last + self._interval - time.monotonic()
            if self._ended or self._timer is not None:
                return
            if wait <= 0:
                self._last = time.monotonic()
                self._tell()
            else:
                self._timer = threading.Timer(wait, self._late)
                self._timer.daemon = True
                self._timer.start()

    def end(self) -> None:
        """No call comes after this returns."""
        with self._lock:
            self._ended = True
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _late(self) -> None:
        with self._lock:
            self._timer = None
            if self._ended:
                return
            self._last = time.monotonic()
            try:
                self._tell()
            except Exception as error:  # noqa: BLE001 - on a timer's thread nobody else would see it
                self._report(error)


class Quiet:
    """Calls something once nothing has asked for it during a while, on a thread of its own.

    Args:
        name: Name of that thread, which lives while a call is waited for.
        task: What is called; never twice at once.
        report: Called on the thread with what the task raised.
        rest: Seconds without a question before the call.
    """

    def __init__(
        self,
        name: str,
        task: Callable[[], None],
        report: Callable[[BaseException], None],
        rest: float = 0.5,
    ) -> None:
        self._name, self._task, self._report = name, task, report
        self._rest = rest
        self._due = 0.0
        self._ended = False
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()

    def ask(self) -> None:
        """Has the call made after the rest; the rest begins anew."""
        with self._changed:
            if self._ended:
                return
            self._due = time.monotonic() + self._rest
            if self._thread is None:
                self._thread = threading.Thread(target=self._wait, name=self._name, daemon=True)
                self._thread.start()

    def end(self) -> None:
        """What is waited for is not called any more."""
        with self._changed:
            self._ended, self._due = True, 0.0
            self._changed.notify_all()

    def begin(self) -> None:
        """Takes questions again after `end`."""
        with self._changed:
            self._ended = False

    def _wait(self) -> None:
        while True:
            with self._changed:
                while not self._ended and (left := self._due - time.monotonic()) > 0:
                    self._changed.wait(left)
                if self._ended or not self._due:
                    self._thread = None
                    return
                self._due = 0.0
            try:
                self._task()
            except Exception as error:  # noqa: BLE001 - nobody else would see it on this thread
                self._report(error)
