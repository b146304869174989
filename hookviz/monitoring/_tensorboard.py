"""A watched training in TensorBoard: scalars and the figures, as they arise."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.tensorboard.writer import SummaryWriter

from hookviz.monitoring._follow import Follower, tag
from hookviz.monitoring._history import PictureAt, TrainingHistory


class ToTensorBoard(Follower):
    """Writes what a monitor finds with ``torch.utils.tensorboard``.

    TensorBoard itself shows a sample of the images (``--samples_per_plugin images=1000`` for more);
    the monitor's own folder keeps all.

    Args:
        writer: A ``SummaryWriter``, or the folder for a new one, which `close` then closes.

    Examples:
        >>> import tempfile, torch, hookviz
        >>> from hookviz.monitoring import ToTensorBoard
        >>> net = torch.nn.Linear(2, 2)
        >>> with tempfile.TemporaryDirectory() as folder, hookviz.monitor(net) as m:
        ...     board = ToTensorBoard(folder)
        ...     net(torch.ones(3, 2)).sum().backward()
        ...     m.step(loss=0.5)
        ...     board.update(m)
        ...     board.close()
    """

    def __init__(self, writer: Any) -> None:
        super().__init__()
        self._own = not hasattr(writer, "add_scalar")
        self._writer: Any = SummaryWriter(str(writer)) if self._own else writer

    def scalar(self, name: str, step: int, number: float) -> None:
        """Writes a number."""
        self._writer.add_scalar(name, number, step)

    def picture(self, history: TrainingHistory, picture: PictureAt) -> None:
        """Writes a figure."""
        pixels = np.asarray(history.image(picture).convert("RGB"))
        self._writer.add_image(tag(picture), pixels, picture.step, dataformats="HWC")

    def text(self, step: int, text: str) -> None:
        """Writes an alert."""
        self._writer.add_text("hookviz/alerts", text, step)

    def close(self) -> None:
        """Writes what is pending; closes the writer that was made here."""
        self._writer.flush()
        if self._own:
            self._writer.close()
