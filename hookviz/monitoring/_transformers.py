"""A watched training of Hugging Face's Trainer: a callback."""

from __future__ import annotations

from typing import Any

from transformers.trainer_callback import TrainerCallback

from hookviz.monitoring._monitor import Monitor


class TrainerMonitor(TrainerCallback):
    """Watches the training of a ``transformers.Trainer``.

    Steps are those of the optimizer; micro-batches of gradient accumulation are joined. The loss is
    that which the Trainer logs, under its step.

    Args:
        layers: See `hookviz.monitor`.
        follow: Who is told of each step, for example a `ToTensorBoard`.
        **options: Others of `hookviz.monitor`.

    Attributes:
        monitor: The monitor; None before the training.
    """

    def __init__(self, layers: Any = None, *, follow: Any = None, **options: Any) -> None:
        self.monitor: Monitor | None = None
        self._layers, self._follow, self._options = layers, follow, options

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begins to watch the model, which the Trainer hands over without its wrappers."""
        from hookviz.monitoring import monitor

        del args, state, control
        self.monitor = monitor(kwargs["model"], self._layers, **self._options).__enter__()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Counts a step: the optimizer has stepped, and gradients are still there."""
        del args, state, control, kwargs
        if self.monitor is not None:
            self.monitor.step()
            if self._follow is not None:
                self._follow.update(self.monitor)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keeps what the Trainer logs."""
        del args, control
        logs = kwargs.get("logs") or {}
        if self.monitor is not None:
            numbers = {n: v for n, v in logs.items() if isinstance(v, int | float)}
            self.monitor.log(state.global_step, **numbers)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends."""
        del args, state, control, kwargs
        if self.monitor is not None:
            self.monitor.close()
            if self._follow is not None:
                self._follow.update(self.monitor)
