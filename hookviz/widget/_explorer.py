"""The app: model, image, layers and results in one widget.

In: what the user sets, on the page or from Python. Out: the same state in both places. Must not
know: how the page looks, how a model is loaded or run, how a grid is drawn.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import traitlets

from hookviz.capture import select_layers
from hookviz.errors import ExportError, RunCancelled
from hookviz.images import Picture
from hookviz.models import LoadedModel, load_model
from hookviz.render import GridOptions
from hookviz.run import Run
from hookviz.widget._cells import current_cell, take_cell
from hookviz.widget._choosing import Choosing, available_devices
from hookviz.widget._exporting import Exporting
from hookviz.widget._hearing import Hearing
from hookviz.widget._image_input import ImageInput
from hookviz.widget._jobs import Worker
from hookviz.widget._layer_tree import LayerTree
from hookviz.widget._map_gallery import Figures, MapGallery
from hookviz.widget._pacing import Quiet
from hookviz.widget._part import guarded
from hookviz.widget._results import Results
from hookviz.widget._running import Running, origin_of
from hookviz.widget._shapes import Expected
from hookviz.widget._still import Still, show

__all__ = ["Explorer"]


class Explorer(Hearing):
    """Shows what each layer of a model answers to a photo. `hookviz.explore` makes one.

    Work is done on a thread of the app's own; observers of ``run`` are called on it.

    Attributes:
        model: The `LoadedModel`. Set it to a module, a name or a LoadedModel.
        layers: Names of the ticked layers. Set it to any selectors of `select_layers`.
        image: The `Picture`, or None. Set it to anything that `read_image` takes.
        run: The last `Run`, or None. Set it to a run made elsewhere to show that.
        figures: Mapping from label to matplotlib Figure of what is shown, drawn on access.
        auto_run: Whether every change of layers or image starts a run.
        status: What is going on: ``state``, ``text``, ``done``, ``total``.
        tree: The `LayerTree`.
        image_input: The `ImageInput`.
        gallery: The `MapGallery`.
    """

    def __init__(self, **traits: Any) -> None:
        self.results = Results()
        self.expected = Expected()
        self._views: set[str] = set()
        self._still = Still()
        self._resting = Quiet("hookviz-still", self._update_still, self.show_problem)
        self._started = False
        self._quiet = ""
        self.jobs = Worker("hookviz-run", self._job_failed)
        self.running = Running(self)
        self.choosing = Choosing(self)
        self.exporting = Exporting(self)
        gallery = MapGallery()
        super().__init__(
            tree=LayerTree(),
            image_input=ImageInput(),
            gallery=gallery,
            figures=Figures(gallery),
            devices=available_devices(),
            layers=[],
            **traits,
        )
        for part in (self.tree, self.image_input, self.gallery):
            part.tell_problems_to(self._show_alert)
        self.gallery.after_painting(self._resting.ask)
        self.tree.observe(self._on_ticks, ["selected", "hidden_calls"])
        self.image_input.observe(self._on_image, "value")
        self.image_input.observe(self._expire_results, "choice")
        self.observe(self._on_layers_set, "layers")
        self.observe(self._expire_results, "image")
        self.observe(self._on_model_set, "model")
        self.observe(self._on_run_set, "run")
        self._started = True
        self.refresh_reasons()
        self.show_results()
        take_cell(self, current_cell())

    # ── what Python sets

    @traitlets.validate("model")
    def _check_model(self, proposal: Any) -> LoadedModel | None:
        given = proposal["value"]
        if given is None or isinstance(given, LoadedModel):
            return given
        if isinstance(given, Path):
            given = str(given)
        return load_model(given, device=self.device or "auto", progress=False)

    @traitlets.validate("layers")
    def _check_layers(self, proposal: Any) -> list[str]:
        given = proposal["value"]
        if not self._started or self.model is None or not given:
            return [given] if isinstance(given, str) and given else list(given or [])
        wanted = set(select_layers(self.model.module, given).values())
        return [name for name in self.tree.names if name in wanted]

    @traitlets.validate("image")
    def _check_image(self, proposal: Any) -> Picture | None:
        given = proposal["value"]
        # The input reads it; should that fail, the error belongs to who set it.
        self.image_input.value = given
        picture: Picture | None = self.image_input.value
        return picture

    @property
    def options(self) -> GridOptions:
        """How grids are drawn. Set it to change the view; the model does not run again."""
        return self.gallery.options

    @options.setter
    def options(self, options: GridOptions) -> None:
        self.gallery.options = options

    def start_run(self, *, anyway: bool = False) -> bool:
        """Starts a run on the app's thread.

        Args:
            anyway: Do not ask about a run that needs much memory.

        Returns:
            Whether it was started; False while a job is going or something is missing, see
            ``why_not``.
        """
        return self.running.start(anyway=anyway)

    def cancel(self) -> bool:
        """Asks the job that is going to end; what is finished stays.

        Returns:
            Whether there was one.
        """
        self.running.stop_waiting()
        if not self.jobs.cancel():
            return False
        self.say("Cancelling …", "cancelling")
        return True

    def wait(self, timeout: float | None = 60.0) -> bool:
        """Waits until pictures are read, no job is going and the grids near the screen are drawn.

        Args:
            timeout: Seconds for each of the three.

        Returns:
            Whether that came about.
        """
        return all(part.wait(timeout) for part in (self.image_input, self.jobs, self.gallery))

    def export(self, folder: str | Path = "hookviz_exports", **options: Any) -> Any:
        """Exports the last run, see `hookviz.run.Run.export`.

        Raises:
            ExportError: Nothing was run yet, or the files cannot be written.
        """
        if self.run is None:
            raise ExportError("There is nothing to export.", remedy="Run the model first.")
        return self.run.export(folder, **{"options": self.options, **options})

    def close(self) -> None:
        """Ends the threads, lets go of what was captured and takes the widget away."""
        self.running.stop_waiting()
        self._resting.end()
        self.jobs.close()
        self.exporting.close()
        for name in ("gallery", "tree", "image_input"):
            part = self._trait_values.get(name)
            if part is not None:  # what could not be made in full is closed, too
                part.close()
        self.results.clear()
        super().close()

    def open(self) -> None:
        """Brings the widget up, also after `close`."""
        for part in (self.tree, self.image_input, self.gallery):
            if part.comm is None:
                part.open()
        if self._started:
            self.jobs.reopen()
            self._resting.begin()
        super().open()

    def _ipython_display_(self, **_options: Any) -> None:
        if self.comm is None:
            self.open()
        data, metadata = self._repr_mimebundle_() or ({}, {})
        data = {**data, "text/plain": "hookviz"}
        show(data, metadata=metadata)
        self._still.place()

    # ── what the app's jobs do

    def swap_model(self, model: LoadedModel) -> None:
        """Takes the same model on another device: what was captured stays."""
        self.put_quietly("model", model)
        self.show_model()

    def run_again(self) -> None:
        """Runs again after a move to another device."""
        self.start_run(anyway=True)

    def _job_failed(self, error: BaseException) -> None:
        self.say("Cancelled." if isinstance(error, RunCancelled) else "That failed.", "idle")
        if not isinstance(error, RunCancelled):
            self.show_problem(error)

    # ── changes

    def _on_model_set(self, _change: Any) -> None:
        if self._quiet == "model":
            return
        model: LoadedModel | None = self.model
        self.results.clear()
        self.predictions = {}
        self.expected = Expected()
        if model is None:
            self.tree.show(None)
        else:
            self.choosing.remember(model)
            self.tree.show(model.module)
            if self.layers:
                wanted = self.layers
                with contextlib.suppress(Exception):
                    self.tree.selected = self._check_layers({"value": wanted})
            self.layers = list(self.tree.selected)
            self.image_input.set_preprocess(model.preprocess)
        self.show_model()
        self.show_results()
        self.running.expect_soon()

    @guarded
    def _on_ticks(self, _change: Any) -> None:
        if self.layers != self.tree.selected:
            self.layers = list(self.tree.selected)
        self.show_results()
        self.refresh_reasons()
        if any(name not in self.results for name in self.tree.selected):
            self.running.soon()

    def _on_layers_set(self, _change: Any) -> None:
        if self.model is not None and self.tree.selected != self.layers:
            self.tree.selected = list(self.layers)

    def _on_image(self, _change: Any) -> None:
        self.image = self.image_input.value

    @guarded
    def _expire_results(self, _change: Any = None) -> None:
        self.results.expire()
        self.predictions = {}
        self.show_results()
        self.refresh_reasons()
        self.running.expect_soon()
        self.running.soon()

    def _on_run_set(self, _change: Any) -> None:
        if self._quiet == "run":
            return
        run: Run | None = self.run
        if run is None:
            self.results.clear()
            self.predictions = {}
            self.show_results()
            return
        if self.model is not run.model:
            self.model = run.model
        if self.image is not run.image:
            self.image = run.image
        self.results.clear()
        self.results.put(run.activations, origin_of(run.model, run.image, run.input), run)
        self.tree.selected = [name for name in self.tree.names if name in run.layers]
        self.take_run(run)

    def _update_still(self) -> None:
        if self._still.id is not None and self.run is not None:
            self._still.update(self.gallery.pictures(3))
