"""Building a module whose values are about to be replaced, without drawing them all first.

In: a block of code that builds modules. Out: the same, faster. Must not know: which modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = ["without_filling"]

_DRAWN = 1 << 16
_DRAWS = (Tensor.uniform_, Tensor.normal_)
# These reach a mode by their own names, and what they call inside does not.
_INITIALISERS = (nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_)


class _CheapFilling(TorchFunctionMode):
    """Draws some random numbers for a large tensor and repeats them.

    Real random numbers, not zeros or whatever was in memory: torch's truncated normal draws
    until all values are within its bounds, and would never end.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func in _INITIALISERS:
            func, args, given = (
                Tensor.uniform_,
                (args[0] if args else given["tensor"], -0.05, 0.05),
                {},
            )
        if func not in _DRAWS or not isinstance(args[0], Tensor):
            return func(*args, **given)
        tensor: Tensor = args[0]
        if tensor.is_meta or tensor.numel() < 4 * _DRAWN or not tensor.is_contiguous():
            with torch.no_grad():
                return func(*args, **given)
        some = func(tensor.new_empty(_DRAWN), *args[1:], **given)
        flat = tensor.detach().view(-1)
        whole = flat.numel() // _DRAWN * _DRAWN
        flat[:whole].view(-1, _DRAWN).copy_(some)
        flat[whole:].copy_(some[: flat.numel() - whole])
        return tensor


@contextmanager
def without_filling() -> Iterator[None]:
    """Inside the block random initialisation of large tensors costs next to nothing.

    For modules whose every stored value is loaded afterwards: the random numbers of a VGG16 take
    longer than reading its weights.
    """
    with _CheapFilling():
        yield
