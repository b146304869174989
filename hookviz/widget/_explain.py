"""The panel "Explain": why the model gives what it gives to the image that is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import traitlets

from hookviz.errors import HookvizError, RenderError
from hookviz.explanation import Explanation, Method, Progress, explain, methods
from hookviz.models import LoadedModel
from hookviz.run import Run, run_model
from hookviz.widget import _attends
from hookviz.widget._app import Panel
from hookviz.widget._attends import Attends
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
            ``stale`` (of an earlier image), ``figures`` (label and notes of each), ``missing``;
            of attention also ``query``, see `Attends.public`.
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
        self._attends: Attends | None = None
        self._look: dict[str, Any] = {}
        listed = [
            [m.name, m.title, m.paper, m.of_layers, m.targeted, _texts(m.options)]
            for m in methods()
        ]
        listed.append([_attends.NAME, _attends.TITLE, _attends.PAPER, True, False, {}])
        super().__init__(app, methods=listed, **traits)

    def refresh(self) -> None:
        """See `Panel`."""
        with self.app.lock:
            shown, model = self._shown, self.app.model
            if shown and (model is None or shown.model.module is not model.module):
                self._explanation, self._attends, self.found = None, None, {}
            elif self.found:
                self.found = {**self.found, "stale": self._is_stale()}
            pin = self.app.pin
            self.pinned = (
                f"channel {pin['channel']} of {pin['key'].rpartition('#')[0]}"
                f" at {pin['y']}, {pin['x']}"
                if pin
                else ""
            )
            self.why_not = self._why_not(self._of_layers)

    def close(self) -> None:
        """Takes the panel away and lets go of what it held."""
        super().close()
        self._explanation, self._attends, self.found, self._look = None, None, {}, {}

    @property
    def explanation(self) -> Explanation | None:
        """The last explanation."""
        return self._explanation

    @property
    def _shown(self) -> Explanation | Run | None:
        """What the figures are of."""
        return self._explanation if self._attends is None else self._attends.run

    def _is_stale(self) -> bool:
        shown = self._shown
        edited = isinstance(shown, Run) and shown.edits != self.app.edits
        return shown is not None and (shown.image is not self.app.image or edited)

    @property
    def _chosen(self) -> Method:
        return next(m for m in methods() if m.name == self.method)

    @property
    def _of_layers(self) -> bool:
        return self.method == _attends.NAME or self._chosen.of_layers

    def _why_not(self, of_layers: bool) -> str:
        if self.app.model is None:
            return "Choose a model."
        if self.app.image is None:
            return "Choose an image."
        if of_layers and not self.app.tree.selected:
            return "Tick the layers that are to be explained."
        return ""

    # ── what the page asks

    def _choose(self, method: str) -> None:
        with self.app.lock:
            if method not in [m.name for m in methods()] + [_attends.NAME]:
                raise HookvizError(f"There is no method {method!r:.80}.")
            self.method = method
            self.refresh()

    def _explain(self, options: dict[str, Any], target: str = "") -> None:
        """Starts an explanation; what does not suit is said at its field."""
        app = self.app
        self.alert = {}
        if why_not := self._why_not(self._of_layers):
            raise HookvizError(why_not)
        if self.method == _attends.NAME:
            self._attend()
            return
        method = self._chosen
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

        def work(progress: Progress, cancelled: Cancelled) -> str:
            found = explain(
                model,
                image,
                layers,
                target=None if wanted in ("", _LIKELIEST) else wanted,
                method=method.name,
                preprocess=how,
                progress=progress,
                cancelled=cancelled,
                **settings,
            )
            with app.lock:
                if app.model is model:
                    self._explanation, self._attends = found, None
                    self._paint()
            return f"{method.title} took {found.seconds:.1f} s."

        if self.compute(method.title, "steps", work, field="target"):
            self.target = wanted

    # ── attention

    def _attend(self) -> None:
        """Runs the model for the attention of the ticked layers and of all in them."""
        app = self.app
        model, image, layers = app.model, app.image, list(app.tree.selected)
        how, edits = app.image_input.preprocessing, app.edits

        def work(_progress: Progress, cancelled: Cancelled) -> str:
            run = run_model(
                model, image, layers, preprocess=how, edits=edits, attention=True,
                cancelled=cancelled,
            )  # fmt: skip
            run = replace(
                run, activations=tuple(a for a in run.activations if a.kind == "attention")
            )
            found = Attends(run)
            with app.lock:
                if app.model is model:
                    before, self._attends, self._explanation = self._attends, found, None
                    if before is not None:
                        found.place, found.heads = before.place, before.heads
                    self.send({"type": "photo"}, buffers=[found.photo()])
                    self._paint()
            count = len(found.records)
            return f"The attention of {count} layer{'s' * (count > 1)} took {run.seconds:.1f} s."

        self.compute(_attends.TITLE, "layers", work, field="target")

    def _ask_query(self, y: float = -1.0, x: float = -1.0) -> None:
        """Takes the patch at a place of the photo as the query; below 0 the class token."""
        with self.app.lock:
            if self._attends is not None:
                self._attends.place = (y, x) if 0 <= y <= 1 and 0 <= x <= 1 else None
                self.found = {**self.found, "query": self._attends.public()}
                self._paint_soon()

    def _choose_heads(self, heads: str) -> None:
        with self.app.lock:
            if heads not in ("each", "mean"):
                raise HookvizError(f"The heads are shown each or as their mean, not {heads!r:.40}.")
            if self._attends is not None:
                self._attends.heads = "mean" if heads == "mean" else "each"
                self._paint_soon()

    def _paint_attention(self, attends: Attends, look: dict[str, Any]) -> None:
        """Draws what each head looks at from the query."""
        run, figures, pictures = attends.run, [], []
        missing = {name: why for name, why in run.missing.items() if name not in run.layers}
        for record in attends.records:
            try:
                drawing = attends.drawing(record, **look)
            except RenderError as error:
                missing[record.label] = error.message
                continue
            pictures.append(drawing.png_bytes())
            figures.append({"label": record.label, "notes": [drawing.scale, *drawing.notes]})
        edited = [f"edited: {'; '.join(map(str, run.edits))}"] if run.edits else []
        self.found = {
            "title": f"{_attends.TITLE} ({_attends.PAPER})",
            "targets": edited,
            "seconds": round(run.seconds, 2),
            "image": run.image.name,
            "stale": self._is_stale(),
            "figures": figures,
            "missing": [f"{name}: {why}" for name, why in missing.items()],
            "query": attends.public(),
        }
        self.send({"type": "figures", "ratio": look.get("dpi", 100) / 100}, buffers=pictures)

    # ── figures

    def _paint_soon(self) -> None:
        self.app.jobs.later("explanation", lambda _cancelled: self._paint())

    def _paint(self) -> None:
        """Draws the figures for the width and theme of the page, and states them."""
        look = {**self._look, "width": min(_WIDEST, self._look.get("width", _WIDEST))}
        if self._attends is not None:
            self._paint_attention(self._attends, look)
            return
        explained = self._explanation
        if explained is None:
            return
        figures, pictures = [], []
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
            "stale": self._is_stale(),
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
        if self._attends is not None:
            self.send({"type": "photo"}, buffers=[self._attends.photo()])
        self._paint_soon()

    def _list_classes(self, search: str = "") -> None:
        """Tells the classes with a text in their name, the predicted ones first."""
        model: LoadedModel | None = self.app.model
        names = list(model.categories) if model is not None else []
        text = search.strip().lower()
        fit = [name for name in names if text in name.lower()]
        fit.sort(key=lambda name: not name.lower().startswith(text))
        self.send({"type": "classes", "search": search, "names": fit[:_CLASSES]})

    def _export(self, zipped: bool = True) -> None:
        explained, attends = self._explanation, self._attends
        options: dict[str, Any] = {"what": ("grids", "values", "input")}
        if attends is not None:
            records = attends.records
            own = {a.label: attends.options(a, style="light") for a in records}
            options |= {"options": next(iter(own.values())), "own_options": own}
        elif explained is not None:
            records = list(explained.activations)
            options["options"] = explained.options(style="light")
        else:
            raise HookvizError("There is no explanation to export.")
        target = None if zipped else Path("hookviz_exports")
        self.app.exporting.start_with(self._shown, records, options, target)

    def handlers(self) -> Handlers:
        """What the page asks."""
        return {
            **super().handlers(),
            "method": self._choose,
            "explain": self._explain,
            "classes": self._list_classes,
            "look": self._take_look,
            "export": self._export,
            "query": self._ask_query,
            "heads": self._choose_heads,
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


def _number(value: float) -> str:
    return f"{value:.6g}".replace("-", "−")
