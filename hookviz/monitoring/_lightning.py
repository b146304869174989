"""A watched training of Lightning: a callback."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback

from hookviz.monitoring._monitor import Monitor


class LightningMonitor(Callback):
    """Watches the training of a ``lightning.Trainer``.

    A step is a batch in which the optimizer stepped; batches whose gradients are accumulated are
    joined. Rank 0 alone watches. Hooks are off after the training and after an exception.

    Args:
        layers: See `hookviz.monitor`; names are those in the LightningModule.
        follow: Who is told of each measured step, for example a `ToTensorBoard`.
        **options: Others of `hookviz.monitor`.

    Attributes:
        monitor: The monitor; None before the training.
    """

    def __init__(self, layers: Any = None, *, follow: Any = None, **options: Any) -> None:
        super().__init__()
        self.monitor: Monitor | None = None
        self._layers, self._follow, self._options = layers, follow, options
        self._steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins to watch."""
        from hookviz.monitoring import monitor

        self._steps = trainer.global_step
        self.monitor = monitor(pl_module, self._layers, **self._options).__enter__()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """A forward begins: Lightning calls ``training_step``, not the module."""
        del trainer, pl_module, batch, batch_idx
        if self.monitor is not None:
            self.monitor.begin_forward()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Counts a step where the optimizer stepped; gradients are still there."""
        del pl_module, batch, batch_idx
        if self.monitor is None or trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self.monitor.step(loss=loss if isinstance(loss, torch.Tensor | float) else None)
        if self._follow is not None:
            self._follow.update(self.monitor)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Ends."""
        del trainer, pl_module
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Ends; what the step that failed has shown is kept."""
        del trainer, pl_module
        if self.monitor is not None:
            self.monitor.__exit__(type(exception), exception, exception.__traceback__)

    def _end(self) -> None:
        if self.monitor is not None:
            self.monitor.close()
            if self._follow is not None:
                self._follow.update(self.monitor)
