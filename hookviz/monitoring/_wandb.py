"""A watched training in Weights & Biases: scalars, figures and alerts, as they arise."""

from __future__ import annotations

from typing import Any

import wandb

from hookviz.monitoring._follow import Follower, tag
from hookviz.monitoring._history import PictureAt, TrainingHistory


class ToWandb(Follower):
    """Logs what a monitor finds to a run of wandb, also an offline one.

    Numbers have their step in ``hookviz/step``, to which all of them are set as the abscissa, so
    that wandb's own counter may go its own way. The model stays picklable, unlike with
    ``wandb.watch``.

    Args:
        run: What ``wandb.init`` gave.
    """

    def __init__(self, run: Any) -> None:
        super().__init__()
        self._run, self._step = run, -1
        self._now: dict[str, Any] = {}
        run.define_metric("hookviz/step")
        run.define_metric("hookviz/*", step_metric="hookviz/step")

    def _log(self, name: str, step: int, value: Any) -> None:
        if step != self._step:
            self.flush()
            self._step = step
        self._now[f"hookviz/{name}"] = value

    def flush(self) -> None:
        """Logs what was gathered of one step."""
        if self._now:
            self._run.log({**self._now, "hookviz/step": self._step})
        self._now = {}

    def scalar(self, name: str, step: int, number: float) -> None:
        """Gathers a number."""
        self._log(name, step, number)

    def picture(self, history: TrainingHistory, picture: PictureAt) -> None:
        """Gathers a figure."""
        self._log(tag(picture), picture.step, wandb.Image(history.image(picture)))

    def text(self, step: int, text: str) -> None:
        """Sets an alert in the run's summary."""
        self._run.summary[f"hookviz/alert at step {step}"] = text
