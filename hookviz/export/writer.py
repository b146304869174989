"""One export: a folder with pictures, values and a manifest.

In: the facts of a run, its activations, what was asked for. Out: files in one new folder. Must not
know: how the run was made, where the progress is shown.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hookviz.capture.activation import Activation
from hookviz.errors import ExportError, HookvizError, RenderError
from hookviz.export.channels import ChannelPainter, Painted
from hookviz.export.entries import item_entry
from hookviz.export.facts import RunFacts
from hookviz.export.files import ExportFolder, listed_files
from hookviz.export.manifest import manifest_json, manifest_text
from hookviz.export.metadata import FileRecord, activation_texts, key_of, run_texts
from hookviz.export.names import INPUT_NAME, MANIFEST_NAME, checked_name, folder_name
from hookviz.export.outcome import ExportCancelled, ExportResult, ExportStopped
from hookviz.export.pictures import (
    CONTACT_CELLS,
    channel_texts,
    contact_picture,
    grid_picture,
    input_picture,
    input_size,
)
from hookviz.export.pipeline import Cancelled, Pipeline
from hookviz.export.plan import (
    Item,
    Plan,
    check_choices,
    chosen_activations,
    chosen_parts,
    make_plan,
)
from hookviz.export.png import text_chunks, with_texts
from hookviz.export.values import ValueFormat, write_values
from hookviz.render import GridOptions

__all__ = ["ExportCancelled", "ExportResult", "ExportStopped", "write_export"]

Progress = Callable[[int, int, str], None]

# Grids are large and flat: level 4 is within 3 % of level 6 in size and takes half the time.
_GRID_LEVEL = 4
_CHANNEL_LEVEL = 6
# Single channels are handed to the threads in bundles of so many pixels or files.
_BUNDLE_PIXELS = 200_000
_BUNDLE_FILES = 32


def write_export(
    facts: RunFacts,
    activations: Iterable[Activation],
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    options: GridOptions | None = None,
    what: str | Iterable[str] = frozenset({"grids"}),
    layers: str | Iterable[str] | None = None,
    channels: str | Sequence[int] | None = None,
    factor: int = 1,
    values: ValueFormat = "npz",
    all_pages: bool = True,
    overwrite: bool = False,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> ExportResult:
    """Writes pictures, values and a manifest into one new folder.

    Each file appears whole or not at all; nothing that exists is changed.

    Args:
        facts: The run.
        activations: What it captured.
        folder: Where the export's own folder is made; it is made too where it is missing.
        name: The folder's name; by default ``<UTC time>_<model>_<image>``, with a number behind
            it where that exists.
        options: How grids are drawn; its colours and scale are used for single channels too.
        what: One or more of "grids" (every page of every layer), "channels" (single channels, 1
            pixel per activation), "values" (the tensors), "contact" (a sheet of all layers) and
            "input" (what the network saw).
        layers: Only these layers; None is all that were captured.
        channels: The single channels, "0-15,42" or indices; None is those of ``options``, else
            all. A layer without one of them is noted in the manifest.
        factor: Pixels per activation in single channels, 1 to 64.
        values: "npz" or "safetensors".
        all_pages: Every page of a grid; False is ``options.page`` alone.
        overwrite: Take over the folder ``name`` where it exists: files of the same name are
            replaced, and files that its old manifest lists and the new one does not are removed.
        progress: Called after each file: files done, files in all, the file's name.
        cancelled: Asked before each file, each cell of a contact sheet and every 4 MiB of values;
            True ends the export.

    Returns:
        The folder, the files and the manifest.

    Raises:
        ExportError: A choice is not legal, or the folder cannot be made.
        ExportStopped: Writing failed midway (a full disk, ...); tells what was finished.
        ExportCancelled: ``cancelled`` answered True; likewise.
        RenderError: None of the activations can be drawn in the way asked.
    """
    parts = chosen_parts(what)
    check_choices(factor, values)
    options = options or GridOptions()
    chosen = chosen_activations(activations, layers)
    if name is not None:
        checked_name(name)
    elif overwrite:
        raise ExportError("overwrite=True needs the name of the folder to overwrite.")
    with Pipeline(1, progress, cancelled) as pipeline:
        try:
            plan = make_plan(
                chosen,
                parts,
                options,
                channels=channels,
                all_pages=all_pages,
                values=values,
                input_size=input_size(facts),
                has_input=facts.input_picture is not None,
                proceed=pipeline.proceed,
            )
        except Cancelled:
            raise ExportCancelled(
                "The export was cancelled before its first file.",
                remedy=None,
                folder=None,
                files=(),
            ) from None
        pipeline.total = plan.total
        if name is None:
            made = folder_name(datetime.now(UTC), facts.model, facts.image_name)
            target = ExportFolder.new(folder, made)
        else:
            target = ExportFolder.named(folder, name, overwrite=overwrite)
        export = _Export(facts, plan, target, pipeline, options, parts, factor, values)
        return export.run()


class _Export:
    """The work of one export."""

    def __init__(
        self,
        facts: RunFacts,
        plan: Plan,
        folder: ExportFolder,
        pipeline: Pipeline,
        options: GridOptions,
        parts: frozenset[str],
        factor: int,
        values: ValueFormat,
    ) -> None:
        self.facts, self.plan, self.folder, self.pipeline = facts, plan, folder, pipeline
        self.options, self.parts, self.factor, self.values = options, parts, factor, values
        self.entries: list[dict[str, Any]] = []
        self.old = listed_files(folder.path, MANIFEST_NAME) if not folder.made else frozenset()

    def run(self) -> ExportResult:
        try:
            self._input()
            self._contact()
            for item in self.plan.items:
                self._item(item)
            self.pipeline.drain()
            manifest = self._manifest("")
            self.pipeline.wrote(MANIFEST_NAME)
        except Cancelled:
            raise self._stopped(ExportCancelled, "The export was cancelled", None) from None
        except HookvizError as error:
            raise self._stopped(ExportStopped, error.message, error.remedy) from error
        except BaseException:
            self.folder.remove_if_empty()
            raise
        written = [name for name in self.pipeline.done if name != MANIFEST_NAME]
        for name in self.old - set(self.pipeline.done):
            with suppress(OSError):
                (self.folder.path / name).unlink()
        notes = [*self.plan.notes]
        for item in self.plan.items:
            notes += [f"{item.activation.label}: {note}" for note in item.notes]
        files = tuple(self.folder.path / name for name in written)
        return ExportResult(self.folder.path, files, manifest, tuple(notes))

    def _stopped(
        self, kind: type[ExportStopped], message: str, remedy: str | None
    ) -> ExportStopped:
        """What to raise, after the threads have ended and the rest is put in order."""
        self.pipeline.__exit__(None, None, None)
        finished = tuple(sorted(self.folder.finished))
        told = message.rstrip(".")
        if not finished:
            gone = self.folder.remove_if_empty()
            folder = None if gone else self.folder.path
            return kind(f"{told}; no file was finished.", remedy=remedy, folder=folder, files=())
        with suppress(ExportError):
            self._manifest(told)
        count = f"{len(finished)} of {self.plan.total - 1} files"
        return kind(
            f"{told}; {count} were finished and stay in {str(self.folder.path)!r}.",
            remedy=remedy,
            folder=self.folder.path,
            files=finished,
        )

    def _manifest(self, stopped: str) -> Path:
        names = sorted(path.name for path in self.folder.finished)
        manifest = manifest_json(
            self.facts,
            self.entries,
            files=[name for name in names if name != MANIFEST_NAME],
            options=json.loads(self.options.to_json()),
            what=self.parts,
            stopped=stopped,
        )
        manifest["notes"] = self.plan.notes
        return self.folder.write(MANIFEST_NAME, manifest_text(manifest).encode("ascii"))

    def _picture(self, name: str, pixels: NDArray[np.uint8], texts: dict[str, str]) -> None:
        """Encodes and writes one picture on another thread."""

        def work() -> None:
            packed = io.BytesIO()
            Image.fromarray(pixels).save(packed, "PNG", compress_level=_GRID_LEVEL)
            self.folder.write(name, with_texts(packed.getvalue(), text_chunks(texts)))

        self.pipeline.put([name], work)

    def _input(self) -> None:
        if self.plan.input:
            self._picture(INPUT_NAME, *input_picture(self.facts))

    def _contact(self) -> None:
        drawn = [item.activation for item in self.plan.items if item.drawable]
        pages = len(self.plan.contact)
        for page, name in enumerate(self.plan.contact):
            part = drawn[page * CONTACT_CELLS : (page + 1) * CONTACT_CELLS]
            notes, proceed = self.plan.notes, self.pipeline.proceed
            try:
                picture = contact_picture(
                    self.facts, part, self.options, page, pages, proceed, notes.append
                )
            except RenderError as error:
                notes.append(f"{name} was not written: {error}")
                self.pipeline.total -= 1
                continue
            self._picture(name, *picture)

    def _item(self, item: Item) -> None:
        activation = item.activation
        files: list[str] = []
        for page, name in item.pages:
            self.pipeline.proceed()
            try:
                picture = grid_picture(self.facts, activation, self.options.replace(page=page))
            except RenderError as error:
                item.notes.append(f"{name} was not written: {error}")
                self.pipeline.total -= 1
                continue
            self._picture(name, *picture)
            files.append(name)
        painter: ChannelPainter | None = None
        if item.drawable:
            painter = ChannelPainter(activation, self.options, input_size(self.facts))
        if painter is not None and item.channels:
            self._channels(item, painter)
            files += [name for _, name in item.channels]
        if item.values:
            self._values(item)
            files.append(item.values)
        self.entries.append(item_entry(item, painter, files))

    def _channels(self, item: Item, painter: ChannelPainter) -> None:
        names = dict(item.channels)
        record = FileRecord(
            "channel", (key_of(painter.activation),), self.options.to_json(), factor=self.factor
        )
        texts = channel_texts(self.facts, painter, self.options) | record.texts()
        del texts["record"]  # the only one of these that tells of the channel
        shared = text_chunks(texts)
        bundle: list[Painted] = []
        pixels = 0
        for painted in painter.paint(list(names)):
            bundle.append(painted)
            pixels += painted.levels.size * self.factor**2
            if pixels >= _BUNDLE_PIXELS or len(bundle) >= _BUNDLE_FILES:
                self._bundle(painter, record, shared, bundle, names)
                bundle, pixels = [], 0
        if bundle:
            self._bundle(painter, record, shared, bundle, names)

    def _bundle(
        self,
        painter: ChannelPainter,
        record: FileRecord,
        shared: bytes,
        bundle: Sequence[Painted],
        names: dict[int, str],
    ) -> None:
        def work() -> None:
            for painted in bundle:
                texts = painter.channel_texts(painted)
                texts["record"] = replace(record, channel=painted.channel).text()
                png = painter.png(painted, shared + text_chunks(texts), self.factor, _CHANNEL_LEVEL)
                self.folder.write(names[painted.channel], png)

        self.pipeline.put([names[painted.channel] for painted in bundle], work)

    def _values(self, item: Item) -> None:
        texts = run_texts(self.facts) | activation_texts(item.activation)
        self.pipeline.proceed()
        with self.folder.open(item.values) as file:
            write_values(file, item.activation, texts, self.values, self.pipeline.proceed)
        self.pipeline.wrote(item.values)
