"""Ready-made edits: values replaced or patched in, noise added, gradients clamped.

In: what to change and where. Out: an Edit. Must not know: hooks, how an edit reaches its layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

import torch
from torch import Tensor

from hookviz._tensors import dense
from hookviz.activation import Activation, Kind
from hookviz.capture._channels import (
    channel_axis,
    channel_indices,
    channels_text,
    index_tensor,
)
from hookviz.capture._checks import check_choice, check_number
from hookviz.capture._sites import Edit, Layers, Site
from hookviz.errors import CaptureError

__all__ = [
    "add_noise",
    "clamp_gradients",
    "patch",
    "replace_gradient",
    "replace_input",
    "replace_output",
]

Replacement: TypeAlias = Callable[[Tensor], Tensor | None] | Tensor | Activation


def replace_output(
    layers: Layers, new: Replacement, *, call: int | None = None, leaf: str | None = None
) -> Edit:
    """The output of layers is replaced or changed.

    Args:
        layers: Selectors of the layers.
        new: A function from the output to what goes on instead. It gets a copy, which it may
            change in place (then it may return None); what it returns is copied once more if it
            is another tensor, so that later in-place layers cannot write into it. Or a tensor or
            activation: see :func:`patch`.
        call: Only this call of the layer within a forward, from 1; None for every call.
        leaf: Which tensor of a nested output, by path or glob ("*": all); None for the only one.

    Returns:
        An edit for :func:`~hookviz.capture._edits.edit` or
        :func:`~hookviz.capture._effect.effect`.

    Raises:
        CaptureError: While the model runs: the function returned no tensor, or a tensor does not
            fit in the place of the output.
        LayerError: While the model runs: ``leaf`` names no tensor, or none is chosen of several.
    """
    return _replace("output", layers, new, call, leaf)


def replace_input(
    layers: Layers, new: Replacement, *, call: int | None = None, leaf: str | None = None
) -> Edit:
    """An input of layers is replaced or changed, before they run.

    ``leaf`` names the argument by its parameter of ``forward``: "x", however it was passed, "x.1"
    a tensor inside it; the default is the first one. Otherwise as :func:`replace_output`.
    """
    return _replace("input", layers, new, call, leaf)


def replace_gradient(
    layers: Layers,
    new: Replacement,
    *,
    of: str = "output",
    call: int | None = None,
    leaf: str | None = None,
) -> Edit:
    """The gradient that flows back through layers is replaced or changed.

    Args:
        layers: Selectors of the layers.
        new: A function from the gradient to the one that flows on instead, or a tensor; as in
            :func:`replace_output`.
        of: "output": what comes back to the layer's output, before the layer's own backward
            step; "input": what the layer sends back to its input.
        call: Only this call of the layer within a forward, from 1; None for every call.
        leaf: Which tensor of a nested output or of several inputs.

    Returns:
        An edit; it acts in every backward pass while the edits are in force.
    """
    return _replace(_gradient_kind(of), layers, new, call, leaf)


def patch(
    source: Activation | Tensor,
    layers: Layers | None = None,
    *,
    channels: int | Iterable[int] | None = None,
    axis: int | None = None,
    call: int | None = None,
    leaf: str | None = None,
) -> Edit:
    """A stored activation takes the place of what the layer gives now.

    For patching between two pictures: capture a layer for the one, run the other with
    ``patch(activation)``, and see how far the output moves.

    Args:
        source: An activation, which knows its layer, call, leaf and kind, or a tensor. It is
            copied at each use, so that nothing can write into it, and moved to the device and
            dtype of what it replaces.
        layers: Where to; needed for a tensor, default the activation's own layer.
        channels: Only these channels; None for all.
        axis: Their axis, as in :func:`scale_channels`.
        call: Default the activation's call where its layer ran several times, else every call.
        leaf: Default the activation's leaf.

    Returns:
        An edit.

    Raises:
        CaptureError: A tensor without layers; while the model runs: the shapes differ (a source
            with batch size 1 serves every row of a batch).
    """
    kind: Kind = "output"
    if isinstance(source, Activation):
        kind = source.kind
        if layers is None:
            call = source.call if call is None and source.calls > 1 else call
            leaf = source.leaf if leaf is None and source.leaf else leaf
        layers = source.layer if layers is None else layers
        tensor = source.tensor
    else:
        tensor = source
    if not isinstance(tensor, Tensor):
        raise CaptureError(f"patch takes an Activation or a tensor, not {type(tensor).__name__}.")
    tensor = dense(tensor)
    if layers is None:
        raise CaptureError("A tensor does not say where it belongs.", remedy="Give layers=.")
    wanted = None if channels is None else channel_indices(channels)

    def change(current: Tensor, site: Site) -> Tensor:
        stored = _fitting(tensor, current, site)
        if wanted is None:
            return stored.clone()
        place = channel_axis(axis, current, site)
        index = index_tensor(wanted, current, place, site)
        return current.index_copy(place, index, stored.index_select(place, index))

    what = "everything" if wanted is None else channels_text(wanted)
    return Edit(layers, kind, change, f"patch {what}", call, leaf)


def add_noise(
    layers: Layers,
    std: float,
    *,
    generator: torch.Generator | None = None,
    call: int | None = None,
    leaf: str | None = None,
) -> Edit:
    """Gaussian noise is added to a layer's output.

    Args:
        layers: Selectors of the layers.
        std: Standard deviation, in the units of the output.
        generator: Where the numbers come from, on the generator's own device and so the same
            for every device of the model. None: torch's global generator of the output's device.
        call: Only this call of the layer within a forward, from 1; None for every call.
        leaf: Which tensor of a nested output.

    Returns:
        An edit.

    Raises:
        CaptureError: ``std`` is negative or no number; while the model runs: the output is not
            of floating point, or activation checkpointing makes the call again, which only the
            global generator can repeat.
    """
    check_number("std", std, "a finite number >= 0", lambda n: 0 <= n < math.inf)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise CaptureError(f"generator must be a torch.Generator or None, not {generator!r:.80}.")

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

    return Edit(layers, "output", change, f"noise of {std:g}", call, leaf)


def clamp_gradients(
    layers: Layers,
    limit: float,
    *,
    of: str = "output",
    call: int | None = None,
    leaf: str | None = None,
) -> Edit:
    """Each element of the gradient that flows back through layers is limited to [-limit, limit].

    For the gradients of parameters see :func:`~hookviz.capture._clip.clip_gradients`. The
    arguments are those of :func:`replace_gradient`; NaN stays NaN.

    Raises:
        CaptureError: ``limit`` is not positive.
    """
    check_number("limit", limit, "a number > 0", lambda n: n > 0)

    def change(gradient: Tensor, _site: Site) -> Tensor:
        return gradient.clamp(-limit, limit)

    return Edit(layers, _gradient_kind(of), change, f"clamp to ±{limit:g}", call, leaf)


def _replace(
    kind: Kind, layers: Layers, new: Replacement, call: int | None, leaf: str | None
) -> Edit:
    what = kind.replace("_", " ")
    if isinstance(new, Activation | Tensor):
        stored = dense(new.tensor if isinstance(new, Activation) else new)

        def put(tensor: Tensor, site: Site) -> Tensor:
            return _fitting(stored, tensor, site).clone()

        return Edit(layers, kind, put, f"replace the {what}", call, leaf)
    if not callable(new):
        raise CaptureError(
            f"The {what} is replaced by a function, a tensor or an Activation, not "
            f"{type(new).__name__}."
        )

    def change(tensor: Tensor, site: Site) -> Tensor:
        mine = tensor.clone()
        result = new(mine)
        if result is None:
            return mine
        if not isinstance(result, Tensor):
            raise CaptureError(
                f"The function for {site} must return a tensor, not {type(result).__name__}."
            )
        return result if result is mine else result.clone()

    name = getattr(new, "__name__", type(new).__name__)
    return Edit(layers, kind, change, f"change the {what} by {name}", call, leaf)


def _gradient_kind(of: str) -> Kind:
    check_choice("of", of, "output", "input")
    return "output_gradient" if of == "output" else "input_gradient"


def _fitting(stored: Tensor, current: Tensor, site: Site) -> Tensor:
    """The stored tensor in the shape, device and dtype of the current one; maybe a view."""
    if current.is_nested or current.is_quantized or current.layout is not torch.strided:
        raise CaptureError(
            f"A stored tensor cannot take the place of {site}: it is nested, sparse or quantised.",
            remedy="Use a function that returns a tensor of that kind.",
        )
    if stored.is_complex() and not current.is_complex():
        raise CaptureError(f"A complex tensor cannot take the place of {site}: it is real.")
    same = stored.shape == current.shape
    one_for_all = stored.ndim > 0 and stored.shape[0] == 1 and stored.shape[1:] == current.shape[1:]
    if not same and not (one_for_all and stored.ndim == current.ndim):
        raise CaptureError(
            f"A tensor of shape {tuple(stored.shape)} cannot take the place of {site}, which is "
            f"of shape {tuple(current.shape)}."
        )
    return stored.to(device=current.device, dtype=current.dtype).expand(current.shape)
