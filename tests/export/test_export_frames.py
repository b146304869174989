"""Exports of frames: numbered files or one animation, and one manifest."""

from __future__ import annotations

import io
import json
from pathlib import Path

import click
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import hookviz
from hookviz.errors import ExportError
from hookviz.export import ExportStopped, FrameExport, read_png_facts
from hookviz.images import Preprocessing
from hookviz.render import GridOptions

SMALL = GridOptions(width=300, dpi=60)


@pytest.fixture(scope="module")
def model() -> hookviz.LoadedModel:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU(), nn.Flatten())
    return hookviz.load_model(net, preprocess=Preprocessing(crop=(12, 12), fit="squash"))


def shades(count: int) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, 12, 12, 3), np.uint8)
    return [Image.fromarray(one // (1 + n)) for n, one in enumerate(pixels)]


def export(model: hookviz.LoadedModel, folder: Path, count: int = 3, **choices: object):
    choices = {"options": SMALL, **choices}
    with FrameExport(folder, **choices) as writer:
        for number, run in enumerate(hookviz.feature_maps(model, shades(count), ["0", "1"])):
            writer.add(run.facts, run.activations, number=5 * number, seconds=number / 4)
        return writer.finish()


def test_each_frame_has_its_numbered_files_and_one_manifest_lists_them_all(model, tmp_path):
    result = export(model, tmp_path)
    names = [path.name for path in result.files]
    assert names == [
        f"{number:06d}_{stem}_grid_p1of1.png"
        for number in (0, 5, 10)
        for stem in ("001_0_Conv2d", "002_1_ReLU")
    ]
    manifest = json.loads(result.manifest.read_text())
    assert manifest["complete"] is True
    assert manifest["files"] == sorted(names)
    assert sorted(p.name for p in result.folder.iterdir()) == sorted([*names, "manifest.json"])
    assert [frame["number"] for frame in manifest["frames"]] == [0, 5, 10]
    assert [frame["seconds"] for frame in manifest["frames"]] == [0.0, 0.25, 0.5]
    assert [layer["file"] for f in manifest["frames"] for layer in f["layers"]] == names


def test_a_frames_file_is_drawn_again_from_its_frame(model, tmp_path):
    result = export(model, tmp_path, hold="running")
    facts = read_png_facts(result.files[-1])
    assert facts["scale"].startswith("running scale")
    again = hookviz.reproduce(result.files[-1], model, shades(3)[-1])
    assert again.identical, again.differences


def test_a_held_scale_is_the_widest_that_the_frames_had(model, tmp_path):
    free = json.loads(export(model, tmp_path).manifest.read_text())["frames"]
    held = json.loads(export(model, tmp_path, hold="running").manifest.read_text())["frames"]
    own = [float(frame["layers"][1]["vmax"]) for frame in free]
    assert own != sorted(own)  # or the next line would show nothing
    assert [float(f["layers"][1]["vmax"]) for f in held] == list(np.maximum.accumulate(own))


@pytest.mark.parametrize(("form", "ending"), [("apng", "png"), ("webp", "webp"), ("gif", "gif")])
def test_an_animation_has_one_file_a_layer_with_every_frame(model, tmp_path, form, ending):
    result = export(model, tmp_path, form=form)
    assert [p.name for p in result.files] == [
        f"001_0_Conv2d_grid_p1of1.{ending}", f"002_1_ReLU_grid_p1of1.{ending}",
    ]  # fmt: skip
    files = export(model, tmp_path).files[::2]
    with Image.open(result.files[0]) as animation:
        assert animation.n_frames == 3
        for number, file in enumerate(files):
            animation.seek(number)
            shown = np.asarray(animation.convert("RGB"))
            with Image.open(file) as page:
                drawn = np.asarray(page.convert("RGB"))
            if form != "gif":  # lossless
                assert np.array_equal(shown[: len(drawn)], drawn)
    frames = hookviz.read_frames(result.files[0])
    assert [frame.seconds for frame in frames] == pytest.approx([0.0, 0.25, 0.5])


def test_an_export_that_is_ended_keeps_its_frames_and_says_so(model, tmp_path):
    runs = hookviz.feature_maps(model, shades(3), ["0"])

    def interrupted() -> None:
        with FrameExport(tmp_path, options=SMALL) as writer:
            for run in runs:
                writer.add(run.facts, run.activations)
                if writer.count == 2:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (folder,) = tmp_path.iterdir()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["complete"] is False
    assert manifest["stopped"] == "Ended by KeyboardInterrupt."
    assert len(manifest["files"]) == len(manifest["frames"]) == 2


def test_a_folder_that_cannot_be_made_is_one_sentence(model, tmp_path):
    (tmp_path / "taken").write_text("")
    run = hookviz.feature_maps(model, shades(1)[0], "0")
    with pytest.raises(ExportStopped, match=r"Nothing can be written to .*taken"):
        FrameExport(tmp_path / "taken").add(run.facts, run.activations)
    with pytest.raises(ExportError, match="there was no frame"):
        FrameExport(tmp_path).finish()
    with pytest.raises(ExportError, match="form='mp4'; legal are files, apng, webp, gif"):
        FrameExport(tmp_path, form="mp4")


def test_the_command_writes_each_nth_frame_of_an_animation(tmp_path):
    from hookviz.cli import cli

    file = io.BytesIO()
    first, *others = shades(5)
    first.save(file, "GIF", save_all=True, append_images=others, duration=100)
    (tmp_path / "clip.gif").write_bytes(file.getvalue())
    model = ["--model", "squeezenet1_1", "-l", "features.0"]
    arguments = ["maps", str(tmp_path / "clip.gif"), *model]
    options = ["--weights", "none", "--device", "cpu", "--every", "2", "--out", str(tmp_path / "o")]
    cli.main([*arguments, *options], standalone_mode=False)
    (folder,) = (tmp_path / "o").iterdir()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [frame["number"] for frame in manifest["frames"]] == [0, 2, 4]
    assert [Path(name).name[:6] for name in manifest["files"]] == ["000000", "000002", "000004"]
    with pytest.raises(click.ClickException, match="leave out --channels"):
        cli.main([*arguments, *options, "--channels", "1"], standalone_mode=False)
    with pytest.raises(click.ClickException, match="give --every as well"):
        cli.main([*arguments, "--hold", "running"], standalone_mode=False)
