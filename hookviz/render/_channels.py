"""Single channels as images, one pixel per activation: rendered here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hookviz.activation import Activation
from hookviz.errors import RenderError
from hookviz.render._arrange import arrange
from hookviz.render._kinds import FigureFacts
from hookviz.render._levels import take, to_levels
from hookviz.render._measure import extents
from hookviz.render._options import GridOptions, in_a_sentence, whole
from hookviz.render._palette import ColorTable, choose_cmap, color_table, colored
from hookviz.render._scaling import scaling

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


class SingleChannels:
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
        self,
        source: Activation | Tensor,
        options: GridOptions,
        input_size: tuple[int, int] | None = None,
    ) -> None:
        self._name = f"'{source.label}'" if isinstance(source, Activation) else "The tensor"
        self.arranged = arrange(source, options, input_size)
        with in_a_sentence(f"a tensor of shape {self.arranged.shape}"):
            self.extents = extents(self.arranged.maps, self.arranged.apart)
            self.scaling = scaling(self.arranged, self.extents, options)
        cmap = choose_cmap(options.cmap, options.style, symmetric=self.scaling.symmetric)
        self.table = color_table(cmap)

    @property
    def count(self) -> int:
        """Channels in all."""
        return int(self.arranged.maps.shape[0])

    def images(self, channels: Sequence[int]) -> Iterator[ChannelImage]:
        """The channels in the order given, scaled on the tensor's device a batch at a time.

        Raises:
            RenderError: A channel is beyond the layer's last one.
        """
        beyond = [channel for channel in channels if not 0 <= channel < self.count]
        if beyond:
            raise RenderError(
                f"{self._name} has {self.count} channels, 0 to {self.count - 1}; channel "
                f"{beyond[0]} is not one of them.",
                code="no-such-channel",
                details={"channel": beyond[0], "last": self.count - 1},
            )
        maps = self.arranged.maps
        step = max(1, _BATCH // max(1, maps[0].numel()))
        low, high, found = self.scaling.low, self.scaling.high, self.extents
        odd = (found.nan + found.posinf + found.neginf) > 0
        with np.errstate(invalid="ignore"):
            odd |= (found.low < low) | (found.high > high)
        for at in range(0, len(channels), step):
            part = list(channels[at : at + step])
            levels = to_levels(
                take(maps, part), low[part], high[part], flagged=bool(odd[part].any())
            )
            for row, channel in enumerate(part):
                flags = None if levels.flags is None or not odd[channel] else levels.flags[row]
                yield ChannelImage(
                    channel,
                    levels.levels[row],
                    flags if flags is not None and flags.any() else None,
                    float(low[channel]),
                    float(high[channel]),
                )


def single_channel(
    source: Activation | Tensor,
    channel: int,
    options: GridOptions | None = None,
    factor: int = 1,
    *,
    facts: FigureFacts | None = None,
) -> NDArray[np.uint8]:
    """One channel as an image of one pixel (or ``factor`` by ``factor``) per activation.

    Args:
        source: An activation or tensor.
        channel: Its index.
        options: Scale, colormap, sample and frame; None is GridOptions().
        factor: Pixels per activation in both directions, at least 1.
        facts: Its ``input_size`` helps to read the axes.

    Returns:
        (H · factor, W · factor, 3) uint8, or (H · factor, W · factor) for a gray colormap.

    Raises:
        RenderError: There is no such channel, it is a single value, or as in ``draw``.

    Examples:
        >>> import torch
        >>> single_channel(torch.rand(1, 8, 5, 7), 3, factor=2).shape
        (10, 14, 3)
    """
    factor = whole("factor", factor, low=1)
    layer = SingleChannels(source, options or GridOptions(), facts.input_size if facts else None)
    if layer.arranged.maps[0].numel() == 1:
        raise RenderError(
            f"The layer of shape {layer.arranged.shape} holds single values; it has no maps."
        )
    image = next(layer.images([channel]))
    rgb, table = image.rgb(layer.table), layer.table.rgb
    gray = image.flags is None and image.levels.ndim == 2 and bool((table == table[:, :1]).all())
    return np.ascontiguousarray(rgb[..., 0] if gray else rgb).repeat(factor, 0).repeat(factor, 1)
