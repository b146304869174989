"""The tensors inside whatever a layer received or gave: found, described, replaced.

One walk names the leaves for all three, so that paths always agree.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

_MAX_DEPTH = 12
# Arbitrary objects may lead anywhere (a tokenizer, a logger), so fewer of them are opened.
_MAX_OBJECT_DEPTH = 4
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, nn.Module, torch.Size)


Leaves: TypeAlias = list[tuple[str, Tensor]]


def leaves(value: Any, prefix: str = "") -> Leaves:
    """Every tensor inside a value, in the order in which it holds them.

    Tuples, lists, mappings, named tuples, data classes, ``PackedSequence`` and objects that hold
    tensors in attributes are opened; modules, numbers, strings and arrays are not.

    Args:
        value: What a layer received or gave.
        prefix: Path of the value itself.

    Returns:
        (path, tensor) pairs; the tensors are those of ``value``, not copies. A bare tensor has
        the path ``prefix``; others add positions, keys and field names with dots. Equal paths
        (keys ``0`` and ``"0"``) differ by ``#2``.

    Examples:
        >>> zero = torch.zeros(1)
        >>> [path for path, _ in leaves((zero, {"h": zero, "c": [zero]}))]
        ['0', '1.h', '1.c.0']
        >>> leaves(3)
        []
    """
    if isinstance(value, Tensor):
        return [(prefix, value)]
    found: Leaves = []

    def note(path: str, tensor: Tensor) -> Tensor:
        found.append((path, tensor))
        return tensor

    change_leaves(value, note, prefix)
    return found


def describe(value: Any) -> str:
    """A value's structure in one line: shapes for tensors, type names for everything else.

    Args:
        value: What a layer received or gave.

    Returns:
        For example ``"([2, 5, 8], ([4, 2, 4], [4, 2, 4]))"`` for the output of an LSTM and
        ``"{out: [1, 21, 64, 64], name: str}"`` for a mapping.

    Examples:
        >>> describe((torch.zeros(2, 5), [torch.zeros(3), "x", None]))
        '([2, 5], [[3], str, None])'
        >>> describe(torch.zeros(()))
        '[]'
    """
    return _describe(value, 0, set())


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    """The named parts of a container, or None where there is nothing to open."""
    if isinstance(value, _PLAIN):
        return None
    if isinstance(value, Mapping):
        return [(str(k), v) for k, v in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(map(str, value._fields), value, strict=False))
    if isinstance(value, tuple | list | set | frozenset):
        return [(str(i), v) for i, v in enumerate(value)]
    if dataclasses.is_dataclass(value):
        fields = [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]
        parts = {name: getattr(value, name) for name in fields}
        return list({**parts, **getattr(value, "__dict__", {})}.items())
    return None


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """What an arbitrary object holds; private names included, since tensors hide there too."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and hasattr(value, name):
                found.setdefault(name, getattr(value, name))
    return list(found.items())


def _describe(value: Any, depth: int, inside: set[int]) -> str:
    if isinstance(value, Tensor):
        return _shape(value)
    if value is None:
        return "None"
    kind = type(value).__name__
    if depth > _MAX_DEPTH or id(value) in inside:
        return kind
    parts = _parts(value)
    if parts is None:
        found = [] if isinstance(value, _PLAIN) else leaves(value)
        return f"{kind}({', '.join(f'{p}: {_shape(t)}' for p, t in found)})" if found else kind
    inside.add(id(value))
    texts = [(name, _describe(part, depth + 1, inside)) for name, part in parts]
    inside.discard(id(value))
    plain = ", ".join(text for _, text in texts)
    named = ", ".join(f"{name}: {text}" for name, text in texts)
    if type(value) is tuple:
        return f"({plain},)" if len(texts) == 1 else f"({plain})"
    if type(value) is list:
        return f"[{plain}]"
    return f"{{{named}}}" if isinstance(value, dict) else f"{kind}({named})"


def _shape(tensor: Tensor) -> str:
    try:
        if not tensor.is_nested:
            return str(list(tensor.shape))
        rows = [str(list(row.shape)) for row in tensor.unbind()]
    except RuntimeError:  # a tensor that has no shape yet or does not say it
        return type(tensor).__name__
    return f"nested({', '.join(rows[:4])}{', …' if len(rows) > 4 else ''})"


# The structure is opened by the very code that names the leaves, so that the two always agree.


def change_leaves(value: Any, change: Callable[[str, Tensor], Tensor], prefix: str = "") -> Any:
    """A value with its tensors replaced, otherwise the same.

    Args:
        value: What a layer received or gave; it and what it holds are not changed.
        change: (leaf path, tensor) → tensor; called for the paths and in the order of
            `leaves`. Returning the tensor itself keeps it.
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
    """An object, as a function that calls itself would stay alive until the garbage collector."""

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
        put_back = _with_attributes if parts is None else _with_parts
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
        same = all(after is before for (_, after), (_, before) in zip(new, parts, strict=True))
        return value if same else put_back(value, parts, new)


def _with_parts(value: Any, old: list[tuple[str, Any]], new: list[tuple[str, Any]]) -> Any:
    items = [part for _, part in new]
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
    if isinstance(value, list):
        twin = copy.copy(value)
        twin[:] = items
        return twin
    if isinstance(value, tuple | set | frozenset):
        # torch.return_types.* and plain tuples alike take one iterable.
        return type(value)(items)
    return _with_attributes(value, old, new)


def _with_attributes(value: Any, old: list[tuple[str, Any]], new: list[tuple[str, Any]]) -> Any:
    twin = copy.copy(value)
    for (name, before), (_, after) in zip(old, new, strict=True):
        if after is not before:
            object.__setattr__(twin, name, after)  # also of a frozen data class
    return twin
