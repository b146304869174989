"""Ready-made edits: values cut out, scaled, replaced, patched in, noise, limited gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, Unpack

import torch
from torch import Tensor

from hookviz._tensors import dense
from hookviz._text import error_text, names_text
from hookviz.activation import Activation, Kind
from hookviz.capture._checks import (
    check,
    check_choice,
    check_count,
    check_number,
    check_returned,
)
from hookviz.capture._edit_region import (
    Channels,
    Place,
    Region,
    channel_axis,
    indices,
    is_dense,
    place_axes,
)
from hookviz.capture._editing import Edit, Layers, Site, Where
from hookviz.errors import CaptureError


class EditPart(Where, total=False):
    """Which part of an output an edit changes; nothing given is all of it.

    ``channels``: index or indices, from 0. ``place``: (row, column) of a layer with rows and
    columns; the number of a token (from 0, class tokens counted), or (row, column) of the square
    grid in which tokens lie behind the class tokens; of volumes (frame, row, column). With
    channels, these channels at that place. ``heads``: heads of an attention layer, before its
    projection mixes them. ``axis``: the channels' axis, where layer and shape leave a doubt: a
    tensor of three axes from a layer that is neither convolution, pooling, norm, Linear,
    Embedding nor a block of a transformer needs it. ``call`` and ``leaf``: see `Edit`.
    """

    channels: Channels | None
    place: Place | None
    heads: Channels | None
    axis: int | None


Make: TypeAlias = Callable[[Tensor, Site], Tensor]


def _ready_made(
    name: str, phrase: str, layers: Layers, make: Make, part: EditPart, **own: Any
) -> Edit:
    """An edit of a part of an output.

    Args:
        name: The function that gives it, for files.
        phrase: What it does, with {} for the part.
        layers: Selectors of the layers.
        make: (tensor, site) → a new tensor whose values are put where the part is.
        part: Which part.
        **own: Its other arguments, for files.
    """
    where, region = _where_and_region(name, part)

    def change(tensor: Tensor, site: Site) -> Tensor:
        mask = region.mask(tensor, site)
        new = make(tensor, site)
        return new if mask is None else torch.where(mask, new.to(tensor.dtype), tensor)

    recipe = {"edit": name, **own, **region.record()}
    return Edit(
        layers, "output", change, phrase.format(region.text), heads=region.heads, recipe=recipe,
        **where,
    )  # fmt: skip


def _where_and_region(name: str, part: EditPart) -> tuple[Where, Region]:
    unknown = part.keys() - EditPart.__annotations__.keys()
    if unknown:
        raise CaptureError(
            f"{name} has no option '{min(unknown)}'; it has {names_text(EditPart.__annotations__)}."
        )
    given: dict[str, Any] = {**part}
    where: Any = {key: given.pop(key) for key in Where.__annotations__ if key in given}
    return where, Region.of(**given)


def zero(layers: Layers, **part: Unpack[EditPart]) -> Edit:
    """A layer's output, or a part of it, becomes 0, as if it had been cut out (ablation).

    Args:
        layers: Selectors of the layers.
        **part: ``channels``, ``place``, ``heads``, ``axis``, ``call``, ``leaf``: `EditPart`.

    Returns:
        An edit.

    Raises:
        CaptureError: The part is not described so; while the model runs: there is no such channel,
            place or head, or the axes are not known.
        LayerError: ``heads`` of a layer that has none.

    Examples:
        >>> from torch import nn
        >>> from hookviz.capture import edit
        >>> net = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU())
        >>> with edit(net, zero("0", channels=[0, 3], place=(1, 0))):
        ...     output = net(torch.ones(1, 1, 2, 2))
        >>> output[0, [0, 3], 1, 0].tolist()
        [0.0, 0.0]
    """
    return _ready_made("zero", "zero {}", layers, lambda t, _: torch.zeros_like(t), part)


def scale(layers: Layers, factor: float, **part: Unpack[EditPart]) -> Edit:
    """A layer's output, or a part of it, is multiplied by a factor.

    Args:
        layers: Selectors of the layers.
        factor: What it is multiplied by; 0 also turns NaN and Inf into 0.
        **part: ``channels``, ``place``, ``heads``, ``axis``, ``call``, ``leaf``: `EditPart`.

    Returns:
        An edit; it raises as that of `zero` does.
    """
    check_number("factor", factor, "a finite number", math.isfinite)
    if factor == 0:
        return zero(layers, **part)

    def make(tensor: Tensor, site: Site) -> Tensor:  # noqa: ARG001 - Make
        return (tensor * factor).to(tensor.dtype)

    return _ready_made(
        "scale", f"scale {{}} by {factor:g}", layers, make, part, factor=float(factor)
    )


def replace_by_mean(layers: Layers, **part: Unpack[EditPart]) -> Edit:
    """Each channel of a layer's output becomes its mean over its places (mean ablation).

    What the channel says on the whole stays, where it says it is lost. In a layer without places
    (a vector), the mean is that over all channels. Samples of a batch have each their own mean.

    Args:
        layers: Selectors of the layers.
        **part: ``channels``, ``place``, ``heads``, ``axis``, ``call``, ``leaf``: `EditPart`.
            At a ``place`` alone the mean of all places is put there.

    Returns:
        An edit; it raises as that of `zero` does, and for integer outputs.

    Examples:
        >>> from torch import nn
        >>> from hookviz.capture import edit
        >>> net = nn.Sequential(nn.Identity())
        >>> with edit(net, replace_by_mean("0", channels=1)):
        ...     net(torch.arange(8.0).reshape(1, 2, 2, 2))
        tensor([[[[0.0000, 1.0000],
                  [2.0000, 3.0000]],
        <BLANKLINE>
                 [[5.5000, 5.5000],
                  [5.5000, 5.5000]]]])
    """
    axis = part.get("axis")

    def make(tensor: Tensor, site: Site) -> Tensor:
        mean, _ = _mean_and_deviation(tensor, site, axis)
        return mean.to(tensor.dtype).expand_as(tensor).clone()

    return _ready_made("replace_by_mean", "set {} to the mean", layers, make, part)


def replace_by_noise(layers: Layers, *, seed: int = 0, **part: Unpack[EditPart]) -> Edit:
    """Each channel of a layer's output becomes Gaussian noise of its mean and deviation.

    Args:
        layers: Selectors of the layers.
        seed: Of the numbers: the same seed, shape and call give the same ones, whatever the device.
            No generator of torch's is moved.
        **part: ``channels``, ``place``, ``heads``, ``axis``, ``call``, ``leaf``: `EditPart`.

    Returns:
        An edit; it raises as that of `zero` does, and for integer outputs.
    """
    check_count("seed", seed, 0)
    axis = part.get("axis")

    def make(tensor: Tensor, site: Site) -> Tensor:
        mean, deviation = _mean_and_deviation(tensor, site, axis)
        generator = torch.Generator("cpu").manual_seed((seed * 1_000_003 + site.call) % 2**63)
        noise = torch.randn(tensor.shape, generator=generator, device="cpu", dtype=torch.float32)
        return (mean + deviation * noise.to(tensor.device, mean.dtype)).to(tensor.dtype)

    phrase = f"set {{}} to noise (seed {seed})"
    return _ready_made("replace_by_noise", phrase, layers, make, part, seed=seed)


def _mean_and_deviation(tensor: Tensor, site: Site, axis: int | None) -> tuple[Tensor, Tensor]:
    """Of each channel over its places; of a vector over its channels."""
    if not tensor.is_floating_point() or not is_dense(tensor):
        raise CaptureError(f"{site} has no mean: its dtype is {tensor.dtype} ({tensor.layout}).")
    channel = tensor.ndim - 1 if site.heads else channel_axis(axis, tensor, site)
    axes = place_axes(channel, tensor) or [channel]
    exact = tensor if tensor.dtype == torch.float64 else tensor.float()
    return exact.mean(axes, keepdim=True), exact.std(axes, keepdim=True, correction=0)


def scale_channels(
    layers: Layers,
    channels: Channels,
    factor: float,
    *,
    axis: int | None = None,
    **where: Unpack[Where],
) -> Edit:
    """Some channels of a layer's output are multiplied by a factor: `scale` of channels.

    Args:
        layers: Selectors of the layers.
        channels: Index or indices of the channels, from 0.
        factor: What the channels are multiplied by; 0 also turns NaN and Inf into 0.
        axis: The channels' axis, see `EditPart`.
        **where: ``call``: only this call of the layer within a forward, from 1 (default: every
            one). ``leaf``: which tensor of a nested output.

    Returns:
        An edit; it raises as that of `zero` does.
    """
    return scale(layers, factor, channels=indices(channels), axis=axis, **where)


def zero_channels(
    layers: Layers, channels: Channels, *, axis: int | None = None, **where: Unpack[Where]
) -> Edit:
    """Some channels of a layer's output become 0: `zero` of channels.

    Args:
        layers: Selectors of the layers.
        channels: Index or indices of the channels, from 0.
        axis: The channels' axis, see `EditPart`.
        **where: ``call``: only this call of the layer within a forward, from 1 (default: every
            one). ``leaf``: which tensor of a nested output.

    Returns:
        An edit; it raises as that of `zero` does.

    Examples:
        >>> from torch import nn
        >>> from hookviz.capture import edit
        >>> net = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU())
        >>> with edit(net, zero_channels("0", [0, 3])):
        ...     output = net(torch.ones(1, 1, 2, 2))
        >>> output[:, [0, 3]].abs().max().item()
        0.0
    """
    return zero(layers, channels=indices(channels), axis=axis, **where)


Replacement: TypeAlias = Callable[[Tensor], Tensor | None] | Tensor | Activation


def replace_output(layers: Layers, new: Replacement, **where: Unpack[Where]) -> Edit:
    """The output of layers is replaced or changed.

    Args:
        layers: Selectors of the layers.
        new: A function from the output to what goes on instead. It gets a copy, which it may
            change in place (then it may return None); what it returns is copied once more if it
            is another tensor, so that later in-place layers cannot write into it. Or a tensor or
            activation: see `patch`.
        **where: ``call``: only this call of the layer within a forward, from 1 (default: every
            one). ``leaf``: which tensor of a nested output, by path or glob ("*": all); None for
            the only one.

    Returns:
        An edit for `edit` or
        `effect`.

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
        new: As in `replace_output`.
        **where: ``call``: only this call of the layer within a forward, from 1 (default: every
            one). ``leaf``: the argument by its parameter of ``forward``: "x", however it was
            passed, "x.1" a tensor inside it, "*" all; None for the first one.

    Returns:
        An edit; it raises as that of `replace_output` does.
    """
    return _replace("input", layers, new, **where)


def replace_gradient(
    layers: Layers, new: Replacement, *, of: str = "output", **where: Unpack[Where]
) -> Edit:
    """The gradient that flows back through layers is replaced or changed.

    Args:
        layers: Selectors of the layers.
        new: A function from the gradient to the one that flows on instead, or a tensor; as in
            `replace_output`.
        of: "output": what comes back to the layer's output, before the layer's own backward
            step; "input": what the layer sends back to its input.
        **where: ``call``: only this call of the layer within a forward, from 1 (default: every
            one). ``leaf``: which tensor of a nested output or of several inputs.

    Returns:
        An edit; it acts in every backward pass while the edits are in force.
    """
    return _replace(_gradient_kind(of), layers, new, **where)


def patch(
    source: Activation | Tensor, layers: Layers | None = None, **part: Unpack[EditPart]
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
        **part: ``channels``, ``place``, ``heads``, ``axis``: `EditPart`. ``call``: default
            the activation's call where its layer ran several times, else every call. ``leaf``:
            default the activation's leaf.

    Returns:
        An edit.

    Raises:
        CaptureError: A tensor without layers; while the model runs: the shapes differ (a source
            with batch size 1 serves every row of a batch).
    """
    where, region = _where_and_region("patch", part)
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
    put = _stored(tensor, region)
    return Edit(layers, kind, put, f"patch {region.text}", heads=region.heads, **where)


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

    NaN stays NaN. For the gradients of parameters see `clip_gradients`.

    Args:
        layers: Selectors of the layers.
        limit: A positive number, in the units of the gradient; inf changes nothing.
        of: "output" or "input", as in `replace_gradient`.
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


def _stored(tensor: Tensor, region: Region = Region()) -> Make:  # noqa: B008 - it is frozen
    """A change that puts a stored tensor, or a part of it, in the place of the current."""
    stored = dense(tensor)

    def put(current: Tensor, site: Site) -> Tensor:
        if not is_dense(current):
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
        mask = region.mask(current, site)
        return new.clone() if mask is None else torch.where(mask, new, current)

    return put


READY_MADE: dict[str, Callable[..., Edit]] = {
    one.__name__: one for one in (zero, scale, replace_by_mean, replace_by_noise)
}


def edit_from_json(record: object) -> Edit:
    """The edit that `Edit.to_json` gave a record of.

    Args:
        record: A mapping with "edit", "layers" and the arguments of that edit; of values from
            outside nothing is taken for granted.

    Returns:
        The edit.

    Raises:
        CaptureError: It is no such record.

    Examples:
        >>> str(edit_from_json({"edit": "zero", "layers": ["conv1"], "heads": [2]}))
        'conv1: zero head 2'
    """
    if not isinstance(record, Mapping) or not all(isinstance(key, str) for key in record):
        raise CaptureError(f"The record of an edit is a mapping, not {record!r:.80}.")
    name, layers = record.get("edit"), record.get("layers")
    make = READY_MADE.get(name) if isinstance(name, str) else None
    if make is None:
        raise CaptureError(f"There is no edit {name!r:.80}; legal are {names_text(READY_MADE)}.")
    if not isinstance(layers, list) or not layers or not all(isinstance(n, str) for n in layers):
        raise CaptureError(f"The layers of an edit are a list of names, not {layers!r:.80}.")
    given = {key: record[key] for key in record if key not in ("edit", "layers")}
    try:
        return make(layers, **given)
    except TypeError as error:
        text = error_text(error)
        raise CaptureError(f"The record of the edit '{name}' does not fit it: {text}.") from error
