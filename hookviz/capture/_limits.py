"""Train and eval mode: a warning of the one, the other for a while."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

__all__ = ["set_eval", "warn_of_training"]


def warn_of_training(modules: Iterable[nn.Module], stacklevel: int) -> None:
    """Warn where a forward in train mode would be random or change the model.

    Dropout makes two forwards differ; BatchNorm takes its statistics from the batch and moves its
    running ones, under ``torch.no_grad()`` too.
    """
    training = [m for m in modules if m.training]
    random = [m for m in training if isinstance(m, _DropoutNd) and m.p > 0]
    moving = [m for m in training if isinstance(m, _BatchNorm) and m.track_running_stats]
    found = [
        text
        for text, there in (
            ("Dropout makes results differ from run to run", random),
            ("BatchNorm changes its running statistics", moving),
        )
        if there
    ]
    if found:
        warnings.warn(
            f"The model is in train mode: {' and '.join(found)}. Use eval_mode=True to capture in "
            "eval mode and have the mode put back, or eval_mode=False if train mode is meant.",
            UserWarning,
            stacklevel=stacklevel,
        )


def set_eval(module: nn.Module) -> Callable[[], None]:
    """Put a model in eval mode.

    Returns:
        A function that gives each of its modules its own mode back.
    """
    modes = [(m, m.training) for m in module.modules()]

    def put_back() -> None:
        for one, training in modes:
            one.training = training

    try:
        module.eval()
    except NotImplementedError:  # a program of torch.export, whose mode was settled in making it
        for one, _ in modes:
            one.training = False
    except BaseException:
        put_back()
        raise
    return put_back
