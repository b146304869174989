"""How far a long explanation is, how long it still takes, and whether it is to go on."""

from __future__ import annotations

import time
from collections.abc import Callable

from hookviz.errors import HookvizError, RunCancelled

Progress = Callable[[int, int, float], object]
"""Called with the steps done, the steps in all, and the seconds that the rest will take."""


class Steps:
    """Counts the steps of one explanation.

    Args:
        progress: Called after each step; None for nobody.
        cancelled: Asked before the first step and after each; True ends the explanation.
        what: What is ended then, for the sentence.
    """

    def __init__(
        self, progress: Progress | None, cancelled: Callable[[], bool] | None, what: str
    ) -> None:
        for name, call in (("progress", progress), ("cancelled", cancelled)):
            if call is not None and not callable(call):
                raise HookvizError(f"{name} must be a function or None, not {call!r:.80}.")
        self._progress, self.cancelled, self._what = progress, cancelled, what
        self._began = time.monotonic()
        self.done = self.total = 0

    def expect(self, count: int) -> None:
        """Further steps are to come."""
        self.total += count
        self.proceed()

    def proceed(self) -> None:
        """Goes on, or not.

        Raises:
            RunCancelled: ``cancelled`` answered True.
        """
        if self.cancelled is not None and self.cancelled():
            raise RunCancelled(f"{self._what} was cancelled after {self.done} of {self.total}.")

    def step(self, count: int = 1) -> None:
        """So many steps were done.

        Raises:
            RunCancelled: ``cancelled`` answered True.
        """
        self.done += count
        if self._progress is not None:
            spent = time.monotonic() - self._began
            self._progress(self.done, self.total, spent / self.done * (self.total - self.done))
        self.proceed()
