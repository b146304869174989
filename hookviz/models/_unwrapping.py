"""The state dict inside a checkpoint, under the model's own names.

In: what a file holds and the names and shapes that a model has. Out: a Selection.
Must not know: files, how modules are built.

Nothing is guessed from a fixed list of wrappings: every mapping with tensors is tried with every
prefix that occurs, and what fits the model best is taken. The list only settles ties.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["Selection", "class_names", "select_weights"]

# Between equals: a training script's usual name for the weights first, averages last.
_PREFERRED = (
    "", "state_dict", "model_state_dict", "model", "net", "network", "module", "weights", "params",
    "student", "ema", "model_ema", "ema_state_dict", "state_dict_ema", "params_ema", "teacher",
)  # fmt: skip
# Put into names by wrappers at any depth: torch.compile, DeepSpeed, FSDP, checkpointing.
_WRAPPERS = re.compile(
    r"(?<![^.])(_orig_mod|_forward_module|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
# torchvision's and others' first DenseNets wrote "norm.1" for "norm1".
_OLD_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12]\.)")
_DEEP = 4
_NAMES = ("class_names", "classes", "categories", "class_to_idx", "idx_to_class", "labels")


@dataclass(frozen=True)
class Selection:
    """Tensors of a checkpoint under the model's names.

    Attributes:
        wrapping: Dotted path of the mapping in the file; "" for the top.
        prefix: What was taken off its names.
        tensors: By the model's own names; names that the model does not know stay as they are.
        ignored: Names without the prefix, and values that are no tensors.
        others: Other mappings or prefixes of the same file that fit equally well.
    """

    wrapping: str
    prefix: str
    tensors: dict[str, Tensor]
    ignored: tuple[str, ...]
    others: tuple[str, ...]


def select_weights(content: Any, target: Mapping[str, tuple[int, ...]]) -> Selection | None:
    """The part of a checkpoint that fits a model best.

    Args:
        content: What the file holds.
        target: Shapes by the names of the model's state dict.

    Returns:
        None where there is no mapping with tensors at all.
    """
    own = _own_names(target)
    best: list[tuple[tuple[int, int, int], Selection]] = []
    for place, (path, mapping) in enumerate(_mappings(content)):
        tensors = {
            _plain(name): value
            for name, value in mapping.items()
            if isinstance(name, str) and isinstance(value, Tensor)
        }
        rest = tuple(
            str(name) for name, v in mapping.items() if not isinstance(v, Tensor | Mapping)
        )
        last = path.rpartition(".")[2]
        rank = _PREFERRED.index(last) if last in _PREFERRED else len(_PREFERRED)
        for prefix in _prefixes(tensors, own):
            chosen = {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}
            named = {own.get(n, n): v for n, v in chosen.items()}
            score = sum(
                3 if tuple(value.shape) == target[name] else 1
                for name, value in named.items()
                if name in target
            )
            outside = tuple(n for n in tensors if not n.startswith(prefix))
            selection = Selection(path, prefix, named, (*outside, *rest), ())
            best.append(((-score, rank, place), selection))
    if not best:
        return None
    best.sort(key=lambda entry: entry[0])
    (top, _, _), first = best[0]
    others = tuple(
        selection.wrapping + (f" ({selection.prefix})" if selection.prefix else "")
        for (score, _, _), selection in best[1:]
        if score == top and top
    )
    return Selection(first.wrapping, first.prefix, first.tensors, first.ignored, others)


def _plain(name: str) -> str:
    return _OLD_DENSENET.sub(r"\1\2", _WRAPPERS.sub("", name))


def _own_names(target: Mapping[str, Any]) -> dict[str, str]:
    """The model's names by what they are without wrappers (DataParallel's "module." too)."""
    plain = {_WRAPPERS.sub("", name): name for name in target}
    if plain and all(name.startswith("module.") for name in plain):
        plain = {name.removeprefix("module."): own for name, own in plain.items()}
    return plain


def _mappings(
    content: Any, path: str = "", depth: int = 0
) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Every mapping with tensors in it, outer ones first."""
    if not isinstance(content, Mapping) or depth > _DEEP:
        return
    if any(isinstance(v, Tensor) and isinstance(n, str) for n, v in content.items()):
        yield path, content
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _mappings(value, f"{path}.{name}" if path else str(name), depth + 1)


def _prefixes(tensors: Mapping[str, Tensor], own: Mapping[str, str]) -> list[str]:
    """The prefixes under which names of the model occur, the commonest first; at least ""."""
    found: Counter[str] = Counter()
    for name in tensors:
        start = 0
        for _ in range(_DEEP + 1):
            if name[start:] in own:
                found[name[:start]] += 1
            dot = name.find(".", start)
            if dot < 0:
                break
            start = dot + 1
    return [prefix for prefix, _ in found.most_common(4)] or [_common_prefix(tensors)]


def _common_prefix(tensors: Mapping[str, Tensor]) -> str:
    """DataParallel's prefix where all names have it, else nothing."""
    return "module." if tensors and all(name.startswith("module.") for name in tensors) else ""


def class_names(content: Any, count: int | None) -> tuple[str, ...]:
    """Class names that a checkpoint carries beside its weights.

    Args:
        content: What the file holds.
        count: How many the model has; other numbers are not taken.

    Returns:
        () where there are none.
    """
    if not isinstance(content, Mapping):
        return ()
    places = [content, *(content.get(k) for k in ("meta", "hyper_parameters", "config", "args"))]
    for place in places:
        if not isinstance(place, Mapping):
            continue
        for key in _NAMES:
            names = _as_names(place.get(key))
            if names and len(names) == count:
                return names
    return ()


def _as_names(value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return tuple(value)
    if isinstance(value, Mapping) and value:
        items = list(value.items())
        if all(isinstance(k, str) and isinstance(v, int) for k, v in items):
            items = [(v, k) for k, v in items]
        if all(isinstance(k, int) and isinstance(v, str) for k, v in items):
            table = dict(items)
            if sorted(table) == list(range(len(table))):
                return tuple(table[i] for i in range(len(table)))
    return ()
