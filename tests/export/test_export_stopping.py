"""Exports that do not reach their end: cancelled, failed, killed."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from hookviz.activation import Activation
from hookviz.errors import ExportError, RunCancelled
from hookviz.export import (
    ExportCancelled,
    ExportStopped,
    RunFacts,
    draw_activation,
    write_export,
)
from hookviz.export import (
    _folder as files,
)
from hookviz.export._folder import PART_NAME

Make = Callable[..., Activation]
EVERYTHING = {"grids", "channels", "values", "contact", "input"}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def whole(path: Path) -> bool:
    with Image.open(path) as image:
        image.load()
    return True


@pytest.fixture
def activations(record: Make) -> list[Activation]:
    return [record(f"layer{n}", torch.rand(1, 3, 4, 4), order=n) for n in (1, 2, 3)]


@pytest.mark.parametrize("after", [0, 1, 2, 5, 9, 13, 20])
def test_a_cancelled_export_says_what_was_finished(
    tmp_path: Path, facts: RunFacts, activations: list[Activation], after: int
) -> None:
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > after

    out = tmp_path / "out"
    with pytest.raises(ExportCancelled) as caught:
        write_export(facts, activations, out, what=EVERYTHING, cancelled=cancelled)
    stopped = caught.value
    assert isinstance(stopped, RunCancelled)
    assert isinstance(stopped, ExportError)
    assert "cancelled" in str(stopped)
    if not stopped.files:
        assert "no file was finished" in str(stopped) or "before its first file" in str(stopped)
        assert stopped.folder is None
        assert not out.exists() or names(out) == set()
        return
    assert stopped.folder is not None
    there = names(stopped.folder)
    assert there == {path.name for path in stopped.files} | {"manifest.json"}
    assert f"{len(stopped.files)} of 17 files" in str(stopped)
    assert str(stopped.folder) in str(stopped)
    assert all(whole(path) for path in stopped.files if path.suffix == ".png")
    manifest = json.loads((stopped.folder / "manifest.json").read_text())
    assert manifest["complete"] is False
    assert "cancelled" in manifest["stopped"]
    assert set(manifest["files"]) == there - {"manifest.json"}
    assert not [t for t in threading.enumerate() if t.name.startswith("hookviz-export")]


@pytest.mark.parametrize("form", ["npz", "safetensors"])
def test_values_are_cancelled_between_files(
    tmp_path: Path, facts: RunFacts, activations: list[Activation], form: str
) -> None:
    seen: list[str] = []
    with pytest.raises(ExportCancelled, match="1 of 3 files were finished") as caught:
        write_export(
            facts,
            activations,
            tmp_path,
            what="values",
            values=form,
            progress=lambda done, total, name: seen.append(name),
            cancelled=lambda: bool(seen),
        )
    assert [path.name for path in caught.value.files] == seen


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit, ZeroDivisionError])
def test_whatever_ends_an_export_its_files_are_listed_and_no_thread_stays(
    tmp_path: Path,
    facts: RunFacts,
    activations: list[Activation],
    ending: type[BaseException],
) -> None:
    def progress(done: int, total: int, name: str) -> None:
        if done == 2:
            raise ending

    with pytest.raises(ending):
        write_export(facts, activations, tmp_path, what="channels", progress=progress)
    (folder,) = tmp_path.iterdir()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert ending.__name__ in manifest["stopped"]
    assert set(manifest["files"]) == names(folder) - {"manifest.json"}
    assert len(manifest["files"]) >= 2
    assert not [t for t in threading.enumerate() if t.name.startswith("hookviz-export")]


def test_a_full_disk_is_one_sentence_and_leaves_whole_files(
    small_disk: Path, facts: RunFacts, record: Make
) -> None:
    activations = [record(f"l{n}", torch.rand(1, 64, 16, 16), order=n) for n in (1, 2, 3)]
    with pytest.raises(ExportStopped) as caught:
        write_export(facts, activations, small_disk, what={"channels", "grids"})
    text = str(caught.value)
    assert "the disk is full" in text
    assert "were finished" in text or "no file was finished" in text
    assert "\n" not in text
    assert not isinstance(caught.value, RunCancelled)
    for folder in small_disk.iterdir():
        for path in folder.iterdir():
            assert not PART_NAME.fullmatch(path.name)
            if path.suffix == ".png":
                assert whole(path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("at", [1, 4, 17])
def test_a_failing_write_anywhere_ends_the_export_cleanly(
    tmp_path: Path,
    facts: RunFacts,
    activations: list[Activation],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    at: int,
) -> None:
    calls = 0
    lock = threading.Lock()

    def replace(part: Path, target: Path) -> None:
        nonlocal calls
        with lock:
            calls += 1
            if calls >= at:
                raise OSError(number, os.strerror(number))
        part.replace(target)

    whole_file = files.whole_file
    monkeypatch.setattr(files, "whole_file", lambda target: whole_file(target, replace))
    with pytest.raises(ExportStopped) as caught:
        write_export(facts, activations, tmp_path, what=EVERYTHING)
    assert len(caught.value.files) == at - 1
    left = {path.name for path in caught.value.files}
    assert left == (names(caught.value.folder) if caught.value.folder else set())
    assert names(tmp_path) == ({caught.value.folder.name} if caught.value.folder else set())


def test_a_fault_in_drawing_leaves_no_empty_folder(
    tmp_path: Path,
    facts: RunFacts,
    activations: list[Activation],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_arguments: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("hookviz.export._figures.grid_page", fail)
    with pytest.raises(MemoryError):
        write_export(facts, activations, tmp_path)
    assert names(tmp_path) == set()


def test_a_fault_in_the_callers_progress_reaches_the_caller(
    tmp_path: Path, facts: RunFacts, activations: list[Activation]
) -> None:
    def progress(done: int, total: int, name: str) -> None:
        raise ZeroDivisionError(name)

    with pytest.raises(ZeroDivisionError):
        write_export(facts, activations, tmp_path, progress=progress)
    assert not any(PART_NAME.fullmatch(p.name) for p in tmp_path.rglob("*"))


@pytest.mark.parametrize("parent", ["file", "file/sub", "x" * 300])
def test_a_folder_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, facts: RunFacts, activations: list[Activation], parent: str
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError) as caught:
        write_export(facts, activations, tmp_path / parent)
    assert "Nothing can be written" in str(caught.value)
    assert names(tmp_path) == {"file"}


_CHILD = """
import os, signal, sys, threading
from datetime import UTC, datetime
import torch
from hookviz.activation import Activation
from hookviz.export import RunFacts, write_export
from hookviz.render import GridOptions
facts = RunFacts("m", "w", "h", True, "i.png", "s", "p", "cpu", "float32", "2", "0.1.0",
                 datetime.now(UTC))
activations = [
    Activation(f"l{n}", 1, 1, 1, n, "output", "", "Conv2d", torch.rand(1, 512, 64, 64))
    for n in range(1, 9)
]
def progress(done, total, name):
    if done == 40:  # … and then somewhere in the middle of a file
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGKILL)).start()
write_export(facts, activations, sys.argv[1], what={"channels", "grids", "values"},
             progress=progress)
print("all", flush=True)
"""


def test_a_killed_export_leaves_no_half_png_and_no_manifest(tmp_path: Path, fresh_python) -> None:
    out = tmp_path / "out"
    out.mkdir()
    done = fresh_python.run(_CHILD, str(out), cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "all" not in done.stdout, "the export ended before it could be killed"
    (folder,) = out.iterdir()
    there = list(folder.iterdir())
    pngs = [path for path in there if path.suffix == ".png"]
    assert len(pngs) >= 40
    assert all(whole(path) for path in pngs)
    assert not (folder / "manifest.json").exists()
    others = [path for path in there if path.suffix not in {".png", ".npz"}]
    assert all(PART_NAME.fullmatch(path.name) for path in others)


def test_two_exports_at_once_do_not_meet(
    tmp_path: Path, facts: RunFacts, activations: list[Activation]
) -> None:
    # Matplotlib is warmed up first, so that the threads meet in the export.
    draw_activation(facts, activations[0], files_options())
    results = []

    def work() -> None:
        results.append(write_export(facts, activations, tmp_path, what={"channels", "values"}))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({result.folder for result in results}) == 4
    assert all(len(names(result.folder)) == 13 for result in results)


def files_options():
    from hookviz.render import GridOptions

    return GridOptions(style="light")
