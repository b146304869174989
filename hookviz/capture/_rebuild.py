"""The same value with some of its tensors replaced.

In: what a layer received or gave, and new tensors by leaf path. Out: a value of the same
structure. Must not know: hooks, layers, what the new tensors are for.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

# The structure is opened by the very code that names the leaves, so that the two always agree.
from hookviz.capture._leaves import (
    _MAX_DEPTH,
    _MAX_OBJECT_DEPTH,
    _PLAIN,
    _attributes,
    _parts,
)

__all__ = ["change_leaves"]


def change_leaves(value: Any, change: Callable[[str, Tensor], Tensor], prefix: str = "") -> Any:
    """A value with its tensors replaced, otherwise the same.

    Args:
        value: What a layer received or gave; it and what it holds are not changed.
        change: (leaf path, tensor) → tensor; called for the paths and in the order of
            :func:`~hookviz.capture._leaves.leaves`. Returning the tensor itself keeps it.
        prefix: Path of the value itself.

    Returns:
        A value of the same types (tuples, named tuples, lists, mappings, data classes, packed
        sequences, objects) in which only what holds a replaced tensor is new; ``value`` itself
        where nothing was replaced.

    Examples:
        >>> import torch
        >>> one = torch.ones(1)
        >>> change_leaves({"a": (one, 3)}, lambda path, tensor: tensor + len(path))
        {'a': (tensor([4.]), 3)}
    """
    return _Rebuilding(change).of(value, prefix, 0, 0)


class _Rebuilding:
    def __init__(self, change: Callable[[str, Tensor], Tensor]) -> None:
        self._change = change
        self._seen: dict[str, int] = {}
        self._inside: set[int] = set()

    def of(self, value: Any, path: str, depth: int, opened: int) -> Any:
        if isinstance(value, Tensor):
            count = self._seen[path] = self._seen.get(path, 0) + 1
            return self._change(path if count == 1 else f"{path}#{count}", value)
        if isinstance(value, _PLAIN) or callable(value):
            return value
        if depth > _MAX_DEPTH or id(value) in self._inside:
            return value
        parts = _parts(value)
        by_attribute = parts is None
        if parts is None:
            if opened >= _MAX_OBJECT_DEPTH:
                return value
            parts, opened = _attributes(value), opened + 1
        self._inside.add(id(value))
        new = [
            (name, self.of(part, f"{path}.{name}" if path else name, depth + 1, opened))
            for name, part in parts
        ]
        self._inside.discard(id(value))
        if all(after is before for (_, after), (_, before) in zip(new, parts, strict=True)):
            return value
        return (
            _with_attributes(value, parts, new) if by_attribute else _with_parts(value, parts, new)
        )


def _with_parts(value: Any, old: list[tuple[str, Any]], new: list[tuple[str, Any]]) -> Any:
    items = [part for _, part in new]
    if isinstance(value, PackedSequence):
        named = dict(new)
        return PackedSequence(
            named["data"],
            named["batch_sizes"],
            named.get("sorted_indices"),
            named.get("unsorted_indices"),
        )
    if isinstance(value, Mapping):
        pairs = list(zip(value.keys(), items, strict=True))
        try:
            twin: Any = copy.copy(value)
            for key, item in pairs:
                twin[key] = item
        except TypeError:  # a mapping that cannot be written, such as MappingProxyType
            return dict(pairs)
        return twin
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return type(value)._make(items)
    if isinstance(value, tuple):
        # torch.return_types.* and plain tuples alike take one iterable.
        return type(value)(items)
    if isinstance(value, list):
        twin = copy.copy(value)
        twin[:] = items
        return twin
    if isinstance(value, set | frozenset):
        return type(value)(items)
    if dataclasses.is_dataclass(value):
        return _with_attributes(value, old, new)
    return value


def _with_attributes(value: Any, old: list[tuple[str, Any]], new: list[tuple[str, Any]]) -> Any:
    twin = copy.copy(value)
    for (name, before), (_, after) in zip(old, new, strict=True):
        if after is not before:
            object.__setattr__(twin, name, after)  # also of a frozen data class
    return twin
