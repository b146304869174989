"""The command line, as a user types it."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image

from hookviz.cli import cli
from hookviz.images import Preprocessing, sample_image
from hookviz.models import load_model
from hookviz.render import GridOptions
from hookviz.run import run_model


def hookviz(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in arguments], prog_name="hookviz")


def one_sentence(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    lines = [line for line in result.stderr.strip().splitlines() if line.startswith("hookviz: ")]
    assert len(lines) == 1, result.stderr
    return lines[0]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The issue's own command, once for this file."""
    out = tmp_path_factory.mktemp("maps")
    result = hookviz(
        "maps", "chelsea.png", "--model", "vgg16", "--weights", "bundled",
        "-l", "features.0", "-l", "features.28", "--out", out, "--device", "cpu",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    folder = Path(result.stdout.strip().splitlines()[-1])
    assert folder.parent == out
    return folder


def test_maps_writes_grids_for_each_page(exported: Path) -> None:
    names = {p.name for p in exported.iterdir()}
    assert "manifest.json" in names
    assert "000_input.png" in names
    assert len([n for n in names if "features.0_Conv2d_grid_p1of1" in n]) == 1
    assert len([n for n in names if "features.28_Conv2d_grid_p" in n]) == 8
    for path in exported.glob("*.png"):
        with Image.open(path) as image:
            image.load()


@pytest.mark.parametrize(
    ("layer", "minimum", "maximum", "mean"),
    [("features.0", -344.1, 361.1, -2.64), ("features.28", -310.0, 287.4, -45.57)],
)
def test_manifest_has_the_oxford_figures(
    exported: Path, layer: str, minimum: float, maximum: float, mean: float
) -> None:
    manifest = json.loads((exported / "manifest.json").read_text(encoding="utf-8"))
    (entry,) = [e for e in manifest["layers"] if e["layer"] == layer]
    channels = entry["channels"]
    assert channels["count"] == entry["shape"][1] == len(channels["mean"])
    assert min(channels["min"]) == entry["min"] == pytest.approx(minimum, rel=2e-3)
    assert max(channels["max"]) == entry["max"] == pytest.approx(maximum, rel=2e-3)
    # All maps of a layer have one size, so the mean of means is the mean.
    assert sum(channels["mean"]) / channels["count"] == pytest.approx(mean, rel=2e-3)
    assert entry["order"] == {"features.0": 1, "features.28": 2}[layer]


def test_layers_lists_names_types_and_parameters() -> None:
    result = hookviz("layers", "resnet18")
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert rows["conv1"] == ["Conv2d", "9,408"]
    assert rows["layer1.0.relu"] == ["ReLU", "0"]
    assert rows["fc"] == ["Linear", "513,000"]


def test_layers_with_an_image_adds_shapes_and_calls() -> None:
    result = hookviz(
        "layers", "resnet18", "--weights", "none", "--image", "chelsea.png", "--device", "cpu"
    )
    assert result.exit_code == 0, result.output
    assert "UNTRAINED" in result.stderr
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines()}
    assert rows["layer2.0.relu"][3:] == ["2", "1×128×28×28"]
    assert rows["fc"][3:] == ["1", "1×1000"]


def test_unknown_layer_names_the_closest() -> None:
    sentence = one_sentence(
        hookviz("maps", "chelsea.png", "-l", "featres.0", "--weights", "bundled")
    )
    assert "featres.0" in sentence
    assert "features.0" in sentence


def test_unknown_model_names_the_closest() -> None:
    sentence = one_sentence(hookviz("layers", "resnet19"))
    assert "resnet19" in sentence
    assert "resnet18" in sentence


def test_no_layer_says_how_to_list_them() -> None:
    assert "hookviz layers vgg16" in one_sentence(hookviz("maps", "chelsea.png"))


def test_missing_image_is_one_sentence() -> None:
    sentence = one_sentence(hookviz("maps", "no-such-photo.jpg", "-l", "features.0"))
    assert "no-such-photo.jpg" in sentence


def test_text_file_named_png_is_one_sentence(tmp_path: Path) -> None:
    fake = tmp_path / "cat.png"
    fake.write_text("<html><body>not found</body></html>", encoding="utf-8")
    sentence = one_sentence(hookviz("maps", fake, "-l", "features.0", "--weights", "bundled"))
    assert "cat.png" in sentence
    assert "HTML" in sentence


def test_unknown_device_is_one_sentence() -> None:
    sentence = one_sentence(hookviz("maps", "chelsea.png", "-l", "features.0", "--device", "tpu9"))
    assert "tpu9" in sentence
    assert "cpu" in sentence


def test_output_folder_that_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "taken"
    file.write_text("mine", encoding="utf-8")
    sentence = one_sentence(
        hookviz("maps", "chelsea.png", "-l", "features.0", "--weights", "bundled", "--out", file)
    )
    assert "taken" in sentence
    assert file.read_text(encoding="utf-8") == "mine"


def test_a_missing_weights_file_is_one_sentence(tmp_path: Path) -> None:
    sentence = one_sentence(
        hookviz("maps", "chelsea.png", "-l", "features.0", "--weights", tmp_path / "gone.pth")
    )
    assert "gone.pth" in sentence


def test_unknown_cmap_is_one_sentence() -> None:
    sentence = one_sentence(
        hookviz(
            "maps", "chelsea.png", "-l", "features.0", "--weights", "bundled", "--cmap", "virdis"
        )
    )
    assert "virdis" in sentence
    assert "viridis" in sentence


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["layers"], ["MODEL", "hookviz layers --help"]),
        (["maps", "chelsea.png", "--lyer", "x"], ["--lyer", "hookviz maps --help"]),
        (["lab", "--port", "no"], ["--port", "no", "hookviz lab --help"]),
        (["map"], ["map", "hookviz --help"]),
        (["--nonsense"], ["--nonsense", "hookviz --help"]),
    ],
)
def test_a_wrong_command_line_is_one_sentence_too(arguments: list[str], parts: list[str]) -> None:
    result = hookviz(*arguments)
    sentence = one_sentence(result)
    assert len(result.stderr.strip().splitlines()) == 1
    for part in parts:
        assert part in sentence


def test_hookviz_alone_shows_its_commands() -> None:
    result = hookviz()
    assert "Look at an image:" in result.output
    assert "lab" in result.output


def test_debug_shows_the_traceback() -> None:
    result = hookviz("layers", "resnet19", "--debug")
    assert result.exit_code == 1
    assert type(result.exception).__name__ == "ModelError"


def test_lab_refuses_a_port_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        sentence = one_sentence(hookviz("lab", "--port", port))
    assert str(port) in sentence
    assert "--port" in sentence
    assert list(tmp_path.iterdir()) == []


def test_lab_keeps_the_notebook_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.execv", lambda _program, command: started.append(command))
    assert hookviz("lab", "--no-browser").exit_code == 0
    copy = tmp_path / "hookviz.ipynb"
    assert json.loads(copy.read_text(encoding="utf-8"))["nbformat"] == 4
    copy.write_text("mine", encoding="utf-8")
    assert hookviz("lab", "--no-browser").exit_code == 0
    assert copy.read_text(encoding="utf-8") == "mine"
    assert len(started) == 2
    assert "--ServerApp.ip=127.0.0.1" in started[0]


def test_lab_offers_every_notebook_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.execv", lambda _program, command: started.append(command))
    names = sorted(p.stem for p in (Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
    assert "hookviz" in names
    for name in names:
        assert hookviz("lab", name).exit_code == 0
        assert f"--LabApp.default_url=/lab/tree/{name}.ipynb" in started[-1]
    assert sorted(p.stem for p in tmp_path.iterdir()) == names
    sentence = one_sentence(hookviz("lab", "hoks"))
    assert all(name in sentence for name in ("hoks", *names))


def test_the_address_that_lab_prints_leads_to_the_notebook(tmp_path: Path) -> None:
    pytest.importorskip("jupyterlab", reason="the lab extra is not installed")
    places = ("CONFIG", "DATA", "RUNTIME")
    environ = dict(os.environ) | {f"JUPYTER_{p}_DIR": str(tmp_path / p) for p in places}
    folder = tmp_path / "a folder"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "hookviz", "lab", "hooks", "--no-browser"],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            said = next((line for line in server.stdout if "http://127.0.0.1:" in line), "")
            address = said[said.index("http://") :].strip()
            path, _, token = address.partition("?")
            assert path.endswith("/lab/tree/hooks.ipynb"), said
            contents = path.replace("/lab/tree/", "/api/contents/") + f"?content=0&{token}"
            until = time.monotonic() + 30  # it is printed a moment before it is listened at
            while True:
                try:
                    with urllib.request.urlopen(contents, timeout=30) as answer:  # noqa: S310 - our own address
                        assert json.load(answer)["path"] == "hooks.ipynb"
                        break
                except urllib.error.URLError:
                    assert time.monotonic() < until
                    time.sleep(0.05)
        finally:
            server.terminate()


def test_weights_lists_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    result = hookviz("weights")
    assert result.exit_code == 0, result.output
    assert str(tmp_path) in result.stdout


def test_doctor_finds_everything_here() -> None:
    result = hookviz("doctor")
    assert result.exit_code == 0, result.output
    for what in ("torch", "anywidget front end", "bundled VGG16", "device"):
        assert what in result.stdout
    assert "NO" not in result.stdout


def test_doctor_says_what_to_do_where_the_front_end_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookviz.doctor._servers", lambda: {"elsewhere": [tmp_path]})
    result = hookviz("doctor")
    assert result.exit_code == 1
    assert "pip install anywidget there" in result.stdout


def test_python_m_hookviz_is_the_same_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hookviz", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("hookviz, version 0.")


def test_maps_shows_the_five_likeliest_classes_and_that_they_mean_nothing(tmp_path: Path) -> None:
    result = hookviz(
        "maps", "chelsea.png", "--model", "resnet18", "--weights", "none", "-l", "conv1",
        "--out", tmp_path, "--device", "cpu",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert len([line for line in result.stderr.splitlines() if " %  " in line]) == 5
    assert "UNTRAINED" in result.stderr
    # Drawn again with the weights that the file names: none, not those that could be downloaded.
    (grid,) = Path(result.stdout.strip().splitlines()[-1]).glob("*conv1*grid*.png")
    again = hookviz("reproduce", grid)
    assert again.exit_code == 0, again.output
    assert again.stdout.startswith("identical")


def test_maps_says_why_there_are_no_predictions(exported: Path, tmp_path: Path) -> None:
    result = hookviz(
        "maps", "chelsea.png", "--weights", "bundled", "-l", "features.30", "--out", tmp_path,
        "--device", "cpu", "--channels", "3,17",
    )  # fmt: skip
    assert "classifier" in result.stderr
    folder = Path(result.stdout.strip().splitlines()[-1])
    singles = sorted(p.name for p in folder.glob("*_ch*.png"))
    assert [name[-9:] for name in singles] == ["ch003.png", "ch017.png"]
    with Image.open(folder / singles[0]) as image:
        assert image.size == (7, 7)


def test_reproduce_says_identical_and_finds_an_edited_pixel(exported: Path, tmp_path: Path) -> None:
    (grid,) = exported.glob("*features.0_*grid*.png")
    assert hookviz("reproduce", grid).stdout.startswith("identical")
    edited = tmp_path / "edited.png"
    with Image.open(grid) as image:
        pixels = image.copy()
        texts = dict(image.text)
    pixels.putpixel((300, 300), (1, 2, 3))
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    for key, value in texts.items():
        info.add_text(key, value)
    pixels.save(edited, pnginfo=info)
    result = hookviz("reproduce", edited)
    assert result.exit_code == 1
    assert "300" in result.stdout


def test_models_can_be_searched() -> None:
    result = hookviz("models", "vgg1 bn")
    assert result.exit_code == 0, result.output
    names = [line.split()[0] for line in result.stdout.splitlines()[1:]]
    assert names == ["vgg11_bn", "vgg13_bn", "vgg16_bn", "vgg19_bn"]
    assert "hookviz models" in one_sentence(hookviz("models", "no such net"))


def test_maps_writes_where_attention_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Attending(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = torch.nn.Conv2d(3, 8, 8, 8)
            self.attend = torch.nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.patches(x).flatten(2).transpose(1, 2)
            return self.attend(x, x, x)[0].mean(1)

    model = load_model(Attending(), preprocess=Preprocessing.for_size(32))
    monkeypatch.setattr("hookviz.cli._shared.load", lambda *_: model)
    asked = ["maps", "chelsea.png", "-l", "attend", "-o", tmp_path]
    done = hookviz(*asked, "--attention", "--query", "1,2", "--heads", "mean")
    assert done.exit_code == 0, done.output
    folder = Path(done.stdout.strip().splitlines()[-1])
    pngs = [png for png in folder.glob("*.png") if "attention" in png.name]
    run = run_model(model, sample_image("chelsea.png"), ["attend"], attention=True)
    expected = run.drawing(
        "attend", kind="attention",
        options=GridOptions(query=(1, 2), heads="mean", overlay=True),
    )  # fmt: skip
    assert len(pngs) == 1
    found = np.asarray(Image.open(pngs[0]).convert("RGB"))
    wanted = np.asarray(Image.open(io.BytesIO(expected.png_bytes())).convert("RGB"))
    assert np.array_equal(found, wanted)
    assert "--attention" in one_sentence(hookviz(*asked, "--query", "1,2"))
    assert "3,4" in one_sentence(hookviz(*asked, "--attention", "--query", "x"))
