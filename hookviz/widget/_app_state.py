"""What the app shows: its traits, and how results and reasons get onto the page.

In: results, models, runs. Out: the state that the page follows. Must not know: messages of the
page, how anything is loaded, run or drawn.
"""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from hookviz.images import MAX_BYTES
from hookviz.models import LoadedModel
from hookviz.run import Run
from hookviz.widget._bundle import built
from hookviz.widget._cards import card_key
from hookviz.widget._choosing import Choosing
from hookviz.widget._exporting import Exporting
from hookviz.widget._image_input import ImageInput
from hookviz.widget._jobs import Worker
from hookviz.widget._layer_tree import LayerTree
from hookviz.widget._map_gallery import Figures, MapGallery
from hookviz.widget._part import Part
from hookviz.widget._results import Results
from hookviz.widget._running import Running
from hookviz.widget._shapes import Expected

__all__ = ["AppState"]

_NOT_YET = "Run to see it."


class AppState(Part):
    """The app's state and what is shown of it; `Explorer` is the app itself."""

    results: Results
    expected: Expected
    jobs: Worker
    running: Running
    choosing: Choosing
    exporting: Exporting

    _esm = built("app.min.js")
    _css = built("app.min.css")

    # References that every host's page can follow (not ipywidgets' own, which Jupyter alone can).
    tree: traitlets.TraitType[LayerTree, LayerTree] = anywidget.WidgetTrait().tag(sync=True)
    image_input: traitlets.TraitType[ImageInput, ImageInput] = anywidget.WidgetTrait().tag(
        sync=True
    )
    gallery: traitlets.TraitType[MapGallery, MapGallery] = anywidget.WidgetTrait().tag(sync=True)
    model_info = traitlets.Dict().tag(sync=True)
    devices = traitlets.List(traitlets.Unicode()).tag(sync=True)
    device = traitlets.Unicode().tag(sync=True)
    status: traitlets.Dict[str, Any] = traitlets.Dict({"state": "idle", "text": "Ready."}).tag(
        sync=True
    )
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
    figures: traitlets.Any = traitlets.Any()

    def start_run(self, *, anyway: bool = False) -> bool:
        """Starts a run; see `Explorer`."""
        return self.running.start(anyway=anyway)

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
        status: dict[str, Any] = {"state": now, "text": text, "done": done, "total": total}
        self.status = status
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
                waiting[name] = (types.get(name, ""), (reason and _sentence(reason)) or _NOT_YET)
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
        self.put_quietly("run", run)
        found = run.predictions
        items = [[label, share] for _, label, share in found.items]
        reason = found.summary or found.reason
        if items and not run.model.trained:
            reason = "Random weights: these predictions mean nothing."
        self.predictions = {"items": items, "reason": reason}
        self.figures = Figures(self.gallery)

    def ask_large(self, question: str) -> None:
        """Asks before a run that needs much memory."""
        self.send({"type": "ask-large", "question": question})
        self.say(f"{question} Asked first.", "idle")

    def put_quietly(self, name: str, value: Any) -> None:
        """Sets a trait whose effects are brought about already; observers elsewhere hear of it.

        Args:
            name: "run" or "model".
            value: Its new value.
        """
        self._quiet = name
        try:
            setattr(self, name, value)
        finally:
            self._quiet = ""

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
                "documentation": model.documentation,
                "task": model.task,
            }
            name = str(model.device)
            known = {d: d for d in self.devices} | {"cuda:0": "cuda"}
            self.device = name if name in self.devices else known.get(name, name)
            if self.device not in self.devices:
                self.devices = [*self.devices, self.device]
        self.refresh_reasons()


def _sentence(text: str) -> str:
    """A reason as a sentence of its own."""
    plain = text.strip().rstrip(".")
    return f"{plain[:1].upper()}{plain[1:]}." if plain else ""
