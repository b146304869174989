"""What the current thread is doing: a backward, captures of its own.

In: nothing. Out: answers about the thread that asks. Must not know: layers, records, hooks.
"""

from __future__ import annotations

import threading

import torch

__all__ = ["backward_is_running", "foreign", "graph_task", "this_thread"]

# Autograd's number for the backward that runs in this thread, -1 outside one; torch's own
# checkpointing tells recomputation from forward by it.
graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)  # noqa: SLF001


def backward_is_running() -> bool:
    """Whether this thread is inside autograd's backward, where forwards are recomputations."""
    return bool(graph_task() != -1)


class _Owners(threading.local):
    """How many captures the current thread has open; such a thread works for these alone."""

    def __init__(self) -> None:
        # A list, so that a capture may be closed by another thread than opened it.
        self.count = [0]


_owners = _Owners()


def this_thread() -> list[int]:
    """The current thread's count of open captures; it stands for the thread."""
    return _owners.count


def foreign(owner: list[int]) -> bool:
    """Whether the current thread works for captures of its own, not for ``owner``'s."""
    mine = _owners.count
    return mine is not owner and mine[0] > 0
