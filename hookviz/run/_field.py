"""Receptive fields: which pixels of the input and of the photo a place of a layer depends on.

The fields of all layers of a run are found at once, the first time that one of them is asked for,
and kept with the model for inputs of that size; a place is then a look-up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from hookviz._meta import with_same_weights, without_values
from hookviz._text import fault_text
from hookviz.activation import Activation
from hookviz.capture import Capture, list_layers
from hookviz.errors import HookvizError
from hookviz.models import LoadedModel, feed
from hookviz.run._reach import NONE, CannotFollow, Following, Leaving, Reach, of_input
from hookviz.run._reach_rules import RULES
from hookviz.run._torch_state import undisturbed

Key: TypeAlias = tuple[str, int, str, str]
"""Layer, call, leaf and kind of an activation."""


@dataclass(frozen=True, eq=False)
class LayerReach:
    """What one layer's values depend on.

    Attributes:
        shape: Of the activation.
        reach: The boxes of its values.
        edges_known: Whether boxes could be continued beyond the input's edges.
        events: Where values began to depend on every pixel: (layer, operation).
        unions: Operations before it that could not be followed closely: (layer, operation).
        numbers: Layers before it that took single numbers out of tensors.
    """

    shape: tuple[int, ...]
    reach: Reach | None
    edges_known: bool
    events: tuple[tuple[str, str], ...]
    unions: tuple[tuple[str, str], ...]
    numbers: tuple[str, ...]


_Fields: TypeAlias = dict[Key, LayerReach]
_KNOWN: WeakKeyDictionary[nn.Module, dict[Any, _Fields]] = WeakKeyDictionary()
_LOCK = threading.Lock()


def key_of(activation: Activation) -> Key:
    """What names an activation within its run."""
    return (activation.layer, activation.call, activation.leaf, activation.kind)


def layer_reach(
    model: LoadedModel, tensor: Tensor, wanted: Activation, others: Iterable[Activation]
) -> LayerReach:
    """What the values of a layer depend on.

    Args:
        model: The model that ran.
        tensor: (N, C, H, W), what it was given.
        wanted: The activation.
        others: Activations of the same run, which are found at the same cost.

    Raises:
        HookvizError: It cannot be computed; the sentence says why.
    """
    settings = (tuple(tensor.shape), repr(model.module))
    with _LOCK:
        known = _KNOWN.setdefault(model.module, {}).setdefault(settings, {})
        if key_of(wanted) not in known:
            layers = _calls(model, wanted, others)
            with undisturbed(model.device):
                known.update(_followed(model, tensor, layers, inputs=wanted.kind == "input"))
    found = known.get(key_of(wanted))
    if found is None or found.shape != wanted.shape:
        raise HookvizError(
            f"The receptive field of {wanted.label} is not known: "
            + (
                "its forward, tried again, did not call it that way."
                if found is None
                else f"it gives {found.shape}, but {wanted.shape} was kept."
            ),
            code="no-receptive-field",
        )
    return found


def _calls(model: LoadedModel, wanted: Activation, others: Iterable[Activation]) -> dict[str, int]:
    """How often each layer is to be seen called."""
    names = {"", *(layer.name for layer in list_layers(model.module))}
    if wanted.layer not in names:
        raise HookvizError(
            f"The model has no layer '{wanted.layer}'; a receptive field is asked for by the name "
            "that a layer has in the model.",
            code="no-receptive-field",
        )
    return {a.layer: a.calls for a in (wanted, *others) if a.layer in names}


def _followed(
    model: LoadedModel, tensor: Tensor, layers: dict[str, int], *, inputs: bool
) -> _Fields:
    """The fields of some layers; by shapes alone where that goes."""
    try:
        return _forward(model, tensor, layers, inputs=inputs, values=False)
    except Exception as error:  # whatever a model does without values
        if isinstance(error, CannotFollow) and not error.values:
            raise _not_known(model, error) from error
    try:
        return _forward(model, tensor, layers, inputs=inputs, values=True)
    except Exception as error:
        raise _not_known(model, error) from error


def _not_known(model: LoadedModel, error: Exception) -> HookvizError:
    reason = str(error) if isinstance(error, CannotFollow) else fault_text(error)
    return HookvizError(
        f"The receptive fields of {model.name} cannot be computed: {reason.rstrip('.')}.",
        code="no-receptive-field",
    )


def _forward(
    model: LoadedModel, tensor: Tensor, layers: dict[str, int], *, inputs: bool, values: bool
) -> _Fields:
    module = model.module
    twin = with_same_weights(module) if values else without_values(module)
    weights: dict[int, Tensor] = {}
    if not values:
        tensor = torch.empty_like(tensor, device="meta")
        pairs = zip(twin.parameters(), module.parameters(), strict=True)
        weights = {id(empty): weight for empty, weight in pairs}
    for part in twin.modules():
        if isinstance(part, nn.DataParallel):
            part.device_ids = []  # in one piece
    found: _Fields = {}
    with _names(twin) as where, torch.no_grad():
        height, width = tensor.shape[-2:]
        mode = Following((height, width), where, weights, RULES)

        def arrived(a: Activation) -> None:
            # The activation is a copy, made while the operations were followed.
            found[key_of(a)] = LayerReach(
                a.shape, mode.get(a.tensor), mode.edges_known,
                tuple(mode.events), tuple(mode.unions), tuple(mode.numbers),
            )  # fmt: skip

        capture = Capture(
            twin, sorted(layers), inputs=inputs, stop_early=layers, eval_mode=True,
            on_activation=arrived,
        )  # fmt: skip
        fed = replace(model, module=twin)
        leaving = Leaving(mode) if values else nullcontext()
        with capture, mode, leaving:
            mode.set(tensor, of_input(tensor))
            args, kwargs = feed(fed, tensor)
            capture.run(*args, **kwargs)
    return found


@contextmanager
def _names(module: nn.Module) -> Iterator[Callable[[], str]]:
    """While it is open: the name of the layer that runs now."""
    stack = [""]
    with watching(module, lambda name, _: stack.append(name), lambda *_: stack.pop()):
        yield lambda: stack[-1]


@contextmanager
def watching(
    module: nn.Module,
    enter: Callable[[str, Any], object],
    leave: Callable[[str, Any], object],
) -> Iterator[None]:
    """While it is open, calls are told of each layer that runs.

    Args:
        module: The model.
        enter: Called with a layer's name and its positional arguments.
        leave: Called with its name and what it gave, or None where it failed.
    """
    handles = []
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            continue  # takes no hooks

        def before(_part: Any, args: Any, name: str = name) -> None:
            enter(name, args)

        def after(_part: Any, _args: Any, out: Any, name: str = name) -> None:
            leave(name, out)

        handles.append(part.register_forward_pre_hook(before))
        handles.append(part.register_forward_hook(after, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def boxes_at(layer: LayerReach, positions: Tensor) -> Tensor:
    """The boxes of some values of a layer.

    Args:
        layer: The layer.
        positions: (..., n), in the flattened activation (C order).

    Returns:
        (2, 4, ...): the box of each n values together as it is, and as if the input had no edge;
        top, bottom, left, right, both ends inclusive; ±inf where they depend on no pixel.
    """
    if layer.reach is None:
        return torch.full((2, 4, *positions.shape[:-1]), NONE)
    rows, columns, _ = (_picked(p, positions, layer.shape) for p in layer.reach.parts)
    there = (rows > NONE).all(0) & (columns > NONE).all(0)
    top, bottom, free_top, free_bottom = rows.where(there, NONE).amax(-1)
    left, right, free_left, free_right = columns.where(there, NONE).amax(-1)
    return torch.stack(
        (
            torch.stack((-top, bottom, -left, right)),
            torch.stack((-free_top, free_bottom, -free_left, free_right)),
        )
    )


def event_at(layer: LayerReach, positions: Tensor) -> tuple[str, str] | None:
    """Which layer and operation made some values depend on every pixel; None where none did."""
    if layer.reach is None:
        return None
    first = _picked(layer.reach.mixed, positions, layer.shape).max()
    return None if first == NONE else layer.events[int(-first)]


def _picked(part: Tensor, positions: Tensor, shape: tuple[int, ...]) -> Tensor:
    """(G, ...): what a part says of values at positions of the flattened activation."""
    at = torch.unravel_index(positions, shape)
    sizes = part.shape[1:]
    index: Any = [i if n > 1 else torch.zeros_like(i) for i, n in zip(at, sizes, strict=True)]
    return part[(slice(None), *index)] if index else part[:, None]
