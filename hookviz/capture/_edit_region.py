"""Which part of a tensor an edit changes: channels, a place, heads, or all of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from hookviz._axes import Hints, candidates, read_axes
from hookviz.errors import CaptureError, HookvizError

if TYPE_CHECKING:
    from hookviz.capture._editing import Site

Channels: TypeAlias = int | Iterable[int]
Place: TypeAlias = int | tuple[int, int] | tuple[int, int, int]


@dataclass(frozen=True)
class Region:
    """A part of a tensor; what is None does not narrow it down.

    Attributes:
        channels: Indices of the channels.
        place: Where: (row, column); one number is a token or a position of a sequence, three are
            (frame, row, column).
        heads: Indices of attention heads; each stands for its own share of the last axis.
        axis: The channels' axis; None where the layer or the shape says it.
    """

    channels: tuple[int, ...] | None = None
    place: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    axis: int | None = None

    @classmethod
    def of(
        cls,
        channels: Channels | None = None,
        place: Place | None = None,
        heads: Channels | None = None,
        axis: int | None = None,
    ) -> Region:
        """The region that a caller asked for.

        Raises:
            CaptureError: No channel, place or head is named so, or heads are to be combined.
        """
        if heads is not None and not channels is place is axis is None:
            raise CaptureError("heads= already says which values; leave channels, place and axis.")
        at = None
        if place is not None:
            at = tuple(place) if isinstance(place, tuple | list) else (place,)
            bad = [n for n in at if not isinstance(n, int) or isinstance(n, bool) or n < 0]
            if bad or not 1 <= len(at) <= 3:
                raise CaptureError(
                    "place must be (row, column), the number of a token or (frame, row, column), "
                    f"in whole numbers from 0, not {place!r:.80}."
                )
        named = None if channels is None else indices(channels)
        return cls(named, at, None if heads is None else indices(heads, "Heads"), axis)

    @property
    def text(self) -> str:
        """The region as people read it.

        Examples:
            >>> Region.of(3, place=(4, 5)).text, Region.of(heads=[0, 2]).text, Region().text
            ('channel 3 at (4, 5)', 'heads 0, 2', 'the whole output')
        """
        if self.heads is not None:
            return _counted("head", self.heads)
        words = "the whole output" if self.channels is None else _counted("channel", self.channels)
        if self.place is None:
            return words
        at = str(self.place) if len(self.place) > 1 else f"token {self.place[0]}"
        return f"{words if self.channels is not None else 'all channels'} at {at}"

    def record(self) -> dict[str, Any]:
        """What is not None, as values that JSON knows."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
            if value is not None
        }

    def mask(self, tensor: Tensor, site: Site) -> Tensor | None:
        """(…) bool, broadcastable to the tensor: True where it is changed; None: everywhere.

        Raises:
            CaptureError: There is no such channel, place or head, or the axes are not known.
        """
        if self.heads is not None:
            _check_within(self.heads, site.heads, "head", f"in '{site.layer}'")
            last = tensor.shape[-1]
            own = torch.arange(last, device=tensor.device) // (last // site.heads)
            return torch.isin(own, torch.tensor(self.heads, device=tensor.device))
        mask = None
        if self.channels is not None:
            axis = channel_axis(self.axis, tensor, site)
            mask = _along(axis, self.channels, tensor, "channel", site)
        if self.place is not None:
            for axis, number in self._at(tensor, site):
                there = _along(axis, (number,), tensor, "place", site)
                mask = there if mask is None else mask & there
        return mask

    def _at(self, tensor: Tensor, site: Site) -> list[tuple[int, int]]:
        """For each axis of places, the number of the one that is meant."""
        place, shape = self.place or (), tuple(tensor.shape)
        axes = place_axes(channel_axis(self.axis, tensor, site), tensor)
        if len(axes) == len(place):
            return list(zip(axes, place, strict=True))
        if len(axes) == 1 and len(place) == 2:
            count = shape[axes[0]]
            found = next(candidates((1, count, 1), None), None)
            if found is None or found.grid is None:
                raise CaptureError(
                    f"Where (row, column) lies among the {count} tokens of {site} is not known.",
                    remedy="Give the number of the token: place=5.",
                )
            rows, columns = found.grid
            what = f"in {site}, whose tokens lie in {rows} rows and {columns} columns"
            _check_within(place[:1], rows, "row", what)
            _check_within(place[1:], columns, "column", what)
            return [(axes[0], found.apart + place[0] * columns + place[1])]
        legal = {0: "no places", 1: "tokens or positions: place=5", 2: "places (row, column)"}
        raise CaptureError(
            f"There is no place {place if len(place) > 1 else place[0]} in {site}, of shape "
            f"{shape}: it has {legal.get(len(axes), 'places (frame, row, column)')}."
        )


def indices(given: Channels, what: str = "Channels") -> tuple[int, ...]:
    """The channels or heads that were asked for, each once, as plain numbers.

    Raises:
        CaptureError: None is given, or one is no whole number.
    """
    plain: Any = given.tolist() if isinstance(given, Tensor) else given
    each = tuple(plain) if isinstance(plain, Iterable) else (plain,)
    bad = [c for c in each if isinstance(c, bool) or not hasattr(c, "__index__")]
    if bad or not each:
        found = f"{bad[0]!r}" if bad else "none"
        raise CaptureError(f"{what} are given by one or more indices, from 0, not {found}.")
    return tuple(dict.fromkeys(int(c) for c in each))


def _counted(noun: str, numbers: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
    return f"{noun}{'s' if len(numbers) > 1 else ''} {shown}"


def is_dense(tensor: Tensor) -> bool:
    """Whether its elements lie in an array."""
    return not (tensor.is_nested or tensor.is_quantized) and tensor.layout is torch.strided


def channel_axis(axis: int | None, tensor: Tensor, site: Site) -> int:
    """The axis of the channels, counted from 0.

    Raises:
        CaptureError: It is not known, or there is none of that number.
    """
    if not is_dense(tensor):
        layout = "nested" if tensor.is_nested else tensor.layout
        found = "quantised" if tensor.is_quantized else f"not dense ({layout})"
        raise CaptureError(
            f"Single channels of {site} cannot be edited: it is {found}.",
            remedy="Use replace_output with a function that converts it.",
        )
    shape = tuple(tensor.shape)
    own = axis if axis is not None else own_axis(site, shape)
    if own is None:
        raise CaptureError(
            f"Which axis of {site}, of shape {shape}, holds the channels is not known.",
            remedy="Give axis=, for example axis=-1 for tokens.",
        )
    if not isinstance(own, int) or not -tensor.ndim <= own < tensor.ndim:
        raise CaptureError(f"There is no axis {own!r} in {site}, of shape {shape}.")
    return own % tensor.ndim


def place_axes(channel: int, tensor: Tensor) -> list[int]:
    """The axes that count neither samples nor channels."""
    first = 1 if tensor.ndim > 1 and channel != 0 else 0
    return [axis for axis in range(first, tensor.ndim) if axis != channel]


def _check_within(numbers: Iterable[int], count: int, noun: str, what: str) -> None:
    for number in numbers:
        if not 0 <= number < count:
            raise CaptureError(
                f"There is no {noun} {number} {what}: its {noun}s are 0 to {count - 1}."
            )


def _along(axis: int, numbers: tuple[int, ...], tensor: Tensor, noun: str, site: Site) -> Tensor:
    """A mask of some places along one axis that broadcasts to the tensor."""
    count, shape = tensor.shape[axis], tuple(tensor.shape)
    _check_within(numbers, count, noun, f"along axis {axis} of {site}, of shape {shape}")
    all_of_them = torch.arange(count, device=tensor.device)
    chosen = torch.isin(all_of_them, torch.tensor(numbers, device=tensor.device))
    return chosen.reshape([-1 if at == axis else 1 for at in range(tensor.ndim)])


# Layers that say how many axes follow their channels, so that inputs without a batch work too.
_FOLLOWING: tuple[tuple[tuple[type[nn.Module], ...], int], ...] = (
    ((nn.Linear, nn.LayerNorm, nn.Embedding, nn.LSTM, nn.GRU, nn.RNN, nn.MultiheadAttention), 0),
    ((nn.Conv1d, nn.ConvTranspose1d, nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d), 1),
    ((nn.Conv2d, nn.ConvTranspose2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d), 2),
    ((nn.Conv3d, nn.ConvTranspose3d, nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d), 3),
)


def own_axis(site: Site, shape: tuple[int, ...]) -> int | None:
    """The axis of the channels of what a layer gives, from 0; None where that is not known."""
    ndim = len(shape)
    for kinds, following in _FOLLOWING:
        if isinstance(site.module, kinds):
            return ndim - 1 - following
    if isinstance(site.module, nn.modules.batchnorm._BatchNorm | nn.GroupNorm):  # noqa: SLF001 - the norms' common base
        return 1
    if ndim in (3, 4):
        # Blocks of transformers: (N, T, D) and (N, H, W, C), where type and shape are sure of it.
        try:
            reading = read_axes(shape, hints=Hints(type(site.module).__name__, site.layer))
        except HookvizError:
            return None
        if reading.layout in ("tokens", "channels-last") and "possibly" not in reading.doubt:
            return ndim - 1
    return {1: 0, 2: 1, 4: 1, 5: 1}.get(ndim)
