"""A checkpoint into a module: the module's own loading first, then by names and shapes.

The rule: what ``load_state_dict(strict=True)`` of that very module takes, is taken. Only the module
knows its older versions, renamed parameters, hooks, packed and lazy values. Matching by prefix,
wrapping and number of classes comes after that failed; a failed try touches nothing but a copy.

No wrapping is looked for in a fixed list: every mapping with tensors is tried with every prefix
that occurs, and what fits the model best comes first. The list only settles ties.
"""

from __future__ import annotations

import copy
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookviz._text import error_text
from hookviz.errors import ModelError, WeightsError
from hookviz.models._checkpoint import Checkpoint
from hookviz.models._modules import MOST_CLASSES, Values, copy_module, last_layer

if TYPE_CHECKING:
    from hookviz.models._loaded_model import Architecture

_TRIES = 3
_SHOWN = 8
# Buffers that need not be in the file (old checkpoints lack them; the model computes its own), and
# leftovers of counting tools that may be.
_OPTIONAL = ("num_batches_tracked", "relative_position_index", "total_ops", "total_params")
# First parts of names under which classifiers are found in the wild.
_HEADS = frozenset(
    ["fc", "classifier", "head", "heads", "last_linear", "logits", "aux1", "aux2", "AuxLogits",
     "projector", "projection_head", "aux_classifier", "head_dist"]
)  # fmt: skip
_AUXILIARY = {"aux_logits": ("aux1.", "AuxLogits."), "aux_loss": ("aux_classifier.",)}
_BROKEN = "NaN or infinite values"

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

State = Mapping[str, Any]
"""A state dict, or what is to become one."""

Convert = Callable[[nn.Module, State], State]


@dataclass(frozen=True)
class WeightsReport:
    """What was matched, missing and unexpected when a checkpoint was loaded.

    Attributes:
        source: The file's name, or "state dict".
        model: The model's name.
        wrapping: Where in the file the weights were: "" for the top, else "state_dict" or
            "checkpoint.model".
        prefix: What was taken off the file's names, for example "module."; "" for nothing.
        matched: Names loaded, in the model's order.
        missing: Names that the model needs and the file lacks.
        unexpected: Names that the file has and the model does not know.
        mismatched: Names on both sides that do not fit, with what the file holds and what the model
            needs: "(10, 512) float32, expected (1000, 512) float32".
        ignored: Names outside the chosen wrapping or prefix, and values that are no tensors.
        head: Names of ``missing`` and ``unexpected`` that belong to the classifier: these do not
            make a load fail.
        classes: Number of classes taken from the file; None where the model's own was kept.
        notes: Sentences on values: dtypes cast, NaN found, other weights in the same file.
    """

    source: str
    model: str
    wrapping: str = ""
    prefix: str = ""
    matched: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    head: frozenset[str] = frozenset()
    classes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """How ``LoadedModel.weights`` names them: "file my.pth" or "state dict"."""
        return self.source if self.source == "state dict" else f"file {self.source}"

    @property
    def faults(self) -> tuple[str, ...]:
        """Names beyond the classifier that are missing, unexpected or do not fit."""
        names = (*self.missing, *self.unexpected)
        return (*(n for n in names if n not in self.head), *self.mismatched)

    def table(self) -> str:
        """The report as text for people.

        Returns:
            One row for each fact, separated by line ends; of many names the first few.

        Examples:
            >>> report = WeightsReport("my.pth", "net", prefix="module.", matched=("a", "b"),
            ...     missing=("fc.weight",), head=frozenset({"fc.weight"}))
            >>> print(report.table())
            my.pth → net: 2 tensors matched, 1 missing.
              prefix       module. (taken off)
              matched      2   a, b
              missing      1   fc.weight (head)
        """
        names = {
            "matched": self.matched,
            "missing": self.missing,
            "unexpected": self.unexpected,
            "not fitting": tuple(f"{name}: {text}" for name, text in self.mismatched.items()),
            "ignored": self.ignored,
        }
        others = [f", {len(n)} {word}" for word, n in names.items() if n and word != "matched"]
        head = f"{self.source} → {self.model}: {len(self.matched)} tensors matched"
        rows = [
            ("found in", self.wrapping),
            ("prefix", self.prefix and f"{self.prefix} (taken off)"),
            ("classes", f"{self.classes} (from the file)" if self.classes else ""),
        ]
        for word, found in names.items():
            shown = [f"{n} (head)" if n in self.head else n for n in found[:_SHOWN]]
            shown += [f"… {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
            gap = "\n" + 19 * " " if word == "not fitting" else ", "
            rows.append((word, f"{len(found):<3} {gap.join(shown)}" if found else ""))
        rows += [("note", note) for note in self.notes]
        lines = [f"  {word:<12} {text}" for word, text in rows if text]
        return "\n".join([f"{head}{''.join(others)}.", *lines])

    def __str__(self) -> str:
        return self.table()


class MismatchError(WeightsError):
    """A checkpoint does not fit; ``report`` has the whole table.

    Args:
        report: What was matched and what was not.
        advice: What to do; "" for the usual.
    """

    def __init__(self, report: WeightsReport, advice: str = "") -> None:
        parts = []
        for word, all_names in (("missing", report.missing), ("unexpected", report.unexpected)):
            names = tuple(n for n in all_names if n not in report.head)
            if names:
                parts.append(f"{len(names)} {word} ({_some(names)})")
        for name, text in [*report.mismatched.items()][:1]:
            count = len(report.mismatched)
            parts.append(f"{count} of another shape or type ({name} is {text})")
        super().__init__(
            f"{report.source} does not fit '{report.model}': {len(report.matched)} tensors match, "
            f"{', '.join(parts) or 'and no others are known to the model'}.",
            remedy=advice
            or "Choose the architecture that it was trained with, or strict=False to load what "
            "fits.",
            code="weights-mismatch",
            details={"advice": advice},
        )
        self.report = report


# --- weights in a file ------------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    """Values of a checkpoint under the model's names.

    Attributes:
        source: The file's name, or "state dict".
        wrapping: Dotted path of the mapping in the file; "" for the top.
        prefix: What was taken off its names.
        values: Tensors, and what else the model keeps in its state dict, by the model's own names;
            names that the model does not know stay as they are. The versions of the modules that
            were saved are with them, as torch keeps them.
        ignored: Names without the prefix, and values that do not belong to a state dict.
        score: How well the values fit the model.
        others: Other mappings or prefixes of the same file that fit equally well.
    """

    source: str
    wrapping: str
    prefix: str
    values: State
    ignored: tuple[str, ...] = ()
    score: int = 0
    others: tuple[str, ...] = ()

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors among the values, but for lazy ones."""
        return {n: v for n, v in self.values.items() if shape_of(v) is not None}


def with_versions(values: State, metadata: Mapping[str, Any] | None) -> State:
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
            chosen: State = {own.get(n, n): value for n, value in inside.items()}
            score = sum(
                3 if target[name] in (None, shape_of(value)) else 1
                for name, value in chosen.items()
                if name in target
            )
            outside = (*(name for name in values if not name.startswith(prefix)), *rest)
            chosen = with_versions(chosen, _versions(mapping, prefix))
            selection = Selection(given.name, path, prefix, chosen, outside, score)
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


def _prefixes(values: State, own: Mapping[str, str]) -> list[str]:
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


# --- a model for them ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Fitted:
    """A filled module, and what is said of it.

    Attributes:
        module: The module.
        report: What was matched.
        classes: How many classes it has; None where unknown.
        note: What to tell the user; "" for nothing.
        no_classifier: Why there are no predictions; "" where there are.
    """

    module: nn.Module
    report: WeightsReport
    classes: int | None
    note: str = ""
    no_classifier: str = ""


def fit_builder(
    what: Architecture, given: Checkpoint, *, strict: bool, num_classes: Any = None
) -> Fitted:
    """Build a model for a checkpoint and fill it.

    Args:
        what: How to build it.
        given: The checkpoint.
        strict: Whether a mismatch beyond the head is an error.
        num_classes: What the user chose; None takes the file's.

    Raises:
        ModelError: ``num_classes`` is none.
        WeightsError: The file holds no weights, or they do not fit.
    """
    options, state, selection = _options(what, given, num_classes)

    def fresh(values: Values = "any") -> nn.Module:
        return what.build(values=values, **options)

    fitted = _load_own(fresh, given, state, what.name, what.convert)
    if fitted is None:
        head = _head_names(what, _shapes(state), options)
        report = _compare(selection, state, what.name, head)
        _refuse(report, strict, lambda: _advice(what, given))
        module = fresh("random" if report.missing else "any")
        fitted = _load_matched(module, selection, report)
    classes = options.get("num_classes")
    report = replace(fitted.report, classes=classes)
    return replace(fitted, report=report, classes=classes or what.default_classes)


def _state(what: Architecture, options: Mapping[str, Any]) -> dict[str, Any]:
    """The names and shapes of the module's state dict, laid out without memory."""
    return dict(what.build(values="none", **options).state_dict())


def _options(
    what: Architecture, given: Checkpoint, num_classes: Any = None
) -> tuple[dict[str, Any], dict[str, Any], Selection]:
    """How the builder is called for a checkpoint, what it then builds, and what fits it best."""
    options: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    while True:  # each round may show one more option, for example classes after aux
        state = _state(what, options)
        selection = _best(given, state)
        hints = _hints(what, selection, _shapes(state), options)
        if hints.keys() <= options.keys():
            return options, state, selection
        options = {**hints, **options}


def state_names(what: Architecture) -> tuple[str, ...]:
    """The names in the state dict of what an architecture builds by default."""
    return tuple(_state(what, {}))


def shares_names(names: Iterable[str], given: Checkpoint) -> bool:
    """Whether a checkpoint shares names with an architecture, as all of its family do."""
    wanted = dict.fromkeys(names)
    found = find_weights(given, wanted)
    known = set(found[0].values) if found else set()
    return bool(known) and 3 * len(known & wanted.keys()) >= min(len(known), len(wanted))


def fits(what: Architecture, given: Checkpoint) -> bool:
    """Whether a checkpoint has an architecture's names and shapes; the number of classes is free.

    Nothing is built but layouts without memory.
    """
    try:
        state = _state(what, {})
        known = _best(given, state).values.keys() & state
        if 10 * len(known) < 9 * sum(not n.endswith(_OPTIONAL) for n in state):
            return False
        options, state, selection = _options(what, given)
    except ModelError:
        return False
    report = _compare(selection, state, what.name, _head_names(what, _shapes(state), options))
    return not report.faults and not report.missing


def fit_module(original: nn.Module, given: Checkpoint, name: str, *, strict: bool) -> Fitted:
    """Fill a copy of a module; its last layer is resized where only that differs.

    Args:
        original: Left as it is.
        given: The checkpoint.
        name: The module's name, for sentences.
        strict: Whether a mismatch beyond the head is an error.

    Raises:
        ModelError: The module cannot be copied.
        WeightsError: The file holds no weights, or they do not fit.
    """

    def fresh() -> nn.Module:
        return copy_module(original, name).eval()

    try:
        state = dict(original.state_dict())
    except Exception as error:
        raise ModelError(
            f"The module '{name}' gives no state dict ({error_text(error)})."
        ) from error
    fitted = _load_own(fresh, given, state, name)
    if fitted is None:
        lazy = tuple(n for n, v in state.items() if isinstance(v, Tensor) and is_lazy(v))
        if lazy:
            raise WeightsError(
                f"{given.name} does not fit '{name}', whose sizes are open: {_some(lazy)} "
                f"{'are' if len(lazy) > 1 else 'is'} lazy.",
                remedy="Run the module once on an input, then pass it in.",
            )
        selection, module = _best(given, state), fresh()
        last, _ = last_layer(module)
        classes = _resize(module, last, selection)
        state = dict(module.state_dict())
        head = frozenset(n for n in state if last and n.startswith(f"{last}."))
        report = _compare(selection, state, name, head)
        _refuse(report, strict, lambda: "")
        fitted = _load_matched(module, selection, replace(report, classes=classes))
    return replace(fitted, classes=last_layer(fitted.module)[1])


# --- the module's own loading -------------------------------------------------------------------


def _load_own(
    fresh: Callable[[], nn.Module],
    given: Checkpoint,
    state: State,
    name: str,
    convert: Convert | None = None,
) -> Fitted | None:
    """A fresh module, filled by its own strict loading; None where that takes nothing.

    Args:
        fresh: Makes the module; each try gets another one, since a failed one leaves traces.
        given: The checkpoint.
        state: The module's state dict.
        name: The model's name.
        convert: See `Architecture`.
    """
    content = given.content
    found = find_weights(given, _shapes(state))
    tries = [s for s in found[:_TRIES] if 2 * s.score >= found[0].score]
    if isinstance(content, Mapping) and not (found and found[0].wrapping):
        # As it is, with all that it holds: its own names may all be others than the model's.
        values = with_versions(content, getattr(content, "_metadata", None))
        whole = Selection(given.name, "", "", values)
        if all(whole.values.keys() != s.values.keys() for s in tries):
            tries.append(whole)
    for selection in tries:
        if not all(isinstance(key, str) for key in selection.values):
            continue
        for change in (None, convert) if convert is not None else (None,):
            module = fresh()
            if _other_kinds(selection, module, state):
                break
            try:
                values = copy.copy(selection.values)
                _fill(module, values if change is None else change(module, values), strict=True)
            except Exception:  # noqa: BLE001, S112 - modules raise whatever they like; the comparison says what is wrong
                continue
            report = _report(selection, state, name, matched=tuple(module.state_dict()))
            renamed = tuple(key for key in selection.values if key not in state)
            if renamed:
                older = f"older names, converted by the model itself: {_some(renamed)}"
                report = replace(report, notes=(*report.notes, older))
            return _fitted(module, report)
    return None


def _other_kinds(selection: Selection, module: nn.Module, state: State) -> bool:
    """Whether torch's own copying would turn integers, complex numbers or views into weights.

    ``load_state_dict`` casts them without a word. A class with a loading of its own may mean it.
    """
    for name, value in selection.tensors.items():
        own: Any = state.get(name)
        if shape_of(own) is None or _same_kind(value, own):
            continue
        owner = module.get_submodule(name.rpartition(".")[0])
        plain = type(owner)._load_from_state_dict is nn.Module._load_from_state_dict  # noqa: SLF001 - torch's extension point
        if plain and not owner._load_state_dict_pre_hooks:  # noqa: SLF001 - as above
            return True
    return False


def _fitted(module: nn.Module, report: WeightsReport) -> Fitted:
    """What to say of a checkpoint that was loaded."""
    missing = [n for n in report.missing if n in report.head]
    no_classifier = note = ""
    if missing:
        more = ", …" if len(missing) > 2 else ""
        kept = f"{', '.join(missing[:2])}{more} kept random values."
        no_classifier = f"No classifier in {report.source}: {kept}"
    if report.faults:
        some = _some(report.faults)
        note = f" LOADED IN PART: {len(report.faults)} tensors do not fit ({some})."
    for found in report.notes:
        note += f" {report.source} holds {found}." if found.startswith(_BROKEN) else ""
    return Fitted(module, report, None, f"{no_classifier}{note}".strip(), no_classifier)


# --- by names and shapes ------------------------------------------------------------------------


def _best(given: Checkpoint, state: State) -> Selection:
    found = find_weights(given, _shapes(state))
    if not found:
        raise WeightsError(
            f"{given.name} holds no named weights (a {type(given.content).__name__} without a dict "
            "of tensors).",
            remedy="Save model.state_dict() with torch.save.",
        )
    return found[0]


def _shapes(state: State) -> dict[str, tuple[int, ...] | None]:
    return {n: shape_of(v) for n, v in state.items()}


def _hints(
    what: Architecture, selection: Selection, shapes: Shapes, options: Mapping[str, Any]
) -> dict[str, Any]:
    """What the checkpoint says about how its model was built."""
    found: dict[str, Any] = {}
    names = selection.tensors
    if not options.get("num_classes"):
        classes = _classes(what.default_classes, names, shapes)
        found |= {} if classes is None else {"num_classes": classes}
    for option, heads in _AUXILIARY.items():
        if option in what.options:
            found[option] = any(n.startswith(heads) for n in names)
    table = names.get("encoder.pos_embedding")
    if "image_size" in what.options and table is not None and table.ndim == 3:
        patch = (shapes.get("conv_proj.weight") or (0, 0, 16, 16))[-1]
        side = round(max(table.shape[1] - 1, 0) ** 0.5)
        if side and side**2 + 1 == table.shape[1]:
            found["image_size"] = side * patch
    return found


def _classes(default: int | None, names: Mapping[str, Tensor], shapes: Shapes) -> int | None:
    """The number of classes that every tensor of another length agrees on.

    A layer's length is a multiple of the classes (4 numbers for each class's box, 9 anchors for
    each score), and the multiple is the same on both sides.
    """
    votes: set[int] = set()
    for name, value in names.items():
        expected, found = shapes.get(name), tuple(value.shape)
        if default is None or not expected or not found or expected[1:] != found[1:]:
            continue
        if expected[0] == found[0] or expected[0] % default:
            continue
        times = expected[0] // default
        votes.add(found[0] // times if found[0] % times == 0 else -1)
    only = votes.pop() if len(votes) == 1 else -1
    return only if 1 <= only <= MOST_CLASSES else None


def _head_names(what: Architecture, shapes: Shapes, options: Mapping[str, Any]) -> frozenset[str]:
    """Names that depend on the number of classes, with all others of their layers."""
    if what.default_classes is None:
        return frozenset()
    count = int(options.get("num_classes") or what.default_classes) + 1
    other = _shapes(_state(what, {**options, "num_classes": count}))
    layers = {n.rpartition(".")[0] for n, shape in shapes.items() if other.get(n) != shape}
    return frozenset(n for n in shapes if n.rpartition(".")[0] in layers)


def _resize(module: nn.Module, last: str, selection: Selection) -> int | None:
    """Give the last layer the file's number of outputs; None where it has it already."""
    weight = selection.tensors.get(f"{last}.weight")
    layer: Any = module.get_submodule(last)
    if weight is None:
        return None
    own = layer.weight
    count = int(weight.shape[0]) if weight.ndim else 0
    if count == own.shape[0] or weight.shape[1:] != own.shape[1:] or not 0 < count <= MOST_CLASSES:
        return None
    layer.weight = nn.Parameter(own.new_empty(weight.shape), requires_grad=own.requires_grad)
    if layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias.new_empty(count))
    setattr(layer, "out_features" if isinstance(layer, nn.Linear) else "out_channels", count)
    return count


def _report(selection: Selection, state: State, name: str, **facts: Any) -> WeightsReport:
    return WeightsReport(
        source=selection.source,
        model=name,
        wrapping=selection.wrapping,
        prefix=selection.prefix,
        ignored=selection.ignored,
        notes=_notes(selection, state),
        **facts,
    )


def _compare(selection: Selection, state: State, name: str, head: frozenset[str]) -> WeightsReport:
    """Put a checkpoint beside a model.

    Args:
        selection: The checkpoint's tensors under the model's names.
        state: The model's own state dict; meta tensors will do.
        name: The model's name.
        head: Names of the classifier's tensors.
    """
    given = selection.tensors
    state = {n: v for n, v in state.items() if shape_of(v) is not None}
    bad = {
        n: f"{_kind(given[n])}, expected {_kind(v)}"
        for n, v in state.items()
        if n in given and not _fits(given[n], v)
    }
    missing = tuple(n for n in state if n not in given and not n.endswith(_OPTIONAL))
    unexpected = tuple(n for n in given if n not in state and not n.endswith(_OPTIONAL))
    # The whole top-level classifier counts as head where the file has nothing of it that fits.
    fitting = {n.partition(".")[0] for n in state if n in given and n not in bad}
    absent = {n for n in missing if n.partition(".")[0] in _HEADS - fitting}
    foreign = {n for n in unexpected if n.partition(".")[0] in _HEADS}
    return _report(
        selection,
        state,
        name,
        matched=tuple(n for n in state if n in given and n not in bad),
        missing=missing,
        unexpected=unexpected,
        mismatched=bad,
        head=(head | absent | foreign).intersection((*missing, *unexpected)),
    )


def _fits(found: Tensor, own: Tensor) -> bool:
    return tuple(found.shape) == tuple(own.shape) and _same_kind(found, own)


def _same_kind(found: Tensor, own: Tensor) -> bool:
    if found.layout != torch.strided or found.is_meta or found.is_quantized != own.is_quantized:
        return False
    # A view that repeats one number (strides of 0) may claim any size.
    if found.numel() * found.element_size() > found.untyped_storage().nbytes():
        return False
    return found.is_complex() == own.is_complex() and (
        found.is_floating_point() == own.is_floating_point()
        or (not own.is_floating_point() and found.dtype != torch.bool)
    )


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _notes(selection: Selection, state: State) -> tuple[str, ...]:
    kinds, broken = set(), []
    for name, value in selection.tensors.items():
        own: Any = state.get(name)
        if shape_of(own) is None or not value.is_floating_point() or not _fits(value, own):
            continue
        if value.dtype != own.dtype:
            kinds.add(str(value.dtype).removeprefix("torch."))
        # Types of 8 bits know no isfinite of their own.
        if not torch.isfinite(value if value.element_size() > 1 else value.float()).all():
            broken.append(name)
    found = {
        f"the file also holds {', '.join(selection.others[:4])}": selection.others,
        f"{', '.join(sorted(kinds))} values converted to the model's dtype": kinds,
        f"{_BROKEN} in {_some(broken)}": broken,
    }
    return tuple(note for note, there in found.items() if there)


def _refuse(report: WeightsReport, strict: bool, advice: Callable[[], str]) -> None:
    if not report.matched or (strict and report.faults):
        raise MismatchError(report, advice())


def _advice(what: Architecture, given: Checkpoint) -> str:
    """Names a sibling of the architecture that the checkpoint fits."""
    name = next((other.name for other in what.siblings() if fits(other, given)), "")
    return f"It fits '{name}'." if name else ""


def _load_matched(module: nn.Module, selection: Selection, report: WeightsReport) -> Fitted:
    wanted = set(report.matched)
    values = {n: v for n, v in selection.values.items() if n in wanted}
    # The versions of the module's classes, which some (MNASNet) insist on when they load.
    versions = getattr(module.state_dict(), "_metadata", {})
    _fill(module, with_versions(values, versions), strict=False)
    return _fitted(module, report)


def _fill(module: nn.Module, state: State, *, strict: bool) -> None:
    """Load a state dict.

    Nothing can be copied into a module on the meta device: it gets tensors of its own.
    """
    empty = any(torch.is_tensor(v) and v.is_meta for v in module.state_dict().values())
    if empty:
        own = {n: v.detach().clone() if torch.is_tensor(v) else v for n, v in state.items()}
        state = with_versions(own, getattr(state, "_metadata", None))
    # A class's own load_state_dict may know no "assign".
    module.load_state_dict(state, strict=strict, **({"assign": True} if empty else {}))
    left = tuple(n for n, tensor in module.named_buffers() if empty and tensor.is_meta)
    if left:
        raise ModelError(
            f"The module was built on the meta device, and no file has its {_some(left)}.",
            remedy="Build it on the CPU, then pass it in.",
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
