"""The app: model, image, layers and results in one widget, the same on the page and in Python."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anywidget
import traitlets
from traitlets import TraitType

from hookviz.capture import Edit, edit, select_layers
from hookviz.comparison import Comparison
from hookviz.errors import ExportError, HookvizError, RunCancelled
from hookviz.images import MAX_BYTES
from hookviz.models import LoadedModel, load_model
from hookviz.render import GridOptions
from hookviz.run import Run, has_filters, layer_weights
from hookviz.surveys import Survey
from hookviz.widget._about import AboutLayer
from hookviz.widget._app import Panel
from hookviz.widget._as_python import python_of
from hookviz.widget._bundle import built
from hookviz.widget._cards import card_key
from hookviz.widget._cells import cell_name, current_cell, stop_on_interrupt, take_cell
from hookviz.widget._channel_page import ChannelPage
from hookviz.widget._choosing import Choosing, available_devices
from hookviz.widget._compare import CompareRuns
from hookviz.widget._data_set import DataSet
from hookviz.widget._explain import ExplainImage
from hookviz.widget._exporting import Exporting
from hookviz.widget._former import Former
from hookviz.widget._image_input import ImageInput
from hookviz.widget._inspect import InspectPlace
from hookviz.widget._layer_tree import LayerTree
from hookviz.widget._live import LiveView
from hookviz.widget._map_gallery import Figures, MapGallery
from hookviz.widget._part import Handlers, Part
from hookviz.widget._pointing import Pointing
from hookviz.widget._results import Results, return_memory
from hookviz.widget._running import Running, origin_of
from hookviz.widget._session import save_session
from hookviz.widget._still import Still, show
from hookviz.widget._what_if import WhatIf
from hookviz.widget._worker import Cancelled, Task, Worker

_P = TypeVar("_P", bound=Panel)

PANELS: tuple[type[Panel], ...] = (
    InspectPlace,
    ChannelPage,
    CompareRuns,
    ExplainImage,
    WhatIf,
    LiveView,
    DataSet,
    AboutLayer,
)
"""What stands behind tabs beside the gallery, in this order; see `Panel`."""

_STILL_DELAY = 0.5
# Seconds without anything new after which unused memory is given back.
_REST = 2.0
_DOUBLE_PRESS = 1.0  # seconds in which the same press counts once
_PROGRESS_INTERVAL = 0.1
_IMAGE_BYTES_OF_A_CLOSED_APP = 1_000_000
# What is read where no widget can be: in a terminal, or in a page without ipywidgets' front end.
_NO_FRONT_END = (
    "hookviz: the app needs a notebook that shows widgets (run: hookviz lab). "
    "Without one: hookviz.feature_maps(model, image, layers), or hookviz maps on the command line."
)


class Explorer(Part):
    """Shows what each layer of a model answers to a photo. `hookviz.explore` makes one.

    Work is done on threads of the app's own; observers of ``run`` and ``image`` are called there.

    Attributes:
        model: The `LoadedModel`. Set it to a module, a name or a LoadedModel.
        layers: Names of the ticked layers. Set it to any selectors of `select_layers`.
        image: The `Picture`, or None. Set it to anything that `read_image` takes.
        run: The last `Run`, or None. Set it to a run made elsewhere to show that.
        figures: Mapping from label to matplotlib Figure of what is shown, drawn on access.
        edits: What is changed in the model while it runs, as in `feature_maps`; () for nothing. Set
            it: the panel What if lists it, and results so far are stale.
        auto_run: Whether every change of layers or image starts a run.
        pin: The place that is pinned: ``key`` ("layer#call"), ``channel``, ``y``, ``x`` and what
            stands there; {} for none.
        channel: The channel that has a page: ``key`` and ``channel``; {} for none.
        region: The region of the photo that is marked: left, top, right, bottom in its pixels,
            right and bottom past the last one; [] for none.
        centers: Where places lie in the network's input, by card, for the page's outlines.
        cell: Under which name the page keeps the choices for another run of the cell; "" for none.
        former: The choices before, which the page offers: ``text``; {} for none.
        status: What is going on: ``state``, ``text``, ``done``, ``total``, ``outcome``.
        tree: The `LayerTree`.
        image_input: The `ImageInput`.
        gallery: The `MapGallery`.
    """

    _esm = built("app.min.js")
    _css = built("app.min.css")

    # References that every host's page can follow (not ipywidgets' own, which Jupyter alone can).
    tree: TraitType[LayerTree, LayerTree] = anywidget.WidgetTrait().tag(sync=True)
    image_input: TraitType[ImageInput, ImageInput] = anywidget.WidgetTrait().tag(sync=True)
    gallery: TraitType[MapGallery, MapGallery] = anywidget.WidgetTrait().tag(sync=True)
    panels: traitlets.List[Any] = traitlets.List().tag(sync=True)
    model_info = traitlets.Dict().tag(sync=True)
    devices = traitlets.List(traitlets.Unicode()).tag(sync=True)
    device = traitlets.Unicode().tag(sync=True)
    status: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    why_not = traitlets.Unicode().tag(sync=True)
    why_no_export = traitlets.Unicode().tag(sync=True)
    predictions = traitlets.Dict().tag(sync=True)
    export_result = traitlets.Dict().tag(sync=True)
    auto_run = traitlets.Bool(False).tag(sync=True)
    pin = traitlets.Dict().tag(sync=True)
    channel = traitlets.Dict().tag(sync=True)
    region: traitlets.List[Any] = traitlets.List().tag(sync=True)
    centers = traitlets.Dict().tag(sync=True)
    photo = traitlets.Dict().tag(sync=True)
    cell = traitlets.Unicode().tag(sync=True)
    former = traitlets.Dict().tag(sync=True)
    max_bytes = traitlets.Int(MAX_BYTES).tag(sync=True)

    model = traitlets.Any(allow_none=True)
    layers = traitlets.Any()
    image = traitlets.Any(allow_none=True)
    run = traitlets.Any(allow_none=True)
    edits = traitlets.Any(())

    def __init__(self, **traits: Any) -> None:
        self.results = Results()
        self.parts: tuple[Part, ...] = ()
        self._panels: list[Panel] = []
        self._views: set[str] = set()
        self._still = Still()
        self._shown_model: LoadedModel | None = None
        self._shown_run: Run | None = None
        self._model_before: weakref.ref[LoadedModel] | None = None
        self.jobs = Worker("hookviz-run", self._job_failed)
        self._begun = "", 0.0
        self.running = Running(self)
        self.choosing = Choosing(self)
        self.exporting = Exporting(self)
        self.pointing = Pointing(self)
        self.remembering = Former(self)
        tree, image_input, gallery = LayerTree(), ImageInput(), MapGallery()
        self._panels = [panel(self) for panel in PANELS]
        self.parts = (tree, image_input, gallery, *self._panels)
        super().__init__(
            tree=tree,
            image_input=image_input,
            gallery=gallery,
            panels=[[p.title, f"anywidget:{p.model_id}", p.beside] for p in self._panels],
            devices=available_devices(),
            status={"state": "idle", "text": "Ready."},
            layers=[],
            cell=cell_name(cell := current_cell()),
            **traits,
        )
        self.show_results()
        take_cell(self, cell)

    # ── what Python sets

    @traitlets.validate("model")
    def _check_model(self, proposal: Any) -> LoadedModel | None:
        given = proposal["value"]
        if given is None or isinstance(given, LoadedModel):
            return given
        return load_model(given, device=self.device or "auto", progress=False)

    @traitlets.validate("layers")
    def _check_layers(self, proposal: Any) -> list[str]:
        given = proposal["value"] or ()
        if self.model is None or not given:
            return [given] if isinstance(given, str) else list(given)
        wanted = set(select_layers(self.model.module, given).values())
        return [name for name in self.tree.names if name in wanted]

    @traitlets.validate("edits")
    def _check_edits(self, proposal: Any) -> tuple[Edit, ...]:
        given: Any = proposal["value"]
        each = (given,) if isinstance(given, Edit) else tuple(given or ())
        if self.model is None:
            if each:
                raise HookvizError("Edits are of a model, and the app has none.")
            return ()
        layers = edit(self.model.module, *each).layers
        return tuple(one.at(names) for one, names in zip(each, layers, strict=True))

    @traitlets.validate("image")
    def _check_image(self, proposal: Any) -> Any:
        # The input reads it; should that fail, the error belongs to who set it.
        self.image_input.value = proposal["value"]
        return self.image_input.value

    @property
    def options(self) -> GridOptions:
        """How grids are drawn. Set it to change the view; the model does not run again."""
        return self.gallery.options

    @options.setter
    def options(self, options: GridOptions) -> None:
        self.gallery.options = options

    @property
    def figures(self) -> Figures:
        """What is shown as matplotlib Figures by label, drawn when they are asked for."""
        return self.gallery.figures

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
        self.jobs.forget("auto")
        if not self.jobs.cancel():
            return False
        self.set_status("Cancelling …", "cancelling")
        return True

    def wait(self, timeout: float | None = 60.0) -> bool:
        """Waits until images are read, no job is going and the grids near the screen are drawn.

        Args:
            timeout: Seconds for each of these.

        Returns:
            Whether that came about.

        Raises:
            KeyboardInterrupt: The kernel was interrupted; the job that was going is cancelled.
        """
        try:
            waits = [part.wait for part in (self.image_input, self.jobs, self.gallery)]
            waits += [panel.wait for panel in self._panels]
            return all(wait(timeout) for wait in waits)
        except KeyboardInterrupt:
            self.cancel()
            raise

    def export(self, folder: str | Path = "hookviz_exports", **options: Any) -> Any:
        """Exports the last run, see `hookviz.run.Run.export`.

        Raises:
            ExportError: Nothing was run yet, or the files cannot be written.
        """
        if self.run is None:
            raise ExportError("There is nothing to export.", remedy="Run the model first.")
        return self.run.export(folder, **{"options": self.options, **options})

    def compare(self, *runs: Run, titles: Sequence[str] = ()) -> None:
        """Shows runs side by side in Compare; the first is the reference.

        Args:
            *runs: Two or more, of any models and photos.
            titles: What sets each apart, for example ("before", "after").

        Raises:
            HookvizError: They are fewer than two, or too large to be kept together.
        """
        self._panel(CompareRuns).show(*runs, titles=titles)

    @property
    def comparison(self) -> Comparison | None:
        """What Compare shows, as `hookviz.compare` gives it; None where nothing is compared."""
        return self._panel(CompareRuns).comparison

    def open_survey(self, folder: str | Path) -> Survey:
        """Shows a survey in Data set: its channels, and the crops that move each most.

        Args:
            folder: What `hookviz.survey` was given as ``out``.

        Returns:
            The survey, as `hookviz.open_survey` gives it.

        Raises:
            SurveyError: There is no survey in it, or it is damaged; what was shown stays.
        """
        found = self._panel(DataSet).show(folder)
        self.send({"type": "show-tab", "tab": "data set"})
        return found

    @property
    def survey(self) -> Survey | None:
        """What Data set shows; None where no survey is open."""
        return self._panel(DataSet).survey

    @property
    def what_if(self) -> WhatIf:
        """The panel What if."""
        return self._panel(WhatIf)

    @property
    def explaining(self) -> ExplainImage:
        """The panel Explain."""
        return self._panel(ExplainImage)

    def _panel(self, kind: type[_P]) -> _P:
        return next(panel for panel in self._panels if isinstance(panel, kind))

    def as_python(self) -> str:
        """The source of one cell that gives the same figures without the app.

        Returns:
            Python that ends with ``figures``, a dict with the labels of ``app.figures``. Where it
            needs a module, an image or a file that no text can name, its first lines say so.

        Raises:
            HookvizError: Model, image or layers are not chosen yet.
        """
        return python_of(self)

    def save(self, path: str | Path) -> Path:
        """Writes the app's choices to a file that ``explore(path)`` opens again.

        It holds choices, no tensors: how the model is loaded, the image (by its path where it has
        one, else its bytes), preprocessing, layers, edits and view.

        Args:
            path: A name that ends with ".hookviz.json"; an older file is replaced.

        Returns:
            The file's absolute path.

        Raises:
            ExportError: The name is another one, or the file cannot be written.
        """
        return save_session(self, path)

    def open(self) -> None:
        """Brings the widget up, also after `close`.

        A closed app comes back with its image where that was small, and with its model where that
        is in use elsewhere.
        """
        for part in self.parts:
            part.lock = self.lock
            if part.comm is None:
                part.open()
            part.shows_alert = self._show_alert
        self.jobs.reopen()
        super().open()
        self.gallery.weights_of = lambda layer: layer_weights(self.model.module, layer)
        self.gallery.after_painting = self._renew_still
        self.gallery.observe(self.refresh_panels, "current_key")
        self.observe(self.refresh_panels, ["pin", "region", "channel", "run", "edits"])
        self.tree.observe(self._on_ticks, ["selected", "hidden_calls"])
        self.image_input.observe(self._on_image, "value")
        self.image_input.observe(self._expire_results, ["choice", "own"])
        self.observe(self._on_layers_set, "layers")
        self.observe(self._expire_results, ["image", "edits"])
        self.observe(self._on_model_set, "model")
        self.observe(self._on_run_set, "run")
        self.what_if.observe(self.explaining.note_edits, "edits")
        for part, names in (
            (self, ["model", "image", "layers", "pin", "region", "auto_run"]),
            (self.tree, ["hidden_calls"]),
            (self.image_input, ["choice", "own"]),
            (self.gallery, ["options", "cards"]),
            (self.what_if, ["edits", "run_edited"]),
        ):
            part.observe(self.remembering.soon, names)
        stop_on_interrupt(self)
        if self._model_before is not None:
            self.model, self._model_before = self._model_before(), None
            self.show_results()

    def close(self) -> None:
        """Ends the threads, takes the widget away and lets go of all that it held."""
        opened = self.comm is not None
        self.jobs.close()
        self.exporting.close()
        for part in self.parts:
            part.close()
        super().close()
        self.results.clear()
        self._still = Still()
        if not opened:
            return
        # A notebook's Out[…] keeps each app that was ever displayed: nothing may be left in it.
        model, image = self.model, self.image
        if model is not None:
            self._model_before = weakref.ref(model)
        self.choosing = Choosing(self)
        self.model = self.run = self._shown_model = self._shown_run = None
        self.pin, self.channel, self.region, self.photo, self.predictions = {}, {}, [], {}, {}
        self.centers, self.former = {}, {}
        self.remembering = Former(self)
        self.pointing = Pointing(self)
        self.tree.show(None)
        self.show_model()
        if (
            image is not None
            and 3 * image.size[0] * image.size[1] + len(image.data) > _IMAGE_BYTES_OF_A_CLOSED_APP
        ):
            self.image = None
        del model, image
        return_memory()

    def _ipython_display_(self, **_options: Any) -> None:
        if self.comm is None:
            self.open()
        data, metadata = self._repr_mimebundle_() or ({}, {})
        data = {**data, "text/plain": _NO_FRONT_END}
        show(data, metadata=metadata)
        self._still.place()
        if self.running.promised:
            # The cell that asked for a run ends with its result, so that a notebook that is
            # executed without a page has it, too.
            self.running.promised = False
            self.wait(None)
            self._update_still()

    # ── what the page asks

    def _set_auto_run(self, on: bool) -> None:
        self.auto_run = on
        self.running.soon()

    def _list_models(self, search: str = "") -> None:
        current = self.model.name if self.model is not None else ""
        names = [[name, self.choosing.is_here(name)] for name in self.choosing.names(search)]
        self.send({"type": "models", "search": search, "names": names, "current": current})

    def _list_weights(self, model: str) -> None:
        choices = self.choosing.weights(model)
        self.send({"type": "weights", "model": model, "choices": choices})

    def _act(self, do: str) -> None:
        self.clear_problem()
        match do.split():
            case ["retry-cpu"]:
                self.choosing.move("cpu", then_run=True)
            case ["untrained"]:
                self.choosing.load_again(weights="none")
            case ["retry"]:
                self.choosing.load_again()
            case ["download-full"] if self.model is not None:
                self.choosing.load(self.model.name, "DEFAULT")
            case ["size", height, width] if height.isdecimal() and width.isdecimal():
                self.image_input.set_size(int(height), int(width))
            case ["own-size"]:
                self.image_input.choice = "own"

    def _view_opened(self, view: str) -> None:
        # Views of a page that was loaded again never said goodbye: all that live answer anew.
        self._views = {view}
        self.send({"type": "roll-call"})

    def _view_is_here(self, view: str) -> None:
        self._views.add(view)

    def _view_closed(self, view: str) -> None:
        self._views.discard(view)
        if not self._views:
            self.close()

    def handlers(self) -> Handlers:
        """What the page asks."""
        return {
            **super().handlers(),
            **self.pointing.handlers(),
            **self.remembering.handlers(),
            "first": self.gallery.keep_first,
            "run": self.start_run,
            "cancel": self.cancel,
            "auto": self._set_auto_run,
            "models": self._list_models,
            "weights": self._list_weights,
            "load": self.choosing.load,
            "device": self.choosing.move,
            "action": self._act,
            "as-python": lambda: self.send({"type": "python", "text": self.as_python()}),
            "export": self.exporting.start,
            "zip": partial(self.exporting.start, zipped=True),
            "file-piece": self.exporting.send_piece,
            "page-size": self.exporting.tell_page_size,
            "view-open": self._view_opened,
            "view-here": self._view_is_here,
            "view-closed": self._view_closed,
        }

    # ── state on the page

    def begin(self, state: str, text: str, task: Task, **shown: Any) -> bool:
        """Starts a job and states it.

        Args:
            state: "loading", "running" or "exporting".
            text: One short sentence.
            task: What to do on the app's thread.
            **shown: See `set_status`.

        Returns:
            Whether it was started; False while another job is going.
        """
        with self.lock:  # or a quick job's end would be stated before its beginning
            if not self.jobs.start(state, task):
                return False
            self._begun = text, time.monotonic()
            self.set_status(text, state, **shown)
        return True

    def ask(self, state: str, text: str, task: Task) -> bool:
        """Starts what a person asked for, see `begin`; a double press is one.

        Returns:
            Whether it was started.

        Raises:
            HookvizError: Another job is going.
        """
        with self.lock:
            if self.begin(state, text, task):
                return True
            begun, at = self._begun
            if text != begun or time.monotonic() - at > _DOUBLE_PRESS:
                raise HookvizError("Something else is going on: wait for it, or cancel it.")
        return False

    def set_status(self, text: str, state: str | None = None, **shown: Any) -> None:
        """States what is going on.

        Args:
            text: One short sentence.
            state: "idle", "loading", "running", "cancelling" or "exporting"; None keeps it.
            **shown: How much is ``done``, of which ``total`` (0 where that is not known), counted
                in which ``unit`` ("layers", "files", "bytes"); the ``outcome`` of the last job
                ("ok", "failed" or "cancelled"; "" while one is going).
        """
        with self.lock:
            if state is None and self.jobs.cancelled:
                return  # "Cancelling …" stays until the job has ended
            state = state or self.status["state"]
            plain = {"done": 0, "total": 0, "unit": "", "outcome": ""}
            self.status = {"state": state, "text": text, **plain, **shown}

    def end(self, text: str, outcome: str = "ok") -> None:
        """States that a job has ended, and how: "ok", "failed" or "cancelled"."""
        self.set_status(text, "idle", outcome=outcome)

    def progress(self, verb: str, unit: str) -> Callable[[int, int, str], None]:
        """What states how far a job is, at most ten times a second.

        Args:
            verb: What is done with each file, for example "Exporting".
            unit: What is counted.

        Returns:
            A function of how much is done, of how much, and the present file.
        """
        shown_at = 0.0

        def show(done: int, total: int, file: str) -> None:
            nonlocal shown_at
            if time.monotonic() - shown_at >= _PROGRESS_INTERVAL:
                shown_at = time.monotonic()
                self.set_status(f"{verb} {file} …", done=done, total=total, unit=unit)

        return show

    def show_results(self) -> None:
        """Shows what was captured of the ticked layers, which are still waited for, and why."""
        with self.lock:
            tree, shown, origins, filters = self.tree, [], {}, set()
            waiting: dict[str, tuple[str, str]] = {}
            types, hidden = {row[0]: row[1] for row in tree.rows}, set(tree.hidden_calls)
            for name in tree.selected:
                if found := self.results.get(name):
                    origins[name] = found.origin
                    shown += [a for a in found.activations if card_key(name, a.call) not in hidden]
                    if has_filters(self.model.module.get_submodule(name)):
                        filters.add(name)
                else:
                    reason = _sentence(tree.facts.get(name, {}).get("r", ""))
                    text = reason or self.running.waiting.get(name, "Run to see it.")
                    waiting[name] = (types[name], text)
            first = "Tick layers on the left, then press Run."
            if self.image is None:
                first = "Drop a photo on the app, or try a sample. Then tick layers and press Run."
            self.gallery.empty = first
            self.gallery.show(
                shown, waiting, origins, self.results.stale, filters, self.running.order
            )
            self.why_not = self.running.why_not()
            self.why_no_export = self.exporting.why_not()
            self.pointing.refresh()
            self.refresh_panels()

    def refresh_panels(self, change: Any = None) -> None:  # noqa: ARG002 - an observer, too
        """Has every panel show what there is now."""
        for panel in self._panels:
            with self.showing_problems():
                panel.refresh()

    def take_run(self, run: Run) -> None:
        """Makes a run the last one and shows it."""
        with self.lock:
            self.results.limit(self.tree.selected)
            self.show_results()
            self._shown_run = run
            self.run = run
            self.show_predictions(run)

    def show_predictions(self, run: Run | None) -> None:
        """States the predictions of a run; None for none."""
        if run is None:
            self.predictions = {}
            return
        found = run.predictions
        items = [[label, share] for _, label, share in found.items]
        reason = "" if run.model.partial else found.summary or found.reason
        if items and not run.model.trained:
            reason = "Random weights: these predictions mean nothing."
        if run.edits:
            reason = f"Edited ({'; '.join(map(str, run.edits))}). {reason}".strip()
        self.predictions = {"items": items, "reason": reason}

    def ask_large(self, question: str) -> None:
        """Asks before a run that needs much memory."""
        self.send({"type": "ask-large", "question": question})
        self.set_status(f"{question} Waiting for confirmation.", "idle")

    def show_model(self) -> None:
        """States the model, its weights and its device."""
        model: LoadedModel | None = self.model
        if model is None:
            self.model_info, self.device = {}, ""
        else:
            self.model_info = {
                "name": model.name,
                "weights": "" if not model.trained and model.weights == "none" else model.weights,
                "trained": model.trained,
                "note": "" if model.note.startswith("UNTRAINED") else model.note,
                "partial": self.choosing.full_size(model),
                "documentation": model.documentation,
            }
            name = str(model.device)
            self.device = "cuda" if name == "cuda:0" and name not in self.devices else name
            if self.device not in self.devices:
                self.devices = [*self.devices, self.device]

    def swap_model(self, model: LoadedModel) -> None:
        """Takes the same model on another device: what was captured stays."""
        with self.lock:
            self._shown_model = model
            self.model = model
            self.show_model()

    def _job_failed(self, error: BaseException) -> None:
        if isinstance(error, RunCancelled):
            self.end("Cancelled.", "cancelled")
        else:
            self.end("Failed.", "failed")
            self.show_problem(error)
        self.running.waiting = {}
        self.show_results()

    # ── changes

    def _on_model_set(self, _change: Any) -> None:
        with self.lock:
            model: LoadedModel | None = self.model
            if model is not None and model is self._shown_model:
                return  # what it brings about is done already
            self._shown_model = model
            if self.jobs.busy == "running":
                self.jobs.cancel()  # what it would give is of the model before
            self.results.clear()
            self.edits = ()
            self.predictions = {}
            self.running.order, self.running.waiting, self.running.sized = {}, {}, False
            self.running.shapes = {}
            self.tree.show(model)
            if model is not None:
                self.choosing.given = model if model.passed_in else self.choosing.given
                with contextlib.suppress(Exception):
                    self.tree.selected = self._check_layers({"value": self.layers})
                self.layers = list(self.tree.selected)
                self.image_input.set_preprocess(model.preprocess)
            if self._shown_run is not None and self._shown_run.model is not model:
                self._shown_run = self.run = None
            self.show_model()
            self.show_results()
            self.running.expect_soon()

    def _on_ticks(self, _change: Any) -> None:
        with self.showing_problems(), self.lock:
            if self.layers != self.tree.selected:
                self.layers = list(self.tree.selected)
            self.results.limit(self.tree.selected)
            self.show_results()
            if any(name not in self.results for name in self.tree.selected):
                self.running.soon()

    def _on_layers_set(self, _change: Any) -> None:
        if self.model is not None and self.tree.selected != self.layers:
            self.tree.selected = list(self.layers)

    def _on_image(self, _change: Any) -> None:
        self.image = self.image_input.value

    def _expire_results(self, _change: Any = None) -> None:
        with self.showing_problems(), self.lock:
            self.results.expire()
            self.predictions = {}
            if self.jobs.busy != "running":
                self.running.waiting = {}
            self.show_results()
            self.running.expect_soon()
            self.running.soon()

    def _on_run_set(self, _change: Any) -> None:
        with self.lock:
            run: Run | None = self.run
            if run is not None and run is self._shown_run:
                return  # it is shown already
            self._shown_run = run
            self.results.clear()
            if run is None:
                self.predictions = {}
                self.show_results()
                return
            if self.model is not run.model:
                self.model = run.model
            if self.image is not run.image:
                self.image = run.image
            self.edits = run.edits
            origin = origin_of(run.model, run.image, run.input, run.edits)
            self.results.put(run.activations, origin, run)
            self.tree.selected = [name for name in self.tree.names if name in run.layers]
            self.take_run(run)

    # ── the static picture

    def _renew_still(self) -> None:
        """Has the static picture made once all is quiet, and unused memory given back."""
        self.jobs.forget("still")
        self.jobs.later("still", self._update_still, _STILL_DELAY)
        self.return_memory_soon()

    def return_memory_soon(self) -> None:
        """Gives unused memory back to the system once nothing happens any more."""
        self.jobs.forget("memory")
        self.jobs.later("memory", return_memory, _REST)

    def _update_still(self, _cancelled: Cancelled | None = None) -> None:
        if self._still.id is not None and self.run is not None:
            self._still.update(self.gallery.pictures(3))


def _sentence(text: str) -> str:
    """A reason as a sentence of its own."""
    plain = text.strip().rstrip(".")
    return f"{plain[:1].upper()}{plain[1:]}." if plain else ""
