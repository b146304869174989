"""What a message advises is tried, and helps: files, runs and the command line."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import hookviz
from hookviz.cli import cli
from hookviz.errors import ExportError, HookvizError, LayerError
from hookviz.export import read_png_facts, zip_export
from hookviz.render import GridOptions

ROOT = Path(__file__).resolve().parents[2]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.relu = nn.ReLU()
        self.lstm = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = self.relu(self.relu(self.conv(x)))
        return self.lstm(maps.mean(3).transpose(1, 2))[0]


@pytest.fixture(scope="module")
def model() -> hookviz.LoadedModel:
    return hookviz.load_model(Twice())


@pytest.fixture(scope="module")
def run(model: hookviz.LoadedModel) -> hookviz.Run:
    return hookviz.feature_maps(model, hookviz.sample_image(), ["conv", "relu", "lstm"])


def advised(call: Callable[[], object], remedy: str) -> None:
    """The call fails with that remedy."""
    with pytest.raises(HookvizError) as caught:
        call()
    assert remedy in str(caught.value)


def test_another_name_or_overwriting_for_a_folder_that_exists(
    run: hookviz.Run, tmp_path: Path
) -> None:
    def export(**choices: object) -> object:
        return run.export(tmp_path, **({"name": "mine", "what": "input"} | choices))  # type: ignore[arg-type]

    export()
    advised(export, "Choose another name, or pass overwrite=True.")
    export(name="other")
    export(overwrite=True)


def test_one_plain_name_and_the_folder_separately(run: hookviz.Run, tmp_path: Path) -> None:
    advised(lambda: run.export(tmp_path, name=" x"), "Choose one plain name such as 'my-export'.")
    run.export(tmp_path, name="my-export", what="input")
    advised(
        lambda: run.export(name=str(tmp_path / "a" / "b")),
        "Give the folder that holds it separately, and one plain name here.",
    )
    assert run.export(tmp_path / "a", name="b", what="input").folder == tmp_path / "a" / "b"


def test_another_folder_for_one_that_cannot_be_written(run: hookviz.Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    advised(lambda: run.export(tmp_path / "file"), "Choose another folder.")
    advised(lambda: run.export(tmp_path / ("x" * 300)), "Choose a shorter one.")
    run.export(tmp_path / "x", what="input")


def test_another_name_for_a_zip_that_exists(run: hookviz.Run, tmp_path: Path) -> None:
    folder = run.export(tmp_path, what="input").folder
    target = tmp_path / "a.zip"
    zip_export(folder, target)
    advised(lambda: zip_export(folder, target), "Choose another name.")
    zip_export(folder, tmp_path / "b.zip")


def test_the_closest_part_and_layer(run: hookviz.Run, tmp_path: Path) -> None:
    advised(lambda: run.export(tmp_path, what="grid"), "Did you mean 'grids'?")
    run.export(tmp_path, what="grids")
    advised(lambda: run.export(tmp_path, layers="con"), "Did you mean 'conv'?")
    run.export(tmp_path, layers="conv")
    advised(lambda: run.figure("con"), "Did you mean 'conv'?")
    run.figure("conv")


def test_a_layer_for_a_run_without_one(
    model: hookviz.LoadedModel, run: hookviz.Run, tmp_path: Path
) -> None:
    from hookviz.export import write_export

    remedy = "Run the model with at least one layer first."
    advised(lambda: write_export(run.facts, [], tmp_path), remedy)
    hookviz.feature_maps(model, hookviz.sample_image(), "conv").export(tmp_path)


def test_every_choice_that_is_offered_for_a_layer_of_several_can_be_taken(
    run: hookviz.Run,
) -> None:
    with pytest.raises(LayerError, match='or call="last"'):
        run.select("relu")
    assert [run.select("relu", call).call for call in (1, 2, "last")] == [1, 2, 2]
    with pytest.raises(LayerError, match="Choose one with leaf=") as caught:
        run.select("lstm")
    offered = re.findall(r"([\d.]+): \[", str(caught.value))
    assert len(offered) == len([a for a in run.activations if a.layer == "lstm"]) == 3
    for leaf in offered:
        assert run.select("lstm", leaf=leaf).leaf == leaf
        run.figure("lstm", leaf=leaf)


def test_the_model_and_the_image_for_drawing_again(
    model: hookviz.LoadedModel, tmp_path: Path
) -> None:
    image = tmp_path / "mine.png"
    hookviz.sample_image().image.resize((64, 48)).save(image)
    png = hookviz.feature_maps(model, image, "conv").export(tmp_path).files[-1]
    advised(lambda: hookviz.reproduce(png), "Pass the model: reproduce(png, model=...).")
    advised(
        lambda: hookviz.reproduce(png, model=model),
        "Pass it: reproduce(png, image='path/to/it').",
    )
    assert hookviz.reproduce(png, model=model, image=str(image)).identical


def test_a_png_as_it_was_exported(run: hookviz.Run, tmp_path: Path) -> None:
    from PIL import Image

    png = run.export(tmp_path, what="input").files[0]
    with Image.open(png) as image:
        image.save(tmp_path / "again.png")
    advised(lambda: read_png_facts(tmp_path / "again.png"), "Use a PNG as hookviz exported it.")
    assert read_png_facts(shutil.copy(png, tmp_path / "copy.png"))["model"] == "Twice"


# ── the command line


def hookviz_(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in arguments], prog_name="hookviz")


def test_the_command_line_advises_its_own_options(tmp_path: Path) -> None:
    maps = ("maps", "chelsea.png", "-l", "features.30", "--out", tmp_path, "--weights", "bundled")
    refused = hookviz_(*maps, "--device", "cuda:99")
    assert "Use --device cpu." in refused.stderr
    done = hookviz_(*maps, "--device", "cpu")
    assert done.exit_code == 0
    assert "use --weights DEFAULT" in done.stderr
    for result in (refused, done):
        assert not re.search(r"\b(device|weights|model|image)=", result.output)


def test_drawing_again_with_the_option_that_is_advised(tmp_path: Path) -> None:
    image = tmp_path / "mine.png"
    hookviz.sample_image().image.resize((64, 48)).save(image)
    model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
    run = hookviz.feature_maps(model, image, "features.30")
    png = next(p for p in run.export(tmp_path, what="grids").files if p.suffix == ".png")
    refused = hookviz_("reproduce", png)
    assert refused.exit_code == 2
    assert "Name its file with --image." in refused.stderr
    assert hookviz_("reproduce", png, "--image", image).stdout.startswith("identical")
    mine = hookviz.feature_maps(Twice(), image, "conv").export(tmp_path, what="grids").files[0]
    assert "Draw it again from Python" in hookviz_("reproduce", mine).stderr


@pytest.mark.parametrize("command", ["hookviz layers vgg16", "hookviz models"])
def test_the_command_that_is_advised_lists_what_is_legal(command: str) -> None:
    refused = {
        "hookviz layers vgg16": ("maps", "chelsea.png"),
        "hookviz models": ("models", "no such net"),
    }
    assert f"`{command}` lists" in hookviz_(*refused[command]).stderr
    listed = hookviz_(*command.split()[1:])
    assert listed.exit_code == 0
    assert ("features.0" if "layers" in command else "resnet18") in listed.stdout


def test_help_that_is_advised_is_there() -> None:
    for arguments in (["layers"], ["maps", "--lyer"], ["lab", "--port", "no"], ["map"]):
        advice = re.search(r"Try 'hookviz ?(\w*) ?--help'", hookviz_(*arguments).stderr)
        assert advice is not None
        assert "Usage:" in hookviz_(*filter(None, [advice[1]]), "--help").output


def test_options_that_are_said_to_be_legal_are(run: hookviz.Run) -> None:
    with pytest.raises(HookvizError) as caught:
        GridOptions(scale="x")
    legal = re.findall(r"'(\w+)'", str(caught.value).split("legal are")[1])
    for scale in legal:
        ends = {"vmin": 0, "vmax": 1} if scale in {"fixed", "shared", "running"} else {}
        run.figure("conv", scale=scale, **ends)


def test_an_unknown_argument_of_export_is_named_by_python_itself(run: hookviz.Run) -> None:
    with pytest.raises(TypeError, match="foo"):
        run.export(foo=3)  # type: ignore[call-arg]
    with pytest.raises(ExportError, match="legal are 'npz' and 'safetensors'"):
        run.export(values="pickle")  # type: ignore[arg-type]
