"""The command line where names, streams, models or the disk are not as one wishes."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

from hookviz.cli import cli
from hookviz.models import load_model

ROOT = Path(__file__).resolve().parents[2]
BUNDLED = ("--weights", "bundled", "--device", "cpu")


def hookviz(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in arguments], prog_name="hookviz")


def started(*arguments: str, **options) -> subprocess.Popen[str]:
    environ = dict(os.environ) | {"OMP_NUM_THREADS": "1"} | options.pop("env", {})
    return subprocess.Popen(
        [sys.executable, "-m", "hookviz", *arguments], text=True, env=environ, **options
    )


# What streams do is the program's own, whatever the command: this one imports no torch.
SAYING = """
import click
from hookviz.cli import cli, main

@cli.command(task="Ask why")
def say():
    for number in range(1000):
        click.echo(f"{number} …")

main()
"""
SAY = [sys.executable, "-c", SAYING, "say"]


def saying(**options) -> subprocess.Popen[str]:
    environ = dict(os.environ) | options.pop("env", {})
    return subprocess.Popen(SAY, text=True, env=environ, **options)


def one_sentence(text: str) -> str:
    assert "Traceback" not in text
    assert "Exception ignored" not in text
    (line,) = [line for line in text.splitlines() if line.startswith("hookviz: ")]
    return line


NAMES = [
    "猫.png",
    "🐈.png",
    "قطة.png",
    "\u202egnp.png",
    "a\tb.png",
    "con.png",
    "x" * 240 + ".png",
    os.fsdecode(b"\xff.png"),
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_maps_of_an_image_of_any_name_can_be_drawn_again(name: str, tmp_path: Path) -> None:
    image = tmp_path / name
    try:
        image.write_bytes((ROOT / "assets" / "chelsea.png").read_bytes())
    except OSError:
        pytest.skip("this file system has no such name")
    out = tmp_path / "out"
    done = hookviz("maps", image, *BUNDLED, "-l", "features.30", "--out", out)
    assert done.exit_code == 0, done.output
    (folder,) = out.iterdir()
    assert folder.name.isprintable()
    manifest = json.loads((folder / "manifest.json").read_text("ascii"))
    assert manifest["image"]["name"].isprintable()
    if name.isprintable() and len(name) < 200:
        assert manifest["image"]["name"] == name
    for png in sorted(folder.glob("*.png"))[:2]:
        again = hookviz("reproduce", png, "--image", image)
        assert again.exit_code == 0, again.output
        assert again.stdout == "identical, pixel for pixel\n"


def test_the_first_figure_of_a_process_may_have_any_name(tmp_path: Path) -> None:
    image = tmp_path / "猫🐈قطة.png"
    image.write_bytes((ROOT / "assets" / "chelsea.png").read_bytes())
    arguments = ("maps", str(image), *BUNDLED, "-l", "features.30", "--out", str(tmp_path / "out"))
    with started(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        written, warned = program.communicate()
    assert program.returncode == 0, warned
    assert Path(written.strip()).is_dir()
    assert "Warning" not in warned


@pytest.mark.parametrize("command", ["maps", "layers", "reproduce"])
def test_a_name_that_no_file_can_have_is_one_sentence(command: str) -> None:
    name = "x" * 300 + ".png"
    arguments = {
        "maps": (name, "-l", "features.0"),
        "layers": ("vgg16", "--image", name),
        "reproduce": (name,),
    }
    done = hookviz(command, *arguments[command])
    assert done.exit_code == 2
    assert "OSError" not in one_sentence(done.stderr)


def test_a_reader_that_has_gone_ends_the_command_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    with saying(stdout=write, stderr=subprocess.PIPE) as program:
        os.close(write)
        _, warned = program.communicate()
    assert warned == ""


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_cannot_be_written_is_one_sentence(unbuffered: str) -> None:
    with (
        Path("/dev/full").open("w") as full,
        saying(
            stdout=full, stderr=subprocess.PIPE, env={"PYTHONUNBUFFERED": unbuffered}
        ) as program,
    ):
        _, warned = program.communicate()
    assert program.returncode == 2
    assert one_sentence(warned) == "hookviz: No space left on device."


@pytest.mark.skipif(os.name != "posix", reason="streams are closed by the shell")
def test_a_closed_output_is_no_error() -> None:
    command = ["sh", "-c", '"$@" >&-', "sh", *SAY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize(("command", "encoding"), [("doctor", "latin-1"), ("say", "cp437")])
def test_a_terminal_without_some_characters_gets_their_escapes(command: str, encoding: str) -> None:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environ = {"PYTHONIOENCODING": encoding}
    start = saying if command == "say" else functools.partial(started, command)
    with start(env=environ, **options) as program:
        written, warned = program.communicate()
    assert program.returncode == 0, warned
    assert "\\u2026" in written


class Broken(nn.Module):
    """The second layer cannot take what the first gives; the third never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.second = nn.Conv2d(5, 4, 3)
        self.spare = nn.Conv2d(4, 4, 1)
        self.broken = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)) if self.broken else self.first(x)


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Broken:
    """What every command loads, whatever the name."""
    net = Broken()
    monkeypatch.setattr("hookviz.models.load_model", lambda *_, **__: load_model(net))
    monkeypatch.setattr("hookviz.models.is_local", lambda _: True)
    return net


@pytest.mark.parametrize(
    "arguments",
    [("maps", "chelsea.png", "-l", "second"), ("layers", "mine", "--image", "chelsea.png")],
)
def test_a_forward_that_fails_names_the_layer(net: Broken, arguments: tuple[str, ...]) -> None:
    done = hookviz(*arguments)
    assert done.exit_code == 2
    sentence = one_sentence(done.stderr)
    assert "'second'" in sentence
    assert "to have 5 channels" in sentence


def test_layers_that_gave_nothing_are_named_and_nothing_is_written(
    net: Broken, tmp_path: Path
) -> None:
    net.broken = False
    out = tmp_path / "out"
    done = hookviz("maps", "chelsea.png", "-l", "spare", "--out", out)
    assert done.exit_code == 2
    assert "spare: no activation: not called" in done.stderr
    assert "nothing was written" in one_sentence(done.stderr)
    assert not out.exists()
    done = hookviz("maps", "chelsea.png", "-l", "spare", "-l", "first", "--out", out)
    assert done.exit_code == 0
    assert "spare: no activation: not called" in done.stderr


def test_channels_are_checked_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookviz.models.load_model", None)
    done = hookviz("maps", "chelsea.png", "-l", "features.0", "--channels", "abc")
    assert "'abc' is neither an index nor a range" in one_sentence(done.stderr)


def test_ctrl_c_leaves_whole_files_and_no_part(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("maps", "chelsea.png", *BUNDLED, "-l", "features.*", "--out", str(out))
    with started(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        until = time.monotonic() + 60
        while not list(out.glob("*/*.png")):
            assert program.poll() is None, program.communicate()
            assert time.monotonic() < until
            time.sleep(0.01)
        program.send_signal(signal.SIGINT)
        _, warned = program.communicate()
    assert program.returncode == 130, warned
    assert warned.rstrip().endswith("Aborted!")
    assert "Traceback" not in warned
    (folder,) = out.iterdir()
    manifest = json.loads((folder / "manifest.json").read_text("ascii"))
    assert "KeyboardInterrupt" in manifest["stopped"]
    assert {path.name for path in folder.iterdir()} == {*manifest["files"], "manifest.json"}


@pytest.mark.parametrize("place", ["a file", "below a file"])
def test_a_cache_that_cannot_be_is_found_by_the_doctor(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "file" / ("x" if place != "a file" else "")))
    done = hookviz("doctor")
    assert done.exit_code == 1
    assert "Set TORCH_HOME to your own folder" in done.stdout
    # The remedy is tried:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "own"))
    assert hookviz("doctor").exit_code == 0


@pytest.mark.parametrize("there", ["folder", "link to nowhere"])
def test_lab_writes_its_notebook_over_nothing(
    there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jupyterlab", reason="the lab extra is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.execv", lambda *_: pytest.fail("JupyterLab was started"))
    if there == "folder":
        (tmp_path / "hookviz.ipynb").mkdir()
    else:
        (tmp_path / "hookviz.ipynb").symlink_to(tmp_path / "elsewhere")
    done = hookviz("lab")
    assert done.exit_code == 2
    assert "hookviz.ipynb cannot be written" in one_sentence(done.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["hookviz.ipynb"]
