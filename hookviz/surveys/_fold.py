"""Folds what the shards hold into the numbers of the whole, in the order of the shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from hookviz.errors import SurveyError
from hookviz.surveys._files import TensorFile, committed, read_facts
from hookviz.surveys._layout import Layout
from hookviz.surveys._plan import Plan
from hookviz.surveys._tally import Tally

SUMMARY = "summary.safetensors"
_FIELDS = (*(name for name in Tally.__dataclass_fields__ if name != "histogram"), "bins", "in_bins")


def open_tensors(path: Path) -> Any:
    """A safetensors file, to be read lazily.

    Raises:
        SurveyError: It is missing or damaged.
    """
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise SurveyError(
            f"'{path.name}' in {str(path.parent)!r} cannot be read: {error}."
        ) from error


def read_tally(file: Any, place: int) -> Tally:
    """The numbers of one layer in an open file.

    Args:
        file: What `open_tensors` gave.
        place: Position of the layer among the layouts.
    """
    return Tally.of({name: file.get_tensor(f"{place}/{name}") for name in _FIELDS})


def folded(plan: Plan, numbers: Sequence[int], places: Sequence[int] | None = None) -> list[Tally]:
    """The numbers of each layer over some shards.

    Args:
        plan: The plan.
        numbers: Of the shards, in their order.
        places: Positions of the layers that are wanted; None: all.
    """
    layouts: list[Layout] = plan.layouts
    wanted = range(len(layouts)) if places is None else places
    tallies = [Tally.empty(layouts[place].channels, plan.facts["top"]) for place in wanted]
    for number in numbers:
        with open_tensors(plan.shard_file(number)) as file:
            for place, tally in zip(wanted, tallies, strict=True):
                tally.merge(read_tally(file, place))
    return tallies


def write_summary(plan: Plan, numbers: Sequence[int]) -> list[Tally]:
    """Folds some shards and commits what comes out."""
    tallies = folded(plan, numbers)
    with committed(plan.folder / SUMMARY) as file:
        writer = TensorFile(file, 200 * len(_FIELDS) * (len(tallies) + 1))
        for place, tally in enumerate(tallies):
            for name, tensor in tally.tensors().items():
                writer.add(f"{place}/{name}", tensor)
        writer.close({"shards": list(numbers)})
    return tallies


def summary_of(
    plan: Plan, numbers: Sequence[int], places: Sequence[int] | None = None
) -> list[Tally] | None:
    """What `folded` gives, from the committed summary; None where it is not over these shards."""
    path = plan.folder / SUMMARY
    if not path.exists() or read_facts(path)["shards"] != list(numbers):
        return None
    wanted = range(len(plan.facts["layouts"])) if places is None else places
    with open_tensors(path) as file:
        return [read_tally(file, place) for place in wanted]
