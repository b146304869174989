"""Files of a survey: committed whole and for good, and one writer at a time.

A file gets its name when all of it is on the disk: temporary file, fsync, rename, fsync of the
folder. So what has a name is whole, after a power failure too.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from hookviz._tensors import dense
from hookviz.errors import SurveyError
from hookviz.export import disk_error, lock_taken, whole_file

_CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
    "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


@contextmanager
def committed(target: Path) -> Iterator[IO[bytes]]:
    """A binary file that has its name once it is whole and on the disk, else vanishes.

    Raises:
        SurveyError: It cannot be written.
    """
    try:
        with whole_file(target) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        sync_folder(target.parent)
    except OSError as error:
        raise unwritable(error, target) from error


def unwritable(error: OSError | ValueError, path: Path) -> SurveyError:
    """Why something cannot be written."""
    said = disk_error(error, path)
    return SurveyError(said.message, remedy=said.remedy)


def sync_folder(folder: Path) -> None:
    """Sees to it that names in a folder are on the disk."""
    with suppress(PermissionError):  # Windows opens no folders, and needs none
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def write_json(target: Path, value: Any) -> None:
    """Commits a value as JSON, ASCII alone, so that any name of a file can be in it."""
    with committed(target) as file:
        file.write(json.dumps(value, indent=1).encode("ascii"))


class TensorFile:
    """A safetensors file that is written tensor by tensor, so that a batch is all it holds.

    Args:
        file: An open binary file.
        room: Bytes kept at its beginning for the header.
    """

    def __init__(self, file: IO[bytes], room: int) -> None:
        self._file, self._room, self._place = file, (room + 7) // 8 * 8, 0
        self._entries: dict[str, Any] = {}
        file.write(bytes(8 + self._room))

    def add(self, name: str, tensor: Tensor) -> None:
        """Appends a tensor of any device, in C order."""
        if rest := -self._place % 8:  # readers want 8-byte numbers at multiples of 8
            self._append(f"~{len(self._entries)}", "U8", [rest], bytes(rest))
        plain = dense(tensor, "cpu").contiguous()
        code = _CODES[str(plain.dtype).removeprefix("torch.")]
        flat = plain.reshape(-1).view(torch.uint8) if plain.numel() else plain.new_empty(0)
        self._append(name, code, list(plain.shape), flat.numpy().tobytes())

    def add_bytes(self, name: str, pieces: Iterable[bytes]) -> None:
        """Appends bytes as they come, as one tensor of uint8."""
        start = self._place
        for piece in pieces:
            self._file.write(piece)
            self._place += len(piece)
        self._note(name, "U8", [self._place - start], start)

    def _append(self, name: str, code: str, shape: list[int], data: bytes) -> None:
        start = self._place
        self._file.write(data)
        self._place += len(data)
        self._note(name, code, shape, start)

    def _note(self, name: str, code: str, shape: list[int], start: int) -> None:
        span = [start, self._place]
        self._entries[name] = {"dtype": code, "shape": shape, "data_offsets": span}

    def close(self, metadata: Mapping[str, Any]) -> None:
        """Writes the header; each of its facts is a JSON text."""
        texts = {key: json.dumps(value) for key, value in metadata.items()}
        header = json.dumps({"__metadata__": texts, **self._entries}, separators=(",", ":"))
        data = header.encode("ascii")
        if len(data) > self._room:
            self._move(-(-len(data) // 8) * 8)
        self._file.seek(0)
        self._file.write(struct.pack("<Q", self._room) + data.ljust(self._room))

    def _move(self, room: int) -> None:
        """Makes more room for the header: what follows moves back, from its end on."""
        step, end = 1 << 24, self._place
        while end > 0:
            start = max(0, end - step)
            self._file.seek(8 + self._room + start)
            piece = self._file.read(end - start)
            self._file.seek(8 + room + start)
            self._file.write(piece)
            end = start
        self._room = room


def read_facts(path: Path) -> dict[str, Any]:
    """The facts in the header of a file that `TensorFile` wrote; no tensor is read.

    Raises:
        SurveyError: It is no such file, or cut short.
    """
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
            texts = header.pop("__metadata__")
            ends = [entry["data_offsets"][1] for entry in header.values()]
            if path.stat().st_size != 8 + size + max(ends, default=0):
                raise ValueError("cut short")
        return {key: json.loads(text) for key, text in texts.items()}
    except (OSError, ValueError, KeyError, TypeError, struct.error, MemoryError) as error:
        raise SurveyError(
            f"'{path.name}' in {str(path.parent)!r} is damaged: {error}.",
            remedy="Remove it and run the survey again; that shard is made anew.",
        ) from error


@contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = False) -> Iterator[None]:
    """Holds a lock file while the block runs; it is free again when the process ends, however.

    Args:
        path: The file, made where it is missing.
        shared: Others may share it.
        wait: Wait until it is free.

    Raises:
        SurveyError: Somebody else holds it.
    """
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise unwritable(error, path) from error
    try:
        if not lock_taken(number, shared=shared, wait=wait):
            raise SurveyError(
                f"Another process writes to the survey in {str(path.parent)!r}.",
                remedy="Wait until it has ended, or take another folder.",
            )
        yield
    finally:
        os.close(number)
