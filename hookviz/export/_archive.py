"""One zip of an export's folder.

In: the folder of an export. Out: a zip file beside it, or in an open file. Must not know: what the
files show.
"""

from __future__ import annotations

import os
import stat
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

from hookviz.errors import ExportError, RunCancelled
from hookviz.export._files import checked_path, place_new, spoken, whole_file
from hookviz.export._names import NameBook, is_forbidden

__all__ = ["zip_export"]

_PIECE = 1024 * 1024
_PACKED = frozenset({".png", ".zip"})  # deflating these again costs time and saves nothing


def _files(folder: Path) -> list[Path]:
    """The plain files of a folder by name: no links, no folders, no unfinished parts."""
    try:
        found = sorted(folder.iterdir())
        return [
            path
            for path in found
            if stat.S_ISREG(path.lstat().st_mode) and not path.name.startswith(".")
        ]
    except OSError as error:
        raise ExportError(
            f"The folder {str(folder)!r} cannot be read: {error.strerror}."
        ) from error


def _portable(path: Path) -> tuple[str, str]:
    """Stem and ending of a file's name, without what some systems cannot unpack."""
    name = "".join("-" if is_forbidden(sign) else sign for sign in path.name)
    stem, dot, ending = name.rpartition(".")
    return (stem, dot + ending) if stem else (name, "")


def _pack(
    file: IO[bytes],
    folder: Path,
    progress: Callable[[int, int, str], None] | None,
    cancelled: Callable[[], bool] | None,
) -> None:
    paths = _files(folder)
    if not paths:
        raise ExportError(f"The folder {str(folder)!r} holds no files to zip.")
    top, names = "".join(_portable(folder)) or "export", NameBook()
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for number, path in enumerate(paths):
            moment = time.localtime(max(path.stat().st_mtime, 315_576_000))  # zip begins in 1980
            entry = zipfile.ZipInfo(f"{top}/{names.take(*_portable(path))}", moment[:6])
            packed = path.suffix in _PACKED
            entry.compress_type = zipfile.ZIP_STORED if packed else zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            with (
                path.open("rb") as source,
                archive.open(entry, "w", force_zip64=path.stat().st_size > 1 << 31) as sink,
            ):
                while piece := source.read(_PIECE):
                    if cancelled is not None and cancelled():
                        raise RunCancelled(
                            f"Zipping was cancelled after {number} of {len(paths)} files; "
                            "no zip was written."
                        )
                    sink.write(piece)
            if progress is not None:
                progress(number + 1, len(paths), path.name)


def zip_export(
    folder: str | os.PathLike[str],
    target: str | os.PathLike[str] | IO[bytes] | None = None,
    *,
    progress: Callable[[int, int, str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Path | None:
    """Packs an export's folder into one zip, piece by piece.

    Args:
        folder: The export's folder. Its plain files are packed under the folder's name; links,
            folders, hidden files and unfinished parts are not. Characters that Windows or zip
            cannot have in a name become dashes.
        target: Where to: a path; an open binary file (it stays open); None makes
            ``<folder>.zip`` beside the folder, or ``<folder>-2.zip`` ... where that exists.
        progress: Called after each file with files done, files in all, and the file's name.
        cancelled: Asked before each MiB; True ends it, and no zip stays behind.

    Returns:
        The zip's path; None where ``target`` is an open file.

    Raises:
        ExportError: ``target`` exists already, the folder is missing or empty, or the zip cannot
            be written.
        RunCancelled: ``cancelled`` answered True.
    """
    root = checked_path("folder", folder).absolute()
    if not root.is_dir():
        raise ExportError(f"{str(folder)!r} is not a folder of an export.")
    if target is not None and hasattr(target, "write"):
        try:
            _pack(cast("IO[bytes]", target), root, progress, cancelled)
        except OSError as error:
            raise ExportError(f"The zip cannot be written: {error.strerror or error}.") from error
        return None
    path = root.parent / f"{root.name}.zip"
    if target is not None:
        path = checked_path("target", target).absolute()
    if target is not None and (path.exists() or path.is_symlink()):
        raise _exists(path)
    number = 1
    try:

        def place(part: Path, wanted: Path) -> None:
            nonlocal path, number
            while True:
                try:
                    place_new(part, wanted)
                except FileExistsError:
                    if target is not None:
                        raise
                    number += 1
                    wanted = root.parent / f"{root.name}-{number}.zip"
                else:
                    path = wanted
                    return

        with whole_file(path, place) as file:
            _pack(file, root, progress, cancelled)
    except FileExistsError as error:
        raise _exists(path) from error
    except OSError as error:
        raise spoken(error, path) from error
    return path


def _exists(path: Path) -> ExportError:
    return ExportError(
        f"{str(path)!r} exists already, and nothing is overwritten.", remedy="Choose another name."
    )
