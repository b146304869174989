"""Choosing and loading models for the app.

In: names, files, devices as the user chose them. Out: a LoadedModel in the app. Must not know:
runs, pictures.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from hookviz.errors import HookvizError, RunCancelled, WeightsError
from hookviz.models import LoadedModel, is_local, list_models, list_weights, load_model
from hookviz.widget._app import App

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
    """Loads models on the app's thread and lists what there is to choose.

    Args:
        app: The app.
    """

    def __init__(self, app: App) -> None:
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
        return [*given, *sorted(list_models())]

    def names_here(self) -> list[str]:
        """Those of them whose weights are on this machine."""
        return [name for name in self.names() if self._is_given(name) or is_local(name)]

    def full_size(self, model: LoadedModel) -> float:
        """Megabytes of the weights that a model's missing layers need; 0 where it is whole."""
        if not model.partial:
            return 0
        return next((info.megabytes for info in list_weights(model.name) if info.default), 0)

    def _is_given(self, name: str) -> bool:
        return self._given is not None and name == self._given.name

    def weights(self, name: str) -> list[list[str]]:
        """What the weights list shows for a model: value, text, what it means.

        Raises:
            ModelError: The name is unknown.
        """
        if self._is_given(name):
            return [["auto", "its own", "The model of your notebook, as it is."]]
        known = list_weights(name)
        if [info.name for info in known] == ["auto"]:  # a checkpoint's path in place of a name
            return [["auto", known[0].documentation, "The weights of this file."]]
        about = "The weights that are on this machine; where there are none, they are downloaded."
        choices = [["auto", "automatic", about]]
        for info in known:
            size = f" of {info.megabytes:.0f} MB" if info.megabytes else ""
            state = "on this machine" if info.cached else f"download{size}"
            about = info.documentation or state
            choices.append([info.name, f"{info.name} ({state})", about])
        choices.append(["none", "untrained", "Random weights: shapes are right, maps are not."])
        choices.append(
            ["file", "a file of my own …", "A checkpoint on the machine where the kernel runs."]
        )
        return choices

    def load(self, model: str, weights: str = "auto", file: str = "") -> bool:
        """Loads a model as a job.

        Args:
            model: A name of `names`.
            weights: A value of `weights`.
            file: The checkpoint's path where ``weights`` is "file".

        Returns:
            Whether the job was started.
        """
        self._last = {"model": model, "weights": weights, "file": file}
        source: str | Path | None = weights
        if weights == "file":
            if not file.strip():
                raise WeightsError("No checkpoint file is given.", remedy="Type its path.")
            source = Path(file.strip()).expanduser()
        elif weights == "none":
            source = None
        task = partial(self._load, model, source)
        return self._app.begin("loading", f"Loading {model} …", task)

    def _load(self, name: str, weights: Any, cancelled: Any) -> None:
        app = self._app
        app.clear_problem()

        def progress(done: int, total: int, file: str) -> None:
            app.progress(f"Downloading {file} …", done, total, "bytes")

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
            app.set_status("Loading was cancelled.", "idle", outcome="cancelled")
            return
        except HookvizError as error:
            app.set_status(f"{name} was not loaded.", "idle", outcome="failed")
            error.details.setdefault("model", name)
            app.show_problem(error)
            return
        app.model = model
        app.set_status("Ready.", "idle", outcome="ok")
        app.return_memory_soon()
        if self.then_run:
            self.then_run = False
            app.jobs.later("run", lambda _cancelled: app.start_run())

    def load_again(self, weights: Any = None) -> None:
        """Loads the model that was asked for last once more.

        Args:
            weights: "none" for an untrained one; None for the same as before.
        """
        if self._last:
            self.load(**(self._last if weights is None else {**self._last, "weights": weights}))

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
                app.set_status("Ready.", "idle")
            app.swap_model(moved)
            if then_run:
                app.jobs.later("run again", lambda _cancelled: app.start_run(anyway=True))

        return app.begin("loading", f"Moving {app.model.name} to {device} …", task)
