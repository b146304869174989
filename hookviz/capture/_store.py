"""What was captured: runs, the threads that worked in them, and their records.

In: records from hooks, in whatever thread they run. Out: Activations in order of execution.
Must not know: how hooks are set, how tensors are copied.

A run is one forward of the captured model. Each thread that works in a run writes into a lane of
its own, so that hooks need no lock; lanes meet only when the records are read.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hookviz.activation import Activation, Kind
from hookviz.capture._leaves import leaves
from hookviz.capture._threads import backward_is_running, foreign

__all__ = ["Hooked", "Lane", "Record", "Run", "Store", "backward_is_running", "batch_of"]

Record: TypeAlias = tuple[int, str, int, int, Kind, str, Tensor]
"""Index of the layer, module type, call, order, kind, leaf, copy."""


class _Here(threading.local):
    """The current thread's lane. Numbers of threads will not do: ended threads' are used again."""

    lane: Lane | None = None


@dataclass(frozen=True)
class Hooked:
    """One ticked layer: its index, the user's name for it, and its name in the model."""

    index: int
    own: str
    layer: str


@dataclass(eq=False, slots=True)
class Lane:
    """The records of one thread in one run."""

    run: Run
    native: int
    counts: list[int]
    counter: Iterator[int]
    main: bool
    """Whether the run was begun in this thread; others work for it."""
    open: bool = True
    records: list[Record] = field(default_factory=list)
    pending: list[tuple[int, str, list[tuple[str, Tensor]]]] = field(default_factory=list)
    device: int | None = None
    span: tuple[int, int, int] | None = None
    """Storage address, first and last element of the thread's first input: tells pieces apart."""

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
        for place, (index, kind, found) in enumerate(reversed(list(self.pending))):
            seen[index] = seen.get(index, 0) + 1
            call = self.counts[index] + seen[index]
            order = last + 1 + place
            yield from ((index, kind, call, order, "input", p, t) for p, t in found)


@dataclass(eq=False)
class Run:
    """One forward of the captured model, or calls of its layers outside of one (``loose``)."""

    number: int
    loose: bool
    batch: int | None
    training: bool
    counter: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    gradients: dict[tuple[int, str, int, int, Kind, str], tuple[int, Tensor]] = field(
        default_factory=dict
    )
    active: bool = True
    error: str | None = None
    stopped: bool = False
    stop: Any = None
    views: list[Any] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)
    grad_mode: bool = field(default_factory=torch.is_grad_enabled)
    unrecorded: list[tuple[int, int, int]] = field(default_factory=list)
    """Layer, call and order of calls made without gradients inside a forward with them."""
    burst: list[tuple[int, list[Any]]] = field(default_factory=list)
    """Layers of the checkpointed part that is being recomputed, with their gradients' targets."""
    watched: dict[int, int] = field(default_factory=dict)


class Store:
    """The runs of one capture.

    Args:
        hooked: The ticked layers by index.
        owner: ``this_thread()`` where the capture was opened.
        parallel: Device order of ``DataParallel`` in the model, or None without one.
    """

    def __init__(self, hooked: list[Hooked], owner: list[int], parallel: list[int] | None) -> None:
        self.hooked = hooked
        self.owner = owner
        self.parallel = parallel
        self.here = _Here()
        self._active: list[Run] = []
        # Lanes know their run; a run must not know its lanes, or both would outlive the capture.
        self.history: dict[Run, list[Lane]] = {}
        self.notes: dict[int, str] = {}
        self.unkept: dict[tuple[int, Kind], str] = {}
        self.structure: dict[tuple[int, int, int], str] = {}
        self.ungraded: dict[int, str] = {}
        self.ticked = len(hooked)
        self.open = True
        self.changes = 0
        self._lock = threading.Lock()

    def begin(self, batch: int | None, *, training: bool) -> Run | None:
        """Start a run in this thread; None where the forward is none of this capture's."""
        if not self.open or backward_is_running() or foreign(self.owner):
            return None
        lane = self.here.lane
        if lane is not None and lane.open and lane.main and not lane.run.loose:
            return None  # the model calls itself
        with self._lock:
            for run in [r for r in self._active if r.loose]:
                self._leave(run)
            run = self._run(batch, loose=False, training=training)
            self._lane(run, main=True)
        return run

    def end(self, run: Run, error: str | None, *, stopped: bool) -> None:
        """End a run, on whatever way out."""
        with self._lock:
            run.error, run.stopped = error, stopped
            self._leave(run)

    def enter(self, args: Any, *, training: bool) -> Lane | None:
        """The lane for a hook that runs outside a forward of the model in this thread.

        That is a worker thread of a forward (a replica), a layer called on its own, or a
        recomputation, which gets None.
        """
        if not self.open or backward_is_running() or foreign(self.owner):
            return None
        lane = self.here.lane
        if lane is not None and lane.open:
            return lane
        with self._lock:
            forwards = [r for r in self._active if not r.loose]
            begun = forwards or self._active
            run = begun[-1] if begun else self._run(None, loose=True, training=training)
            lane = self._lane(run, main=not begun)
        lane.span, lane.device = _place(args)
        return lane

    @property
    def runs(self) -> list[Run]:
        """The runs so far, oldest first."""
        return list(self.history)

    def lanes_of(self, run: Run) -> list[Lane]:
        """The lanes of a run, in the order in which their threads came."""
        return list(self.history.get(run, ()))

    @property
    def mark(self) -> tuple[int, ...]:
        """Changes with every record."""
        lanes = [lane for run in self.runs for lane in self.lanes_of(run)]
        return (
            self.changes,
            len(lanes),
            *(len(x.records) for x in lanes),
            *(len(x.pending) for x in lanes),
        )

    def lane_here(self) -> Lane | None:
        """This thread's lane, if it has one and is not inside a backward."""
        lane = self.here.lane
        return None if lane is None or not lane.open or backward_is_running() else lane

    def run_here(self) -> Run:
        """This thread's run, else the latest one, else a loose one begun now."""
        lane = self.here.lane
        if lane is not None and lane.open:
            return lane.run
        with self._lock:
            if self.history:
                return next(reversed(self.history))
            run = self._run(None, loose=True, training=False)
            self._lane(run, main=True)
            return run

    def watch_as(self, name: str) -> Hooked:
        """The index under which a watched tensor's gradients are kept."""
        with self._lock:
            for hooked in self.hooked[self.ticked :]:
                if hooked.own == name:
                    return hooked
            hooked = Hooked(len(self.hooked), name, "")
            self.hooked.append(hooked)
            return hooked

    def clear(self) -> None:
        """Forget every run."""
        with self._lock:
            for run in self.runs:
                self._leave(run)
                for handle in run.handles:
                    handle.remove()
            self.history = {}
            self.notes, self.structure, self.ungraded, self.unkept = {}, {}, {}, {}
            self.changes += 1

    def close(self) -> None:
        """Stop recording; what was captured stays."""
        with self._lock:
            self.open = False
            for run in self.runs:
                self._leave(run)

    def _run(self, batch: int | None, *, loose: bool, training: bool) -> Run:
        run = Run(len(self.history) + 1, loose, batch, training)
        self.history[run] = []
        self._active.append(run)
        return run

    def _lane(self, run: Run, *, main: bool) -> Lane:
        lane = Lane(run, threading.get_native_id(), [0] * self.ticked, run.counter, main)
        self.history[run].append(lane)
        self.here.lane = lane
        return lane

    def _leave(self, run: Run) -> None:
        run.active = False
        if run in self._active:
            self._active.remove(run)
        for lane in self.history[run]:
            lane.open = False

    def activation(self, run: Run, record: Record) -> Activation:
        """One record as it stands now, for callers that want it at once."""
        index, kind_of_module, call, order, kind, leaf, tensor = record
        own = self.hooked[index].own
        return Activation(own, call, call, run.number, order, kind, leaf, kind_of_module, tensor)


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
            return None, None
        return (span if dense else None), tensor.device.index
    return None, None
