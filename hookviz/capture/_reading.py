"""Choosing one record among several, and saying which there are where it is not clear.

In: Activations and what the user asked for. Out: those meant. Must not know: hooks, stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hookviz.activation import Activation
from hookviz.errors import LayerError, did_you_mean

__all__ = ["CallChoice", "choose"]

CallChoice = int | Literal["last", "all"] | None


def choose(
    found: Sequence[Activation],
    layer: str,
    what: str,
    *,
    call: CallChoice,
    run: int | None,
    leaf: str | int | None,
) -> tuple[Activation, ...]:
    """The records meant by a call, a run and a leaf.

    Args:
        found: All records of one layer and kind, in order; not empty.
        layer: The layer, for messages.
        what: The kind in words, for messages.
        call: 1-based number, "last", "all", or None for the only one.
        run: 1-based number, negative from the end, or None for the latest run with a record.
        leaf: Path or position of the leaf, or None for the only one.

    Returns:
        One record, or with "all" one per call.

    Raises:
        LayerError: Several are there and none was chosen, or the one chosen is not there.
    """
    runs = sorted({a.run for a in found})
    wanted = runs[-1] if run is None else run
    if run is not None and run < 0 and -run <= len(runs):
        wanted = runs[run]
    here = [a for a in found if a.run == wanted]
    if not here:
        raise LayerError(
            f"Layer '{layer}' has no {what} of run {run}; it has those of "
            f"{'run' if len(runs) == 1 else 'runs'} {', '.join(map(str, runs))}."
        )
    calls = sorted({a.call for a in here})
    if call == "all":
        picked = calls
    elif call == "last":
        picked = calls[-1:]
    elif call is None:
        if len(calls) > 1:
            listed = "; ".join(
                f"call {c}: {_shapes([a for a in here if a.call == c])}" for c in calls
            )
            raise LayerError(
                f"Layer '{layer}' was called {len(calls)} times in run {wanted} ({listed}).",
                remedy='Choose one with call=1, call=2, ..., call="last", or call="all".',
            )
        picked = calls
    elif isinstance(call, int) and not isinstance(call, bool):
        if call not in calls:
            raise LayerError(
                f"Layer '{layer}' has no {what} of call {call} in run {wanted}; it has "
                f"{'call' if len(calls) == 1 else 'calls'} {', '.join(map(str, calls))}."
            )
        picked = [call]
    else:
        raise LayerError(f'call is a number from 1, "last", "all" or None, not {call!r}.')
    return tuple(_leaf([a for a in here if a.call == c], layer, what, leaf) for c in picked)


def _leaf(found: list[Activation], layer: str, what: str, leaf: str | int | None) -> Activation:
    paths = [a.leaf for a in found]
    if leaf is None:
        if len(found) == 1:
            return found[0]
        raise LayerError(
            f"The {what} of layer '{layer}' holds {len(found)} tensors ({_shapes(found)}).",
            remedy="Choose one with leaf=.",
        )
    for a in found:
        if a.leaf == leaf:
            return a
    if isinstance(leaf, int) and not isinstance(leaf, bool) and -len(found) <= leaf < len(found):
        return found[leaf]
    listed = ", ".join(f"'{p}'" for p in paths)
    raise LayerError(
        f"The {what} of layer '{layer}' has no leaf {leaf!r}; it has {listed}.",
        remedy=did_you_mean(str(leaf), paths) or None,
    )


def _shapes(found: Sequence[Activation]) -> str:
    return ", ".join(f"{f'{a.leaf}: ' if a.leaf else ''}{list(a.shape)}" for a in found)
