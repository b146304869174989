"""Runs with edits: what they answer, what they and their files say, how they are done again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from torch import nn

import hookviz
from hookviz.capture import (
    Capture,
    add_noise,
    clamp_gradients,
    edit,
    replace_by_mean,
    replace_by_noise,
    scale,
    zero,
)
from hookviz.errors import CaptureError, HookvizError, LayerError, RunCancelled
from hookviz.images import Preprocessing, read_image, sample_image
from hookviz.run import Run, edits_from_json, edits_to_json, feature_maps, patch_from


@pytest.fixture(scope="module")
def model() -> hookviz.LoadedModel:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, 2), nn.ReLU(inplace=True), nn.Conv2d(4, 6, 3, 2), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5),
    )  # fmt: skip
    names = ("ant", "bee", "cat", "dog", "elk")
    size = Preprocessing(crop=(32, 32), fit="squash")
    return hookviz.load_model(net, categories=names, preprocess=size)


LAYERS = ["0", "1", "2", "3", "6"]


def by_hand(model: hookviz.LoadedModel, run: Run, at: int, change) -> dict[str, torch.Tensor]:
    """The outputs of every layer where that of one layer is changed, without hooks."""
    x, found = run.input.tensor, {}
    with torch.no_grad():
        for index, layer in enumerate(model.module):
            x = layer(x.clone())
            x = change(x) if index == at else x
            found[str(index)] = x.clone()
    return found


def test_all_later_layers_answer_to_the_edit(model):
    def change(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[:, 2] = 0
        return x

    run = feature_maps(model, sample_image(), LAYERS, edits=[zero("0", channels=2)])
    expected = by_hand(model, run, 0, change)
    for layer in LAYERS:
        assert torch.equal(run.select(layer).tensor, expected[layer]), layer
    assert torch.equal(run.output, expected["6"])
    assert [str(one) for one in run.edits] == ["0: zero channel 2"]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.module.modules())


def test_several_edits_in_their_order(model):
    edits = [scale("0", 2.0, place=(1, 2)), replace_by_mean("0", channels=1), zero("2")]
    run = feature_maps(model, sample_image(), LAYERS, edits=edits)

    def change(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[:, :, 1, 2] *= 2
        x[:, 1] = x[:, 1].mean()
        return x

    assert torch.allclose(run.select("0").tensor, by_hand(model, run, 0, change)["0"])
    assert float(run.select("3").tensor.abs().max()) == 0


@pytest.mark.parametrize("place", [None, (3, 3)])
def test_the_value_for_another_image(model, place):
    part = {} if place is None else {"channels": [0, 5], "place": place}
    other = sample_image("coffee.png")
    one = patch_from(other, "2", **part)
    run = feature_maps(model, sample_image(), LAYERS, edits=[zero("0", channels=1), one])
    theirs = feature_maps(model, other, ["2", "3"])
    plain = feature_maps(model, sample_image(), ["2"], edits=[zero("0", channels=1)])
    found, stored = run.select("2").tensor, theirs.select("2").tensor
    if place is None:
        assert torch.equal(found, stored)
        assert torch.equal(run.select("3").tensor, theirs.select("3").tensor)
    else:
        by_hand = plain.select("2").tensor.clone()
        by_hand[:, [0, 5], 3, 3] = stored[:, [0, 5], 3, 3]
        assert torch.equal(found, by_hand)


def test_the_value_of_each_call_and_of_heads_for_another_image():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 12, 8, 8)
            self.relu = nn.ReLU()
            self.attention = nn.MultiheadAttention(12, 3, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.relu(self.relu(self.conv(x)) * -1 + 0.1).flatten(2).transpose(1, 2)
            return self.attention(x, x, x)[0]

    torch.manual_seed(0)
    net = hookviz.load_model(Twice(), preprocess=Preprocessing(crop=(32, 32), fit="squash"))
    a, b = sample_image(), sample_image("coffee.png")
    theirs = feature_maps(net, b, ["relu"], find_axes=False)
    run = feature_maps(net, a, ["relu"], edits=[patch_from(b, "relu", call=2)], find_axes=False)
    plain = feature_maps(net, a, ["relu"], find_axes=False)
    assert torch.equal(run.select("relu", 1).tensor, plain.select("relu", 1).tensor)
    assert torch.equal(run.select("relu", 2).tensor, theirs.select("relu", 2).tensor)

    everything = [patch_from(b, "attention", heads=[0, 1, 2])]
    run = feature_maps(net, a, ["attention"], edits=everything, find_axes=False)
    output = feature_maps(net, b, ["attention"], find_axes=False).select("attention", leaf="0")
    torch.testing.assert_close(
        run.select("attention", leaf="0").tensor, output.tensor, atol=1e-6, rtol=0
    )


def test_before_and_after_compared(model):
    before = feature_maps(model, sample_image(), LAYERS)
    after = feature_maps(model, sample_image(), LAYERS, edits=[zero("2", channels=3)])
    found = hookviz.compare(before, after)
    first = found.first_difference()
    assert first.layer == "2"
    assert first.place[1] == 3
    expected = (after.select("3").tensor - before.select("3").tensor).abs().max()
    assert found.select("3").max_abs == pytest.approx(float(expected), rel=1e-6)
    assert "edited" not in found.a
    assert found.b.endswith("edited: 2: zero channel 3")


EDITS = [
    zero("0", channels=2),
    scale("2", 1.5, channels=[1, 2]),
    replace_by_mean("0", channels=1),
    replace_by_noise("2", seed=3, channels=4),
    patch_from(sample_image("coffee.png"), "2", channels=[0]),
]


def test_files_say_the_edits_and_are_drawn_again(model, tmp_path: Path):
    run = feature_maps(model, sample_image(), ["2", "3"], edits=EDITS)
    made = run.export(tmp_path, name="x", what=("grids", "channels", "values"))
    manifest = json.loads(made.manifest.read_text())
    assert manifest["edits"] == "; ".join(map(str, EDITS))
    grid = next((tmp_path / "x").glob("*_2_*grid*.png"))
    facts = hookviz.export.read_png_facts(grid)
    assert facts["edits"] == manifest["edits"]
    again = hookviz.reproduce(grid, model)
    assert again.identical, again.differences
    single = next((tmp_path / "x").glob("*_2_*ch004.png"))
    assert hookviz.reproduce(single, model).identical
    saved = hookviz.compare(str(tmp_path / "x"), run)
    assert saved.first_difference(0) is None
    assert saved.a.endswith(str(EDITS[-1]))


def test_a_comparison_with_an_edited_run_is_drawn_again(model, tmp_path: Path):
    before = feature_maps(model, sample_image(), ["2"])
    after = feature_maps(model, sample_image(), ["2"], edits=[zero("0", channels=2)])
    hookviz.compare(before, after).export(tmp_path, name="x")
    (grid,) = (tmp_path / "x").glob("*.png")
    again = hookviz.reproduce(grid, model)
    assert again.identical, again.differences
    hookviz.compare(before, before).export(tmp_path, name="y")
    (plain,) = (tmp_path / "y").glob("*.png")
    assert "edits" not in hookviz.export.read_png_facts(plain)


def test_an_edited_figure_says_so(model):
    run = feature_maps(model, sample_image(), ["2"], edits=[zero("0", channels=2)])
    plain = feature_maps(model, sample_image(), ["2"])
    said = [[t.get_text() for t in r.figure("2").findobj(Text)] for r in (run, plain)]
    edited = [any(text.startswith("edited: 0: zero channel 2") for text in each) for each in said]
    assert edited == [True, False]


def test_another_image_that_is_not_at_hand(model, tmp_path: Path):
    own = read_image(np.full((40, 40, 3), 99, np.uint8))
    run = feature_maps(model, sample_image(), ["2"], edits=[patch_from(own, "0")])
    run.export(tmp_path, name="x", what="grids")
    (grid,) = (tmp_path / "x").glob("*.png")
    with pytest.raises(HookvizError, match="other image of an edit"):
        hookviz.reproduce(grid, model)
    assert hookviz.reproduce(grid, model, [sample_image(), own]).identical


def test_edits_to_json_and_back():
    text = edits_to_json(EDITS)
    back = edits_from_json(text, [sample_image("coffee.png")])
    assert [str(one) for one in back] == [str(one) for one in EDITS]
    assert edits_to_json(back) == text
    assert edits_to_json([]) == ""
    assert edits_from_json("") == ()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "not JSON"),
        ("{}", "no list"),
        ('[{"edit":null,"text":"0: noise of 1"}]', "'0: noise of 1' holds a function"),
        ('[{"edit":"patch_from","layers":["0"],"image":"x.png"}]', "'x.png', is not at hand"),
        ('[{"edit":"patch_from","layers":3}]', "a list of names"),
        ("[3]", "is a mapping"),
    ],
)
def test_texts_of_edits_are_checked(text, part):
    with pytest.raises(HookvizError) as caught:
        edits_from_json(text)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("edits", "kind", "part"),
    [
        ("zero", CaptureError, "edit takes edits, not str"),
        (zero("0"), CaptureError, "edits is a list of edits, not Edit"),
        (3, CaptureError, "edits is a list of edits, not int"),
        ([zero("9")], LayerError, "'9'"),
        ([zero("0", channels=4)], CaptureError, "its channels are 0 to 3"),
        ([clamp_gradients("0", 1.0)], CaptureError, "edits a gradient"),
        ([zero("0", call=2)], LayerError, "changed nothing"),
        ([zero("0", heads=1)], LayerError, "has no attention heads"),
    ],
)
def test_bad_edits_are_one_sentence_and_leave_nothing(model, edits, kind, part):
    with pytest.raises(kind) as caught:
        feature_maps(model, sample_image(), "2", edits=edits)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.module.modules())


def test_cancel_while_the_other_image_runs(model):
    with pytest.raises(RunCancelled):
        feature_maps(
            model, sample_image(), "2", edits=[patch_from(sample_image("coffee.png"), "2")],
            cancelled=lambda: True,
        )  # fmt: skip
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.module.modules())


def test_another_image_needs_a_run(model):
    x = torch.zeros(1, 3, 32, 32)
    with (
        edit(model.module, patch_from(sample_image(), "0")),
        pytest.raises(CaptureError, match="is not known here"),
    ):
        model.module(x)


def test_an_own_function_runs_and_its_file_says_that_it_cannot_be_done_again(model, tmp_path):
    generator = torch.Generator().manual_seed(0)
    run = feature_maps(model, sample_image(), "2", edits=[add_noise("0", 0.1, generator=generator)])
    run.export(tmp_path, name="x", what="grids")
    (grid,) = (tmp_path / "x").glob("*.png")
    with pytest.raises(CaptureError, match=r"'0: noise of 0\.1' holds a function"):
        hookviz.reproduce(grid, model)


def test_the_axes_are_not_taken_for_random_by_an_edit(model):
    run = feature_maps(model, sample_image(), LAYERS, edits=[zero("0")])
    assert not any(a.axes and a.axes.random for a in run.activations)


def test_a_capture_outside_sees_the_edited_forward(model):
    with Capture(model.module, "3") as capture:
        run = feature_maps(model, sample_image(), "3", edits=[zero("2")], find_axes=False)
    assert torch.equal(capture.output("3"), run.select("3").tensor)
