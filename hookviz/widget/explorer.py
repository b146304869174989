"""The app: model, image, layers and results in one widget.

In: what the user sets, on the page or from Python. Out: the same state in both places. Must not
know: how the page looks, how a model is loaded or run, how a grid is drawn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import traitlets
from ipywidgets import widget_serialization
from torch import nn

from hookviz.capture import select_layers
from hookviz.errors import RunCancelled
from hookviz.images import NetworkInput, Picture
from hookviz.images.limits import MAX_BYTES
from hookviz.models import LoadedModel, load_model
from hookviz.render import GridOptions
from hookviz.run import Run
from hookviz.widget.bundle import module_text, style_text
from hookviz.widget.cards import card_key
from hookviz.widget.cells import current_cell, take_cell
from hookviz.widget.choosing import Choosing, available_devices
from hookviz.widget.exporting import Exporting
from hookviz.widget.image_input import ImageInput
from hookviz.widget.jobs import Worker
from hookviz.widget.layer_tree import LayerTree
from hookviz.widget.map_gallery import Figures, MapGallery
from hookviz.widget.part import Part, guarded
from hookviz.widget.results import Results
from hookviz.widget.running import Running, origin_of
from hookviz.widget.shapes import Expected, expected_rows
from hookviz.widget.still import Still

__all__ = ["Explorer"]

_NOT_YET = "Run to see it."


class Explorer(Part):
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

    _esm = module_text("app.js")
    _css = style_text("base.css", "app.css")

    tree = traitlets.Instance(LayerTree).tag(sync=True, **widget_serialization)
    image_input = traitlets.Instance(ImageInput).tag(sync=True, **widget_serialization)
    gallery = traitlets.Instance(MapGallery).tag(sync=True, **widget_serialization)
    model_info = traitlets.Dict().tag(sync=True)
    devices = traitlets.List(traitlets.Unicode()).tag(sync=True)
    device = traitlets.Unicode().tag(sync=True)
    status = traitlets.Dict({"state": "idle", "text": "Ready."}).tag(sync=True)
    why_not = traitlets.Unicode().tag(sync=True)
    why_no_export = traitlets.Unicode().tag(sync=True)
    predictions = traitlets.Dict().tag(sync=True)
    export_result = traitlets.Dict().tag(sync=True)
    auto_run = traitlets.Bool(False).tag(sync=True)
    max_bytes = traitlets.Int(MAX_BYTES).tag(sync=True)

    model = traitlets.Any(allow_none=True)
    layers = traitlets.Any()
    image = traitlets.Any(allow_none=True)
    run = traitlets.Any(allow_none=True)
    figures = traitlets.Instance(Mapping)

    def __init__(self, **traits: Any) -> None:
        self.results = Results()
        self.expected = Expected()
        self._views: set[str] = set()
        self._still = Still()
        self._started = False
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
        self.jobs = Worker("hookviz-run", self._job_failed)
        self.running = Running(self)
        self.choosing = Choosing(self)
        self.exporting = Exporting(self)
        for part in (self.tree, self.image_input, self.gallery):
            part.tell_problems_to(self._show_alert)
        self.gallery.after_painting(self._update_still)
        self.tree.observe(self._on_ticks, ["selected", "hidden_calls"])
        self.image_input.observe(self._on_image, "value")
        self.image_input.observe(self._on_preprocessing, "choice")
        self.observe(self._on_layers_set, "layers")
        self.observe(self._on_image_set, "image")
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
        return self.image_input.value  # type: ignore[no-any-return]

    @property
    def options(self) -> GridOptions:
        """How grids are drawn. Set it to change the view; the model does not run again."""
        return self.gallery.options  # type: ignore[no-any-return]

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
        """Waits until no job is going or waiting and the grids near the screen are drawn.

        Args:
            timeout: Seconds for either.

        Returns:
            Whether that came about.
        """
        return self.jobs.wait(timeout) and self.gallery.wait(timeout)

    def export(self, folder: str | Path = "hookviz_exports", **options: Any) -> Any:
        """Exports the last run, see `hookviz.run.Run.export`.

        Raises:
            ExportError: Nothing was run yet, or the files cannot be written.
        """
        from hookviz.errors import ExportError

        if self.run is None:
            raise ExportError("There is nothing to export.", remedy="Run the model first.")
        return self.run.export(folder, **{"options": self.options, **options})

    def close(self) -> None:
        """Ends the threads, lets go of what was captured and takes the widget away."""
        self.running.stop_waiting()
        self.jobs.close()
        for part in (self.gallery, self.tree, self.image_input):
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
        super().open()

    def _ipython_display_(self, **_options: Any) -> None:
        from IPython.display import display

        if self.comm is None:
            self.open()
        data, metadata = self._repr_mimebundle_()
        data = {**data, "text/plain": "hookviz: run this cell to start the app."}
        display(data, metadata=metadata, raw=True)
        self._still.place()

    # ── state on the page

    def say(self, text: str, state: str | None = None, done: int = 0, total: int = 0) -> None:
        """States what is going on.

        Args:
            text: One short sentence.
            state: "idle", "loading", "running", "cancelling" or "exporting"; None keeps it.
            done: How much is done.
            total: Of how much; 0 where that is not known.
        """
        now = state or self.status.get("state", "idle")
        if state is None and self.jobs.cancelled:
            return  # "Cancelling …" stays until the job has ended
        self.status = {"state": now, "text": text, "done": done, "total": total}
        self.refresh_reasons()

    def refresh_reasons(self) -> None:
        """States why there can be no run, and why nothing can be exported."""
        self.why_not = self.running.why_not()
        self.why_no_export = self.exporting.why_not()

    def show_results(self) -> None:
        """Shows what was captured of the ticked layers, and which are still waited for."""
        shown, origins = [], {}
        waiting: dict[str, tuple[str, str]] = {}
        hidden = set(self.tree.hidden_calls)
        types = {row[0]: row[1] for row in self.tree.rows}
        for name in self.tree.selected:
            found = self.results.get(name)
            if found is not None:
                origins[name] = found.origin
                shown += [a for a in found.activations if card_key(name, a.call) not in hidden]
            else:
                reason = (self.tree.facts.get(name) or {}).get("r", "")
                waiting[name] = (types.get(name, ""), reason and _sentence(reason) or _NOT_YET)
        self.gallery.empty = self._empty_text()
        self.gallery.show(
            shown,
            waiting=waiting,
            origins=origins,
            stale=self.results.stale,
            order=self.expected.order,
        )
        self.why_no_export = self.exporting.why_not()

    def _empty_text(self) -> str:
        if self.image is None:
            return "Drop a photo on the app, or try a sample. Then tick layers and press Run."
        return "Tick layers on the left, then press Run."

    def take_run(self, run: Run) -> None:
        """Makes a run the last one and shows it."""
        self.show_results()
        with self._quietly("run"):
            self.run = run
        found = run.predictions
        items = [[label, share] for _, label, share in found.items]
        self.predictions = {"items": items, "reason": found.summary or found.reason}
        self.figures = Figures(self.gallery)

    def swap_model(self, model: LoadedModel) -> None:
        """Takes the same model on another device: what was captured stays."""
        with self._quietly("model"):
            self.model = model
        self._show_model()

    def ask_large(self, question: str) -> None:
        """Asks before a run that needs much memory."""
        self.send({"type": "ask-large", "question": question})
        self.say(f"{question} Asked first.", "idle")

    @contextlib.contextmanager
    def _quietly(self, name: str) -> Any:
        """Lets a trait be set without its own observer here; others hear of it."""
        handler = {"run": self._on_run_set, "model": self._on_model_set}[name]
        self.unobserve(handler, name)
        try:
            yield
        finally:
            self.observe(handler, name)

    def _job_failed(self, error: BaseException) -> None:
        self.say("Cancelled." if isinstance(error, RunCancelled) else "That failed.", "idle")
        if not isinstance(error, RunCancelled):
            self.show_problem(error)

    # ── changes

    def _on_model_set(self, _change: Any) -> None:
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
        self._show_model()
        self.show_results()
        self._expect_soon()

    def _show_model(self) -> None:
        model: LoadedModel | None = self.model
        if model is None:
            self.model_info, self.device = {}, ""
        else:
            self.model_info = {
                "name": model.name,
                "weights": "" if not model.trained and model.weights == "none" else model.weights,
                "trained": model.trained,
                "note": "" if model.note.startswith("UNTRAINED") else model.note,
                "documentation": model.documentation,
                "task": model.task,
            }
            name = str(model.device)
            known = {d: d for d in self.devices} | {"cuda:0": "cuda"}
            self.device = name if name in self.devices else known.get(name, name)
            if self.device not in self.devices:
                self.devices = [*self.devices, self.device]
        self.refresh_reasons()

    def _expect_soon(self) -> None:
        """Has the layers' shapes found out without a run."""
        model: LoadedModel | None = self.model
        if model is None:
            return
        given: NetworkInput | None = None
        with contextlib.suppress(Exception):
            given = self.image_input.network_input()
        side = self.image_input.preprocessing.crop or (224, 224)
        shape = tuple(given.tensor.shape) if given is not None else (1, 3, *side)

        def task(_cancelled: Any) -> None:
            found = expected_rows(model, shape)
            if self.model is model and found.rows:
                self.expected = found
                # What a run found out is truer than what was foreseen.
                known = {n: f for n, f in self.tree.facts.items() if "d" in f or "r" in f}
                self.tree.facts = {**found.rows, **known}

        self.jobs.later("expect", task)

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
        if self.image is not self.image_input.value:
            self.image = self.image_input.value
        else:
            self._expire_results()

    def _on_image_set(self, _change: Any) -> None:
        self._expire_results()

    @guarded
    def _on_preprocessing(self, _change: Any) -> None:
        self._expire_results()

    def _expire_results(self) -> None:
        self.results.expire()
        self.predictions = {}
        self.show_results()
        self.refresh_reasons()
        self._expect_soon()
        self.running.soon()

    def _on_run_set(self, _change: Any) -> None:
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

    # ── messages of the page

    def _hear_run(self, content: dict[str, Any], _buffers: Any) -> None:
        self.start_run(anyway=bool(content.get("anyway")))

    def _hear_cancel(self, _content: dict[str, Any], _buffers: Any) -> None:
        self.cancel()

    def _hear_auto(self, content: dict[str, Any], _buffers: Any) -> None:
        self.auto_run = bool(content.get("on"))
        self.running.soon()

    def _hear_models(self, _content: dict[str, Any], _buffers: Any) -> None:
        current = self.model.name if self.model is not None else ""
        self.send({"type": "models", "names": self.choosing.names(), "current": current})

    def _hear_weights(self, content: dict[str, Any], _buffers: Any) -> None:
        name = str(content.get("model", ""))
        choices = self.choosing.weights(name)
        self.send({"type": "weights", "model": name, "choices": choices})

    def _hear_load(self, content: dict[str, Any], _buffers: Any) -> None:
        self.choosing.load(
            str(content.get("model", "")),
            content.get("weights", "auto"),
            file=str(content.get("file", "")),
        )

    def _hear_device(self, content: dict[str, Any], _buffers: Any) -> None:
        self.choosing.move(str(content.get("device", "")))

    def _hear_action(self, content: dict[str, Any], _buffers: Any) -> None:
        self.clear_problem()
        if content.get("do") == "retry-cpu":
            self.choosing.move("cpu", then_run=True)
        elif content.get("do") == "untrained":
            self.choosing.load_untrained()

    def _hear_export(self, content: dict[str, Any], _buffers: Any) -> None:
        self.exporting.start(content)

    def _hear_zip(self, content: dict[str, Any], _buffers: Any) -> None:
        self.exporting.start(content, zipped=True)

    def _hear_zip_piece(self, content: dict[str, Any], _buffers: Any) -> None:
        self.exporting.send_piece(str(content.get("id", "")), int(content.get("offset", 0)))

    def _hear_view_open(self, content: dict[str, Any], _buffers: Any) -> None:
        # Views of a page that was loaded again never said goodbye: all that live answer anew.
        self._views = {str(content.get("view", ""))}
        self.send({"type": "roll-call"})

    def _hear_view_here(self, content: dict[str, Any], _buffers: Any) -> None:
        self._views.add(str(content.get("view", "")))

    def _hear_view_closed(self, content: dict[str, Any], _buffers: Any) -> None:
        self._views.discard(str(content.get("view", "")))
        if not self._views:
            self.close()


def _sentence(text: str) -> str:
    """A reason as a sentence of its own."""
    plain = text.strip().rstrip(".")
    return f"{plain[:1].upper()}{plain[1:]}." if plain else ""


def _is_module(value: Any) -> bool:
    return isinstance(value, nn.Module) and not isinstance(value, torch.jit.ScriptModule)
