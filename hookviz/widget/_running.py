"""Running the model for the app: one run at a time, cancellable, nothing lost.

In: the app's model, image and ticked layers. Out: results as they come, and a Run at the end.
Must not know: how the page looks.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from hookviz._text import shape_text
from hookviz.capture import Activation
from hookviz.errors import CaptureError, DeviceError, HookvizError, RunCancelled
from hookviz.images import NetworkInput, network_input
from hookviz.models import LoadedModel
from hookviz.render import PictureFacts
from hookviz.run import Run, failing_layer, run_model
from hookviz.widget._layer_tree import row_facts
from hookviz.widget._pacing import Teller
from hookviz.widget._painting import Origin
from hookviz.widget._shapes import expected_rows

if TYPE_CHECKING:
    from hookviz.widget._explorer import Explorer

__all__ = ["LARGE", "Running", "origin_of"]

LARGE = 1_000_000_000
"""Bytes of activations above which the user is asked first."""

_AUTO_DELAY = 0.3


def origin_of(model: Any, picture: Any, received: Any) -> Origin:
    """Where a run's values come from, for its figures.

    Args:
        model: The `LoadedModel`.
        picture: The `Picture`.
        received: The `NetworkInput`.
    """
    _, _, height, width = received.tensor.shape
    return Origin(
        PictureFacts(
            model=model.name,
            weights=model.weights,
            trained=model.trained,
            image=picture.name,
            input_size=(height, width),
        ),
        np.asarray(received.picture()),
        tuple(model.categories),
    )


class Running:
    """Starts runs and follows them.

    Args:
        app: The app; its results, gallery, tree and status are brought up to date.
    """

    def __init__(self, app: Explorer) -> None:
        self._app = app
        self._timer: threading.Timer | None = None
        self._again = False

    def why_not(self) -> str:
        """Why there can be no run now, in words; "" where there can."""
        app = self._app
        if app.model is None:
            return "Choose a model."
        if app.image is None:
            return "Choose an image."
        if not app.tree.selected:
            return "Tick at least one layer."
        return ""

    def expected_bytes(self) -> int:
        """Bytes that the ticked layers will take; 0 where that is not known."""
        sizes = self._app.expected.sizes
        return sum(sizes.get(name, 0) for name in self._app.tree.selected)

    def expect_soon(self) -> None:
        """Has the layers' shapes found out without a run."""
        app = self._app
        model: LoadedModel | None = app.model
        if model is None:
            return
        given: NetworkInput | None = None
        with contextlib.suppress(Exception):
            given = app.image_input.network_input()
        side = app.image_input.preprocessing.crop or (224, 224)
        shape = tuple(given.tensor.shape) if given is not None else (1, 3, *side)

        def task(_cancelled: Any) -> None:
            found = expected_rows(model, shape)
            if app.model is model and found.rows:
                app.expected = found
                # What a run found out is truer than what was foreseen.
                known = {n: f for n, f in app.tree.facts.items() if "d" in f or "r" in f}
                app.tree.facts = {**found.rows, **known}

        app.jobs.later("expect", task)

    def start(self, *, anyway: bool = False) -> bool:
        """Starts a run unless there is a reason against it or a job is going.

        Args:
            anyway: Do not ask about a large run.

        Returns:
            Whether it was started.
        """
        app = self._app
        self.stop_waiting()
        if self.why_not():
            app.refresh_reasons()
            return False
        size = self.expected_bytes()
        if size > LARGE and not anyway:
            count = len(app.tree.selected)
            app.ask_large(
                f"The {count} ticked layers will take about {size / 1e9:.1f} GB of memory."
            )
            return False
        layers = list(app.tree.selected)
        if not app.jobs.start("run", lambda cancelled: self._run(layers, cancelled)):
            return False
        app.say(f"Running {app.model.name} …", "running", 0, len(layers))
        return True

    def soon(self) -> None:
        """Has a run started shortly, where runs are automatic; the last call counts."""
        self.stop_waiting()
        app = self._app
        if not app.auto_run or self.why_not():
            return
        self._timer = threading.Timer(_AUTO_DELAY, self._due)
        self._timer.daemon = True
        self._timer.start()

    def stop_waiting(self) -> None:
        """Forgets an automatic run that has not begun."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        app = self._app
        try:
            if app.jobs.busy:
                self._again = True
            elif any(name not in app.results or app.results.stale for name in app.tree.selected):
                self.start()
        except Exception as error:  # noqa: BLE001 - on a timer's thread nobody else would see it
            app.show_problem(error)

    def _run(self, layers: list[str], cancelled: Any) -> None:
        app = self._app
        app.clear_problem()
        # A picture that was dropped just before is the one that is meant.
        while not app.image_input.wait(0.05):
            if cancelled():
                app.say("Cancelled.", "idle")
                return
        model, picture = app.model, app.image
        how = app.image_input.preprocessing
        given = network_input(picture, how, device="cpu", dtype=model.dtype)
        origin = origin_of(model, picture, given)
        arrived: list[Activation] = []
        self._again = False

        def show() -> None:
            so_far = list(arrived)
            app.results.put(so_far, origin)
            app.show_results()
            done = len({a.layer for a in so_far})
            app.say(f"Running {model.name} …", None, done, len(layers))

        teller = Teller(show, app.show_problem)

        def arrive(activation: Activation) -> None:
            arrived.append(activation)
            teller.ask()

        try:
            run = run_model(
                model,
                picture,
                layers,
                preprocess=how,
                on_activation=arrive,
                cancelled=cancelled,
                keep_partial=True,
            )
        finally:
            teller.end()
        changed = app.image is not picture or app.model is not model
        app.results.put(run.activations, origin, run)
        if changed:
            app.results.expire()
        elif run.error is None:
            app.results.drop_stale()
        self._tell(run)
        app.take_run(run)
        self._conclude(run, len(layers))
        if self._again:
            self.soon()

    def _tell(self, run: Run) -> None:
        facts: dict[str, dict[str, Any]] = {}
        for name in run.layers:
            calls: dict[int, list[Activation]] = {}
            for activation in run.activations:
                if activation.layer == name and activation.kind == "output":
                    calls.setdefault(activation.call, []).append(activation)
            if not calls:
                continue
            facts[name] = row_facts(
                [leaves[0].shape for leaves in calls.values()],
                [
                    sum(a.tensor.numel() * a.tensor.element_size() for a in leaves)
                    for leaves in calls.values()
                ],
                ran=True,
            )
        if run.error is None:
            facts |= {name: row_facts(reason=reason) for name, reason in run.missing.items()}
        self._app.tree.tell(facts)

    def _conclude(self, run: Run, asked: int) -> None:
        app, error, done = self._app, run.error, len(run.layers)
        verbs = "was captured and stays" if done == 1 else "were captured and stay"
        kept = f"{done} of {asked} layers {verbs}."
        if error is None:
            layers = "1 layer" if done == 1 else f"{done} layers"
            app.say(f"Done in {run.seconds:.2f} s: {layers}.", "idle")
        elif isinstance(error, RunCancelled):
            app.say(f"Cancelled: {kept}", "idle")
        else:
            app.say(f"Failed: {kept}", "idle")
            action = None
            if isinstance(error, DeviceError) and app.model.device.type != "cpu":
                action = {"label": "Retry on CPU", "do": "retry-cpu"}
            app.show_problem(_explained(run, error, kept), action=action)


def _explained(run: Run, error: BaseException, kept: str) -> BaseException:
    """A forward's failure in one sentence that names the layer."""
    if isinstance(error, HookvizError):
        return error
    layer = failing_layer(run.model.module, error)
    where = f"in layer '{layer}'" if layer else f"of {run.model.name}"
    kind = ""
    if layer:
        kind = f" ({type(run.model.module.get_submodule(layer)).__name__})"
    line = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    shape = shape_text(run.input.tensor.shape)
    explained = CaptureError(
        f"The forward failed {where}{kind} for an input of {shape}: {line}.", remedy=kept
    )
    explained.__cause__ = error
    explained.__traceback__ = error.__traceback__
    return explained
