"""A layer's maps through a training: the values at each step that was drawn, on one scale."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Unpack
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from hookviz._axes import KnownAxes, Places
from hookviz.activation import Activation
from hookviz.errors import MonitorError
from hookviz.render import (
    ChannelStrip,
    Drawing,
    DrawingOptions,
    FigureFacts,
    GridOptions,
    arrange,
    draw,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SAID = ("layer", "call", "calls", "run", "order", "kind", "leaf", "module_type")


@dataclass(frozen=True, eq=False)
class KeptMaps:
    """What a layer answered to the probe at one step, or its filters.

    Attributes:
        activation: The record; its tensor is on the CPU.
        facts: What figures say of it.
    """

    activation: Activation
    facts: FigureFacts

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.activation.tensor.numel() * self.activation.tensor.element_size()

    def write(self, file: IO[bytes]) -> None:
        """Writes it as an ``.npz``: ``values``, and ``facts``, a JSON text; no pickle."""
        tensor, axes = self.activation.tensor, self.activation.axes
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.float()  # NumPy lacks it; every value stays
        said: dict[str, Any] = {name: getattr(self.activation, name) for name in _SAID}
        said["axes"] = axes and {**asdict(axes), "windows": None}
        said["figure"] = asdict(self.facts)
        facts = np.array(json.dumps(said, ensure_ascii=True))
        np.savez(file, values=tensor.numpy(), facts=facts, allow_pickle=False)

    @classmethod
    def read(cls, path: Path) -> KeptMaps:
        """Reads what `write` wrote.

        Raises:
            MonitorError: It is none, or gone.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                said, values = json.loads(str(arrays["facts"])), arrays["values"]
            axes, figure = said["axes"], said["figure"]
            if axes is not None:
                places = axes["places"]
                axes["places"] = places and Places(**{**places, "grid": _pair(places["grid"])})
                axes = KnownAxes(**axes)
            figure["input_size"] = _pair(figure["input_size"])
            fields = {name: said[name] for name in _SAID}
            return cls(
                Activation(**fields, tensor=torch.from_numpy(values), axes=axes),
                FigureFacts(**figure),
            )
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile) as error:
            raise MonitorError(f"The values {str(path)!r} cannot be read: {error}.") from error


class MapsOverTime:
    """A layer's maps, or filters, at all steps that were drawn.

    `hookviz.monitoring.TrainingHistory.over_time` gives it. One scale serves all steps: from the
    lowest to the highest end that the scale of any step has by itself, so that a color stands for
    the same value in each figure.

    Args:
        label: What they are, for messages.
        steps: After how many steps they were taken, ascending.
        ends: Ends of each step's own scale; None where it has none.
        read: Gives what was kept of a step.
    """

    def __init__(
        self,
        label: str,
        steps: Sequence[int],
        ends: Sequence[tuple[float, float] | None],
        read: Callable[[int], KeptMaps],
    ) -> None:
        self._label, self._read = label, read
        self.steps = tuple(steps)
        self._ends = [pair for pair in ends if pair is not None]

    @property
    def ends(self) -> tuple[float, float] | None:
        """The one scale: values of the first and last color; None where there is none."""
        if not self._ends:
            return None
        low, high = min(a for a, _ in self._ends), max(b for _, b in self._ends)
        if any(a == -b for a, b in self._ends) and low < 0:  # symmetric about zero stays so
            high = max(-low, high)
            low = -high
        return (low, high) if low < high else None

    def activation(self, step: int | None = None) -> Activation:
        """The values at a step: one image's activations, on the CPU.

        Args:
            step: One of ``steps``; None is the newest.

        Raises:
            MonitorError: Nothing was kept of that step.
        """
        return self._read(self._known(step)).activation

    def figure(self, step: int | None = None, **options: Unpack[DrawingOptions]) -> Figure:
        """The maps at a step, on the one scale of all steps.

        Args:
            step: One of ``steps``; None is the newest.
            **options: Fields of `hookviz.render.GridOptions`; with a ``scale`` of its own the
                figure has that one.

        Returns:
            A new figure that is not registered with pyplot.

        Raises:
            MonitorError: Nothing was kept of that step.
            RenderError: They cannot be drawn so.
        """
        return self.drawing(step, options).figure

    def drawing(self, step: int | None, options: Mapping[str, Any]) -> Drawing:
        """The same with what it says about itself, see `figure`."""
        step = self._known(step)
        kept, ends = self._read(step), self.ends
        chosen: dict[str, Any] = {"style": "light", **options}
        if ends is not None and "scale" not in chosen and "vmin" not in chosen:
            chosen |= {"scale": "shared", "vmin": ends[0], "vmax": ends[1]}
        chosen.setdefault("title", f"{self._label} after {step} steps")
        return draw(kept.activation, GridOptions.of(**chosen), facts=kept.facts)

    def strip(self, channel: int, *, most: int = 8, **options: Unpack[DrawingOptions]) -> Figure:
        """One channel's map at several steps side by side, on one scale.

        Args:
            channel: Its index.
            most: At how many steps; of more they are chosen evenly, the first and the last among
                them.
            **options: Fields of `hookviz.render.GridOptions`.

        Returns:
            A new figure that is not registered with pyplot.

        Raises:
            MonitorError: There is no such channel, or ``most`` is below 2.
            RenderError: The layer has no maps.
        """
        return self.strip_drawing(channel, most, options).figure

    def strip_drawing(self, channel: int, most: int, options: Mapping[str, Any]) -> Drawing:
        """The same with what it says about itself, see `strip`."""
        if most < 2:
            raise MonitorError(f"most is {most}; legal is a number from 2.")
        steps = self.steps
        if len(steps) > most:
            at = np.linspace(0, len(steps) - 1, most).round().astype(int)
            steps = tuple(steps[one] for one in at)
        maps = []
        for step in steps:
            kept = self._read(step)
            arranged = arrange(kept.activation, GridOptions(), kept.facts.input_size)
            count = len(arranged.maps)
            if arranged.maps.dim() != 3 or not 0 <= channel < count:
                raise MonitorError(
                    f"{self._label} has no channel {channel} to show; it has 0 to {count - 1}."
                    if arranged.maps.dim() == 3
                    else f"{self._label} are colors, which have no channels by themselves."
                )
            maps.append(arranged.maps[channel])
        if len({tuple(one.shape) for one in maps}) > 1:
            raise MonitorError(f"The maps of {self._label} are not of one size at all steps.")
        one = kept.activation
        strip = ChannelStrip(
            one.layer, one.call, one.calls, one.run, one.order, "strip", one.leaf,
            one.module_type, torch.stack(maps), steps=steps, channel=channel,
        )  # fmt: skip
        chosen: dict[str, Any] = {"style": "light", **options}
        return draw(strip, GridOptions.of(**chosen), facts=kept.facts)

    def channels(self) -> int:
        """How many channels there are to show in a `strip`; 0 where none can be shown."""
        kept = self._read(self.steps[-1])
        maps = arrange(kept.activation, GridOptions(), kept.facts.input_size).maps
        return len(maps) if maps.dim() == 3 and maps.shape[-1] * maps.shape[-2] > 1 else 0

    def values(self, channel: int) -> NDArray[np.float64]:
        """(S, H, W) a channel's values at all steps, in the activation's own units; a copy."""
        found = [
            arrange(kept.activation, GridOptions(), kept.facts.input_size).maps[channel]
            for kept in map(self._read, self.steps)
        ]
        return torch.stack(found).double().numpy()

    def _known(self, step: int | None) -> int:
        if step is None:
            return self.steps[-1]
        if step not in self.steps:
            raise MonitorError(
                f"Nothing of {self._label} was kept at step {step}; there are {list(self.steps)}."
            )
        return step


def _pair(value: Any) -> tuple[int, int] | None:
    return None if value is None else (int(value[0]), int(value[1]))
