"""What was captured so far, over several runs, and what of it is still true.

In: runs as they go on. Out: activations by layer, with where they come from. Must not know:
widgets, threads, how anything is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from hookviz.capture import Activation
from hookviz.widget._painting import Origin

__all__ = ["Captured", "Results"]


@dataclass(frozen=True, eq=False)
class Captured:
    """One layer's activations.

    Attributes:
        activations: All calls and leaves, in order.
        origin: Where they come from, for figures.
        run: The `Run` they belong to; None while it is under way.
        stale: Whether image, model or preprocessing changed since.
    """

    activations: tuple[Activation, ...]
    origin: Origin
    run: Any = None
    stale: bool = False


class Results:
    """Captured layers by name; newer ones replace older ones."""

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

    def put(self, activations: Iterable[Activation], origin: Origin, run: Any = None) -> None:
        """Takes activations; their layers' older ones are dropped.

        Args:
            activations: In order; outputs only are kept.
            origin: Where they come from.
            run: The run, once it is over.
        """
        layers: dict[str, list[Activation]] = {}
        for activation in activations:
            if activation.kind == "output":
                layers.setdefault(activation.layer, []).append(activation)
        for name, found in layers.items():
            self._layers[name] = Captured(tuple(found), origin, run)

    def expire(self) -> None:
        """Marks everything as stale."""
        self._layers = {n: replace(found, stale=True) for n, found in self._layers.items()}

    def drop_stale(self) -> None:
        """Lets go of what is stale."""
        self._layers = {n: found for n, found in self._layers.items() if not found.stale}

    def clear(self) -> None:
        """Lets go of everything."""
        self._layers = {}
