"""How an export ended.

In: a folder, files, a reason. Out: a frozen record, or an error that tells what was finished. Must
not know: how files are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hookviz.errors import ExportError, RunCancelled

__all__ = ["ExportCancelled", "ExportResult", "ExportStopped"]


@dataclass(frozen=True)
class ExportResult:
    """What an export wrote.

    Attributes:
        folder: The export's own folder, absolute.
        files: Every file in it but the manifest, in the order in which the layers ran.
        manifest: The manifest's path.
        notes: Sentences about what was asked for and left out.
    """

    folder: Path
    files: tuple[Path, ...]
    manifest: Path
    notes: tuple[str, ...] = ()


class ExportStopped(ExportError):  # noqa: N818 - stopping on request is no error
    """An export ended before its end. What was finished is whole and stays.

    Attributes:
        folder: The export's folder; None where nothing was finished and it was removed again.
        files: What was finished.
    """

    def __init__(
        self, message: str, *, remedy: str | None, folder: Path | None, files: tuple[Path, ...]
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.folder = folder
        self.files = files


class ExportCancelled(ExportStopped, RunCancelled):
    """An export was ended on request. What was finished is whole and stays."""
