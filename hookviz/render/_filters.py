"""Filters: the kernels of a layer, as colors or as maps of one input channel.

A record of kind "weight" holds (O, I, …): output channels, the input channels of a group, and the
kernel's own axes. Where three input channels reach every output, each filter is one color tile.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from hookviz.activation import Activation
from hookviz.errors import RenderError
from hookviz.render._arrange import Arranged, pick_frame, plain_tensor
from hookviz.render._kinds import FigureKind, register
from hookviz.render._maps import draw_maps
from hookviz.render._options import GridOptions

_AXES = ("outputs", "inputs", "frames", "rows", "columns")


def _arrange(weight: Activation, options: GridOptions) -> Arranged:
    """The kernels that the options ask for, as (C, H, W) or (C, 3, H, W)."""
    tensor, notes = plain_tensor(weight.tensor)
    shape = tuple(tensor.shape)
    if 0 in shape or not 2 <= len(shape) <= 5:
        raise RenderError(f"Weights of shape {shape} hold no filters.")
    if options.sample:
        raise RenderError(f"sample is {options.sample}, but filters have no samples.")
    if options.frame is not None and len(shape) < 5:
        raise RenderError(f"frame is {options.frame}, but kernels of shape {shape} have no frames.")
    axes = _AXES if len(shape) == 5 else [name for name in _AXES if name != "frames"]
    if len(shape) == 5:
        tensor, note = pick_frame(tensor, 2, options, shape)
        notes.append(note)
    arranged = Arranged(
        kind="filters",
        maps=tensor,
        statement=f"({', '.join(axes[: len(shape)])})",
        notes=tuple(notes),
        shape=shape,
        dtype=str(weight.tensor.dtype).removeprefix("torch."),
    )
    groups = 1 if weight.axes is None else weight.axes.groups
    if tensor.shape[2:].numel() == 1:
        return _matrix(arranged, tensor.flatten(1), options)
    tensor = tensor if tensor.dim() == 4 else tensor.unsqueeze(2)  # 1-d kernels are strips
    return _kernels(arranged, tensor, options, groups)


def _matrix(arranged: Arranged, weights: Tensor, options: GridOptions) -> Arranged:
    """(O, I) without a kernel: a strip for each output."""
    if options.input_channel is not None or options.output_channel is not None:
        raise RenderError(
            f"The weights of shape {arranged.shape} are one number for each input and output.",
            remedy="Draw them without input_channel and output_channel.",
        )
    note = "no rows and columns: each strip holds the weights of one output"
    return replace(arranged, maps=weights.unsqueeze(1), notes=(*arranged.notes, note))


def _kernels(arranged: Arranged, kernels: Tensor, options: GridOptions, groups: int) -> Arranged:
    """(O, I, H, W): all kernels of an output, those of an input, or colors."""
    outputs, each = kernels.shape[:2]
    if options.input_channel is not None and options.output_channel is not None:
        raise RenderError("input_channel and output_channel are two ways to choose; give one.")
    order, rgb = "index", False
    if options.output_channel is not None:
        channel = _checked("output_channel", options.output_channel, outputs)
        first = channel // (outputs // groups) * each
        kernels, order = kernels[channel], "norm"
        note = f"output channel {channel}: its kernels by input channel"
        note += f", counted from {first}" if first else ""
    elif options.input_channel is not None:
        channel = _checked("input_channel", options.input_channel, each * groups)
        group, size = channel // each, outputs // groups
        kernels = kernels[group * size : (group + 1) * size, channel % each]
        note = f"input channel {channel} of {each * groups}"
        note += f", output channels counted from {group * size}" if group else ""
    elif each == 3 and groups == 1 and arranged.shape[2:] != ():
        rgb, note = kernels.shape[2] > 1, "the weights of red, green and blue as a color"
        if not rgb:
            kernels, note = kernels[:, 0], "input channel 0 of 3"
    elif each == 1:
        kernels, note = kernels[:, 0], "one input channel for each output"
    else:
        where = f"of {each}" if groups == 1 else f"of each of {groups} groups"
        kernels, note = kernels[:, 0], f"input channel 0 {where}"
    return replace(arranged, maps=kernels, notes=(*arranged.notes, note), rgb=rgb, order=order)


def _checked(name: str, channel: int, count: int) -> int:
    if channel >= count:
        raise RenderError(
            f"{name} is {channel}, but the layer has {count} (0 to {count - 1}).",
            code="no-such-channel",
            details={"channel": channel, "last": count - 1},
        )
    return channel


register(
    FigureKind(
        "filters", draw_maps, "filter", value_noun="weight", record="weight", arrange=_arrange
    )
)
