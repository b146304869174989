"""What an export is made of: parts, each one kind of files, and the work that they share.

An export is planned before its first file is written: every part names its files as tasks. Then the
tasks are done layer by layer, as the layers ran. A tensor that cannot be read, drawn or written is
a note in the manifest and leaves the others alone.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from hookviz._text import fault_text
from hookviz.activation import Activation
from hookviz.errors import ExportError, HookvizError, RenderError
from hookviz.export._facts import FileRecord, RunFacts
from hookviz.export._folder import ExportFolder
from hookviz.export._names import INPUT_NAME, MANIFEST_NAME, NameBook, activation_stem
from hookviz.export._png import encoded_png
from hookviz.render import GridOptions, SingleChannels, arrange

Made = TypeVar("Made")
Pixels = NDArray[np.uint8]
PngContents = tuple[Pixels, dict[str, str]]
"""(H, W, 3) or (H, W, 4) uint8, and what the file says about itself."""
ValueFormat = Literal["npz", "safetensors"]


class TensorError(ExportError):
    """One tensor cannot be written in the form asked for; others can."""


UNREADABLE = (RenderError, TensorError, RuntimeError, TypeError, ValueError, LookupError)
"""What drawing or reading one tensor may raise."""


def reason(error: BaseException) -> str:
    r"""Why a tensor was left out, as one sentence.

    Examples:
        >>> reason(NotImplementedError("no kernel for this dtype\nstack of C++ follows"))
        'its values cannot be read (NotImplementedError: no kernel for this dtype).'
    """
    if isinstance(error, HookvizError):
        return str(error)
    return f"its values cannot be read ({fault_text(error):.200})."


def encoding(contents: PngContents) -> Callable[[], bytes]:
    """What gives a PNG's bytes."""
    pixels, texts = contents
    return lambda: encoded_png(pixels, texts)


@dataclass(eq=False)
class Item:
    """One activation of an export.

    Attributes:
        activation: The record.
        stem: The beginning of its files' names.
        shape: (channels, height, width) of what is drawn of it; None where it cannot be drawn.
        pages: How many pages its grid has.
        options: How its grid is drawn; None where it has none.
        tasks: What is to be written of it, in order.
        files: What was written of it.
        notes: Sentences about what is left out.
    """

    activation: Activation
    stem: str
    shape: tuple[int, ...] | None = None
    pages: int = 0
    options: GridOptions | None = None
    tasks: list[Task] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Task:
    """Files that one part writes in one go.

    Attributes:
        part: Whose they are.
        names: The files' names.
        item: The activation that they show; None where they concern the whole export.
        data: What the part has to know to write them.
        most: Bytes that they have at most; 0 where the part cannot tell.
    """

    part: ExportPart
    names: list[str]
    item: Item | None = None
    data: Any = None
    most: int = 0


class Cancelled(Exception):  # noqa: N818 - it is a way out, not an error, and stays in this part
    """The caller asked for the end."""


class Pipeline:
    """Encodes and writes on a few threads while the next page is drawn.

    zlib and the operating system release the interpreter's lock, so threads help with large
    files; small ones are bundled by the caller, because handing one over costs as much as
    writing it. At most a few pieces wait, so that memory stays bounded.

    Args:
        progress: Called in the caller's thread after each file: done, total, name.
        cancelled: Asked in the caller's thread before each piece.
    """

    def __init__(
        self,
        progress: Callable[[int, int, str], None] | None,
        cancelled: Callable[[], bool] | None,
    ) -> None:
        self.total = 1  # files in all, the manifest included
        self.done: list[str] = []
        self._progress = progress
        self._cancelled = cancelled
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self._workers = min(4, cores or 1)
        self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="hookviz-export")
        self._waiting: deque[tuple[Sequence[str], Future[object]]] = deque()

    def close(self) -> None:
        """Waits for what has begun; drops what has not."""
        # What has begun ends by itself within one file; its part is removed or named.
        self._pool.shutdown(wait=True, cancel_futures=True)

    def proceed(self) -> None:
        """Raises Cancelled where the caller asked for the end."""
        if self._cancelled is not None and self._cancelled():
            raise Cancelled

    def put(self, names: Sequence[str], work: Callable[[], object]) -> None:
        """Hands over one piece of work; waits while too many are under way.

        Args:
            names: The files that it writes.
            work: Writes them.

        Raises:
            Cancelled: The caller asked for the end.
            Exception: What an earlier piece raised.
        """
        self.proceed()
        self._waiting.append((names, self._pool.submit(work)))
        while self._waiting and (
            len(self._waiting) > 2 * self._workers or self._waiting[0][1].done()
        ):
            self._take()

    def wrote(self, name: str) -> None:
        """A file is finished; says so."""
        self.done.append(name)
        if self._progress is not None:
            self._progress(len(self.done), self.total, name)

    def drain(self) -> None:
        """Waits for all that is under way."""
        while self._waiting:
            self._take()
            self.proceed()

    def _take(self) -> None:
        names, future = self._waiting.popleft()
        future.result()
        for name in names:
            self.wrote(name)


@dataclass(eq=False)
class Export:
    """One export: what was asked for, its files, and the work that its parts share.

    Attributes:
        facts: The run.
        options: How grids are drawn.
        channels: The single channels; None is those of ``options``, else all.
        all_pages: Every page of a grid, or that of ``options`` alone.
        factor: Pixels per activation in single channels.
        values: The form of raw values.
        pipeline: The threads that write; it counts and asks whether to go on.
        parts: What is written.
        folder: Where the files go.
        own_options: Those of single activations, by label, in place of ``options``.
        book: Gives names that no other file has.
        items: One per activation, in order.
        tasks: What is to be written before all layers.
        notes: Sentences about what is left out of the export as a whole.
        entries: What the manifest says of each layer so far.
        trouble: The first reason why a tensor was left out.
    """

    facts: RunFacts
    options: GridOptions
    channels: Sequence[int] | None
    all_pages: bool
    factor: int
    values: ValueFormat
    pipeline: Pipeline
    parts: Sequence[ExportPart]
    folder: ExportFolder = field(init=False)
    own_options: Mapping[str, GridOptions] = field(default_factory=dict)
    book: NameBook = field(default_factory=lambda: NameBook([MANIFEST_NAME, INPUT_NAME]))
    items: list[Item] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    trouble: HookvizError | None = None
    _measured: tuple[Item, SingleChannels | None] | None = None

    def plan(self, activations: Sequence[Activation]) -> None:
        """Names every file, before the first is written.

        Raises:
            ExportError: There would be none.
            RenderError: None of the activations can be drawn in the way asked.
        """
        options, stems = self.options, NameBook()
        several = len({a.run for a in activations}) > 1
        width = max([3, *(len(str(a.order)) for a in activations)])
        view = "-".join(
            [f"sample{options.sample}"] * bool(options.sample)
            + [f"frame{options.frame}"] * (options.frame is not None)
        )
        for activation in activations:
            self.pipeline.proceed()
            stem = activation_stem(activation, width=width, several_runs=several, view=view)
            item = Item(activation, stems.take(stem, ""))
            read = partial(arrange, activation, options, self.facts.input_size)
            if arranged := self.attempt(read, item, "not drawn"):
                item.shape = tuple(arranged.maps.shape)
            self.items.append(item)
        found = [task for part in self.parts for task in part.plan(self)]
        for task in found:
            (self.tasks if task.item is None else task.item.tasks).append(task)
        drawn = any(task.part.draws for task in found)
        if self.trouble is not None and not drawn and any(part.draws for part in self.parts):
            raise self.trouble
        if not found:
            raise ExportError(
                "There is nothing to export: the run has no activation.",
                remedy="Run the model with at least one layer first.",
            )
        self.pipeline.total += sum(len(task.names) for task in found)

    def options_of(self, item: Item) -> GridOptions:
        """How an activation's grid is to be drawn."""
        return self.own_options.get(item.activation.label, self.options)

    @property
    def drawable(self) -> list[Item]:
        """The activations that can be drawn."""
        return [item for item in self.items if item.shape is not None]

    def attempt(self, make: Callable[[], Made], item: Item | None, what: str) -> Made | None:
        """What ``make`` gives; None and a note where the tensor does not allow it."""
        try:
            return make()
        except UNREADABLE as error:
            self.leave_out(error, item, what)
            return None

    def leave_out(self, error: Exception, item: Item | None, what: str) -> None:
        """Notes that something cannot be made."""
        (self.notes if item is None else item.notes).append(f"{what}: {reason(error)}")
        if not isinstance(error, HookvizError):
            error = RenderError(f"Nothing can be exported: {reason(error)}")
        self.trouble = self.trouble or error

    def made(self, make: Callable[[], Made], task: Task) -> Made | None:
        """The same while a task is done."""
        made = self.attempt(make, task.item, f"{task.names[0]} was not written")
        if made is None:
            self.pipeline.total -= len(task.names)
        elif task.item is not None:
            task.item.files += task.names
        return made

    def put(self, task: Task, encode: Callable[[], bytes]) -> None:
        """Encodes and writes the one file of a task on another thread."""
        self.pipeline.put(task.names, lambda: self.folder.write(task.names[0], encode()))

    def measured(self, item: Item) -> SingleChannels | None:
        """An activation as measured, once for all its files; None where it cannot be."""
        if self._measured is None or self._measured[0] is not item:
            measure = partial(SingleChannels, item.activation, self.options, self.facts.input_size)
            found = self.attempt(measure, item, "not measured") if item.shape else None
            self._measured = (item, found)
        return self._measured[1]


@dataclass(frozen=True, eq=False)
class Again:
    """What a file says that is drawn again, and what the new run gave.

    Attributes:
        facts: The new run.
        activations: Those that the file shows.
        options: How it was drawn.
        record: Which activations, page and channel it shows.
        texts: All that it says.
    """

    facts: RunFacts
    activations: Sequence[Activation]
    options: GridOptions
    record: FileRecord
    texts: Mapping[str, str]


class ExportPart:
    """One kind of files of an export: names them, writes them, draws one of them again.

    A new part is a subclass in a file of its own and one entry of ``PARTS`` in ``_parts.py``.

    Attributes:
        name: What ``what=`` calls it.
        record: What its PNGs call themselves (the text "file"); "" where they are not drawn again.
        draws: Whether it shows tensors that can be drawn; False needs none.
        single: Whether each of its PNGs shows one activation.
        by_channel: Whether each shows one channel.
    """

    name = ""
    record = ""
    draws = True
    single = True
    by_channel = False

    def plan(self, export: Export) -> Iterator[Task]:
        """The files to be; ``export.book`` gives them names that nothing else has."""
        raise NotImplementedError

    def write(self, task: Task, export: Export) -> None:
        """Writes the files of one task into ``export.folder``."""
        raise NotImplementedError

    def redraw(self, again: Again) -> PngContents:
        """Pixels, (H, W, 3) or (H, W, 4) uint8, and texts, as `write` would write them now."""
        raise NotImplementedError
