"""Explanations as files: drawn again they are identical; the command line writes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import hookviz
from hookviz.cli import cli
from hookviz.errors import ExportError, HookvizError
from hookviz.export import read_png_facts

LAYERS = ["features.23", "features.16"]
TARGETS = ["channel 31 of features.28", "channel 7 of features.28 at 5, 7"]


@pytest.fixture(scope="module")
def vgg() -> Any:
    return hookviz.load_model("vgg16", weights="bundled", device="cpu")


@pytest.mark.parametrize(
    ("method", "options", "parts"),
    [
        ("gradcam", {}, ("grids", "contact", "input", "channels")),
        ("eigencam", {}, ("grids", "contact", "input", "channels")),
        # Which is computed anew for each file, with a forward of the rest for each channel.
        ("ablationcam", {"channels": 3}, ("grids",)),
    ],
)
def test_every_exported_png_is_drawn_again(
    vgg: Any, photo: Any, tmp_path: Path, method: str, options: Any, parts: tuple[str, ...]
) -> None:
    found = hookviz.explain(vgg, photo, LAYERS, target=TARGETS, method=method, **options)
    result = found.export(tmp_path, what=parts)
    pngs = [path for path in result.files if path.suffix == ".png"]
    assert len(pngs) > (4 if "channels" in parts else 1)
    for path in pngs:
        again = hookviz.reproduce(path)
        assert again.identical, (path.name, again.differences)


def test_a_png_says_method_target_layer_and_scale(vgg: Any, photo: Any, tmp_path: Path) -> None:
    found = hookviz.explain(vgg, photo, LAYERS, target=TARGETS)
    path = next(p for p in found.export(tmp_path).files if "features.16" in p.name)
    texts = read_png_facts(path)
    assert texts["method"] == "Grad-CAM"
    assert texts["target"] == "; ".join(TARGETS)
    assert texts["layer"] == "features.16"
    assert texts["kind"] == "attribution"
    low, high = float(texts["vmin"]), float(texts["vmax"])
    maps = [found.map("features.16", target) for target in (0, 1)]
    assert low == 0
    assert high == pytest.approx(max(float(m.max()) for m in maps))
    assert "0 to" in texts["scale"]


def test_another_target_is_not_identical(vgg: Any, photo: Any, tmp_path: Path) -> None:
    found = hookviz.explain(vgg, photo, "features.16", target=TARGETS[0])
    path = next(p for p in found.export(tmp_path).files if "features.16" in p.name)
    again = hookviz.reproduce(path, image=hookviz.sample_image("coffee.png"))
    assert not again.identical
    assert not again.same_pixels


def test_a_function_is_in_no_file(vgg: Any, photo: Any, tmp_path: Path) -> None:
    found = hookviz.explain(vgg, photo, "features.16", target=lambda out: out[:, 3].mean())
    path = next(p for p in found.export(tmp_path).files if "features.16" in p.name)
    with pytest.raises(ExportError, match="no file holds a function"):
        hookviz.reproduce(path)


def command(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["explain", *arguments])


def test_the_command_writes_what_python_writes(vgg: Any, photo: Any, tmp_path: Path) -> None:
    outcome = command(
        "chelsea.png", "--model", "vgg16", "--weights", "bundled", "--device", "cpu",
        "-l", "features.16", "--target", TARGETS[0], "--method", "hirescam", "-o", str(tmp_path),
    )  # fmt: skip
    assert outcome.exit_code == 0, outcome.output
    (folder,) = tmp_path.iterdir()
    assert str(folder) in outcome.output
    assert f"{TARGETS[0]}: score" in outcome.output
    (path,) = folder.glob("*features.16*.png")
    assert hookviz.reproduce(path).identical
    found = hookviz.explain(vgg, photo, "features.16", target=TARGETS[0], method="hirescam")
    assert float(read_png_facts(path)["vmax"]) == float(found.map().max())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-l", "features.16", "--method", "gradcan"], "no method 'gradcan'"),
        (["-l", "features.99"], "no layer 'features.99'"),
        ([], "none was named"),
        (["-l", "features.16", "--target", "tabby"], "No classifier"),
        (["-l", "features.16", "--call", "first"], "--call is 'first'"),
        (["-l", "features.29", "--target", "channel 0 of features.28"], "runs after 'features.28'"),
        (["-l", "features.16", "--channels", "3"], "Grad-CAM has no option 'channels'"),
    ],
)
def test_what_the_command_cannot_do_is_a_sentence(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    outcome = command("chelsea.png", "--weights", "bundled", "-o", str(tmp_path), *arguments)
    assert outcome.exit_code == 2
    assert sentence in outcome.output
    assert "Traceback" not in outcome.output
    assert not list(tmp_path.iterdir())


def test_a_name_of_a_class_is_found(photo: Any) -> None:
    model = hookviz.load_model("squeezenet1_1", weights=None, device="cpu")
    assert len(model.categories) in (0, 1000)
    with pytest.raises(HookvizError, match=r"tab|names"):
        hookviz.explain(model, photo, "features.12", target="tabbby")
