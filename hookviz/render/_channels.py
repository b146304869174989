"""Single channels as images, one pixel per activation: rendered here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hookviz.activation import Activation
from hookviz.errors import RenderError
from hookviz.render._arrange import Source
from hookviz.render._draw import FigureFacts, Subject
from hookviz.render._levels import take, to_levels
from hookviz.render._options import GridOptions
from hookviz.render._palette import ColorTable, colored

_BATCH = 2_000_000  # activations scaled at a time


@dataclass(frozen=True, eq=False)
class ChannelImage:
    """The levels of one channel.

    Attributes:
        channel: Its index in the layer.
        levels: (H, W) uint8; or (3, H, W) where the channel is a color image itself.
        flags: Of the same shape, see `Flag`; None where every level counts.
        vmin: Value of level 0.
        vmax: Value of level 255.
    """

    channel: int
    levels: NDArray[np.uint8]
    flags: NDArray[np.uint8] | None
    vmin: float
    vmax: float

    def rgb(self, table: ColorTable) -> NDArray[np.uint8]:
        """(H, W, 3) uint8, by the table."""
        flags = None if self.flags is None else self.flags[None]
        colors = colored(self.levels[None], flags, table)[0]
        rgba: NDArray[np.uint8] = colors.view(np.uint8).reshape(*colors.shape, 4)
        return rgba[..., :3]


class SingleChannels(Subject):
    """Measures a layer once, then renders any of its channels.

    Args:
        source: An activation or tensor whose channels are more than single values.
        options: ``scale``, ``cmap``, ``sample``, ``frame``, ``axes``, ``grid`` and ``style`` are
            used.
        input_size: (height, width) of what the network saw, which helps to read the axes.

    Attributes:
        arranged: The layer, its axes turned.
        extents: What was measured, all channels.
        scaling: What the colors mean.
        table: The colors.

    Raises:
        RenderError: The tensor cannot be drawn so.
    """

    def __init__(
        self, source: Source, options: GridOptions, input_size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(source, options, FigureFacts(input_size=input_size))
        with self.in_a_sentence():  # what fails shall fail here, not at the first channel
            self.table, self.flagged  # noqa: B018

    def images(self, channels: Sequence[int]) -> Iterator[ChannelImage]:
        """The channels in the order given, scaled on the tensor's device a batch at a time.

        Raises:
            RenderError: A channel is beyond the layer's last one.
        """
        maps = self.arranged.maps
        last = maps.shape[0] - 1
        beyond = [channel for channel in channels if not 0 <= channel <= last]
        if beyond:
            source = self.source
            name = f"'{source.label}'" if isinstance(source, Activation) else "The tensor"
            raise RenderError(
                f"{name} has {last + 1} channels, 0 to {last}; channel {beyond[0]} is not "
                "one of them.",
                code="no-such-channel",
                details={"channel": beyond[0], "last": last},
            )
        step = max(1, _BATCH // maps[0].numel())
        low, high = self.scaling.low, self.scaling.high
        for at in range(0, len(channels), step):
            part = list(channels[at : at + step])
            taken = take(maps, part)
            levels, flags = to_levels(taken, low[part], high[part], flagged=self.flagged)
            for row, channel in enumerate(part):
                odd = None if flags is None or not flags[row].any() else flags[row]
                ends = float(low[channel]), float(high[channel])
                yield ChannelImage(channel, levels[row], odd, *ends)
