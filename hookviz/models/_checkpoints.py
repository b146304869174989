"""A checkpoint file, read without ever running what it says.

In: a path. Out: plain containers and tensors on the CPU. Must not know: models.

``torch.load(weights_only=True)`` or safetensors, nothing else. What the file is gets told from its
first bytes, so that a web page or a Keras file is named as such.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import tarfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from hookviz.errors import WeightsError

__all__ = ["ACCEPTED", "read_checkpoint"]

ACCEPTED = "Accepted are .safetensors files and PyTorch checkpoints (.pth, .pt, .ckpt, .bin)."
RESAVE = (
    "In the program that made it, save the weights alone: "
    "torch.save(model.state_dict(), 'weights.pth')."
)
HEADER_LIMIT = 32 * 2**20
"""Bytes of a safetensors header; those of the largest public models have less than 10 MB."""

# First bytes of files that people pass by mistake, and what to call them.
_OTHERS = (
    (b"\x89HDF\r\n\x1a\n", "a Keras or HDF5 file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x1f\x8b", "a gzip archive: unpack it first"),
    (b"BZh", "a bzip2 archive: unpack it first"),
    (b"7z\xbc\xaf", "a 7z archive: unpack it first"),
    (b"version https://git-lfs", "a pointer of Git LFS, not the weights: run 'git lfs pull'"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"%PDF", "a PDF"),
    (b"GGUF", "a GGUF file"),
    (b"\x7fELF", "a program"),
)


def read_checkpoint(path: Path) -> Any:
    """What a checkpoint file holds.

    Args:
        path: A .safetensors, .pth, .pt, .ckpt or .bin file; told by its content.

    Returns:
        For safetensors a dict of tensors; for a PyTorch checkpoint what was saved, made of dicts,
        lists, numbers, strings and tensors. On the CPU.

    Raises:
        WeightsError: It is missing, no such file, damaged, or would run code. One sentence.
    """
    name = path.name or str(path)
    size = _regular_size(path)
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        raise WeightsError(f"The weights {path} cannot be read: {error.strerror}.") from error
    if head.startswith(b"PK"):
        _check_archive(path)
        return _torch_load(path)
    if head[8:9] == b"{":
        return _read_safetensors(path, head, size)
    foreign = _foreign(head)
    if foreign:
        raise WeightsError(f"{name} is {foreign}, not PyTorch weights.", remedy=ACCEPTED)
    if head.startswith(b"\x80"):
        return _torch_load(path)
    if path.suffix.lower() == ".safetensors":
        return _read_safetensors(path, head, size)
    raise WeightsError(f"{name} is not a file of PyTorch weights.", remedy=ACCEPTED)


def _regular_size(path: Path) -> int:
    try:
        found = path.stat()
    except FileNotFoundError:
        raise WeightsError(f"There is no weights file {path}.", remedy=ACCEPTED) from None
    except (OSError, ValueError) as error:
        raise WeightsError(f"The weights {path} cannot be read: {error}.") from None
    if stat.S_ISDIR(found.st_mode):
        raise WeightsError(f"{path} is a folder, not a file of weights.", remedy=ACCEPTED)
    if not stat.S_ISREG(found.st_mode):
        raise WeightsError(f"{path} is a device or pipe, not a file of weights.", remedy=ACCEPTED)
    if found.st_size == 0:
        raise WeightsError(f"{path.name} is empty (0 bytes).", remedy=ACCEPTED)
    return found.st_size


def _foreign(head: bytes) -> str:
    """What a file is that is no checkpoint; "" where its first bytes say nothing."""
    for magic, what in _OTHERS:
        if head.startswith(magic):
            return what
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<body")):
        return "a web page (HTML): the download went to a login or error page"
    if text.startswith((b"<?xml", b"<")):
        return "XML text"
    if text.startswith((b"{", b"[")):
        return "JSON text"
    if head[257:262] == b"ustar" or _is_tar(head):
        return "a tar archive (PyTorch's format before 0.1.10, or another archive)"
    printable = sum(byte in b"\t\r\n" or 32 <= byte < 127 for byte in head)
    return "a text file" if printable == len(head) else ""


def _is_tar(head: bytes) -> bool:
    """Whether a tar archive's first block has the right checksum (oldest ones have no magic)."""
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError):
        return False
    return True


def _read_safetensors(path: Path, head: bytes, size: int) -> dict[str, torch.Tensor]:
    length = struct.unpack("<Q", head[:8])[0] if len(head) >= 8 else size + 1
    if length + 8 > size:
        raise WeightsError(
            f"{path.name} is damaged or cut off: its header says more than it holds."
        )
    if length > HEADER_LIMIT:
        raise WeightsError(
            f"{path.name} has a header of {length / 2**20:.0f} MiB; at most "
            f"{HEADER_LIMIT // 2**20} MiB are read."
        )
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError, ValueError, RuntimeError, TypeError, AttributeError) as error:
        raise WeightsError(
            f"{path.name} is damaged or cut off ({_first_line(error)}).",
            remedy="Fetch it again.",
        ) from error


def _check_archive(path: Path) -> None:
    """Refuse zip archives that are no plain checkpoint before torch reads them."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error) as error:
        raise WeightsError(
            f"{path.name} is damaged or cut off ({_first_line(error)}).", remedy="Fetch it again."
        ) from error
    tails = {entry.filename.partition("/")[2] for entry in entries}
    if "constants.pkl" in tails or any(tail.startswith("code/") for tail in tails):
        raise WeightsError(
            f"{path.name} is a TorchScript archive: it holds a program, which is not run.",
            remedy="In PyTorch, torch.jit.load it and save its state_dict() with torch.save.",
        )
    if any(tail.startswith("archive/") or tail.endswith(".model") for tail in tails) and (
        "data.pkl" not in tails
    ):
        raise WeightsError(
            f"{path.name} is a package of torch.export or torch.package: it holds a program.",
            remedy=RESAVE,
        )
    if "data.pkl" not in tails:
        raise WeightsError(
            f"{path.name} is a zip archive without PyTorch weights.", remedy=ACCEPTED
        )
    if sum(entry.file_size for entry in entries) > 4 * os.path.getsize(path) + 2**26:  # noqa: PTH202 - one stat
        # torch stores its entries uncompressed; only a bomb unpacks to many times its size.
        raise WeightsError(f"{path.name} would unpack to many times its size and is refused.")


def _torch_load(path: Path) -> Any:
    try:
        with warnings.catch_warnings(), path.open("rb") as file:
            # Old storages and archives are warned about; the user can do nothing with that.
            warnings.simplefilter("ignore")
            # The open file, not its path: by a path's suffix torch guesses safetensors.
            return torch.load(file, map_location="cpu", weights_only=True)
    except MemoryError:
        raise WeightsError(f"{path.name} does not fit into memory.") from None
    except Exception as error:
        raise _explained(path, error) from error


def _explained(path: Path, error: Exception) -> WeightsError:
    text = str(error)
    found = re.search(r"GLOBAL ([\w.]+)|global ([\w.]+)|class '([\w.]+)'", text)
    if "weights_only" in text.lower() or "Weights only load failed" in text or found:
        thing = next((group for group in found.groups() if group), "") if found else ""
        what = f"the Python object {thing}" if thing else "more than tensors"
        return WeightsError(
            f"{path.name} holds {what}; reading it would run code from the file, so it is refused.",
            remedy=RESAVE,
        )
    return WeightsError(
        f"{path.name} is damaged, cut off or no PyTorch file ({_first_line(error)}).",
        remedy="Fetch or save it again.",
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:160]
