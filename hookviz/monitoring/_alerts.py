"""What should not be in a training, told from its numbers, at the layer and step where it arose."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from hookviz._text import names_text
from hookviz.monitoring._history import Alert
from hookviz.monitoring._parameters import Fault
from hookviz.monitoring._statistics import OutputNumbers
from hookviz.monitoring._watch import Place

DEAD = 0.5
"""Share of dead channels from which on a layer is said to be dying."""
IN_A_ROW = 3
"""For so many measurements one after the other."""


class Alarm:
    """Tells alerts, each thing once until it has gone again.

    Args:
        types: Class names of the layers.
        stats_every: Every how many steps layers are measured.
    """

    def __init__(self, types: Mapping[str, str], stats_every: int) -> None:
        self._types, self._every = dict(types), stats_every
        self._said: set[str] = set()
        self._dying: dict[Place, list[int]] = {}
        self._last = 0

    def of_step(
        self,
        step: int,
        tallies: Mapping[Place, OutputNumbers],
        numbers: Mapping[str, Mapping[str, float]],
        faults: Callable[[], Iterable[Fault]],
    ) -> Iterator[Alert]:
        """The alerts of a measured step.

        Args:
            step: Which.
            tallies: Of the outputs, in order of execution.
            numbers: Of the parameters, by layer.
            faults: Finds the gradients that are not finite; called where a norm is not.
        """
        bad = next((p for p, tally in tallies.items() if tally.nan or tally.inf), None)
        if self._new("output", bad is not None) and bad is not None:
            yield self._output(step, bad, tallies)
        sick = any(not math.isfinite(n.get("gradient", 0.0)) for n in numbers.values())
        found = list(faults()) if sick else []
        # After an output that is not finite all gradients are not.
        if self._new("gradient", bool(found)) and found and bad is None:
            yield self._gradient(step, found, tallies, numbers)
        yield from self._dead(step, tallies)
        self._last = step

    def of_loss(self, step: int, loss: float) -> Iterator[Alert]:
        """The alert where a loss is not finite."""
        if self._new("loss", not math.isfinite(loss)):
            word = "NaN" if math.isnan(loss) else "infinite"
            yield Alert(step, "loss", "", 0, f"Step {step}: the loss is {word}.")

    def _new(self, what: str, there: bool) -> bool:
        if not there:
            self._said.discard(what)
            return False
        new = what not in self._said
        self._said.add(what)
        return new

    def _named(self, place: Place, tallies: Mapping[Place, OutputNumbers]) -> str:
        kind = self._types.get(place.layer, "")
        name = f"layer '{place.layer}' ({kind})" if place.layer else f"the model ({kind})"
        leaf = f", output [{place.leaf}]" if place.leaf else ""
        calls = max(p.call for p in tallies if p.layer == place.layer)
        return name + leaf + (f", call {place.call} of {calls}" if calls > 1 else "")

    def _output(self, step: int, place: Place, tallies: Mapping[Place, OutputNumbers]) -> Alert:
        tally = tallies[place]
        first = next(iter(tallies)) == place
        order = (
            "it is the first watched layer that runs" if first else "what ran before it was finite"
        )
        since = ""
        if step - self._last > 1:
            since = f" It arose after step {self._last}, where layers were measured last."
        text = (
            f"Step {step}: the output of {self._named(place, tallies)} has "
            f"{_counts(tally.nan, tally.inf, tally.total)}; {order}.{since}"
        )
        return Alert(step, "output", place.layer, place.call, text)

    def _gradient(
        self,
        step: int,
        found: list[Fault],
        tallies: Mapping[Place, OutputNumbers],
        numbers: Mapping[str, Mapping[str, float]],
    ) -> Alert:
        # The backward goes the other way, so the layer that ran last is where it arose.
        order = {place.layer: at for at, place in enumerate(tallies)}
        at = max(found, key=lambda one: order.get(one.layer, -1))
        moved = [n["update"] for n in numbers.values() if "update" in n]
        kind, end = "gradient", ""
        if moved and not any(moved):
            kind = "skipped"
            end = " The weights did not move in this step: so a GradScaler skips it."
        elif len({one.layer for one in found}) > 1:
            end = " Of the layers with such gradients it ran last, so the backward met it first."
        name = f"{at.layer}.{at.parameter}" if at.layer else at.parameter
        text = (
            f"Step {step}: the gradient of '{name}' has {_counts(at.nan, at.inf, at.total)}.{end}"
        )
        return Alert(step, kind, at.layer, 0, text)

    def _dead(self, step: int, tallies: Mapping[Place, OutputNumbers]) -> Iterator[Alert]:
        new: list[Place] = []
        for place, tally in tallies.items():
            since = self._dying.setdefault(place, [])
            if not len(tally.dead) or np.count_nonzero(tally.dead) < DEAD * len(tally.dead):
                since.clear()
                self._new(f"dead {place}", there=False)
                continue
            since.append(step)
            if len(since) >= IN_A_ROW and self._new(f"dead {place}", there=True):
                new.append(place)
        if not new:
            return
        # Those that run after the first follow from it as a rule.
        place, others = new[0], [p.layer for p in new[1:] if p.layer != new[0].layer]
        since, tally = self._dying[place], tallies[place]
        more = f" So it is in {names_text(dict.fromkeys(others))}." if others else ""
        count, dead = len(tally.dead), int(tally.dead.sum())
        text = (
            f"Step {since[0]}: {dead} of {count} channels of {self._named(place, tallies)} are "
            f"dead: zero for the whole batch, then and in the {len(since) - 1} measurements "
            f"after it.{more}"
        )
        yield Alert(since[0], "dead", place.layer, place.call, text)


def _counts(nan: float, inf: float, total: int) -> str:
    parts = [f"{int(n)} {word}" for n, word in ((nan, "NaN"), (inf, "Inf")) if n]
    return f"{' and '.join(parts)} among {total} values"
