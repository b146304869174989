"""What is drawn of a tensor: one sample turned to (C, H, W), and its channels in order, by pages.

What can be read is drawn; what cannot is one sentence for its layer, here for all figures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hookviz._axes import Hints, KnownAxes, order_of_tokens, read_axes, token_grid
from hookviz._tensors import dense
from hookviz.activation import Activation
from hookviz.errors import HookvizError, RenderError
from hookviz.render._kinds import figure_kind, kind_of_record
from hookviz.render._measure import Extents, Numbers, comparable, correlation, moments
from hookviz.render._options import GridOptions, first_line, parse_channels

Source = Activation | Tensor


@dataclass(frozen=True, eq=False)
class Arranged:
    """One sample of an activation, ready to be drawn.

    Attributes:
        kind: Name of the figure kind that draws it.
        maps: (C, H, W), a view of the tensor given where its dtype allows one; real, on its
            device. Bars are (C, 1, 1), signals (C, 1, L), RGB filters (C, 3, H, W).
        apart: (C, K) class and register tokens, which stand apart from the patch grid.
        statement: How the axes were read.
        notes: Further sentences that the figure must carry (sample, frame, grid, magnitude).
        samples: Samples in the batch.
        frames: Frames of a volume, else 1.
        shape: Of the tensor given.
        dtype: Of the tensor given, as text.
        order: How channels are ordered where nothing else is asked for.
        rgb: Whether the maps are (C, 3, H, W), each a color image.
        part: "window", "proposal" or the like where one sample holds a part of the image; else "".
        beside: Further maps of the same channels, each (C, H, W), drawn before each map.
    """

    kind: str
    maps: Tensor
    apart: Tensor | None
    statement: str
    notes: tuple[str, ...]
    samples: int
    frames: int
    shape: tuple[int, ...]
    dtype: str
    part: str = ""
    order: str = "index"
    rgb: bool = False
    beside: tuple[Tensor, ...] = ()

    @property
    def noun(self) -> str:
        """What one tile is called: "map", "feature", "value", "signal" or "head"."""
        return figure_kind(self.kind).noun

    @property
    def channel_noun(self) -> str:
        """What its index counts: "channel", "feature", "value" or "head"."""
        return figure_kind(self.kind).channel_noun

    @property
    def value_noun(self) -> str:
        """What one value is called: "activation" or "weight"."""
        return figure_kind(self.kind).value_noun

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
    activation = source if isinstance(source, Activation) else None
    kind = None if activation is None else kind_of_record(activation.kind)
    if activation is not None and kind is not None and kind.arrange is not None:
        return kind.arrange(activation, options)
    given = source.tensor if isinstance(source, Activation) else source
    if not isinstance(given, Tensor):
        raise RenderError(f"Found {type(given).__name__}; what is drawn must be a tensor.")
    tensor, notes = plain_tensor(given)
    shape = tuple(tensor.shape)
    hints = Hints(
        module_type=activation.module_type if activation else "",
        layer=activation.layer if activation else "",
        leaf=activation.leaf if activation else "",
        input_size=input_size,
        grid=options.grid,
        rows_sum_to_one=_rows_sum_to_one(tensor),
        known=activation.axes if activation else None,
    )
    reading = read_axes(shape, options.axes, hints)
    axes = reading.axes
    samples, frames, part = 1, 1, ""
    if "N" in axes:
        samples = shape[0]
        noun = _leading(hints.known, samples)
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
        at = axes.index("T")
        frames = tensor.shape[at]
        frame = frames // 2 if options.frame is None else options.frame
        tensor = _pick(tensor, at, frame, "frame", shape)
        axes = axes.replace("T", "")
        notes.append(f"frame {frame} of {frames}")
    elif options.frame is not None and not _has_frames(hints.known):
        raise RenderError(f"frame is {options.frame}, but shape {shape} is not read as a volume.")
    if hints.known is not None and hints.known.random:
        notes.append("the forward draws random numbers: another run gives other values")
    arranged = Arranged(
        kind="maps",
        maps=tensor,
        apart=None,
        statement=reading.statement,
        notes=tuple(notes),
        samples=samples,
        frames=frames,
        part=part,
        shape=shape,
        dtype=str(given.dtype).removeprefix("torch."),
    )
    return _shaped(arranged, axes, reading.layout, options, hints.known)


def _has_frames(known: KnownAxes | None) -> bool:
    return known is not None and known.places is not None and known.places.frames > 1


def _leading(known: KnownAxes | None, count: int) -> str:
    """What the first axis counts: samples, unless the run knows that not so many went in."""
    return "sample" if known is None or count == known.batch else known.leading


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
            f"The values of a {tensor.dtype} tensor cannot be read: {first_line(error)}"
        ) from error


def _shaped(
    arranged: Arranged, axes: str, layout: str, options: GridOptions, known: KnownAxes | None
) -> Arranged:
    """Bring what is left of the axes into (C, H, W)."""
    tensor = arranged.maps
    if layout == "tokens":
        return _tokens(arranged, tensor.t() if axes == "DT" else tensor, options, known)
    if layout == "vector":
        return replace(arranged, kind="bars", maps=tensor.reshape(-1, 1, 1))
    if layout == "signal":
        if tensor.shape[1] == 1:
            return replace(arranged, kind="bars", maps=tensor.reshape(-1, 1, 1))
        return replace(arranged, kind="signal", maps=tensor.unsqueeze(1))
    if layout == "attention":
        maps = tensor if tensor.dim() == 3 else tensor.unsqueeze(0)
        return replace(arranged, kind="attention", maps=maps)
    if "C" not in axes:
        tensor = tensor.unsqueeze(0)
    elif axes.endswith("C"):
        tensor = tensor.permute(2, 0, 1)
    kind = "volume" if layout.startswith("volume") else "maps"
    if tensor.shape[1:] == (1, 1):
        if tensor.shape[0] > 1:
            return replace(
                arranged, kind="bars", maps=tensor, notes=(*arranged.notes, "1×1 maps as bars")
            )
        return replace(arranged, kind="bars", maps=tensor)
    return replace(arranged, kind=kind, maps=tensor)


def _tokens(
    arranged: Arranged, tensor: Tensor, options: GridOptions, known: KnownAxes | None
) -> Arranged:
    """(T, D) as D maps of the patch grid, the tokens before it apart."""
    count = tensor.shape[0]
    if count == 1:
        return replace(arranged, kind="bars", maps=tensor.reshape(-1, 1, 1))
    notes = arranged.notes
    found = token_grid(count, options.grid, known)
    if found is None or found.grid is None:
        maps = tensor.t().unsqueeze(1)
        strips = f"{order_of_tokens(known)}: each feature is a strip"
        return replace(arranged, kind="signal", maps=maps, notes=(*notes, strips))
    apart, frames, (rows, columns) = found.apart, found.frames, found.grid
    note = f"patch grid {rows}×{columns} " + ("as given" if options.grid else "found by trial")
    if apart:
        before = "class token" if apart == 1 else f"{apart} tokens"
        note += f", {before} above each"
    maps = tensor[apart:].t().reshape(-1, frames, rows, columns)
    frame = frames // 2 if options.frame is None else options.frame
    if frames > 1:
        notes = (*notes, f"frame {frame} of {frames}")
    return replace(
        arranged,
        kind="tokens",
        maps=_pick(maps, 1, frame, "frame", arranged.shape),
        apart=tensor[:apart].t() if apart else None,
        notes=(*notes, note),
        frames=frames,
    )


def _pick(tensor: Tensor, axis: int, index: int, name: str, shape: tuple[int, ...]) -> Tensor:
    count = tensor.shape[axis]
    if index >= count:
        legal = "0" if count == 1 else f"0 to {count - 1}"
        raise RenderError(f"{name} is {index}, but shape {shape} has {count}; legal: {legal}.")
    return tensor.select(axis, index)


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
    noun = arranged.channel_noun
    if options.channels is None:
        chosen = np.arange(count)
    else:
        chosen = np.array(parse_channels(options.channels), dtype=np.int64)
        beyond = chosen[chosen >= count]
        if beyond.size:
            raise RenderError(
                f"channels names {beyond[0]}, but the layer has {count} "
                f"({noun}s 0 to {count - 1}).",
                code="no-such-channel",
                details={"channel": int(beyond[0]), "last": count - 1, "noun": noun},
            )
    if options.hide_dead:
        chosen = chosen[~found.dead[chosen]]
        if not chosen.size:
            raise RenderError(
                f"Nothing to draw: every {noun} chosen is zero everywhere.",
                remedy="hide_dead=False shows them.",
                code="all-dead",
                details={"noun": noun},
            )
    if not chosen.size:
        raise RenderError("channels is empty; name at least one, for example '0'.")
    name, reference, descending = arranged.ordered(options)
    if name == "index":
        chosen = chosen[::-1] if descending else chosen
    else:
        key = _key(arranged, found, name, reference)[chosen]
        # What has no key (no finite value) comes last; equal keys stay in their order.
        key = np.where(np.isnan(key), np.inf, -key if descending else key)
        chosen = chosen[np.argsort(key, kind="stable")]
    if options.top is not None and figure_kind(arranged.kind).paged:
        chosen = chosen[: options.top]
    return tuple(int(c) for c in chosen)


def _key(arranged: Arranged, found: Extents, name: str, reference: str) -> Numbers:
    if name == "max":
        return found.high
    if name == "similarity":
        channel, count = int(reference), len(found.low)
        if channel >= count:
            raise RenderError(
                f"order is 'similarity:{channel}', but the layer has {count} "
                f"({arranged.channel_noun}s 0 to {count - 1})."
            )
        if arranged.maps[0].numel() == 1:
            raise RenderError("similarity needs maps; single values have none.")
        key = correlation(arranged.maps, found, channel)
        key[channel] = np.inf  # itself first, also where others are exactly alike
        return key
    found_moments = moments(arranged.maps, found)
    if name == "norm":
        return np.sqrt(
            found_moments.variance + found_moments.mean**2
        )  # of equally many values each
    found_keys = {
        "mean": found_moments.mean,
        "variance": found_moments.variance,
        "sparsity": found_moments.zeros,
    }
    return found_keys[name]


def pages_of(total: int, options: GridOptions, *, paged: bool) -> int:
    """How many pages ``total`` tiles take; 1 where they are not paged."""
    return -(-total // options.per_page) if paged else 1


def page_of(chosen: tuple[int, ...], options: GridOptions, *, paged: bool) -> tuple[int, ...]:
    """The channels on the page asked for.

    Raises:
        RenderError: There is no such page.
    """
    pages = pages_of(len(chosen), options, paged=paged)
    if options.page >= pages:
        legal = "only page 0" if pages == 1 else f"0 to {pages - 1}"
        raise RenderError(f"page is {options.page}, but there are {pages}; legal: {legal}.")
    at = options.page * options.per_page
    return chosen[at : at + options.per_page] if paged else chosen
