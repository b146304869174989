"""Copies of a module to try things on: with shapes alone, or with the same weights.

Must not know: any other part of hookviz, nor any library but torch.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def without_values(module: nn.Module) -> nn.Module:
    """A copy on the meta device without hooks, whose forward computes shapes and nothing else.

    No weight is copied, and the module, its hooks included, is left as it is.

    Args:
        module: Any module that can be deep-copied.

    Examples:
        >>> twin = without_values(nn.Conv2d(3, 8, 3))
        >>> twin(torch.empty(1, 3, 32, 32, device="meta")).shape
        torch.Size([1, 8, 30, 30])
    """

    def empty(weight: Tensor) -> Tensor:
        return nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=False)

    return _copied(module, empty, lambda tensor: torch.empty_like(tensor, device="meta"))


def with_same_weights(module: nn.Module) -> nn.Module:
    """A copy without hooks that shares the weights and has buffers and modes of its own.

    Args:
        module: Any module that can be deep-copied.

    Examples:
        >>> conv = nn.Conv2d(3, 8, 3)
        >>> with_same_weights(conv).weight is conv.weight
        True
    """
    return _copied(module, lambda weight: weight, lambda tensor: tensor.detach().clone())


def _copied(
    module: nn.Module, weight_of: Callable[[Tensor], Tensor], tensor_of: Callable[[Tensor], Tensor]
) -> nn.Module:
    memo: dict[int, Any] = {}
    with torch.inference_mode(mode=False), torch.no_grad():
        for part in module.modules():
            for name, value in vars(part).items():
                # Hooks of the user's own must see real forwards only.
                if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")):
                    memo[id(value)] = OrderedDict()
                elif isinstance(value, Tensor):
                    memo[id(value)] = tensor_of(value)
            for buffer in part.buffers(recurse=False):
                memo[id(buffer)] = tensor_of(buffer)
            for weight in part.parameters(recurse=False):
                memo[id(weight)] = weight_of(weight)
        return copy.deepcopy(module, memo)
