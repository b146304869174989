"""A watched training on the screen: curves, alerts, and the probe's maps through time."""

from __future__ import annotations

import io
from collections.abc import Iterable
from functools import partial
from typing import Any

import traitlets

from hookviz.errors import HookvizError, MonitorError
from hookviz.monitoring import QUANTITIES, MapsOverTime, PictureAt, TrainingHistory
from hookviz.widget._bundle import built
from hookviz.widget._painting import tiles_of
from hookviz.widget._part import Handlers, Part
from hookviz.widget._pictures import look_of
from hookviz.widget._worker import Cancelled, Worker

_PACE = 2.0  # seconds between two looks at a training that runs
_CURVES_DPI = 120.0
_MOST_SAID = 5  # alerts that are shown, the newest ones
_WIDEST_MAPS = 720  # pixels of the page, so that the slider and all maps are seen together
_STRIP = 8  # steps of a channel side by side


class TrainingView(Part):
    """Shows a training while it runs and afterwards.

    A thread of its own looks every two seconds whether something is new and draws then; the
    training does nothing for it. It rests when the training has ended, or the view is closed.

    Args:
        history: A monitor, or what `hookviz.open_monitor` gave.

    Attributes:
        about: Model, step, and whether it runs.
        alerts: The newest alerts, a sentence each.
        notes: What could not be seen, and why.
        quantity: What the curves show; of ``quantities``, pairs of name and text.
        layer: Whose: "all", or the place of a layer among those watched; of ``layers``.
        drawn: Which figure is shown; of ``figures``, pairs of key and text.
        step: After how many steps; of ``steps``.
        channel: Which channel is shown at several steps; -1 for none.
        channels: How many there are; 0 where none can be shown by itself.
    """

    _esm = built("training.min.js")
    _css = built("training.min.css")

    about = traitlets.Unicode().tag(sync=True)
    alerts: traitlets.List[Any] = traitlets.List().tag(sync=True)
    notes: traitlets.List[Any] = traitlets.List().tag(sync=True)
    quantity = traitlets.Unicode("zeros").tag(sync=True)
    quantities: traitlets.List[Any] = traitlets.List().tag(sync=True)
    layer = traitlets.Unicode("all").tag(sync=True)
    layers: traitlets.List[Any] = traitlets.List().tag(sync=True)
    drawn = traitlets.Unicode().tag(sync=True)
    figures: traitlets.List[Any] = traitlets.List().tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    steps: traitlets.List[Any] = traitlets.List().tag(sync=True)
    channel = traitlets.Int(-1).tag(sync=True)
    channels = traitlets.Int(0).tag(sync=True)

    page_writes = frozenset({"quantity", "layer", "drawn", "step", "channel"})

    def __init__(self, history: TrainingHistory) -> None:
        self.history = history
        self._worker = Worker("hookviz-training", self.show_problem)
        self._look: dict[str, Any] = {}
        self._state: tuple[Any, ...] = ()
        layers = [["all", "all layers"]]
        layers += [[str(at), name or "(model)"] for at, name in enumerate(history.layers)]
        super().__init__(layers=layers)
        self.refresh()
        if self.quantities and self.quantity not in dict(self.quantities):
            self.quantity = self.quantities[0][0]
        self.observe(self._draw_curves_soon, ["quantity", "layer"])
        self.observe(self._choose_figure, "drawn")
        self.observe(self._draw_maps_soon, "step")
        self.observe(self._draw_strip_soon, "channel")
        if not history.ended:
            self._worker.later("follow", self._follow, _PACE)

    def close(self) -> None:
        """Takes the view away and ends its thread."""
        self._worker.close()
        super().close()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all that is due is drawn; False where that takes longer."""
        return self._worker.wait(timeout)

    def _follow(self, _cancelled: Cancelled) -> None:
        ended = self.history.ended  # asked first, so that the last step is drawn
        self.refresh()
        if not ended:
            self._worker.later("follow", self._follow, _PACE)

    def refresh(self) -> None:
        """Shows what is new since the last time; nothing where nothing is."""
        with self.lock:
            history = self.history
            pictures = list(history.pictures)
            state = (history.step_number, len(history.alerts), len(pictures), history.state)
            if state == self._state:
                return
            fewer, self._state = self._state[:2], state
            self.about = f"{history.facts['model']}: step {state[0]}, {history.state}"
            self.alerts = [alert.text for alert in history.alerts[-_MOST_SAID:]]
            notes = [f"{layer}: {why}" if layer else why for layer, why in history.notes.items()]
            self.notes = notes[:_MOST_SAID]
            names = [[name, name] for name in history.scalars]
            names += [[name, text] for name, text in QUANTITIES.items() if history.has(name)]
            self.quantities = names
            if fewer != state[:2]:
                self._draw_curves_soon()
            found = dict.fromkeys(_key(picture) for picture in pictures)
            self.figures = [[key, key] for key in found]
            if found and self.drawn not in found:
                self.drawn = next(iter(found))
            self._choose_figure()

    # ── what the page sets

    def page_value(self, name: str, value: Any) -> Any:
        """Takes only what there is to choose."""
        legal: Iterable[Any] = {
            "quantity": [one for one, _ in self.quantities],
            "layer": [one for one, _ in self.layers],
            "drawn": [one for one, _ in self.figures],
            "step": self.steps,
            "channel": range(-1, self.channels),
        }[name]
        if value not in legal or isinstance(value, bool):
            if name == "channel":
                raise HookvizError(
                    f"There is no channel {value}; there are {self.channels}, from 0."
                )
            raise HookvizError(f"The page sent {name}={value!r}, which is not there to choose.")
        return value

    def handlers(self) -> Handlers:
        """See `Part`."""
        return {**super().handlers(), "look": self._take_look}

    def _take_look(self, width: int, ratio: float = 1.0, style: str = "light") -> None:
        with self.lock:
            self._look = look_of(width, ratio, style)
            self._draw_curves_soon()
            self._draw_maps_soon()
            self._draw_strip_soon()

    def _choose_figure(self, change: Any = None) -> None:
        with self.lock:
            ones = self._ones()
            steps = sorted({picture.step for picture in ones})
            if change is not None:
                self.channel, self._state = -1, ()
            if steps != self.steps:
                # Who looks at the newest goes on with it; who has gone back stays there.
                newest = not self.steps or self.step == self.steps[-1]
                self.steps = steps
                if steps and (newest or self.step not in steps):
                    self.step = steps[-1]
                self._draw_strip_soon()
            try:
                over = self._over()
                self.channels = 0 if over is None else over.channels()
            except MonitorError:  # a folder of an earlier version has pictures alone
                self.channels = 0
            self._draw_maps_soon()

    # ── drawing

    def _draw_curves_soon(self, _change: Any = None) -> None:
        self._soon("curves", self._curves)

    def _draw_maps_soon(self, _change: Any = None) -> None:
        self._soon("maps", self._maps)

    def _draw_strip_soon(self, _change: Any = None) -> None:
        self._soon("strip", self._strip)

    def _soon(self, part: str, draw: Any) -> None:
        if self._look:
            self._worker.later(part, partial(self._drawn_now, part, draw))

    def _drawn_now(self, part: str, draw: Any, _cancelled: Cancelled) -> None:
        style = self._look["style"]
        try:
            png, facts = draw()
        except HookvizError as error:
            png, facts = b"", {"text": str(error)}
        self.send({"type": "picture", "part": part, "style": style, **facts}, buffers=[png])

    def _curves(self) -> tuple[bytes, dict[str, Any]]:
        with self.lock:
            look, at, quantity = self._look, self.layer, self.quantity
        layer = None if at == "all" else self.history.layers[int(at)]
        ratio = look["dpi"] / 100.0
        width = round(look["width"] / ratio)
        file = io.BytesIO()
        figure = self.history.figure(layer, quantity, style=look["style"], width=width)
        figure.savefig(file, format="png", dpi=_CURVES_DPI * ratio)
        whose = "all layers" if layer is None else layer or "the model"
        name = QUANTITIES.get(quantity, quantity)
        return file.getvalue(), {"alt": f"{name} of {whose} over the steps"}

    def _maps(self) -> tuple[bytes, dict[str, Any]]:
        with self.lock:
            look, over, step, ones = self._look, self._over(), self.step, self._ones()
        if over is None:
            return b"", {}
        try:
            widest = int(_WIDEST_MAPS * look["dpi"] / 100.0)
            drawing = over.drawing(step, {**look, "width": min(widest, look["width"])})
        except MonitorError:  # no values were kept
            picture = next(one for one in ones if one.step == step)
            return self.history.png_bytes(picture), {"alt": f"{_key(picture)} after {step} steps"}
        facts = {
            "alt": f"{drawing.options.title}. {drawing.scale}",
            "tiles": tiles_of(drawing, over.activation(step)),
        }
        return drawing.png_bytes(), facts

    def _strip(self) -> tuple[bytes, dict[str, Any]]:
        with self.lock:
            look, over, channel = self._look, self._over(), self.channel
        if over is None or channel < 0:
            return b"", {}
        drawing = over.strip_drawing(channel, _STRIP, look)
        steps = "steps" if len(over.steps) > 1 else "step"
        return drawing.png_bytes(), {
            "alt": f"Channel {channel} after {len(drawing.channels)} {steps}. {drawing.scale}"
        }

    def _ones(self) -> list[PictureAt]:
        return [p for p in list(self.history.pictures) if _key(p) == self.drawn]

    def _over(self) -> MapsOverTime | None:
        """The maps of the figure in use; None where nothing is drawn."""
        ones = self._ones()
        if not ones:
            return None
        one = ones[-1]
        return self.history.over_time(one.layer, kind=one.kind, call=one.call, leaf=one.leaf)


def _key(picture: PictureAt) -> str:
    call = f" call {picture.call}" if picture.call > 1 else ""
    leaf = f" [{picture.leaf}]" if picture.leaf else ""
    return f"{picture.layer or '(model)'}{leaf}{call}, {picture.kind}"
