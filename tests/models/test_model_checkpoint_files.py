"""Files of weights, good and hostile: read safely or refused in one sentence."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import tarfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hookviz.errors import WeightsError
from hookviz.models import load_model
from hookviz.models._checkpoint import HEADER_LIMIT, read_checkpoint

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2)}


def refusal(path: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        read_checkpoint(path)
    text = str(caught.value)
    assert "\n" not in text
    assert path.name in text
    return text


@pytest.mark.parametrize("name", ["w.pth", "w.pt", "w.ckpt", "w.bin", "w", "w.safetensors.pth"])
@pytest.mark.parametrize("zipped", [True, False])
def test_torch_files_are_told_by_content(tmp_path: Path, name: str, zipped: bool) -> None:
    torch.save(
        {"state_dict": STATE, "epoch": 3}, tmp_path / name, _use_new_zipfile_serialization=zipped
    )
    content = read_checkpoint(tmp_path / name)
    assert content["epoch"] == 3
    assert torch.equal(content["state_dict"]["a.weight"], STATE["a.weight"])


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth", "w"])
def test_safetensors_are_told_by_content(tmp_path: Path, name: str) -> None:
    save_file(STATE, tmp_path / name)
    assert torch.equal(read_checkpoint(tmp_path / name)["a.weight"], STATE["a.weight"])


def test_a_zip_checkpoint_named_safetensors_is_read_for_what_it_is(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "w.safetensors")
    assert torch.equal(read_checkpoint(tmp_path / "w.safetensors")["a.bias"], STATE["a.bias"])


# --- nothing is unpickled -----------------------------------------------------------------------


def test_a_malicious_pickle_writes_nothing(tmp_path: Path, malicious: Any) -> None:
    body, trace = malicious
    path = tmp_path / "evil.pth"
    path.write_bytes(body)
    for _ in range(2):
        text = refusal(path)
        assert "would run code" in text
        assert "torch.save(model.state_dict()" in text
    with pytest.raises(WeightsError):
        load_model("resnet18", weights=path)
    assert not trace.exists()
    torch.load(path, weights_only=False)  # the same file, read carelessly, does write
    assert trace.read_text() == "ran"


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_bare_pickle_writes_nothing(tmp_path: Path, protocol: int) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "made"),))

    path = tmp_path / "evil.pkl"
    path.write_bytes(pickle.dumps({"w": Evil()}, protocol=protocol))
    refusal(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickled_module_is_refused_with_what_to_do(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "whole.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(nn.Linear(2, 2), path, _use_new_zipfile_serialization=zipped)
    text = refusal(path)
    assert "torch.nn.modules.linear.Linear" in text
    assert "torch.save(model.state_dict()" in text


def test_torchscript_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "script.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(nn.Linear(2, 2)).save(str(path))
    assert "TorchScript" in refusal(path)


def test_an_exported_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),)), path)
    assert "program" in refusal(path)


# --- what is no checkpoint ----------------------------------------------------------------------


def _tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("storages", "tensors", "pickle"):
            info = tarfile.TarInfo(name)
            info.size = 3
            archive.addfile(info, io.BytesIO(b"abc"))
    return buffer.getvalue()


def _old_tar() -> bytes:
    """A tar archive as before 1988: without "ustar" in its header."""
    block = bytearray(tarfile.TarInfo("storages").tobuf(tarfile.USTAR_FORMAT))
    block[257:265] = bytes(8)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + bytes(4096)


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("photo.txt", "hello")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "is empty (0 bytes)"),
        (b"\n<!DOCTYPE html><html>Not found</html>", "an HTML page"),
        (b"<HTML><body>Sign in", "an HTML page"),
        (b"<?xml version='1.0'?><Error>AccessDenied</Error>", "an XML file"),
        (b'{"message": "Not Found"}', "a JSON text"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
        (b"Entry not found", "a text"),
        (b"\x89HDF\r\n\x1a\n" + bytes(90), "an HDF5 file"),
        (b"\x93NUMPY\x01\x00v", "NumPy"),
        (b"\x1f\x8b\x08" + bytes(30), "gzip"),
        (b"\x89PNG\r\n\x1a\n" + bytes(30), "a PNG image"),
        (b"GGUF" + bytes(40), "GGUF"),
        (_tar(), "a tar archive"),
        (_old_tar(), "a tar archive"),
        (_zip(), "a zip archive without PyTorch weights"),
        (bytes(1000), "not a file of PyTorch weights"),
        (b"\x08\x07\x12\x07pytorch" + bytes(99), "not a file of PyTorch weights"),
        (b"\x80", "damaged, cut off or no PyTorch file"),
        (b"\x80\x02.", "damaged, cut off or no PyTorch file"),
        (b"PK\x03\x04", "damaged or cut off"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value,  # an archive's bytes hold the time
)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_other_files_are_named_for_what_they_are(
    tmp_path: Path, body: bytes, said: str, suffix: str
) -> None:
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(body)
    text = refusal(path)
    assert said in text or (suffix == ".safetensors" and "damaged or cut off" in text)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert "There is no weights file" in refusal(tmp_path / "none.pth")
    assert "is a folder" in refusal(tmp_path)


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pth")
    assert "device or pipe" in refusal(tmp_path / "pipe.pth")


def test_a_name_that_no_system_takes(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="cannot be read"):
        read_checkpoint(tmp_path / "a\0b.pth")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("kind", ["zip", "legacy", "safetensors"])
def test_a_file_cut_off(tmp_path: Path, kind: str, share: float) -> None:
    path = tmp_path / "w.pth"
    if kind == "safetensors":
        save_file(STATE, path)
    else:
        torch.save(STATE, path, _use_new_zipfile_serialization=kind == "zip")
    body = path.read_bytes()
    path.write_bytes(body[: int(len(body) * share)])
    assert "damaged" in refusal(path)


def test_any_flipped_byte_ends_in_weights_or_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    made = unnamed = 0
    for zipped in (True, False):
        torch.save(
            {"state_dict": STATE, "n": [1, "x"]}, path, _use_new_zipfile_serialization=zipped
        )
        body = path.read_bytes()
        for at in range(0, len(body), 7):
            flipped = bytearray(body)
            flipped[at] ^= 0x5A
            path.write_bytes(bytes(flipped))
            try:
                read_checkpoint(path)
            except WeightsError as error:
                unnamed += path.name not in str(error)
            made += 1
    assert made > 200
    assert unnamed == 0


# --- safetensors headers ------------------------------------------------------------------------


def _safetensors(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 10**6) + b"{}" + bytes(50),
        _safetensors(b"{not json"),
        _safetensors({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}),
        _safetensors({"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}}, bytes(4)),
        _safetensors({"w": {"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
        _safetensors({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, bytes(4)),
        _safetensors({"w": 3}),
        _safetensors([1, 2]),
    ],
)
def test_a_hostile_safetensors_header(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(body)
    assert "damaged" in refusal(path)


def test_a_giant_safetensors_header_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", HEADER_LIMIT + 1) + b"{")
        file.truncate(HEADER_LIMIT + 100)
    assert "has a header of 32 MiB" in refusal(path)


def test_a_zip_bomb_is_refused_before_it_unpacks(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/data/0", bytes(2**27))
    assert "many times its size" in refusal(path)


def test_no_warning_reaches_the_user(tmp_path: Path) -> None:
    path = tmp_path / "old.pth"
    torch.save(STATE, path, _use_new_zipfile_serialization=False)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        read_checkpoint(path)
    assert seen == []
