"""Captured calls run again: does a layer's recorded input give its recorded output?

In: a model and what it is called with. Out: how many calls gave the same bits, and which did not.
Must not know: where models come from.

The tensors come from a `Capture` of every layer, inputs and outputs. What a capture does not keep,
because it is no tensor (numbers, flags, lists of sizes) or no value (which arguments were one and
the same tensor, the strides), is noted by hooks of this file's own.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hookviz.capture import Capture, change_leaves, leaves
from hookviz.capture._hooks import parameter_names
from hookviz.capture._tree import ModuleTree

__all__ = ["Result", "replay"]


@dataclass
class Result:
    """What came of one model."""

    modules: int = 0
    calls: int = 0
    same: int = 0
    silent: int = 0  # calls that gave no tensor, so there is nothing to compare
    trivial: int = 0  # calls whose output is constant or holds NaN, so that it proves little
    stateful: list[str] = field(default_factory=list)  # same only from a copy made at the call
    mismatches: list[str] = field(default_factory=list)
    recorded: int = 0  # bytes


@dataclass
class _Call:
    """One call without its tensors: holes stand where they were."""

    layer: str
    call: int
    names: list[str]
    parts: dict[str, Any]
    holes: dict[int, tuple[str, Tensor]]  # id of the hole → path, hole
    strides: dict[str, tuple[int, ...]]
    random: int  # index of the random state
    copy: nn.Module | None


class _Notes:
    """Hooks that note how each layer is called."""

    def __init__(self, tree: ModuleTree, copied: frozenset[tuple[str, int]]) -> None:
        self.calls: list[_Call] = []
        self.random: list[Tensor] = []
        self._copied = copied
        self._counts: Counter[str] = Counter()
        self.handles = [
            module.register_forward_pre_hook(self._hook(name, module), with_kwargs=True)
            for name, module in tree.modules.items()
        ]

    def _hook(self, name: str, module: nn.Module) -> Callable[..., None]:
        names_of = parameter_names(module)

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._counts[name] += 1
            names = names_of(len(args))
            parts = {**dict(zip(names, args, strict=True)), **kwargs}
            holes: dict[int, tuple[str, Tensor]] = {}
            by_tensor: dict[int, Tensor] = {}
            strides: dict[str, tuple[int, ...]] = {}

            def hole(path: str, tensor: Tensor) -> Tensor:
                if id(tensor) not in by_tensor:
                    by_tensor[id(tensor)] = empty = torch.empty(0)
                    holes[id(empty)] = (path, empty)
                    if tensor.layout is torch.strided:
                        strides[path] = tensor.stride()
                return by_tensor[id(tensor)]

            skeleton = change_leaves(parts, hole)
            number = self._counts[name]
            twin = _twin(module) if (name, number) in self._copied else None
            state = torch.get_rng_state()
            if not self.random or not torch.equal(self.random[-1], state):
                self.random.append(state)
            self.calls.append(
                _Call(name, number, names, skeleton, holes, strides, len(self.random) - 1, twin)
            )

        return before


def replay(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Result:
    """Runs a model once and every call of every layer in it again.

    Args:
        model: In eval mode; left as it was.
        args: What it is called with.
        kwargs: What it is called with.

    Returns:
        The counts.
    """
    result = Result()
    twin = _twin(model)
    wrong = _pass(model, twin, args, kwargs, frozenset(), result)
    if wrong:
        # A layer may hold state that its parents set before they call it: the copy made before
        # the forward lacks it. A copy made at the very call must give the same, then.
        again = Result()
        still = _pass(model, None, args, kwargs, frozenset(wrong), again)
        for key, text in wrong.items():
            (result.mismatches if key in still else result.stateful).append(still.get(key, text))
        result.same += len(result.stateful)
    return result


def _pass(
    model: nn.Module,
    twin: nn.Module | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    only: frozenset[tuple[str, int]],
    result: Result,
) -> dict[tuple[str, int], str]:
    tree = ModuleTree(model)
    # The state of the random numbers is part of the input.
    torch.manual_seed(0)
    args, kwargs = _own((args, kwargs))
    notes = _Notes(tree, only)
    try:
        with torch.no_grad(), Capture(model, list(tree.modules), inputs=True) as capture:
            model(*args, **kwargs)
    finally:
        for handle in notes.handles:
            handle.remove()
    kept: dict[tuple[str, int, str], dict[str, Tensor]] = {}
    for one in capture.activations:
        kept.setdefault((one.layer, one.call, one.kind), {})[one.leaf] = one.tensor
    result.recorded = capture.bytes
    result.modules = len({call.layer for call in notes.calls})
    layers = ModuleTree(twin).modules if twin is not None else {}
    wrong: dict[tuple[str, int], str] = {}
    with torch.random.fork_rng(devices=[]):
        for call in notes.calls:
            key = (call.layer, call.call)
            if only and key not in only:
                continue
            result.calls += 1
            expected = kept.get((*key, "output"), {})
            if not expected:
                result.silent += 1
                continue
            result.trivial += all(map(_trivial, expected.values()))
            module = call.copy if call.copy is not None else layers[call.layer]
            torch.set_rng_state(notes.random[call.random])
            problem = _again(module, call, kept.get((*key, "input"), {}), expected)
            if problem is None:
                result.same += 1
            else:
                where = f"{call.layer or '(model)'} ({type(module).__name__}) call {call.call}"
                wrong[key] = f"{where}: {problem}"
    return wrong


def _again(
    module: nn.Module, call: _Call, inputs: dict[str, Tensor], expected: dict[str, Tensor]
) -> str | None:
    """Runs a call again; None where it gives the recorded output."""
    filled: dict[int, Tensor] = {}

    def fill(_: str, hole: Tensor) -> Tensor:
        if id(hole) not in filled:
            path = call.holes[id(hole)][0]
            filled[id(hole)] = _strided(inputs[path], call.strides.get(path))
        return filled[id(hole)]

    parts = change_leaves(call.parts, fill)
    args = tuple(parts[name] for name in call.names)
    kwargs = {name: value for name, value in parts.items() if name not in call.names}
    try:
        with torch.no_grad():
            output = module(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    found = dict(leaves(output))
    if found.keys() != expected.keys():
        return f"leaves {sorted(found)} instead of {sorted(expected)}"
    for path, tensor in found.items():
        if not _same_bits(tensor, expected[path]):
            return f"[{path}] differs by {_distance(tensor, expected[path])}"
    return None


def _own(value: Any) -> Any:
    return change_leaves(value, lambda _, tensor: tensor.clone())


def _twin(module: nn.Module) -> nn.Module:
    """A copy with everything of its own but the parameters, which no forward changes."""
    return copy.deepcopy(module, {id(p): p for p in module.parameters()})


def _strided(tensor: Tensor, strides: tuple[int, ...] | None) -> Tensor:
    """A copy with the strides that the input had, since kernels may be chosen by them."""
    if strides is None or strides == tensor.stride():
        return tensor.clone()
    if tensor.is_quantized:
        # clone() of a quantised tensor forgets strides, and the layouts have kernels that round
        # differently; the values in the record are right all the same.
        for layout in (torch.channels_last, torch.channels_last_3d):
            if tensor.ndim == (4 if layout is torch.channels_last else 5):
                laid = tensor.contiguous(memory_format=layout)
                if laid.stride() == strides:
                    return laid
        return tensor.clone()
    small = tensor[tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)]
    kept = [s or 1 for s in strides]
    span = 1 + sum((n - 1) * s for n, s in zip(small.shape, kept, strict=True))
    if small.numel() == 0 or span > 64 * max(small.numel(), 1024):
        return tensor.clone()
    room = torch.zeros(span, dtype=tensor.dtype)
    laid = room.as_strided(small.shape, kept)
    laid.copy_(small)
    return laid.expand(tensor.shape)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_quantized:
        scales = (one.q_scale(), one.q_zero_point()) == (other.q_scale(), other.q_zero_point())
        return scales and torch.equal(one.int_repr(), other.int_repr())
    one, other = one.detach().contiguous(), other.contiguous()
    return torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))


def _trivial(tensor: Tensor) -> bool:
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    flat = tensor.flatten()
    return flat.numel() > 1 and bool((flat == flat[0]).all() or (flat != flat).any())


def _distance(one: Tensor, other: Tensor) -> str:
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{tuple(one.shape)} {one.dtype} instead of {tuple(other.shape)} {other.dtype}"
    if one.is_quantized:
        one, other = one.dequantize(), other.dequantize()
    gap = (one.double() - other.double()).abs().max()
    return f"{float(gap):.3g} of {float(other.double().abs().max()):.3g}"
