"""What is known of a training: numbers over its steps, alerts, pictures; as tables and figures."""

from __future__ import annotations

import base64
import importlib
import io
import math
import sys
import threading
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hookviz._tables import data_frame
from hookviz._text import columns, names_text
from hookviz.errors import LayerError, MonitorError, did_you_mean
from hookviz.monitoring._over_time import KeptMaps, MapsOverTime
from hookviz.monitoring._watch import Place

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL import Image

QUANTITIES = {
    "zeros": "share of zeros",
    "dead": "share of dead channels",
    "mean": "mean",
    "std": "standard deviation",
    "min": "smallest value",
    "max": "largest value",
    "nan": "share of NaN",
    "inf": "share of Inf",
    "gradient": "gradient norm",
    "weight": "weight norm",
    "update": "update norm / weight norm",
}
"""What is known of a layer at a step. All but the last three are of its output over the whole
batch, of the finite values; a channel is dead where it is zero everywhere in the batch. The last
three are Euclidean norms over all parameters in the layer."""

OF_OUTPUT = tuple(QUANTITIES)[:8]
OF_PARAMETERS = tuple(QUANTITIES)[8:]
_SHARES = frozenset({"zeros", "dead", "nan", "inf"})
_MOST = 20_000  # points of a curve that are held; of more, every second is let go


@dataclass(frozen=True)
class Alert:
    """Something that should not be.

    Attributes:
        step: When: the first call of ``step()`` is 1.
        kind: "output" (NaN or Inf in what a layer gave), "gradient", "skipped" (a gradient that is
            not finite, and weights that did not move, as GradScaler does), "loss" or "dead".
        layer: Which; "" for the model itself and for the loss.
        call: Which call of it within a forward; 0 for gradients and the loss.
        text: One sentence.
    """

    step: int
    kind: str
    layer: str
    call: int
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class PictureAt:
    """A figure that was drawn while the model trained.

    Attributes:
        step: After how many steps; 0 is before the first.
        layer: Of which layer.
        call: Of which call, from 1; 0 for filters.
        leaf: Path of the tensor in a nested output.
        kind: "maps" or "filters".
        file: Name of the PNG in the folder's ``pictures``; of the values, but for the ending, in
            ``values``.
        low: Value of the first color; None where each channel has its own.
        high: Value of the last color; None likewise.
    """

    step: int
    layer: str
    call: int
    leaf: str
    kind: str
    file: str
    low: float | None = None
    high: float | None = None


class _Line:
    """Values over steps; thinned, not cut, where they become very many."""

    def __init__(self) -> None:
        self.steps, self.values = array("q"), array("d")

    def add(self, step: int, number: float) -> None:
        self.steps.append(step)
        self.values.append(number)
        if len(self.steps) > _MOST:
            self.steps, self.values = self.steps[::2], self.values[::2]


class TrainingHistory:
    """The numbers of a training.

    Attributes:
        facts: About the training: ``model``, ``layers``, ``every``, ``stats_every``, ``started``.
        alerts: In the order in which they arose.
        pictures: In the order in which they were drawn.
        notes: What could not be seen, and why, by layer; "" for what concerns all.
    """

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = dict(facts)
        self.alerts: list[Alert] = []
        self.pictures: list[PictureAt] = []
        self.notes: dict[str, str] = {}
        self._lines: defaultdict[tuple[Place, str], _Line] = defaultdict(_Line)
        self._scalars: dict[str, _Line] = {}
        self._last = 0
        self._ended = False
        self._lock = threading.Lock()

    # ── taking in

    def _add(self, record: Mapping[str, Any]) -> None:
        """Takes a record as it stands in the folder."""
        with self._lock:
            kind = record["kind"]
            if kind == "step":
                step = record["step"]
                self._last = max(self._last, step)
                for layer, call, leaf, *numbers in record["layers"]:
                    place = Place(layer, call, leaf)
                    names = OF_PARAMETERS if call == 0 else OF_OUTPUT
                    for name, number in zip(names, numbers, strict=False):
                        if number is not None:
                            self._lines[place, name].add(step, number)
            elif kind == "scalars":
                self._last = max(self._last, record["step"])
                for name, number in record["values"].items():
                    self._scalars.setdefault(name, _Line()).add(record["step"], number)
            elif kind == "alert":
                self.alerts.append(Alert(**record["alert"]))
            elif kind == "picture":
                self.pictures.append(PictureAt(**record["picture"]))
            elif kind == "note":
                self.notes[record["layer"]] = record["text"]
            elif kind in ("begin", "end"):
                self._ended = kind == "end"

    def _take_over(self, other: TrainingHistory) -> None:
        """Goes on where another one is."""
        self._last, self.pictures, self.alerts = other._last, other.pictures, other.alerts
        self._lines, self._scalars, self.notes = other._lines, other._scalars, other.notes

    def _fresh(self) -> None:
        """Reads what is new, where others write."""

    # ── asking

    @property
    def step_number(self) -> int:
        """The newest step of which something is known."""
        self._fresh()
        return self._last

    @property
    def ended(self) -> bool:
        """Whether the training's block was left, well or by an exception."""
        self._fresh()
        return self._ended

    @property
    def layers(self) -> tuple[str, ...]:
        """The watched layers."""
        return tuple(self.facts["layers"])

    @property
    def scalars(self) -> tuple[str, ...]:
        """Names of what was given to ``step()``: "loss" and others."""
        self._fresh()
        return tuple(self._scalars)

    def places(self, layers: str | Iterable[str] | None = None) -> list[Place]:
        """The calls and nested outputs of layers of which something is known.

        Args:
            layers: Names of watched layers; None is all.

        Raises:
            LayerError: One is not watched.
        """
        self._fresh()
        names = [layers] if isinstance(layers, str) else list(layers or self.layers)
        for name in names:
            if name not in self.layers:
                raise LayerError(
                    f"'{name}' is not watched; watched are {names_text(self.layers)}.",
                    remedy=did_you_mean(name, self.layers) or None,
                )
        with self._lock:
            known = dict.fromkeys(place for place, _ in self._lines)
        return [place for name in names for place in known if place.layer == name]

    def values(
        self, layer: str, quantity: str, *, call: int = 1, leaf: str = ""
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """A quantity over the steps.

        Args:
            layer: A watched layer; "" is the model itself.
            quantity: One of `hookviz.monitoring.QUANTITIES`.
            call: Which call of the layer in a forward, from 1.
            leaf: Path of the tensor where the layer gives several.

        Returns:
            (S,) int64 steps and (S,) float64 values, copies. Of more than 20,000 points, some are
            left out evenly.

        Raises:
            LayerError: The layer is not watched.
            MonitorError: There is no such quantity, or none is known of the layer.
        """
        _checked(quantity)
        self.places(layer)
        place = Place(layer, call, leaf) if quantity in OF_OUTPUT else Place(layer, 0)
        with self._lock:
            line = self._lines.get((place, quantity))
            if line is not None:
                return _arrays(line)
        known = [p for p in self.places(layer) if (p, quantity) in self._lines]
        why = self.notes.get(layer) or self.notes.get("") or "nothing was measured yet"
        if known:
            why = f"known are {', '.join(_label(p, self.calls(layer)) for p in known)}"
        raise MonitorError(f"No {QUANTITIES[quantity]} of '{layer}' (call {call}) is known: {why}.")

    def scalar(self, name: str = "loss") -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """What was given to ``step()`` over the steps.

        Args:
            name: "loss", or the name of another number.

        Returns:
            (S,) int64 steps and (S,) float64 values, copies.

        Raises:
            MonitorError: No such number was given.
        """
        self._fresh()
        with self._lock:
            if name in self._scalars:
                return _arrays(self._scalars[name])
        known = ", ".join(self._scalars) or "none"
        raise MonitorError(f"step() was given no '{name}'; known: {known}.")

    def calls(self, layer: str) -> int:
        """How often a layer runs within a forward."""
        return max((place.call for place in self.places(layer)), default=0)

    def rows(
        self, step: int | None = None, layers: Iterable[str] | None = None
    ) -> list[dict[str, Any]]:
        """All quantities of layers at a step, as dicts of plain values.

        Args:
            step: A step at which they were measured; None is the newest.
            layers: Names of watched layers; None is all.

        Raises:
            LayerError: A layer is not watched.
            MonitorError: Nothing was measured at that step.
        """
        places = self.places(layers)
        with self._lock:
            lines = {key: _arrays(line) for key, line in self._lines.items()}
        known = sorted({int(s) for steps, _ in lines.values() for s in steps})
        if step is None:
            step = known[-1] if known else 0
        if known and step not in known:
            near = min(known, key=lambda one: abs(one - step))
            raise MonitorError(f"Nothing was measured at step {step}; the nearest is {near}.")
        found = []
        for layer, call, leaf in places:
            if call == 0 and any(p.layer == layer and p.call for p in places):
                continue
            row: dict[str, Any] = {"step": step, "layer": layer, "call": call, "leaf": leaf}
            for name in QUANTITIES:
                at = Place(layer, call, leaf) if name in OF_OUTPUT else Place(layer, 0)
                steps, numbers = lines.get((at, name), (np.zeros(0), np.zeros(0)))
                hit = np.flatnonzero(steps == step)
                row[name] = float(numbers[hit[-1]]) if len(hit) else None
            found.append(row)
        return found

    def table(self, step: int | None = None, layers: Iterable[str] | None = None) -> str:
        """All quantities of layers at a step as aligned text, a line each.

        Args:
            step: See `rows`.
            layers: See `rows`.
        """
        rows = self.rows(step, layers)
        names = [n for n in QUANTITIES if any(row[n] is not None for row in rows)]
        cells: list[tuple[str, ...]] = [("layer", *names)]
        for row in rows:
            label = _label(Place(row["layer"], row["call"], row["leaf"]), self.calls(row["layer"]))
            cells.append((label, *(_cell(name, row[name]) for name in names)))
        return columns(cells)

    def to_pandas(self) -> Any:
        """All steps as a ``pandas.DataFrame``: one row for each step, layer, call and quantity.

        Raises:
            HookvizError: pandas is not installed.
        """
        self._fresh()
        with self._lock:
            lines = [(place, name, _arrays(line)) for (place, name), line in self._lines.items()]
        counts = [len(steps) for _, _, (steps, _) in lines]
        found: dict[str, Any] = {"step": _joined([steps for _, _, (steps, _) in lines])}
        for at, field in enumerate(Place._fields):
            named = np.array([place[at] for place, _, _ in lines], dtype=object)
            found[field] = np.repeat(named, counts)
        names = np.array([name for _, name, _ in lines], dtype=object)
        found["quantity"] = np.repeat(names, counts)
        found["value"] = _joined([numbers for _, _, (_, numbers) in lines])
        return data_frame(found)

    # ── showing

    def figure(
        self,
        layers: str | Sequence[str] | None = None,
        quantity: str = "zeros",
        *,
        style: str | None = "light",
        width: int = 900,
    ) -> Figure:
        """A quantity of layers as curves over the steps; alerts are marked.

        Args:
            layers: Names of watched layers; None is all of which it is known.
            quantity: One of `hookviz.monitoring.QUANTITIES`, or "loss" or the name of another
                number that ``step()`` was given.
            style: "light", "dark", or None for matplotlib's rcParams.
            width: Pixels.

        Returns:
            A new figure that is not registered with pyplot.

        Raises:
            LayerError: A layer is not watched.
            MonitorError: There is no such quantity, or it is not known of any of them.
        """
        from hookviz.render import Curve, draw_curves

        curves: list[Curve] = []
        if quantity in self.scalars:
            steps, numbers = self.scalar(quantity)
            curves = [Curve(quantity, steps.astype(float), numbers)]
        else:
            _checked(quantity, self.scalars)
            for place in self.places(layers):
                with self._lock:
                    line = self._lines.get((place, quantity))
                    found = line and _arrays(line)
                if found:
                    label = _label(place, self.calls(place.layer))
                    curves.append(Curve(label, found[0].astype(float), found[1]))
            if not curves:
                why = self.notes.get("", "nothing was measured yet")
                raise MonitorError(f"No {QUANTITIES[quantity]} is known: {why}.")
        shown = {curve.label for curve in curves}
        marks = [
            (float(alert.step), _MARKS[alert.kind])
            for alert in self.alerts
            if len(shown) > 1 or quantity in self.scalars or any(alert.layer in s for s in shown)
        ]
        name = QUANTITIES.get(quantity, quantity)
        return draw_curves(
            curves, title=f"{self.facts['model']}: {name}", unit=name, marks=marks[:8],
            share=quantity in _SHARES, style=style, width=width,
        )  # fmt: skip

    def picture(
        self, layer: str, *, step: int | None = None, kind: str = "maps", call: int = 1
    ) -> Image.Image:
        """A figure that was drawn while the model trained, on a scale of its own.

        Args:
            layer: A layer that is drawn.
            step: After how many steps; None is the newest.
            kind: "maps" of the probe image, or "filters".
            call: Which call of the layer, from 1; filters have none.

        Raises:
            MonitorError: There is no such picture; the sentence says which there are.
        """
        ones = self._drawn(layer, kind, call, None)
        fitting = [p for p in ones if step is None or p.step == step]
        if not fitting:
            raise MonitorError(
                f"There are no {kind} of '{layer}' at step {step}; "
                f"there are steps {sorted({p.step for p in ones})}."
            )
        return self.image(fitting[-1])

    def over_time(
        self, layer: str, *, kind: str = "maps", call: int = 1, leaf: str | None = None
    ) -> MapsOverTime:
        """A layer's maps at all steps that were drawn, on one scale; a channel's as a strip.

        Args:
            layer: A layer that is drawn.
            kind: "maps" of the probe image, or "filters".
            call: Which call of the layer, from 1; filters have none.
            leaf: Path of the tensor where the layer gives several; None is the first.

        Raises:
            MonitorError: None were drawn; the sentence says which there are.
        """
        ones = {p.step: p for p in self._drawn(layer, kind, call, leaf)}
        known = [ones[step] for step in sorted(ones)]
        ends = [None if p.low is None or p.high is None else (p.low, p.high) for p in known]
        label = layer or "(model)"
        label += f" call {call}" if kind == "maps" and self.calls(layer) > 1 else ""
        label += " filters" if kind == "filters" else ""
        return MapsOverTime(label, [p.step for p in known], ends, lambda s: self._kept(ones[s]))

    def _drawn(self, layer: str, kind: str, call: int, leaf: str | None) -> list[PictureAt]:
        """The pictures of one tensor."""
        self._fresh()
        ones = [
            p for p in list(self.pictures)
            if p.layer == layer and p.kind == kind and (kind == "filters" or p.call == call)
        ]  # fmt: skip
        leaf = ones[0].leaf if ones and leaf is None else leaf
        ones = [p for p in ones if p.leaf == leaf]
        if not ones:
            drawn = dict.fromkeys(p.layer for p in self.pictures if p.kind == kind)
            raise MonitorError(
                f"There are no {kind} of '{layer}' (call {call}); "
                f"there are layers {names_text(drawn) or 'none'}.",
                remedy=did_you_mean(layer, drawn) or None,
            )
        return ones

    def _repr_png_(self) -> bytes | None:
        """What a notebook shows: the loss, or the shares of zeros, up to now."""
        known = [q for q in ("loss", "zeros", "gradient") if q in self.scalars or self.has(q)]
        if not known:
            return None
        file = io.BytesIO()
        self.figure(None, known[0]).savefig(file, format="png")
        return file.getvalue()

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, Any]:
        """In a notebook a widget that follows the training; elsewhere the curve and a line."""
        found: dict[str, Any] = {"text/plain": repr(self)}
        if png := self._repr_png_():
            found["image/png"] = base64.b64encode(png).decode("ascii")
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if getattr(shell, "kernel", None) is not None:
            # By its name: the widget knows the monitor, not the other way round.
            view = importlib.import_module("hookviz.widget").TrainingView(self)
            data, _metadata = view._repr_mimebundle_() or ({}, {})
            found |= data
        return found

    def _display_(self) -> Any:
        """In marimo the same widget."""
        return importlib.import_module("hookviz.widget").TrainingView(self)

    def _png(self, picture: PictureAt) -> bytes:
        raise NotImplementedError

    def _kept(self, picture: PictureAt) -> KeptMaps:
        raise NotImplementedError

    def has(self, quantity: str, layers: str | Iterable[str] | None = None) -> bool:
        """Whether a quantity is known of some of the layers; None is all of them."""
        places = self.places(layers)
        with self._lock:
            return any((place, quantity) in self._lines for place in places)

    def newest_pictures(
        self, step: int | None = None, layers: Iterable[str] | None = None
    ) -> list[PictureAt]:
        """The pictures of a step.

        Args:
            step: After how many steps; None is the newest that was drawn.
            layers: Of which layers; None is all.
        """
        self._fresh()
        names = set(self.layers if layers is None else layers)
        ones = [p for p in self.pictures if p.layer in names]
        last = max((p.step for p in ones), default=0) if step is None else step
        return [p for p in ones if p.step == last]

    def png_bytes(self, picture: PictureAt) -> bytes:
        """A picture as it was written.

        Raises:
            MonitorError: It is gone.
        """
        return self._png(picture)

    def image(self, picture: PictureAt) -> Image.Image:
        """A picture as an image.

        Raises:
            MonitorError: It is gone.
        """
        from PIL import Image

        return Image.open(io.BytesIO(self._png(picture)))

    def since(self, seen: Mapping[str, int]) -> list[tuple[int, str, float]]:
        """The numbers of later steps.

        Args:
            seen: The last step that is known, by name.

        Returns:
            (step, name, number); a name is "loss", or a quantity and a layer, for example
            "zeros/layer1.relu call 2".
        """
        self._fresh()
        calls = {layer: self.calls(layer) for layer in self.layers}
        with self._lock:
            lines = {f"{q}/{_label(p, calls[p.layer])}": v for (p, q), v in self._lines.items()}
            lines |= self._scalars
            found = []
            for name, line in lines.items():
                last = seen.get(name, -1)
                for at in range(len(line.steps) - 1, -1, -1):
                    if line.steps[at] <= last:
                        break
                    found.append((line.steps[at], name, line.values[at]))
        return found

    def summary(self, step: int | None = None, layers: Iterable[str] | None = None) -> str:
        """The training in a few lines of text: where it is, alerts, the newest table.

        Args:
            step: Of the table, see `rows`.
            layers: Of the table; None is all.
        """
        self._fresh()
        lines = [f"{self.facts['model']}, step {self._last} ({self.state})"]
        for name in self.scalars:
            _, numbers = self.scalar(name)
            lines.append(f"{name}: {numbers[-1]:.6g} (first {numbers[0]:.6g})")
        lines += [f"! {alert.text}" for alert in self.alerts]
        lines += [f"{layer or 'note'}: {text}" for layer, text in self.notes.items()]
        if self.pictures:
            newest = self.pictures[-1].step
            lines.append(f"{len(self.pictures)} pictures, the newest of step {newest}")
        return "\n".join([*lines, "", self.table(step, layers)])

    @property
    def state(self) -> str:
        """Either "running" or "ended"."""
        return "ended" if self.ended else "running"

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self.facts['model']}: {len(self.layers)} layers, "
            f"step {self._last}, {len(self.alerts)} alerts>"
        )


_MARKS = {
    "output": "NaN or Inf",
    "gradient": "gradient",
    "skipped": "skipped",
    "loss": "loss",
    "dead": "dead",
}


def _arrays(line: _Line) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    return np.array(line.steps, dtype=np.int64), np.array(line.values, dtype=np.float64)


def _joined(parts: list[Any]) -> Any:
    return np.concatenate(parts) if parts else np.zeros(0)


def _label(place: Place, calls: int) -> str:
    text = place.layer or "(model)"
    if place.leaf:
        text += f" [{place.leaf}]"
    return f"{text} call {place.call}" if calls > 1 and place.call else text


def _cell(name: str, number: float | None) -> str:
    if number is None:
        return "–"
    if name in _SHARES and math.isfinite(number):
        return f"{number:.1%}"
    return f"{number:.4g}"


def _checked(quantity: str, others: Sequence[str] = ()) -> None:
    names = [*QUANTITIES, *others]
    if quantity not in names:
        raise MonitorError(
            f"There is no quantity '{quantity}'; legal are {', '.join(names)}.",
            remedy=did_you_mean(quantity, names) or None,
        )


def alert_record(alert: Alert) -> dict[str, Any]:
    """An alert as it stands in the folder."""
    return {"kind": "alert", "alert": asdict(alert)}


def picture_record(picture: PictureAt) -> dict[str, Any]:
    """A picture as it stands in the folder."""
    return {"kind": "picture", "picture": asdict(picture)}
