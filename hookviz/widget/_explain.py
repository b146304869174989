"""The panel "Explain": why the model gives what it gives to the image that is shown.

While Live runs, the explanation that is on the screen follows its frames: it is made anew for the
newest one on the app's thread, on a copy of the model that shares its weights, so that no frame
waits for it and none meets its hooks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import traitlets

from hookviz._meta import with_same_weights
from hookviz._text import error_text
from hookviz.errors import HookvizError, RenderError, RunCancelled
from hookviz.explanation import Explanation, Method, Progress, explain, methods
from hookviz.images import Picture
from hookviz.models import LoadedModel
from hookviz.render import Drawing
from hookviz.run import Run, run_model
from hookviz.widget import _attends
from hookviz.widget._app import Panel
from hookviz.widget._attends import Attends, cell
from hookviz.widget._bundle import built
from hookviz.widget._part import Handlers
from hookviz.widget._pictures import jpeg_bytes, look_of
from hookviz.widget._worker import Cancelled

_CLASSES = 12
_WIDEST = 520
_LIKELIEST = "the likeliest class"
_LONGEST_REST = 2.0  # seconds between two explanations of frames

_Make = Callable[[LoadedModel, Picture, Progress | None, Cancelled], "Explanation | Attends"]
"""Makes what was asked for last, for a model and an image."""


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
            ``stale`` (of an earlier image), whether it is ``live`` (follows frames), ``figures``
            (label and notes of each), ``missing``, and from where is looked (``query``, see
            `Attends.public`).
        unedited: What to know of the edits of What if, in words; "" where there are none.
        example: A target where the model has no classes; "" where it has.
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
    unedited = traitlets.Unicode().tag(sync=True)
    example = traitlets.Unicode().tag(sync=True)

    def __init__(self, app: Any, **traits: Any) -> None:
        self._explanation: Explanation | None = None
        self._attends: Attends | None = None
        self._make: _Make | None = None
        self._frame: Run | None = None
        self._followed: Picture | None = None
        self._twin: tuple[LoadedModel, LoadedModel] | None = None
        self._rest = 0.0
        self._visible = False
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
                self._make = self._frame = self._twin = None
            elif self.found:
                self.found = {**self.found, **self._age()}
            pin = self.app.pin
            self.pinned = (
                f"channel {pin['channel']} of {pin['key'].rpartition('#')[0]}"
                f" at {pin['y']}, {pin['x']}"
                if pin
                else ""
            )
            self.why_not = self._why_not(self._of_layers)
            last = next((n for n in reversed(self.app.tree.names) if n), "")
            self.example = f"channel 0 of {last}" if model is not None and model.partial else ""
            self.note_edits()

    def note_edits(self, _change: Any = None) -> None:
        """Says whether the edits of What if are in what is explained."""
        if not self.app.what_if.chosen:
            self.unedited = ""
        elif self.method != _attends.NAME:
            self.unedited = "What if has edits on. Explanations are of the model without them."
        elif self.app.edits:
            self.unedited = "What if has edits on. Attention is of the model with them."
        else:
            self.unedited = (
                "What if has edits on. Attention is of the model without them, until the layers "
                "are run with these edits."
            )

    def close(self) -> None:
        """Takes the panel away and lets go of what it held."""
        super().close()
        self._explanation, self._attends, self.found, self._look = None, None, {}, {}
        self._make = self._frame = self._followed = self._twin = None
        self._visible = False

    @property
    def explanation(self) -> Explanation | None:
        """The last explanation."""
        return self._explanation

    @property
    def _shown(self) -> Explanation | Run | None:
        """What the figures are of."""
        return self._explanation if self._attends is None else self._attends.run

    def _age(self) -> dict[str, bool]:
        """Whether what is shown is of another image, and whether it follows frames."""
        shown = self._shown
        if shown is None:
            return {"stale": False, "live": False}
        live = self._frame is not None and shown.image is self._followed
        edited = isinstance(shown, Run) and shown.edits != self.app.edits
        stale = edited or not (live or shown.image is self.app.image)
        return {"stale": stale, "live": live}

    @property
    def _image(self) -> Picture | None:
        """The image in use; where there is none, the newest frame of Live."""
        image: Picture | None = self.app.image
        return self._frame.image if image is None and self._frame is not None else image

    @property
    def _chosen(self) -> Method:
        return next(m for m in methods() if m.name == self.method)

    @property
    def _of_layers(self) -> bool:
        return self.method == _attends.NAME or self._chosen.of_layers

    def _why_not(self, of_layers: bool) -> str:
        if self.app.model is None:
            return "Choose a model."
        if self._image is None:
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

        def make(
            model: LoadedModel, image: Picture, progress: Progress | None, cancelled: Cancelled
        ) -> Explanation:
            return explain(
                model,
                image,
                layers,
                target=None if wanted in ("", _LIKELIEST) else wanted,
                method=method.name,
                preprocess=app.image_input.preprocessing,
                progress=progress,
                cancelled=cancelled,
                **settings,
            )

        if self._start(make, method.title, "steps"):
            self.target = wanted

    def _start(self, make: _Make, title: str, unit: str) -> bool:
        """Makes an explanation of the image as a job; see `Panel.compute`."""
        app = self.app
        model, image = app.model, self._image
        assert image is not None  # noqa: S101 - else `_explain` refuses

        def work(progress: Progress, cancelled: Cancelled) -> str:
            found = make(model, image, progress, cancelled)
            with app.lock:
                is_here = app.model is model
                if is_here:
                    self._make = make
                    self._followed = None if image is app.image else image
                    self._take(found)
            if is_here:
                self._show()
            if isinstance(found, Explanation):
                return f"{title} took {found.seconds:.1f} s."
            layers = f"{len(found.records)} layer{'s' * (len(found.records) > 1)}"
            return f"The attention of {layers} took {found.run.seconds:.1f} s."

        return self.compute(title, unit, work, field="target")

    def _take(self, found: Explanation | Attends) -> None:
        """Makes what was found what is shown."""
        if isinstance(found, Attends):
            before, self._attends, self._explanation = self._attends, found, None
            if before is not None:
                found.place, found.heads = before.place, before.heads
            if isinstance(found.heads, int) and found.heads >= found.count:
                found.heads = "each"
        else:
            self._explanation, self._attends = found, None

    def _show(self) -> None:
        """Sends the pictures; the lock is not held, as live frames would wait for it."""
        self._send_photo()
        self._paint()

    def _send_photo(self) -> None:
        """Sends the photo on which a query is pointed at."""
        if self._attends is not None:
            given = self._attends.run.input
        elif self._explanation is not None and _query(self._explanation):
            given = self._explanation.input
        else:
            return
        self.send({"type": "photo"}, buffers=[jpeg_bytes(given.picture())])

    # ── live frames

    def follow(self, run: Run | None) -> None:
        """Has the explanation that is on the screen made anew for a live frame.

        The newest frame wins, one explanation is under way at a time, and it rests as long as it
        worked.

        Args:
            run: The frame's run; None where there are no more frames.
        """
        with self.app.lock:
            first, self._frame = self._frame is None, run
            if run is None:
                self._twin = None
            if run is None or first:
                self.refresh()
            if run is not None and self._visible and self._make is not None:
                self.app.jobs.later("explanation of a frame", self._follow_frame, self._rest)

    def _follow_frame(self, cancelled: Cancelled) -> None:
        with self.app.lock:
            run, make = self._frame, self._make
            if run is None or make is None or not self._visible:
                return
            model = run.model
        begin = time.monotonic()

        def ended() -> bool:
            return cancelled() or self._frame is None or not self._visible

        try:
            found = make(self._twin_of(model), run.image, None, ended)
        except RunCancelled:
            return
        except HookvizError as error:
            self.show_problem(error, field="target")
            return
        if isinstance(found, Attends):
            found.run = replace(found.run, model=model)
        else:
            found = replace(found, model=model)
        with self.app.lock:
            if self._frame is None or self.app.model is not model or self._make is not make:
                return
            self._followed, self.alert = run.image, {}
            self._take(found)
        self._show()
        self._rest = min(_LONGEST_REST, time.monotonic() - begin)

    def _twin_of(self, model: LoadedModel) -> LoadedModel:
        """The model over again, with the same weights: what is done to it disturbs no frame.

        Raises:
            HookvizError: It cannot be copied; nothing follows then.
        """
        if self._twin is None or self._twin[0] is not model:
            try:
                self._twin = model, replace(model, module=with_same_weights(model.module))
            except Exception as error:
                self._make = None
                raise HookvizError(
                    "This explanation does not follow the frames, as the model cannot be copied: "
                    f"{error_text(error)}",
                    remedy="Freeze a frame and explain that.",
                ) from error
        return self._twin[1]

    def _set_visible(self, on: bool) -> None:
        with self.app.lock:
            self._visible = on
            if on and self._frame is not None:
                self.follow(self._frame)

    # ── attention

    def _attend(self) -> None:
        """Runs the model for the attention of the ticked layers and of all in them."""
        app, layers = self.app, list(self.app.tree.selected)

        def make(
            model: LoadedModel, image: Picture, _progress: Progress | None, cancelled: Cancelled
        ) -> Attends:
            run = run_model(
                model, image, layers, preprocess=app.image_input.preprocessing, edits=app.edits,
                attention=True, cancelled=cancelled,
            )  # fmt: skip
            return Attends(
                replace(run, activations=tuple(a for a in run.activations if a.kind == "attention"))
            )

        self._start(make, _attends.TITLE, "layers")

    def _ask_query(self, y: float = -1.0, x: float = -1.0) -> None:
        """Takes the patch at a place of the photo as the query; below 0 the class token."""
        place = (y, x) if 0 <= y <= 1 and 0 <= x <= 1 else None
        with self.app.lock:
            if self._attends is not None:
                self._attends.place = place
                self.found = {**self.found, "query": self._attends.public()}
                self._paint_soon()
            elif self._explanation is not None and (now := _query(self._explanation)):
                grid = now["rows"], now["cols"]
                at = "" if place is None else "{}, {}".format(*cell(place, grid))
                self._choose(self._explanation.method.name)
                self._explain({"query": at})

    def _choose_heads(self, heads: str) -> None:
        with self.app.lock:
            if self._attends is None:
                return
            count = self._attends.count
            if heads.isdecimal() and int(heads) < count:
                self._attends.heads = int(heads)
            elif heads in ("each", "mean"):
                self._attends.heads = "mean" if heads == "mean" else "each"
            else:
                raise HookvizError(f"There is no head {heads!r:.40}; there are 0 to {count - 1}.")
            self.found = {**self.found, "query": self._attends.public()}
            self._paint_soon()

    # ── figures

    def _paint_soon(self) -> None:
        self.app.jobs.later("explanation", lambda _cancelled: self._paint())

    def _paint(self) -> None:
        """Draws the figures for the width and theme of the page, and states them."""
        look = self._look or look_of(_WIDEST, 1.0, "light")
        if self._attends is not None:
            facts, drawn = _attention_drawn(self._attends, look)
        elif self._explanation is not None:
            facts, drawn = _explanation_drawn(self._explanation, look)
        else:
            return
        pictures = [drawing.png_bytes() for _, drawing in drawn]
        figures = [
            {"label": label, "notes": [drawing.scale, *drawing.notes]} for label, drawing in drawn
        ]
        self.found = {**facts, **self._age(), "figures": figures}
        self.send({"type": "figures", "ratio": look["dpi"] / 100}, buffers=pictures)

    def _take_look(self, width: int, ratio: float = 1.0, style: str = "light") -> None:
        self._look = look_of(width, ratio, style, _WIDEST)
        self._set_visible(on=True)
        self._send_photo()
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
            "visible": self._set_visible,
            "export": self._export,
            "query": self._ask_query,
            "heads": self._choose_heads,
        }


_Drawn = tuple[dict[str, Any], list[tuple[str, Drawing]]]
"""What the page says of figures, and each with its label."""


def _explanation_drawn(found: Explanation, look: dict[str, Any]) -> _Drawn:
    """The maps of each layer."""
    drawn = []
    for record in found.activations:
        options = found.options(**look)
        drawn.append(
            (record.label, found.drawing(record.layer or None, record.call, options=options))
        )
    facts = {
        "title": f"{found.method.title} ({found.method.paper})",
        "targets": [
            f"{name}: {_number(score)}"
            for name, score in zip(found.targets, found.scores, strict=True)
        ],
        "seconds": round(found.seconds, 2),
        "image": found.image.name,
        "missing": [f"{name}: {why}" for name, why in found.missing.items()],
        "query": _query(found),
    }
    return facts, drawn


def _attention_drawn(found: Attends, look: dict[str, Any]) -> _Drawn:
    """What each head looks at from the query."""
    run, drawn = found.run, []
    missing = {name: why for name, why in run.missing.items() if name not in run.layers}
    for record in found.records:
        try:
            drawn.append((record.label, found.drawing(record, **look)))
        except RenderError as error:
            missing[record.label] = error.message
    facts = {
        "title": f"{_attends.TITLE} ({_attends.PAPER})",
        "targets": [f"edited: {'; '.join(map(str, run.edits))}"] if run.edits else [],
        "seconds": round(run.seconds, 2),
        "image": run.image.name,
        "missing": [f"{name}: {why}" for name, why in missing.items()],
        "query": found.public(),
    }
    return facts, drawn


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
    parts = [part.strip() for part in plain.split(",")]
    if len(parts) == 2 and all(part.isdecimal() for part in parts):
        return int(parts[0]), int(parts[1])
    return plain


def _query(explained: Explanation) -> dict[str, Any]:
    """From which token an explanation looks, as `Attends.public` says it; {} where from none."""
    record = next(iter(explained.activations), None)
    if record is None or "query" not in explained.method.options:
        return {}
    asked = record.recipe["options"]["query"]
    y, x = asked if isinstance(asked, Sequence) and not isinstance(asked, str) else (-1, -1)
    rows, columns = record.shape[-2:]
    there = record.apart is not None
    mean = y < 0 and (asked == "mean" or not there)
    return {"rows": rows, "cols": columns, "y": y, "x": x, "class": there, "mean": mean}


def _number(value: float) -> str:
    return f"{value:.6g}".replace("-", "−")
