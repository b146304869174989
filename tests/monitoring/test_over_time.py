"""A layer's maps at all steps that were drawn: the values, on one scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import hookviz
from hookviz.cli import cli
from hookviz.errors import MonitorError
from hookviz.monitoring import Monitor, SavedHistory

from .conftest import Small, batches, train


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Monitor, SavedHistory, list[object]]:
    """A training in memory and one in a folder, alike; conv1's maps by another way."""
    folder, image = tmp_path_factory.mktemp("runs") / "a", hookviz.sample_image()
    found, wanted = [], []
    for out in (None, folder):
        torch.manual_seed(0)
        model = Small()
        with hookviz.monitor(
            model, ["conv1", "relu"], every=2, probe=image, out=out, width=300
        ) as m:
            for number, batch in enumerate(batches(4)):
                if out is None and number % 2 == 0:
                    wanted.append(
                        hookviz.feature_maps(model, image, ["conv1"]).activations[0].tensor
                    )
                train(model, [batch], m.step, lr=0.5)
            wanted.append(hookviz.feature_maps(model, image, ["conv1"]).activations[0].tensor)
        found.append(m)
    return found[0], hookviz.open_monitor(folder), wanted


def test_the_values_are_those_of_feature_maps(watched: tuple[Monitor, SavedHistory, list]) -> None:
    m, saved, wanted = watched
    for history in (m, saved):
        over = history.over_time("conv1")
        assert over.steps == (0, 2, 4)
        for step, tensor in zip(over.steps, wanted, strict=False):
            assert torch.equal(over.activation(step).tensor, tensor)
        assert np.array_equal(over.values(3)[1], wanted[1][0, 3].double().numpy())
        assert history.over_time("relu", call=2).activation(0).call == 2
    weight = saved.over_time("conv1", kind="filters").activation().tensor
    assert torch.equal(weight, m.over_time("conv1", kind="filters").activation().tensor)


def test_one_scale_serves_all_steps(watched: tuple[Monitor, SavedHistory, list]) -> None:
    m, saved, wanted = watched
    over = m.over_time("conv1")
    # Each step's own ends, by another way.
    own = [hookviz.render.draw(t).vmax for t in wanted[:3]]
    assert len(set(own)) > 1
    assert over.ends == (-max(own), max(own))
    drawings = [over.drawing(step, {"width": 600}) for step in over.steps]
    assert {(d.vmin, d.vmax) for d in drawings} == {over.ends}
    assert all("shared scale" in d.scale for d in drawings)
    assert drawings[1].options.title == "conv1 after 2 steps"
    assert (
        saved.over_time("conv1").drawing(2, {"width": 600}).png_bytes() == drawings[1].png_bytes()
    )
    mine = over.drawing(2, {"scale": "full", "width": 600})
    assert (mine.vmin, mine.vmax) != over.ends


def test_a_channel_is_shown_at_several_steps(watched: tuple[Monitor, SavedHistory, list]) -> None:
    m, saved, wanted = watched
    plain = {"width": 600, "bare": True, "labels": False}
    strip = m.over_time("conv1").strip_drawing(3, 8, plain)
    assert len({top for top, _, _, _ in strip.places}) == 1  # one row
    maps = torch.stack([t[0, 3] for t in wanted[:3]])[None]
    wide = hookviz.render.GridOptions(**plain, ncols=3)
    same = hookviz.render.draw(maps, wide)
    assert (strip.vmin, strip.vmax) == (same.vmin, same.vmax)
    assert np.array_equal(strip.pixels(), same.pixels())
    figure = saved.over_time("conv1").strip(3, width=700)
    assert figure.canvas.get_width_height()[0] == 700
    two = m.over_time("conv1").strip_drawing(3, 2, {})
    assert len(two.channels) == 2
    assert "one scale for all 2 steps" in " ".join(two.notes)


def test_what_there_is_not_is_a_sentence(watched: tuple[Monitor, SavedHistory, list]) -> None:
    m, saved, _ = watched
    with pytest.raises(MonitorError, match="no maps of 'conv2'"):
        m.over_time("conv2")
    with pytest.raises(MonitorError, match="conv1 has no channel 6 to show; it has 0 to 5"):
        m.over_time("conv1").strip(6)
    with pytest.raises(MonitorError, match=r"kept at step 3; there are \[0, 2, 4\]"):
        saved.over_time("conv1").figure(3)
    with pytest.raises(MonitorError, match="legal is a number from 2"):
        m.over_time("conv1").strip(0, most=1)
    file = next((saved.path / "values").glob("00000002_000*"))
    whole = file.read_bytes()
    for damaged in (b"no npz", whole[:-30]):
        file.write_bytes(damaged)
        with pytest.raises(MonitorError, match="cannot be read"):
            saved.over_time("conv1").figure(2)
    file.write_bytes(whole)


def test_the_command_line_writes_strips(
    watched: tuple[Monitor, SavedHistory, list], tmp_path: Path
) -> None:
    _, saved, _ = watched
    out = tmp_path / "figures"
    arguments = ["monitor", str(saved.path), "-l", "relu", "-q", "zeros", "-c", "1", "-o", str(out)]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert {"relu_call1_channel1.png", "relu_call2_channel1.png"} <= {p.name for p in out.iterdir()}
    done = CliRunner().invoke(cli, [*arguments[:-4], "-c", "9", "-o", str(out)])
    assert done.exit_code == 2
    assert "has no channel 9" in done.output
