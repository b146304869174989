"""A module that has shapes and no values: what a forward would give, for nothing.

Must not know: any other part of hookviz, nor any library but torch.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
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
    memo: dict[int, Any] = {}
    with torch.inference_mode(mode=False), torch.no_grad():
        for part in module.modules():
            for name, value in vars(part).items():
                # Hooks of the user's own must see real forwards only.
                if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")):
                    memo[id(value)] = OrderedDict()
                elif isinstance(value, Tensor):
                    memo[id(value)] = torch.empty_like(value, device="meta")
            for buffer in part.buffers(recurse=False):
                memo[id(buffer)] = torch.empty_like(buffer, device="meta")
            for weight in part.parameters(recurse=False):
                empty = torch.empty_like(weight, device="meta")
                memo[id(weight)] = nn.Parameter(empty, requires_grad=False)
        return copy.deepcopy(module, memo)
