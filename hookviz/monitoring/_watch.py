"""Hooks that measure what the watched layers answer while a model trains.

Which forwards count: those of the training loop. A forward without gradients (a validation, the
monitor's own probe) does not; nor does a recomputation of gradient checkpointing, which runs
inside the backward. Calls are numbered within each forward of the model: the second call of a
shared ReLU is call 2 of every forward. Forwards of one step (gradient accumulation) are joined.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from hookviz._text import error_text
from hookviz.capture import backward_is_running, belongs_to, leaves, set_forward_hook, set_pre_hook
from hookviz.monitoring._statistics import (
    CannotMeasure,
    Meter,
    OnDevice,
    OutputNumbers,
    from_device,
)


class Place(NamedTuple):
    """Where numbers come from.

    Attributes:
        layer: Name of the layer.
        call: Which call of it within a forward, from 1; 0 for its parameters.
        leaf: Path of the tensor in a nested output; "" for a bare tensor.
    """

    layer: str
    call: int = 1
    leaf: str = ""


class _OfThread(threading.local):
    """Of one thread: what its forward of the model is, and the calls counted in it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.inside: bool | None = None  # within a forward of the model: whether it counts
        self.step = -1


class LayerWatch:
    """The hooks of a monitor.

    Args:
        root: The model; its calls are the forwards.
        layers: The layers by name.

    Attributes:
        active: Whether the hooks measure.
        unseen: Why nothing is known of some layers.
    """

    def __init__(self, root: nn.Module, layers: Mapping[str, nn.Module]) -> None:
        self.active = False
        self.unseen: dict[str, str] = {}
        self._root, self._layers = root, dict(layers)
        self._meter, self._here = Meter(), _OfThread()
        self._found: dict[Place, list[OutputNumbers | OnDevice]] = {}
        self._step = 0
        self._undo: list[Callable[[], None]] = []

    def open(self) -> None:
        """Sets the hooks."""
        self._undo.append(set_pre_hook(self._root, _uncompiled(self._begin)))
        for name, layer in self._layers.items():
            hook = _uncompiled(self._measuring(name, layer))
            self._undo.append(set_forward_hook(layer, hook, asks=True))
        # Behind the layers' own, so that a hook on the model itself still counts as within.
        self._undo.append(set_forward_hook(self._root, _uncompiled(self._end)))

    def close(self) -> None:
        """Takes the hooks off; again is harmless."""
        self.active = False
        while self._undo:
            self._undo.pop()()

    def begin_forward(self) -> None:
        """Another forward begins, where the model itself is not called."""
        self._here.counts.clear()

    def _begin(self, _module: nn.Module, _args: Any, _kwargs: Any) -> None:
        if not backward_is_running():
            here = self._here
            here.counts.clear()
            here.inside = torch.is_grad_enabled()

    def _end(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        if not backward_is_running():
            self._here.inside = None

    def _measuring(self, name: str, layer: nn.Module) -> Callable[[nn.Module, Any, Any], None]:
        here, found, meter = self._here, self._found, self._meter
        acts_for = belongs_to(layer)

        def hook(module: nn.Module, _args: Any, output: Any = None) -> None:
            # In this order: most steps are not measured.
            if not self.active or not acts_for(module) or backward_is_running():
                return
            # Outside a forward of the model its parts may be called one by one.
            counts = torch.is_grad_enabled() if here.inside is None else here.inside
            if not counts:
                return
            if here.step != self._step:
                here.step = self._step
                if here.inside is None:
                    here.counts.clear()
            here.counts[name] += 1
            call, kind = here.counts[name], type(module).__name__
            bare = type(output) is torch.Tensor
            for leaf, tensor in [("", output)] if bare else leaves(output):
                try:
                    with torch.no_grad():
                        measured = meter.measure(tensor, kind)
                except CannotMeasure as reason:
                    self.unseen[name] = str(reason)
                except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
                    self.unseen[name] = f"measuring its output failed: {error_text(error)}"
                else:
                    found.setdefault(Place(name, call, leaf), []).append(measured)

        return hook

    def take(self) -> dict[Place, OutputNumbers]:
        """What was measured since the last time, in order of execution; one transfer a device."""
        places = [(place, one) for place, ones in self._found.items() for one in ones]
        self._found.clear()
        self._step += 1
        tallies: dict[Place, OutputNumbers] = {}
        numbers = iter(from_device([one.packed for _, one in places if isinstance(one, OnDevice)]))
        for place, one in places:
            tally = one.tally(next(numbers)) if isinstance(one, OnDevice) else one
            tallies.setdefault(place, OutputNumbers()).add(tally)
        return tallies


def _uncompiled(
    act: Callable[[nn.Module, Any, Any], None],
) -> Callable[[nn.Module, Any, Any], None]:
    """A hook that torch.compile leaves as it is: the graph ends before it and goes on after."""
    if "torch._dynamo" in sys.modules:
        disabled: Any = torch.compiler.disable(act)  # type: ignore[no-untyped-call]  # as torch has it
        return disabled  # type: ignore[no-any-return]
    return act
