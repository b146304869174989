"""Reads a survey: needs neither the model nor the images."""

from __future__ import annotations

import io
import json
import math
import operator
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hookviz._text import names_text
from hookviz.errors import ImageError, LayerError, SurveyError, did_you_mean
from hookviz.images import Picture
from hookviz.surveys._crops import CROPS, SHOWS, Shows
from hookviz.surveys._files import read_facts
from hookviz.surveys._find import source_elsewhere
from hookviz.surveys._fold import folded, open_tensors, summary_of
from hookviz.surveys._layout import Layout
from hookviz.surveys._plan import Plan, numbers_in, read_manifest, read_rows, row_lines
from hookviz.surveys._sources import Row
from hookviz.surveys._tally import BINS, NOBODY, Tally, bin_edges
from hookviz.surveys._zarr_store import open_array, read_array

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class LayerStatistics:
    """What the channels of a layer did over all images, in the activation's own units.

    Values that are not finite are counted, and left out of everything else. A channel without a
    finite value has NaN where a number is missing, and -1 for an image.

    Attributes:
        layer: The layer, with call and leaf where there are several.
        images: How many images were counted.
        count: (C,) int64, finite values: images times places.
        mean: (C,) float64.
        std: (C,) float64, of the population.
        min: (C,) float64, smallest value.
        min_image: (C,) int64, number of the image that has it, the first of equals.
        min_place: (C, …) int64, where in its maps: row and column, or as many numbers as there are
            axes beside the channel's; none for vectors.
        max: (C,) float64, largest value.
        max_image: (C,) int64.
        max_place: (C, …) int64.
        zeros: (C,) int64, values of magnitude below 2⁻¹²⁹ (float32 has nothing but subnormal
            numbers there).
        nan: (C,) int64.
        posinf: (C,) int64.
        neginf: (C,) int64.
        histogram: (C, 4096) int64, how many values begin with the same 12 bits of a float32:
            sign, exponent, 3 bits of the mantissa. ``edges`` says which values these are.
    """

    layer: str
    images: int
    count: NDArray[np.int64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    min: NDArray[np.float64]
    min_image: NDArray[np.int64]
    min_place: NDArray[np.int64]
    max: NDArray[np.float64]
    max_image: NDArray[np.int64]
    max_place: NDArray[np.int64]
    zeros: NDArray[np.int64]
    nan: NDArray[np.int64]
    posinf: NDArray[np.int64]
    neginf: NDArray[np.int64]
    histogram: NDArray[np.int64] = field(repr=False)

    @property
    def zero_share(self) -> NDArray[np.float64]:
        """(C,) share of zeros among the finite values, 0 to 1; NaN where there are none."""
        with np.errstate(invalid="ignore"):
            return self.zeros / self.count

    @property
    def dead(self) -> NDArray[np.bool_]:
        """(C,) whether all values of a channel are one and the same, over all of these images."""
        found: NDArray[np.bool_] = self.min == self.max
        return found

    @property
    def edges(self) -> NDArray[np.float64]:
        """(4096, 2): the values of a bin lie from the first magnitude on and below the second."""
        return bin_edges()

    def quantile(self, share: float) -> NDArray[np.float64]:
        """The value that a share of a channel's finite values does not exceed, from the histogram.

        Args:
            share: 0 to 1.

        Returns:
            (C,) float64, within the bin of the true quantile (at most an eighth of the value
            away), and never below the minimum or above the maximum; NaN for a channel without
            finite values.

        Raises:
            SurveyError: The share is not within 0 and 1.
        """
        if not 0 <= share <= 1:
            raise SurveyError(f"share is {share!r}; legal is 0 to 1.")
        half = BINS // 2
        order = np.concatenate((np.arange(half + 2039, half - 1, -1), np.arange(2040)))
        middle = bin_edges().mean(1)
        middle[[0, half]] = 0.0  # zeros
        middle = middle[order]
        upto = self.histogram[:, order].cumsum(1)
        wanted = np.maximum(np.ceil(share * self.count), 1)
        at = (upto < wanted[:, None]).sum(1).clip(max=len(order) - 1)
        found = np.clip(middle[at], self.min, self.max)
        return np.where(self.count > 0, found, np.nan)

    def equal_bins(
        self, channel: int, bins: int = 60
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """A channel's histogram in steps of one width, as it is drawn.

        Args:
            channel: From 0.
            bins: How many.

        Returns:
            Counts (bins,), each of ``histogram``'s spread evenly over its values, without the
            zeros; and the steps' edges (bins + 1,), from the smallest value to the largest. Both
            are empty where there are no two finite values.
        """
        low, high = self.min[channel], self.max[channel]
        if not low < high:
            return np.zeros(0), np.zeros(0)
        steps = np.linspace(low, high, bins + 1)
        return _spread(self.histogram[channel], steps), steps

    def __repr__(self) -> str:
        return (
            f"<{self.layer}: {len(self.count)} channels over {self.images} images, "
            f"{int(self.dead.sum())} dead>"
        )


def _spread(counts: NDArray[np.int64], steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Counts of the bins without that of zero, spread evenly over each, in other steps."""
    edges = np.sort(bin_edges(), axis=1)
    found = np.zeros(len(steps) - 1)
    for at in np.flatnonzero(counts):
        left, right = edges[at]
        if at % (BINS // 2) == 0 or not np.isfinite(left):
            continue
        left, right = max(left, steps[0]), min(right, steps[-1])
        if right <= left:  # the smallest or largest value itself
            found[0 if left <= steps[0] else -1] += counts[at]
            continue
        share = np.diff(np.clip((steps - left) / (right - left), 0, 1))
        found += counts[at] * share
    return found


@dataclass(frozen=True, eq=False)
class Hit:
    """One of the images that move a channel most.

    Attributes:
        rank: From 1, the strongest.
        image: The image's number in the survey.
        name: Its path below the data's folder, or its number.
        label: Its class; "" where there is none.
        path: Where its file is, or was; "" where it has none of its own, see `Survey.picture`.
        value: The channel's largest value in it, in the activation's units.
        place: Where: row and column, or as many numbers as there are axes; () for vectors.
        box: Left, top, right, bottom in pixels of the (upright) image: what the crop shows. May
            reach beyond the image. None where there is no crop.
        shows: "field" (the receptive field), "whole image", "token patch", "unknown field" (the
            model's forward could not be followed: all of the image), or "no crop": none was made,
            because the survey has not ended or the image was gone.
    """

    rank: int
    image: int
    name: str
    label: str
    path: str
    value: float
    place: tuple[int, ...]
    box: tuple[int, int, int, int] | None
    shows: Shows
    _jpeg: bytes = field(repr=False)

    @property
    def crop(self) -> Image.Image | None:
        """The crop, RGB, its longer side 112 pixels; hatched where the field leaves the image."""
        return Image.open(io.BytesIO(self._jpeg)).convert("RGB") if self._jpeg else None


@dataclass(frozen=True)
class SurveyFailure:
    """Something that could not be surveyed.

    Attributes:
        image: The number of an image that could not be read; None: a whole shard is meant.
        name: The image's name, or the shard's number.
        reason: Why, in a sentence.
    """

    image: int | None
    name: str
    reason: str


class Survey:
    """What a survey found; made by `hookviz.survey` and `hookviz.open_survey`.

    Numbers are read when they are asked for, and those of the last layer are kept; tensors are read
    anew each time.

    Attributes:
        folder: The survey's folder.
        layers: What was surveyed, with call and leaf where a layer gave several tensors.
        complete: Whether all shards are there.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        facts = read_manifest(self.folder)
        if facts is None:
            raise SurveyError(
                f"There is no survey in {str(self.folder)!r}: it has no manifest.json."
            )
        self._facts = facts
        self._plan = Plan(self.folder, facts, [])
        self._layouts = {layout.label: layout for layout in self._plan.layouts}
        self._numbers = self._plan.shards_there()
        self._kept: tuple[int, Tally] | None = None
        self.layers = tuple(self._layouts)
        self.complete = self._plan.complete

    @property
    def facts(self) -> dict[str, Any]:
        """The manifest: model, weights' hash, preprocessing, batch, device … A copy."""
        found: dict[str, Any] = json.loads(json.dumps(self._facts))
        return found

    @cached_property
    def images(self) -> tuple[Row, ...]:
        """All images of the plan by number: ``.name``, ``.label``, ``.size``, ``.changed``."""
        return tuple(read_rows(self.folder, self._facts))

    @cached_property
    def _lines(self) -> list[bytes]:
        return row_lines(self.folder, self._facts)

    def _row(self, image: int) -> Row:
        """One image of the plan, without making the others."""
        if "ended" in self._facts:
            return Row(str(image))
        return Row(*json.loads(self._lines[image]))

    @cached_property
    def failures(self) -> tuple[SurveyFailure, ...]:
        """Images that could not be read, and shards on which the model failed."""
        found = []
        for number in self._numbers:
            for image, reason in read_facts(self._plan.shard_file(number))["bad"]:
                found.append(SurveyFailure(image, self._row(image).name, reason))
        for number in numbers_in(self.folder / "failed", ".json"):
            if number not in self._numbers:
                note = json.loads(self._plan.failed_file(number).read_bytes())
                found.append(SurveyFailure(None, f"shard {number}", note["reason"]))
        return tuple(found)

    def picture(self, image: int) -> Picture:
        """The image itself, read anew from its file, or from the file that it is in.

        Args:
            image: Its number in the survey.

        Raises:
            ImageError: Its file is gone, was changed since, or cannot be read; or it came without
                a file.
            SurveyError: There is no such image.
        """
        if not 0 <= image < sum(self._facts["sections"]):
            raise SurveyError(f"Image {image} is not in the survey: {self._why_not(image)}.")
        facts = self._facts
        source = source_elsewhere(facts["data"], facts["root"], facts["column"])
        if facts["data"] != source.kind:
            raise ImageError(f"Image {image} came from a {facts['data']}, without a file.")
        found: Picture = source.read(image, self._row(image))
        return found

    def _tally(self, place: int) -> Tally:
        """The numbers of one layer; the last one's are kept, as a layer takes up to 70 MB."""
        kept = self._kept
        if kept is None or kept[0] != place:
            kept = self._kept = None
            kept = self._kept = place, self._read_tally(place)
        return kept[1]

    def _read_tally(self, place: int) -> Tally:
        there = summary_of(self._plan, self._numbers, [place])
        return (there or folded(self._plan, self._numbers, [place]))[0]

    def _found(self, layer: str) -> tuple[int, Layout]:
        if layer not in self._layouts:
            raise LayerError(
                f"The survey has no layer {layer!r}; it has {names_text(self.layers, 8)}.",
                remedy=did_you_mean(str(layer), self.layers) or None,
            )
        return self.layers.index(layer), self._layouts[layer]

    def statistics(self, layer: str) -> LayerStatistics:
        """The numbers of each channel of a layer, over all images that could be read.

        Args:
            layer: One of ``layers``.

        Raises:
            LayerError: There is no such layer.
        """
        place, layout = self._found(layer)
        tally = self._tally(place)
        some = tally.count > 0
        nothing = np.nan

        def at(image: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.where(image == NOBODY, -1, image)

        def places(flat: NDArray[np.int64]) -> NDArray[np.int64]:
            found = [layout.place(int(one)) for one in flat]
            return np.array(found, dtype=np.int64).reshape(len(flat), len(layout.places))

        histogram = tally.histogram
        whole = int(histogram.sum(1).max(initial=0)) if len(histogram) else 0
        return LayerStatistics(
            layer=layer,
            images=whole // math.prod(layout.places),
            count=tally.count.copy(),
            mean=np.where(some, tally.mean, nothing),
            std=np.where(some, np.sqrt(tally.squares / np.maximum(tally.count, 1)), nothing),
            min=np.where(some, tally.low[:, 0], nothing),
            min_image=at(tally.low_image[:, 0]),
            min_place=places(tally.low_place[:, 0]),
            max=np.where(some, tally.high[:, 0], nothing),
            max_image=at(tally.high_image[:, 0]),
            max_place=places(tally.high_place[:, 0]),
            zeros=histogram[:, 0] + histogram[:, 2048],
            nan=histogram[:, 2041:2048].sum(1) + histogram[:, 4089:].sum(1),
            posinf=histogram[:, 2040].copy(),
            neginf=histogram[:, 4088].copy(),
            histogram=histogram.copy(),
        )

    def top(self, layer: str, channel: int, count: int | None = None) -> tuple[Hit, ...]:
        """The images in which a channel reaches its largest values, strongest first.

        Args:
            layer: One of ``layers``.
            channel: From 0.
            count: At most so many; None: as many as the survey kept.

        Raises:
            LayerError: There is no such layer or channel.
        """
        place, layout = self._found(layer)
        channel = self._channel(layer, layout, channel)
        tally = self._tally(place)
        crops = self._crops(place, channel)
        found = []
        for rank in range(tally.high.shape[1])[:count]:
            image = int(tally.high_image[channel, rank])
            if image == NOBODY:
                break
            row = self._row(image)
            root = self._facts["root"]
            box, shows, jpeg = crops[rank]
            found.append(
                Hit(
                    rank + 1, image, row.name, row.label,
                    str(Path(root, row.name)) if root and not row.file else "",
                    float(tally.high[channel, rank]),
                    layout.place(int(tally.high_place[channel, rank])),
                    box, shows, jpeg,
                )
            )  # fmt: skip
        return tuple(found)

    def _channel(self, layer: str, layout: Layout, channel: int) -> int:
        try:
            number = operator.index(channel)
        except TypeError:
            number = -1
        if not 0 <= number < layout.channels:
            raise LayerError(
                f"channel is {channel!r}; '{layer}' has channels 0 to {layout.channels - 1}."
            )
        return number

    def _crops(
        self, place: int, channel: int
    ) -> list[tuple[tuple[int, int, int, int] | None, Shows, bytes]]:
        path = self.folder / CROPS
        if not path.exists() or read_facts(path)["shards"] != self._numbers:
            return [(None, "no crop", b"")] * self._facts["top"]
        with open_tensors(path) as file:
            spans, boxes, shown = (
                file.get_slice(f"{place}/{name}")[channel] for name in ("spans", "boxes", "shown")
            )
            jpegs = file.get_slice("jpegs")
            found: list[tuple[tuple[int, int, int, int] | None, Shows, bytes]] = []
            for (start, end), box, at in zip(
                spans.tolist(), boxes.tolist(), shown.tolist(), strict=True
            ):
                data = jpegs[start:end].numpy().tobytes() if end > start else b""
                found.append((tuple(box) if data else None, SHOWS[at], data))
        return found

    def tensor(
        self, layer: str, ids: Iterable[int] | None = None, *, channel: int | None = None
    ) -> Tensor:
        """What was kept of some images; only their part of the files is read.

        Args:
            layer: One of ``layers``.
            ids: Numbers of images, in the order wanted; None: all that could be read, see
                `images_read`.
            channel: Only this channel.

        Returns:
            (images, …): with ``keep="whole"`` as the layer gave them, with ``keep="pooled"`` (C,)
            each, the mean over the places; without the channel's axis where ``channel`` is given.

        Raises:
            SurveyError: Nothing was kept, or an image is not in the survey, could not be read or
                is not done yet.
            LayerError: There is no such layer or channel.
        """
        place, layout = self._found(layer)
        keep = self._facts["keep"]
        if keep == "none":
            raise SurveyError(
                f"The survey in {str(self.folder)!r} kept numbers alone.",
                remedy="keep='pooled' or 'whole' keeps tensors.",
            )
        axis = None
        if channel is not None:
            channel = self._channel(layer, layout, channel)
            axis = 1 if keep == "pooled" else layout.channel_axis
        sizes = (layout.channels,) if keep == "pooled" else layout.shape
        asked = None if ids is None else [operator.index(one) for one in ids]
        where = self._where(asked)
        pieces: list[tuple[list[int], Tensor]] = []
        for number, batches in where.items():
            first = self._plan.shards[number].start
            with open_tensors(self._plan.shard_file(number)) as file:
                array = None
                if self._facts["store"] == "zarr":
                    array = open_array(self._plan.arrays_folder(number), place)
                for batch, wanted in batches.items():
                    rows = file.get_tensor(f"rows/{batch}").tolist()
                    chosen = rows if wanted is None else [one for one in wanted if one in rows]
                    if not chosen:
                        continue
                    index: list[Any] = [slice(None)] * (len(sizes) + 1)
                    if axis is not None:
                        index[axis] = slice(channel, channel + 1)  # type: ignore[operator]
                    # An array has a row for each image of the shard, a tensor for each good one.
                    at = [one - first if array is not None else rows.index(one) for one in chosen]
                    low = min(at)
                    index[0] = slice(low, max(at) + 1)
                    if array is not None:
                        read = read_array(array, tuple(index))
                    else:
                        read = file.get_slice(f"{place}/kept/{batch}")[tuple(index)]
                    read = read[[one - low for one in at]]
                    pieces.append((chosen, read if axis is None else read.squeeze(axis)))
        there = [one for chosen, _ in pieces for one in chosen]
        if asked is None:
            if not pieces:
                raise SurveyError(f"The survey in {str(self.folder)!r} has no image yet.")
            return torch.cat([tensor for _, tensor in pieces])
        order = {one: at for at, one in enumerate(there)}
        for one in asked:
            if one not in order:
                raise SurveyError(f"Image {one} is not kept: {self._why_not(one)}.")
        if not asked:
            if axis is not None:
                sizes = sizes[: axis - 1] + sizes[axis:]
            return torch.zeros((0, *sizes))
        joined = torch.cat([tensor for _, tensor in pieces])
        return joined[[order[one] for one in asked]]

    def to_parquet(self, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Writes everything but tensors and crops as tables (needs ``hookviz[survey]``).

        Args:
            folder: Where; made where it is missing. Gets "images.parquet", "failures.parquet",
                "statistics.parquet" (a row a channel, columns as in `LayerStatistics`) and
                "top.parquet" (a row a strongest image, columns as in `Hit`); such files that are
                there are replaced.

        Returns:
            Their paths.

        Raises:
            SurveyError: pyarrow is not installed, or they cannot be written.
        """
        from hookviz.surveys._as_tables import write_tables

        return write_tables(self, folder)

    def images_read(self) -> list[int]:
        """Numbers of the images that could be read and are done, in the order of `tensor`."""
        found: list[int] = []
        for number, batches in self._where(None).items():
            with open_tensors(self._plan.shard_file(number)) as file:
                for batch in batches:
                    found += file.get_tensor(f"rows/{batch}").tolist()
        return found

    def _where(self, ids: Sequence[int] | None) -> dict[int, dict[int, list[int] | None]]:
        """Shard → batch → images wanted of it; None for all."""
        size = self._facts["batch"]
        shards = self._plan.shards
        found: dict[int, dict[int, list[int] | None]] = {}
        if ids is None:
            for number in self._numbers:
                found[number] = dict.fromkeys(range(-(-len(shards[number]) // size)))
            return found
        starts = np.array([shard.start for shard in shards])
        there = set(self._numbers)
        for one in dict.fromkeys(ids):
            number = int(np.searchsorted(starts, one, side="right")) - 1
            if number in there and one in shards[number]:
                batch = (one - shards[number].start) // size
                wanted = found.setdefault(number, {}).setdefault(batch, [])
                wanted.append(one)  # type: ignore[union-attr]
        return dict(sorted(found.items()))

    def _why_not(self, image: int) -> str:
        if not 0 <= image < len(self.images):
            return f"the survey has images 0 to {len(self.images) - 1}"
        for failure in self.failures:
            if failure.image == image:
                return failure.reason.rstrip(".")
        return "its shard is not done"

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what a reader of the numbers should know; () where there is nothing."""
        found = [self._facts["note"]] if self._facts["note"] else []
        if not self.complete:
            found.append(
                f"{len(self._numbers)} of {len(self._plan.shards)} shards are done; the numbers "
                "are over these."
            )
        if self._facts["keep"] != "none" and self._facts["dtype"] == "float16":
            for place, layer in enumerate(self.layers):
                tally = self._read_tally(place)
                most = max(float(tally.high[:, 0].max()), -float(tally.low.min()))
                if 65520 <= most < math.inf:
                    found.append(
                        f"{layer} has values up to {most:.6g}; what was kept of them as float16 "
                        "is infinite beyond 65504."
                    )
        return tuple(found)

    def strongest_channels(self, layer: str, count: int = 8) -> list[int]:
        """The channels of the largest maxima, largest first; equal ones by number.

        Args:
            layer: One of ``layers``.
            count: At most so many.

        Raises:
            LayerError: There is no such layer.
        """
        most = np.nan_to_num(self.statistics(layer).max, nan=-np.inf)
        found: list[int] = np.argsort(-most, kind="stable")[:count].tolist()
        return found

    def figure(
        self, layer: str, channels: Sequence[int] | int | None = None, *, count: int = 9
    ) -> Figure:
        """Channels in rows: the strongest crops with their values, and a histogram.

        Args:
            layer: One of ``layers``.
            channels: Which; None: the eight of the largest maximum.
            count: Crops of each.

        Returns:
            A new figure that is not registered with pyplot.

        Raises:
            LayerError: There is no such layer or channel.
        """
        from hookviz.surveys._figure import draw_channels

        if channels is None:
            channels = self.strongest_channels(layer)
        chosen = [channels] if isinstance(channels, int) else list(channels or [])
        return draw_channels(self, layer, chosen, count)

    def __repr__(self) -> str:
        done = "complete" if self.complete else f"{len(self._numbers)} shards done"
        return (
            f"<Survey of {self._facts['model']} over {sum(self._facts['sections'])} images: "
            f"{names_text(self.layers, 4)}; {done}>"
        )


def open_survey(folder: str | os.PathLike[str]) -> Survey:
    """Opens a survey's folder; neither the model nor the images are needed.

    Args:
        folder: What `hookviz.survey` was given as ``out``. One that is not complete can be opened
            too: its numbers are over the shards that are done.

    Raises:
        SurveyError: There is no survey in it, or it is damaged.

    Examples:
        >>> open_survey("nowhere")
        Traceback (most recent call last):
        ...
        hookviz.errors.SurveyError: There is no survey in 'nowhere': it has no manifest.json.
    """
    return Survey(folder)
