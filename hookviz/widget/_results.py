"""What was captured so far, over several runs, and what of it is still true."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from hookviz.activation import Activation
from hookviz.run import Run
from hookviz.widget._painting import Origin

TENSOR_BYTES = 500_000_000
"""Bytes of captured tensors that are kept of layers that are not ticked any more."""


@dataclass(frozen=True, eq=False)
class Captured:
    """One layer's activations.

    Attributes:
        activations: All calls and leaves, in order.
        origin: Where they come from, for figures.
        run: The `Run` they belong to, without its tensors; None while it is under way.
        stale: Whether image, model or preprocessing changed since.
    """

    activations: tuple[Activation, ...]
    origin: Origin
    run: Run | None = None
    stale: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(a.tensor.numel() * a.tensor.element_size() for a in self.activations)


class Results(dict[str, Captured]):
    """Captured layers by name, in the order of their capture; newer ones replace older ones.

    What is ticked is kept as long as image and model stay; of what is not ticked any more, the
    latest up to `TENSOR_BYTES`. No older run is kept: a layer holds its own tensors alone.
    """

    @property
    def stale(self) -> set[str]:
        """Layers whose values are from an earlier image, model or preprocessing."""
        return {name for name, found in self.items() if found.stale}

    def all_fresh(self) -> list[Captured]:
        """All that belongs to the present image and model."""
        return [found for found in self.values() if not found.stale]

    def put(
        self, activations: Iterable[Activation], origin: Origin, run: Run | None = None
    ) -> None:
        """Takes activations; their layers' older ones are dropped.

        Args:
            activations: In order; outputs only are kept.
            origin: Where they come from.
            run: The run, once it is over.
        """
        # Its tensors would stay with it, and an exception keeps the forward's with its traceback.
        bare = None if run is None else replace(run, activations=(), output=None, error=None)
        layers: dict[str, list[Activation]] = {}
        for activation in activations:
            if activation.kind == "output":
                layers.setdefault(activation.layer, []).append(activation)
        for name, found in layers.items():
            self.pop(name, None)
            self[name] = Captured(tuple(found), origin, bare)

    def limit(self, ticked: Collection[str]) -> None:
        """Lets go of the oldest layers that are not ticked, beyond `TENSOR_BYTES`."""
        others = {name: found.bytes for name, found in self.items() if name not in ticked}
        size = sum(others.values())
        for name, count in others.items():
            if size <= TENSOR_BYTES:
                break
            del self[name]
            size -= count

    def expire(self) -> None:
        """Marks everything as stale."""
        self.update({name: replace(found, stale=True) for name, found in self.items()})

    def drop_stale(self) -> None:
        """Lets go of what is stale."""
        for name in self.stale:
            del self[name]


def return_memory(_cancelled: Any = None) -> None:
    """Gives freed memory back to the system, where the C library would keep it for later.

    glibc keeps what was freed on a thread in that thread's arena, and a run's tensors are freed
    on another thread than the one that took them: the process would seem to hold them still.
    Widgets, figures and observers refer to each other, so Python's garbage is collected first.
    That takes about 0.2 s with torch loaded, so it is for moments of rest.
    """
    gc.collect()
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).malloc_trim(0)
