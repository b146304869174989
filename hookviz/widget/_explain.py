"""The panel "Explain": why the model gives what it gives to the image that is shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import traitlets

from hookviz.errors import HookvizError, RunCancelled
from hookviz.explanation import Explanation, Method, explain, methods
from hookviz.images import Picture
from hookviz.models import LoadedModel
from hookviz.widget._app import Panel
from hookviz.widget._bundle import built
from hookviz.widget._part import Handlers
from hookviz.widget._worker import Cancelled

_CLASSES = 12
_WIDEST = 520
_LIKELIEST = "the likeliest class"


class ExplainImage(Panel):
    """Explains the image in use by the ticked layers, or by the network's input.

    Attributes:
        methods: Of each method: its name, title, paper, whether it explains layers, whether a
            target has an influence on it, and its options by name with their defaults as texts.
        method: The name of the chosen one.
        target: What is explained, as it was typed; "" is the likeliest class.
        pinned: The pinned place as a target; "" for none.
        why_not: Why nothing can be explained now, in words; "" where something can.
        found: The last explanation: ``title``, ``targets``, ``seconds``, ``image``, whether it is
            ``stale`` (of an earlier image), ``figures`` (label and notes of each), ``missing``.
    """

    title = "Explain"

    _esm = built("panel_explain.min.js")
    _css = built("panel_explain.min.css")

    methods: traitlets.List[Any] = traitlets.List().tag(sync=True)
    method = traitlets.Unicode("gradcam").tag(sync=True)
    target = traitlets.Unicode().tag(sync=True)
    pinned = traitlets.Unicode().tag(sync=True)
    why_not = traitlets.Unicode().tag(sync=True)
    found = traitlets.Dict().tag(sync=True)

    def __init__(self, app: Any, **traits: Any) -> None:
        self._explanation: Explanation | None = None
        self._look: dict[str, Any] = {}
        listed = [
            [m.name, m.title, m.paper, m.of_layers, m.targeted, _texts(m.options)]
            for m in methods()
        ]
        super().__init__(app, methods=listed, **traits)

    def refresh(self) -> None:
        """See `Panel`."""
        with self.app.lock:
            explained, model = self._explanation, self.app.model
            if explained and (model is None or explained.model.module is not model.module):
                self._explanation, self.found = None, {}
            elif self.found:
                stale = explained is not None and explained.image is not self.app.image
                self.found = {**self.found, "stale": stale}
            pin = self.app.pin
            self.pinned = (
                f"channel {pin['channel']} of {pin['key'].rpartition('#')[0]}"
                f" at {pin['y']}, {pin['x']}"
                if pin
                else ""
            )
            self.why_not = self._why_not(self._chosen)

    def close(self) -> None:
        """Takes the panel away and lets go of what it held."""
        super().close()
        self._explanation, self.found, self._look = None, {}, {}

    @property
    def explanation(self) -> Explanation | None:
        """The last explanation."""
        return self._explanation

    @property
    def _chosen(self) -> Method:
        return next(m for m in methods() if m.name == self.method)

    def _why_not(self, method: Method) -> str:
        if self.app.model is None:
            return "Choose a model."
        if self.app.image is None:
            return "Choose an image."
        if method.of_layers and not self.app.tree.selected:
            return "Tick the layers that are to be explained."
        return ""

    # ── what the page asks

    def _choose(self, method: str) -> None:
        with self.app.lock:
            if method not in [m.name for m in methods()]:
                raise HookvizError(f"There is no method {method!r:.80}.")
            self.method = method
            self.refresh()

    def _explain(self, options: dict[str, Any], target: str = "") -> None:
        """Starts an explanation; what does not suit is said at its field."""
        app, method = self.app, self._chosen
        app.clear_problem()
        self.alert = {}
        if why_not := self._why_not(method):
            raise HookvizError(why_not)
        try:
            settings = method.settings(
                {name: _value(name, str(text)) for name, text in options.items() if text}
            )
        except HookvizError as error:
            self.show_problem(error, field="options")
            return
        wanted = " ".join(target.split())
        layers = list(app.tree.selected) if method.of_layers else None
        model, image = app.model, app.image
        how = app.image_input.preprocessing

        def task(cancelled: Cancelled) -> None:
            self._found(model, image, how, layers, wanted, method, settings, cancelled)

        if app.begin("running", f"{method.title} …", task):
            self.target = wanted

    def _found(
        self,
        model: LoadedModel,
        image: Picture,
        how: Any,
        layers: list[str] | None,
        target: str,
        method: Method,
        settings: dict[str, Any],
        cancelled: Cancelled,
    ) -> None:
        """Explains, on the app's thread."""
        app = self.app
        told = app.progress(method.title, "steps")

        def progress(done: int, total: int, seconds: float) -> None:
            left = f"({_time_text(seconds)} left)" if math.isfinite(seconds) else ""
            told(done, total, left)

        try:
            found = explain(
                model,
                image,
                layers,
                target=None if target in ("", _LIKELIEST) else target,
                method=method.name,
                preprocess=how,
                progress=progress,
                cancelled=cancelled,
                **settings,
            )
        except RunCancelled:
            app.end("Cancelled.", "cancelled")
            return
        except HookvizError as error:
            self.show_problem(error, field="target")
            app.end(f"{method.title} failed.", "failed")
            return
        with app.lock:
            if app.model is not model:
                return
            self._explanation = found
            self._paint()
            app.end(f"{method.title} took {found.seconds:.1f} s.")

    def _paint(self) -> None:
        """Draws the figures for the width and theme of the page, and states them."""
        explained = self._explanation
        if explained is None:
            return
        figures, pictures = [], []
        look = {**self._look, "width": min(_WIDEST, self._look.get("width", _WIDEST))}
        for record in explained.activations:
            drawing = explained.drawing(
                record.layer or None, record.call, options=explained.options(**look)
            )
            pictures.append(drawing.png_bytes())
            figures.append({"label": record.label, "notes": [drawing.scale, *drawing.notes]})
        self.found = {
            "title": f"{explained.method.title} ({explained.method.paper})",
            "targets": [
                f"{name}: {_number(score)}"
                for name, score in zip(explained.targets, explained.scores, strict=True)
            ],
            "seconds": round(explained.seconds, 2),
            "image": explained.image.name,
            "stale": explained.image is not self.app.image,
            "figures": figures,
            "missing": [f"{name}: {why}" for name, why in explained.missing.items()],
        }
        self.send({"type": "figures", "ratio": look.get("dpi", 100) / 100}, buffers=pictures)

    def _take_look(self, width: int, ratio: float = 1.0, style: str = "light") -> None:
        ratio = min(3.0, max(1.0, ratio))
        self._look = {
            "width": int(min(_WIDEST * ratio, max(200, width))),
            "dpi": 100.0 * ratio,
            "style": "dark" if style == "dark" else "light",
        }
        self.app.jobs.later("explanation", lambda _cancelled: self._paint())

    def _list_classes(self, search: str = "") -> None:
        """Tells the classes with a text in their name, the predicted ones first."""
        model: LoadedModel | None = self.app.model
        names = list(model.categories) if model is not None else []
        text = search.strip().lower()
        fit = [name for name in names if text in name.lower()]
        fit.sort(key=lambda name: not name.lower().startswith(text))
        self.send({"type": "classes", "search": search, "names": fit[:_CLASSES]})

    def _export(self, zipped: bool = True) -> None:
        explained = self._explanation
        if explained is None:
            raise HookvizError("There is no explanation to export.")
        self.app.exporting.start_with(
            explained,
            list(explained.activations),
            {"options": explained.options(style="light"), "what": ("grids", "values", "input")},
            None if zipped else Path("hookviz_exports"),
        )

    def handlers(self) -> Handlers:
        """What the page asks."""
        return {
            **super().handlers(),
            "method": self._choose,
            "explain": self._explain,
            "classes": self._list_classes,
            "look": self._take_look,
            "export": self._export,
        }


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    return {name: "" if value is None else str(value) for name, value in options.items()}


def _value(name: str, text: str) -> Any:
    """An option as it was typed: a number where it is one, else the text itself."""
    plain = text.strip()
    for kind in (int, float):
        try:
            return kind(plain)
        except ValueError:
            continue
    if name == "channels" and plain == "all":
        return None
    return plain


def _time_text(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _number(value: float) -> str:
    return f"{value:.6g}".replace("-", "−")
