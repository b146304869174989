"""Edits of single channels, and which axis the channels of a layer's output are.

In: channels and a factor. Out: an Edit. Must not know: hooks, how an edit reaches its layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from hookviz.capture._checks import check_number
from hookviz.capture._sites import Edit, Layers, Site
from hookviz.errors import CaptureError

__all__ = [
    "channel_axis",
    "channel_indices",
    "channels_text",
    "index_tensor",
    "scale_channels",
    "zero_channels",
]


def scale_channels(
    layers: Layers,
    channels: int | Iterable[int],
    factor: float,
    *,
    axis: int | None = None,
    call: int | None = None,
    leaf: str | None = None,
) -> Edit:
    """Some channels of a layer's output are multiplied by a factor.

    Args:
        layers: Selectors of the layers.
        channels: Index or indices of the channels, from 0.
        factor: What the channels are multiplied by; 0 also turns NaN and Inf into 0.
        axis: The channels' axis. None: what the layer says (convolution, pooling, norms, Linear,
            Embedding), else axis 1 of four or five axes and the last of one or two; a tensor of
            three axes from another layer needs to be told.
        call: Only this call of the layer within a forward, from 1; None for every call.
        leaf: Which tensor of a nested output.

    Returns:
        An edit.

    Raises:
        CaptureError: No channel is given; while the model runs: a channel is out of range, or
            the axis is not known.
    """
    wanted = channel_indices(channels)
    check_number("factor", factor, "a finite number", math.isfinite)

    def change(tensor: Tensor, site: Site) -> Tensor:
        place = channel_axis(axis, tensor, site)
        index = index_tensor(wanted, tensor, place, site)
        if factor == 0:
            return tensor.index_fill(place, index, 0)
        picked = tensor.index_select(place, index) * factor
        return tensor.index_copy(place, index, picked.to(tensor.dtype))

    verb = "zero" if factor == 0 else f"scale by {factor:g}"
    return Edit(layers, "output", change, f"{verb} {channels_text(wanted)}", call, leaf)


def zero_channels(
    layers: Layers,
    channels: int | Iterable[int],
    *,
    axis: int | None = None,
    call: int | None = None,
    leaf: str | None = None,
) -> Edit:
    """Some channels of a layer's output become 0, as if they had been cut out.

    The arguments are those of :func:`scale_channels`.

    Examples:
        >>> from hookviz.capture._edits import edit
        >>> net = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU())
        >>> with edit(net, zero_channels("0", [0, 3])):
        ...     output = net(torch.ones(1, 1, 2, 2))
        >>> output[:, [0, 3]].abs().max().item()
        0.0
    """
    return scale_channels(layers, channels, 0.0, axis=axis, call=call, leaf=leaf)


def channel_indices(channels: int | Iterable[int]) -> tuple[int, ...]:
    """The channels that were asked for, each once, as plain numbers."""
    given: Any = channels.tolist() if isinstance(channels, Tensor) else channels
    each = tuple(given) if isinstance(given, Iterable) else (given,)
    bad = [c for c in each if isinstance(c, bool) or not hasattr(c, "__index__")]
    if bad or not each:
        found = f"{bad[0]!r}" if bad else "none"
        raise CaptureError(f"Channels are given by one or more indices, from 0, not {found}.")
    return tuple(dict.fromkeys(int(c) for c in each))


def index_tensor(channels: tuple[int, ...], tensor: Tensor, axis: int, site: Site) -> Tensor:
    """Channels as an index on the tensor's device; CaptureError where one is out of range."""
    count = tensor.shape[axis]
    beyond = [c for c in channels if not 0 <= c < count]
    if beyond:
        raise CaptureError(
            f"There is no channel {beyond[0]} in {site}, of shape {tuple(tensor.shape)}: its "
            f"channels are 0 to {count - 1} (axis {axis})."
        )
    return torch.tensor(channels, device=tensor.device)


def channel_axis(axis: int | None, tensor: Tensor, site: Site) -> int:
    """The axis of the channels, counted from 0; CaptureError where it is not known."""
    if tensor.is_quantized or tensor.is_nested or tensor.layout is not torch.strided:
        layout = "nested" if tensor.is_nested else tensor.layout
        found = "quantised" if tensor.is_quantized else f"not dense ({layout})"
        raise CaptureError(
            f"Single channels of {site} cannot be edited: it is {found}.",
            remedy="Use replace_output with a function that converts it.",
        )
    place = axis if axis is not None else _own_axis(site.module, tensor.ndim)
    if place is None:
        raise CaptureError(
            f"Which axis of {site}, of shape {tuple(tensor.shape)}, holds the channels is not "
            "known.",
            remedy="Give axis=, for example axis=-1 for tokens.",
        )
    if not isinstance(place, int) or not -tensor.ndim <= place < tensor.ndim:
        raise CaptureError(f"There is no axis {place!r} in {site}, of shape {tuple(tensor.shape)}.")
    return place % tensor.ndim


# Layers that say how many axes follow their channels, so that inputs without a batch work too.
_FOLLOWING: tuple[tuple[tuple[type[nn.Module], ...], int], ...] = (
    ((nn.Linear, nn.LayerNorm, nn.Embedding, nn.LSTM, nn.GRU, nn.RNN, nn.MultiheadAttention), 0),
    ((nn.Conv1d, nn.ConvTranspose1d, nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d), 1),
    ((nn.Conv2d, nn.ConvTranspose2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d), 2),
    ((nn.Conv3d, nn.ConvTranspose3d, nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d), 3),
)


def _own_axis(module: nn.Module, ndim: int) -> int | None:
    for kinds, following in _FOLLOWING:
        if isinstance(module, kinds):
            return ndim - 1 - following
    if isinstance(module, nn.modules.batchnorm._BatchNorm | nn.GroupNorm):  # noqa: SLF001 - the norms' common base
        return 1
    return {1: 0, 2: 1, 4: 1, 5: 1}.get(ndim)


def channels_text(channels: tuple[int, ...]) -> str:
    """Channels as people read them: "channels 0, 3"."""
    shown = ", ".join(map(str, channels[:8])) + (", …" if len(channels) > 8 else "")
    return f"channel{'s' if len(channels) > 1 else ''} {shown}"
