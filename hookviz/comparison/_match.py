"""Which record of one side belongs to which of the other.

The rule: by name where at least half of the layers of the side that has fewer are layers of the
other as well; by a mapping where one is given; else in order of execution, where layers of the same
type and number of channels follow each other on both sides. What has no partner is listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from difflib import SequenceMatcher
from typing import Any, Literal

from hookviz.activation import Activation
from hookviz.comparison._layers import shape_of
from hookviz.errors import HookvizError, LayerError, did_you_mean

Key = tuple[str, int, int, str, str]
"""Layer, forward (from 0), call, kind and leaf."""
MatchedBy = Literal["name", "order", "mapping"]


def keyed(records: Iterable[Activation]) -> dict[Key, Activation]:
    """Records by key; forwards are counted from the first that has a record."""
    records = tuple(records)
    forwards = {run: number for number, run in enumerate(sorted({r.run for r in records}))}
    return {key_of(record, forwards[record.run]): record for record in records}


def key_of(record: Activation, forward: int = 0) -> Key:
    """The key of one record."""
    return (record.layer, forward, record.call, record.kind, record.leaf)


def check_mapping(match: Mapping[str, str], a: Set[str], b: Set[str]) -> None:
    """Whether a mapping names layers of a and of b.

    Raises:
        LayerError: It names a layer that is not there.
        HookvizError: It is empty.
    """
    if not match:
        raise HookvizError("match is empty, so nothing would be compared.")
    for side, there, names in (("a", a, match.keys()), ("b", b, match.values())):
        for name in names:
            if name not in there:
                raise LayerError(
                    f"match names the layer {name!r:.80}, which {side} does not have.",
                    remedy=did_you_mean(str(name), there) or None,
                )


def how_to_match(
    match: str | Mapping[str, str] | None, a: Set[str], b: Set[str], *, single: bool
) -> tuple[MatchedBy, dict[str, str]]:
    """How records find their partners.

    Args:
        match: "name", "order", a mapping from layers of a to layers of b, or None to choose.
        a: The layers of a.
        b: The layers of b.
        single: Both sides are one record each.

    Returns:
        The way, and for each layer of a that takes part its layer of b; empty for "order".

    Raises:
        HookvizError: ``match`` is something else, or no layer has the same name.
    """
    if isinstance(match, Mapping):
        return "mapping", dict(match)
    if match not in (None, "name", "order"):
        raise HookvizError(
            f"match is {match!r:.80}; legal are 'name', 'order', a mapping from layers of a to "
            "layers of b, and None."
        )
    shared = a & b
    if match == "order" or (match is None and (single or 2 * len(shared) < min(len(a), len(b)))):
        return "order", {}
    if not shared:
        raise HookvizError(
            "a and b have no layer of the same name.",
            remedy="Use match='order', or a mapping from layers of a to layers of b.",
        )
    return "name", {name: name for name in a}


def in_order(a: Sequence[Activation], b: Sequence[Activation]) -> dict[int, int]:
    """Positions in b of the partners of records of a, by order of execution.

    Args:
        a: Records of one side.
        b: Records of the other.

    Examples:
        >>> import torch
        >>> def record(layer, kind, channels):
        ...     return Activation(layer, 1, 1, 1, 1, "output", "", kind, torch.zeros(1, channels))
        >>> one = [record("0", "Linear", 4), record("1", "ReLU", 4)]
        >>> in_order(one, [record("x", "Linear", 4), record("y", "Norm", 4), one[1]])
        {0: 0, 1: 2}
    """
    if len(a) == len(b) == 1:
        return {0: 0}
    matcher = SequenceMatcher(None, [_likeness(r) for r in a], [_likeness(r) for r in b], False)
    return {
        one + step: other + step
        for one, other, size in matcher.get_matching_blocks()
        for step in range(size)
    }


def _likeness(record: Activation) -> tuple[Any, ...]:
    """What partners have in common: all but rows and columns, which follow the image's size."""
    shape = shape_of(record)
    channels = shape[1:2] if len(shape) != 3 else shape[2:]
    return (record.module_type, record.kind, record.leaf, len(shape), channels)
