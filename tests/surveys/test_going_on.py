"""Killed at any moment and run again, in parts, beside another: the same to the last bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hookviz
from hookviz.errors import RunCancelled, SurveyError
from hookviz.images import Preprocessing
from hookviz.surveys._files import TensorFile

from .conftest import LAYERS, Begin, digest, small_net, write_images

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven images, one of them no image."""
    folder = tmp_path_factory.mktemp("few")
    paths = write_images(folder, 7, seed=1)
    paths[4].write_bytes(paths[4].read_bytes()[:60])
    return folder


def in_a_fork(work: Callable[[], Any], kill_after: float | None = None) -> int:
    """Runs in a child process; returns its exit status, negative where a signal ended it."""
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)  # threads do not survive a fork
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - no test may go on in the child
            os._exit(1)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def make(begin: Begin, data: Path, out: Path) -> Callable[[], hookviz.Survey]:
    return lambda: begin(data, out, layers=LAYERS[:1], shard=5, top=2, bad_limit=0.5)


@forks
def test_killed_at_every_step_of_a_commit(begin: Begin, few: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    assert in_a_fork(make(begin, few, whole)) == 0
    expected = digest(whole)
    sync, end = os.fsync, TensorFile.close

    def dying(at: int) -> Callable[[], hookviz.Survey]:
        steps = iter(range(1000))

        def work() -> hookviz.Survey:
            def fsync(number: int) -> None:
                for act in (lambda: None, lambda: sync(number)):
                    act()
                    if next(steps) == at:  # before the disk has it, and after
                        os.kill(os.getpid(), signal.SIGKILL)

            def close(file: TensorFile, metadata: Any) -> None:
                if next(steps) == at:  # in the middle of a file
                    os.kill(os.getpid(), signal.SIGKILL)
                end(file, metadata)

            os.fsync = fsync  # type: ignore[assignment]
            TensorFile.close = close  # type: ignore[method-assign]
            return make(begin, few, tmp_path / f"{at}")()

        return work

    for at in range(1000):
        status = in_a_fork(dying(at))
        if status == 0:
            break
        assert status == -signal.SIGKILL
        assert in_a_fork(make(begin, few, tmp_path / f"{at}")) == 0
        assert digest(tmp_path / f"{at}") == expected, at
        assert not list((tmp_path / f"{at}").rglob("*.part"))
    assert at > 25  # plan, manifest, shards, summary, crops: file and folder, before and after


@forks
def test_killed_at_random_times(begin: Begin, few: Path, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    began = time.perf_counter()
    assert in_a_fork(make(begin, few, whole)) == 0
    took = time.perf_counter() - began
    chance = random.Random(3)  # noqa: S311
    killed = sum(
        in_a_fork(make(begin, few, out), chance.random() * took) == -signal.SIGKILL
        for _ in range(8)
    )
    assert in_a_fork(make(begin, few, out)) == 0
    assert killed
    assert digest(out) == digest(whole)


def test_parts_are_the_whole(begin: Begin, photos: Path, tmp_path: Path) -> None:
    begin(photos, tmp_path / "whole")
    for part in ("3/3", "1/3", "2/3"):
        found = begin(photos, tmp_path / "parts", part=part)
        assert found.complete == (part == "2/3")
    assert digest(tmp_path / "parts") == digest(tmp_path / "whole")
    assert found.top("conv", 0)[0].crop is not None


def test_worker_processes_change_nothing(begin: Begin, photos: Path, tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    begin(photos, tmp_path / "none")
    begin(photos, tmp_path / "two", workers=2)
    assert digest(tmp_path / "two") == digest(tmp_path / "none")
    assert torch.equal(torch.random.get_rng_state(), state)


def test_cancelled_and_gone_on_with(begin: Begin, photos: Path, tmp_path: Path) -> None:
    begin(photos, tmp_path / "whole")
    told: list[Any] = []
    with pytest.raises(RunCancelled, match="2 of 4 shards are kept"):
        begin(photos, tmp_path / "out", progress=told.append, cancelled=lambda: len(told) >= 2)
    assert [one.shards_done for one in told] == [1, 2]
    half = hookviz.open_survey(tmp_path / "out")
    assert not half.complete
    assert half.statistics("conv").images == 12
    assert half.top("conv", 0)[0].crop is None
    assert "2 of 4 shards" in half.notes[0]
    begin(photos, tmp_path / "out", progress=told.append)
    assert [one.shards_done for one in told[2:]] == [3, 4]
    assert told[-1].images_done == told[-1].images == 21
    assert told[-1].seconds_left == 0
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")


def test_what_is_complete_is_not_made_again(begin: Begin, photos: Path, tmp_path: Path) -> None:
    begin(photos, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    begin(photos, tmp_path, progress=pytest.fail)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 2}, "another value of batch: 3 then, 2 now"),
        ({"top": 2}, "top: 4 then, 2 now"),
        ({"keep": "whole"}, "keep: 'pooled' then, 'whole' now"),
        ({"layers": ["fc"]}, "the layers: conv, relu, fc then, fc now"),
        ({"preprocess": Preprocessing(crop=(20, 20), fit="squash")}, "the preprocessing"),
    ],
)
def test_a_survey_begun_otherwise_is_refused(
    begin: Begin, photos: Path, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    begin(photos, tmp_path)
    before = digest(tmp_path)
    with pytest.raises(SurveyError, match=words):
        begin(photos, tmp_path, **change)
    assert digest(tmp_path) == before


def test_other_weights_or_another_way_to_read_are_refused(
    begin: Begin, photos: Path, tmp_path: Path
) -> None:
    own = small_net()

    def brighter(image: Any) -> torch.Tensor:
        return Preprocessing(crop=(24, 24), fit="squash")(image) + brighter.by  # type: ignore[attr-defined]

    brighter.by = 0.0  # type: ignore[attr-defined]
    begin(photos, tmp_path, model=own, preprocess=brighter)
    brighter.by = 0.1  # type: ignore[attr-defined]
    with pytest.raises(SurveyError, match="what the network is fed for the same image"):
        begin(photos, tmp_path, model=own, preprocess=brighter)
    with torch.no_grad():
        own.conv.weight[0, 0, 0, 0] += 1e-3
    with pytest.raises(SurveyError, match="the model's weights"):
        begin(photos, tmp_path, model=own, preprocess=brighter)


def test_new_images_are_added_where_that_is_asked(begin: Begin, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    write_images(data, 8)
    begin(data, out)
    (data / "aaa").mkdir()
    added = write_images(data / "aaa", 5, seed=2)
    with pytest.raises(SurveyError, match=r"5 images .* lacks.*extend=True"):
        begin(data, out)
    found = begin(data, out, extend=True)
    assert found.complete
    assert found.statistics("conv").images == 13
    assert {row.name for row in found.images[8:]} == {p.relative_to(data).as_posix() for p in added}
    assert begin(data, out).images == found.images


def test_two_writers(begin: Begin, photos: Path, tmp_path: Path) -> None:
    def another(**changes: Any) -> None:
        for folder in (photos,):
            begin(folder, tmp_path, **changes)

    said: list[str] = []

    def in_between(_progress: Any) -> None:
        for changes in ({}, {"part": "1/2"}):
            with pytest.raises(SurveyError) as caught:
                another(**changes)
            said.append(caught.value.message)

    begin(photos, tmp_path, progress=in_between)
    assert len(said) == 8
    assert all("Another process writes to the survey" in one for one in said)
    another()


def test_another_process_is_refused_too(begin: Begin, photos: Path, tmp_path: Path) -> None:
    code = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('locked', flush=True); time.sleep(60)"
    )
    begin(photos, tmp_path)
    command = [sys.executable, "-c", code, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(SurveyError, match="Another process writes"):
            begin(photos, tmp_path)
        other.kill()
    begin(photos, tmp_path)
