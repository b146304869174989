"""Guided backpropagation: at every ReLU, the gradient passes where it is positive too.

Where a ReLU is a function and not a module (DenseNet, GoogLeNet, many a net of one's own), or is a
ReLU6 (MobileNet), there is no ``nn.ReLU`` to hook: so torch's functions themselves are taken over,
for the length of one forward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_CLAMPS = ("clamp", "clamp_", "clip", "clip_")
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("relu", "relu_", "relu6"), ()),
    **dict.fromkeys(("hardtanh", "hardtanh_"), ("min_val", "max_val")),
    **dict.fromkeys(("threshold", "threshold_", "_threshold"), ("threshold", "value")),
    **dict.fromkeys(_CLAMPS, ("min", "max")),
    **dict.fromkeys(("clamp_min", "clamp_min_"), ("min",)),
}
"""By the name of a function that may be a ReLU: its arguments behind the tensor that matter."""


def _upper_bound(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float | None:
    """Above which value such a call is constant (inf: never); None where it is no ReLU."""
    if name not in _ARGUMENTS:
        return None
    given = {**dict(zip(_ARGUMENTS[name], args, strict=False)), **kwargs}
    if name.startswith("relu"):
        return 6.0 if name == "relu6" else math.inf
    if "threshold" in name:  # below the threshold stands the value
        return math.inf if (given.get("threshold"), given.get("value")) == (0, 0) else None
    hardtanh = name.startswith("hardtanh")
    low = given.get("min_val", -1.0) if hardtanh else given.get("min")
    high = given.get("max_val", 1.0) if hardtanh else given.get("max")
    high = math.inf if high is None else high
    bounds = isinstance(low, Real) and isinstance(high, Real)
    return float(high) if bounds and low == 0 < high else None


class _Guided(torch.autograd.Function):
    """A ReLU whose gradient is that of guided backpropagation; its value is the call's own."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, call: Callable[[Tensor], Tensor], upper: float) -> Tensor:
        given = call(tensor)
        if given is tensor:
            ctx.mark_dirty(tensor)
        # As torch does it, NaN passes. A mask, since what comes next may write over the values.
        ctx.save_for_backward((given <= 0) | (given >= upper))
        return given

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (stopped,) = ctx.saved_tensors
        return gradients[0].clamp(min=0).masked_fill(stopped, 0), None, None


class GuidedReLUs(TorchFunctionMode):
    """Within the block, ReLUs of this thread have the gradient of guided backpropagation.

    A ReLU is whatever is ``max(x, 0)``, and that with an upper bound: ``nn.ReLU``, ``nn.ReLU6``,
    ``nn.Hardtanh(0, …)`` and ``nn.Threshold(0, 0)``, ``F.relu``, ``torch.relu``, ``Tensor.relu``,
    ``clamp(min=0)`` and their kin, in place or not. Values stay the same to the bit. Only calls
    are replaced whose input the gradient goes through.

    Attributes:
        count: How many calls were replaced.

    Examples:
        >>> x = torch.tensor([-1.0, 2.0, 3.0], requires_grad=True)
        >>> with GuidedReLUs() as guided:
        ...     y = torch.relu(x) * torch.tensor([1.0, 1.0, -1.0])
        >>> torch.autograd.grad(y.sum(), x)[0].tolist(), guided.count
        ([0.0, 1.0, 0.0], 1)
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """One call of any function of torch."""
        given = dict(kwargs or {})
        # Those of torch.ops have their overload behind a point: "relu.default".
        name = getattr(func, "__name__", "").partition(".")[0]
        tensor = args[0] if args else given.get("input")
        if name in _ARGUMENTS and torch.is_grad_enabled() and "out" not in given:
            upper = _upper_bound(name, args[1:], given)
            if upper is not None and isinstance(tensor, Tensor) and tensor.requires_grad:
                self.count += 1
                rest = {key: value for key, value in given.items() if key != "input"}
                call = partial(_behind, func, args[1:], rest)
                return _Guided.apply(tensor, call, upper)
        return func(*args, **given)


def _behind(
    func: Callable[..., Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any], tensor: Tensor
) -> Tensor:
    return func(tensor, *args, **kwargs)
