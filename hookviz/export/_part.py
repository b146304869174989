"""What an export is made of: parts, each one kind of files, and the work that they share.

An export is planned before its first file is written: every part names its files as tasks. Then the
tasks are done layer by layer, as the layers ran. A tensor that cannot be read, drawn or written is
a note in the manifest and leaves the others alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hookviz.activation import Activation
from hookviz.errors import ExportError, HookvizError, RenderError
from hookviz.export._channels import ChannelPainter
from hookviz.export._facts import FileRecord, RunFacts
from hookviz.export._folder import ExportFolder
from hookviz.export._names import INPUT_NAME, MANIFEST_NAME, NameBook, activation_stem
from hookviz.export._pipeline import Pipeline
from hookviz.export._png import encoded_png
from hookviz.export._values import TensorError, ValueFormat
from hookviz.render import GridOptions, arrange

__all__ = [
    "UNREADABLE",
    "Again",
    "Export",
    "Item",
    "Part",
    "Plan",
    "Request",
    "Task",
    "reason",
]

Made = TypeVar("Made")


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
    text = str(error).strip().split("\n")[0] or "no further text"
    return f"its values cannot be read ({type(error).__name__}: {text:.200})."


@dataclass(frozen=True, eq=False)
class Request:
    """What was asked of an export, see `hookviz.export.write_export`."""

    facts: RunFacts
    options: GridOptions
    channels: Sequence[int] | None
    all_pages: bool
    factor: int
    values: ValueFormat

    @property
    def input_size(self) -> tuple[int, int] | None:
        """(height, width) of what the network saw."""
        return self.facts.input_size


@dataclass(eq=False)
class Item:
    """One activation of an export.

    Attributes:
        activation: The record.
        stem: The beginning of its files' names.
        shape: (channels, height, width) of what is drawn of it; None where it cannot be drawn.
        pages: How many pages its grid has.
        files: What was written of it.
        notes: Sentences about what is left out.
    """

    activation: Activation
    stem: str
    shape: tuple[int, ...] | None = None
    pages: int = 0
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
    """

    part: Part
    names: list[str]
    item: Item | None = None
    data: Any = None


class Plan:
    """All files of an export, before the first is written.

    Args:
        request: What was asked for.
        activations: What may be shown, in order.
        proceed: Called for each activation; raises to stop.
    """

    def __init__(
        self, request: Request, activations: Sequence[Activation], proceed: Callable[[], None]
    ) -> None:
        self.request = request
        self.book = NameBook([MANIFEST_NAME, INPUT_NAME])
        self.items: list[Item] = []
        self.tasks: list[Task] = []
        self.notes: list[str] = []
        self.trouble: Exception | None = None
        options = request.options
        stems, several = NameBook(), len({a.run for a in activations}) > 1
        width = max([3, *(len(str(a.order)) for a in activations)])
        view = "-".join(
            [f"sample{options.sample}"] * bool(options.sample)
            + [f"frame{options.frame}"] * (options.frame is not None)
        )
        for activation in activations:
            proceed()
            stem = activation_stem(activation, width=width, several_runs=several, view=view)
            item = Item(activation, stems.take(stem, ""))
            item.shape = self.attempt(
                lambda a=activation: tuple(arrange(a, options, request.input_size).maps.shape),  # type: ignore[misc]
                item,
                "not drawn",
            )
            self.items.append(item)

    @property
    def drawable(self) -> list[Item]:
        """The activations that can be drawn."""
        return [item for item in self.items if item.shape is not None]

    def attempt(self, make: Callable[[], Made], item: Item, what: str) -> Made | None:
        """What ``make`` gives; None and a note where the tensor does not allow it."""
        try:
            return make()
        except UNREADABLE as error:
            item.notes.append(f"{what}: {reason(error)}")
            self.trouble = self.trouble or error
            return None

    def add(self, parts: Sequence[Part]) -> None:
        """Names the files of these parts.

        Raises:
            ExportError: There would be none.
            RenderError: None of the activations can be drawn in the way asked.
        """
        found = [task for part in parts for task in part.plan(self)]
        numbers = {id(item): number for number, item in enumerate(self.items)}
        self.tasks = sorted(found, key=lambda task: numbers.get(id(task.item), -1))
        drawn = [task for task in found if task.part.draws]
        if self.trouble is not None and not drawn and any(part.draws for part in parts):
            raise as_render_error(self.trouble)
        if not found:
            raise ExportError(
                "There is nothing to export: the run has no activation.",
                remedy="Run the model with at least one layer first.",
            )

    @property
    def total(self) -> int:
        """How many files, the manifest included."""
        return sum(len(task.names) for task in self.tasks) + 1


def as_render_error(error: Exception) -> HookvizError:
    """What to raise where no tensor at all can be exported."""
    if isinstance(error, HookvizError):
        return error
    return RenderError(f"Nothing can be exported: {reason(error)}")


class Export:
    """The work of one export that all parts share.

    Args:
        request: What was asked for.
        plan: The files to be.
        folder: Where they go.
        pipeline: The threads that write them; it counts and asks whether to go on.
    """

    def __init__(
        self, request: Request, plan: Plan, folder: ExportFolder, pipeline: Pipeline
    ) -> None:
        self.request, self.plan, self.folder, self.pipeline = request, plan, folder, pipeline
        self.trouble: Exception | None = None
        self._measured: tuple[Item, ChannelPainter | None] | None = None

    def attempt(self, make: Callable[[], Made], task: Task, notes: list[str]) -> Made | None:
        """What ``make`` gives; None and a note where the tensor does not allow it."""
        try:
            return make()
        except UNREADABLE as error:
            notes.append(f"{task.names[0]} was not written: {reason(error)}")
            self.trouble = self.trouble or error
            self.pipeline.total -= len(task.names)
            return None

    def png(self, task: Task, picture: tuple[NDArray[np.uint8], Mapping[str, str]]) -> None:
        """Encodes and writes the one picture of a task on another thread."""
        (name,), (pixels, texts) = task.names, picture

        def work() -> None:
            self.folder.write(name, encoded_png(pixels, texts))

        self.pipeline.put(task.names, work)

    def painter(self, item: Item) -> ChannelPainter | None:
        """An activation as measured, once for all its files; None where it cannot be."""
        if self._measured is None or self._measured[0] is not item:
            painter = None
            if item.shape is not None:
                try:
                    painter = ChannelPainter(
                        item.activation, self.request.options, self.request.input_size
                    )
                except UNREADABLE as error:
                    item.notes.append(f"not measured: {reason(error)}")
                    self.trouble = self.trouble or error
            self._measured = (item, painter)
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


class Part:
    """One kind of files of an export: names them, writes them, draws one of them again.

    A new part is a subclass in a file of its own and one entry of ``PARTS`` in ``_parts.py``.

    Attributes:
        name: What ``what=`` calls it.
        record: What its PNGs call themselves (the text "file"); "" where they are not drawn again.
        draws: Whether it shows tensors that can be drawn; False needs none.
    """

    name = ""
    record = ""
    draws = True

    def plan(self, plan: Plan) -> Iterator[Task]:
        """The files to be; `Plan.book` gives them names that nothing else has."""
        raise NotImplementedError

    def write(self, task: Task, export: Export) -> None:
        """Writes the files of one task into ``export.folder``."""
        raise NotImplementedError

    def legal(self, record: FileRecord) -> bool:
        """Whether a record may be of a file of this part."""
        return len(record.keys) == 1 and record.channel is None

    def redraw(self, again: Again) -> tuple[NDArray[np.uint8], dict[str, str]]:
        """Pixels, (H, W, 3) or (H, W, 4) uint8, and texts, as `write` would write them now."""
        raise NotImplementedError
