"""The folder of an export and a zip of it, written so that no half file is ever seen.

A file is written under a name like ``.hookviz-1f0c9a6be2d4.part`` in the same folder and then
renamed, which every file system does in one step. A program that is killed leaves such parts
behind and never a half PNG. Nothing is flushed to the disk with fsync: what is promised is that a
name stands for a whole file, not that it survives a power failure a second later.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

from hookviz.errors import ExportError, RunCancelled
from hookviz.export._names import NameBook, is_forbidden

PART_NAME = re.compile(r"\.hookviz-[0-9a-f]{12}\.part")
"""What the name of an unfinished file looks like."""

_ELSEWHERE = "Choose another folder."
_DISK_ERRORS = {
    errno.ENOSPC: ("the disk is full", "Free some space or choose another folder."),
    errno.EDQUOT: ("your disk quota is used up", "Free some space or choose another folder."),
    errno.EROFS: ("it is on a read-only disk", _ELSEWHERE),
    errno.EACCES: ("you may not write there", _ELSEWHERE),
    errno.EPERM: ("you may not write there", _ELSEWHERE),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", _ELSEWHERE),
    errno.EEXIST: ("it is a file, not a folder", _ELSEWHERE),
    errno.EISDIR: ("a folder of that name is in the way", _ELSEWHERE),
    errno.ENAMETOOLONG: ("the path is too long for this disk", "Choose a shorter one."),
    errno.ELOOP: ("its symbolic links run in a circle", _ELSEWHERE),
    errno.ENOENT: ("the folder is no longer there", _ELSEWHERE),
    errno.EFBIG: ("the file is too large for this disk", _ELSEWHERE),
    errno.EIO: ("the disk reports an error", _ELSEWHERE),
}


def checked_path(name: str, value: object) -> Path:
    """``value`` as a path.

    Raises:
        ExportError: It is neither a text nor a path.
    """
    if isinstance(value, str | os.PathLike) and isinstance(path := os.fspath(value), str):
        return Path(path)
    raise ExportError(f"{name} is {value!r:.80}; it must be a path: a str or a pathlib.Path.")


def disk_error(error: Exception, place: Path) -> ExportError:
    """The one sentence for what the operating system answered.

    Args:
        error: What was raised.
        place: The folder or file that could not be written.
    """
    # A ValueError is a path that holds a NUL, or characters that the disk's encoding lacks.
    answer = getattr(error, "strerror", None) or str(error) or type(error).__name__
    reason, remedy = _DISK_ERRORS.get(getattr(error, "errno", 0), (answer, _ELSEWHERE))
    return ExportError(f"Nothing can be written to {str(place)!r}: {reason}.", remedy=remedy)


def lock_taken(number: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Whether an open file's lock could be taken; it is free again when the file is closed.

    The system closes it when the process ends, however it ends.

    Args:
        number: The file's descriptor.
        shared: Others may share it; not on Windows.
        wait: Wait until it is free.
    """
    if sys.platform == "win32":  # no shared locks there
        import msvcrt

        try:
            msvcrt.locking(number, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
    else:
        import fcntl

        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(number, kind | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
    return True


@contextmanager
def whole_file(
    target: Path, place: Callable[[Path, Path], object] = os.replace
) -> Iterator[IO[bytes]]:
    """A binary file that gets its name ``target`` when the block ends well, else vanishes.

    Its attribute ``name`` is the path where it lies meanwhile.

    Args:
        target: The file to be; its folder exists. A symbolic link of that name is replaced, not
            followed.
        place: Gives the finished part its name.

    Raises:
        OSError: As the operating system says it.
    """
    part = target.parent / f".hookviz-{secrets.token_hex(6)}.part"
    file = part.open("x+b")  # "x" follows no link and overwrites nothing
    try:
        with file:
            yield file
        place(part, target)
    except BaseException:  # also KeyboardInterrupt: no part stays behind
        with suppress(OSError):
            part.unlink()
        raise


def _place_new(part: Path, target: Path) -> None:
    """Names a finished part ``target`` and refuses, in the same step, where that exists.

    Raises:
        FileExistsError: There is a file of that name.
    """
    try:
        os.link(part, target)
    except FileExistsError:
        raise
    except (OSError, NotImplementedError):
        # No hard links on this file system: an exclusive empty file holds the name meanwhile.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        part.replace(target)
    else:
        part.unlink()


class ExportFolder:
    """The folder of one export.

    Args:
        path: The folder, which exists.
        made: This export made it, so it may go again where nothing was written.
    """

    def __init__(self, path: Path, *, made: bool) -> None:
        self.path = path
        self.made = made
        self.finished: list[Path] = []

    @classmethod
    def new(cls, parent: str | os.PathLike[str], name: str) -> ExportFolder:
        """Makes a folder inside ``parent``; where ``name`` is taken, ``name-2``, ``name-3``, ...

        Raises:
            ExportError: It cannot be made.
        """
        root = cls._parent(parent)
        for stem in _numbered(name):
            if _made(root / stem):
                return cls(root / stem, made=True)
        raise ExportError(f"{str(root)!r} holds 9,999 exports called {name!r} already.")

    @classmethod
    def named(
        cls, parent: str | os.PathLike[str], name: str, *, overwrite: bool = False
    ) -> ExportFolder:
        """Makes the folder ``name`` inside ``parent``, or takes it over where that is asked.

        Raises:
            ExportError: It exists and ``overwrite`` is False; it is a file or a symbolic link; it
                cannot be made.
        """
        path = cls._parent(parent) / name
        if made := _made(path):
            return cls(path, made=made)
        if not overwrite:
            raise _exists(path, "Choose another name, or pass overwrite=True.")
        if path.is_symlink() or not path.is_dir():
            kind = "a symbolic link" if path.is_symlink() else "a file"
            raise ExportError(
                f"{str(path)!r} is {kind}, not a folder.", remedy="Choose another name."
            )
        return cls(path, made=False)

    @staticmethod
    def _parent(parent: str | os.PathLike[str]) -> Path:
        path = checked_path("folder", parent)
        try:
            path.mkdir(parents=True, exist_ok=True)
            return path.resolve(strict=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise disk_error(error, path) from error

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """A file of this export, whole or not at all.

        Raises:
            ExportError: It cannot be written, or ``name`` is not one plain name.
        """
        if not _is_plain(name):
            raise ExportError(f"{name!r} is not a plain file name.")
        target = self.path / name
        try:
            with whole_file(target) as file:
                yield file
        except OSError as error:
            raise disk_error(error, target) from error
        self.finished.append(target)

    def write(self, name: str, data: bytes) -> Path:
        """Writes ``data`` whole or not at all, and returns the file's path."""
        with self.open(name) as file:
            file.write(data)
        return self.path / name

    def remove_if_empty(self) -> bool:
        """Removes the folder again where this export made it and nothing is in it."""
        if self.made:
            with suppress(OSError):
                self.path.rmdir()
        return not self.path.exists()


def _made(path: Path) -> bool:
    """Makes a folder; False where something of that name is there."""
    try:
        path.mkdir()
    except FileExistsError:
        return False
    except (OSError, ValueError) as error:
        raise disk_error(error, path) from error
    return True


def _numbered(name: str) -> Iterator[str]:
    """``name``, ``name-2``, ``name-3``, ..."""
    yield name
    yield from (f"{name}-{number}" for number in range(2, 10_000))


def _is_plain(name: str) -> bool:
    return name not in {"", ".", ".."} and not set(name) & {"/", "\\", "\0"}


def listed_files(folder: Path, manifest: str) -> frozenset[str]:
    """Plain files that a folder's old manifest names and that are there."""
    try:
        with (folder / manifest).open("rb") as file:
            names = json.loads(file.read(64 * 1024 * 1024))["files"]
        return frozenset(
            name
            for name in names
            if isinstance(name, str)
            and _is_plain(name)
            and stat.S_ISREG((folder / name).lstat().st_mode)
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return frozenset()


_PIECE = 1024 * 1024
_PACKED = frozenset({".png", ".zip"})  # deflating these again costs time and saves nothing


def _portable(path: Path) -> tuple[str, str]:
    """Stem and ending of a file's name, without what some systems cannot unpack."""
    name = "".join("-" if is_forbidden(char) else char for char in path.name)
    stem, dot, ending = name.rpartition(".")
    return (stem, dot + ending) if stem else (name, "")


def _pack(
    file: IO[bytes],
    folder: Path,
    progress: Callable[[int, int, str], None] | None,
    cancelled: Callable[[], bool] | None,
) -> None:
    """Zips the plain files of a folder: no links, no folders, no unfinished parts."""
    found = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    paths = [path for path in found if stat.S_ISREG(path.lstat().st_mode)]
    if not paths:
        raise ExportError(f"The folder {str(folder)!r} holds no files to zip.")
    top, names = "".join(_portable(folder)) or "export", NameBook()
    with zipfile.ZipFile(file, "w") as archive:
        for number, path in enumerate(paths):
            entry = zipfile.ZipInfo.from_file(
                path, f"{top}/{names.take(*_portable(path))}", strict_timestamps=False
            )
            packed = path.suffix in _PACKED
            entry.compress_type = zipfile.ZIP_STORED if packed else zipfile.ZIP_DEFLATED
            with path.open("rb") as source, archive.open(entry, "w") as sink:
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
    if not root.is_dir() or not os.access(root, os.R_OK):
        raise ExportError(f"{str(folder)!r} is not a folder of an export that can be read.")
    if target is not None and hasattr(target, "write"):
        try:
            _pack(cast("IO[bytes]", target), root, progress, cancelled)
        except OSError as error:
            raise ExportError(f"The zip cannot be written: {error.strerror or error}.") from error
        return None
    path = root.parent / f"{root.name}.zip" if target is None else checked_path("target", target)
    placed = path = path.absolute()
    if target is not None and (path.exists() or path.is_symlink()):
        raise _exists(path)

    def place(part: Path, wanted: Path) -> None:
        nonlocal placed
        stems = [wanted.stem] if target is not None else _numbered(root.name)
        for placed in (wanted.with_stem(stem) for stem in stems):
            with suppress(FileExistsError):
                return _place_new(part, placed)
        raise _exists(placed)

    try:
        with whole_file(path, place) as file:
            _pack(file, root, progress, cancelled)
    except OSError as error:
        raise disk_error(error, path) from error
    return placed


def _exists(path: Path, remedy: str = "Choose another name.") -> ExportError:
    return ExportError(f"{str(path)!r} exists already, and nothing is overwritten.", remedy=remedy)
