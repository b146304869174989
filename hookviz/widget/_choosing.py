"""Choosing and loading models for the app: names, files and devices as the user chose them."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hookviz.errors import HookvizError, WeightsError
from hookviz.models import LoadedModel, is_local, list_models, list_weights, load_model
from hookviz.widget._app import App

_LISTED = 130


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

    Attributes:
        given: A model that was passed in from Python, which can be chosen again.
        then_run: Whether a run starts once the model that is being loaded is there.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self.given: LoadedModel | None = None
        self._last: dict[str, Any] = {}
        self.then_run = False

    def names(self, search: str = "") -> list[str]:
        """What the model list shows for a search, which may be a name or a path itself."""
        typed: list[str] = []
        with contextlib.suppress(HookvizError):
            typed = [search] if list_weights(search) else []
        own = [m.name for m in (self.given, self._app.model) if m is not None]
        found = [n for n in own if all(word in n.lower() for word in search.lower().split())]
        return list(dict.fromkeys([*typed, *found, *list_models(search)]))[:_LISTED]

    def is_here(self, name: str) -> bool:
        """Whether a model's weights are on this machine."""
        loaded = self._app.model is not None and self._app.model.name == name
        return loaded or self._given_as(name) is not None or is_local(name)

    def full_size(self, model: LoadedModel) -> float:
        """Megabytes of the weights that a model's missing layers need; 0 where it is whole."""
        known = list_weights(model.name) if model.partial else []
        return next((info.megabytes for info in known if info.default), 0)

    def _given_as(self, name: str) -> LoadedModel | None:
        return self.given if self.given is not None and self.given.name == name else None

    def weights(self, name: str) -> list[list[str]]:
        """What the weights list shows for a model: value, text, what it means.

        Raises:
            ModelError: The name is unknown.
        """
        if self._given_as(name):
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
        return [
            *choices,
            ["none", "untrained", "Random weights: shapes are right, maps are not."],
            ["file", "a file of my own …", "A checkpoint on the machine where the kernel runs."],
        ]

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
        how: dict[str, Any] = {"device": app.device or "auto", "cancelled": cancelled}
        how["progress"] = app.progress("Downloading", "bytes")
        try:
            given = weights == "auto" and self._given_as(name)
            app.model = given or load_model(name, weights, **how)
        except HookvizError as error:
            error.details.setdefault("model", name)
            raise
        app.end("Ready.")
        app.return_memory_soon()
        if self.then_run:
            self.then_run = False
            app.jobs.later("run", lambda _cancelled: app.start_run())

    def load_again(self, **changes: str) -> None:
        """Loads the model that was asked for last once more.

        Args:
            **changes: Arguments of `load` that differ.
        """
        if self._last:
            self.load(**{**self._last, **changes})

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
            app.swap_model(app.model.to(device))
            app.end("Ready.")
            if then_run:
                app.jobs.later("run again", lambda _cancelled: app.start_run(anyway=True))

        return app.begin("loading", f"Moving {app.model.name} to {device} …", task)
