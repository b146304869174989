"""One folder of an export, written so that no half file is ever seen.

In: a folder that the user chose, names, bytes. Out: files in one new folder inside it. Must not
know: what the files show.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from hookviz.errors import ExportError

__all__ = [
    "PART_NAME",
    "ExportFolder",
    "checked_path",
    "listed_files",
    "place_new",
    "spoken",
    "whole_file",
]

PART_NAME = re.compile(r"\.hookviz-[0-9a-f]{12}\.part")
"""What the name of an unfinished file looks like."""

_SENTENCES = {
    errno.ENOSPC: ("the disk is full", "Free some space or choose another folder."),
    errno.EDQUOT: ("your disk quota is used up", "Free some space or choose another folder."),
    errno.EROFS: ("it is on a read-only disk", "Choose another folder."),
    errno.EACCES: ("you may not write there", "Choose another folder."),
    errno.EPERM: ("you may not write there", "Choose another folder."),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "Choose another folder."),
    errno.EEXIST: ("it is a file, not a folder", "Choose another folder."),
    errno.EISDIR: ("a folder of that name is in the way", "Choose another folder."),
    errno.ENAMETOOLONG: ("the path is too long for this disk", "Choose a shorter one."),
    errno.ELOOP: ("its symbolic links run in a circle", "Choose another folder."),
    errno.ENOENT: ("the folder is no longer there", "Choose another folder."),
    errno.EFBIG: ("the file is too large for this disk", "Choose another folder."),
    errno.EIO: ("the disk reports an error", "Choose another folder."),
}


def checked_path(name: str, value: object) -> Path:
    """``value`` as a path.

    Raises:
        ExportError: It is neither a text nor a path.
    """
    if isinstance(value, str | os.PathLike) and isinstance(path := os.fspath(value), str):
        return Path(path)
    raise ExportError(f"{name} is {value!r:.80}; it must be a path: a str or a pathlib.Path.")


def spoken(error: OSError | ValueError, place: Path) -> ExportError:
    """The one sentence for what the operating system answered.

    Args:
        error: What was raised.
        place: The folder or file that could not be written.
    """
    if isinstance(error, OSError):
        number = error.errno
        reason, remedy = _SENTENCES.get(
            number or 0, (error.strerror or type(error).__name__, "Choose another folder.")
        )
    else:  # a path that holds a NUL, or characters that the disk's encoding lacks
        reason, remedy = str(error), "Choose another folder."
    return ExportError(f"Nothing can be written to {str(place)!r}: {reason}.", remedy=remedy)


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


def place_new(part: Path, target: Path) -> None:
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
        for number in range(1, 10_000):
            path = root / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            except (OSError, ValueError) as error:
                raise spoken(error, path) from error
            return cls(path, made=True)
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
        try:
            path.mkdir()
        except FileExistsError:
            pass
        except (OSError, ValueError) as error:
            raise spoken(error, path) from error
        else:
            return cls(path, made=True)
        if not overwrite:
            raise ExportError(
                f"{str(path)!r} exists already, and nothing is overwritten.",
                remedy="Choose another name, or pass overwrite=True.",
            )
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
            raise spoken(
                error if isinstance(error, OSError) else ValueError(str(error)), path
            ) from error

    def target(self, name: str) -> Path:
        """The path of a file of this export.

        Raises:
            ExportError: ``name`` is not one plain name.
        """
        if not name or name in {".", ".."} or set(name) & {"/", "\\", "\0"}:
            raise ExportError(f"{name!r} is not a plain file name.")
        return self.path / name

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """A file of this export, whole or not at all.

        Raises:
            ExportError: It cannot be written; says why in one sentence.
        """
        target = self.target(name)
        try:
            with whole_file(target) as file:
                yield file
        except OSError as error:
            raise spoken(error, target) from error
        self.finished.append(target)

    def write(self, name: str, data: bytes) -> Path:
        """Writes ``data`` whole or not at all, and returns the file's path."""
        with self.open(name) as file:
            file.write(data)
        return self.target(name)

    def remove_if_empty(self) -> bool:
        """Removes the folder again where this export made it and nothing is in it."""
        if self.made:
            with suppress(OSError):
                self.path.rmdir()
        return not self.path.exists()


def listed_files(folder: Path, manifest: str) -> frozenset[str]:
    """Plain files that a folder's old manifest names and that are there."""
    try:
        with (folder / manifest).open("rb") as file:
            names = json.loads(file.read(64 * 1024 * 1024))["files"]
        return frozenset(
            name
            for name in names
            if isinstance(name, str)
            and name
            and not set(name) & {"/", "\\", "\0"}
            and name not in {".", ".."}
            and stat.S_ISREG((folder / name).lstat().st_mode)
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return frozenset()
