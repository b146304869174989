"""Pieces of a batch that several threads worked on, joined again in input order."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import torch

from hookviz.capture._store import Forward, Record, Store, ThreadLog


def records_of(store: Store, run: Forward) -> list[Record]:
    """All records of a run, gradients and inputs of unfinished calls included.

    Where several threads called a layer, the k-th calls of all threads are joined along the first
    dimension if they are pieces of one batch: the model holds a ``DataParallel``, or their sizes
    add up to the batch that the model was given, or the threads' inputs are adjacent slices of
    one tensor. Otherwise they stay calls of their own. Pieces are ordered by their position in
    that tensor, else by device, else by the order in which the threads were started.

    Args:
        store: The capture's store.
        run: One of its runs.

    Returns:
        Records; tensors of one thread are those kept, joined ones are new.
    """
    logs = store.logs_of(run)
    found = [(log, Record(*r)) for log in logs for r in list(log.records)]
    last = max((r.order for _, r in found), default=0)
    found += [(log, r) for log in logs for r in log.unfinished(last)]
    # Backward brings them in its own order; leaves of one call go by their place in it.
    came = sorted(run.gradients.items(), key=lambda item: item[1][0])
    gradients = [Record(*key, tensor) for key, (_, tensor) in came]
    if len({id(log) for log, _ in found}) <= 1:
        return [r for _, r in found] + gradients
    return _joined(store, run, found, gradients)


def _joined(
    store: Store, run: Forward, found: list[tuple[ThreadLog, Record]], gradients: list[Record]
) -> list[Record]:
    # A call belongs to the thread that gave it its order; gradients follow their call by it.
    log_of = {(r.layer, r.order): log for log, r in found}
    out: list[Record] = []
    for r in gradients:
        log = log_of.get((r.layer, r.order))
        if log is None:
            out.append(r)
        else:
            found.append((log, r))
    logs = _in_input_order(store, list({id(log): log for log, _ in found}.values()))
    place = {id(log): i for i, log in enumerate(logs)}
    by_call: dict[tuple[int, int], dict[int, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for log, r in found:
        by_call[r.layer, r.call][place[id(log)]].append(r)
    by_layer: dict[int, list[list[Record]]] = defaultdict(list)
    for (layer, _), pieces in by_call.items():
        rows = [pieces[i] for i in sorted(pieces)]
        joined = _join(store, run, rows, [logs[i] for i in sorted(pieces)])
        by_layer[layer] += rows if joined is None else [joined]
    for rows in by_layer.values():
        rows.sort(key=lambda row: row[0].order)
        out += [r._replace(call=call) for call, row in enumerate(rows, start=1) for r in row]
    orders = {order: i for i, order in enumerate(sorted({r.order for r in out}), start=1)}
    return [r._replace(order=orders[r.order]) for r in out]


def _in_input_order(store: Store, logs: list[ThreadLog]) -> list[ThreadLog]:
    spans = [log.span for log in logs if log.span is not None]
    starts = {start for _, start, _ in spans}
    if len(starts) == len(spans) == len(logs) and len({address for address, _, _ in spans}) == 1:
        return sorted(logs, key=lambda log: (log.span or (0, 0, 0))[1])
    if len({log.device for log in logs}) == len(logs):
        wanted = {device: i for i, device in enumerate(store.parallel or [])}
        device = {id(log): -1 if log.device is None else log.device for log in logs}
        return sorted(logs, key=lambda log: wanted.get(device[id(log)], device[id(log)]))
    # The kernel numbers threads in the order in which they are started, and what splits a batch
    # starts them in the order of its pieces.
    return sorted(logs, key=lambda log: log.native)


def _join(
    store: Store, run: Forward, rows: list[list[Record]], logs: list[ThreadLog]
) -> list[Record] | None:
    """One call of a layer made of several; None where they are no pieces of one batch."""
    keyed = [{(r.kind, r.leaf): r.tensor for r in row} for row in rows]
    if len(rows) == 1 or len({frozenset(tensors) for tensors in keyed}) != 1:
        return None
    columns = {key: [tensors[key] for tensors in keyed] for key in keyed[0]}
    if any(
        len({(t.shape[1:], t.dtype, t.dim()) for t in column}) != 1 for column in columns.values()
    ):
        return None
    sizes = [next((r.tensor.shape[0] for r in row if r.tensor.dim()), 0) for row in rows]
    adjacent = all(
        a.span and b.span and a.span[0] == b.span[0] and a.span[2] == b.span[1]
        for a, b in pairwise(logs)
    )
    if store.parallel is None and sum(sizes) != run.batch and not adjacent:
        return None
    order = min(r.order for row in rows for r in row)
    joined = []
    for r in rows[0]:
        parts = [tensor.to(r.tensor.device) for tensor in columns[r.kind, r.leaf]]
        tensor = torch.cat(parts) if r.tensor.dim() else torch.stack(parts)
        joined.append(r._replace(order=order, tensor=tensor))
    return joined
