"""Ready-made edits: channels scaled, values replaced or patched in, noise, limited gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, Unpack

import torch
from torch import Tensor, nn

from hookviz._tensors import dense
from hookviz.activation import Activation, Kind
from hookviz.capture._checks import check, check_choice, check_number, check_returned
from hookviz.capture._editing import Edit, Layers, Site, Where
from hookviz.errors import CaptureError

Channels: TypeAlias = int | Iterable[int]


def scale_channels(
    layers: Layers,
    channels: Channels,
    factor: float,
    *,
    axis: int | None = None,
    **where: Unpack[Where],
) -> Edit:
    """Some channels of a layer's output are multiplied by a factor.

    Args:
        layers: Selectors of the layers.
        channels: Index or indices of the channels, from 0.
        factor: What the channels are multiplied by; 0 also turns NaN and Inf into 0.
        axis: The channels' axis. None: what the layer says (convolution, pooling, norms, Linear,
            Embedding), else axis 1 of four or five axes and the last of one or two; a tensor of
            three axes from another layer needs axis=.
        **where: ``call``: only this call of the layer within a forward, from 1 (default: every
            one). ``leaf``: which tensor of a nested output.

    Returns:
        An edit.

    Raises:
        CaptureError: No channel is given; while the model runs: a channel is out of range, or
            the axis is not known.
    """
    wanted = channel_indices(channels)
    check_number("factor", factor, "a finite number", math.isfinite)

    def change(tensor: Tensor, site: Site) -> Tensor:
        place, index = place_of(wanted, axis, tensor, site)
        if factor == 0:
            return tensor.index_fill(place, index, 0)
        picked = tensor.index_select(place, index) * factor
        return tensor.index_copy(place, index, picked.to(tensor.dtype))

    verb = "zero" if factor == 0 else f"scale by {factor:g}"
    return Edit(layers, "output", change, f"{verb} {channels_text(wanted)}", **where)


def zero_channels(
    layers: Layers, channels: Channels, *, axis: int | None = None, **where: Unpack[Where]
) -> Edit:
    """Some channels of a layer's output become 0, as if they had been cut out.

    Args:
        layers: Selectors of the layers.
        channels: Index or indices of the channels, from 0.
        axis: The channels' axis, as in :func:`scale_channels`.
        **where: ``call``: only this call of the layer within a forward, from 1 (default: every
            one). ``leaf``: which tensor of a nested output.

    Returns:
        An edit; it raises as that of :func:`scale_channels` does.

    Examples:
        >>> from hookviz.capture import edit
        >>> net = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU())
        >>> with edit(net, zero_channels("0", [0, 3])):
        ...     output = net(torch.ones(1, 1, 2, 2))
        >>> output[:, [0, 3]].abs().max().item()
        0.0
    """
    return scale_channels(layers, channels, 0.0, axis=axis, **where)


def channel_indices(channels: Channels) -> tuple[int, ...]:
    """The channels that were asked for, each once, as plain numbers."""
    given: Any = channels.tolist() if isinstance(channels, Tensor) else channels
    each = tuple(given) if isinstance(given, Iterable) else (given,)
    bad = [c for c in each if isinstance(c, bool) or not hasattr(c, "__index__")]
    if bad or not each:
        found = f"{bad[0]!r}" if bad else "none"
        raise CaptureError(f"Channels are given by one or more indices, from 0, not {found}.")
    return tuple(dict.fromkeys(int(c) for c in each))


def place_of(
    channels: tuple[int, ...], axis: int | None, tensor: Tensor, site: Site
) -> tuple[int, Tensor]:
    """The axis of the channels, counted from 0, and their index on the tensor's device.

    Raises:
        CaptureError: The axis is not known, or a channel is out of range.
    """
    if _is_not_dense(tensor):
        layout = "nested" if tensor.is_nested else tensor.layout
        found = "quantised" if tensor.is_quantized else f"not dense ({layout})"
        raise CaptureError(
            f"Single channels of {site} cannot be edited: it is {found}.",
            remedy="Use replace_output with a function that converts it.",
        )
    shape = tuple(tensor.shape)
    place = axis if axis is not None else _own_axis(site.module, tensor.ndim)
    if place is None:
        raise CaptureError(
            f"Which axis of {site}, of shape {shape}, holds the channels is not known.",
            remedy="Give axis=, for example axis=-1 for tokens.",
        )
    if not isinstance(place, int) or not -tensor.ndim <= place < tensor.ndim:
        raise CaptureError(f"There is no axis {place!r} in {site}, of shape {shape}.")
    place, count = place % tensor.ndim, shape[place]
    beyond = [c for c in channels if not 0 <= c < count]
    if beyond:
        raise CaptureError(
            f"There is no channel {beyond[0]} in {site}, of shape {shape}: its channels are 0 to "
            f"{count - 1} (axis {place})."
        )
    return place, torch.tensor(channels, device=tensor.device)


def _is_not_dense(tensor: Tensor) -> bool:
    return tensor.is_nested or tensor.is_quantized or tensor.layout is not torch.strided


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


Replacement: TypeAlias = Callable[[Tensor], Tensor | None] | Tensor | Activation


def replace_output(layers: Layers, new: Replacement, **where: Unpack[Where]) -> Edit:
    """The output of layers is replaced or changed.

    Args:
        layers: Selectors of the layers.
        new: A function from the output to what goes on instead. It gets a copy, which it may
            change in place (then it may return None); what it returns is copied once more if it
            is another tensor, so that later in-place layers cannot write into it. Or a tensor or
            activation: see :func:`patch`.
        **where: ``call``: only this call of the layer within a forward, from 1 (default: every
            one). ``leaf``: which tensor of a nested output, by path or glob ("*": all); None for
            the only one.

    Returns:
        An edit for :func:`~hookviz.capture.edit` or
        :func:`~hookviz.capture.effect`.

    Raises:
        CaptureError: While the model runs: the function returned no tensor, or a tensor does not
            fit in the place of the output.
        LayerError: While the model runs: ``leaf`` names no tensor, or none is chosen of several.
    """
    return _replace("output", layers, new, **where)


def replace_input(layers: Layers, new: Replacement, **where: Unpack[Where]) -> Edit:
    """An input of layers is replaced or changed, before they run.

    Args:
        layers: Selectors of the layers.
        new: As in :func:`replace_output`.
        **where: ``call``: only this call of the layer within a forward, from 1 (default: every
            one). ``leaf``: the argument by its parameter of ``forward``: "x", however it was
            passed, "x.1" a tensor inside it, "*" all; None for the first one.

    Returns:
        An edit; it raises as that of :func:`replace_output` does.
    """
    return _replace("input", layers, new, **where)


def replace_gradient(
    layers: Layers, new: Replacement, *, of: str = "output", **where: Unpack[Where]
) -> Edit:
    """The gradient that flows back through layers is replaced or changed.

    Args:
        layers: Selectors of the layers.
        new: A function from the gradient to the one that flows on instead, or a tensor; as in
            :func:`replace_output`.
        of: "output": what comes back to the layer's output, before the layer's own backward
            step; "input": what the layer sends back to its input.
        **where: ``call``: only this call of the layer within a forward, from 1 (default: every
            one). ``leaf``: which tensor of a nested output or of several inputs.

    Returns:
        An edit; it acts in every backward pass while the edits are in force.
    """
    return _replace(_gradient_kind(of), layers, new, **where)


def patch(
    source: Activation | Tensor,
    layers: Layers | None = None,
    *,
    channels: Channels | None = None,
    axis: int | None = None,
    **where: Unpack[Where],
) -> Edit:
    """A stored activation takes the place of what the layer gives now.

    For activation patching between two images: capture a layer for the one, run the other with
    ``patch(activation)``, and see how far the output moves (Meng et al. 2022, "Locating and
    Editing Factual Associations in GPT", arXiv:2202.05262).

    Args:
        source: An activation, which knows its layer, call, leaf and kind, or a tensor. It is
            copied at each use, so that nothing can write into it, and moved to the device and
            dtype of what it replaces.
        layers: Where to; needed for a tensor, default the activation's own layer.
        channels: Only these channels; None for all.
        axis: Their axis, as in :func:`scale_channels`.
        **where: ``call``: default the activation's call where its layer ran several times, else
            every call. ``leaf``: default the activation's leaf.

    Returns:
        An edit.

    Raises:
        CaptureError: A tensor without layers; while the model runs: the shapes differ (a source
            with batch size 1 serves every row of a batch).
    """
    kind: Kind = "output"
    tensor: Any = source
    if isinstance(source, Activation):
        kind, tensor = source.kind, source.tensor
        if layers is None:
            layers = source.layer
            call, leaf = where.get("call"), where.get("leaf")
            where["call"] = source.call if call is None and source.calls > 1 else call
            where["leaf"] = source.leaf if leaf is None and source.leaf else leaf
    if not isinstance(tensor, Tensor):
        raise CaptureError(f"patch takes an Activation or a tensor, not {type(tensor).__name__}.")
    if layers is None:
        raise CaptureError("A tensor does not say where it belongs.", remedy="Give layers=.")
    wanted = None if channels is None else channel_indices(channels)
    what = "everything" if wanted is None else channels_text(wanted)
    return Edit(layers, kind, _stored(tensor, wanted, axis), f"patch {what}", **where)


def add_noise(
    layers: Layers, std: float, *, generator: torch.Generator | None = None, **where: Unpack[Where]
) -> Edit:
    """Gaussian noise is added to a layer's output.

    Args:
        layers: Selectors of the layers.
        std: Standard deviation, in the units of the output.
        generator: Where the numbers come from, on the generator's own device and so the same
            for every device of the model. None: torch's global generator of the output's device.
        **where: ``call``: only this call of the layer within a forward, from 1 (default: every
            one). ``leaf``: which tensor of a nested output.

    Returns:
        An edit.

    Raises:
        CaptureError: ``std`` is negative or no number; while the model runs: the output is not
            of floating point, or activation checkpointing makes the call again, which only the
            global generator can repeat.
    """
    check_number("std", std, "a finite number >= 0", lambda n: 0 <= n < math.inf)
    legal = isinstance(generator, torch.Generator | None)
    check("generator", generator, "a torch.Generator or None", holds=legal)

    def change(tensor: Tensor, site: Site) -> Tensor:
        if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_quantized:
            raise CaptureError(f"No noise can be added to {site}: its dtype is {tensor.dtype}.")
        if generator is None:
            return tensor + torch.randn_like(tensor) * std
        if site.recomputed:
            raise CaptureError(
                f"Checkpointing makes '{site.layer}' run again and its noise cannot be repeated.",
                remedy="Leave generator= out: checkpointing repeats torch's global generator.",
            )
        noise = torch.randn(
            tensor.shape, generator=generator, device=generator.device, dtype=tensor.dtype
        )
        return tensor + noise.to(tensor.device) * std

    return Edit(layers, "output", change, f"noise of {std:g}", **where)


def clamp_gradients(
    layers: Layers, limit: float, *, of: str = "output", **where: Unpack[Where]
) -> Edit:
    """Each element of the gradient that flows back through layers is limited to [-limit, limit].

    NaN stays NaN. For the gradients of parameters see :func:`~hookviz.capture.clip_gradients`.

    Args:
        layers: Selectors of the layers.
        limit: A positive number, in the units of the gradient; inf changes nothing.
        of: "output" or "input", as in :func:`replace_gradient`.
        **where: ``call``: only this call of the layer within a forward, from 1 (default: every
            one). ``leaf``: which tensor of a nested output or of several inputs.

    Returns:
        An edit; it acts in every backward pass while the edits are in force.

    Raises:
        CaptureError: ``limit`` is not positive.
    """
    check_number("limit", limit, "a number > 0", lambda n: n > 0)
    text = f"clamp to ±{limit:g}"
    return Edit(layers, _gradient_kind(of), lambda g, _: g.clamp(-limit, limit), text, **where)


def _replace(kind: Kind, layers: Layers, new: Replacement, **where: Unpack[Where]) -> Edit:
    what = kind.replace("_", " ")
    if isinstance(new, Activation | Tensor):
        put = _stored(new.tensor if isinstance(new, Activation) else new)
        return Edit(layers, kind, put, f"replace the {what}", **where)
    if not callable(new):
        raise CaptureError(
            f"The {what} is replaced by a function, a tensor or an Activation, not "
            f"{type(new).__name__}."
        )

    def change(tensor: Tensor, site: Site) -> Tensor:
        mine = tensor.clone()
        result = new(mine)
        if result is None or result is mine:
            return mine
        return check_returned(f"The function for {site}", result).clone()

    name = getattr(new, "__name__", type(new).__name__)
    return Edit(layers, kind, change, f"change the {what} by {name}", **where)


def _gradient_kind(of: str) -> Kind:
    check_choice("of", of, "output", "input")
    return "output_gradient" if of == "output" else "input_gradient"


def _stored(
    tensor: Tensor, channels: tuple[int, ...] | None = None, axis: int | None = None
) -> Callable[[Tensor, Site], Tensor]:
    """A change that puts a stored tensor, or some channels of it, in the place of the current."""
    stored = dense(tensor)

    def put(current: Tensor, site: Site) -> Tensor:
        if _is_not_dense(current):
            raise CaptureError(
                f"No stored tensor can replace {site}: it is nested, sparse or quantised.",
                remedy="Use a function that returns a tensor of that kind.",
            )
        if stored.is_complex() and not current.is_complex():
            raise CaptureError(f"A complex tensor cannot replace {site}: it is real.")
        here, there = tuple(stored.shape), tuple(current.shape)
        one_row = (1, *there[1:])[: len(there)]  # serves every row of a batch
        if here not in (there, one_row):
            raise CaptureError(
                f"A tensor of shape {here} cannot replace {site}, which is of shape {there}."
            )
        new = stored.to(device=current.device, dtype=current.dtype).expand(there)
        if channels is None:
            return new.clone()
        place, index = place_of(channels, axis, current, site)
        return current.index_copy(place, index, new.index_select(place, index))

    return put
