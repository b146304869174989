"""What the tests of capture share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn


def _traces(module: nn.Module) -> int:
    return sum(
        len(m._forward_hooks)
        + len(m._forward_pre_hooks)
        + len(m._backward_hooks)
        + len(m._backward_pre_hooks)
        + ("_compiled_call_impl" in m.__dict__)
        for m in module.modules()
    )


@pytest.fixture
def traces() -> Callable[[nn.Module], int]:
    """Hooks on all modules of a model, plus the slots that a guard sits in."""
    return _traces
