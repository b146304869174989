"""A checkpoint into a module: the module's own loading first, then by names and shapes.

The rule: what ``load_state_dict(strict=True)`` of that very module takes, is taken. Only the module
knows its older versions, renamed parameters, hooks, packed and lazy values. Matching by prefix,
wrapping and number of classes comes after that failed; a failed try touches nothing but a copy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookviz.errors import ModelError, WeightsError
from hookviz.models._build import Values, build
from hookviz.models._devices import copy_module
from hookviz.models._state_dict import Selection, Shapes, find_weights, shape_of

MOST_CLASSES = 1_000_000
_TRIES = 3
# Buffers that need not be in the file (old checkpoints lack them; the model computes its own), and
# leftovers of counting tools that may be.
_OPTIONAL = ("num_batches_tracked", "relative_position_index", "total_ops", "total_params")
# First parts of names under which classifiers are found in the wild.
_HEADS = frozenset(
    ["fc", "classifier", "head", "heads", "last_linear", "logits", "aux1", "aux2", "AuxLogits",
     "projector", "projection_head", "aux_classifier", "head_dist"]
)  # fmt: skip
_BROKEN = "NaN or infinite values"


@dataclass(frozen=True)
class Mismatch:
    """A tensor that file and model both have, and that does not fit.

    Attributes:
        name: The model's name of the tensor.
        found: What the file holds, for example "(10, 512)" or "(10, 512) int64".
        expected: What the model needs.
    """

    name: str
    found: str
    expected: str


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
        mismatched: Names on both sides that do not fit.
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
    mismatched: tuple[Mismatch, ...] = ()
    ignored: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    classes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """How ``LoadedModel.weights`` names them: "file my.pth" or "state dict"."""
        return self.source if self.source == "state dict" else f"file {self.source}"

    @property
    def faults(self) -> tuple[str, ...]:
        """Names beyond the classifier that are missing, unexpected or do not fit."""
        names = [*self.missing, *self.unexpected]
        head = set(self.head)
        return tuple(n for n in names if n not in head) + tuple(m.name for m in self.mismatched)

    @property
    def sentence(self) -> str:
        """The counts in one sentence."""
        parts = [f"{len(self.matched)} tensors matched"]
        parts += [
            f"{len(names)} {word}"
            for names, word in (
                (self.missing, "missing"),
                (self.unexpected, "unexpected"),
                (self.mismatched, "of another shape or type"),
                (self.ignored, "ignored"),
            )
            if names
        ]
        return f"{self.source} → {self.model}: {', '.join(parts)}."

    def table(self, limit: int = 8) -> str:
        """The report as text for people.

        Args:
            limit: At most this many names in each row; the rest is counted.

        Returns:
            One row for each fact, separated by line ends.

        Examples:
            >>> report = WeightsReport("my.pth", "net", prefix="module.", matched=("a", "b"),
            ...     missing=("fc.weight",), head=("fc.weight",))
            >>> print(report.table())
            my.pth → net: 2 tensors matched, 1 missing.
              prefix       module. (taken off)
              matched      2   a, b
              missing      1   fc.weight (head)
        """
        rows = [self.sentence]
        if self.wrapping:
            rows.append(f"  {'found in':<12} {self.wrapping}")
        if self.prefix:
            rows.append(f"  {'prefix':<12} {self.prefix} (taken off)")
        if self.classes is not None:
            rows.append(f"  {'classes':<12} {self.classes} (from the file)")
        head = set(self.head)
        for word, names in (
            ("matched", self.matched),
            ("missing", self.missing),
            ("unexpected", self.unexpected),
            ("ignored", self.ignored),
        ):
            if names:
                shown = ", ".join(f"{n} (head)" if n in head else n for n in names[:limit])
                more = f", … {len(names) - limit} more" if len(names) > limit else ""
                rows.append(f"  {word:<12} {len(names):<3} {shown}{more}")
        rows += [
            f"  {'other shape':<12}     {item.name}: {item.found}, expected {item.expected}"
            for item in self.mismatched[:limit]
        ]
        if len(self.mismatched) > limit:
            rows.append(f"  {'other shape':<12}     … {len(self.mismatched) - limit} more")
        rows += [f"  {'note':<12} {note}" for note in self.notes]
        return "\n".join(rows)

    def __str__(self) -> str:
        return self.table()


class MismatchError(WeightsError):
    """A checkpoint does not fit; ``report`` has the whole table.

    Args:
        report: What was matched and what was not.
        advice: What to do; "" for the usual.
    """

    def __init__(self, report: WeightsReport, advice: str = "") -> None:
        head = set(report.head)
        parts = []
        for word, all_names in (("missing", report.missing), ("unexpected", report.unexpected)):
            names = tuple(n for n in all_names if n not in head)
            if names:
                parts.append(f"{len(names)} {word} ({_some(names)})")
        if report.mismatched:
            first = report.mismatched[0]
            parts.append(
                f"{len(report.mismatched)} of another shape or type ({first.name} is "
                f"{first.found}, expected {first.expected})"
            )
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


@dataclass(frozen=True)
class Buildable:
    """An architecture that can be built anew for a checkpoint.

    Attributes:
        name: For sentences.
        make: Called with keywords: ``num_classes`` and what ``options`` names.
        default_classes: How many classes it has without ``num_classes``; None where fixed.
        options: "aux_logits", "aux_loss", "image_size" where the builder takes them.
        siblings: Architectures of the same family, tried for advice where a checkpoint does not
            fit.
        convert: The library's own conversion of older or foreign checkpoints for such a module;
            None where it has none.
    """

    name: str
    make: Callable[..., nn.Module]
    default_classes: int | None
    options: frozenset[str] = frozenset()
    siblings: Callable[[], Iterable[Buildable]] = tuple
    convert: Callable[[nn.Module, Mapping[str, Any]], Mapping[str, Any]] | None = None

    def build(
        self, num_classes: Any = None, values: Values = "random", **options: Any
    ) -> nn.Module:
        """A module in eval mode on the CPU; see `hookviz.models._build.build`.

        Raises:
            ModelError: The number of classes is none, or the library cannot build the module.
        """
        if num_classes is not None:
            whole = isinstance(num_classes, Integral) and not isinstance(num_classes, bool)
            if not (whole and 1 <= num_classes <= MOST_CLASSES):
                raise ModelError(
                    f"num_classes is a whole number from 1 to {MOST_CLASSES}, not {num_classes!r}."
                )
            if self.default_classes is None:
                raise ModelError(f"'{self.name}' has no classes whose number could be chosen.")
            options["num_classes"] = int(num_classes)
        try:
            return build(lambda: self.make(**options), values)
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            first = " ".join(str(error).split())[:200]
            raise ModelError(f"'{self.name}' cannot be built with {options}: {first}") from error

    def state(self, **options: Any) -> dict[str, Any]:
        """The names and shapes of the module's state dict, laid out without memory."""
        return dict(self.build(values="none", **options).state_dict())


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
    what: Buildable, content: Any, source: str, *, strict: bool, num_classes: Any = None
) -> Fitted:
    """Build a model for a checkpoint and fill it.

    Args:
        what: How to build it.
        content: What the file holds.
        source: The file's name, for sentences.
        strict: Whether a mismatch beyond the head is an error.
        num_classes: What the user chose; None takes the file's.

    Raises:
        ModelError: ``num_classes`` is none.
        WeightsError: The file holds no weights, or they do not fit.
    """
    options, state, selection = _options(what, content, source, num_classes)
    classes = options.get("num_classes", what.default_classes)

    def fresh(values: Values = "any") -> nn.Module:
        return what.build(values=values, **options)

    loaded = _load_own(fresh, content, state, what.convert)
    if loaded is not None:
        module, used = loaded
        report = _own_report(module, used, state, source, what.name)
    else:
        head = _head_names(what, _shapes(state), options)
        report = _compare(selection, state, source, what.name, head)
        _refuse(report, strict=strict, advice=lambda: _advice(what, content))
        module = fresh("random" if report.missing else "any")
        _load_matched(module, selection, report)
    return _fitted(module, replace(report, classes=options.get("num_classes")), classes)


def _options(
    what: Buildable, content: Any, source: str, num_classes: Any = None
) -> tuple[dict[str, Any], dict[str, Any], Selection]:
    """How the builder is called for a checkpoint, what it then builds, and what fits it best."""
    fixed = {} if num_classes is None else {"num_classes": num_classes}
    options: dict[str, Any] = dict(fixed)
    while True:  # each round may show one more option, for example classes after aux
        state = what.state(**options)
        selection = _best(content, _shapes(state), source)
        hints = _hints(what, selection, _shapes(state), options)
        hints = {k: v for k, v in hints.items() if k not in options}
        if not hints:
            return options, state, selection
        options |= hints


def fits(what: Buildable, content: Any) -> bool:
    """Whether a checkpoint has an architecture's names and shapes; the number of classes is free.

    Nothing is built but layouts without memory.
    """
    try:
        state = what.state()
        known = set(_best(content, _shapes(state), "").values) & set(state)
        if 10 * len(known) < 9 * sum(not n.endswith(_OPTIONAL) for n in state):
            return False
        options, state, selection = _options(what, content, "")
    except ModelError:
        return False
    head = _head_names(what, _shapes(state), options)
    report = _compare(selection, state, "", what.name, head)
    return not report.faults and not report.missing


def fit_module(
    original: nn.Module, content: Any, source: str, name: str, *, strict: bool
) -> Fitted:
    """Fill a copy of a module; its last layer is resized where only that differs.

    Args:
        original: Left as it is.
        content: What the file holds.
        source: The file's name.
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
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"The module '{name}' gives no state dict ({first}).") from error
    loaded = _load_own(fresh, content, state, None)
    if loaded is not None:
        module, used = loaded
        return _fitted(module, _own_report(module, used, state, source, name), None)
    lazy = [n for n, v in state.items() if isinstance(v, Tensor) and is_lazy(v)]
    if lazy:
        raise WeightsError(
            f"{source} does not fit '{name}', whose sizes are open: {_some(tuple(lazy))} "
            f"{'are' if len(lazy) > 1 else 'is'} lazy.",
            remedy="Run the module once on an input, then pass it in.",
        )
    selection = _best(content, _shapes(state), source)
    module = fresh()
    last = _last_layer(module)
    classes = _resize(module, last, selection)
    state = dict(module.state_dict())
    head = frozenset(n for n in state if last and n.startswith(f"{last}."))
    report = replace(_compare(selection, state, source, name, head), classes=classes)
    _refuse(report, strict=strict, advice=lambda: "")
    _load_matched(module, selection, report)
    return _fitted(module, report, classes)


def _fitted(module: nn.Module, report: WeightsReport, classes: int | None) -> Fitted:
    """What to say of a checkpoint that was loaded."""
    source, head = report.source, set(report.head)
    missing = [n for n in report.missing if n in head]
    notes = []
    if missing:
        more = ", …" if len(missing) > 2 else ""
        kept = f"{', '.join(missing[:2])}{more} kept random values."
        notes.append(f"No classifier in {source}: {kept}")
    no_classifier = " ".join(notes)
    if report.faults:
        count, names = len(report.faults), _some(report.faults)
        notes.append(f"LOADED IN PART: {count} tensors do not fit ({names}).")
    notes += [f"{source} holds {n}." for n in report.notes if n.startswith(_BROKEN)]
    return Fitted(module, report, classes, " ".join(notes), no_classifier)


# --- the module's own loading -------------------------------------------------------------------


def _load_own(
    fresh: Callable[[], nn.Module],
    content: Any,
    state: Mapping[str, Any],
    convert: Callable[[nn.Module, Mapping[str, Any]], Mapping[str, Any]] | None,
) -> tuple[nn.Module, Selection] | None:
    """A fresh module, filled by its own strict loading; None where that takes nothing.

    Args:
        fresh: Makes the module; each try gets another one, since a failed one leaves traces.
        content: What the file holds.
        state: The module's state dict.
        convert: See `Buildable`.
    """
    found = find_weights(content, _shapes(state))
    tries = [s for s in found[:_TRIES] if 2 * s.score >= found[0].score]
    if isinstance(content, Mapping) and not (found and found[0].wrapping):
        # As it is, with all that it holds: its own names may all be others than the model's.
        metadata = getattr(content, "_metadata", None)
        whole = Selection("", "", dict(content), metadata, (), 0)
        if all(whole.values.keys() != s.values.keys() for s in tries):
            tries.append(whole)
    for selection in tries:
        if not all(isinstance(name, str) for name in selection.values):
            continue
        for change in (None, convert) if convert is not None else (None,):
            module = fresh()
            if _other_kinds(selection, module, state):
                break
            try:
                given = selection.state_dict()
                given = given if change is None else change(module, given)
                _fill(module, given, strict=True)
            except Exception:  # noqa: BLE001, S112 - modules raise whatever they like; the comparison says what is wrong
                continue
            return module, selection
    return None


def _other_kinds(selection: Selection, module: nn.Module, state: Mapping[str, Any]) -> bool:
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


def _own_report(
    module: nn.Module, used: Selection, state: Mapping[str, Any], source: str, name: str
) -> WeightsReport:
    notes = _notes(used, state)
    renamed = [n for n in used.values if n not in state]
    if renamed:
        notes += (f"older names, converted by the model itself: {_some(tuple(renamed))}",)
    return WeightsReport(
        source=source,
        model=name,
        wrapping=used.wrapping,
        prefix=used.prefix,
        matched=tuple(module.state_dict()),
        ignored=used.ignored,
        notes=notes,
    )


# --- by names and shapes ------------------------------------------------------------------------


def _best(content: Any, shapes: Shapes, source: str) -> Selection:
    found = find_weights(content, shapes)
    if not found:
        raise WeightsError(
            f"{source} holds no named weights (a {type(content).__name__} without a dict of "
            "tensors).",
            remedy="Save model.state_dict() with torch.save.",
        )
    return found[0]


def _shapes(state: Mapping[str, Any]) -> dict[str, tuple[int, ...] | None]:
    return {n: shape_of(v) for n, v in state.items()}


def _hints(
    what: Buildable, selection: Selection, shapes: Shapes, options: Mapping[str, Any]
) -> dict[str, Any]:
    """What the checkpoint says about how its model was built."""
    found: dict[str, Any] = {}
    names = selection.tensors
    if not options.get("num_classes"):
        classes = _classes(what.default_classes, names, shapes)
        found |= {} if classes is None else {"num_classes": classes}
    if "aux_logits" in what.options:
        found["aux_logits"] = any(n.startswith(("aux1.", "AuxLogits.")) for n in names)
    if "aux_loss" in what.options:
        found["aux_loss"] = any(n.startswith("aux_classifier.") for n in names)
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


def _head_names(what: Buildable, shapes: Shapes, options: Mapping[str, Any]) -> frozenset[str]:
    """Names that depend on the number of classes, with all others of their layers."""
    if what.default_classes is None:
        return frozenset()
    count = int(options.get("num_classes") or what.default_classes) + 1
    other = _shapes(what.state(**{**options, "num_classes": count}))
    layers = {n.rpartition(".")[0] for n, shape in shapes.items() if other.get(n) != shape}
    return frozenset(n for n in shapes if n.rpartition(".")[0] in layers)


def _last_layer(module: nn.Module) -> str:
    """Name of the last linear layer or convolution: the classifier of the user's own module."""
    last = ""
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear | nn.Conv2d) and name:
            last = name
    return last


def _resize(module: nn.Module, last: str, selection: Selection) -> int | None:
    """Give the last layer the file's number of outputs; None where it has it already."""
    weight = selection.tensors.get(f"{last}.weight") if last else None
    layer = module.get_submodule(last) if last else None
    if weight is None or not isinstance(layer, nn.Linear | nn.Conv2d):
        return None
    own = layer.weight
    count = int(weight.shape[0]) if weight.ndim else 0
    if count == own.shape[0] or weight.shape[1:] != own.shape[1:] or not 0 < count <= MOST_CLASSES:
        return None
    layer.weight = nn.Parameter(own.new_empty(weight.shape), requires_grad=own.requires_grad)
    if layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias.new_empty(count))
    if isinstance(layer, nn.Linear):
        layer.out_features = count
    else:
        layer.out_channels = count
    return count


def _compare(
    selection: Selection,
    state: Mapping[str, Any],
    source: str,
    name: str,
    head: frozenset[str],
) -> WeightsReport:
    """Put a checkpoint beside a model.

    Args:
        selection: The checkpoint's tensors under the model's names.
        state: The model's own state dict; meta tensors will do.
        source: The file's name.
        name: The model's name.
        head: Names of the classifier's tensors.
    """
    given = selection.tensors
    state = {n: v for n, v in state.items() if shape_of(v) is not None}
    mismatched = tuple(
        Mismatch(n, _kind(given[n]), _kind(v))
        for n, v in state.items()
        if n in given and not _fits(given[n], v)
    )
    bad = {item.name for item in mismatched}
    missing = tuple(n for n in state if n not in given and not n.endswith(_OPTIONAL))
    unexpected = tuple(n for n in given if n not in state and not n.endswith(_OPTIONAL))
    # The whole top-level classifier counts as head where the file has nothing of it that fits.
    fitting = {n.partition(".")[0] for n in state if n in given and n not in bad}
    absent = {n for n in missing if n.partition(".")[0] in _HEADS - fitting}
    foreign = {n for n in unexpected if n.partition(".")[0] in _HEADS}
    return WeightsReport(
        source=source,
        model=name,
        wrapping=selection.wrapping,
        prefix=selection.prefix,
        matched=tuple(n for n in state if n in given and n not in bad),
        missing=missing,
        unexpected=unexpected,
        mismatched=mismatched,
        ignored=selection.ignored,
        head=tuple(n for n in (*missing, *unexpected) if n in head | absent | foreign),
        notes=_notes(selection, state),
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


def _notes(selection: Selection, state: Mapping[str, Any]) -> tuple[str, ...]:
    notes = []
    if selection.others:
        notes.append(f"the file also holds {', '.join(selection.others[:4])}")
    used = {
        n: v
        for n, v in selection.tensors.items()
        if shape_of(state.get(n)) is not None and v.is_floating_point() and _fits(v, state[n])
    }
    kinds = {
        str(v.dtype).removeprefix("torch.") for n, v in used.items() if v.dtype != state[n].dtype
    }
    if kinds:
        notes.append(f"{', '.join(sorted(kinds))} values converted to the model's dtype")
    # Types of 8 bits know no isfinite of their own.
    wide = {n: v if v.element_size() > 1 else v.float() for n, v in used.items()}
    broken = [n for n, v in wide.items() if not bool(torch.isfinite(v).all())]
    if broken:
        more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
        notes.append(f"{_BROKEN} in {', '.join(broken[:3])}{more}")
    return tuple(notes)


def _refuse(report: WeightsReport, *, strict: bool, advice: Callable[[], str]) -> None:
    if not report.matched or (strict and report.faults):
        raise MismatchError(report, advice())


def _load_matched(module: nn.Module, selection: Selection, report: WeightsReport) -> None:
    wanted = set(report.matched)
    state: Any = OrderedDict((n, v) for n, v in selection.values.items() if n in wanted)
    # The versions of the module's classes, which some (MNASNet) insist on when they load.
    state._metadata = getattr(module.state_dict(), "_metadata", {})  # noqa: SLF001 - torch's name for them
    _fill(module, state, strict=False)


def _fill(module: nn.Module, state: Mapping[str, Any], *, strict: bool) -> None:
    """Load a state dict.

    Nothing can be copied into a module on the meta device: it gets tensors of its own.
    """
    empty = any(torch.is_tensor(v) and v.is_meta for v in module.state_dict().values())
    if empty:
        metadata = getattr(state, "_metadata", None)
        own = {n: v.detach().clone() if torch.is_tensor(v) else v for n, v in state.items()}
        state = Selection("", "", own, metadata, (), 0).state_dict()
    # A class's own load_state_dict may know no "assign".
    module.load_state_dict(state, strict=strict, **({"assign": True} if empty else {}))
    left = [n for n, tensor in module.named_buffers() if empty and tensor.is_meta]
    if left:
        raise ModelError(
            f"The module was built on the meta device, and no file has its {_some(tuple(left))}.",
            remedy="Build it on the CPU, then pass it in.",
        )


def _advice(what: Buildable, content: Any) -> str:
    """Names a sibling of the architecture that the checkpoint fits."""
    name = next((other.name for other in what.siblings() if fits(other, content)), "")
    return f"It fits '{name}'." if name else ""


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
