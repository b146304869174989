"""Pointing at a place of a layer: its values, its channels, the pixels that it sees.

A place is a row and a column of the maps that `Run.figure` draws: of a convolution's output, of
tokens laid out as a grid, of a frame of a volume; a vector has the one place (0, 0). Values are
those of the captured tensor, to the last bit, never of colors.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from hookviz._tensors import dense
from hookviz._text import shape_text
from hookviz.activation import Activation
from hookviz.errors import HookvizError, LayerError
from hookviz.images import Box, source_box
from hookviz.run._field import LayerReach, boxes_at, event_at, layer_reach

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
    except RuntimeError:  # dtypes that torch stores, but hardly computes with
        if plain.element_size() > 2:
            raise
        whole = {1: torch.uint8, 2: torch.int16}[plain.element_size()]
        return plain.view(whole)[tuple(at)].clone().view(plain.dtype)


def real_values(values: Tensor) -> Tensor:
    """Values as real numbers that can be compared: float64, of complex ones the magnitude."""
    if values.is_complex():
        values = values.to(torch.complex128).abs()
    return values.cpu().to(torch.float64)


@dataclass(frozen=True, eq=False)
class Pointed:
    """A record whose places are pointed at; the methods are those of `Run` of the same names.

    Attributes:
        run: Where it comes from.
        record: The record.
        options: How its axes are read.
    """

    run: Run
    record: Activation
    options: GridOptions

    @property
    def input_size(self) -> tuple[int, int]:
        """(height, width) of what the network saw."""
        height, width = self.run.input.tensor.shape[-2:]
        return int(height), int(width)

    @property
    def view(self) -> tuple[Any, ...]:
        """The options that say which values are drawn."""
        options = self.options
        return (options.sample, options.frame, options.axes, options.grid, options.query)

    @property
    def maps(self) -> _Maps:
        """Where each value that is drawn stands in the tensor."""
        if self.record.kind == "attention" and self.options.heads != "each":
            raise LayerError(f"heads is {self.options.heads!r}; values are those of each head.")
        kept = _MAPS.setdefault(self.record, {})
        if self.view not in kept:
            kept[self.view] = self._found_maps()
        return kept[self.view]

    def _found_maps(self) -> _Maps:
        from hookviz.render import arrange

        record, options = self.record, self.options
        drawn = arrange(record, options, self.input_size)
        if drawn.kind == "attention":  # known by its values, which positions do not have
            options = replace(options, axes="attention")
        shape = dense(record.tensor).shape
        places = torch.arange(shape.numel(), device="cpu").reshape(shape)
        table = arrange(replace(record, tensor=places), options, self.input_size).maps.long()
        if table.shape != drawn.maps.shape or table.dim() != 3:
            raise LayerError(f"{record.label} {list(record.shape)} has no places to point at.")
        count, height, width = table.shape
        start = int(table[0, 0, 0])
        channels, rows, columns = (
            int(table.select(axis, 1).flatten()[0]) - start if table.shape[axis] > 1 else 0
            for axis in range(3)
        )
        regular = _Maps((count, height, width), start, (channels, rows, columns), None)
        c, y, x = (torch.arange(size) for size in table.shape)
        if torch.equal(regular.at(c[:, None, None], y[:, None], x), table):
            return regular
        return regular._replace(steps=None, table=table)

    def _checked(self, *indices: Any) -> list[int]:
        """Channel, row and column, or row and column, once checked."""
        nouns, sizes = ("channel", "row", "column"), self.maps.shape
        return [
            check_index(self.record.label, noun, index, size)
            for noun, index, size in zip(
                nouns[-len(indices) :], indices, sizes[-len(indices) :], strict=True
            )
        ]

    def _column(self, y: int, x: int) -> Tensor:
        """Positions of all channels at a place."""
        return self.maps.at(torch.arange(self.maps.shape[0]), torch.tensor(y), torch.tensor(x))

    def positions(self, channel: int) -> Tensor:
        """(H, W), where the values of a channel's map stand in the flattened tensor."""
        maps = self.maps
        count, rows, columns = maps.shape
        at = check_index(self.record.label, "channel", channel, count)
        return maps.at(torch.tensor(at), torch.arange(rows)[:, None], torch.arange(columns))

    def value(self, channel: int, y: int, x: int) -> Any:
        """See `Run.value`."""
        at = self.maps.at(*map(torch.tensor, self._checked(channel, y, x)))
        return read_values(self.record.tensor, at).item()

    def vector(self, y: int, x: int) -> ChannelVector:
        """See `Run.vector`."""
        y, x = self._checked(y, x)
        values = read_values(self.record.tensor, self._column(y, x))
        sizes = real_values(values).cpu()
        order = torch.argsort(sizes.nan_to_num(nan=-torch.inf), descending=True, stable=True)
        order = torch.cat((order[~sizes[order].isnan()], order[sizes[order].isnan()]))
        return ChannelVector(self.record.label, y, x, values, tuple(order.tolist()), sizes)

    def values_around(self, channel: int, y: int, x: int, most: int) -> ValuesAround:
        """See `Run.values_around`."""
        channel, y, x = self._checked(channel, y, x)
        maps = self.maps
        count, *shape = maps.shape
        side = max(1, math.isqrt(max(1, most // count)))
        at = []
        for middle, size in zip((y, x), shape, strict=True):
            first = min(max(0, middle - side // 2), max(0, size - side))
            at.append(torch.arange(first, min(size, first + side)))
        every = torch.arange(count)[:, None, None]
        values = read_values(self.record.tensor, maps.at(every, at[0][:, None], at[1]))
        sizes = real_values(values)
        own = sizes[channel]
        ranks = (1 + (sizes > own).sum(0)).where(~own.isnan(), 0)
        top, left = int(at[0][0]), int(at[1][0])
        own_values = values[channel].clone()
        return ValuesAround(self.record.label, channel, top, left, own_values, ranks)

    def reach(self) -> LayerReach:
        """What the record's values depend on."""
        run = self.run
        return layer_reach(run.model, run.input.tensor, self.record, run.activations)

    def receptive_field(self, y: int, x: int, channel: int | None) -> ReceptiveField:
        """See `Run.receptive_field`."""
        run, record = self.run, self.record
        if record.kind not in ("output", "input"):
            raise LayerError(
                f"A receptive field is that of an output or an input, not of a {record.kind}."
            )
        y, x = self._checked(y, x)
        positions = self._column(y, x)
        if channel is not None:
            positions = positions[[check_index(record.label, "channel", channel, len(positions))]]
        reach = self.reach()
        height, width = self.input_size
        field = partial(
            ReceptiveField, record.label, y, x,
            input_size=(height, width), image_size=run.image.size,
        )  # fmt: skip
        boxes = boxes_at(reach, positions)
        if not bool(boxes.isfinite().all()):
            note = "It depends on no pixel of the input: all that it reads is padding or constant."
            return field(box=None, seen=None, image_box=None, whole=False, note=note)
        seen, box = (
            (int(x0), int(y0), int(x1) + 1, int(y1) + 1) for y0, y1, x0, x1 in boxes.tolist()
        )
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
        return field(box=box, seen=seen, image_box=image_box, whole=whole, note=" ".join(notes))

    def receptive_boxes(self) -> Tensor:
        """See `Run.receptive_boxes`."""
        maps, reach = self.maps, self.reach()
        channels, rows, columns = maps.shape
        height, width = self.input_size
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

    def channels_in(self, region: Sequence[float], of: str) -> RegionChannels:
        """See `Run.channels_in`."""
        from hookviz.render import arrange

        left, top, right, bottom = self._region(region, of)
        drawn = arrange(self.record, self.options, self.input_size).maps
        rows, columns, how = self._centers()
        inside = ((rows >= top) & (rows < bottom))[:, None] & (
            (columns >= left) & (columns < right)
        )
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
            self.record.label, tuple(order.tolist()), within, without, difference, inside, how
        )

    def place_at(self, x: float, y: float, of: str) -> tuple[int, int]:
        """See `Run.place_at`."""
        # The middle of the pixel, which on the photo may be larger or smaller than one of the
        # input.
        left, top, right, bottom = self._region((x, y, x + 1, y + 1), of)
        rows, columns, _ = self._centers()
        return (
            int((rows - (top + bottom) / 2).abs().argmin()),
            int((columns - (left + right) / 2).abs().argmin()),
        )

    def centers(self) -> tuple[Tensor, Tensor]:
        """See `Run.centers`."""
        rows, columns, _ = self._centers()
        return rows, columns

    def _region(self, region: Sequence[float], of: str) -> Box:
        """A region in pixels of the network's input."""
        try:
            left, top, right, bottom = map(float, region)
            legal = left < right and top < bottom
        except (TypeError, ValueError):
            legal = False
        if not legal:
            raise LayerError(
                f"region is {region!r:.80}; it must be (left, top, right, bottom) in pixels, with "
                "left < right and top < bottom."
            )
        if of not in ("image", "input"):
            raise LayerError(f"of is {of!r:.40}; legal are 'image' and 'input'.")
        if of == "input":
            return left, top, right, bottom
        box = self.run.input.box
        if box is None:
            raise HookvizError(
                "Where the input lies in the image is not known: the preprocessing is a function "
                "of your own.",
                remedy="Give the region in pixels of the network's input: of='input'.",
                code="no-region",
            )
        height, width = self.input_size
        across, down = width / (box[2] - box[0]), height / (box[3] - box[1])
        return (
            (left - box[0]) * across, (top - box[1]) * down,
            (right - box[0]) * across, (bottom - box[1]) * down,
        )  # fmt: skip

    def _centers(self) -> tuple[Tensor, Tensor, str]:
        """Where the rows and columns lie in the input, in pixels, and how that is known."""
        maps = self.maps
        channels, *shape = maps.shape
        spread = [
            (torch.arange(n, dtype=torch.float64) + 0.5) * s / n
            for n, s in zip(shape, self.input_size, strict=True)
        ]
        try:
            reach = self.reach()
        except HookvizError:
            reach = None
        local = reach is not None and reach.reach is not None and reach.edges_known
        if reach is None or not local or event_at(reach, torch.tensor([maps.start])):
            how = f"Places lie evenly over the input ({shape_text(shape)})."
            return spread[0], spread[1], how
        every = torch.arange(channels)
        found = []
        for axis, count in enumerate(shape):
            along, middle = torch.arange(count)[:, None], torch.tensor(shape[1 - axis] // 2)
            positions = maps.at(every, *((along, middle) if axis == 0 else (middle, along)))
            first, last = boxes_at(reach, positions)[1, 2 * axis : 2 * axis + 2].double()
            found.append(((first + last + 1) / 2).where(first.isfinite(), spread[axis]))
        how = "A place lies where the center of its receptive field does."
        return found[0], found[1], how


def _layer(name: str) -> str:
    return f"'{name}'" if name else "the model"


_REASONS = {
    "softmax|attention": "compares every place with every other (attention)",
    "norm": "normalises with statistics of all places",
    "fft": "transforms all places together",
    "^(mean|sum|amax|amin|max|min|var|std|var_mean)$": "takes one value of all places together",
    "^(mm|bmm|addmm|baddbmm|linear)$": "multiplies all places with each other or with its weights",
}
"""What an operation over all places is called, by a pattern that is found in its name."""


def _reason(operation: str) -> str:
    said = (words for pattern, words in _REASONS.items() if re.search(pattern, operation))
    return next(said, f"reads all places together ({operation})")
