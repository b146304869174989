"""Forwards that start late: what ran before a layer gave its output hands out what it gave once.

One forward is recorded. Of all calls that had ended when the layer gave its output, the outermost
are kept, and their outputs with them: of a ResNet at ``layer4.1.conv1`` those of ``conv1`` to
``layer3`` and of ``layer4.0``, and the layer's own. In a forward that starts late these calls, told
by their order, return copies of what they gave, for as many images as are asked for, and compute
nothing. The code between them (``forward`` of the model and of the blocks around the layer) runs,
so that what goes round the layer is there; hooks run as always, those of edits too.

That the outcome is the same, nobody can know beforehand: a model may keep state of its own, or
write into what it handed on. Whoever starts late compares the outcome for one image with that of
the recorded forward.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from torch import Tensor, nn

from hookviz.capture._leaves import change_leaves, leaves
from hookviz.capture._tree import ModuleTree
from hookviz.errors import CaptureError

_ENTERED = object()
"""In place of an output: the call had not ended, its code runs."""

_PASSED_ON = object()
"""In place of an output: nothing but the next call in a ``Sequential`` is given it."""

_at_work = threading.RLock()
"""Held while modules have another ``forward``: two that took turns would put back each other's."""


class _Forward:
    """What stands in for a module's ``forward``; a copy of the module has its own again."""

    def __init__(self, module: nn.Module, act: Callable[..., Any]) -> None:
        self.module, self.act, self.thread = module, act, threading.get_ident()
        self.__wrapped__: Callable[..., Any] = module.forward  # where its signature is looked for

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != self.thread:
            return self.__wrapped__(*args, **kwargs)
        return self.act(self.module, self.__wrapped__, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return getattr(memo[id(self.module)], "forward")  # noqa: B009 - the copy has no own yet

    def __reduce__(self) -> Any:
        return getattr, (self.module, "forward")


@dataclass(eq=False)
class _Step:
    """A call, and what it gave.

    Attributes:
        module: Whose.
        output: A copy of what it gave, or what stands in its place.
        given: The very tensors, while the forward is recorded.
        versions: How often each had been written to when that was last looked at.
        written: Whether code between the calls wrote into them.
    """

    module: nn.Module
    output: Any
    given: list[Tensor] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    written: bool = False

    def look(self, *, inside: bool) -> None:
        """Note whether something has been written: by a call, which will not run, or between."""
        now = [_version(tensor) for tensor in self.given]
        self.written |= not inside and now != self.versions
        self.versions = now


def _version(tensor: Tensor) -> int:
    """How often it has been written to; always 0 where torch does not count that."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - torch has no public reader


@dataclass(eq=False)
class _Call:
    """A call under way, and those in it that have ended."""

    module: nn.Module
    passes_on: bool
    ended: list[_Step] = field(default_factory=list)


class LateStart:
    """Starts forwards of a model at a layer.

    Args:
        model: The model.
        layers: Names of layers that forwards may start at, each with its call, from 1; "last" is
            the last.

    Examples:
        >>> import torch
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())
        >>> late, image = LateStart(net, {"1": "last"}), torch.ones(1, 3, 4, 4)
        >>> with late.recorded():
        ...     whole = net(image)
        >>> with late.started("1", count=2):  # neither the convolution nor the ReLU computes
        ...     again = net(image.expand(2, 3, 4, 4))
        >>> torch.equal(again, whole.expand(2, 16))
        True
    """

    def __init__(self, model: nn.Module, layers: Mapping[str, int | str]) -> None:
        tree = ModuleTree(model)
        self._modules = list(tree.modules.values())
        if any(isinstance(module, nn.DataParallel) for module in self._modules):
            self._modules = []  # replicas would share what stands in for their `forward`
        self._layers = {tree.modules[name]: call for name, call in layers.items()}
        self._names = {name: tree.modules[name] for name in layers}
        self._before: dict[nn.Module, list[_Step]] = {}
        self._under_way: list[_Call] = []
        self._counts: dict[nn.Module, int] = {}
        self._refused = False

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """In this block one forward of the model runs, for one image, and is recorded.

        What it gives is handed on as it is; where a copy of that cannot be had, nothing is kept.
        """
        self._before, self._counts, self._refused = {}, {}, False
        try:
            with self._instead(self._record):
                yield
        finally:
            if self._refused:
                self._before = {}
            for step in chain(*self._before.values()):
                step.given = []

    @contextmanager
    def started(self, layer: str, count: int) -> Iterator[int]:
        """In this block one forward of the model runs, and starts at a layer.

        Args:
            layer: The layer.
            count: For how many images.

        Yields:
            Which call of the layer is the one that was meant: those within what does not run are
            not made.

        Raises:
            CaptureError: The layer was not recorded, or modules are called in another order.
        """
        steps = self._before.get(self._names[layer])
        if steps is None:
            raise CaptureError(f"No forward that ran '{layer}' was recorded.")
        left = deque(steps)

        def copied(tensor: Tensor, *, written: bool) -> Tensor:
            if tensor.dim() > 0 and len(tensor) == 1:
                tensor = tensor.expand(count, *tensor.shape[1:])
            # Of several, torch refuses to write to what is expanded.
            return tensor.clone() if written or count == 1 else tensor

        def act(module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            if not left:
                return forward(*args, **kwargs)
            step = left.popleft()
            if module is not step.module:
                raise CaptureError("The modules were called in another order than before.")
            if step.output is _ENTERED:
                return forward(*args, **kwargs)
            if step.output is _PASSED_ON:
                return args[0]
            return change_leaves(step.output, lambda _, t: copied(t, written=step.written))

        with self._instead(act):
            yield sum(step.module is self._names[layer] for step in steps)

    def _record(
        self, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        self._look(self._under_way, inside=False)
        self._under_way.append(_Call(module, type(module).forward is nn.Sequential.forward))
        try:
            output = forward(*args, **kwargs)
            self._look(self._under_way[-1:], inside=False)
        finally:
            self._under_way.pop()
        self._look(self._under_way, inside=True)
        if self._refused:
            return output
        try:
            copy = change_leaves(output, lambda _, tensor: tensor.detach().clone())
        except Exception:  # noqa: BLE001 - objects of the model's own, or too little memory
            self._refused = True
            return output
        given = [tensor for _, tensor in leaves(output)]
        step = _Step(module, copy, given, [_version(tensor) for tensor in given])
        call = self._counts[module] = self._counts.get(module, 0) + 1
        if self._layers.get(module) in (call, "last"):
            before: list[_Step] = []
            for one in self._under_way:
                before += [_Step(one.module, _ENTERED), *one.ended]
            self._before[module] = [*before, step]
        if self._under_way:
            around = self._under_way[-1]
            if around.passes_on and around.ended:
                around.ended[-1] = _Step(around.ended[-1].module, _PASSED_ON)
            around.ended.append(step)
        return output

    def _look(self, calls: list[_Call], *, inside: bool) -> None:
        for call in calls:
            for step in call.ended:
                step.look(inside=inside)

    @contextmanager
    def _instead(self, act: Callable[..., Any]) -> Iterator[None]:
        with _at_work:
            own: list[tuple[nn.Module, dict[str, Any]]] = []
            try:
                for module in self._modules:
                    there = module.__dict__
                    own.append((module, {k: there[k] for k in ("forward",) if k in there}))
                    there["forward"] = _Forward(module, act)
                yield
            finally:
                for module, forward in own:
                    module.__dict__.pop("forward", None)
                    module.__dict__.update(forward)
