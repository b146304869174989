"""The folder of a training: whole at any time, whatever happens to its writer."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from PIL import Image

import hookviz
from hookviz.cli import cli
from hookviz.errors import MonitorError
from hookviz.monitoring import QUANTITIES, TrainingHistory

from .conftest import Small, batches, train


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingHistory]:
    torch.manual_seed(0)
    model, folder = Small(), tmp_path_factory.mktemp("runs") / "a"
    image = hookviz.sample_image()
    with hookviz.monitor(
        model, ["conv1", "relu"], every=2, stats_every=1, probe=image, out=folder, width=300
    ) as m:
        train(model, batches(4), m.step)
    return folder, m


def same(one: TrainingHistory, other: TrainingHistory) -> None:
    assert one.places() == other.places()
    for place in one.places():
        for name in QUANTITIES:
            if one.has(name, place.layer) and (place.call == 0) == (
                name in ("gradient", "weight", "update")
            ):
                a, b = (
                    h.values(place.layer, name, call=place.call, leaf=place.leaf)
                    for h in (one, other)
                )
                assert a[0].tolist() == b[0].tolist()
                assert a[1].tolist() == b[1].tolist()
    assert one.pictures == other.pictures
    assert one.alerts == other.alerts
    assert one.scalar()[1].tolist() == other.scalar()[1].tolist()


def test_the_folder_says_what_the_monitor_says(written: tuple[Path, TrainingHistory]) -> None:
    folder, m = written
    found = hookviz.open_monitor(folder)
    same(found, m)
    assert found.ended
    assert found.layers == ("conv1", "relu")
    assert {(p.step, p.layer, p.call, p.kind) for p in found.pictures} == {
        (step, *what)
        for step in (0, 2, 4)
        for what in (
            ("conv1", 1, "maps"), ("relu", 1, "maps"), ("relu", 2, "maps"), ("conv1", 0, "filters"),
        )
    }  # fmt: skip
    assert found.picture("relu", call=2, step=2).size == m.picture("relu", call=2, step=2).size


def test_a_folder_is_read_while_it_is_written(small: Small, tmp_path: Path) -> None:
    seen = []
    with hookviz.monitor(small, stats_every=1, out=tmp_path / "a") as m:
        reader = hookviz.open_monitor(tmp_path / "a")

        def after(**numbers: object) -> None:
            m.step(**numbers)
            seen.append((reader.step_number, len(reader.values("fc", "mean")[0]), reader.state))

        train(small, batches(3), after)
    assert seen == [(1, 1, "running"), (2, 2, "running"), (3, 3, "running")]
    assert reader.state == "ended"
    same(reader, m)


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_a_record_that_was_cut_is_none(
    written: tuple[Path, TrainingHistory], tmp_path: Path, cut: int
) -> None:
    folder, _ = written
    (tmp_path / "monitor.json").write_bytes((folder / "monitor.json").read_bytes())
    whole = (folder / "records.jsonl").read_bytes()
    steps = [n for n, line in enumerate(whole.splitlines()) if json.loads(line)["kind"] == "step"]
    lines = whole.splitlines(keepends=True)[: steps[-1] + 1]
    records = tmp_path / "records.jsonl"
    records.write_bytes(b"".join(lines)[:-cut])
    found = hookviz.open_monitor(tmp_path)
    assert found.values("conv1", "mean")[0].tolist() == [1, 2, 3]
    with records.open("ab") as file:  # the rest arrives
        file.write(b"".join(lines)[-cut:])
    assert found.values("conv1", "mean")[0].tolist() == [1, 2, 3, 4]


def test_going_on_in_a_folder(small: Small, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    with hookviz.monitor(small, stats_every=1, out=folder) as m:
        train(small, batches(2), m.step)
    with (folder / "records.jsonl").open("ab") as file:
        file.write(b'{"kind":"step","st')  # as a crash leaves it
    with pytest.raises(MonitorError, match=r"holds a watched training already.*resume=True"):
        hookviz.monitor(small, out=folder).__enter__()
    with hookviz.monitor(small, stats_every=1, out=folder, resume=True) as m:
        assert hookviz.open_monitor(folder).state == "running"
        train(small, batches(2), m.step)
    assert m.values("fc", "mean")[0].tolist() == [1, 2, 3, 4]
    same(hookviz.open_monitor(folder), m)


def test_without_a_lock_a_training_without_an_end_counts_as_running(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("hookviz.monitoring._folder.lock_taken", refused)
    with hookviz.monitor(small, stats_every=1, out=tmp_path / "a") as m:
        train(small, batches(1), m.step)
        assert hookviz.open_monitor(tmp_path / "a").state == "running"


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(MonitorError, match=r"no folder of hookviz.monitor: it has no monitor.json"):
        hookviz.open_monitor(tmp_path)
    for text in ("{", "[]", '{"format": "x"}', '{"format": "hookviz-monitor", "version": 9}'):
        (tmp_path / "monitor.json").write_text(text)
        with pytest.raises(MonitorError, match=r"monitor.json' cannot be read"):
            hookviz.open_monitor(tmp_path)


def test_records_that_are_not_ours_are_passed_over(
    written: tuple[Path, TrainingHistory], tmp_path: Path
) -> None:
    folder, _ = written
    (tmp_path / "monitor.json").write_bytes((folder / "monitor.json").read_bytes())
    odd = [
        b"[]", b"3", b"{}", b'{"kind":"step"}', b'{"kind":"picture","picture":{}}', b"\xff\xfe",
        b'{"kind":"picture","picture":{"step":0,"layer":"conv1","call":1,"leaf":"","kind":"maps",'
        b'"file":"../../../etc/passwd"}}',
    ]  # fmt: skip
    rest = (folder / "records.jsonl").read_bytes()
    (tmp_path / "records.jsonl").write_bytes(b"\n".join(odd) + b"\n" + rest)
    found = hookviz.open_monitor(tmp_path)
    assert found.values("conv1", "mean")[0].tolist() == [1, 2, 3, 4]
    with pytest.raises(MonitorError, match="no name of a picture"):
        found.png_bytes(found.pictures[0])


def test_a_disk_that_is_full_is_a_sentence(small: Small, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file")
    with pytest.raises(MonitorError):
        hookviz.monitor(small, out=tmp_path / "a" / "b").__enter__()
    assert not small.conv1._forward_hooks


def test_the_command_line(written: tuple[Path, TrainingHistory], tmp_path: Path) -> None:
    folder, m = written
    out = tmp_path / "figures"
    done = CliRunner().invoke(cli, ["monitor", str(folder), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "Small, step 4 (ended)" in done.stdout
    assert m.table() in done.stdout
    names = {path.name for path in out.iterdir()}
    assert {"loss.png", "zeros.png", "update.png"} < names
    assert sum(name.startswith("00000004_") for name in names) == 4
    with Image.open(out / "zeros.png") as image:
        assert image.width == 900
    done = CliRunner().invoke(
        cli, ["monitor", str(folder), "-l", "relu", "-q", "zeros", "--step", "2", "-o", str(out)]
    )
    assert done.exit_code == 0
    assert m.table(2, ["relu"]) in done.stdout
    assert "conv1" not in done.stdout


def test_the_command_line_refuses(written: tuple[Path, TrainingHistory], tmp_path: Path) -> None:
    folder, _ = written
    for arguments, said in [
        ([str(tmp_path)], "no folder of hookviz.monitor"),
        ([str(folder), "-l", "conv"], "'conv' is not watched"),
        ([str(folder), "--step", "9"], "the nearest is 4"),
        ([str(folder), "-q", "zero", "-o", str(tmp_path)], "no quantity 'zero'"),
    ]:
        done = CliRunner().invoke(cli, ["monitor", *arguments])
        assert done.exit_code == 2
        assert said in done.output
        assert "Traceback" not in done.output
