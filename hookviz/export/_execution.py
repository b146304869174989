"""The work of one export: each planned file drawn, encoded and written.

In: a plan, a folder, a pipeline. Out: the files, and how it ended. Must not know: how the plan was
chosen, where the progress is shown.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hookviz.errors import ExportError, HookvizError, RenderError
from hookviz.export._channels import ChannelPainter, Painted
from hookviz.export._entries import item_entry
from hookviz.export._facts import RunFacts
from hookviz.export._files import ExportFolder, listed_files
from hookviz.export._manifest import manifest_json, manifest_text
from hookviz.export._metadata import FileRecord, activation_texts, key_of, run_texts
from hookviz.export._names import INPUT_NAME, MANIFEST_NAME
from hookviz.export._outcome import (
    UNREADABLE,
    ExportCancelled,
    ExportResult,
    ExportStopped,
    TensorError,
    reason,
)
from hookviz.export._pictures import (
    CONTACT_CELLS,
    channel_texts,
    contact_picture,
    grid_picture,
    input_picture,
    input_size,
)
from hookviz.export._pipeline import Cancelled, Pipeline
from hookviz.export._plan import Item, Plan
from hookviz.export._png import text_chunks, with_texts
from hookviz.export._values import ValueFormat, write_values
from hookviz.render import GridOptions

__all__ = ["LEVEL", "Export"]

Made = TypeVar("Made")

# Of zlib. Grids and channels of VGG16 are within 4 % of the size at level 6 and take half the time.
LEVEL = 4
# Single channels are handed to the threads in bundles of so many pixels or files.
_BUNDLE_PIXELS = 200_000
_BUNDLE_FILES = 32


class Export:
    """The work of one export.

    Args:
        facts: The run.
        plan: The files to be.
        folder: Where they go.
        pipeline: The threads that write them; it counts and asks whether to go on.
        options: How grids are drawn.
        parts: What was asked for.
        factor: Pixels per activation in single channels.
        values: The form of raw values.
    """

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
        self.trouble: Exception | None = None
        self.old = listed_files(folder.path, MANIFEST_NAME) if not folder.made else frozenset()

    def run(self) -> ExportResult:
        """Writes everything.

        Raises:
            ExportStopped: Writing failed, or was cancelled (ExportCancelled).
        """
        try:
            self._input()
            self._contact()
            for item in self.plan.items:
                self._item(item)
            self.pipeline.drain()
            if self.trouble is not None and not self.pipeline.done:
                if isinstance(self.trouble, RenderError | TensorError):
                    raise self.trouble
                raise RenderError(f"Nothing was exported: {reason(self.trouble)}")
            manifest = self._manifest("")
            self.pipeline.wrote(MANIFEST_NAME)
        except Cancelled:
            raise self._stopped(ExportCancelled, "The export was cancelled", None) from None
        except (RenderError, TensorError):  # the choice is at fault, not the writing
            self.folder.remove_if_empty()
            raise
        except HookvizError as error:
            raise self._stopped(ExportStopped, error.message, error.remedy) from error
        except BaseException as error:  # KeyboardInterrupt, a fault of the caller's progress ...
            self._stopped(ExportStopped, f"The export was ended by {type(error).__name__}", None)
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

    def _made(
        self, make: Callable[[], Made], notes: list[str], what: str, files: int = 1
    ) -> Made | None:
        """What ``make`` gives; None and a note where one tensor does not allow it."""
        try:
            return make()
        except UNREADABLE as error:
            notes.append(f"{what}: {reason(error)}")
            self.trouble = self.trouble or error
            self.pipeline.total -= files
            return None

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
            Image.fromarray(pixels).save(packed, "PNG", compress_level=LEVEL)
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
            sheet = partial(
                contact_picture, self.facts, part, self.options, page, pages, proceed, notes.append
            )
            if picture := self._made(sheet, notes, f"{name} was not written"):
                self._picture(name, *picture)

    def _item(self, item: Item) -> None:
        activation = item.activation
        files: list[str] = []
        for page, name in item.pages:
            self.pipeline.proceed()
            options = self.options.replace(page=page)
            grid = partial(grid_picture, self.facts, activation, options)
            if picture := self._made(grid, item.notes, f"{name} was not written"):
                self._picture(name, *picture)
                files.append(name)
        painter: ChannelPainter | None = None
        if item.drawable:
            measured = partial(ChannelPainter, activation, self.options, input_size(self.facts))
            painter = self._made(measured, item.notes, "not measured", len(item.channels))
        if painter is not None and item.channels:
            self._channels(item, painter)
            files += [name for _, name in item.channels]
        if item.values:
            self.pipeline.proceed()
            write = partial(self._values, item)
            if self._made(write, item.notes, f"{item.values} was not written"):
                self.pipeline.wrote(item.values)
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
                png = painter.png(painted, shared + text_chunks(texts), self.factor, LEVEL)
                self.folder.write(names[painted.channel], png)

        self.pipeline.put([names[painted.channel] for painted in bundle], work)

    def _values(self, item: Item) -> bool:
        texts = run_texts(self.facts) | activation_texts(item.activation)
        with self.folder.open(item.values) as file:
            write_values(file, item.activation, texts, self.values)
        return True
