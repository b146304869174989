"""A training that is watched while it runs."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from hookviz._text import error_text, fault_text
from hookviz.capture import StaysHere, is_compiled_wrapper, resolve, select_layers
from hookviz.errors import MonitorError
from hookviz.monitoring._alerts import Alarm
from hookviz.monitoring._folder import Folder, SavedHistory, read_picture, values_path
from hookviz.monitoring._history import (
    OF_OUTPUT,
    OF_PARAMETERS,
    Alert,
    PictureAt,
    TrainingHistory,
    alert_record,
    picture_record,
)
from hookviz.monitoring._over_time import KeptMaps
from hookviz.monitoring._parameters import Parameters
from hookviz.monitoring._probe import Drawn, Probe, chosen_to_draw
from hookviz.monitoring._statistics import OutputNumbers
from hookviz.monitoring._watch import LayerWatch, Place

OnAlert: TypeAlias = Literal["warn", "record", "raise"] | Callable[[Alert], object]

_MOST_PICTURES = 400  # held in memory where there is no folder
_MOST_BYTES = 256 * 1024 * 1024  # of them


class TrainingWarning(UserWarning):
    """An alert of a watched training."""


class Monitor(TrainingHistory, StaysHere):
    """A training that is watched: a context manager, and all that is known of the training.

    `hookviz.monitor` makes it and says what the arguments mean.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Any,
        *,
        every: int,
        stats_every: int,
        probe: Any,
        out: str | Path | None,
        updates: bool,
        on_alert: OnAlert,
        preprocess: Any,
        resume: bool,
        options: Mapping[str, Any],
    ) -> None:
        for name, number in (("every", every), ("stats_every", stats_every)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise MonitorError(f"{name} is {number!r}; legal is a whole number from 1.")
        if not (callable(on_alert) or on_alert in ("warn", "record", "raise")):
            raise MonitorError(
                f"on_alert is {on_alert!r}; legal are 'warn', 'record', 'raise' or a function."
            )
        if not isinstance(model, nn.Module):
            raise MonitorError(
                f"A training needs the module itself, not {type(model).__name__}.",
                remedy="Pass the nn.Module that the loop trains.",
            )
        self._model = _inner(model)
        modules = dict(self._model.named_modules())
        if layers is None:
            names = [n for n, m in modules.items() if not any(m.children())]
        else:
            names = list(dict.fromkeys(select_layers(self._model, layers).values()))
        self._watched = {name: modules[name] for name in names}
        self._compiled = is_compiled_wrapper(model) or any(
            is_compiled_wrapper(m) or m.__dict__.get("_compiled_call_impl") is not None
            for m in model.modules()
        )
        rank, world = _rank()
        self._shows = rank == 0
        drawn = names if layers is not None else chosen_to_draw(self._watched)
        self._probe = None
        if self._shows and (probe is not None or options):
            to_draw = {name: self._watched[name] for name in drawn}
            self._probe = Probe(self._model, probe, to_draw, preprocess, options)
        super().__init__(
            {
                "model": type(self._model).__name__,
                "layers": names,
                "types": {name: type(module).__name__ for name, module in self._watched.items()},
                "every": every,
                "stats_every": stats_every,
                "started": datetime.now(UTC).isoformat(timespec="seconds"),
                "torch": torch.__version__,
                "world": world,
            }
        )
        self._every, self._stats_every, self._on_alert = every, stats_every, on_alert
        self._out, self._resume = out, resume
        self._watch = LayerWatch(self._model, self._watched)
        self._parameters = Parameters(self._watched, updates=updates)
        self._alarm = Alarm(self.facts["types"], stats_every)
        self._folder: Folder | None = None
        self._in_memory: dict[str, Drawn] = {}
        self._pending: list[tuple[int, dict[str, Any]]] = []
        self._step = 0
        self._open = self._used = False
        self._measured = 0

    # ── the block

    def __enter__(self) -> Self:
        if self._used:
            raise MonitorError("A monitor watches one training.", remedy="Make another one.")
        self._used = self._open = True
        if not self._shows:
            return self
        if self._out is not None:
            self._folder = Folder(self._out, self.facts, resume=self._resume)
            saved = SavedHistory(self._out)
            self._step = saved.step_number
            self._take_over(saved)
        try:
            self._keep({"kind": "begin", "step": self._step})
            if self.facts["world"] > 1:
                self._note(
                    "",
                    f"Outputs are those of rank 0 of {self.facts['world']}, of its share of each "
                    "batch. Gradients and updates are the same on all.",
                )
            if self._probe is not None and self._step == 0:
                self._draw()
            self._watch.open()
            self._watch.active = self._due(self._step + 1)
            if self._watch.active:
                self._parameters.before()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open and self._shows and kind is not None:
            # What the step that failed has shown so far may be why it failed.
            self._unfinished()
        self.close()

    def close(self) -> None:
        """Ends the watching: all hooks are off, the folder is whole. Again is harmless."""
        self._watch.close()
        if self._open and self._shows:
            self._keep_alerts(self._flush())
            self._keep({"kind": "end", "step": self._step})
        self._open = False
        if self._folder is not None:
            self._folder.close()

    # ── the loop

    def step(self, loss: Any = None, **numbers: Any) -> None:
        """Says that a step is done: after ``optimizer.step()``, before gradients are set to None.

        Args:
            loss: Of the step; a number or a tensor of one value. It is not waited for on devices
                other than the CPU.
            **numbers: Others that shall be kept by name, for example ``lr=0.1``.

        Raises:
            MonitorError: The block was left or not entered, or a value is no number; or an alert
                arose and ``on_alert`` is "raise".
        """
        if not self._open:
            raise MonitorError(
                "step() is called outside the block.", remedy="Use `with hookviz.monitor(…) as m:`."
            )
        given = numbers if loss is None else {"loss": loss, **numbers}
        scalars = {name: _scalar(name, value) for name, value in given.items()}
        self._step += 1
        if not self._shows:
            return
        if scalars:
            self._pending.append((self._step, scalars))
        now = scalars.get("loss")
        lost = isinstance(now, float) and not math.isfinite(now)
        # A loss that is not finite is followed up in the very next step.
        again = self._due(self._step + 1) or lost
        alerts = self._measure(again=again) if self._watch.active else []
        if self._pending and not isinstance(now, Tensor):
            alerts += (late := self._flush())
            self._keep_alerts(late)
        if self._probe is not None and self._step % self._every == 0:
            self._draw()
        if again and not self._watch.active:
            self._parameters.before()
        self._watch.active = again
        for alert in alerts:
            self._tell(alert)

    def begin_forward(self) -> None:
        """Says that another forward of the same step begins.

        Needed with gradient accumulation alone, where the loop calls parts of the model and never
        the model itself: calls of a layer are numbered within a forward.
        """
        self._watch.begin_forward()

    def log(self, step: int, **numbers: Any) -> None:
        """Keeps numbers that are known after their step, such as those of a validation.

        Args:
            step: To which they belong.
            **numbers: By name.

        Raises:
            MonitorError: A value is no number.
        """
        values = {name: float(_scalar(name, value)) for name, value in numbers.items()}
        if self._open and self._shows and values:
            self._keep({"kind": "scalars", "step": step, "values": values})

    def _due(self, step: int) -> bool:
        return step == 1 or step % self._stats_every == 0

    def _measure(self, *, again: bool) -> list[Alert]:
        """Keeps the numbers of this step."""
        lost = self._flush()
        tallies = self._watch.take()
        numbers = self._parameters.numbers(again=again)
        rows = [_row(place, tally.numbers(), OF_OUTPUT) for place, tally in tallies.items()]
        rows += [_row(Place(n, 0), found, OF_PARAMETERS) for n, found in numbers.items() if found]
        self._keep({"kind": "step", "step": self._step, "layers": rows})
        alerts = list(
            self._alarm.of_step(
                self._step, tallies, numbers, lambda: self._parameters.faults(numbers)
            )
        )
        if any(alert.kind == "output" for alert in alerts):  # from which the loss follows
            lost = [alert for alert in lost if alert.step < self._step]
        alerts = [*lost, *alerts]
        self._keep_alerts(alerts)
        self._measured += 1
        if self._measured == 1:
            self._say_unseen(tallies, numbers)
        return alerts

    def _flush(self) -> list[Alert]:
        """Keeps the numbers that were given to `step`; the alerts are the caller's to keep."""
        alerts: list[Alert] = []
        for step, scalars in self._pending:
            values = {name: float(value) for name, value in scalars.items()}
            self._keep({"kind": "scalars", "step": step, "values": values})
            if "loss" in values:
                alerts += self._alarm.of_loss(step, values["loss"])
        self._pending.clear()
        return alerts

    def _unfinished(self) -> None:
        """Looks at what was measured in a step that has failed."""
        self._keep_alerts(self._flush())
        if tallies := self._watch.take():
            self._keep_alerts(list(self._alarm.of_step(self._step + 1, tallies, {}, lambda: ())))

    def _say_unseen(
        self, tallies: Mapping[Place, OutputNumbers], numbers: Mapping[str, Any]
    ) -> None:
        seen = {place.layer for place in tallies}
        for name in self._watched:
            if name in seen:
                continue
            if name in self._watch.unseen:
                why = f"Not measured: {self._watch.unseen[name]}."
            elif self._compiled or _has_compiled(self._model):
                why = (
                    "Not measured: it runs in code that torch.compile made before the monitor was "
                    "there, which leaves hooks out; enter the monitor first and compile then. "
                    "Gradients, updates and the probe's maps are seen."
                )
            else:
                why = (
                    "Not measured: no forward with gradients called it in the first step that was "
                    "measured."
                )
            self._note(name, why)
        if numbers and not any("gradient" in found for found in numbers.values()):
            self._note(
                "",
                "No parameter had a gradient when step() was called: call it after backward() and "
                "before optimizer.zero_grad().",
            )

    # ── keeping

    def _keep(self, record: Mapping[str, Any]) -> None:
        self._add(record)
        if self._folder is not None:
            self._folder.add(record)

    def _note(self, layer: str, text: str) -> None:
        self._keep({"kind": "note", "layer": layer, "text": text})

    def _keep_alerts(self, alerts: Iterable[Alert]) -> None:
        for alert in alerts:
            self._keep(alert_record(alert))

    def _tell(self, alert: Alert) -> None:
        if callable(self._on_alert):
            self._on_alert(alert)
        elif self._on_alert == "raise":
            raise MonitorError(alert.text)
        elif self._on_alert == "warn":
            warnings.warn(alert.text, TrainingWarning, stacklevel=3)

    def _draw(self) -> None:
        """Draws the probe's maps and the filters; what cannot be drawn is noted."""
        assert self._probe is not None  # noqa: S101 - asked by the callers
        try:
            for number, drawn in enumerate(self._probe.draw()):
                plain = re.sub(r"[^A-Za-z0-9.-]+", "-", drawn.layer)[:60]
                name = f"{self._step:08d}_{number:03d}_{plain}_{drawn.kind}.png"
                if self._folder is not None:
                    self._folder.write_picture(name, drawn.png, drawn.kept)
                else:
                    self._remember(name, drawn)
                place = drawn.layer, drawn.call, drawn.leaf
                at = PictureAt(self._step, *place, drawn.kind, name, *drawn.ends)
                self._keep(picture_record(at))
        except MonitorError:
            raise
        except Exception as error:  # noqa: BLE001 - training goes on
            self._note("", f"Step {self._step}: the probe could not be drawn: {fault_text(error)}")

    def _remember(self, name: str, drawn: Drawn) -> None:
        self._in_memory[name] = drawn
        held = sum(one.kept.nbytes + len(one.png) for one in self._in_memory.values())
        if len(self._in_memory) > _MOST_PICTURES or held > _MOST_BYTES:
            steps = sorted({p.step for p in self.pictures if p.file in self._in_memory})
            gone = {p.file for p in self.pictures if p.step in steps[1:-1:2]}
            self.pictures = [p for p in self.pictures if p.file not in gone]
            self._in_memory = {n: one for n, one in self._in_memory.items() if n not in gone}

    def _png(self, picture: PictureAt) -> bytes:
        if self._folder is not None:
            return read_picture(self._folder.path, picture)
        return self._held(picture).png

    def _kept(self, picture: PictureAt) -> KeptMaps:
        if self._folder is not None:
            return KeptMaps.read(values_path(self._folder.path, picture.file))
        return self._held(picture).kept

    def _held(self, picture: PictureAt) -> Drawn:
        try:
            return self._in_memory[picture.file]
        except KeyError:
            raise MonitorError(
                f"The pictures of step {picture.step} were let go.",
                remedy="With a folder as out all are kept.",
            ) from None


def _row(place: Place, numbers: Mapping[str, float], names: Iterable[str]) -> list[Any]:
    """A line of a step's record; floats to nine digits, which tell any two of float32 apart."""
    values = [None if n not in numbers else float(f"{numbers[n]:.9g}") for n in names]
    return [*place, *values]


def _scalar(name: str, value: Any) -> float | Tensor:
    """A number that was given to step(), without waiting for its device."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise MonitorError(f"{name} has {value.numel()} values; step() takes one.")
        value = value.detach().reshape(())
        return float(value) if value.device.type == "cpu" else value.clone()
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise MonitorError(f"{name} is no number: {error_text(error)}.") from error


def _inner(model: nn.Module) -> nn.Module:
    """The model without what wraps it for several devices or compiles it."""
    while True:
        inner = resolve(model)
        if isinstance(inner, DataParallel | DistributedDataParallel):
            inner = inner.module
        if inner is model:
            return model
        model = inner


def _has_compiled(model: nn.Module) -> bool:
    return any(m.__dict__.get("_compiled_call_impl") is not None for m in model.modules())


def _rank() -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
