"""How an export ended.

In: a folder, files, a reason. Out: a frozen record, or an error that tells what was finished. Must
not know: how files are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hookviz.errors import ExportError, HookvizError, RenderError, RunCancelled

__all__ = [
    "UNREADABLE",
    "ExportCancelled",
    "ExportResult",
    "ExportStopped",
    "TensorError",
    "reason",
]


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


class TensorError(ExportError):
    """One tensor cannot be written in the form asked for; others can."""


UNREADABLE = (RenderError, TensorError, RuntimeError, TypeError, ValueError, LookupError)
"""What drawing or reading one tensor may raise. It is a reason for that layer alone, noted in the
manifest; the export goes on with the others."""


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
