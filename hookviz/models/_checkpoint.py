"""A checkpoint file, read without ever running what it says.

``torch.load(weights_only=True)`` or safetensors, nothing else. What the file is shows in its
first bytes, so that a web page or a Keras file is named as such.

Training scripts keep more than tensors beside the weights. `_harmless` lists what is read of it,
each with the reason why it is harmless; everything else is refused, in a sentence that says what
the file would do.
"""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import decimal
import itertools
import math
import os
import pathlib
import pickletools
import re
import stat
import struct
import sys
import tarfile
import threading
import types
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch.torch_version import TorchVersion

from hookviz._text import error_text
from hookviz.errors import WeightsError, closest
from hookviz.images import file_kind

ACCEPTED = "Accepted are .safetensors files and PyTorch checkpoints (.pth, .pt, .ckpt, .bin)."
RESAVE = (
    "In the program that made it, save the weights alone: "
    "torch.save(model.state_dict(), 'weights.pth')."
)
SUFFIXES = (".safetensors", ".pth", ".pt", ".ckpt", ".bin", ".pkl", ".tar", ".zip")
_UNTOLD = ("a Python pickle", "a file of zeros", "a file of an unknown kind")
_WORDS = ("auto", "bundled", "default", "none", "untrained", "")
HEADER_LIMIT = 32 * 2**20
"""Bytes of a safetensors header; those of the largest public models have less than 10 MB."""


@dataclass(frozen=True)
class Checkpoint:
    """Weights of the user's own, read.

    Attributes:
        content: What the file holds.
        name: The file's name, or "state dict".
    """

    content: Any
    name: str


def open_checkpoint(weights: Any) -> Checkpoint | None:
    """The user's own weights: a file, a state dict, or a file read already; None for others.

    Raises:
        WeightsError: The file cannot be read.
    """
    if isinstance(weights, Checkpoint):
        return weights
    if isinstance(weights, Mapping):
        return Checkpoint(weights, "state dict")
    if is_path(weights):
        path = expanded(weights)
        return Checkpoint(read_checkpoint(path), path.name)
    return None


def is_path(weights: Any) -> bool:
    """Whether weights name a file, not a word such as "auto" or a name of a library's."""
    if not isinstance(weights, str):
        return isinstance(weights, os.PathLike)
    word = weights.strip().lower()
    return (
        word.endswith(SUFFIXES)
        or not {os.sep, "/"}.isdisjoint(weights)
        or weights.startswith("~")
        or (word not in _WORDS and os.path.lexists(weights))
    )


def expanded(path: Any) -> Path:
    """A path with "~" in place of no home folder more.

    Raises:
        WeightsError: There is no such home folder, or the path is made of bytes.
    """
    try:
        return Path(path).expanduser()
    except (RuntimeError, TypeError) as error:
        raise WeightsError(f"The path {path!r} cannot be used: {error}.") from None


def read_checkpoint(path: Path) -> Any:
    """What a checkpoint file holds.

    Args:
        path: A .safetensors, .pth, .pt, .ckpt or .bin file; told by its content.

    Returns:
        For safetensors a dict of tensors; for a PyTorch checkpoint what was saved, made of dicts,
        lists, numbers, strings, tensors and the types of `_harmless`. On the CPU.

    Raises:
        WeightsError: It is missing, no such file, damaged, or holds more than is read. One
            sentence.
    """
    name = path.name or str(path)
    size = _regular_size(path)
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise WeightsError(f"The weights {path} cannot be read: {error.strerror}.") from error
    if head.startswith(b"PK"):
        return _torch_load(path, _check_archive(path))
    if head[8:9] == b"{":
        return _read_safetensors(path, head, size)
    foreign = _foreign(head)
    if foreign:
        remedy = "Fetch the file with 'git lfs pull'." if "Git LFS" in foreign else ACCEPTED
        raise WeightsError(f"{name} is {foreign}, not PyTorch weights.", remedy=remedy)
    if head.startswith(b"\x80"):
        return _torch_load(path, None)
    if path.suffix.lower() == ".safetensors":
        return _read_safetensors(path, head, size)
    raise WeightsError(f"{name} is not a file of PyTorch weights.", remedy=ACCEPTED)


def _regular_size(path: Path) -> int:
    try:
        found = path.stat()
    except FileNotFoundError:
        raise WeightsError(
            f"There is no weights file {path}.", remedy=_alike(path) or ACCEPTED
        ) from None
    except (OSError, ValueError) as error:
        raise WeightsError(f"The weights {path} cannot be read: {error}.") from None
    for wrong, what in (
        (stat.S_ISDIR(found.st_mode), "is a folder, not a file of weights"),
        (not stat.S_ISREG(found.st_mode), "is a device or pipe, not a file of weights"),
        (found.st_size == 0, "is empty (0 bytes)"),
    ):
        if wrong:
            raise WeightsError(f"{path} {what}.", remedy=ACCEPTED)
    return found.st_size


def _alike(path: Path) -> str:
    """Which checkpoints of the same folder have a similar name; "" where none has."""
    try:
        names = [entry.name for entry in itertools.islice(os.scandir(path.parent), 10_000)]
    except OSError:
        return ""
    names = [n for n in names if n.lower().endswith(SUFFIXES) and (path.parent / n).is_file()]
    near = closest(path.name, names)
    return f"In that folder: {', '.join(near)}." if near else ""


def _foreign(head: bytes) -> str:
    """What a file is that is no checkpoint; "" where its first bytes say nothing."""
    if head.startswith(b"GGUF"):
        return "a GGUF file"
    try:  # the first block's checksum: the oldest archives have nothing else to be known by
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError):
        words = file_kind(head).words
        return "" if words in _UNTOLD else words
    return "a tar archive (PyTorch's format before 0.1.10, or another archive)"


def _read_safetensors(path: Path, head: bytes, size: int) -> dict[str, torch.Tensor]:
    length = int.from_bytes(head[:8], "little")
    if HEADER_LIMIT < length <= size:
        raise WeightsError(
            f"{path.name} has a header of {length / 2**20:.0f} MiB; at most "
            f"{HEADER_LIMIT // 2**20} MiB are read."
        )
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError, ValueError, RuntimeError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception, what: str = "damaged or cut off") -> WeightsError:
    return WeightsError(
        f"{path.name} is {what} ({error_text(error)[:160]}).", remedy="Fetch or save it again."
    )


def _check_archive(path: Path) -> str:
    """The entry that says what a checkpoint holds; other zip archives are refused unread."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error) as error:
        raise _damaged(path, error) from error
    tails = {entry.filename.partition("/")[2]: entry.filename for entry in entries}
    if "constants.pkl" in tails or any(tail.startswith("code/") for tail in tails):
        raise WeightsError(
            f"{path.name} is a TorchScript archive: it holds a program, which is not run.",
            remedy="In PyTorch, torch.jit.load it and save its state_dict() with torch.save.",
        )
    if "data.pkl" not in tails:
        program = any(tail.startswith("archive/") or tail.endswith(".model") for tail in tails)
        what = "package of torch.export or torch.package: it holds a program"
        raise WeightsError(
            f"{path.name} is a {what if program else 'zip archive without PyTorch weights'}.",
            remedy=RESAVE if program else ACCEPTED,
        )
    if sum(entry.file_size for entry in entries) > 4 * path.stat().st_size + 2**26:
        # torch stores its entries uncompressed; only a bomb unpacks to many times its size.
        raise WeightsError(f"{path.name} would unpack to many times its size and is refused.")
    return tails["data.pkl"]


# --- what is harmless ---------------------------------------------------------------------------


class _NumpyType:
    """Stands for ``numpy.dtype``, of plain numbers and texts alone.

    numpy's own takes fields, offsets and sizes from the file without checking them: such a dtype
    reads memory that is not its own.
    """

    def __init__(self, code: str, *_: Any) -> None:
        if not re.fullmatch(r"[biufcSU]\d{1,6}|O8", str(code)):
            raise TypeError(f"numpy values of type {str(code)[:20]!r} are not read")
        self.plain = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] in ("<", ">"):  # the order of the bytes; nothing else is taken
            self.plain = self.plain.newbyteorder(state[1])


class _NumpyArray(np.ndarray[Any, Any]):
    """Stands for ``numpy.ndarray``.

    numpy compares the number of bytes with shape and dtype, but not that of Python objects.
    """

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        version, shape, kind, order, values = state
        if isinstance(values, list) and len(values) != math.prod(shape):
            raise ValueError("as many objects as its shape says are not in it")
        super().__setstate__((version, shape, getattr(kind, "plain", kind), order, values))


def _numpy_scalar(kind: Any, value: bytes = b"") -> Any:
    """Stands for ``numpy._core.multiarray.scalar``; numpy checks that the bytes are enough."""
    return np.frombuffer(value, getattr(kind, "plain", kind), 1)[0]


class _Mapping:
    """Stands for a class that is a dict with other access: read as what it holds."""

    def __new__(cls, *_: Any) -> Any:
        return collections.OrderedDict()


def _harmless() -> dict[str, Any]:
    """What is read beside torch's own list, by the name that a file gives it.

    None of it opens, starts or imports anything, and none changes anything outside of the new
    object. Enums are not among it: what a file sets on a member, it sets for the whole process.
    """
    # Constructors of values that copy what they are given.
    plain = [bool, dict, float, frozenset, int, list, slice, str, tuple, decimal.Decimal, uuid.UUID]
    times = [dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone]
    # Attributes alone: what training scripts parse their arguments into.
    spaces = [argparse.Namespace, types.SimpleNamespace]
    # TorchVersion is text that compares versions.
    kinds = [*plain, *times, *spaces, TorchVersion]
    own: dict[str, Any] = {f"{kind.__module__}.{kind.__name__}": kind for kind in kinds}
    # bytes() makes as many as a file asks for; empty ones are written so.
    own["builtins.bytes"] = lambda: b""
    own["collections.deque"] = lambda *_: []  # torch fills no sequences but lists
    # Text in parts; no file is looked at. The other system's paths cannot be made here, so they
    # become pure ones. Python 3.13 calls the module pathlib._local.
    posix, windows = pathlib.PurePosixPath, pathlib.PureWindowsPath
    paths: dict[str, Any] = {"PurePosixPath": posix, "PureWindowsPath": windows}
    paths |= {"PosixPath": posix, "WindowsPath": windows, type(Path()).__name__: type(Path())}
    for place in ("pathlib", "pathlib._local"):
        own |= {f"{place}.{name}": kind for name, kind in paths.items()}
    for core in ("numpy._core.multiarray", "numpy.core.multiarray"):  # numpy 2 and 1
        own[f"{core}.scalar"] = _numpy_scalar
        own[f"{core}._reconstruct"] = lambda *_: np.ndarray.__new__(_NumpyArray, (0,), "b")
    own |= {"numpy.dtype": _NumpyType, "numpy.ndarray": _NumpyArray}
    # Dicts in all but name, of which torch would fill none but its own.
    lightning = ["pytorch_lightning.utilities.parsing", "lightning.pytorch.utilities.parsing",
                 "lightning.fabric.utilities.data", "lightning_fabric.utilities.data"]  # fmt: skip
    names = ["collections.defaultdict", "easydict.EasyDict", "yacs.config.CfgNode"]
    return own | dict.fromkeys([*names, *(f"{p}.AttributeDict" for p in lightning)], _Mapping)


_LOADING = threading.Lock()
"""torch's list of safe types belongs to the process: one load at a time adds to it and takes off
again what it added."""


def _safe_load(file: BinaryIO) -> Any:
    with _LOADING:
        theirs = {
            entry[1] if isinstance(entry, tuple) else f"{entry.__module__}.{entry.__qualname__}"
            for entry in torch.serialization.get_safe_globals()
        }
        ours: list[Any] = [(kind, name) for name, kind in _harmless().items() if name not in theirs]
        with torch.serialization.safe_globals(ours):
            # The open file, not its path: by a path's suffix torch guesses safetensors.
            return torch.load(file, map_location="cpu", weights_only=True)


@contextmanager
def _pickle_of(path: Path, entry: str | None) -> Iterator[IO[bytes]]:
    """The pickle that says what a checkpoint holds: the file's beginning, or an archive's entry."""
    with path.open("rb") as file:
        if entry is None:
            yield file
        else:
            with zipfile.ZipFile(file) as archive, archive.open(entry) as pickled:
                yield pickled


def _torch_load(path: Path, entry: str | None) -> Any:
    try:
        with _pickle_of(path, entry) as pickled:
            start = pickled.read(2)
        if start[:1] != b"\x80" or start[1:] in (b"\x02", b""):
            with path.open("rb") as file:
                return _safe_load(file)
    except MemoryError:
        raise WeightsError(f"{path.name} does not fit into memory.") from None
    except Exception as error:
        raise _explained(path, entry, error) from error
    raise WeightsError(
        f"{path.name} is written with pickle's protocol {start[1]}; protocol 2, which "
        "torch.save takes by itself, is the one that is read safely.",
        remedy=_rescue(path),
        code="not-plain-weights",
    )


def _explained(path: Path, entry: str | None, error: Exception) -> WeightsError:
    text = str(error)
    found = re.search(r"GLOBAL ([\w.]+)|function <[\w ]* '?([\w.]+)|class '([\w.]+)'", text)
    read = "only tensors, plain values and a list of harmless types are read"
    if found is None and not ("not read" in text or "Weights only load failed" in text):
        return _damaged(path, error, "damaged, cut off or no PyTorch file")
    name = next((group for group in found.groups() if group), "") if found else ""
    name = _of_python_3(name)
    uses = _uses(path, entry)
    full = next((n for n in uses if n == name or n.endswith(f".{name}")), name)
    module, _, short = full.rpartition(".")
    thing: Any = sys.modules.get(module)
    thing = getattr(thing, short, None)
    if found is None and "not read" in text:
        what = f"holds {text.removesuffix(' are not read')}; {read}"
    elif uses.get(full) == "calls" and callable(thing) and not isinstance(thing, type):
        what = f"calls the function {name}: reading it would run code, so it is refused"
    else:
        what = f"{uses.get(full, 'holds')} {name or 'more than tensors'}; {read}"
    return WeightsError(f"{path.name} {what}.", remedy=_rescue(path), code="not-plain-weights")


def _of_python_3(name: str) -> str:
    """A name as Python 3 has it: protocol 2 has that of Python 2, releases of torch say either."""
    return re.sub(r"^__builtin__\b", "builtins", name)


def _uses(path: Path, entry: str | None) -> dict[str, str]:
    """What a checkpoint does with each class or function that it names.

    Returns:
        By name: "calls", "holds an object of the class" or "refers to"; as far as it can be
        followed.
    """
    uses: dict[str, str] = {}
    # Older files: three small pickles go before. What was seen of a damaged one is enough.
    with suppress(Exception), _pickle_of(path, entry) as pickled:
        for _ in range(1 if entry else 4):
            _follow(pickled, uses)
    return uses


def _follow(content: Any, uses: dict[str, str]) -> None:
    mark = object()
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name == "GLOBAL":
            stack.append(_of_python_3(str(argument).replace(" ", ".")))
            uses.setdefault(stack[-1], "refers to")
        elif opcode.name.endswith("PUT"):
            memo[argument] = stack[-1]
        elif opcode.name.endswith("GET"):
            stack.append(memo.get(argument))
        elif opcode.name == "MARK":
            stack.append(mark)
        else:
            before = [item.name for item in opcode.stack_before]
            if "mark" in before:
                while stack.pop() is not mark:
                    pass
                before = before[: before.index("mark")]
            taken = stack[len(stack) - len(before) :]
            del stack[len(stack) - len(before) :]
            how = {"REDUCE": "calls", "NEWOBJ": "holds an object of the class"}
            if opcode.name in how and isinstance(taken[0], str):
                uses[taken[0]] = how[opcode.name]
            stack += [None] * len(opcode.stack_after)


def _rescue(path: Path) -> str:
    """How to get the weights out of a file that is not read, where it is trusted."""
    return (
        f"{RESAVE} Or, if you trust the file, where its classes can be imported: import torch; "
        f"c = torch.load({path.name!r}, map_location='cpu', weights_only=False); "
        "c = c if isinstance(c, dict) else {'model': c}; "
        "c = {k: v.state_dict() if hasattr(v, 'state_dict') else v for k, v in c.items()}; "
        "t = torch.is_tensor; torch.save({k: v for k, v in c.items() if t(v) or isinstance(v, "
        "dict) and all(map(t, v.values()))}, 'weights.pth')"
    )
