"""The panel Explain shows what `hookviz.explain` gives; what does not suit is said at its field."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

import hookviz
from hookviz import sample_image
from hookviz.images import Preprocessing
from hookviz.models import LoadedModel
from hookviz.render import GridOptions
from hookviz.widget import Explorer, explore


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = self.relu(self.conv(x))
        return self.fc((maps * maps).mean((2, 3)))


@pytest.fixture
def model() -> LoadedModel:
    torch.manual_seed(0)
    names = ("tabby cat", "tiger cat", "dog")
    return LoadedModel(
        Classifier(),
        "net",
        "as passed in",
        True,
        categories=names,
        preprocess=Preprocessing.for_size(24),
        passed_in=True,
    )


@pytest.fixture
def ready(model: LoadedModel, make_page: Any) -> Iterator[tuple[Explorer, Any, Any]]:
    app = explore(model, sample_image(), ["conv"], run=False)
    panel = next(part for part in app.parts if type(part).__name__ == "ExplainImage")
    page = make_page(panel)
    page.say("look", width=600, ratio=1, style="light")
    yield app, panel, page
    app.close()


def test_the_panel_holds_what_explain_gives(ready: Any, model: LoadedModel) -> None:
    app, panel, page = ready
    assert panel.why_not == ""
    page.say("explain", target="dog", options={})
    assert app.wait(30)
    assert (panel.alert, app.alert) == ({}, {}), app.status
    expected = hookviz.explain(model, sample_image(), ["conv"], target="dog")
    assert torch.equal(panel.explanation.map("conv"), expected.map("conv"))
    assert panel.found["targets"] == [
        f"{expected.targets[0]}: {expected.scores[0]:.6g}".replace("-", "−")
    ]
    assert panel.found["stale"] is False
    message, buffers = page.last("figures")
    assert message["ratio"] == 1
    picture = Image.open(io.BytesIO(buffers[0]))
    assert picture.width == 520
    assert [figure["label"] for figure in panel.found["figures"]] == [
        "conv: Grad-CAM of class 2 (dog)"
    ]


def test_the_input_is_explained_without_a_ticked_layer(ready: Any) -> None:
    app, panel, page = ready
    app.layers = []
    assert panel.why_not == "Tick the layers that are to be explained."
    page.say("explain", target="", options={})
    assert "Tick the layers" in app.alert["message"]
    page.say("method", method="integrated_gradients")
    assert panel.why_not == ""
    page.say("explain", target="", options={"steps": "8", "baseline": "black"})
    assert app.wait(30)
    assert panel.alert == {}
    assert "Integrated gradients" in panel.found["title"]
    assert panel.explanation.details["completeness"][0].steps == 8


def test_what_does_not_suit_is_said_at_its_field_and_the_last_result_stays(ready: Any) -> None:
    app, panel, page = ready
    page.say("explain", target="dog", options={})
    assert app.wait(30)
    before = panel.found
    page.say("explain", target="dgo", options={})
    assert app.wait(30)
    assert panel.alert["field"] == "target"
    assert "dog" in f"{panel.alert['message']} {panel.alert['remedy']}"
    assert panel.found == before
    page.say("method", method="scorecam")
    page.say("explain", target="dog", options={"channels": "some"})
    assert panel.alert["field"] == "options"
    page.say("explain", target="dog", options={"nothing": "4"})
    assert panel.alert["field"] == "options"
    page.say("method", method="voodoo")
    assert panel.method == "scorecam"
    page.say("explain", target="dog", options={"channels": "2"})
    assert app.wait(30)
    assert panel.alert == {}
    assert "Score-CAM" in panel.found["title"]


def test_a_pinned_place_of_a_later_layer_is_a_target(ready: Any, make_page: Any) -> None:
    app, panel, page = ready
    assert panel.pinned == ""
    app.layers = ["conv", "relu"]
    gallery = make_page(app.gallery)
    gallery.look()
    assert app.start_run()
    assert app.wait(30)
    app_page = make_page(app)
    version = app.gallery.card("relu#1").version
    app_page.say("pin", key="relu#1", version=version, channel=4, y=5, x=7)
    assert panel.pinned == "channel 4 of relu at 5, 7"
    app.layers = ["conv"]
    page.say("method", method="hirescam")
    page.say("explain", target="channel 4 of relu at 5, 7", options={})
    assert app.wait(30)
    assert panel.alert == {}
    # At one place of the ReLU counts that place of the convolution alone.
    places = panel.explanation.select("conv").tensor[0, 0].nonzero()
    assert places.tolist() in ([[5, 7]], [])


def test_classes_are_found_by_a_part_of_their_name(ready: Any) -> None:
    _, _, page = ready
    page.say("classes", search="cat")
    assert page.last("classes")[0]["names"] == ["tabby cat", "tiger cat"]
    page.say("classes", search="ti")
    assert page.last("classes")[0]["names"] == ["tiger cat"]


def test_an_explanation_goes_with_its_model_and_is_marked_with_another_image(ready: Any) -> None:
    app, panel, page = ready
    page.say("explain", target="dog", options={})
    assert app.wait(30)
    app.image = sample_image("coffee.png")
    assert app.wait(30)
    assert panel.found["stale"] is True
    app.model = nn.Sequential(nn.Conv2d(3, 4, 3))
    assert panel.found == {}
    assert panel.explanation is None


def test_the_export_is_a_zip_that_holds_the_figure(ready: Any, make_page: Any) -> None:
    app, _, page = ready
    app_page = make_page(app)
    page.say("explain", target="dog", options={})
    assert app.wait(30)
    page.say("export", zipped=True)
    assert app.wait(60)
    assert app_page.last("file-ready")[0]["name"].endswith(".zip")


class Attending(nn.Module):
    """A class token and 4 × 4 patches of 8 pixels, which attend to each other twice."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 8, 8)
        self.first = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        self.second = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.fc = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return self.fc(self.second(self.first(x))[:, 0])


@pytest.fixture
def attending(make_page: Any) -> Iterator[tuple[Explorer, Any, Any]]:
    torch.manual_seed(0)
    model = LoadedModel(
        Attending(), "net", "as passed in", True, preprocess=Preprocessing.for_size(32),
        passed_in=True,
    )  # fmt: skip
    app = explore(model, sample_image(), ["first", "second"], run=False)
    panel = next(part for part in app.parts if type(part).__name__ == "ExplainImage")
    page = make_page(panel)
    page.say("look", width=600, ratio=1, style="light")
    page.say("method", method="attention")
    yield app, panel, page
    app.close()


def test_figures_are_as_wide_on_a_fine_screen(ready: Any) -> None:
    app, _, page = ready
    page.say("explain", target="dog", options={})
    assert app.wait(30)
    wide = []
    for ratio in (1, 2):
        page.say("look", width=600 * ratio, ratio=ratio, style="light")
        assert app.wait(30)
        message, buffers = page.last("figures")
        wide.append(Image.open(io.BytesIO(buffers[0])).width / message["ratio"])
    assert wide == [520, 520]


def test_attention_from_the_class_token_and_from_a_patch_of_the_photo(attending: Any) -> None:
    app, panel, page = attending
    page.say("explain", target="", options={})
    assert app.wait(30)
    assert (panel.alert, app.alert) == ({}, {})
    run = hookviz.feature_maps(app.model, sample_image(), ["first", "second"], attention=True)
    layers = [a.layer for a in run.activations if a.kind == "attention"]
    assert [f["label"].partition(":")[0] for f in panel.found["figures"]] == [
        run.select(layer, kind="attention").label for layer in layers
    ]
    assert panel.found["query"] == {
        "rows": 4, "cols": 4, "y": -1, "x": -1, "class": True, "heads": "each", "count": 2,
    }  # fmt: skip
    assert page.last("photo")[1][0]

    def shown() -> list[bytes]:
        return [bytes(b) for b in page.last("figures")[1]]

    def expected(**options: Any) -> list[bytes]:
        return [
            run.drawing(
                layer, kind="attention",
                options=GridOptions(
                    width=520, dpi=100.0, style="light", overlay=True, **options
                ),
            ).png_bytes()
            for layer in layers
        ]  # fmt: skip

    assert shown() == expected(query="class")
    page.say("query", y=0.9, x=0.4)
    assert app.wait(30)
    assert (panel.found["query"]["y"], panel.found["query"]["x"]) == (3, 1)
    assert shown() == expected(query=(3, 1))
    page.say("heads", heads="mean")
    assert app.wait(30)
    assert shown() == expected(query=(3, 1), heads="mean")
    page.say("query")
    assert app.wait(30)
    assert shown() == expected(query="class", heads="mean")
    page.say("heads", heads="1")
    assert app.wait(30)
    assert shown() == expected(query="class", channels=(1,))
    page.say("heads", heads="2")
    assert "0 to 1" in app.alert["message"]
    assert panel.found["query"]["heads"] == "1"
    app.image = sample_image("coffee.png")
    assert panel.found["stale"] is True


def test_rollout_looks_from_where_the_photo_is_pointed_at(attending: Any) -> None:
    app, panel, page = attending
    page.say("method", method="rollout")
    page.say("explain", target="", options={"query": ""})
    assert app.wait(30)
    asked = {"rows": 4, "cols": 4, "y": -1, "x": -1, "class": True, "mean": False}
    assert panel.found["query"] == asked
    assert page.last("photo")[1][0]
    page.say("query", y=0.9, x=0.4)
    assert app.wait(30)
    assert panel.found["query"] == {**asked, "y": 3, "x": 1}
    image, layers = sample_image(), ["first", "second"]
    expected = hookviz.explain(app.model, image, layers, method="rollout", query=(3, 1))
    assert torch.equal(panel.explanation.map("second"), expected.map("second"))
    page.say("explain", target="", options={"query": "mean"})
    assert app.wait(30)
    assert panel.found["query"] == {**asked, "mean": True}
    page.say("query")
    assert app.wait(30)
    assert panel.found["query"] == asked


def test_layers_without_attention_are_named(ready: Any) -> None:
    app, panel, page = ready
    page.say("method", method="attention")
    page.say("explain", target="", options={})
    assert app.wait(30)
    assert "attention" in panel.alert["message"]
    assert app.status["outcome"] == "failed"
    assert panel.found == {}


def test_edits_of_what_if_are_said_not_to_be_in_an_explanation(ready: Any, make_page: Any) -> None:
    app, panel, page = ready
    edits = make_page(app.what_if)
    assert panel.unedited == ""
    plain = hookviz.explain(app.model, sample_image(), ["conv"])
    edits.say("add", what="zero", layer="conv", channels="0")
    assert "without them" in panel.unedited
    edits.say("run-edited", on=True)
    page.say("explain", target="", options={})
    assert app.wait(30)
    assert torch.equal(panel.explanation.map("conv"), plain.map("conv"))
    assert "without them" in panel.unedited
    page.say("method", method="attention")
    assert "with them" in panel.unedited
    edits.say("switch", index=0, on=False)
    assert panel.unedited == ""


def show_frame(live: Any, seq: int) -> None:
    live.say("clip-frame", seq=seq, number=seq)
    assert live.widget.wait(30)
    assert live.widget.app.wait(30)


def expect_frame(app: Explorer, panel: Any, number: int) -> None:
    """Waits for the explanation of a frame: it rests as long as it worked."""
    soon = time.monotonic() + 30
    while panel.explanation.image.number != number:
        assert app.wait(30)
        assert time.monotonic() < soon


def test_an_explanation_on_the_screen_follows_the_frames_of_live(
    ready: Any, make_page: Any, model: LoadedModel
) -> None:
    app, panel, page = ready
    model.module.train()
    live = make_page(next(part for part in app.parts if type(part).__name__ == "LiveView"))
    live.say("sample-clip")
    page.say("explain", target="dog", options={})
    assert app.wait(30)
    frames = hookviz.images.sample_frames()
    for number in (1, 4):
        show_frame(live, number)
        expect_frame(app, panel, number)
        expected = hookviz.explain(model, frames[number], ["conv"], target="dog")
        assert torch.equal(panel.explanation.map("conv"), expected.map("conv"))
        assert panel.found["live"]
        assert not panel.found["stale"]
        assert panel.explanation.model is model
    assert all(part.training for part in model.module.modules())
    # Behind another tab it rests, and goes on with the newest frame.
    page.say("visible", on=False)
    show_frame(live, 6)
    assert panel.explanation.image.number == 4
    page.say("visible", on=True)
    expect_frame(app, panel, 6)
    live.say("stop")
    assert panel.found["stale"]
    assert not panel.found["live"]


def test_where_there_is_no_image_the_newest_frame_of_live_is_explained(
    model: LoadedModel, make_page: Any
) -> None:
    app = explore(model, layers=["conv"], run=False)
    panel = next(part for part in app.parts if type(part).__name__ == "ExplainImage")
    live = make_page(next(part for part in app.parts if type(part).__name__ == "LiveView"))
    page = make_page(panel)
    page.say("look", width=600, ratio=1, style="light")
    assert panel.why_not == "Choose an image."
    live.say("sample-clip")
    show_frame(live, 2)
    assert panel.why_not == ""
    page.say("explain", target="dog", options={})
    assert app.wait(30)
    frames = hookviz.images.sample_frames()
    expected = hookviz.explain(model, frames[2], ["conv"], target="dog")
    assert torch.equal(panel.explanation.map("conv"), expected.map("conv"))
    assert (panel.found["live"], panel.found["stale"]) == (True, False)
    show_frame(live, 3)
    expect_frame(app, panel, 3)
    live.say("stop")
    assert panel.why_not == "Choose an image."
    assert panel.found["stale"]
    app.close()


def test_no_frame_waits_for_the_explanation_and_the_newest_is_explained_next(
    ready: Any, make_page: Any, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, panel, page = ready
    live = make_page(next(part for part in app.parts if type(part).__name__ == "LiveView"))
    live.say("sample-clip")
    page.say("explain", target="dog", options={})
    assert app.wait(30)
    begun, go_on = threading.Event(), threading.Event()
    make, explained = panel._make, []

    def slow(model: Any, image: Any, *rest: Any) -> Any:
        explained.append(image.number)
        begun.set()
        assert go_on.wait(30)
        return make(model, image, *rest)

    monkeypatch.setattr(panel, "_make", slow)
    for number in range(1, 5):
        live.say("clip-frame", seq=number, number=number)
        assert live.widget.wait(30)
        assert live.last("tiles")[0]["number"] == number
        assert begun.wait(30)
    go_on.set()
    expect_frame(app, panel, 4)
    assert explained == [1, 4]


def test_a_model_that_cannot_be_copied_is_explained_but_does_not_follow(
    ready: Any, make_page: Any, model: LoadedModel
) -> None:
    app, panel, page = ready
    model.module.lock = threading.Lock()
    live = make_page(next(part for part in app.parts if type(part).__name__ == "LiveView"))
    live.say("sample-clip")
    page.say("explain", target="dog", options={})
    assert app.wait(30)
    show_frame(live, 1)
    assert "cannot be copied" in panel.alert["message"]
    assert panel.explanation.image is app.image
    show_frame(live, 2)
    assert live.last("tiles")[0]["number"] == 2
