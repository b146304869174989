"""One comparison under way: which side hands over its values, and what is made of each pair.

One side (the *held* one) is asked for its records one by one; the other (the *streamed* one) hands
its own over in the order in which they come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch

from hookviz.activation import Activation
from hookviz.comparison._comparison import Comparison
from hookviz.comparison._layers import (
    LayerDifference,
    Size,
    Tolerances,
    both_labels,
    measure,
    shape_of,
)
from hookviz.comparison._match import Key, check_mapping, how_to_match, in_order, key_of, keyed
from hookviz.comparison._sides import Side
from hookviz.errors import HookvizError

Thing = TypeVar("Thing")


class _Found(NamedTuple):
    """One pair that was measured: its entry, the records, where they ran, and the forward in a."""

    entry: LayerDifference
    records: tuple[Activation, Activation]
    devices: tuple[str, str]
    forward: int


class Comparing:
    """Compares two sides.

    Args:
        a: One side.
        b: The other.
        layers: As `compare` was given them.
        match: Likewise.
        progress: Likewise.

    Raises:
        HookvizError: See `compare`.
    """

    def __init__(
        self,
        a: Side,
        b: Side,
        layers: Any,
        match: str | Mapping[str, str] | None,
        progress: Callable[[str], object] | None,
    ) -> None:
        self._sides, self._progress = (a, b), progress
        self._b_is_held = b.holds and not a.holds
        self._held, self._streamed = (b, a) if self._b_is_held else (a, b)
        wanted = (layers, layers)
        if isinstance(match, Mapping):
            check_mapping(match, a.layer_names(), b.layer_names())
            wanted = (list(match.keys()), list(match.values()))
        held_layers, self._layers = self._turned(*wanted)
        self._source = self._held.kept(held_layers, find_axes=False)
        self._there = keyed(self._source.records(held_layers))
        self._found: list[_Found] = []
        self._taken: set[Key] = set()
        self._alone: list[Activation] = []
        self._calls: dict[str, int] = {}
        self._pair_up(match)

    def _turned(self, a: Thing, b: Thing) -> tuple[Thing, Thing]:
        """What belongs to a and b as what belongs to the held and the streamed side, and back."""
        return (b, a) if self._b_is_held else (a, b)

    def _pair_up(self, match: str | Mapping[str, str] | None) -> None:
        """Finds out, for keys or layers of the streamed side, their partners."""
        side = self._streamed
        records = keyed(side.records(self._layers)) if side.holds else {}
        names = frozenset(record.layer for record in self._there.values())
        others = frozenset(key[0] for key in records) or side.layer_names()
        single = len(self._there) == len(records) == 1
        self.matched_by, links = how_to_match(match, *self._turned(names, others), single=single)
        self._links: dict[str, list[str]] = {}
        for link in links.items():
            held, streamed = self._turned(*link)
            self._links.setdefault(streamed, []).append(held)
        self._by_order: dict[Key, Key] = {}
        if self.matched_by == "order":
            records = records or keyed(side.records(self._layers))
            pairs = in_order(list(self._there.values()), list(records.values()))
            held_keys, streamed_keys = list(self._there), list(records)
            self._by_order = {streamed_keys[j]: held_keys[i] for i, j in pairs.items()}

    def _partners(self, key: Key) -> list[Key]:
        if self.matched_by == "order":
            found = [self._by_order[key]] if key in self._by_order else []
        else:
            found = [(layer, *key[1:]) for layer in self._links.get(key[0], ())]
        return [partner for partner in found if partner in self._there]

    def _take(self, key: Key, record: Activation) -> None:
        """Measures a streamed record against its partners."""
        stored = record if self._streamed.holds else _without_values(record)
        value = self._streamed.read(record)
        self._calls[record.layer] = max(self._calls.get(record.layer, 0), record.calls)
        partners = self._partners(key)
        # Of a run that was asked for "*", the output of the model itself may be missing.
        unasked = not record.layer and self._layers == "*" and not self._streamed.holds
        if not partners and not unasked:
            self._alone.append(stored)
        for partner in partners:
            held = self._source.read(self._there[partner])
            values = self._turned(held, value)
            sizes: tuple[Size, Size] = (None, None)
            if shape_of(held) != shape_of(value):
                sizes = self._turned(self._source.size(), self._streamed.size())
            places = [
                side.device or str(one.tensor.device)
                for side, one in zip(self._sides, values, strict=True)
            ]
            records = self._turned(
                self._there[partner] if self._held.holds else _without_values(held), stored
            )
            forward = self._turned(partner, key)[0][1]
            entry = measure(*values, sizes)
            self._found.append(_Found(entry, records, (places[0], places[1]), forward))
        self._taken.update(partners)
        if self._progress is not None:
            self._progress(record.layer)

    def _with_calls(self, record: Activation) -> Activation:
        """A streamed record; while it came, later calls of its layer were not counted yet."""
        return replace(record, calls=self._calls[record.layer])

    def done(self) -> Comparison:
        """Runs through all records."""
        if self._streamed.holds:
            for key, record in keyed(self._streamed.records(self._layers)).items():
                self._take(key, record)
        else:
            self._streamed.stream(self._layers, lambda record: self._take(key_of(record), record))
        if not self._found:
            raise HookvizError("a and b have no layer in common, so nothing can be compared.")
        self._found.sort(key=lambda one: (one.forward, one.entry.order))
        tolerances = Tolerances()
        entries: list[LayerDifference] = []
        pairs: list[tuple[Activation, Activation]] = []
        for entry, records, devices, _ in self._found:
            if not self._streamed.holds:
                held, streamed = self._turned(*records)
                records = self._turned(held, self._with_calls(streamed))
            tolerance = tolerances.next(entry, devices)
            entries.append(replace(entry, tolerance=tolerance, label=both_labels(*records)))
            pairs.append(records)
        without = [r.label for key, r in self._there.items() if key not in self._taken]
        alone = [self._with_calls(record).label for record in self._alone]
        only_a, only_b = self._turned(tuple(without), tuple(alone))
        words = [side.words for side in self._sides]
        return Comparison(
            words[0], words[1], tuple(entries), self.matched_by, only_a, only_b, self._sides,
            tuple(pairs),
        )  # fmt: skip


def _without_values(record: Activation) -> Activation:
    return replace(record, tensor=torch.empty(shape_of(record), device="meta"))
