"""The part of single channels: 1 pixel is 1 activation, in the colors of the grid.

Colors: a PNG with a palette, whose entry k is color k of the color table and stands for
``vmin + k / 255 · (vmax − vmin)``. Where a value has no level (NaN, an infinity, clipped at a
fixed scale) the PNG is plain RGB, 8 bits, since a palette has no room for those colors. There is
no transparency.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hookviz.activation import Activation
from hookviz.errors import ExportError
from hookviz.export._facts import (
    FileRecord,
    RunFacts,
    activation_texts,
    key_of,
    number_text,
    odd_texts,
    run_texts,
)
from hookviz.export._figures import view_texts
from hookviz.export._names import channel_ending
from hookviz.export._part import Again, Export, ExportPart, Item, PngContents, Task
from hookviz.export._png import small_png, text_chunks
from hookviz.render import ChannelImage, GridOptions, SingleChannels, parse_channels

MAX_FACTOR = 64
# Handed to the threads in bundles of so many pixels or files.
_BUNDLE_PIXELS = 200_000
_BUNDLE_FILES = 32


def _layer_texts(
    facts: RunFacts, activation: Activation, layer: SingleChannels, options: GridOptions
) -> dict[str, str]:
    """What all single channels of one activation say."""
    arranged = layer.arranged
    texts = run_texts(facts) | activation_texts(activation) | view_texts(options)
    texts |= {
        "layout": " ".join((arranged.kind, arranged.statement, *arranged.notes)),
        "page": "1 of 1",
        "order": "index",
        "scale": layer.scaling.sentence,
        "cmap": layer.table.name,
    }
    if not layer.scaling.per_channel:
        texts |= _range(layer.scaling.low[0], layer.scaling.high[0])
    return texts


def _channel_texts(layer: SingleChannels, one: ChannelImage) -> dict[str, str]:
    """What concerns one channel alone."""
    found, at, texts = layer.extents, one.channel, {"channels": str(one.channel)}
    if layer.scaling.per_channel:
        texts |= _range(one.vmin, one.vmax)
    return texts | odd_texts(nan=found.nan[at], posinf=found.posinf[at], neginf=found.neginf[at])


def _range(vmin: float, vmax: float) -> dict[str, str]:
    return {"vmin": number_text(float(vmin)), "vmax": number_text(float(vmax))}


def _enlarged(pixels: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    return pixels if factor == 1 else pixels.repeat(factor, axis=0).repeat(factor, axis=1)


def _png(layer: SingleChannels, one: ChannelImage, chunks: bytes, factor: int) -> bytes:
    if one.flags is None and one.levels.ndim == 2:
        return small_png(_enlarged(one.levels, factor), chunks, layer.table.rgb)
    return small_png(_enlarged(one.rgb(layer.table), factor), chunks)


class Channels(ExportPart):
    """Single channels, 1 pixel (or a square of them) per activation."""

    name, record, by_channel = "channels", "channel", True

    def plan(self, export: Export) -> Iterator[Task]:
        """One task a layer."""
        tasks = [task for item in export.drawable if (task := self._of_item(item, export))]
        if not tasks and export.channels is not None and export.drawable:
            raise ExportError(
                f"None of the layers has a map of channel {export.channels[0]}: "
                + "; ".join(note for item in export.drawable for note in item.notes[:1])
            )
        yield from tasks

    def _of_item(self, item: Item, export: Export) -> Task | None:
        count, *size = item.shape or (0,)
        if size == [1, 1]:
            item.notes.append(
                "single channels were not written: each is one number, "
                "which the grid shows as a bar"
            )
            return None
        asked = export.channels
        if asked is None:
            chosen = export.options_of(item).channels
            asked = range(count) if chosen is None else parse_channels(chosen)
        there = [channel for channel in asked if channel < count]
        if len(there) < len(asked):
            beyond = next(channel for channel in asked if channel >= count)
            item.notes.append(
                f"channel {beyond} was not written: the layer has channels 0 to {count - 1}"
            )
        names = {c: export.book.take(item.stem, channel_ending(c, count)) for c in there}
        return Task(self, list(names.values()), item, names) if names else None

    def write(self, task: Task, export: Export) -> None:
        """Scales here a bundle at a time, encodes and writes on other threads."""
        if task.item is None or (layer := export.measured(task.item)) is None:
            export.pipeline.total -= len(task.names)
            return
        names, activation = task.data, task.item.activation
        options = export.options.to_json()
        record = FileRecord("channel", (key_of(activation),), options, factor=export.factor)
        texts = _layer_texts(export.facts, activation, layer, export.options) | record.texts()
        del texts["record"]  # the only one of these that names the channel
        shared = text_chunks(texts)

        def work(bundle: Sequence[ChannelImage]) -> None:
            for one in bundle:
                own = _channel_texts(layer, one)
                own["record"] = replace(record, channel=one.channel).text()
                png = _png(layer, one, shared + text_chunks(own), export.factor)
                export.folder.write(names[one.channel], png)

        for bundle in _bundles(layer.images(list(names)), export.factor):
            export.pipeline.put([names[one.channel] for one in bundle], partial(work, bundle))
        task.item.files += task.names

    def redraw(self, again: Again) -> PngContents:
        """The channel that the record names."""
        record, (activation, *_) = again.record, again.activations
        layer = SingleChannels(activation, again.options, again.facts.input_size)
        (one,) = layer.images([record.channel or 0])
        texts = _layer_texts(again.facts, activation, layer, again.options)
        texts |= _channel_texts(layer, one) | record.texts()
        return _enlarged(one.rgb(layer.table), record.factor), texts


def _bundles(images: Iterator[ChannelImage], factor: int) -> Iterator[list[ChannelImage]]:
    bundle: list[ChannelImage] = []
    pixels = 0
    for one in images:
        bundle.append(one)
        pixels += one.levels.size * factor**2
        if pixels >= _BUNDLE_PIXELS or len(bundle) >= _BUNDLE_FILES:
            yield bundle
            bundle, pixels = [], 0
    if bundle:
        yield bundle
