"""A watched training on the screen: curves, alerts, and a slider through time under the maps."""

from __future__ import annotations

import base64
import html
import io
import threading
from typing import Any

import ipywidgets

from hookviz.errors import HookvizError
from hookviz.monitoring import QUANTITIES, PictureAt, TrainingHistory

_PACE = 2.0  # seconds between two looks at a training that runs
_WIDTH = 760


class TrainingView(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Shows a training while it runs and afterwards.

    A thread of its own looks every two seconds whether something is new and draws then; the
    training does nothing for it. It ends with the training, or when the view is closed.

    Args:
        history: A monitor, or what `hookviz.open_monitor` gave.

    Attributes:
        quantity: The menu of what the curves show.
        layer: The menu of whose curves; the first entry is all layers.
        drawn: The menu of the figures that were drawn.
        time: The slider through the steps at which they were.
    """

    def __init__(self, history: TrainingHistory) -> None:
        self.history = history
        self._state: Any = None
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._where, self._alerts = ipywidgets.HTML(), ipywidgets.HTML()
        self._curves, self._map = ipywidgets.HTML(), ipywidgets.HTML()
        names = [("loss", "loss"), *((text, name) for name, text in QUANTITIES.items())]
        self.quantity = ipywidgets.Dropdown(options=names, value="zeros", description="Curves")
        layers = [("all layers", ""), *((name or "(model)", name) for name in history.layers)]
        self.layer = ipywidgets.Dropdown(
            options=[(text, at) for at, (text, _) in enumerate(layers)], value=0, description="of"
        )
        self.drawn = ipywidgets.Dropdown(options=[], description="Figure")
        self.time = ipywidgets.SelectionSlider(options=[0], description="Step", disabled=True)
        self.time.layout.width = "100%"
        super().__init__(
            [
                self._where, self._alerts, ipywidgets.HBox([self.quantity, self.layer]),
                self._curves, self.drawn, self._map, self.time,
            ]
        )  # fmt: skip
        self.refresh()
        for menu in (self.quantity, self.layer):
            menu.observe(self._draw_curves, "value")
        self.drawn.observe(self._choose_figure, "value")
        self.time.observe(self._show_figure, "value")
        if not history.ended:
            threading.Thread(target=self._follow, name="hookviz-training", daemon=True).start()

    def close(self) -> None:
        """Takes the view away and ends its thread."""
        self._over.set()
        super().close()

    def _follow(self) -> None:
        while not self._over.wait(_PACE):
            ended = self.history.ended  # asked first, so that the last step is drawn
            self.refresh()
            if ended:
                return

    def refresh(self) -> None:
        """Draws what is new since the last time; nothing where nothing is."""
        with self._lock:
            history = self.history
            state = (history.step_number, len(history.alerts), len(history.pictures), history.state)
            if state == self._state:
                return
            self._state = state
            model, notes = html.escape(history.facts["model"]), history.notes.values()
            self._where.value = f"<b>{model}</b>: step {state[0]}, {history.state}"
            said = [alert.text for alert in history.alerts[-5:]] + list(notes)[:5]
            items = "".join(f"<li>{html.escape(text)}</li>" for text in said)
            self._alerts.value = f'<ul role="status">{items}</ul>' if items else ""
            self._draw_curves()
            self._list_figures()

    def _draw_curves(self, _change: Any = None) -> None:
        with self._lock:
            at, quantity = self.layer.value, self.quantity.value
            layer = self.history.layers[at - 1] if at else None
            file = io.BytesIO()
            try:
                self.history.figure(layer, quantity, width=_WIDTH).savefig(file, format="png")
            except HookvizError as error:
                self._curves.value = f"<p>{html.escape(str(error))}</p>"
            else:
                whose = layer if at else "all layers"
                self._curves.value = _image(
                    file.getvalue(), f"{quantity} of {whose} over the steps"
                )

    def _list_figures(self) -> None:
        found = dict.fromkeys(_name(picture) for picture in list(self.history.pictures))
        if list(found) != list(self.drawn.options):
            self.drawn.options = list(found)
            if self.drawn.value is None and found:
                self.drawn.value = next(iter(found))
        self._choose_figure()

    def _ones(self) -> list[PictureAt]:
        return [p for p in list(self.history.pictures) if _name(p) == self.drawn.value]

    def _choose_figure(self, _change: Any = None) -> None:
        with self._lock:
            steps = [picture.step for picture in self._ones()] or [0]
            if steps != list(self.time.options):
                # Who looks at the newest goes on with it; who has gone back stays there.
                newest = self.time.value == self.time.options[-1]
                keep = steps[-1] if newest or self.time.value not in steps else self.time.value
                self.time.options = steps
                self.time.value = keep
            self.time.disabled = len(steps) < 2
            self._show_figure()

    def _show_figure(self, _change: Any = None) -> None:
        with self._lock:
            for picture in self._ones():
                if picture.step == self.time.value:
                    text = f"{_name(picture)} after {picture.step} steps"
                    self._map.value = _image(self.history.png_bytes(picture), text)


def _name(picture: PictureAt) -> str:
    call = f" call {picture.call}" if picture.call > 1 else ""
    leaf = f" [{picture.leaf}]" if picture.leaf else ""
    return f"{picture.layer or '(model)'}{leaf}{call}, {picture.kind}"


def _image(png: bytes, text: str) -> str:
    data = base64.b64encode(png).decode("ascii")
    return (
        f'<img alt="{html.escape(text)}" style="max-width:100%" src="data:image/png;base64,{data}">'
    )
