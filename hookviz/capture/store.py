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
from threading import get_ident
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hookviz.capture.activation import Activation, Kind
from hookviz.capture.leaves import leaves

__all__ = ["Hooked", "Lane", "Record", "Run", "Store", "backward_is_running", "foreign"]

Record: TypeAlias = tuple[int, str, int, int, Kind, str, Tensor]
"""Index of the layer, module type, call, order, kind, leaf, copy."""

_KINDS: dict[str, int] = {"input": 0, "output": 1, "output_gradient": 2, "input_gradient": 3}

# Autograd's number for the backward that runs in this thread, -1 outside one; torch's own
# checkpointing tells recomputation from forward by it.
_graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)  # noqa: SLF001


def backward_is_running() -> bool:
    """Whether this thread is inside autograd's backward, where forwards are recomputations."""
    return bool(_graph_task() != -1)


# Threads that have captures open. Their forwards belong to these captures alone.
_owners: dict[int, int] = {}
_owners_lock = threading.Lock()


def own_thread(ident: int, step: int) -> None:
    """Count a capture opened (+1) or closed (-1) by a thread."""
    with _owners_lock:
        count = _owners.get(ident, 0) + step
        if count > 0:
            _owners[ident] = count
        else:
            _owners.pop(ident, None)


def foreign(owner: int) -> bool:
    """Whether the current thread works for captures of its own, not for ``owner``'s."""
    ident = get_ident()
    return ident != owner and ident in _owners


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
    ident: int
    native: int
    counts: list[int]
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
    main: int
    loose: bool
    batch: int | None
    training: bool
    counter: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    gradients: dict[tuple[int, str, int, int, Kind, str], Tensor] = field(default_factory=dict)
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
        owner: Thread that opened the capture.
        parallel: Device order of ``DataParallel`` in the model, or None without one.
    """

    def __init__(self, hooked: list[Hooked], owner: int, parallel: list[int] | None) -> None:
        self.hooked = hooked
        self.owner = owner
        self.parallel = parallel
        self.lanes: dict[int, Lane] = {}
        # Lanes know their run; a run must not know its lanes, or both would outlive the capture.
        self.history: dict[Run, list[Lane]] = {}
        self.notes: dict[int, str] = {}
        self.structure: dict[tuple[int, int, int], str] = {}
        self.ungraded: dict[int, str] = {}
        self.ticked = len(hooked)
        self.open = True
        self.changes = 0
        self._lock = threading.Lock()

    def begin(self, batch: int | None, *, training: bool) -> Run | None:
        """Start a run in this thread; None where the forward is none of this capture's."""
        ident = get_ident()
        if not self.open or backward_is_running() or foreign(self.owner):
            return None
        lane = self.lanes.get(ident)
        if lane is not None and not lane.run.loose:
            return None  # the model calls itself
        with self._lock:
            for run in self.history:
                if run.loose and run.active:
                    self._leave(run)
            run = self._run(ident, batch, loose=False, training=training)
        self._lane(run, ident)
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
        ident = get_ident()
        with self._lock:
            lane = self.lanes.get(ident)
            if lane is not None:
                return lane
            active = [r for r in self.runs if r.active]
            forwards = [r for r in active if not r.loose]
            if forwards:
                run = forwards[-1]
            elif active:
                run = active[-1]
            else:
                run = self._run(ident, None, loose=True, training=training)
            lane = self._lane(run, ident)
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
        lane = self.lanes.get(get_ident())
        return None if lane is None or backward_is_running() else lane

    def run_here(self) -> Run:
        """This thread's run, else the latest one, else a loose one begun now."""
        lane = self.lanes.get(get_ident())
        if lane is not None:
            return lane.run
        with self._lock:
            if self.runs:
                return self.runs[-1]
            run = self._run(get_ident(), None, loose=True, training=False)
            self._lane(run, get_ident())
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
            self.notes, self.structure, self.ungraded = {}, {}, {}
            self.changes += 1

    def close(self) -> None:
        """Stop recording; what was captured stays."""
        with self._lock:
            self.open = False
            for run in self.runs:
                self._leave(run)

    def _run(self, ident: int, batch: int | None, *, loose: bool, training: bool) -> Run:
        run = Run(len(self.history) + 1, ident, loose, batch, training)
        self.history[run] = []
        return run

    def _lane(self, run: Run, ident: int) -> Lane:
        counts = [0] * self.ticked
        lane = Lane(run, ident, threading.get_native_id(), counts)
        self.history[run].append(lane)
        self.lanes[ident] = lane
        return lane

    def _leave(self, run: Run) -> None:
        run.active = False
        for ident, lane in list(self.lanes.items()):
            if lane.run is run:
                del self.lanes[ident]

    def activation(self, run: Run, record: Record) -> Activation:
        """One record as it stands now, for callers that want it at once."""
        index, kind_of_module, call, order, kind, leaf, tensor = record
        own = self.hooked[index].own
        return Activation(own, call, call, run.number, order, kind, leaf, kind_of_module, tensor)


def collect(store: Store, records: Iterator[tuple[Run, list[Record]]]) -> tuple[Activation, ...]:
    """Activations of every run, ordered by run, order and kind."""
    found: list[Activation] = []
    for run, rows in records:
        calls: dict[int, int] = {}
        for row in rows:
            calls[row[0]] = max(calls.get(row[0], 0), row[2])
        rows.sort(key=lambda row: (row[3], _KINDS[row[4]]))
        found += [
            Activation(
                store.hooked[i].own,
                call,
                calls[i],
                run.number,
                order,
                kind,
                leaf,
                kind_of_module,
                tensor,
            )
            for i, kind_of_module, call, order, kind, leaf, tensor in rows
        ]
    return tuple(found)


def batch_of(args: Any, kwargs: Any) -> int | None:
    """The first dimension of the first tensor that a forward was given."""
    for _, tensor in itertools.chain(leaves(args), leaves(kwargs)):
        if tensor.dim() and not isinstance(tensor, nn.Parameter):
            return int(tensor.shape[0])
    return None


def _place(args: Any) -> tuple[tuple[int, int, int] | None, int | None]:
    for _, tensor in leaves(args):
        if tensor.layout is not torch.strided or tensor.is_meta:
            return None, None
        start = int(tensor.storage_offset())
        dense = tensor.is_contiguous()
        span = (tensor.untyped_storage().data_ptr(), start, start + int(tensor.numel()))
        return (span if dense else None), tensor.device.index
    return None, None
