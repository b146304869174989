"""What was captured so far, over several runs, and what of it is still true.

In: runs as they go on. Out: activations by layer, with where they come from. Must not know:
widgets, threads, how anything is drawn.
"""

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


class Results:
    """Captured layers by name; newer ones replace older ones.

    What is ticked is kept as long as image and model stay; of what is not ticked any more, the
    latest up to `TENSOR_BYTES`. No older run is kept: a layer holds its own tensors alone.
    """

    def __init__(self) -> None:
        self._layers: dict[str, Captured] = {}

    def __contains__(self, layer: object) -> bool:
        return layer in self._layers

    def get(self, layer: str) -> Captured | None:
        """What was captured of a layer; None for nothing."""
        return self._layers.get(layer)

    @property
    def stale(self) -> set[str]:
        """Layers whose values are from an earlier image, model or preprocessing."""
        return {name for name, found in self._layers.items() if found.stale}

    def all_fresh(self) -> list[Captured]:
        """All that belongs to the present image and model."""
        return [found for found in self._layers.values() if not found.stale]

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
            self._layers.pop(name, None)
            self._layers[name] = Captured(tuple(found), origin, bare)

    def limit(self, ticked: Collection[str]) -> None:
        """Lets go of the oldest layers that are not ticked, beyond `TENSOR_BYTES`."""
        others = {n: found.bytes for n, found in self._layers.items() if n not in ticked}
        size = sum(others.values())
        for name, count in others.items():
            if size <= TENSOR_BYTES:
                break
            del self._layers[name]
            size -= count

    def expire(self) -> None:
        """Marks everything as stale."""
        self._layers = {n: replace(found, stale=True) for n, found in self._layers.items()}

    def drop_stale(self) -> None:
        """Lets go of what is stale."""
        self._layers = {n: found for n, found in self._layers.items() if not found.stale}

    def clear(self) -> None:
        """Lets go of everything."""
        self._layers = {}


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
