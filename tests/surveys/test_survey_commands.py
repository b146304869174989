"""``hookviz survey`` and ``hookviz top``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image

import hookviz
from hookviz.cli import cli

from .conftest import digest, write_images


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(one) for one in arguments])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_images(folder, 6)
    return folder


def line(data: Path, out: Path, *more: object) -> Result:
    options = ("--model", "squeezenet1_1", "--weights", "none", "-l", "features.1")
    sizes = ("--batch", 2, "--shard", 3, "--top", 4, "--workers", 0, "--device", "cpu")
    return run("survey", data, *options, *sizes, "--out", out, *more)


def test_a_survey_is_made_gone_on_with_and_shown(data: Path, tmp_path: Path) -> None:
    done = line(data, tmp_path / "parts", "--part", "2/2")
    assert done.exit_code == 0, done.output
    assert "1 shards done" in done.stderr
    done = line(data, tmp_path / "parts", "--part", "1/2")
    assert "complete" in done.stderr
    assert done.stdout.splitlines()[-1] == str(tmp_path / "parts")
    assert line(data, tmp_path / "whole").exit_code == 0
    assert line(data, tmp_path / "whole").exit_code == 0
    assert digest(tmp_path / "parts") == digest(tmp_path / "whole")
    figs = tmp_path / "figs"
    done = run("top", tmp_path / "whole", "-l", "features.1", "-c", 37, "--count", 2, "-o", figs)
    assert done.exit_code == 0, done.output
    hit = hookviz.open_survey(tmp_path / "whole").top("features.1", 37)[0]
    first = done.stdout.splitlines()[1].split()
    assert first[:3] == ["37", "1", f"{hit.value:.6g}"]
    assert first[-2:] == [hit.name, hit.label]
    with Image.open(figs / "features.1_37.png") as figure:
        assert figure.size[0] > 300


def test_other_options_are_refused_in_the_words_of_the_command(data: Path, tmp_path: Path) -> None:
    assert line(data, tmp_path / "out").exit_code == 0
    done = line(data, tmp_path / "out", "--keep", "pooled")
    assert done.exit_code == 2
    assert "begun with another value of keep: 'none' then, 'pooled' now" in done.stderr
    more = tmp_path / "more"
    shutil.copytree(data, more)
    shutil.copy(next(more.rglob("*.png")), more / "new.png")
    done = line(more, tmp_path / "out")
    assert done.exit_code == 2
    assert "--extend adds them." in done.stderr
    assert line(more, tmp_path / "out", "--extend").exit_code == 0


def test_a_channel_or_layer_that_is_not_there(data: Path, tmp_path: Path) -> None:
    assert line(data, tmp_path).exit_code == 0
    done = run("top", tmp_path, "-l", "features.2")
    assert (done.exit_code, "Did you mean 'features.1'" in done.stderr) == (2, True)
    done = run("top", tmp_path, "-l", "features.1", "-c", 64)
    assert (done.exit_code, "channels 0 to 63" in done.stderr) == (2, True)
    done = run("top", tmp_path / "nowhere", "-l", "x")
    assert (done.exit_code, "There is no survey in" in done.stderr) == (2, True)


def test_failed_shards_are_exit_code_three(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = torch.nn.Conv2d.forward

    def fails(self: torch.nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
        if len(x) == 2:  # the batches of two, and not the first try with one image
            raise RuntimeError("no pairs")
        return forward(self, x)

    monkeypatch.setattr(torch.nn.Conv2d, "forward", fails)
    done = line(data, tmp_path)
    assert done.exit_code == 3, done.output
    assert done.stdout == f"{tmp_path}\n"
    assert "2 shards could not be made" in done.stderr
    assert "RuntimeError: no pairs" in done.stderr
    monkeypatch.undo()
    assert line(data, tmp_path).exit_code == 0


def test_a_model_by_a_function_and_an_engine_that_is_not_joined(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_nets.py").write_text(
        "import hookviz\n"
        "def tiny():\n"
        "    how = hookviz.Preprocessing(crop=(64, 64), fit='squash')\n"
        "    return hookviz.load_model('squeezenet1_1', None, device='cpu', preprocess=how)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    options = ("-l", "features.1", "--workers", 0, "--device", "cpu", "-o", tmp_path / "out")
    done = run("survey", data, "--model", "own_nets:tiny", *options)
    assert done.exit_code == 0, done.output
    assert "complete" in done.stderr
    done = run("survey", data, "--model", "own_nets:none", *options)
    assert done.exit_code == 2
    assert "There is no function 'own_nets:none'" in done.stderr
    for engine in ("spark", "ray"):
        more = ("-o", tmp_path / "new", "--engine", engine)
        assert run("survey", data, "--model", "own_nets:tiny", *options, *more).exit_code == 2
