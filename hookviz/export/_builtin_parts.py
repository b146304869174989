"""The parts that every export may hold: grids, contact sheet, input, single channels, values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hookviz.errors import ExportError
from hookviz.export._channels import ChannelLevels, ChannelPainter
from hookviz.export._facts import FileRecord, activation_texts, key_of, run_texts
from hookviz.export._names import CONTACT_STEM, INPUT_NAME, channel_ending, page_ending
from hookviz.export._part import Again, Export, Item, Part, Plan, Task
from hookviz.export._pictures import (
    CONTACT_CELLS,
    channel_texts,
    contact_picture,
    grid_picture,
    input_picture,
)
from hookviz.export._png import text_chunks
from hookviz.export._values import write_values
from hookviz.render import PictureFacts, page_count, parse_channels

__all__ = ["Channels", "Contact", "Grids", "Input", "Values"]

# Single channels are handed to the threads in bundles of so many pixels or files.
_BUNDLE_PIXELS = 200_000
_BUNDLE_FILES = 32

Picture = tuple[NDArray[np.uint8], dict[str, str]]


class Grids(Part):
    """Each page of each layer, as the screen shows it."""

    name, record = "grids", "grid"
    ending = "png"

    def plan(self, plan: Plan) -> Iterator[Task]:
        """One task a page."""
        request, options = plan.request, plan.request.options
        facts = PictureFacts(input_size=request.input_size)
        for item in plan.drawable:
            count = partial(page_count, item.activation, options, facts=facts)
            item.pages = plan.attempt(count, item, "no grid") or 0
            pages = range(item.pages)
            if not request.all_pages and item.pages:
                pages = range(options.page, options.page + 1)
                if options.page >= item.pages:
                    item.notes.append(
                        f"page {options.page + 1} was not written: there are {item.pages}"
                    )
                    continue
            for page in pages:
                ending = page_ending(page, item.pages, self.ending)
                yield Task(self, [plan.book.take(item.stem, ending)], item, page)

    def write(self, task: Task, export: Export) -> None:
        """Draws here, encodes and writes on another thread."""
        if task.item is not None:
            options = export.request.options.replace(page=task.data)
            draw = partial(grid_picture, export.request.facts, task.item.activation, options)
            if picture := export.attempt(draw, task, task.item.notes):
                export.png(task, picture)
                task.item.files += task.names

    def redraw(self, again: Again) -> Picture:
        """The page that the record names."""
        return grid_picture(again.facts, again.activations[0], again.options)


class Contact(Part):
    """A sheet of all layers, of each the first 16 channels."""

    name, record = "contact", "contact"

    def plan(self, plan: Plan) -> Iterator[Task]:
        """One task a page."""
        drawn = [item.activation for item in plan.drawable]
        pages = -(-len(drawn) // CONTACT_CELLS)
        for page in range(pages):
            name = plan.book.take(CONTACT_STEM, f"_p{page + 1}of{pages}.png")
            part = drawn[page * CONTACT_CELLS : (page + 1) * CONTACT_CELLS]
            yield Task(self, [name], data=(part, page, pages))

    def write(self, task: Task, export: Export) -> None:
        """Draws here, encodes and writes on another thread."""
        notes, request = export.plan.notes, export.request
        activations, page, pages = task.data
        draw = partial(contact_picture, request.facts, activations, request.options, page, pages)
        draw = partial(draw, export.pipeline.proceed, notes.append)
        if picture := export.attempt(draw, task, notes):
            export.png(task, picture)

    def legal(self, record: FileRecord) -> bool:
        """Any number of activations."""
        return record.channel is None

    def redraw(self, again: Again) -> Picture:
        """The page that the record names."""
        record, pages = again.record, again.texts.get("page", "").rpartition(" of ")[2]
        number = int(pages) if pages.isdecimal() and len(pages) < 10 else record.page + 1
        if not again.activations:
            raise ExportError("The contact sheet names no layers.")
        options = again.options.replace(page=0)
        return contact_picture(again.facts, again.activations, options, record.page, number)


class Input(Part):
    """What the network saw."""

    name, record, draws = "input", "input", False

    def plan(self, plan: Plan) -> Iterator[Task]:
        """One task."""
        if plan.request.facts.input_picture is None:
            plan.notes.append("the run has no picture of its input, so none was written")
        else:
            yield Task(self, [INPUT_NAME])

    def write(self, task: Task, export: Export) -> None:
        """Encodes and writes on another thread."""
        export.png(task, input_picture(export.request.facts))

    def legal(self, record: FileRecord) -> bool:
        """No activation is needed."""
        return record.channel is None

    def redraw(self, again: Again) -> Picture:
        """The input of the new run."""
        return input_picture(again.facts)


class Channels(Part):
    """Single channels, 1 pixel (or a square of them) per activation."""

    name, record = "channels", "channel"

    def plan(self, plan: Plan) -> Iterator[Task]:
        """One task a layer."""
        found = False
        for item in plan.drawable:
            if task := self._of_item(item, plan):
                found = True
                yield task
        wanted = plan.request.channels
        if wanted is not None and plan.drawable and not found:
            raise ExportError(
                f"None of the layers has a picture of channel {wanted[0]}: "
                + "; ".join(note for item in plan.drawable for note in item.notes[:1])
            )

    def _of_item(self, item: Item, plan: Plan) -> Task | None:
        count, *size = item.shape or (0,)
        if size == [1, 1]:
            item.notes.append(
                "single channels were not written: each is one number, "
                "which the grid shows as a bar"
            )
            return None
        asked: Sequence[int] = range(count)
        if plan.request.channels is not None:
            asked = plan.request.channels
        elif plan.request.options.channels is not None:
            asked = parse_channels(plan.request.options.channels)
        there = [channel for channel in asked if channel < count]
        if len(there) < len(asked):
            beyond = next(channel for channel in asked if channel >= count)
            item.notes.append(
                f"channel {beyond} was not written: the layer has channels 0 to {count - 1}"
            )
        names = {c: plan.book.take(item.stem, channel_ending(c, count)) for c in there}
        return Task(self, list(names.values()), item, names) if names else None

    def write(self, task: Task, export: Export) -> None:
        """Scales here a bundle at a time, encodes and writes on other threads."""
        if task.item is None or (painter := export.painter(task.item)) is None:
            export.pipeline.total -= len(task.names)
            return
        request, names = export.request, task.data
        record = FileRecord(
            "channel",
            (key_of(painter.activation),),
            request.options.to_json(),
            factor=request.factor,
        )
        texts = channel_texts(request.facts, painter, request.options) | record.texts()
        del texts["record"]  # the only one of these that names the channel
        shared = text_chunks(texts)

        def work(bundle: Sequence[ChannelLevels]) -> None:
            for one in bundle:
                own = painter.channel_texts(one)
                own["record"] = replace(record, channel=one.channel).text()
                png = painter.png(one, shared + text_chunks(own), request.factor)
                export.folder.write(names[one.channel], png)

        for bundle in _bundles(painter, list(names), request.factor):
            export.pipeline.put([names[one.channel] for one in bundle], partial(work, bundle))
        task.item.files += task.names

    def legal(self, record: FileRecord) -> bool:
        """One channel of one activation."""
        return len(record.keys) == 1 and record.channel is not None

    def redraw(self, again: Again) -> Picture:
        """The channel that the record names."""
        record = again.record
        painter = ChannelPainter(again.activations[0], again.options, again.facts.input_size)
        (one,) = painter.paint([record.channel or 0])
        pixels = one.rgb(painter.table)
        pixels = pixels.repeat(record.factor, axis=0).repeat(record.factor, axis=1)
        texts = channel_texts(again.facts, painter, again.options) | painter.channel_texts(one)
        return pixels, texts | record.texts()


def _bundles(
    painter: ChannelPainter, channels: list[int], factor: int
) -> Iterator[list[ChannelLevels]]:
    bundle: list[ChannelLevels] = []
    pixels = 0
    for one in painter.paint(channels):
        bundle.append(one)
        pixels += one.levels.size * factor**2
        if pixels >= _BUNDLE_PIXELS or len(bundle) >= _BUNDLE_FILES:
            yield bundle
            bundle, pixels = [], 0
    if bundle:
        yield bundle


class Values(Part):
    """The tensors themselves."""

    name, draws = "values", False

    def plan(self, plan: Plan) -> Iterator[Task]:
        """One task a tensor."""
        for item in plan.items:
            name = plan.book.take(item.stem, f"_values.{plan.request.values}")
            yield Task(self, [name], item)

    def write(self, task: Task, export: Export) -> None:
        """Writes one file, which cannot be stopped midway."""
        if task.item is None:
            return
        (name,), activation, form = task.names, task.item.activation, export.request.values

        def write() -> bool:
            texts = run_texts(export.request.facts) | activation_texts(activation)
            with export.folder.open(name) as file:
                write_values(file, activation, texts, form)
            return True

        if export.attempt(write, task, task.item.notes):
            export.pipeline.wrote(name)
            task.item.files.append(name)
