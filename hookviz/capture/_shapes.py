"""Which shapes the layers of a model give, without a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from hookviz._meta import without_values
from hookviz.activation import Activation
from hookviz.capture._rebuild import change_leaves
from hookviz.capture._session import Capture
from hookviz.errors import CaptureError, HookvizError

__all__ = ["layer_shapes"]


def layer_shapes(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    *,
    cancelled: Callable[[], bool] | None = None,
) -> tuple[Activation, ...]:
    """The outputs of every layer as tensors that have a shape and a dtype, but no values.

    A copy without values runs in eval mode; a model that looks at values, as detection models do,
    cannot go that way.

    Args:
        module: The model, left as it is.
        args: What it would be called with. Of tensors the shapes and dtypes alone count.
        kwargs: The keyword arguments.
        cancelled: Asked before every module's call; True ends it with RunCancelled.

    Returns:
        One record per output tensor and call, in order of execution (of completion), the model
        itself ("") among the layers; each ``tensor`` is on the meta device.

    Raises:
        CaptureError: Without values the forward fails.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten())
        >>> [(a.layer, a.shape) for a in layer_shapes(net, [torch.zeros(1, 3, 5, 5)])]
        [('0', (1, 8, 3, 3)), ('1', (1, 72)), ('', (1, 72))]
    """
    try:
        args, kwargs = change_leaves(
            (tuple(args), dict(kwargs)), lambda _, tensor: tensor.to("meta")
        )
        with (
            torch.inference_mode(mode=False),
            torch.no_grad(),
            Capture(
                without_values(module), lambda *_: True, eval_mode=True, cancelled=cancelled
            ) as capture,
        ):
            capture.run(*args, **kwargs)
    except HookvizError:
        raise
    except Exception as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise CaptureError(
            f"The shapes of {type(module).__name__} are not known before it runs: {first}"
        ) from error
    return capture.activations
