"""The folder of a training: facts, records line by line, pictures.

``monitor.json`` has the facts and is there from the start, whole. ``records.jsonl`` is appended to,
one record a line; a line that has no end yet, or was cut by a crash, is no record. ``pictures``
has PNGs and ``values`` what they show as ``.npz``, each of which gets its name when it is whole.
So the folder can be read at any time, from any process, whatever became of the training.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from hookviz.errors import MonitorError
from hookviz.export import disk_error, lock_taken, whole_file
from hookviz.monitoring._history import PictureAt, TrainingHistory
from hookviz.monitoring._over_time import KeptMaps

FORMAT = "hookviz-monitor"
VERSION = 1
_FACTS, _RECORDS, _PICTURES, _VALUES = "monitor.json", "records.jsonl", "pictures", "values"
_LOCK = ".lock"
_NAME = re.compile(r"[\w.-]+\.png")


class Folder:
    """Writes a training's folder.

    Args:
        path: Where; made where it is missing.
        facts: About the training.
        resume: Go on in a folder that has one.

    Raises:
        MonitorError: The folder has a training already, or cannot be written.
    """

    def __init__(self, path: str | Path, facts: Mapping[str, Any], *, resume: bool) -> None:
        self.path = Path(path)
        there = (self.path / _FACTS).exists()
        if there and not resume:
            raise MonitorError(
                f"{str(self.path)!r} holds a watched training already.",
                remedy="Take another folder, or resume=True to go on in it.",
            )
        if there:
            _read_facts(self.path)  # refused where it is something else
        try:
            for name in (_PICTURES, _VALUES):
                (self.path / name).mkdir(parents=True, exist_ok=True)
            with whole_file(self.path / _FACTS) as file:
                text = json.dumps({"format": FORMAT, "version": VERSION, **facts}, indent=1)
                file.write(text.encode("ascii"))
            # Unbuffered: a record is with the system as soon as it is written.
            self._file: IO[bytes] = (self.path / _RECORDS).open("ab", buffering=0)
            if not _ends_well(self.path / _RECORDS):
                self._file.write(b"\n")
            # Held as long as the training lives: so others see that it was killed.
            self._lock = (self.path / _LOCK).open("ab")
            with suppress(OSError):  # a disk without locks: others will say "running"
                lock_taken(self._lock.fileno())
        except OSError as error:
            raise _said(error, self.path) from error

    def add(self, record: Mapping[str, Any]) -> None:
        """Appends a record.

        Raises:
            MonitorError: The disk refuses it.
        """
        line = json.dumps(record, separators=(",", ":")).encode("ascii") + b"\n"
        try:
            self._file.write(line)
        except OSError as error:
            raise _said(error, self.path / _RECORDS) from error

    def write_picture(self, name: str, png: bytes, kept: KeptMaps) -> None:
        """Writes a picture under its name, and the values that it shows."""
        target = self.path / _PICTURES / name
        try:
            with whole_file(target) as file:
                file.write(png)
            target = values_path(self.path, name)
            with whole_file(target) as file:
                kept.write(file)
        except OSError as error:
            raise _said(error, target) from error

    def close(self) -> None:
        """Closes the records."""
        self._file.close()
        self._lock.close()


class SavedHistory(TrainingHistory):
    """A training as its folder tells it, while it runs and afterwards.

    Whatever is asked reads first what is new.

    Args:
        path: The folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        super().__init__(_read_facts(self.path))
        self._at, self._reading = 0, threading.Lock()
        self._fresh()

    def _fresh(self) -> None:
        with self._reading:
            for record in self._new():
                with suppress(KeyError, TypeError, ValueError, AttributeError):  # not of ours
                    self._add(record)

    def _new(self) -> Iterator[dict[str, Any]]:
        """The records that are whole and were not read yet."""
        try:
            with (self.path / _RECORDS).open("rb") as file:
                file.seek(self._at)
                text = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise _said(error, self.path / _RECORDS) from error
        whole = text.rfind(b"\n") + 1
        self._at += whole
        for line in text[:whole].splitlines():
            try:
                record = json.loads(line)
            except ValueError:  # cut by a crash, and gone on with behind it
                continue
            if isinstance(record, dict):
                yield record

    @property
    def state(self) -> str:
        """See `TrainingHistory`; one that was killed is "interrupted".

        That is known on the machine that trains; others, and Windows, say "running".
        """
        # In this order: a training ends, then lets go.
        return (
            "interrupted" if not self.ended and self._left() and not self.ended else super().state
        )

    def _left(self) -> bool:
        """Whether the training's process is gone."""
        try:
            with (self.path / _LOCK).open("rb") as file:
                return sys.platform != "win32" and lock_taken(file.fileno(), shared=True)
        except OSError:
            return False

    def _png(self, picture: PictureAt) -> bytes:
        return read_picture(self.path, picture)

    def _kept(self, picture: PictureAt) -> KeptMaps:
        return KeptMaps.read(values_path(self.path, picture.file))


def values_path(folder: Path, name: str) -> Path:
    """Where the values of a picture lie.

    Raises:
        MonitorError: It is no name of a picture.
    """
    if not _NAME.fullmatch(name):
        raise MonitorError(f"{name!r} is no name of a picture.")
    return folder / _VALUES / f"{name.removesuffix('.png')}.npz"


def read_picture(folder: Path, picture: PictureAt) -> bytes:
    """The bytes of a picture.

    Raises:
        MonitorError: It is gone, or its name is none that a monitor gives.
    """
    if not _NAME.fullmatch(picture.file):
        raise MonitorError(f"{picture.file!r} is no name of a picture.")
    target = folder / _PICTURES / picture.file
    try:
        return target.read_bytes()
    except OSError as error:
        raise MonitorError(
            f"The picture {str(target)!r} cannot be read: {error.strerror}."
        ) from error


def _read_facts(path: Path) -> dict[str, Any]:
    """The facts in a folder.

    Raises:
        MonitorError: It is no folder of a training.
    """
    try:
        facts = json.loads((path / _FACTS).read_bytes())
        if not isinstance(facts, dict) or facts["format"] != FORMAT:
            raise ValueError("it is of another kind")
        if facts["version"] > VERSION:
            raise ValueError("a newer hookviz wrote it")
        facts["layers"] = [str(name) for name in facts["layers"]]
        facts["model"] = str(facts["model"])
    except FileNotFoundError as error:
        raise MonitorError(
            f"{str(path)!r} is no folder of hookviz.monitor: it has no {_FACTS}."
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MonitorError(f"{str(path / _FACTS)!r} cannot be read: {error}.") from error
    return facts


def _ends_well(path: Path) -> bool:
    """Whether the last line of a file has its end."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if not size:
            return True
        file.seek(size - 1)
        return file.read(1) == b"\n"


def _said(error: OSError, path: Path) -> MonitorError:
    said = disk_error(error, path)
    return MonitorError(said.message, remedy=said.remedy)
