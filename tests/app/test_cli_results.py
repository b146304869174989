"""What the command line gives to programs: JSON, streams, completion, its help, exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.shell_completion import BashComplete
from click.testing import CliRunner, Result
from torch import nn
from tqdm import tqdm

from hookviz import monitor
from hookviz.capture import list_layers
from hookviz.cli import cli
from hookviz.images import Preprocessing
from hookviz.models import cached_weights, list_models, list_weights, load_model

ROOT = Path(__file__).resolve().parents[2]


def hookviz(*arguments: object, **more: Any) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in arguments], prog_name="hookviz", **more)


def printed(*arguments: object) -> Any:
    result = hookviz(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


class Net(nn.Module):
    """Six classes, a ReLU called twice, a layer that does not run."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 6, 5)
        self.relu = nn.ReLU()
        self.spare = nn.Conv2d(1, 1, 1)
        self.head = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.relu(self.relu(self.conv(x)).mean((2, 3))))


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """What every command loads, whatever the name."""
    with torch.random.fork_rng(devices=[]):
        own = load_model(Net().eval(), preprocess=Preprocessing.for_size(24))
    monkeypatch.setattr("hookviz.models.load_model", lambda *_, **__: own)
    monkeypatch.setattr("hookviz.models.is_local", lambda _: True)
    return own.module


# ── JSON


def test_layers_as_json(net: nn.Module) -> None:
    found = printed("layers", "mine")
    assert set(found) == {"model", "layers"}
    assert found["model"] == "Net"
    assert found["layers"] == [
        {"layer": one.name, "type": one.type, "parameters": one.parameters}
        for one in list_layers(net)
    ]
    (conv,) = printed("layers", "mine", "--search", "conv2d", "--image", "coffee.png")["layers"][:1]
    assert conv == {
        "layer": "conv", "type": "Conv2d", "parameters": 456, "calls": 1,
        "outputs": [{"call": 1, "leaf": "", "shape": [1, 6, 20, 20]}],
    }  # fmt: skip
    rows = {row["layer"]: row for row in printed("layers", "x", "--image", "coffee.png")["layers"]}
    assert (rows["spare"]["calls"], rows["spare"]["outputs"]) == (0, [])
    assert rows["relu"]["calls"] == 2
    assert [(one["call"], one["shape"]) for one in rows["relu"]["outputs"]] == [
        (1, [1, 6, 20, 20]), (2, [1, 6]),
    ]  # fmt: skip
    assert hookviz("layers", "mine", "--search", "zzz", "--json").exit_code == 2


def test_models_as_json() -> None:
    found = printed("models", "vgg1 bn")
    assert set(found) == {"models"}
    assert [one["model"] for one in found["models"]] == list_models("vgg1 bn")
    for one in found["models"]:
        assert set(one) == {"model", "weights"}
        known = list_weights(one["model"])
        assert [weights["name"] for weights in one["weights"]] == [w.name for w in known]
        for weights, info in zip(one["weights"], known, strict=True):
            assert set(weights) == {
                "name", "file", "default", "megabytes", "cached", "classes", "url",
            }  # fmt: skip
            assert (weights["file"], weights["classes"]) == (info.file, 1000)


def test_weights_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    assert printed("weights") == {"folder": str(folder), "files": []}
    folder.mkdir(parents=True)
    (folder / "resnet18-f37072fd.pth").write_bytes(b"no weights")
    (one,) = printed("weights", "--check")["files"]
    (known,) = cached_weights(check=True)
    assert one == {
        "file": known.path.name, "bytes": 10, "state": "corrupt", "models": list(known.models),
    }  # fmt: skip
    assert "resnet18 IMAGENET1K_V1" in one["models"]


def test_doctor_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = printed("doctor")
    assert set(found) == {"good", "findings"}
    assert found["good"] is True
    assert all(set(one) == {"what", "good", "found", "remedy"} for one in found["findings"])
    (torch_there,) = [one for one in found["findings"] if one["what"] == "torch"]
    assert torch_there == {
        "what": "torch", "good": True, "found": torch.__version__.partition("+")[0], "remedy": "",
    }  # fmt: skip
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "file"))
    result = hookviz("doctor", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["good"] is False
    assert [one["remedy"] != "" for one in found["findings"] if not one["good"]] == [True]


@pytest.mark.parametrize("command", ["layers", "models", "doctor", "weights"])
def test_the_help_names_the_keys(command: str) -> None:
    said = " ".join(hookviz(command, "--help").stdout.split())
    keys = {
        "layers": ("model", "layers", "layer", "type", "parameters", "calls", "outputs"),
        "models": ("models", "model", "weights", "megabytes", "cached", "classes", "url"),
        "doctor": ("good", "findings", "what", "found", "remedy"),
        "weights": ("folder", "files", "file", "bytes", "state", "models"),
    }[command]
    names = said[said.index("Keys of --json:") :]
    assert all(re.search(rf"\b{key}\b", names) for key in keys)


# ── streams


def test_results_go_to_one_stream_and_the_rest_to_the_other(
    net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bars: list[tqdm[Any]] = []

    def bar(**settings: Any) -> tqdm[Any]:
        bars.append(tqdm(**settings))  # shown, as on a terminal
        return bars[-1]

    monkeypatch.setattr("hookviz.cli._shared.bar", bar)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").write_bytes((ROOT / "assets" / "coffee.png").read_bytes())
    with monitor(net, ["conv"], every=1, out=tmp_path / "training") as watched:
        net(torch.rand(1, 3, 24, 24))
        watched.step()
    image, layer, out = "coffee.png", ("-l", "conv"), ("-o", "out")
    table = r"(.+\n){2,}"
    folder = rf"{re.escape(str(tmp_path))}/out/.+\n"
    expected: list[tuple[tuple[str, ...], str, bool]] = [
        (("maps", image, *layer, *out), folder, True),
        (("filters", "mine", *layer, *out), folder, False),
        (("compare", "mine", "mine", "--image", image), table, True),
        (("explain", image, *layer, "--target", "2", *out), folder, True),
        (("explain", image, *layer, "--target", "2", "--method", "scorecam", *out), folder, True),
        (("sweep", image, *layer, "--target", "2"), r"rank .*\n(.+\n){6}", True),
        (("visualize", *layer, "-c", "1", "--steps", "2", "--size", "24", *out), folder, True),
        (("survey", "data", *layer, "-o", "surveyed"), "surveyed\n", True),
        (("top", "surveyed", *layer, "-c", "1", *out), r"channel.*\n1 .*a\.png.*\n", False),
        (("monitor", "training", "-o", "curves"), r"Net, step 1(.*\n){2,}", False),
        (("layers", "mine"), r"layer .*\n(.+\n){5}", False),
        (("lab", "--no-browser"), "", False),
    ]
    monkeypatch.setattr("os.execv", lambda *_: None)
    for arguments, form, works in expected:
        bars.clear()
        result = hookviz(*arguments)
        assert result.exit_code == 0, (arguments, result.output)
        assert re.fullmatch(form, result.stdout), (arguments, result.stdout)
        assert bool(bars) == works, arguments
        assert not re.search(r"%\||it/s", result.stdout)
        if works:
            assert re.search(r"\d+(%\||\w+ \[)", result.stderr), (arguments, result.stderr)
    assert "hookviz.ipynb" in result.stderr


# ── help, completion, exit codes


def test_the_help_lists_each_command_under_one_task() -> None:
    said = hookviz("--help").stdout
    sections = re.findall(r"(?m)^(\w.*):\n((?:  .*\n)+)", said)
    names = {head: re.findall(r"(?m)^  (\S+)", body) for head, body in sections}
    tasks = list(names)[1:-2]
    assert tasks == [
        "Begin", "Look at a model", "Look at an image", "Ask why", "Many images, and training",
    ]  # fmt: skip
    assert sorted(name for task in tasks for name in names[task]) == sorted(cli.commands)
    assert {"maps", "reproduce"} <= set(names["Look at an image"])


def test_exit_codes_are_documented_alike() -> None:
    said = hookviz("--help").stdout
    codes = re.findall(r"(?m)^  (\d+)  ", said[said.index("Exit codes") :])
    assert codes == ["0", "1", "2", "3", "130"]
    readme = (ROOT / "README.md").read_text("utf-8")
    assert re.findall(r"(?m)^\| (\d+) \| ", readme[readme.index("| exit code |") :]) == codes
    page = (ROOT / "docs/pages/reference/command-line.md").read_text("utf-8")
    assert re.findall(r"\b(\d+):", page.partition("`layers`")[0]) == codes


@pytest.mark.parametrize(
    ("words", "typed", "found"),
    [
        ([], "ma", ["maps"]),
        (["lab"], "h", ["hookviz", "hooks"]),
        (["maps", "a.png", "--scale"], "p", ["percentile"]),
        (["reproduce"], "--we", ["--weights"]),
    ],
)
def test_a_shell_completes(words: list[str], typed: str, found: list[str]) -> None:
    shell = BashComplete(cli, {}, "hookviz", "_HOOKVIZ_COMPLETE")
    assert [one.value for one in shell.get_completions(words, typed)] == found


def test_a_shell_completes_files() -> None:
    shell = BashComplete(cli, {}, "hookviz", "_HOOKVIZ_COMPLETE")
    for words in (["maps"], ["reproduce"], ["survey"], ["compare"], ["maps", "a.png", "--out"]):
        assert [one.type for one in shell.get_completions(words, "./ph")] == ["file"], words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_line_that_completes_is_the_one_in_the_help(shell: str) -> None:
    (line,) = re.findall(rf"(?m)^  {shell} +(.+)$", hookviz("--help").stdout)
    assert f"_HOOKVIZ_COMPLETE={shell}_source hookviz" in line
    page = (ROOT / "docs/pages/reference/command-line.md").read_text("utf-8")
    assert line in page
    script = hookviz(env={"_HOOKVIZ_COMPLETE": f"{shell}_source"}).stdout
    assert f"_HOOKVIZ_COMPLETE={shell}_complete" in script


def test_bash_takes_the_line() -> None:
    program = f'hookviz() {{ {sys.executable} -m hookviz "$@"; }}; '
    line = 'eval "$(_HOOKVIZ_COMPLETE=bash_source hookviz)"; complete -p hookviz'
    done = subprocess.run(["bash", "-c", program + line], capture_output=True, text=True)
    assert done.stdout.strip().endswith("hookviz"), done.stderr


# ── reproduce with what the file does not name


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint, a grid of it, one without weights and a comparison of both."""
    folder = tmp_path_factory.mktemp("drawn")
    names = ("squeezenet1_1", "-l", "classifier", "--device", "cpu", "-o")
    net = load_model("squeezenet1_1", weights=None, device="cpu").module
    with torch.no_grad():
        net.get_parameter("features.0.weight")[0, 0, 0, 0] += 1
    files = {"none": Path("none"), "other": folder / "other.pth"}
    torch.save(net.state_dict(), files["other"])
    for name in ("none", "other"):
        given = ("--weights", files[name], "--image", "coffee.png")
        result = hookviz("maps", "coffee.png", "--model", *names, folder / name, *given[:2])
        assert result.exit_code == 0, result.output
        (files[f"grid of {name}"],) = (folder / name).rglob("*grid*.png")
    result = hookviz("compare", *names[:1], *names, folder / "two", *given, "--weights", "none")
    assert result.exit_code == 1, result.output
    files["two"] = next(png for png in (folder / "two").rglob("*.png") if "classifier" in png.name)
    return files


def test_given_weights_are_compared_with_those_of_the_file(drawn: dict[str, Path]) -> None:
    copy = drawn["other"].with_name("copy.pth")
    copy.write_bytes(drawn["other"].read_bytes())
    same = hookviz("reproduce", drawn["grid of other"], "--weights", copy)
    assert same.exit_code == 0, same.output
    assert same.stdout.splitlines() == [
        "identical, pixel for pixel",
        "The source of the weights differs: 'file other.pth' in the file, 'file copy.pth' now.",
    ]
    other = hookviz("reproduce", drawn["grid of none"], "--weights", drawn["other"])
    assert other.exit_code == 1
    assert "The hash of the weights differs: " in other.stdout
    assert "identical" not in other.stdout


def test_weights_of_a_file_are_asked_for_and_taken(drawn: dict[str, Path]) -> None:
    result = hookviz("reproduce", drawn["grid of other"])
    assert result.exit_code == 2
    assert "are not at hand. Name its weights with --weights" in result.stderr
    given = hookviz("reproduce", drawn["grid of other"], "--weights", drawn["other"])
    assert (given.exit_code, given.stdout) == (0, "identical, pixel for pixel\n")


def test_another_image_or_model_is_said(drawn: dict[str, Path]) -> None:
    other = hookviz("reproduce", drawn["grid of none"], "--image", "chelsea.png")
    assert other.exit_code == 1
    assert "The hash of the image differs: " in other.stdout
    more = ("--model", "squeezenet1_0", "--weights", "none")
    other = hookviz("reproduce", drawn["grid of none"], *more)
    assert other.exit_code == 1
    assert "The model differs: 'squeezenet1_1' in the file, 'squeezenet1_0' now." in other.stdout
    assert "The hash of the weights differs: " in other.stdout
    more = ("--model", "resnet18", "--weights", "none")
    other = hookviz("reproduce", drawn["grid of none"], *more)
    assert other.exit_code == 2
    assert "classifier" in other.stderr
    twice = hookviz("reproduce", drawn["grid of none"], "--weights", "none", "--weights", "none")
    assert twice.exit_code == 2
    assert "--weights was given 2 times" in twice.stderr


def test_a_comparison_takes_each_twice(drawn: dict[str, Path]) -> None:
    given = ("--weights", drawn["other"], "--weights", "none", "--image", "coffee.png")
    result = hookviz("reproduce", drawn["two"], *given)
    assert (result.exit_code, result.stdout) == (0, "identical, pixel for pixel\n")
    turned = ("--weights", "none", "--weights", drawn["other"], "--image", "coffee.png")
    assert hookviz("reproduce", drawn["two"], *turned).exit_code == 1


def test_an_explanation_takes_weights_too(drawn: dict[str, Path], tmp_path: Path) -> None:
    asked = ("explain", "coffee.png", "--model", "squeezenet1_1", "--weights", drawn["other"])
    result = hookviz(*asked, "--device", "cpu", "-l", "features.12", "-o", tmp_path)
    assert result.exit_code == 0, result.output
    png = next(one for one in tmp_path.rglob("*.png") if "features.12" in one.name)
    assert hookviz("reproduce", png).exit_code == 2
    given = hookviz("reproduce", png, "--weights", drawn["other"])
    assert (given.exit_code, given.stdout) == (0, "identical, pixel for pixel\n")
