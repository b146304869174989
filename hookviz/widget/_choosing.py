"""Choosing and loading models for the app.

In: names, files, devices as the user chose them. Out: a LoadedModel in the app. Must not know:
runs, pictures.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hookviz.errors import HookvizError, RunCancelled, WeightsError
from hookviz.models import LoadedModel, list_models, list_weights, load_model
from hookviz.widget._results import return_memory

if TYPE_CHECKING:
    from hookviz.widget._explorer import Explorer

__all__ = ["Choosing", "available_devices"]


def available_devices() -> list[str]:
    """Devices of this machine, the fastest kind first.

    Examples:
        >>> available_devices()[-1]
        'cpu'
    """
    found: list[str] = []
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        found += ["cuda"] if count == 1 else [f"cuda:{i}" for i in range(count)]
    if torch.backends.mps.is_available():
        found.append("mps")
    return [*found, "cpu"]


class Choosing:
    """Loads models on the app's thread and tells the page what there is to choose.

    Args:
        app: The app.
    """

    def __init__(self, app: Explorer) -> None:
        self._app = app
        self._given: LoadedModel | None = None
        self._last: dict[str, Any] = {}
        self.then_run = False

    def remember(self, model: LoadedModel) -> None:
        """Keeps a model that was passed in from Python, so that it can be chosen again."""
        if model.passed_in:
            self._given = model

    def forget(self) -> None:
        """Lets go of that model."""
        self._given, self._last = None, {}

    def names(self) -> list[str]:
        """What the model list shows; `load` also takes a typed "timm:NAME" or checkpoint's path."""
        given = [self._given.name] if self._given else []
        return [*given, *list_models()]

    def weights(self, name: str) -> list[list[str]]:
        """What the weights list shows for a model: value, text, what it means.

        Raises:
            ModelError: The name is unknown.
        """
        if self._given is not None and name == self._given.name:
            return [["auto", "as passed in", "The model that was passed to explore()."]]
        known = list_weights(name)
        if [info.name for info in known] == ["auto"]:  # a checkpoint's path in place of a name
            return [["auto", known[0].documentation, "The weights of this file."]]
        choices = [["auto", "best at hand", "torch's cache first, then a download."]]
        for info in known:
            size = f" of {info.megabytes:.0f} MB" if info.megabytes else ""
            state = "on this machine" if info.cached else f"download{size}"
            about = info.documentation or state
            choices.append([info.name, f"{info.name} ({state})", about])
        choices.append(
            ["none", "none (UNTRAINED)", "Random weights: shapes are right, maps are not."]
        )
        choices.append(["file", "a file of my own …", "A checkpoint on the kernel's machine."])
        return choices

    def load(self, name: str, weights: Any = "auto", *, file: str = "") -> bool:
        """Loads a model as a job.

        Args:
            name: A name of `names`.
            weights: A value of `weights`.
            file: The checkpoint's path where ``weights`` is "file".

        Returns:
            Whether the job was started.
        """
        app = self._app
        if weights == "file":
            if not file.strip():
                raise WeightsError("No checkpoint file is given.", remedy="Type its path.")
            weights = Path(file.strip()).expanduser()
        elif weights == "none":
            weights = None
        self._last = {"name": name}
        return app.begin("loading", f"Loading {name} …", partial(self._load, name, weights))

    def _load(self, name: str, weights: Any, cancelled: Any) -> None:
        app = self._app
        app.clear_problem()

        def progress(done: int, total: int, file: str) -> None:
            parts = f"{done / 1e6:.0f} of {total / 1e6:.0f} MB" if total else f"{done / 1e6:.0f} MB"
            app.progress(f"Downloading {file}: {parts}", done // 1000, total // 1000)

        try:
            if self._given is not None and name == self._given.name and weights == "auto":
                model = self._given
            else:
                model = load_model(
                    name,
                    weights,
                    device=app.device or "auto",
                    progress=progress,
                    cancelled=cancelled,
                )
        except RunCancelled:
            app.say("Loading was cancelled.", "idle", outcome="cancelled")
            return
        except HookvizError as error:
            app.say(f"{name} was not loaded.", "idle", outcome="failed")
            action = {"label": "Load it untrained", "do": "untrained"}
            offer = isinstance(error, WeightsError) and weights is not None
            app.show_problem(error, action=action if offer else None)
            return
        app.model = model
        app.say("Ready.", "idle", outcome="ok")
        app.jobs.later("memory", return_memory)
        if self.then_run:
            self.then_run = False
            app.jobs.later("run", lambda _cancelled: app.start_run())

    def load_untrained(self) -> None:
        """Loads the model whose weights could not be had, without them."""
        if self._last:
            self.load(self._last["name"], "none")

    def move(self, device: str, *, then_run: bool = False) -> bool:
        """Moves the model to another device as a job.

        Args:
            device: One of `available_devices`.
            then_run: Start a run there afterwards.

        Returns:
            Whether the job was started.
        """
        app = self._app
        if app.model is None or app.device == device:
            return False

        def task(_cancelled: Any) -> None:
            try:
                moved = app.model.to(device)
            finally:
                app.say("Ready.", "idle")
            app.swap_model(moved)
            if then_run:
                app.jobs.later("run again", lambda _cancelled: app.start_run(anyway=True))

        return app.begin("loading", f"Moving {app.model.name} to {device} …", task)
