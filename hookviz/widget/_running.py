"""Running the model for the app: one run at a time, cancellable, nothing lost.

Results are shown as they come, and the app gets a `Run` at the end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from hookviz._text import error_text, shape_text
from hookviz.activation import Activation
from hookviz.capture import Edit, layer_shapes
from hookviz.errors import CaptureError, DeviceError, HookvizError, RunCancelled
from hookviz.images import network_input
from hookviz.models import LoadedModel, feed, find_input_size
from hookviz.render import FigureFacts
from hookviz.run import Run, failing_layer, run_model
from hookviz.widget._app import App
from hookviz.widget._cards import card_key
from hookviz.widget._layer_tree import short_shape
from hookviz.widget._painting import Origin
from hookviz.widget._worker import Cancelled

LARGE = 1_000_000_000
"""Bytes of activations above which the user is asked first."""

_AUTO_DELAY = 0.3
_SHOW_INTERVAL = 0.1


class Expected(NamedTuple):
    """What a run will give.

    Attributes:
        rows: `LayerTree.facts`; {} where they cannot be known.
        order: Place in the order of execution of each "layer#call".
        shapes: Of the first tensor of each layer's first call, batch included.
    """

    rows: dict[str, dict[str, Any]]
    order: dict[str, int]
    shapes: dict[str, tuple[int, ...]]


def expected_rows(
    model: LoadedModel, shape: Sequence[int], cancelled: Callable[[], bool] | None = None
) -> Expected:
    """What each layer will answer to an input of a shape.

    Args:
        model: The model; left as it is.
        shape: (N, C, H, W).
        cancelled: Asked before every module; True ends it, and nothing is known.

    Returns:
        Layers' shapes, bytes and order; all empty where that cannot be known.
    """
    try:
        args, kwargs = feed(model, torch.zeros(tuple(shape), device=model.device))
        found = layer_shapes(model.module, args, kwargs, cancelled=cancelled)
    except Exception:  # noqa: BLE001 - an estimate that fails is no fault: nothing is shown then
        return Expected({}, {}, {})
    calls = dict.fromkeys(card_key(one.layer, one.call) for one in found)
    shapes = {one.layer: tuple(one.shape) for one in reversed(found)}
    return Expected(_rows_of(found), {key: place for place, key in enumerate(calls)}, shapes)


def _rows_of(found: Iterable[Any], *, ran: bool = False) -> dict[str, dict[str, Any]]:
    """`LayerTree.facts`, by records with a layer, a call, a shape and a tensor."""
    layers: dict[str, dict[int, list[Any]]] = {}
    for one in found:
        layers.setdefault(one.layer, {}).setdefault(one.call, []).append(one)
    facts: dict[str, dict[str, Any]] = {}
    for name, calls in layers.items():
        shapes = [short_shape(leaves[0].shape) for leaves in calls.values()]
        sizes = [sum(leaf.tensor.nbytes for leaf in leaves) for leaves in calls.values()]
        facts[name] = {"c": len(calls), "s": shapes, "b": sizes, **({"d": 1} if ran else {})}
    return facts


def origin_of(model: Any, picture: Any, received: Any, edits: Iterable[Edit] = ()) -> Origin:
    """Where a run's values come from, for its figures.

    Args:
        model: The `LoadedModel`.
        picture: The `Picture`.
        received: The `NetworkInput`.
        edits: What the model was run with, their layers named.
    """
    _, _, height, width = received.tensor.shape
    return Origin(
        FigureFacts(
            model=model.name,
            weights=model.weights,
            trained=model.trained,
            image=picture.name,
            input_size=(height, width),
            edits="; ".join(map(str, edits)),
        ),
        np.asarray(received.picture()),
        tuple(model.categories),
    )


class Running:
    """Starts runs and follows them.

    Args:
        app: The app; its results, gallery, tree and status are brought up to date.

    Attributes:
        waiting: Why a layer that was asked for is not there, for its card, by layer.
        order: Place in the order of execution by "layer#call", as far as it is foreseen.
        shapes: Of what each layer gives, as far as it is foreseen.
        promised: Whether the cell that displays the app waits for a run.
        sized: Whether the size of the model's input was looked for.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self.waiting: dict[str, str] = {}
        self.promised = False
        self.order: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.sized = False

    def why_not(self) -> str:
        """Why there can be no run now, in words; "" where there can."""
        app = self._app
        if app.model is None:
            return "Choose a model."
        if app.image is None:
            return "Choose an image."
        return "" if app.tree.selected else "Tick at least one layer."

    def expect_soon(self) -> None:
        """Has the layers' shapes found out without a run."""
        app = self._app
        model: LoadedModel | None = app.model
        if model is None:
            return
        shape: Sequence[int] = (1, 3, *(app.image_input.preprocessing.crop or (224, 224)))
        with contextlib.suppress(Exception):
            if given := app.image_input.network_input():
                shape = given.tensor.shape

        def task(cancelled: Cancelled) -> None:
            self._find_size(model, cancelled)
            found = expected_rows(model, shape, cancelled)
            if cancelled():
                app.jobs.later("expect", task)  # after the run, which goes first
            elif app.model is model and found.rows:
                self.order, self.shapes = found.order, found.shapes
                app.refresh_panels()
                # What a run found out is truer than what was foreseen.
                known = {n: f for n, f in app.tree.facts.items() if "d" in f or "r" in f}
                app.tree.facts = {**found.rows, **known}

        app.jobs.later("expect", task)

    def _find_size(self, model: LoadedModel, cancelled: Cancelled) -> None:
        """Gives a module that says nothing of its input the size that it takes, once."""
        if self.sized or not model.passed_in or model.preprocess is not None:
            return
        found = find_input_size(model.module, cancelled)
        with self._app.lock:
            if cancelled() or self._app.model is not model or self.sized:
                return  # a session's own size, for one, may have been set meanwhile
            self.sized = True
            if found is not None and found.size is not None:
                text = f"Found by trial: {found.describe()}."
                self._app.image_input.set_size(*found.size, found.channels, text)

    def start(self, *, anyway: bool = False) -> bool:
        """Starts a run unless there is a reason against it or a job is going.

        Args:
            anyway: Do not ask about a large run.

        Returns:
            Whether it was started.
        """
        app = self._app
        app.jobs.forget("auto")
        if self.why_not():
            return False
        layers = list(app.tree.selected)
        size = sum(sum(app.tree.facts.get(name, {}).get("b", ())) for name in layers)
        if size > LARGE and not anyway:
            gigabytes = f"{size / 1e9:.1f} GB"
            app.ask_large(f"The {len(layers)} ticked layers will take about {gigabytes} of memory.")
            return False
        shown = {"total": len(layers), "unit": "layers"}
        with app.lock:
            task = partial(self._run, layers)
            if not app.begin("running", f"Running {app.model.name} …", task, **shown):
                return False
            self.waiting = dict.fromkeys(layers, "Waiting for the run.")
            app.show_results()
        return True

    def soon(self) -> None:
        """Has a run started shortly, where runs are automatic; the last call counts."""
        app = self._app
        app.jobs.forget("auto")
        if app.auto_run and not self.why_not():
            app.jobs.later("auto", self._start_if_needed, _AUTO_DELAY)

    def _start_if_needed(self, _cancelled: Any) -> None:
        app = self._app
        if any(name not in app.results or app.results.stale for name in app.tree.selected):
            self.start()

    def _run(self, layers: list[str], cancelled: Any) -> None:
        app = self._app
        app.clear_problem()
        # A picture that was dropped just before is the one that is meant.
        while not app.image_input.wait(0.05) and not cancelled():
            pass
        if app.model is not None:
            self._find_size(app.model, cancelled)
        model, picture = app.model, app.image
        if cancelled() or model is None or picture is None:
            raise RunCancelled("There is nothing to run any more.")
        how, edits = app.image_input.preprocessing, app.edits
        given = network_input(picture, how, device="cpu", dtype=model.dtype)
        origin = origin_of(model, picture, given, edits)
        arrived: list[Activation] = []
        shown_at, over = 0.0, False

        def show(_cancelled: Any = None) -> None:
            nonlocal shown_at
            with app.lock:
                if over or app.model is not model:
                    return
                shown_at = time.monotonic()
                so_far = list(arrived)
                app.results.put(so_far, origin)
                app.show_results()
                done = len({a.layer for a in so_far})
                text = f"Running {model.name} …"
                app.set_status(text, done=done, total=len(layers), unit="layers")

        def arrive(activation: Activation) -> None:
            arrived.append(activation)
            wait = shown_at + _SHOW_INTERVAL - time.monotonic()
            if wait <= 0:
                show()
            else:
                # This thread is in the forward, and the last of several quick ones cannot wait.
                app.gallery.painter.later("arrived", show, wait)

        try:
            run = run_model(
                model,
                picture,
                layers,
                preprocess=how,
                edits=edits,
                on_activation=arrive,
                cancelled=cancelled,
                keep_partial=True,
            )
        finally:
            with app.lock:
                over = True
            app.gallery.painter.forget("arrived")
            self.waiting = {}
        with app.lock:
            if app.model is not model:
                raise RunCancelled("The app has another model now.")
            changed = app.image is not picture or app.edits != edits
            app.results.put(run.activations, origin, run)
            if changed:
                app.results.expire()
            elif run.error is None:
                app.results.drop_stale()
            else:
                verb = "was cancelled" if isinstance(run.error, RunCancelled) else "failed"
                self.waiting = dict.fromkeys(layers, f"The run {verb} before this layer.")
            facts = _rows_of((a for a in run.activations if a.kind == "output"), ran=True)
            if run.error is None:
                facts |= {name: {"r": reason} for name, reason in run.missing.items()}
            app.tree.add_facts(facts)
            app.take_run(run)
            self._conclude(run, len(layers))
        app.return_memory_soon()

    def _conclude(self, run: Run, asked: int) -> None:
        app, error, done = self._app, run.error, len(run.layers)
        verbs = "was captured and stays" if done == 1 else "were captured and stay"
        layers = "1 layer" if asked == 1 else f"{asked} layers"
        kept = f"{done} of {layers} {verbs}." if done else "no layer was captured."
        if error is None:
            layers = "1 layer" if done == 1 else f"{done} layers"
            app.end(f"Done in {run.seconds:.2f} s: {layers}.")
        elif isinstance(error, RunCancelled):
            app.end(f"Cancelled: {kept}", "cancelled")
        else:
            app.end(f"Failed: {kept}", "failed")
            action = None
            if isinstance(error, DeviceError) and app.model.device.type != "cpu":
                action = {"label": "Run on the CPU", "do": "retry-cpu"}
            app.show_problem(explained(run, error, kept if done else None), action=action)


def explained(run: Run, error: BaseException, kept: str | None) -> BaseException:
    """A forward's failure in one sentence that names the layer."""
    if isinstance(error, HookvizError):
        return error
    layer = failing_layer(run.model.module, error)
    where = f"of {run.model.name}"
    if layer:
        where = f"in layer '{layer}' ({type(run.model.module.get_submodule(layer)).__name__})"
    line = error_text(error).rstrip(".")
    shape = shape_text(run.input.tensor.shape)
    explained = CaptureError(
        f"The forward failed {where} for an input of {shape}: {line}.",
        remedy=kept,
        # Where nothing says what the module takes, the size may be the fault.
        code="size-unknown" if run.model.passed_in and run.model.preprocess is None else "",
    )
    explained.__cause__ = error
    explained.__traceback__ = error.__traceback__
    return explained
