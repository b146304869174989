"""``hookviz sweep`` and ``hookviz visualize``."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

import hookviz
from hookviz.cli import cli

VGG = ["--model", "vgg16", "--weights", "bundled", "--device", "cpu"]


def test_a_sweep_prints_a_table_and_writes_all_channels(tmp_path: Path):
    csv = tmp_path / "effects.csv"
    given = ["sweep", "chelsea.png", *VGG, "-l", "features.28", "--top", "3", "-o", str(csv),
             "--target", "channel 7 of features.29"]  # fmt: skip
    done = CliRunner().invoke(cli, given)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].split() == ["rank", "channel", "effect", "score", "without"]
    # Nothing but a ReLU lies between: channel 7 alone has an effect.
    assert done.stdout.splitlines()[1].split()[:2] == ["1", "7"]
    assert len(done.stdout.splitlines()) == 4
    assert len(csv.read_text().splitlines()) == 513
    again = CliRunner().invoke(cli, given)
    assert again.exit_code == 2
    assert "exists already" in again.output


def test_a_visualization_is_written_and_done_again(tmp_path: Path):
    given = ["visualize", *VGG, "-l", "features.5", "-c", "3", "--size", "32", "--steps", "2",
             "--seed", "5", "-o", str(tmp_path)]  # fmt: skip
    done = CliRunner().invoke(cli, given)
    assert done.exit_code == 0, done.output
    assert "channel 3 of features.5: " in done.stderr
    (grid,) = tmp_path.glob("*/*grid*.png")
    assert hookviz.export.read_png_facts(grid)["seed"] == "5"
    again = CliRunner().invoke(cli, ["reproduce", str(grid)])
    assert again.exit_code == 0, again.output


def test_bad_input_exits_with_2_and_one_sentence(tmp_path: Path):
    for given, part in (
        (["visualize", *VGG, "-l", "features.5", "-c", "999", "--steps", "1"], "0 to 127"),
        (["visualize", *VGG, "-c", "cat"], "convolutional layers alone"),
        (["sweep", "chelsea.png", *VGG, "-l", "features.99"], "features.9"),
    ):
        done = CliRunner().invoke(cli, [*given, *(["-o", str(tmp_path / "no")])])
        assert done.exit_code == 2, done.output
        assert part in done.output
    assert not (tmp_path / "no").exists()
