"""What is drawn of a tensor: one sample turned to (C, H, W), and its channels in order, by pages.

What can be read is drawn; what cannot is one sentence for its layer, here for all figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hookviz._axes import Hints, KnownAxes, Places, order_of_tokens, read_axes, token_grid
from hookviz._tensors import dense
from hookviz._text import error_text
from hookviz.activation import Activation
from hookviz.errors import HookvizError, RenderError
from hookviz.render._kinds import KINDS, FigureKind
from hookviz.render._measure import Extents, Numbers, comparable, correlation, moments
from hookviz.render._options import GridOptions, parse_channels

Source = Activation | Tensor


@dataclass(frozen=True, eq=False)
class Arranged:
    """One sample of an activation, ready to be drawn.

    Attributes:
        kind: Name of the figure kind that draws it.
        maps: (C, H, W), a view of the tensor given where its dtype allows one; real, on its
            device. Bars are (C, 1, 1), signals (C, 1, L), RGB filters (C, 3, H, W).
        statement: How the axes were read.
        notes: Further sentences that the figure must carry (sample, frame, grid, magnitude).
        shape: Of the tensor given.
        dtype: Of the tensor given, as text.
        apart: (C, K) class and register tokens, which stand apart from the patch grid.
        samples: Samples in the batch.
        part: "window", "proposal" or the like where one sample holds a part of the image; else "".
        order: How channels are ordered where nothing else is asked for.
        rgb: Whether the maps are (C, 3, H, W), each a color image.
        mark: (row, column) of a place that is outlined in every map; None for none.
        absent: What NaN stands for where it stands for no value of the tensor; "" where it is one.
        names: What each channel is called where it has a name; () where the index says all.
        labels: What stands above each map in place of its index; () for the index.
        beside: Further maps of the same channels, each (C, H, W), drawn before each map.
    """

    kind: str
    maps: Tensor
    statement: str
    notes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    apart: Tensor | None = None
    samples: int = 1
    part: str = ""
    order: str = "index"
    rgb: bool = False
    mark: tuple[int, int] | None = None
    absent: str = ""
    names: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    beside: tuple[Tensor, ...] = ()

    @property
    def figure_kind(self) -> FigureKind:
        """The kind that draws it; it names tiles, channels and values."""
        return KINDS[self.kind]

    def index_text(self, channel: int) -> str:
        """What stands above a channel's map."""
        return self.labels[channel] if self.labels else str(channel)

    @property
    def values(self) -> Tensor:
        """(C, ...) every value of each channel: those that stand apart belong to it too."""
        if self.apart is None:
            return self.maps
        return torch.cat((self.maps.flatten(1), self.apart), dim=1)

    def ordered(self, options: GridOptions) -> tuple[str, str, bool]:
        """(name, channel that it refers to, largest first) of the order asked for."""
        name, _, reference = options.order.partition(":")
        if name == "index" and options.descending is None and options.channels is None:
            name = self.order
        descending = name != "index" if options.descending is None else options.descending
        return name, reference, descending


def arrange(
    source: Source, options: GridOptions, input_size: tuple[int, int] | None = None
) -> Arranged:
    """Choose sample, frame and layout.

    Args:
        source: An activation, or a bare tensor.
        options: Its ``sample``, ``frame``, ``axes`` and ``grid`` are used.
        input_size: (height, width) of what the network saw, for patch grids and aspect.

    Raises:
        RenderError: The tensor cannot be drawn so; the sentence names its shape.
    """
    if not isinstance(source, Activation):
        source = Activation("", 1, 1, 1, 1, "output", "", "", source)
    for kind in KINDS.values():
        if kind.arrange is not None and kind.record == source.kind:
            return kind.arrange(source, options)
    if not isinstance(source.tensor, Tensor):
        raise RenderError(f"Found {type(source.tensor).__name__}; what is drawn must be a tensor.")
    tensor, notes = plain_tensor(source.tensor)
    shape, known = tuple(tensor.shape), source.axes
    shares = _rows_sum_to_one(tensor)
    hints = Hints(source.module_type, source.layer, input_size, shares, known)
    reading = read_axes(shape, options.axes, hints)
    axes = reading.axes
    samples, part = 1, ""
    if "N" in axes:
        samples = shape[0]
        # The first axis counts samples, unless the run knows that not so many went in.
        noun = "sample" if known is None or samples == known.batch else known.leading
        tensor = _pick(tensor, axes.index("N"), options.sample, noun, shape)
        axes = axes.replace("N", "")
        if samples > 1:
            notes.append(f"{noun} {options.sample} of {samples}")
            part = noun if noun not in ("sample", "frame") else ""
        if axes == "CL":  # what has no places in the image may have had more axes
            tensor = tensor.flatten(1)
    elif options.sample:
        raise RenderError(f"sample is {options.sample}, but shape {shape} has no batch axis.")
    if reading.layout.startswith("volume"):
        tensor, note = pick_frame(tensor, axes.index("T"), options, shape)
        notes.append(note)
        axes = axes.replace("T", "")
    elif options.frame is not None and not (known and known.places and known.places.frames > 1):
        raise RenderError(f"frame is {options.frame}, but shape {shape} is not read as a volume.")
    if known is not None and known.random:
        notes.append("the forward draws random numbers: another run gives other values")
    apart: Tensor | None = None
    if reading.layout == "tokens" and tensor.shape[axes.index("T")] > 1:
        tokens = tensor.t() if axes == "DT" else tensor
        name, maps, apart = _tokens(tokens, options, known, shape, notes)
    else:
        name, maps = _shaped(tensor, axes, reading.layout, notes)
    return Arranged(
        kind=name,
        maps=maps,
        apart=apart,
        statement=reading.statement,
        notes=tuple(notes),
        samples=samples,
        part=part,
        shape=shape,
        dtype=str(source.tensor.dtype).removeprefix("torch."),
    )


def plain_tensor(tensor: Tensor) -> tuple[Tensor, list[str]]:
    """A dense, real, detached tensor of numbers that torch computes with, and what that took.

    Nested tensors are padded with zeros, quantised ones dequantised, sparse ones filled in,
    complex ones replaced by their magnitude, 8-bit floats and wide unsigned integers widened.

    Raises:
        RenderError: The tensor holds no values that can be read.
    """
    notes = ["padded with zeros"] * tensor.is_nested + ["dequantised"] * tensor.is_quantized
    try:
        plain = dense(tensor)
        if plain.numel():  # some kinds (those of vmap, packed bits) only fail when a value is read
            one = plain[(0,) * plain.dim()]
            one.to(torch.complex64 if one.is_complex() else torch.float32).cpu().numpy()
        if plain.is_complex():
            # Squares of large parts leave complex64 where the magnitude itself would not.
            wide = torch.complex64 if plain.device.type == "mps" else torch.complex128
            return plain.to(wide).abs(), [*notes, "magnitude of complex values"]
        return plain if plain.dtype is torch.bool else comparable(plain), notes
    except HookvizError as error:
        raise RenderError(error.message) from error
    except (RuntimeError, TypeError, ValueError) as error:
        raise RenderError(
            f"The values of a {tensor.dtype} tensor cannot be read: {error_text(error)}"
        ) from error


def _shaped(tensor: Tensor, axes: str, layout: str, notes: list[str]) -> tuple[str, Tensor]:
    """The kind of figure, and what is left of the axes as (C, H, W)."""
    if layout in ("vector", "tokens") or (layout == "signal" and tensor.shape[1] == 1):
        return "bars", tensor.reshape(-1, 1, 1)
    if layout == "signal":
        return "signal", tensor.unsqueeze(1)
    if layout == "attention":
        return "attention", tensor if tensor.dim() == 3 else tensor.unsqueeze(0)
    if "C" not in axes:
        tensor = tensor.unsqueeze(0)
    elif axes.endswith("C"):
        tensor = tensor.permute(2, 0, 1)
    if tensor.shape[1:] != (1, 1):
        return "volume" if layout.startswith("volume") else "maps", tensor
    if tensor.shape[0] > 1:
        notes.append("1×1 maps as bars")
    return "bars", tensor


def _tokens(
    tensor: Tensor,
    options: GridOptions,
    known: KnownAxes | None,
    shape: tuple[int, ...],
    notes: list[str],
) -> tuple[str, Tensor, Tensor | None]:
    """(T, D) as D maps of the patch grid, and the (D, K) tokens before it apart."""
    found = token_grid(tensor.shape[0], options.grid, known)
    if found is None or found.grid is None:
        notes.append(f"{order_of_tokens(known)}: each feature is a strip")
        return "signal", tensor.t().unsqueeze(1), None
    apart = found.apart
    maps = tensor[apart:].t().reshape(-1, found.frames, *found.grid)
    maps, frame = pick_frame(maps, 1, options, shape)
    notes += [frame] if found.frames > 1 else []
    notes.append(grid_note(found, given=options.grid is not None))
    return "tokens", maps, tensor[:apart].t() if apart else None


def grid_note(places: Places, *, given: bool) -> str:
    """How tokens were laid out as a patch grid."""
    rows, columns = places.grid or (0, 0)
    note = f"patch grid {rows}×{columns} " + ("as given" if given else "found by trial")
    before = "class token" if places.apart == 1 else f"{places.apart} tokens"
    return note + f", {before} above each" * bool(places.apart)


def pick_frame(
    tensor: Tensor, axis: int, options: GridOptions, shape: tuple[int, ...]
) -> tuple[Tensor, str]:
    """One frame along an axis, the middle one where none is asked for, and a sentence about it."""
    frames = tensor.shape[axis]
    frame = frames // 2 if options.frame is None else options.frame
    return _pick(tensor, axis, frame, "frame", shape), f"frame {frame} of {frames}"


def _pick(tensor: Tensor, axis: int, index: int, name: str, shape: tuple[int, ...]) -> Tensor:
    return tensor.select(axis, checked_index(name, index, tensor.shape[axis], shape))


def checked_index(name: str, index: int, count: int, shape: tuple[int, ...]) -> int:
    """The index of a sample, window or frame, of which a tensor of that shape has so many."""
    if index >= count:
        legal = "0" if count == 1 else f"0 to {count - 1}"
        raise RenderError(f"{name} is {index}, but shape {shape} has {count}; legal: {legal}.")
    return index


def _rows_sum_to_one(tensor: Tensor) -> bool:
    """Whether square matrices of shares stand in the last two axes, as in attention weights.

    Only a few rows are read, and only where the shape allows it.
    """
    if tensor.dim() not in (3, 4) or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] < 2:
        return False
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return False
    rows = (tensor[0] if tensor.dim() == 4 else tensor)[:4, :64].float()
    good = ((rows >= 0) & (rows <= 1.001)).all() & ((rows.sum(-1) - 1).abs() < 0.02).all()
    return bool(good)


def choose_channels(arranged: Arranged, found: Extents, options: GridOptions) -> tuple[int, ...]:
    """All channels to draw, over all pages, in the order asked.

    Raises:
        RenderError: An index is beyond the layer, or nothing is left.
    """
    count = len(found.low)
    noun = arranged.figure_kind.channel_noun
    first = _named("first", options.first or (), count, noun)
    if options.channels is None:
        chosen = np.arange(count)
    else:
        chosen = np.array(_named("channels", options.channels, count, noun), dtype=np.int64)
    if options.hide_dead:
        chosen = chosen[~found.dead[chosen]]
        if not chosen.size and not first:
            raise RenderError(
                f"Nothing to draw: every {noun} chosen is zero everywhere.",
                remedy="hide_dead=False shows them.",
                code="all-dead",
                details={"noun": noun},
            )
    if not chosen.size and not first:
        raise RenderError("channels is empty; name at least one, for example '0'.")
    name, reference, descending = arranged.ordered(options)
    if name == "index":
        chosen = chosen[::-1] if descending else chosen
    else:
        key = _key(arranged, found, name, reference)[chosen]
        # What has no key (no finite value) comes last; equal keys stay in their order.
        key = np.where(np.isnan(key), np.inf, -key if descending else key)
        chosen = chosen[np.argsort(key, kind="stable")]
    chosen = np.array([*first, *(c for c in chosen if c not in first)], dtype=np.int64)
    if options.top is not None and arranged.figure_kind.paged:
        chosen = chosen[: options.top]
    return tuple(int(c) for c in chosen)


def _named(name: str, channels: str | Sequence[int], count: int, noun: str) -> tuple[int, ...]:
    """The channels that an option names, all of which the layer has."""
    wanted = parse_channels(channels, name)
    beyond = next((c for c in wanted if c >= count), None)
    if beyond is not None:
        raise RenderError(
            f"{name} names {beyond}, but the layer has {count} ({noun}s 0 to {count - 1}).",
            code="no-such-channel",
            details={"channel": beyond, "last": count - 1, "noun": noun, "option": name},
        )
    return wanted


def _key(arranged: Arranged, found: Extents, name: str, reference: str) -> Numbers:
    if name == "max":
        return found.high
    if name == "similarity":
        channel, count = int(reference), len(found.low)
        if channel >= count:
            raise RenderError(
                f"order is 'similarity:{channel}', but the layer has {count} "
                f"({arranged.figure_kind.channel_noun}s 0 to {count - 1})."
            )
        if arranged.maps[0].numel() == 1:
            raise RenderError("similarity needs maps; single values have none.")
        key = correlation(arranged.maps, channel)
        key[channel] = np.inf  # itself first, also where others are exactly alike
        return key
    measured = moments(arranged.maps)
    if name == "norm":  # of equally many values each
        return np.sqrt(measured.variance + measured.mean**2)
    keys = {"mean": measured.mean, "variance": measured.variance, "sparsity": measured.zeros}
    return keys[name]
