"""What a run will take, before it is run.

In: a model and the shape of its input. Out: each layer's calls, shapes and bytes. Must not know:
widgets, images.

A copy of the module on torch's "meta" device, which has shapes but no numbers, goes through its
forward: nothing is computed, no weights are copied, and the module itself, its hooks included, is
not touched. Models whose forward depends on numbers (detection) cannot go that way: nothing is
known of them before their first run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from hookviz.errors import RunCancelled
from hookviz.models import LoadedModel, feed
from hookviz.widget._cards import card_key
from hookviz.widget._layer_tree import row_facts

__all__ = ["Expected", "expected_rows"]


@dataclass(frozen=True)
class Expected:
    """What a run will give.

    Attributes:
        rows: By layer what `row_facts` gives; {} where it cannot be known.
        sizes: Bytes of all calls by layer.
        order: Place in the order of execution of each "layer#call".
    """

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)


def expected_rows(
    model: LoadedModel, shape: Sequence[int], cancelled: Callable[[], bool] = lambda: False
) -> Expected:
    """What each layer will answer to an input of a shape.

    Args:
        model: The model; left as it is.
        shape: (N, 3, H, W).
        cancelled: Asked after every module; True ends it, and nothing is known.

    Returns:
        Layers' shapes, bytes and order; all empty where that cannot be known.
    """
    order: dict[str, int] = {}
    try:
        ghost = _without_numbers(model.module)
        calls: dict[str, list[tuple[tuple[int, ...], int]]] = {}
        for name, module in ghost.named_modules():
            found = calls.setdefault(name, [])
            module.register_forward_hook(_recorder(name, found, order, cancelled))
        stand_in = replace(model, module=ghost)
        args, kwargs = feed(stand_in, torch.empty(tuple(shape), device="meta"))
        with torch.no_grad():
            ghost.eval()(*args, **kwargs)
    except Exception:  # noqa: BLE001 - an estimate that fails is no fault: nothing is shown then
        return Expected()
    ran = {name: found for name, found in calls.items() if found}
    rows = {n: row_facts([s for s, _ in found], [b for _, b in found]) for n, found in ran.items()}
    return Expected(rows, {n: sum(b for _, b in found) for n, found in ran.items()}, order)


def _without_numbers(module: nn.Module) -> nn.Module:
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
    for buffer in module.buffers():
        memo[id(buffer)] = buffer.detach().to("meta")
    ghost = copy.deepcopy(module, memo)
    for part in ghost.modules():
        # Hooks of the user's own must see real forwards only.
        for name in vars(part):
            if name.endswith("_hooks") and isinstance(vars(part)[name], dict):
                vars(part)[name].clear()
    return ghost


def _recorder(
    name: str,
    found: list[tuple[tuple[int, ...], int]],
    order: dict[str, int],
    cancelled: Callable[[], bool],
) -> Any:
    def record(_module: nn.Module, _args: Any, output: Any) -> None:
        if cancelled():
            raise RunCancelled("The run was cancelled.")
        tensors = list(_tensors(output))
        if tensors:
            size = sum(t.numel() * t.element_size() for t in tensors)
            found.append((tuple(tensors[0].shape), size))
            order[card_key(name, len(found))] = len(order)

    return record


def _tensors(value: Any) -> Any:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from _tensors(inner)
