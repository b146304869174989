"""The export part of comparisons: the table and the summary as files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hookviz.export import Export, ExportPart, Task

if TYPE_CHECKING:
    from hookviz.comparison._comparison import Comparison


class TablePart(ExportPart):
    """``000_comparison.csv`` and ``000_comparison.txt``.

    Args:
        comparison: What is written.
    """

    name, draws = "table", False

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    def plan(self, export: Export) -> Iterator[Task]:
        """Two tasks."""
        for ending in (".csv", ".txt"):
            yield Task(self, [export.book.take("000_comparison", ending)], data=ending)

    def write(self, task: Task, export: Export) -> None:
        """Writes one file."""
        found = self._comparison
        text = found.to_csv() if task.data == ".csv" else f"{found!r}\n\n{found.table()}\n"
        (name,) = task.names
        export.folder.write(name, text.encode("utf-8"))
        export.pipeline.wrote(name)
