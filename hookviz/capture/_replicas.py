"""Pieces of a batch that several threads worked on, joined again in input order.

In: the lanes of a run. Out: its records, numbered as if one thread had run the model. Must not
know: hooks, models.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import torch
from torch import Tensor

from hookviz.capture._store import Lane, Record, Run, Store

__all__ = ["records_of"]


def records_of(store: Store, run: Run) -> list[Record]:
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
    lanes = store.lanes_of(run)
    found = [(lane, r) for lane in lanes for r in list(lane.records)]
    last = max((r[3] for _, r in found), default=0)
    found += [(lane, r) for lane in lanes for r in lane.unfinished(last)]
    single = len({id(lane) for lane, _ in found}) <= 1
    # Backward brings them in its own order; leaves of one call go by their place in it.
    came = sorted(run.gradients.items(), key=lambda item: item[1][0])
    gradients: list[Record] = [(*key, tensor) for key, (_, tensor) in came]
    if single:
        return [r for _, r in found] + gradients
    return _joined(store, run, found, gradients)


def _joined(
    store: Store, run: Run, found: list[tuple[Lane, Record]], gradients: list[Record]
) -> list[Record]:
    # A call belongs to the lane that gave it its order; gradients follow their call by it.
    lane_of = {(r[0], r[3]): lane for lane, r in found}
    everything = [*found, *((lane_of[r[0], r[3]], r) for r in gradients if (r[0], r[3]) in lane_of)]
    lanes = _in_input_order(store, list({id(lane): lane for lane, _ in everything}.values()))
    place = {id(lane): i for i, lane in enumerate(lanes)}
    by_layer: dict[int, dict[int, dict[int, list[Record]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for lane, record in everything:
        by_layer[record[0]][record[2]][place[id(lane)]].append(record)
    out: list[Record] = [r for r in gradients if (r[0], r[3]) not in lane_of]
    for calls in by_layer.values():
        units: list[list[Record]] = []
        for pieces in calls.values():
            rows = [pieces[i] for i in sorted(pieces)]
            if len(rows) > 1 and _are_pieces(store, run, rows, [lanes[i] for i in sorted(pieces)]):
                rows = [_join(rows)]
            units += rows
        units.sort(key=lambda unit: unit[0][3])
        for number, unit in enumerate(units, start=1):
            out += [(r[0], r[1], number, *r[3:]) for r in unit]
    orders = {order: i for i, order in enumerate(sorted({r[3] for r in out}), start=1)}
    return [(*r[:3], orders[r[3]], *r[4:]) for r in out]


def _in_input_order(store: Store, lanes: list[Lane]) -> list[Lane]:
    spans = [lane.span for lane in lanes]
    known = [s for s in spans if s is not None]
    if len(known) == len(lanes) and len({s[0] for s in known}) == 1:
        starts = {s[1] for s in known}
        if len(starts) == len(lanes):
            return sorted(lanes, key=lambda lane: (lane.span or (0, 0, 0))[1])
    devices = [_device(lane) for lane in lanes]
    if len(set(devices)) == len(lanes):
        wanted = {d: i for i, d in enumerate(store.parallel or [])}
        return sorted(lanes, key=lambda lane: wanted.get(_device(lane), _device(lane)))
    # The kernel numbers threads in the order in which they are started, and what splits a batch
    # starts them in the order of its pieces.
    return sorted(lanes, key=lambda lane: lane.native)


def _device(lane: Lane) -> int:
    return lane.device if lane.device is not None else -1


def _are_pieces(store: Store, run: Run, rows: list[list[Record]], lanes: list[Lane]) -> bool:
    if len({tuple(sorted((r[4], r[5]) for r in row)) for row in rows}) != 1:
        return False
    for column in _columns(rows):
        shapes = {tuple(t.shape[1:]) for t in column}
        if len(shapes) != 1 or len({(t.dtype, t.dim()) for t in column}) != 1:
            return False
    if store.parallel is not None:
        return True
    sizes = [next((r[6].shape[0] for r in row if r[6].dim()), 0) for row in rows]
    if run.batch is not None and sum(sizes) == run.batch:
        return True
    spans = [lane.span for lane in lanes]
    return all(
        a is not None and b is not None and a[0] == b[0] and a[2] == b[1]
        for a, b in pairwise(spans)
    )


def _columns(rows: list[list[Record]]) -> list[list[Tensor]]:
    keyed = [{(r[4], r[5]): r[6] for r in row} for row in rows]
    return [[k[key] for k in keyed] for key in keyed[0]]


def _join(rows: list[list[Record]]) -> list[Record]:
    first = rows[0]
    order = min(r[3] for row in rows for r in row)
    keyed = [{(r[4], r[5]): r[6] for r in row} for row in rows]
    joined: list[Record] = []
    for r in first:
        parts = [k[r[4], r[5]].to(r[6].device) for k in keyed]
        tensor = torch.cat(parts) if r[6].dim() else torch.stack(parts)
        joined.append((r[0], r[1], r[2], order, r[4], r[5], tensor))
    return joined
