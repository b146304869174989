"""A checkpoint into a module: compared, reported, then loaded or refused.

In: what a file holds and a module, or a way to build one. Out: the filled module and a report.
Must not know: files, downloads, devices.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hookviz.errors import ModelError, WeightsError
from hookviz.models._comparing import compare, refusal
from hookviz.models._filling import without_filling
from hookviz.models._report import WeightsReport
from hookviz.models._unwrapping import Selection, select_weights

__all__ = ["Buildable", "Fitted", "class_options", "fit_builder", "fit_module"]

MOST_CLASSES = 1_000_000
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Buildable:
    """A model that can be built anew for a checkpoint.

    Attributes:
        name: For sentences.
        build: Called with keywords: ``num_classes`` and what ``options`` names.
        default_classes: How many classes it has without ``num_classes``; None where fixed.
        options: "aux_logits", "aux_loss", "image_size" where the builder takes them.
        siblings: Architectures of the same family, tried for advice where a checkpoint does not
            fit.
    """

    name: str
    build: Callable[..., nn.Module]
    default_classes: int | None
    options: frozenset[str] = frozenset()
    siblings: Callable[[], Iterable[Buildable]] = tuple


@dataclass(frozen=True)
class Fitted:
    """A filled module and how it came about."""

    module: nn.Module
    report: WeightsReport
    classes: int | None

    @property
    def head_missing(self) -> tuple[str, ...]:
        """Names of the classifier that the file lacks: these stayed random."""
        return tuple(name for name in self.report.missing if name in set(self.report.head))


def class_options(num_classes: Any) -> dict[str, int]:
    """The number of classes that the user chose, as a builder's option; {} for None.

    Raises:
        ModelError: It is no whole number from 1 to 1000000.
    """
    if num_classes is None:
        return {}
    whole = isinstance(num_classes, int) and not isinstance(num_classes, bool)
    if not whole or not 1 <= num_classes <= MOST_CLASSES:
        raise ModelError(
            f"num_classes is a whole number from 1 to {MOST_CLASSES}, not {num_classes!r}."
        )
    return {"num_classes": num_classes}


def fit_builder(
    what: Buildable, content: Any, source: str, *, strict: bool, **fixed: Any
) -> Fitted:
    """Build a model for a checkpoint and fill it.

    Args:
        what: How to build it.
        content: What the file holds.
        source: The file's name, for sentences.
        strict: Whether a mismatch beyond the head is an error.
        fixed: Options that the user chose, for example ``num_classes``.

    Raises:
        WeightsError: The file holds no weights, or they do not fit.
    """
    options = dict(fixed)
    for _ in range(4):  # each round may show one more option, for example classes after aux
        shapes = shapes_of(what, options)
        selection = _selected(content, shapes, source)
        hints = _hints(what, selection, shapes, options)
        hints = {k: v for k, v in hints.items() if k not in fixed and options.get(k) != v}
        if not hints:
            break
        options |= hints
    head = _head_names(what, shapes, options)
    report = compare(selection, laid_out(what, options), source, what.name, head)
    report = replace(report, classes=options.get("num_classes"))
    _refuse(report, strict=strict, advice=lambda: _advice(what, content))
    # Random values are drawn for what stays as built alone; for VGG16 they would take seconds.
    with contextlib.nullcontext() if report.missing else without_filling():
        module = what.build(**options)
    _load(module, selection, report)
    return Fitted(module, report, options.get("num_classes", what.default_classes))


def fit_module(module: nn.Module, content: Any, source: str, name: str, *, strict: bool) -> Fitted:
    """Fill a module that is built already; its last layer is resized where only that differs.

    Args:
        module: A copy that may be changed.
        content: What the file holds.
        source: The file's name.
        name: The module's name, for sentences.
        strict: Whether a mismatch beyond the head is an error.

    Raises:
        WeightsError: The file holds no weights, or they do not fit.
    """
    selection = _selected(content, _shapes(_tensors(module)), source)
    last = _last_layer(module)
    classes = _resize(module, last, selection)
    state = _tensors(module)
    head = frozenset(n for n in state if last and n.startswith(f"{last}."))
    report = replace(compare(selection, state, source, name, head), classes=classes)
    _refuse(report, strict=strict, advice=lambda: "")
    _load(module, selection, report)
    return Fitted(module, report, classes)


def _selected(content: Any, shapes: Shapes, source: str) -> Selection:
    selection = select_weights(content, shapes)
    if selection is None:
        kind = type(content).__name__
        raise WeightsError(
            f"{source} holds no named weights (a {kind} without a dict of tensors).",
            remedy="Save model.state_dict() with torch.save.",
        )
    return selection


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {n: v for n, v in module.state_dict().items() if isinstance(v, Tensor)}


def _shapes(state: Mapping[str, Tensor]) -> Shapes:
    return {n: tuple(v.shape) for n, v in state.items()}


def laid_out(what: Buildable, options: Mapping[str, Any]) -> dict[str, Tensor]:
    """A model's state dict, on the meta device (without memory) where its builder allows that."""
    try:
        with torch.device("meta"):
            return _tensors(what.build(**options))
    except (RuntimeError, NotImplementedError, ModelError):
        return _tensors(what.build(**options))


def shapes_of(what: Buildable, options: Mapping[str, Any]) -> Shapes:
    """Names and shapes of a model's state dict."""
    return _shapes(laid_out(what, options))


def _hints(
    what: Buildable, selection: Selection, shapes: Shapes, options: Mapping[str, Any]
) -> dict[str, Any]:
    """What the checkpoint says about how its model was built."""
    found: dict[str, Any] = {}
    classes = (
        _classes(what.default_classes, selection, shapes)
        if not options.get("num_classes")
        else None
    )
    if classes is not None:
        found["num_classes"] = classes
    names = selection.tensors
    if "aux_logits" in what.options:
        found["aux_logits"] = any(n.startswith(("aux1.", "AuxLogits.")) for n in names)
    if "aux_loss" in what.options:
        found["aux_loss"] = any(n.startswith("aux_classifier.") for n in names)
    table = names.get("encoder.pos_embedding")
    if "image_size" in what.options and table is not None and table.ndim == 3:
        patch = shapes.get("conv_proj.weight", (0, 0, 16, 16))[-1]
        side = round(max(table.shape[1] - 1, 0) ** 0.5)
        if side and side**2 + 1 == table.shape[1]:
            found["image_size"] = side * patch
    return found


def _classes(default: int | None, selection: Selection, shapes: Shapes) -> int | None:
    """The number of classes that every tensor of another length agrees on.

    A layer's length is a multiple of the classes (4 numbers for each class's box, 9 anchors for
    each score), and the multiple is the same on both sides.
    """
    votes: set[int] = set()
    for name, value in selection.tensors.items():
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
    other = shapes_of(what, {**options, "num_classes": count})
    layers = {n.rpartition(".")[0] for n, shape in shapes.items() if other.get(n) != shape}
    return frozenset(n for n in shapes if n.rpartition(".")[0] in layers)


def _last_layer(module: nn.Module) -> str:
    """Name of the last linear layer or convolution: the classifier of a module of one's own."""
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


def _refuse(report: WeightsReport, *, strict: bool, advice: Callable[[], str]) -> None:
    if not report.matched or (strict and report.faults):
        raise refusal(report, advice())


def _load(module: nn.Module, selection: Selection, report: WeightsReport) -> None:
    wanted = set(report.matched)
    state: Any = OrderedDict((n, v) for n, v in selection.tensors.items() if n in wanted)
    # The versions of the module's classes, which some (MNASNet) insist on when they load.
    state._metadata = getattr(module.state_dict(), "_metadata", {})  # noqa: SLF001 - torch's name for them
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module.load_state_dict(state, strict=False)


def _advice(what: Buildable, content: Any) -> str:
    """Names a sibling of the architecture that the checkpoint fits."""
    for sibling in what.siblings():
        try:
            shapes = shapes_of(sibling, {})
        except ModelError:
            continue
        selection = select_weights(content, shapes)
        if selection is None:
            break
        off = [n for n, v in selection.tensors.items() if tuple(v.shape) != shapes.get(n)]
        if len(off) <= 2 and len(selection.tensors) >= len(shapes) - 2:  # weight and bias of a head
            return f"It fits '{sibling.name}'."
    return ""
