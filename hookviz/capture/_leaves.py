"""The tensors inside whatever a layer received or gave, each with its path.

In: any value. Out: (path, tensor) pairs and a readable description. Must not know: hooks,
layers, copies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

__all__ = ["describe", "leaves"]

_MAX_DEPTH = 12
# Arbitrary objects may lead anywhere (a tokenizer, a logger), so fewer of them are opened.
_MAX_OBJECT_DEPTH = 4
_MAX_LEAVES = 10_000
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, nn.Module, torch.Size)


def leaves(value: Any, prefix: str = "") -> list[tuple[str, Tensor]]:
    """Every tensor inside a value, in the order in which it holds them.

    Tuples, lists, mappings, named tuples, data classes, ``PackedSequence`` and objects that hold
    tensors in attributes are opened; modules, numbers, strings and arrays are not.

    Args:
        value: What a layer received or gave.
        prefix: Path of the value itself.

    Returns:
        (path, tensor) pairs; the tensors are those of ``value``, not copies. A bare tensor has
        the path ``prefix``; others add positions, keys and field names with dots. Equal paths
        (keys ``0`` and ``"0"``) are told apart by ``#2``.

    Examples:
        >>> zero = torch.zeros(1)
        >>> [path for path, _ in leaves((zero, {"h": zero, "c": [zero]}))]
        ['0', '1.h', '1.c.0']
        >>> leaves(3)
        []
    """
    if isinstance(value, Tensor):
        return [(prefix, value)]
    found: list[tuple[str, Tensor]] = []
    seen: dict[str, int] = {}
    for path, tensor in _walk(value, prefix, 0, 0, set()):
        count = seen[path] = seen.get(path, 0) + 1
        found.append((path if count == 1 else f"{path}#{count}", tensor))
        if len(found) >= _MAX_LEAVES:
            break
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
    if isinstance(value, PackedSequence):
        fields = zip(value._fields, value, strict=True)
        return [(name, part) for name, part in fields if part is not None]
    if isinstance(value, Mapping):
        return [(str(k), v) for k, v in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(map(str, value._fields), value, strict=False))
    if isinstance(value, (tuple, list)):
        return [(str(i), v) for i, v in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return [(str(i), v) for i, v in enumerate(value)]
    if dataclasses.is_dataclass(value):
        names = tuple(f.name for f in dataclasses.fields(value))
        parts = [(n, getattr(value, n)) for n in names if hasattr(value, n)]
        extra = [(k, v) for k, v in getattr(value, "__dict__", {}).items() if k not in names]
        return parts + extra
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


def _walk(
    value: Any, path: str, depth: int, opened: int, inside: set[int]
) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
        return
    if isinstance(value, _PLAIN) or callable(value) or depth > _MAX_DEPTH or id(value) in inside:
        return
    parts = _parts(value)
    if parts is None:
        if opened >= _MAX_OBJECT_DEPTH:
            return
        parts, opened = _attributes(value), opened + 1
    inside.add(id(value))
    for name, part in parts:
        yield from _walk(part, f"{path}.{name}" if path else name, depth + 1, opened, inside)
    inside.discard(id(value))


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
