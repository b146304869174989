"""Crops of a channel's strongest images: the receptive field's part of the original image.

A field that reaches beyond the input's edges keeps its size, and what lies there is hatched. Where
the field is the whole input (after attention or a global mean, in vectors), the crop is all that
the network saw of the image; of tokens that lie as the image does it is the token's own patch.
"""

from __future__ import annotations

import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from hookviz.errors import HookvizError, RunCancelled
from hookviz.images import Box
from hookviz.run import Run
from hookviz.surveys._files import TensorFile, committed
from hookviz.surveys._inputs import Inputs, in_workers
from hookviz.surveys._layout import Layout
from hookviz.surveys._plan import Plan
from hookviz.surveys._sources import Row, Source
from hookviz.surveys._tally import NOBODY, Tally

CROPS = "crops.safetensors"
SIDE = 112
"""The longer side of a crop that is kept, in pixels."""

Shows = Literal["field", "whole image", "token patch", "unknown field", "no crop"]
SHOWS: tuple[Shows, ...] = get_args(Shows)


@dataclass(frozen=True)
class _Wanted:
    """A crop that is to be made.

    Attributes:
        at: Layer, channel, rank.
        box: Left, top, right, bottom in pixels of the network's input.
        shows: Position in SHOWS.
    """

    at: tuple[int, int, int]
    box: Box
    shows: int


def field_boxes(run: Run, layout: Layout, places: set[int]) -> dict[int, tuple[Box, Shows]]:
    """What a layer's places see of the network's input.

    Args:
        run: A run of the model on an image of the survey's size.
        layout: The layer.
        places: Flattened places.

    Returns:
        For each: left, top, right, bottom in pixels of the input, and what that is.
    """
    height, width = (int(side) for side in run.input.tensor.shape[-2:])
    whole: Box = (0.0, 0.0, float(width), float(height))
    if layout.grid is not None and "T" in layout.axes and not layout.is_maps:
        rows, columns = layout.grid
        found: dict[int, tuple[Box, Shows]] = {}
        for place in places:
            y, x = divmod(place - layout.apart, columns)
            if place < layout.apart or y >= rows:
                found[place] = whole, "whole image"
                continue
            across, down = width / columns, height / rows
            patch = (x * across, y * down, (x + 1) * across, (y + 1) * down)
            found[place] = patch, "token patch"
        return found
    if not layout.is_maps:
        return dict.fromkeys(places, (whole, "whole image"))
    try:
        boxes = run.receptive_boxes(layout.layer, layout.call, leaf=layout.leaf).flatten(0, 1)
    except HookvizError:
        return dict.fromkeys(places, (whole, "unknown field"))
    fields: dict[int, tuple[Box, Shows]] = {}
    for place in places:
        left, top, right, bottom = boxes[place].tolist()
        box = (left, top, right, bottom)
        # Where a place depends on no pixel there is nothing closer to show.
        partly = math.isfinite(left) and box != whole
        fields[place] = (box, "field") if partly else (whole, "whole image")
    return fields


def crop_of(image: Image.Image, input_box: Box, size: tuple[int, int], box: Box) -> Image.Image:
    """A part of an image, by a box in pixels of the network's input.

    Args:
        image: The original image.
        input_box: Where the input's edges lie in it.
        size: (width, height) of the input.
        box: Left, top, right, bottom in pixels of the input; may reach beyond it.

    Returns:
        RGB, its longer side SIDE pixels; hatched where there is no input or no image.
    """
    asked = on_image(box, input_box, size)
    scale = SIDE / max(asked[2] - asked[0], asked[3] - asked[1])
    width = max(1, round((asked[2] - asked[0]) * scale))
    height = max(1, round((asked[3] - asked[1]) * scale))
    rows, columns = np.mgrid[:height, :width]
    stripes = np.where((rows + columns) % 8 < 2, 150, 205).astype(np.uint8)
    canvas = Image.fromarray(np.repeat(stripes[..., None], 3, axis=2))
    inside = (
        max(asked[0], input_box[0], 0.0), max(asked[1], input_box[1], 0.0),
        min(asked[2], input_box[2], float(image.width)),
        min(asked[3], input_box[3], float(image.height)),
    )  # fmt: skip
    if inside[0] >= inside[2] or inside[1] >= inside[3]:
        return canvas
    left, top, right, bottom = (
        round((edge - asked[at % 2]) * scale) for at, edge in enumerate(inside)
    )
    right, bottom = max(right, left + 1), max(bottom, top + 1)
    way = Image.Resampling.NEAREST if scale > 4 else Image.Resampling.BICUBIC
    # Cut first: the filter would blend in what lies around.
    outer = outward(inside)
    left_edge, top_edge, right_edge, bottom_edge = inside
    x, y, _, _ = outer
    within = (left_edge - x, top_edge - y, right_edge - x, bottom_edge - y)
    piece = image.crop(outer).resize((right - left, bottom - top), way, within, reducing_gap=2.0)
    canvas.paste(piece, (left, top))
    return canvas


def on_image(box: Box, input_box: Box, size: tuple[int, int]) -> Box:
    """A box of the network's input in pixels of the image.

    Examples:
        >>> on_image((-8, 0, 8, 16), (10.0, 0.0, 74.0, 64.0), (32, 32))
        (-6.0, 0.0, 26.0, 32.0)
    """
    across = (input_box[2] - input_box[0]) / size[0]
    down = (input_box[3] - input_box[1]) / size[1]
    return (
        input_box[0] + box[0] * across, input_box[1] + box[1] * down,
        input_box[0] + box[2] * across, input_box[1] + box[3] * down,
    )  # fmt: skip


class _Cropping(Dataset[list[tuple[_Wanted, Box, bytes]]]):
    """One item is one image with all crops of it."""

    def __init__(
        self,
        inputs: Inputs,
        source: Source,
        rows: list[Row],
        size: tuple[int, int],
        wanted: dict[int, list[_Wanted]],
    ) -> None:
        self._inputs, self._source, self._rows, self._size = inputs, source, rows, size
        self._wanted, self._numbers = wanted, sorted(wanted)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, at: int) -> list[tuple[_Wanted, Box, bytes]]:
        number = self._numbers[at]
        try:
            picture, box = self._inputs.picture(self._source.read(number, self._rows[number]))
        except Exception:  # noqa: BLE001 - it is gone meanwhile, or was changed: no crop of it
            return []
        made: dict[Box, bytes] = {}
        found = []
        for one in self._wanted[number]:
            if one.box not in made:  # many channels are strongest at the same place
                data = io.BytesIO()
                crop_of(picture.image, box, self._size, one.box).save(data, "JPEG", quality=92)
                made[one.box] = data.getvalue()
            found.append((one, on_image(one.box, box, self._size), made[one.box]))
        return found


def write_crops(
    plan: Plan,
    tallies: list[Tally],
    run: Run,
    inputs: Inputs,
    source: Source,
    workers: int,
    cancelled: Callable[[], bool] | None,
) -> None:
    """Makes the crops of all channels' strongest images, image by image, and commits them.

    Args:
        plan: The plan.
        tallies: The numbers of each layer.
        run: A run of the model on an image of the survey's size.
        inputs: Makes the network's input.
        source: Where the images are.
        workers: How many processes read them.
        cancelled: Asked before each image.

    Raises:
        RunCancelled: ``cancelled`` answered True.
    """
    wanted: dict[int, list[_Wanted]] = defaultdict(list)
    for place, (layout, tally) in enumerate(zip(plan.layouts, tallies, strict=True)):
        boxes = field_boxes(run, layout, set(tally.high_place[tally.high_image != NOBODY].tolist()))
        for channel, rank in np.argwhere(tally.high_image != NOBODY).tolist():
            box, shows = boxes[int(tally.high_place[channel, rank])]
            one = _Wanted((place, channel, rank), box, SHOWS.index(shows))
            wanted[int(tally.high_image[channel, rank])].append(one)
    height, width = plan.facts["input_shape"][1:]
    none = SHOWS.index("no crop")
    spans = [torch.zeros((*t.high.shape, 2), dtype=torch.int64) for t in tallies]
    found = [torch.zeros((*t.high.shape, 4), dtype=torch.int32) for t in tallies]
    shown = [torch.full(t.high.shape, none, dtype=torch.uint8) for t in tallies]

    def jpegs() -> Iterator[bytes]:
        end = 0
        items: Any = _Cropping(inputs, source, plan.rows, (width, height), wanted)
        for crops in in_workers(items, workers):
            if cancelled is not None and cancelled():
                raise RunCancelled("Making the crops was cancelled; all shards are kept.")
            starts: dict[Box, int] = {}
            for one, box, data in crops:
                if one.box not in starts:
                    starts[one.box] = end
                    end += len(data)
                    yield data
                start = starts[one.box]
                place, channel, rank = one.at
                spans[place][channel, rank] = torch.tensor((start, start + len(data)))
                found[place][channel, rank] = torch.tensor(outward(box), dtype=torch.int32)
                shown[place][channel, rank] = one.shows

    with committed(plan.folder / CROPS) as file:
        writer = TensorFile(file, 1000 * (len(tallies) + 1))
        writer.add_bytes("jpegs", jpegs())
        for place in range(len(tallies)):
            for name, values in (("spans", spans), ("boxes", found), ("shown", shown)):
                writer.add(f"{place}/{name}", values[place])
        writer.close({"shards": plan.shards_there()})


def outward(box: Box) -> tuple[int, int, int, int]:
    """The smallest box of whole pixels that holds a box."""
    return (math.floor(box[0]), math.floor(box[1]), math.ceil(box[2]), math.ceil(box[3]))
