"""The panel What if: its edits are those that the library runs, and so are its numbers."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

import hookviz
from hookviz import sample_image
from hookviz.capture import replace_output, scale, zero
from hookviz.errors import ExportError
from hookviz.images import Preprocessing
from hookviz.models import LoadedModel
from hookviz.run import patch_from
from hookviz.widget import Explorer, explore

NAMES = ("cat", "dog", "cup")


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.relu(self.conv(x)).mean((2, 3)) * 20)


@pytest.fixture
def model() -> LoadedModel:
    torch.manual_seed(0)
    return LoadedModel(
        Classifier(),
        "net",
        "as passed in",
        True,
        categories=NAMES,
        preprocess=Preprocessing.for_size(24),
        passed_in=True,
    )


@pytest.fixture
def ready(model: LoadedModel, make_page: Any) -> Iterator[tuple[Explorer, Any, Any]]:
    app = explore(model, sample_image(), ["conv", "relu"], run=False)
    panel = next(part for part in app.parts if type(part).__name__ == "WhatIf")
    yield app, panel, make_page(panel)
    app.close()


def settled(app: Explorer, panel: Any) -> dict[str, Any]:
    assert app.wait(30)
    found: dict[str, Any] = panel.found
    return found


def test_predictions_before_and_after_are_the_models_own(ready: Any, model: LoadedModel) -> None:
    app, panel, page = ready
    page.say("add", what="zero", layer="conv", channels="0-2", place="")
    page.say("add", what="scale", layer="relu", channels="4", factor=3)
    assert panel.alert == {}
    found = settled(app, panel)
    edits = [zero("conv", channels=[0, 1, 2]), scale("relu", 3, channels=4)]
    run = hookviz.feature_maps(model, sample_image(), ["relu"], edits=edits)
    after = run.output.softmax(-1)[0].tolist()
    plain = hookviz.feature_maps(model, sample_image(), ["relu"]).output.softmax(-1)[0].tolist()
    assert plain != after
    by_name = {name: (one, other) for name, one, other in found["classes"]}
    for index, name in enumerate(NAMES):
        assert by_name[name] == pytest.approx((plain[index], after[index]), abs=1e-6)
    assert found["stale"] is False
    assert [entry["text"] for entry in panel.edits] == [str(one) for one in edits]


def test_edits_are_switched_reordered_removed_and_undone(ready: Any) -> None:
    app, panel, page = ready
    page.say("add", what="zero", layer="conv", channels="0")
    page.say("add", what="scale", layer="relu", factor=2)
    first, second = (entry["text"] for entry in panel.edits)
    page.say("move", index=0, to=1)
    assert [entry["text"] for entry in panel.edits] == [second, first]
    page.say("switch", index=0, on=False)
    assert [str(one) for one in panel.chosen] == [first]
    page.say("factor", index=0, factor=-1)
    assert panel.edits[0]["factor"] == -1
    page.say("remove", index=1)
    assert len(panel.edits) == 1
    for _ in range(3):
        page.say("undo")
    assert [entry["text"] for entry in panel.edits] == [second, first]
    assert all(entry["on"] for entry in panel.edits)
    for _ in range(9):
        page.say("undo")
    assert panel.edits == []
    assert settled(app, panel) == {}


def test_what_is_not_legal_is_said_at_the_fields_and_the_list_stays(ready: Any) -> None:
    app, panel, page = ready
    page.say("add", what="zero", layer="conv", channels="0")
    assert settled(app, panel)["effect"]
    before = panel.edits
    for wrong in (
        {"what": "zero", "layer": "cnov"},
        {"what": "zero", "layer": "conv", "channels": "many"},
        {"what": "zero", "layer": "conv", "place": "here"},
        {"what": "explode", "layer": "conv"},
        {"what": "other_image", "layer": "conv", "image": "../../etc/passwd"},
        {"what": "scale", "layer": "conv", "factor": 1e30},
    ):
        page.say("add", **wrong)
        assert panel.alert["field"] == "edit", wrong
        assert panel.edits == before
    page.say("remove", index=7)
    page.say("factor", index=0, factor=2)  # it does not scale
    page.say("move", index=0, to=3)
    assert panel.edits == before
    # A channel that the layer lacks is found out when the model runs.
    page.say("add", what="zero", layer="conv", channels="99")
    assert app.wait(30)
    assert "99" in panel.alert["message"]
    page.say("undo")
    assert settled(app, panel)["effect"]
    assert panel.alert == {}


def test_the_effect_is_read_from_the_target_that_was_typed(ready: Any, model: LoadedModel) -> None:
    app, panel, page = ready
    page.say("add", what="zero", layer="conv", channels="1")
    page.say("target", target="dog")
    found = settled(app, panel)
    assert found["effect"].startswith("class 1 (dog)")
    page.say("target", target="channel 3 of relu")
    assert settled(app, panel)["effect"].startswith("channel 3 of relu")
    page.say("target", target="dgo")
    assert app.wait(30)
    assert panel.alert["field"] == "target"


def test_a_layers_value_for_another_image(ready: Any, model: LoadedModel) -> None:
    app, panel, page = ready
    page.say("add", what="other_image", layer="relu", image="coffee.png")
    found = settled(app, panel)
    other = hookviz.feature_maps(model, sample_image("coffee.png"), ["relu"])
    expected = other.output.softmax(-1)[0].tolist()
    by_name = {name: after for name, _, after in found["classes"]}
    assert [by_name[name] for name in NAMES] == pytest.approx(expected, abs=1e-6)
    assert panel.edits[0]["text"] == str(patch_from(sample_image("coffee.png"), "relu"))


def test_channels_are_ranked_as_sweep_ranks_them(ready: Any, model: LoadedModel) -> None:
    app, panel, page = ready
    page.say("target", target="cup")
    page.say("rank", layer="relu")
    assert app.wait(30)
    expected = hookviz.sweep(model, sample_image(), "relu", target="cup")
    assert [row[0] for row in panel.ranking["rows"]] == [channel for channel, _ in expected.top(20)]
    page.say("table")
    assert page.last("table")[0]["text"] == expected.to_csv()
    assert not panel.ranking["edited"]
    page.say("add", what="zero", layer="conv", channels="0")
    page.say("rank", layer="relu")
    assert app.wait(30)
    assert panel.ranking["edited"]
    assert page.last("table")[0]["text"] == expected.to_csv()
    page.say("rank", layer="rleu")
    assert app.wait(30)
    assert "rleu" in panel.alert["message"]


def test_the_maps_before_and_after_stand_in_compare(ready: Any, model: LoadedModel) -> None:
    app, _, page = ready
    page.say("compare")
    assert "edit" in app.alert["message"]
    page.say("add", what="zero", layer="conv", channels="0")
    assert app.wait(30)
    page.say("compare")
    assert app.wait(30)
    comparison = app.comparison
    assert comparison is not None
    assert comparison.first_difference().layer == "conv"


def test_what_can_be_named_of_a_layer_is_told_and_is_what_edits_take(
    ready: Any, model: LoadedModel
) -> None:
    app, panel, page = ready
    assert app.wait(30)
    assert panel.layers == ["conv", "relu", "fc"]
    page.say("layer", layer="conv")
    assert panel.parts == {"layer": "conv", "channels": 6, "places": [24, 24], "heads": 0}
    page.say("layer", layer="fc ")
    assert panel.parts == {"layer": "fc", "channels": 3, "places": [], "heads": 0}
    page.say("layer", layer="cnov")
    assert panel.parts["channels"] == 0
    for channels, place, fine in (("5", "23, 23", True), ("6", "", False), ("", "24, 0", False)):
        page.say("add", what="zero", layer="conv", channels=channels, place=place)
        assert app.wait(30)
        assert (panel.alert == {}) == fine
        page.say("undo")
        assert app.wait(30)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 8, 8)
        self.attn = nn.MultiheadAttention(8, 4, batch_first=True)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.fc(self.attn(x, x, x)[0].mean(1))


def test_as_many_heads_are_offered_as_the_layer_has(make_page: Any) -> None:
    torch.manual_seed(0)
    loaded = hookviz.load_model(Attending(), preprocess=Preprocessing.for_size(24))
    app = explore(loaded, sample_image(), ["attn"])
    panel = app.what_if
    page = make_page(panel)
    try:
        assert app.wait(30)
        page.say("layer", layer="attn")
        assert panel.parts["heads"] == 4
        page.say("add", what="zero", layer="attn", heads="0,3")
        assert settled(app, panel)["effect"]
        assert str(panel.chosen[0]) == "attn: zero heads 0, 3"
    finally:
        app.close()


def test_edits_go_with_their_model(ready: Any) -> None:
    app, panel, page = ready
    page.say("add", what="zero", layer="conv", channels="0")
    assert app.wait(30)
    app.image = sample_image("coffee.png")
    assert app.wait(30)
    assert panel.found["stale"] is True
    assert len(panel.edits) == 1
    app.model = nn.Sequential(nn.Conv2d(3, 4, 3))
    assert panel.edits == []
    assert panel.found == {}


def photo_bytes() -> bytes:
    file = io.BytesIO()
    Image.effect_noise((40, 30), 80).convert("RGB").save(file, "PNG")
    return file.getvalue()


def upload(page: Any, data: bytes) -> str:
    page.say("upload-start", id="u", name="other.png", size=len(data))
    page.say("upload-piece", data, id="u", offset=0)
    assert page.widget.app.wait(30)
    key: str = page.last("upload-done")[0]["image"]
    return key


def test_a_photo_of_ones_own_gives_its_value_and_earlier_ones_stay(
    ready: Any, model: LoadedModel
) -> None:
    app, panel, page = ready
    data = photo_bytes()
    key = upload(page, data)
    assert panel.images[0] == [key, "other.png"]
    assert app.image.name == "chelsea.png"  # it is for edits alone
    page.say("add", what="other_image", layer="relu", image=key)
    found = settled(app, panel)
    expected = hookviz.feature_maps(model, data, ["relu"]).output.softmax(-1)[0].tolist()
    by_name = {name: after for name, _, after in found["classes"]}
    assert [by_name[name] for name in NAMES] == pytest.approx(expected, abs=1e-6)
    app.image = data
    app.image = sample_image("coffee.png")
    assert [key, "other.png"] in panel.images
    page.say("upload-start", id="v", name="no.png", size=4)
    page.say("upload-piece", b"none", id="v", offset=0)
    assert app.wait(30)
    assert page.last("upload-refused")[0]["id"] == "v"
    assert "no.png" in panel.alert["message"]


def test_runs_are_edited_where_that_is_asked_for_and_all_that_is_kept_says_so(
    ready: Any, model: LoadedModel, tmp_path: Path
) -> None:
    app, _, page = ready
    assert app.start_run()
    assert app.wait(30)
    plain = app.run.select("relu").tensor.clone()
    page.say("add", what="scale", layer="conv", channels="1", factor=-2)
    assert app.wait(30)
    assert app.edits == ()
    assert not app.results.stale
    page.say("run-edited", on=True)
    assert app.results.stale == {"conv", "relu"}
    assert app.start_run()
    assert app.wait(30)
    expected = hookviz.feature_maps(
        model, sample_image(), ["conv", "relu"], edits=[scale("conv", -2, channels=1)]
    )
    found = app.run.select("relu").tensor
    assert torch.equal(found, expected.select("relu").tensor)
    assert not torch.equal(found, plain)
    text = str(scale("conv", -2, channels=1))
    assert {card["edited"] for card in app.gallery.cards} == {text}
    assert text in app.predictions["reason"]
    # What is exported says it, and is made again with it.
    png = next(f for f in app.export(tmp_path).files if "relu" in f.name and f.suffix == ".png")
    assert Image.open(png).text["edits"] == text
    assert hookviz.reproduce(png, model=model, image=sample_image()).identical
    page.say("factor", index=0, factor=1)
    assert app.results.stale == {"conv", "relu"}
    page.say("remove", index=0)
    assert app.edits == ()


def test_edits_and_their_images_come_back_with_a_session(
    ready: Any, model: LoadedModel, tmp_path: Path, make_page: Any
) -> None:
    app, panel, page = ready
    other = upload(page, photo_bytes())
    page.say("add", what="other_image", layer="conv", place="3, 4", image=other)
    page.say("add", what="zero", layer="relu", channels="0-2")
    page.say("switch", index=1, on=False)
    page.say("run-edited", on=True)
    assert app.wait(30)
    file = app.save(tmp_path / "edited.hookviz.json")
    again = explore(model, session=file, run=True)
    try:
        assert again.wait(30)
        assert again.what_if.edits == panel.edits
        assert again.what_if.run_edited
        assert again.start_run() or again.run is not None
        assert again.wait(30)
        assert app.start_run()
        assert app.wait(30)
        assert torch.equal(again.run.output, app.run.output)
        assert len(again.run.edits) == 1
    finally:
        again.close()
    app.edits = [zero("conv", channels=5)]
    assert [entry["text"] for entry in panel.edits] == ["conv: zero channel 5"]
    assert panel.run_edited
    app.edits = []
    assert panel.edits == []


def test_an_edit_that_no_file_can_say_is_named(ready: Any, tmp_path: Path) -> None:
    app, _, _ = ready
    app.edits = replace_output("conv", lambda t: t * 2)
    with pytest.raises(ExportError, match="What if"):
        app.save(tmp_path / "own.hookviz.json")
    assert "Set edit_1 first" in app.as_python()


def test_what_is_pressed_while_a_job_goes_says_so_and_a_double_press_is_one(
    ready: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, panel, page = ready
    settled(app, panel)
    gate = threading.Event()
    app.begin("running", "Running net …", lambda _cancelled: gate.wait(30))
    page.say("rank", layer="conv")
    assert app.alert["message"] == "Something else is going on: wait for it, or cancel it."
    gate.set()
    assert app.jobs.wait(30)
    page.say("dismiss")
    gate.clear()
    app.begin("running", "Ranking the channels of conv …", lambda _cancelled: gate.wait(30))
    page.say("rank", layer="conv")
    assert (app.alert, panel.ranking) == ({}, {})
    monkeypatch.setattr("hookviz.widget._explorer._DOUBLE_PRESS", 0)
    page.say("rank", layer="conv")  # perhaps of another class
    assert app.alert["message"].startswith("Something else is going on")
    gate.set()
    assert app.jobs.wait(30)
