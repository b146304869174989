"""What was captured: runs, the threads that worked in them, and their records.

A run is one forward of the captured model. Each thread that works in a run keeps a log of its
own, so that hooks need no lock; logs meet only when the records are read.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from hookviz.activation import Activation, Kind
from hookviz.capture._leaves import leaves

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


RawRecord: TypeAlias = tuple[int, str, int, int, Kind, str, Tensor]
"""A :class:`Record` as hooks write it, at a third of the cost."""


class Record(NamedTuple):
    """One tensor that was kept; ``layer`` is the index of its :class:`Hooked`."""

    layer: int
    module_type: str
    call: int
    order: int
    kind: Kind
    leaf: str
    tensor: Tensor


@dataclass(slots=True)
class Hooked:
    """One selected layer: its index, the user's name for it, and its name in the model."""

    index: int
    name: str
    layer: str


class _Here(threading.local):
    """The current thread's log. Numbers of threads will not do: ended threads' are used again."""

    log: ThreadLog | None = None


@dataclass(eq=False, slots=True)
class ThreadLog:
    """The records of one thread in one run.

    Attributes:
        main: Whether the run was begun in this thread; others work for it.
        pending: Index, module type and inputs of calls that have not ended.
        span: Storage address, first and last element of the thread's first input: tells pieces
            of a batch apart.
    """

    run: Forward
    counts: list[int]
    counter: Iterator[int]
    main: bool
    native: int = field(default_factory=threading.get_native_id)
    open: bool = True
    records: list[RawRecord] = field(default_factory=list)
    pending: list[tuple[int, str, list[tuple[str, Tensor]]]] = field(default_factory=list)
    device: int | None = None
    span: tuple[int, int, int] | None = None

    def finished(self, index: int, call: int, order: int) -> None:
        """Turn the waiting inputs of a call that has now ended into records."""
        while self.pending:
            waiting, kind, found = self.pending.pop()
            # Calls above it never ended (the model caught their exception): they took no order.
            if waiting == index:
                self.records += [(index, kind, call, order, "input", p, t) for p, t in found]
                return

    def unfinished(self, last: int) -> Iterator[Record]:
        """The inputs of calls that began and did not end, innermost first, ordered after last."""
        seen: dict[int, int] = {}
        for order, (index, kind, found) in enumerate(reversed(list(self.pending)), last + 1):
            seen[index] = seen.get(index, 0) + 1
            call = self.counts[index] + seen[index]
            yield from (Record(index, kind, call, order, "input", p, t) for p, t in found)


@dataclass(eq=False)
class Forward:
    """One forward of the captured model, or calls of its layers outside of one (``detached``).

    Attributes:
        stop: What an early stop still waits for.
        unrecorded: Layer, call and order of calls made without gradients inside a forward with
            them.
        recomputed: Layers of the checkpointed part that is being recomputed, with the targets of
            their gradients.
        watched: How many tensors were watched under each index.
    """

    number: int
    detached: bool
    batch: int | None
    training: bool
    counter: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    gradients: dict[tuple[int, str, int, int, Kind, str], tuple[int, Tensor]] = field(
        default_factory=dict
    )
    error: str | None = None
    stopped: bool = False
    stop: set[int] | None = None
    views: list[Any] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)
    grad_mode: bool = field(default_factory=torch.is_grad_enabled)
    unrecorded: list[tuple[int, int, int]] = field(default_factory=list)
    recomputed: list[tuple[int, list[Any]]] = field(default_factory=list)
    watched: dict[int, int] = field(default_factory=dict)


class Store:
    """The runs of one capture.

    Args:
        hooked: The selected layers by index.
        parallel: Device order of ``DataParallel`` in the model, or None without one.

    Attributes:
        owner: The thread that opened the capture.
        notes: Why a layer that was called gave nothing.
        unkept: Why a tensor of a layer and kind could not be kept.
        ungraded: Why a layer has no gradient.
        structure: Description of a nested output by index, run and call.
    """

    def __init__(self, hooked: list[Hooked], parallel: list[int] | None) -> None:
        self.hooked = hooked
        self.owner = this_thread()
        self.parallel = parallel
        self.here = _Here()
        self.selected = len(hooked)
        self.open = True
        self.changes = 0
        self._active: list[Forward] = []
        self._lock = threading.Lock()
        self._empty()

    def _empty(self) -> None:
        # Logs know their run; a run must not know its logs, or both would outlive the capture.
        self.history: dict[Forward, list[ThreadLog]] = {}
        self.notes: dict[int, str] = {}
        self.unkept: dict[tuple[int, Kind], str] = {}
        self.structure: dict[tuple[int, int, int], str] = {}
        self.ungraded: dict[int, str] = {}

    def _ignores_this_thread(self) -> bool:
        """Whether calls in this thread are none of this capture's."""
        mine = _owners.count
        another = mine is not self.owner and mine[0] > 0
        return not self.open or another or backward_is_running()

    def begin(self, batch: int | None, *, training: bool) -> Forward | None:
        """Start a run in this thread; None where the forward is none of this capture's."""
        log = self.here.log
        calls_itself = log is not None and log.open and log.main and not log.run.detached
        if self._ignores_this_thread() or calls_itself:
            return None
        with self._lock:
            for run in [r for r in self._active if r.detached]:
                self._leave(run)
            run = self._run(batch, detached=False, training=training)
            self._log(run, main=True)
        return run

    def end(self, run: Forward, error: str | None, *, stopped: bool) -> None:
        """End a run, on whatever way out."""
        with self._lock:
            run.error, run.stopped = error, stopped
            self._leave(run)

    def enter(self, args: Any, *, training: bool) -> ThreadLog | None:
        """The log for a hook that runs outside a forward of the model in this thread.

        That is a worker thread of a forward (a replica), a layer called on its own, or a
        recomputation, which gets None.
        """
        log = self.here.log
        if self._ignores_this_thread():
            return None
        if log is not None and log.open:
            return log
        with self._lock:
            begun = [r for r in self._active if not r.detached] or self._active
            run = begun[-1] if begun else self._run(None, detached=True, training=training)
            log = self._log(run, main=not begun)
        log.span, log.device = _place(args)
        return log

    @property
    def runs(self) -> list[Forward]:
        """The runs so far, oldest first."""
        return list(self.history)

    def logs_of(self, *runs: Forward) -> list[ThreadLog]:
        """The logs of runs, in the order in which their threads came."""
        return [log for run in runs for log in list(self.history.get(run, ()))]

    @property
    def mark(self) -> tuple[object, ...]:
        """Changes with every record."""
        logs = self.logs_of(*self.runs)
        return self.changes, *((len(log.records), len(log.pending)) for log in logs)

    def log_here(self) -> ThreadLog | None:
        """This thread's log, if it has one and is not inside a backward."""
        log = self.here.log
        return None if log is None or not log.open or backward_is_running() else log

    def run_here(self) -> Forward:
        """This thread's run, else the latest one, else a detached one begun now."""
        log = self.here.log
        if log is not None and log.open:
            return log.run
        with self._lock:
            if not self.history:
                self._log(self._run(None, detached=True, training=False), main=True)
            return next(reversed(self.history))

    def watch_as(self, name: str) -> Hooked:
        """The index under which a watched tensor's gradients are kept."""
        with self._lock:
            for hooked in self.hooked[self.selected :]:
                if hooked.name == name:
                    return hooked
            self.hooked.append(Hooked(len(self.hooked), name, ""))
            return self.hooked[-1]

    def clear(self) -> None:
        """Forget every run."""
        with self._lock:
            for run in self.runs:
                self._leave(run)
                for handle in run.handles:
                    handle.remove()
            self._empty()
            self.changes += 1

    def close(self) -> None:
        """Stop recording; what was captured stays."""
        with self._lock:
            self.open = False
            for run in self.runs:
                self._leave(run)

    def _run(self, batch: int | None, *, detached: bool, training: bool) -> Forward:
        run = Forward(len(self.history) + 1, detached, batch, training)
        self.history[run] = []
        self._active.append(run)
        return run

    def _log(self, run: Forward, *, main: bool) -> ThreadLog:
        log = self.here.log = ThreadLog(run, [0] * self.selected, run.counter, main)
        self.history[run].append(log)
        return log

    def _leave(self, run: Forward) -> None:
        if run in self._active:
            self._active.remove(run)
        for log in self.history[run]:
            log.open = False

    def activation(self, run: Forward, raw: RawRecord, calls: int | None = None) -> Activation:
        """One record, by default as it stands now: its call is the last so far."""
        r = Record(*raw)
        return Activation(
            self.hooked[r.layer].name, r.call, calls or r.call, run.number, r.order,
            r.kind, r.leaf, r.module_type, r.tensor,
        )  # fmt: skip


def batch_of(args: Any, kwargs: Any) -> int | None:
    """The first dimension of the first tensor that a forward was given."""
    for _, tensor in itertools.chain(leaves(args), leaves(kwargs)):
        if tensor.dim() and not isinstance(tensor, nn.Parameter):
            return int(tensor.size(0))
    return None


def _place(args: Any) -> tuple[tuple[int, int, int] | None, int | None]:
    for _, tensor in leaves(args):
        try:
            start = int(tensor.storage_offset())
            dense = tensor.is_contiguous() and not tensor.is_meta
            span = (tensor.untyped_storage().data_ptr(), start, start + int(tensor.numel()))
        except RuntimeError:  # a tensor without ordinary memory: nested, sparse, a stand-in
            break
        return (span if dense else None), tensor.device.index
    return None, None
