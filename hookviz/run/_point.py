"""Pointing at a place of a layer: its values, its channels, the pixels that it sees.

A place is a row and a column of the maps that `Run.figure` draws: of a convolution's output, of
tokens laid out as a grid, of a frame of a volume; a vector has the one place (0, 0). Values are
those of the captured tensor, to the last bit, never of colors.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from hookviz._tensors import dense
from hookviz._text import shape_text
from hookviz.activation import Activation
from hookviz.errors import HookvizError, LayerError
from hookviz.images import Box, source_box
from hookviz.run._field import boxes_at, event_at, layer_reach

if TYPE_CHECKING:
    from hookviz.render import GridOptions
    from hookviz.run._record import Run


@dataclass(frozen=True)
class ReceptiveField:
    """The pixels that a place of a layer depends on.

    Attributes:
        layer: The layer, with call and leaf where there are several.
        y: Row of the place.
        x: Column of the place.
        box: Left, top, right, bottom in pixels of the network's input, right and bottom past the
            last pixel, of the theoretical field: it may begin below 0 or end beyond the input. None
            where the place depends on no pixel.
        seen: The part of the input that the place does depend on: the smallest box that holds
            every pixel whose change can change a value there. Beside the input's edges it can be
            smaller than the part of ``box`` within the input, where a stride skips the last pixels,
            or larger, where padding repeats or reflects pixels.
        input_size: (height, width) of the input.
        image_box: Left, top, right, bottom in pixels of the (upright) photo, right and bottom past
            the last pixel: all pixels that ``seen`` is made of, those included that resizing blends
            in. None where the place sees nothing of the photo, or that is not known (see ``note``).
        image_size: (width, height) of the photo.
        whole: Whether it sees the whole input.
        note: What a person has to know beside the boxes; "" where there is nothing.
    """

    layer: str
    y: int
    x: int
    box: tuple[int, int, int, int] | None
    seen: tuple[int, int, int, int] | None
    input_size: tuple[int, int]
    image_box: tuple[int, int, int, int] | None
    image_size: tuple[int, int]
    whole: bool
    note: str = ""

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of ``box`` in pixels of the input; (0, 0) where there is none.

        Examples:
            >>> box = (-3, 0, 8, 11)
            >>> ReceptiveField("conv", 0, 0, box, box, (11, 11), box, (11, 11), False).size
            (11, 11)
        """
        if self.box is None:
            return (0, 0)
        left, top, right, bottom = self.box
        return (bottom - top, right - left)

    @property
    def beyond(self) -> tuple[int, int, int, int]:
        """How far ``box`` lies beyond the input: pixels at left, top, right, bottom, 0 or more.

        Examples:
            >>> box = (-3, 0, 8, 11)
            >>> ReceptiveField("conv", 0, 0, box, box, (11, 6), box, (6, 11), False).beyond
            (3, 0, 2, 0)
        """
        if self.box is None:
            return (0, 0, 0, 0)
        left, top, right, bottom = self.box
        height, width = self.input_size
        return (max(0, -left), max(0, -top), max(0, right - width), max(0, bottom - height))


@dataclass(frozen=True, eq=False)
class ChannelVector:
    """The values of all channels at one place.

    Attributes:
        layer: The layer, with call and leaf where there are several.
        y: Row of the place.
        x: Column of the place.
        values: (C,), one value per channel, in the tensor's dtype and on its device; a copy.
        order: All channels, largest value first (of complex values the magnitude), equal ones by
            number, NaN last.
    """

    layer: str
    y: int
    x: int
    values: Tensor
    order: tuple[int, ...]
    _sizes: Tensor = field(repr=False)

    def rank(self, channel: int) -> int | None:
        """Which place a channel has, from 1 (the largest); equal values share one, NaN has none.

        Examples:
            >>> values = torch.tensor([0.5, 2.0, 0.5])
            >>> vector = ChannelVector("conv", 0, 0, values, (1, 0, 2), values)
            >>> vector.rank(1), vector.rank(0), vector.rank(2)
            (1, 2, 2)
        """
        check_index(self.layer, "channel", channel, len(self._sizes))
        own = self._sizes[channel]
        return None if bool(own.isnan()) else 1 + int((self._sizes > own).sum())

    def top(self, count: int = 10) -> list[tuple[int, Any]]:
        """The channels of the largest values, with these as Python numbers.

        Examples:
            >>> values = torch.tensor([0.5, 2.0, 0.25])
            >>> ChannelVector("conv", 0, 0, values, (1, 0, 2), values).top(2)
            [(1, 2.0), (0, 0.5)]
        """
        return [(c, self.values[c].item()) for c in self.order[:count]]


@dataclass(frozen=True, eq=False)
class RegionChannels:
    """The channels of a layer by how much more they answer inside a region than outside.

    Attributes:
        layer: The layer, with call and leaf where there are several.
        order: All channels, the largest difference first; those without one last.
        inside: (C,) float64, mean over the places inside, in the activation's units.
        outside: (C,) float64, mean over the others; NaN where there are none.
        difference: (C,) float64, inside − outside; inside alone where nothing lies outside.
        places: (H, W) bool: which places lie inside.
        note: How it was decided which places lie inside.
    """

    layer: str
    order: tuple[int, ...]
    inside: Tensor
    outside: Tensor
    difference: Tensor
    places: Tensor
    note: str


@dataclass(frozen=True, eq=False)
class ValuesAround:
    """The values of one channel at the places around one, each with its rank there.

    Attributes:
        layer: The layer, with call and leaf where there are several.
        channel: The channel.
        top: The first row.
        left: The first column.
        values: (h, w), in the tensor's dtype and on its device; a copy.
        ranks: (h, w) int64, rank of each among all channels of its place, from 1 (the largest);
            0 for NaN, which has none.
    """

    layer: str
    channel: int
    top: int
    left: int
    values: Tensor
    ranks: Tensor


class _Maps(NamedTuple):
    """Where the values of the maps that are drawn stand in the flattened tensor.

    Attributes:
        shape: (C, H, W).
        start: Position of the first.
        steps: From one channel, row and column to the next; None where they are not regular.
        table: (C, H, W), all positions, where they are not.
    """

    shape: tuple[int, int, int]
    start: int
    steps: tuple[int, int, int] | None
    table: Tensor | None

    def at(self, channels: Tensor, y: Tensor, x: Tensor) -> Tensor:
        """Positions; the arguments broadcast."""
        if self.steps is None:
            assert self.table is not None  # noqa: S101 - one of the two is there
            return self.table[channels, y, x]
        a, b, c = self.steps
        return self.start + channels * a + y * b + x * c


_MAPS: WeakKeyDictionary[Activation, dict[Any, _Maps]] = WeakKeyDictionary()


def _maps_of(run: Run, activation: Activation, options: GridOptions) -> _Maps:
    """Where each value that is drawn stands in the tensor."""
    from hookviz.render import arrange

    kept = _MAPS.setdefault(activation, {})
    key = (options.sample, options.frame, options.axes, options.grid, options.query)
    if activation.kind == "attention" and options.heads != "each":
        raise LayerError(f"heads is {options.heads!r}; values are those of each head.")
    if key in kept:
        return kept[key]
    size = (int(run.input.tensor.shape[-2]), int(run.input.tensor.shape[-1]))
    drawn = arrange(activation, options, size)
    if drawn.kind == "attention":  # known by its values, which positions do not have
        options = replace(options, axes="attention")
    shape = dense(activation.tensor).shape
    places = torch.arange(shape.numel(), device="cpu").reshape(shape)
    table = arrange(replace(activation, tensor=places), options, size).maps.long()
    if table.shape != drawn.maps.shape or table.dim() != 3:
        raise LayerError(f"{activation.label} {list(activation.shape)} has no places to point at.")
    channels, height, width = table.shape
    start = int(table[0, 0, 0])
    steps = tuple(
        int(table.select(axis, 1).flatten()[0]) - start if table.shape[axis] > 1 else 0
        for axis in range(3)
    )
    at = [torch.arange(n) for n in table.shape]
    regular = start + (
        at[0][:, None, None] * steps[0] + at[1][:, None] * steps[1] + at[2] * steps[2]
    )
    found = _Maps((channels, height, width), start, None, table)
    if torch.equal(regular, table):
        found = found._replace(steps=(steps[0], steps[1], steps[2]), table=None)
    kept[key] = found
    return found


def check_index(layer: str, noun: str, index: Any, count: int) -> int:
    """An index once checked.

    Raises:
        LayerError: It is none of ``count``.
    """
    try:
        number = operator.index(index)
    except TypeError:
        number = -1
    if isinstance(index, bool) or not 0 <= number < count:
        legal = "0" if count == 1 else f"0 to {count - 1}"
        raise LayerError(f"{noun} is {index!r:.40}; '{layer}' has {noun}s {legal}.")
    return number


def read_values(tensor: Tensor, positions: Tensor) -> Tensor:
    """Values at positions of a flattened tensor, a copy in its dtype; NaN at position −1."""
    if bool((positions < 0).any()):  # of attention, which has no values outside a window
        found = read_values(tensor, positions.clamp(min=0))
        return found.masked_fill((positions < 0).to(found.device), torch.nan)
    plain = dense(tensor)
    at = [i.to(plain.device) for i in torch.unravel_index(positions, plain.shape)]
    try:
        return plain[tuple(at)].clone()
    except NotImplementedError:  # dtypes that torch stores, but hardly computes with
        whole = {1: torch.uint8, 2: torch.int16}[plain.element_size()]
        return plain.view(whole)[tuple(at)].clone().view(plain.dtype)


def value_at(
    run: Run, activation: Activation, channel: int, y: int, x: int, options: GridOptions
) -> Any:
    """See `Run.value`."""
    maps = _maps_of(run, activation, options)
    c, y, x = (
        check_index(activation.label, noun, index, count)
        for noun, index, count in zip(
            ("channel", "row", "column"), (channel, y, x), maps.shape, strict=True
        )
    )
    at = maps.at(*(torch.tensor([i]) for i in (c, y, x)))
    return read_values(activation.tensor, at)[0].item()


def vector_at(
    run: Run, activation: Activation, y: int, x: int, options: GridOptions
) -> ChannelVector:
    """See `Run.vector`."""
    positions, y, x = _column(run, activation, y, x, options)
    values = read_values(activation.tensor, positions)
    sizes = real_values(values).cpu()
    order = torch.argsort(sizes.nan_to_num(nan=-torch.inf), descending=True, stable=True)
    order = torch.cat((order[~sizes[order].isnan()], order[sizes[order].isnan()]))
    return ChannelVector(activation.label, y, x, values, tuple(order.tolist()), sizes)


def values_around(
    run: Run, activation: Activation, channel: int, y: int, x: int, options: GridOptions, most: int
) -> ValuesAround:
    """See `Run.values_around`."""
    maps = _maps_of(run, activation, options)
    count, rows, columns = maps.shape
    channel, y, x = (
        check_index(activation.label, noun, index, size)
        for noun, index, size in zip(
            ("channel", "row", "column"), (channel, y, x), maps.shape, strict=True
        )
    )
    side = max(1, math.isqrt(max(1, most // count)))
    at = []
    for middle, size in ((y, rows), (x, columns)):
        first = min(max(0, middle - side // 2), max(0, size - side))
        at.append(torch.arange(first, min(size, first + side)))
    every = torch.arange(count)[:, None, None]
    values = read_values(activation.tensor, maps.at(every, at[0][:, None], at[1]))
    sizes = real_values(values)
    own = sizes[channel]
    ranks = (1 + (sizes > own).sum(0)).where(~own.isnan(), 0)
    first_row, first_column = int(at[0][0]), int(at[1][0])
    return ValuesAround(
        activation.label, channel, first_row, first_column, values[channel].clone(), ranks
    )


def _column(
    run: Run, activation: Activation, y: int, x: int, options: GridOptions
) -> tuple[Tensor, int, int]:
    """Positions of all channels at a place, and the place once checked."""
    maps = _maps_of(run, activation, options)
    channels, rows, columns = maps.shape
    y = check_index(activation.label, "row", y, rows)
    x = check_index(activation.label, "column", x, columns)
    every = torch.arange(channels)
    return maps.at(every, torch.tensor(y), torch.tensor(x)), y, x


def real_values(values: Tensor) -> Tensor:
    """Values as real numbers that can be compared: float64, of complex ones the magnitude."""
    if values.is_complex():
        values = values.to(torch.complex128).abs()
    return values.cpu().to(torch.float64)


def channel_positions(
    run: Run, activation: Activation, channel: int, options: GridOptions
) -> Tensor:
    """(H, W), where the values of a channel's map stand in the flattened tensor."""
    maps = _maps_of(run, activation, options)
    count, rows, columns = maps.shape
    at = check_index(activation.label, "channel", channel, count)
    return maps.at(torch.tensor(at), torch.arange(rows)[:, None], torch.arange(columns))


def receptive_field(
    run: Run,
    activation: Activation,
    y: int,
    x: int,
    channel: int | None,
    options: GridOptions,
) -> ReceptiveField:
    """See `Run.receptive_field`."""
    if activation.kind not in ("output", "input"):
        raise LayerError(
            f"A receptive field is that of an output or an input, not of a {activation.kind}."
        )
    positions, y, x = _column(run, activation, y, x, options)
    if channel is not None:
        positions = positions[check_index(activation.label, "channel", channel, len(positions))][
            None
        ]
    reach = layer_reach(run.model, run.input.tensor, activation, run.activations)
    height, width = run.input.tensor.shape[-2:]
    made = _Made(activation.label, y, x, (height, width), run.image.size)
    boxes = boxes_at(reach, positions)
    if not bool(boxes.isfinite().all()):
        note = "It depends on no pixel of the input: all that it reads is padding or constant."
        return made.field(None, None, None, note)
    seen, box = ((int(x0), int(y0), int(x1) + 1, int(y1) + 1) for y0, y1, x0, x1 in boxes.tolist())
    notes = []
    whole = seen == (0, 0, width, height)
    event = event_at(reach, positions)
    if whole and reach.unions:
        layer, name = reach.unions[0]
        box = seen
        notes.append(
            f"Not known more closely than the whole image: what {_layer(layer)} does ({name}) "
            "cannot be followed."
        )
    elif whole and event is not None:
        layer, name = event
        box = seen
        notes.append(f"The whole image: {_layer(layer)} {_reason(name)}.")
    elif whole:
        notes.append("The whole image.")
    if reach.numbers and not whole:
        layer = _layer(reach.numbers[0])
        notes.append(f"What {layer} computes from single numbers in Python is not counted.")
    touches = seen[0] == 0 or seen[1] == 0 or seen[2] == width or seen[3] == height
    if not reach.edges_known and touches and event is None:
        notes.append("How much of it lies beyond the edges of the input is not known.")
    try:
        image_box = source_box(run.input, run.image, seen)
        if image_box is None:
            notes.append("It sees a frame around the photo, nothing of the photo itself.")
    except HookvizError as error:
        image_box = None
        notes.append(error.message)
    return made.field(box, seen, image_box, " ".join(notes))


def receptive_boxes(run: Run, activation: Activation, options: GridOptions) -> Tensor:
    """See `Run.receptive_boxes`."""
    maps = _maps_of(run, activation, options)
    reach = layer_reach(run.model, run.input.tensor, activation, run.activations)
    channels, rows, columns = maps.shape
    height, width = run.input.tensor.shape[-2:]
    every, across = torch.arange(channels), torch.arange(columns)[:, None]
    found = torch.empty((rows, columns, 4), dtype=torch.float64, device="cpu")
    whole = torch.tensor((0.0, height - 1, 0.0, width - 1), device="cpu")
    for y in range(rows):  # a row at a time: positions of all channels are many
        seen, free = boxes_at(reach, maps.at(every, torch.tensor(y), across))
        there = seen.isfinite().all(0) & free.isfinite().all(0)
        free = free.where((seen != whole[:, None]).any(0), whole[:, None])
        top, bottom, left, right = free.where(there, torch.nan).double()
        found[y] = torch.stack((left, top, right + 1, bottom + 1), dim=-1)
    return found


class _Made(NamedTuple):
    """What is the same for each field of a place."""

    layer: str
    y: int
    x: int
    input_size: tuple[int, int]
    image_size: tuple[int, int]

    def field(self, box: Any, seen: Any, image_box: Any, note: str) -> ReceptiveField:
        height, width = self.input_size
        return ReceptiveField(
            self.layer, self.y, self.x, box, seen, self.input_size, image_box, self.image_size,
            seen == (0, 0, width, height), note,
        )  # fmt: skip


def _layer(name: str) -> str:
    return f"'{name}'" if name else "the model"


def _reason(operation: str) -> str:
    """What an operation over all places is called."""
    if any(word in operation for word in ("softmax", "attention")):
        return "compares every place with every other (attention)"
    if "norm" in operation:
        return "normalises with statistics of all places"
    if "fft" in operation:
        return "transforms all places together"
    if operation in ("mean", "sum", "amax", "amin", "max", "min", "var", "std", "var_mean"):
        return "takes one value of all places together"
    if operation in ("mm", "bmm", "addmm", "baddbmm", "linear"):
        return "multiplies all places with each other or with its weights"
    return f"reads all places together ({operation})"


def channels_in(
    run: Run, activation: Activation, region: Sequence[float], options: GridOptions, *, of: str
) -> RegionChannels:
    """See `Run.channels_in`."""
    from hookviz.render import arrange

    left, top, right, bottom = _region(run, region, of)
    size = (int(run.input.tensor.shape[-2]), int(run.input.tensor.shape[-1]))
    drawn = arrange(activation, options, size).maps
    rows, columns, how = _centers(run, activation, options)
    inside = ((rows >= top) & (rows < bottom))[:, None] & ((columns >= left) & (columns < right))
    if not bool(inside.any()):
        y = int((rows - (top + bottom) / 2).abs().argmin())
        x = int((columns - (left + right) / 2).abs().argmin())
        inside[y, x] = True
        how += " No center lies in the region, so the nearest place was taken."
    values = real_values(drawn).flatten(1)
    finite = values.isfinite()
    counted, values = finite.double(), values.where(finite, 0.0)
    mask = inside.flatten().double()
    within, without = ((values @ m) / (counted @ m) for m in (mask, 1 - mask))
    difference = within - without if not bool(inside.all()) else within
    order = torch.argsort(difference.nan_to_num(nan=-torch.inf), descending=True, stable=True)
    return RegionChannels(
        activation.label, tuple(order.tolist()), within, without, difference, inside, how
    )


def place_at(
    run: Run, activation: Activation, x: float, y: float, options: GridOptions, *, of: str
) -> tuple[int, int]:
    """See `Run.place_at`."""
    at_x, at_y, _, _ = _region(run, (x, y, x + 1, y + 1), of)
    rows, columns, _ = _centers(run, activation, options)
    box, size = run.input.box, run.input.tensor.shape[-2:]
    # The middle of the pixel, which on the photo may be larger or smaller than one of the input.
    half_x = half_y = 0.5
    if of == "image" and box is not None:
        half_x, half_y = size[1] / (box[2] - box[0]) / 2, size[0] / (box[3] - box[1]) / 2
    return (
        int((rows - at_y - half_y).abs().argmin()), int((columns - at_x - half_x).abs().argmin())
    )  # fmt: skip


def centers(run: Run, activation: Activation, options: GridOptions) -> tuple[Tensor, Tensor]:
    """See `Run.centers`."""
    rows, columns, _ = _centers(run, activation, options)
    return rows, columns


def _region(run: Run, region: Sequence[float], of: str) -> Box:
    """A region in pixels of the network's input."""
    try:
        left, top, right, bottom = map(float, region)
        legal = left < right and top < bottom
    except (TypeError, ValueError):
        legal = False
    if not legal:
        raise LayerError(
            f"region is {region!r:.80}; it must be (left, top, right, bottom) in pixels, with left "
            "< right and top < bottom."
        )
    if of not in ("image", "input"):
        raise LayerError(f"of is {of!r:.40}; legal are 'image' and 'input'.")
    if of == "input":
        return left, top, right, bottom
    box = run.input.box
    if box is None:
        raise HookvizError(
            "Where the input lies in the image is not known: the preprocessing is a function of "
            "your own.",
            remedy="Give the region in pixels of the network's input: of='input'.",
            code="no-region",
        )
    height, width = run.input.tensor.shape[-2:]
    across, down = width / (box[2] - box[0]), height / (box[3] - box[1])
    return (
        (left - box[0]) * across, (top - box[1]) * down,
        (right - box[0]) * across, (bottom - box[1]) * down,
    )  # fmt: skip


def _centers(run: Run, activation: Activation, options: GridOptions) -> tuple[Tensor, Tensor, str]:
    """Where the rows and columns of the maps lie in the input, in pixels, and how that is known."""
    maps = _maps_of(run, activation, options)
    channels, height, width = maps.shape
    size = run.input.tensor.shape[-2:]
    spread = [
        (torch.arange(n, dtype=torch.float64) + 0.5) * s / n
        for n, s in zip((height, width), size, strict=True)
    ]
    try:
        reach = layer_reach(run.model, run.input.tensor, activation, run.activations)
    except HookvizError:
        reach = None
    local = reach is not None and reach.reach is not None and reach.edges_known
    if reach is None or not local or event_at(reach, torch.tensor([maps.start])):
        return (
            spread[0],
            spread[1],
            f"Places lie evenly over the input ({shape_text((height, width))}).",
        )
    every = torch.arange(channels)
    found = []
    for axis, count in enumerate((height, width)):
        along, middle = torch.arange(count)[:, None], torch.tensor((height, width)[1 - axis] // 2)
        positions = maps.at(every, *((along, middle) if axis == 0 else (middle, along)))
        first, last = boxes_at(reach, positions)[1, 2 * axis : 2 * axis + 2].double()
        found.append(((first + last + 1) / 2).where(first.isfinite(), spread[axis]))
    return found[0], found[1], "A place lies where the center of its receptive field does."
