"""What was captured: runs, the threads that worked in them, and their records.

A run is one forward of the captured model. Each thread that works in a run keeps a log of its
own, so that hooks need no lock; logs meet only when the records are read, and the pieces of a
batch that several threads worked on are joined again in input order.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from hookviz._axes import KnownAxes, Windows
from hookviz._text import error_text
from hookviz.activation import Activation, Kind
from hookviz.capture._leaves import Leaves, leaves
from hookviz.capture._module_hooks import EarlyStop

# Autograd's number for the backward that runs in this thread, -1 outside one; torch's own
# checkpointing tells recomputation from forward by it.
graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)  # noqa: SLF001


def backward_is_running() -> bool:
    """Whether this thread is inside autograd's backward, where forwards are recomputations."""
    return bool(graph_task() != -1)


class _ThisThread(threading.local):
    """Of the current thread: an entry for each capture open in it; it works for these alone."""

    def __init__(self) -> None:
        # A list stands for the thread, so that another thread may close the capture.
        self.opened: list[None] = []


_this_thread = _ThisThread()

RawRecord: TypeAlias = tuple[int, str, int, int, Kind, str, Tensor]
"""A `Record` as hooks write it, at a third of the cost."""


class Record(NamedTuple):
    """One tensor that was kept; ``layer`` is the index of its `Hooked`."""

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
        device: Index of the device of the thread's first input, -1 without one.
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
    pending: list[tuple[int, str, Leaves]] = field(default_factory=list)
    device: int = -1
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
        calls = self.counts.copy()
        for order, (index, kind, found) in enumerate(reversed(list(self.pending)), last + 1):
            calls[index] += 1
            yield from (Record(index, kind, calls[index], order, "input", p, t) for p, t in found)


@dataclass(eq=False)
class Forward:
    """One forward of the captured model, or calls of its layers outside of one (``detached``).

    Attributes:
        gradients: A record without its tensor → place of the leaf in its call, and the gradient.
        stop: What an early stop still waits for.
        at_end: What is to be done when the forward ends.
        handles: Those of hooks on tensors.
        unrecorded: Layer, call and order of calls made without gradients inside a forward with
            them.
        recomputed: Layers of the checkpointed part that is being recomputed, with the targets of
            their gradients.
        watched: How many tensors were watched under each name.
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
    at_end: list[Callable[[], None]] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)
    grad_mode: bool = field(default_factory=torch.is_grad_enabled)
    unrecorded: list[tuple[int, int, int]] = field(default_factory=list)
    recomputed: list[tuple[int, list[Any]]] = field(default_factory=list)
    watched: Counter[str] = field(default_factory=Counter)


class Store:
    """The runs of one capture; as the model's watcher it begins and ends them.

    Args:
        hooked: The selected layers by index.
        parallel: Device order of ``DataParallel`` in the model, or None without one.

    Attributes:
        thread: Stands for the thread that opened the capture.
        notes: Why a layer that was called gave nothing.
        unkept: Why a tensor of a layer and kind could not be kept.
        ungraded: Why a layer has no gradient.
        structure: Description of a nested output by index, run and call.
        windows: What the first axis of an attention counts, by index, run and call.
        attending: The layers in which attention was seen, kept or not, in order, as keys.
        read: The activations as they were read last, with the mark of then.
    """

    def __init__(self, hooked: list[Hooked], parallel: list[int] | None) -> None:
        self.hooked = hooked
        self.thread = _this_thread.opened
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
        self.windows: dict[tuple[int, int, int], Windows] = {}
        self.attending: dict[str, None] = {}
        self.ungraded: dict[int, str] = {}
        self.read: tuple[object, tuple[Activation, ...]] = None, ()

    def ignores_this_thread(self) -> bool:
        """Whether calls in this thread are none of this capture's."""
        mine = _this_thread.opened
        another = mine is not self.thread and bool(mine)
        return not self.open or another or backward_is_running()

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> Forward | None:
        """Start a run in this thread; None where the forward is none of this capture's."""
        log = self.here.log
        calls_itself = log is not None and log.open and log.main and not log.run.detached
        # A replica works on a piece of somebody's DataParallel forward.
        replica = getattr(module, "_is_replica", False)
        if replica or calls_itself or self.ignores_this_thread():
            return None
        batch = _batch_of((args, kwargs))
        with self._lock:
            for run in [r for r in self._active if r.detached]:
                self._leave(run)
            run = self._run(batch, detached=False, training=module.training)
            self._log(run, main=True)
        return run

    def end(self, run: Any, error: BaseException | None) -> None:
        """End a run, on whatever way out."""
        for step in run.at_end:
            step()
        run.stopped = isinstance(error, EarlyStop)
        if error is not None and not run.stopped:
            kind, text = type(error).__name__, error_text(error)
            run.error = kind if text == kind else f"{kind}: {text}"
        with self._lock:
            self._leave(run)

    def enter(self, args: Any, *, training: bool) -> ThreadLog | None:
        """This thread's log; None for a recomputation and for what is none of this capture's.

        One is begun where a hook runs outside a forward of the model in this thread: in a worker
        thread of a forward (a replica), or for a layer that is called on its own.
        """
        log = self.log_here()
        if log is not None or self.ignores_this_thread():
            return log
        with self._lock:
            begun = [r for r in self._active if not r.detached] or self._active
            run = begun[-1] if begun else self._run(None, detached=True, training=training)
            log = self._log(run, main=not begun)
        _place(log, args)
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
        return None if log is None or not log.open or graph_task() != -1 else log

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
            self._leave(*self.runs, for_good=True)
            self._empty()
            self.changes += 1

    def close(self) -> None:
        """Stop recording; what was captured stays."""
        with self._lock:
            self.open = False
            self._leave(*self.runs, for_good=True)

    def _run(self, batch: int | None, *, detached: bool, training: bool) -> Forward:
        run = Forward(len(self.history) + 1, detached, batch, training)
        self.history[run] = []
        self._active.append(run)
        return run

    def _log(self, run: Forward, *, main: bool) -> ThreadLog:
        log = self.here.log = ThreadLog(run, [0] * self.selected, run.counter, main)
        self.history[run].append(log)
        return log

    def _leave(self, *runs: Forward, for_good: bool = False) -> None:
        self._active = [run for run in self._active if run not in runs]
        for run in runs:
            run.at_end.clear()
            # Until then gradients may come.
            for handle in run.handles if for_good else ():
                handle.remove()
            for log in self.history[run]:
                log.open = False

    def activation(self, run: Forward, raw: RawRecord, calls: int | None = None) -> Activation:
        """One record, by default as it stands now: its call is the last so far."""
        r, axes = Record(*raw), None
        windows = self.windows.get((r.layer, run.number, r.call))
        if windows is not None and r.kind == "attention":
            axes = KnownAxes(r.tensor.shape[0] // windows.count, "window", windows=windows)
        return Activation(
            self.hooked[r.layer].name, r.call, calls or r.call, run.number, r.order,
            r.kind, r.leaf, r.module_type, r.tensor, axes,
        )  # fmt: skip

    def records_of(self, run: Forward) -> list[Record]:
        """All records of a run, gradients and inputs of unfinished calls included.

        Where several threads called a layer, the k-th calls of all threads are joined along the
        first dimension if they are pieces of one batch: the model holds a ``DataParallel``, or
        their sizes add up to the batch that the model was given, or the threads' inputs are
        adjacent slices of one tensor. Otherwise they stay calls of their own. Pieces are ordered
        by their position in that tensor, else by device, else by the order in which the threads
        were started.

        Returns:
            Records; tensors of one thread are those kept, joined ones are new.
        """
        logs = self.logs_of(run)
        found = [(log, Record(*r)) for log in logs for r in list(log.records)]
        last = max((r.order for _, r in found), default=0)
        found += [(log, r) for log in logs for r in log.unfinished(last)]
        # Backward brings them in its own order; leaves of one call go by their place in it.
        came = sorted(run.gradients.items(), key=lambda item: item[1][0])
        gradients = [Record(*key, tensor) for key, (_, tensor) in came]
        if len({log for log, _ in found}) <= 1:
            return [r for _, r in found] + gradients
        # A call belongs to the thread that gave it its order; gradients follow their call by it.
        log_of = {(r.layer, r.order): log for log, r in found}
        out: list[Record] = []
        for r in gradients:
            log = log_of.get((r.layer, r.order))
            if log is None:
                out.append(r)
            else:
                found.append((log, r))
        logs = self._in_input_order(list({log: None for log, _ in found}))
        by_call: dict[tuple[int, int], dict[ThreadLog, list[Record]]] = {}
        for log, r in found:
            by_call.setdefault((r.layer, r.call), {}).setdefault(log, []).append(r)
        by_layer: dict[int, list[list[Record]]] = defaultdict(list)
        for (layer, _), pieces in by_call.items():
            by_layer[layer] += self._join(run, {log: pieces[log] for log in logs if log in pieces})
        for rows in by_layer.values():
            rows.sort(key=lambda row: row[0].order)
            out += [r._replace(call=call) for call, row in enumerate(rows, start=1) for r in row]
        orders = {order: i for i, order in enumerate(sorted({r.order for r in out}), start=1)}
        return [r._replace(order=orders[r.order]) for r in out]

    def _in_input_order(self, logs: list[ThreadLog]) -> list[ThreadLog]:
        spans = {log: log.span for log in logs if log.span is not None}
        starts = {start for _, start, _ in spans.values()}
        addresses = {address for address, _, _ in spans.values()}
        if len(starts) == len(spans) == len(logs) and len(addresses) == 1:
            return sorted(logs, key=lambda log: spans[log][1])
        if len({log.device for log in logs}) == len(logs):
            wanted = {device: i for i, device in enumerate(self.parallel or [])}
            return sorted(logs, key=lambda log: wanted.get(log.device, log.device))
        # The kernel numbers threads in the order in which they are started, and what splits a
        # batch starts them in the order of its pieces.
        return sorted(logs, key=lambda log: log.native)

    def _join(self, run: Forward, pieces: dict[ThreadLog, list[Record]]) -> list[list[Record]]:
        """The calls that threads made of a layer: one where they are pieces of one batch."""
        rows = list(pieces.values())
        columns: dict[tuple[Kind, str], list[Tensor]] = defaultdict(list)
        for r in itertools.chain(*rows):
            columns[r.kind, r.leaf].append(r.tensor)
        alike = all(
            len(column) == len(rows) and len({(t.shape[1:], t.dtype, t.dim()) for t in column}) == 1
            for column in columns.values()
        )
        if len(rows) == 1 or not alike:
            return rows
        sizes = [next((r.tensor.shape[0] for r in row if r.tensor.dim()), 0) for row in rows]
        adjacent = all(
            a.span and b.span and a.span[0] == b.span[0] and a.span[2] == b.span[1]
            for a, b in itertools.pairwise(pieces)
        )
        if self.parallel is None and sum(sizes) != run.batch and not adjacent:
            return rows
        order = min(row[0].order for row in rows)
        joined = []
        for r in rows[0]:
            parts = [tensor.to(r.tensor.device) for tensor in columns[r.kind, r.leaf]]
            tensor = torch.cat(parts) if r.tensor.dim() else torch.stack(parts)
            joined.append(r._replace(order=order, tensor=tensor))
        return [joined]


def _batch_of(inputs: Any) -> int | None:
    """The first dimension of the first tensor that a forward was given."""
    for _, tensor in leaves(inputs):
        if tensor.dim() and not isinstance(tensor, nn.Parameter):
            return int(tensor.size(0))
    return None


def _place(log: ThreadLog, args: Any) -> None:
    """Note where the first input of a log's thread lies."""
    for _, tensor in leaves(args)[:1]:
        with suppress(RuntimeError):  # without ordinary memory: nested, sparse, a stand-in
            if tensor.is_contiguous() and not tensor.is_meta:
                start = int(tensor.storage_offset())
                address = tensor.untyped_storage().data_ptr()
                log.span = address, start, start + int(tensor.numel())
        if tensor.device.index is not None:
            log.device = tensor.device.index
