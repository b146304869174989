"""What a run will take, before it is run.

Models whose forward depends on numbers (detection) cannot be asked without them: nothing is known
of them before their first run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hookviz.capture import layer_shapes
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
    model: LoadedModel, shape: Sequence[int], cancelled: Callable[[], bool] | None = None
) -> Expected:
    """What each layer will answer to an input of a shape.

    Args:
        model: The model; left as it is.
        shape: (N, C, H, W).
        cancelled: Asked before every module; True ends it, and nothing is known.

    Returns:
        Layers' shapes, bytes and order; all empty where that cannot be known.
    """
    try:
        args, kwargs = feed(model, torch.zeros(tuple(shape), device=model.device))
        found = layer_shapes(model.module, args, kwargs, cancelled=cancelled)
    except Exception:  # noqa: BLE001 - an estimate that fails is no fault: nothing is shown then
        return Expected()
    calls: dict[str, list[tuple[tuple[int, ...], int]]] = {}
    order: dict[str, int] = {}
    for one in found:
        of_layer = calls.setdefault(one.layer, [])
        if one.call > len(of_layer):
            of_layer.append((one.shape, one.tensor.nbytes))
            order[card_key(one.layer, one.call)] = len(order)
        else:  # a further tensor of the same call
            first, size = of_layer[-1]
            of_layer[-1] = first, size + one.tensor.nbytes
    rows = {n: row_facts([s for s, _ in of], [b for _, b in of]) for n, of in calls.items()}
    return Expected(rows, {name: sum(b for _, b in of) for name, of in calls.items()}, order)
