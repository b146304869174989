"""The state dict inside a checkpoint, under the model's own names.

Nothing is guessed from a fixed list of wrappings: every mapping with tensors is tried with every
prefix that occurs, and what fits the model best comes first. The list only settles ties.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.nn.parameter import is_lazy

from hookviz.models._checkpoint import Checkpoint

Shapes = Mapping[str, tuple[int, ...] | None]
"""Shapes by the names of a model's state dict; None for what is no tensor, or a lazy one."""

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
_DEPTH = 4
_PLACES = ("args", "hyper_parameters", "config", "cfg", "meta", "opt")
_NAMES = ("class_names", "classes", "categories", "class_to_idx", "idx_to_class", "labels")


@dataclass(frozen=True)
class Selection:
    """Values of a checkpoint under the model's names.

    Attributes:
        source: The file's name, or "state dict".
        wrapping: Dotted path of the mapping in the file; "" for the top.
        prefix: What was taken off its names.
        values: Tensors, and what else the model keeps in its state dict, by the model's own names;
            names that the model does not know stay as they are.
        metadata: The versions of the modules that were saved, as torch keeps them; None where the
            file has none.
        ignored: Names without the prefix, and values that do not belong to a state dict.
        score: How well the values fit the model.
        others: Other mappings or prefixes of the same file that fit equally well.
    """

    source: str
    wrapping: str
    prefix: str
    values: dict[str, Any]
    metadata: dict[str, Any] | None
    ignored: tuple[str, ...] = ()
    score: int = 0
    others: tuple[str, ...] = ()

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors among the values, but for lazy ones."""
        return {n: v for n, v in self.values.items() if shape_of(v) is not None}

    def state_dict(self) -> Mapping[str, Any]:
        """What ``load_state_dict`` gets: the values with the versions that were saved."""
        return with_versions(self.values, self.metadata)


def with_versions(
    values: Mapping[str, Any], metadata: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """A state dict with the versions of its modules' classes, as torch keeps them."""
    state: Any = OrderedDict(values)
    if metadata is not None:
        state._metadata = metadata  # noqa: SLF001 - torch's name for the versions
    return state  # type: ignore[no-any-return] # an OrderedDict with one attribute more


def shape_of(value: Any) -> tuple[int, ...] | None:
    """A tensor's shape; None for what is none, or is a lazy one that has no shape yet."""
    return tuple(value.shape) if isinstance(value, Tensor) and not is_lazy(value) else None


def find_weights(given: Checkpoint, target: Shapes) -> list[Selection]:
    """The parts of a checkpoint that may be a model's weights, the best first.

    Args:
        given: The checkpoint.
        target: What the model's state dict holds.

    Returns:
        Empty where there is no mapping with tensors at all.
    """
    own = _own_names(target)
    others = {name.rpartition(".")[2] for name, shape in target.items() if shape is None}
    found: list[tuple[tuple[int, int, int], Selection]] = []
    for place, (path, mapping) in enumerate(_mappings(given.content)):
        values: dict[str, Any] = {}
        rest = []
        for name, value in mapping.items():
            kept = isinstance(value, Tensor) or str(name).rpartition(".")[2] in others
            if isinstance(name, str) and kept:
                values[_plain(name)] = value
            elif not isinstance(value, Tensor | Mapping):
                rest.append(str(name))
        last = path.rpartition(".")[2]
        rank = _PREFERRED.index(last) if last in _PREFERRED else len(_PREFERRED)
        for prefix in _prefixes(values, own):
            inside = {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)}
            chosen = {own.get(name, name): value for name, value in inside.items()}
            score = sum(
                3 if target[name] in (None, shape_of(value)) else 1
                for name, value in chosen.items()
                if name in target
            )
            outside = (*(name for name in values if not name.startswith(prefix)), *rest)
            versions = _versions(mapping, prefix)
            selection = Selection(given.name, path, prefix, chosen, versions, outside, score)
            found.append(((-score, rank, place), selection))
    best = [selection for _, selection in sorted(found, key=lambda entry: entry[0])]
    if best and best[0].score:
        equals = [other for other in best[1:] if other.score == best[0].score]
        labels = (o.wrapping + (f" ({o.prefix})" if o.prefix else "") for o in equals)
        best[0] = replace(best[0], others=tuple(labels))
    return best


def _versions(mapping: Mapping[Any, Any], prefix: str) -> dict[str, Any] | None:
    """Torch's ``_metadata`` of a state dict, its names changed as those of the values are."""
    saved = getattr(mapping, "_metadata", None)
    if not isinstance(saved, Mapping):
        return None
    plain = {_plain(f"{name}." if name else ""): value for name, value in saved.items()}
    return {
        name.removeprefix(prefix).removesuffix("."): value
        for name, value in plain.items()
        if name.startswith(prefix)
    }


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
    if not isinstance(content, Mapping) or depth > _DEPTH:
        return
    if any(isinstance(v, Tensor) and isinstance(n, str) for n, v in content.items()):
        yield path, content
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _mappings(value, f"{path}.{name}" if path else str(name), depth + 1)


def _prefixes(values: Mapping[str, Any], own: Mapping[str, str]) -> list[str]:
    """The prefixes under which names of the model occur, the commonest first; at least ""."""
    found: Counter[str] = Counter()
    for name in values:
        start = 0
        for _ in range(_DEPTH + 1):
            if name[start:] in own:
                found[name[:start]] += 1
            dot = name.find(".", start)
            if dot < 0:
                break
            start = dot + 1
    wrapped = bool(values) and all(name.startswith("module.") for name in values)
    return [prefix for prefix, _ in found.most_common(4)] or ["module." if wrapped else ""]


def tables(content: Any) -> Iterator[Mapping[str, Any]]:
    """A checkpoint, and what it keeps beside the weights: arguments, configs, hyperparameters."""
    if isinstance(content, Mapping):
        for place in (content, *(content.get(key) for key in _PLACES)):
            yield place if isinstance(place, Mapping) else getattr(place, "__dict__", {})


def class_names(content: Any, count: int | None) -> tuple[str, ...]:
    """Class names that a checkpoint carries beside its weights.

    Args:
        content: What the file holds.
        count: How many the model has; other numbers are not taken.

    Returns:
        () where there are none.
    """
    for table in tables(content):
        for key in _NAMES:
            names = as_names(table.get(key))
            if names and len(names) == count:
                return names
    return ()


def as_names(value: Any) -> tuple[str, ...]:
    """Names in the order of their numbers: of a list, or a table of names or numbers; else ()."""
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        return ()
    if all(isinstance(number, int) for number in value.values()):
        value = {number: name for name, number in value.items()}
    ordered = [value.get(i, value.get(str(i))) for i in range(len(value))]
    return tuple(ordered) if all(isinstance(name, str) for name in ordered) else ()
