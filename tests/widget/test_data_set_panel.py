"""The panel Data set shows what `open_survey` gives, makes what `survey` makes, and opens crops."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import hookviz
from hookviz.errors import SurveyError
from hookviz.images import Preprocessing
from hookviz.models import LoadedModel
from hookviz.widget import Explorer, explore


class Net(nn.Module):
    """Channel 0 answers to light, 1 is silent for half of the images, 2 is dead."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3, stride=2)
        self.relu = nn.ReLU()
        with torch.no_grad():
            self.conv.weight[0], self.conv.bias[0] = 1, 0
            self.conv.weight[1], self.conv.bias[1] = 1, -14
            self.conv.weight[2], self.conv.bias[2] = 0, -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.conv(x))


def make_model(seed: int = 0) -> LoadedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        how = Preprocessing(crop=(24, 24), fit="squash", mean=(0.0,) * 3, std=(1.0,) * 3)
        return hookviz.load_model(Net().eval(), preprocess=how)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bright spot at another place of each, brighter from one to the next; a broken file."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(21):
        pixels = np.full((48, 48, 3), 40, np.uint8)
        at = 2 * number
        pixels[at : at + 8, 40 - at : 48 - at] = 55 + 10 * number
        (folder / f"kind{number % 2}").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / f"kind{number % 2}" / f"{number:02}.png")
    (folder / "kind0" / "broken.png").write_bytes(b"\x89PNG no image")
    return folder


@pytest.fixture(scope="module")
def folder(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("survey")
    hookviz.survey(make_model(), photos, ["conv", "relu"], out, batch=4, shard=8, workers=0)
    return out


Ready = tuple[Explorer, Any, Any]


@pytest.fixture
def ready(make_page: Any) -> Iterator[Ready]:
    app = explore(make_model(), layers=["relu"])
    panel = next(part for part in app.parts if type(part).__name__ == "DataSet")
    yield app, panel, make_page(panel)
    app.close()


def test_a_folder_that_is_typed_is_shown_as_the_library_reads_it(
    ready: Ready, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, panel, page = ready
    monkeypatch.chdir(folder.parent)
    page.say("open", folder=f" {folder.name} ")
    assert app.wait(30)
    assert panel.alert == {}
    survey = hookviz.open_survey(folder)
    assert [name for name, _ in panel.opened["layers"]] == list(survey.layers)
    assert panel.opened["facts"][0] == "21 of 22 images."
    assert panel.opened["failures"] == [[one.name, one.reason] for one in survey.failures]
    assert panel.opened["rest"] == ""
    page.say("layer", layer="relu")
    assert app.wait(30)
    statistics = survey.statistics("relu")
    rows = {row[0]: row[1:] for row in panel.channels["rows"]}
    assert set(rows) == set(range(5))
    for channel, (mean, largest, zeros, note) in rows.items():
        assert float(mean.replace("−", "-")) == pytest.approx(statistics.mean[channel], rel=6e-3)
        assert float(largest) == pytest.approx(statistics.max[channel], rel=6e-3)
        assert zeros == f"{100 * statistics.zero_share[channel]:.1f} %"
        assert note == ("dead" if channel == 2 else "")


def test_channels_are_sorted_and_dead_ones_stand_where_they_are_wanted(
    ready: Ready, folder: Path
) -> None:
    app, panel, page = ready
    app.open_survey(folder)
    page.say("layer", layer="relu")
    assert app.wait(30)
    statistics = app.survey.statistics("relu")
    alive = [0, 1, 3, 4]
    values = {
        "mean": statistics.mean,
        "max": statistics.max,
        "zeros": statistics.zero_share,
        "channel": np.arange(5),
    }
    for by, numbers in values.items():
        for falling in (True, False):
            page.say("sort", by=by, falling=falling)
            expected = sorted(alive, key=lambda c: (-1 if falling else 1) * numbers[c])
            assert [row[0] for row in panel.channels["rows"]] == [*expected, 2], by
    page.say("dead", first=True)
    assert [row[0] for row in panel.channels["rows"]] == [2, *alive]
    page.say("sort", by="luck")
    assert panel.order == "channel"


def test_a_channel_has_its_nine_strongest_crops_its_numbers_and_its_histogram(
    ready: Ready, folder: Path
) -> None:
    app, panel, page = ready
    survey = app.open_survey(folder)
    page.say("layer", layer="relu")
    assert app.wait(30)
    page.say("channel", channel=0)
    assert app.wait(30)
    hits = survey.top("relu", 0, 9)
    shown = panel.channel
    # The spot of number 20 lies at row 40 of 48: in 24 pixels, at stride 2, at row 9 or 10.
    assert hits[0].name == "kind0/20.png"
    assert [hit["name"] for hit in shown["hits"]] == [hit.name for hit in hits]
    assert [hit["place"] for hit in shown["hits"]] == [
        f"y {hit.place[0]}, x {hit.place[1]}" for hit in hits
    ]
    assert [float(hit["value"]) for hit in shown["hits"]] == pytest.approx(
        [hit.value for hit in hits], rel=1e-3
    )
    message, crops = page.last("crops")
    assert message["channel"] == 0
    assert len(crops) == 9
    for data, hit in zip(crops, hits, strict=True):
        sent, own = (np.asarray(one, int) for one in (Image.open(io.BytesIO(data)), hit.crop))
        assert sent.shape == own.shape
        assert np.abs(sent - own).mean() < 3  # JPEG of a JPEG
    numbers = {name: (text, note) for name, text, note in shown["numbers"]}
    statistics = survey.statistics("relu")
    assert numbers["Values"] == (f"{21 * 11 * 11:,}", "in 21 images")
    assert numbers["Largest"][1].startswith("kind0/20.png, y ")
    nonzero = statistics.count[0] - statistics.zeros[0]
    assert sum(shown["counts"]) == pytest.approx(nonzero, abs=30)  # each count is rounded
    assert shown["ends"] == [statistics.min[0], statistics.max[0]]
    page.say("thumbnails", channels=["0", "3", "99", "-1", "x"])
    assert app.wait(30)
    message, pictures = page.last("thumbnails")
    assert message["channels"] == [0, 3]
    assert max(Image.open(io.BytesIO(pictures[0])).size) == 44
    page.say("channel", channel=2)
    assert app.wait(30)
    assert panel.channel["dead"] is True
    assert panel.channel["counts"] == []


def test_what_is_no_survey_is_one_sentence_and_the_one_before_stays(
    ready: Ready, folder: Path, photos: Path, tmp_path: Path
) -> None:
    app, panel, page = ready
    app.open_survey(folder)
    before = panel.opened
    (tmp_path / "manifest.json").write_text('{"format": 99}')
    wrong = {
        "": "Type the path",
        str(photos): "no survey",
        str(folder / "manifest.json"): "is a file",
        str(tmp_path): "not the manifest",
        "../elsewhere": "Type the whole path",
        "~nobody-of-that-name/x": "There is no path",
        "x" * 5000: "too long",
    }
    for typed, part in wrong.items():
        page.say("open", folder=typed)
        assert app.wait(30)
        assert panel.alert["field"] == "folder", typed
        assert part in f"{panel.alert['message']} {panel.alert['remedy']}"
        assert panel.opened == before
    with pytest.raises(SurveyError, match="no survey"):
        app.open_survey(photos)
    page.say("layer", layer="rleu")
    page.say("channel", channel=5)
    page.say("show", rank=1)
    assert panel.layer == "conv"
    assert panel.channel == {}
    page.say("open", folder=str(folder))
    assert app.wait(30)
    assert panel.alert == {}


def test_a_crop_becomes_the_image_with_its_channel_opened_and_its_place_pinned(
    ready: Ready, folder: Path, make_page: Any
) -> None:
    app, _panel, page = ready
    make_page(app.gallery).look()
    app_page = make_page(app)
    app.layers = []
    app.image_input.choice = "pad"  # the survey was not made so
    survey = app.open_survey(folder)
    page.say("layer", layer="conv")
    assert app.wait(30)
    page.say("channel", channel=3)
    assert app.wait(30)
    page.say("show", rank=2)
    assert app.wait(30)
    assert app.wait(30)  # the run that it starts
    hit = survey.top("conv", 3)[1]
    assert app.image.path == hit.path
    assert app.image_input.choice == "model"
    assert app.layers == ["conv"]
    assert app.channel == {"key": "conv#1", "channel": 3}
    assert (app.pin["key"], app.pin["channel"]) == ("conv#1", 3)
    assert (app.pin["y"], app.pin["x"]) == hit.place
    assert float(app.pin["value"]) == pytest.approx(hit.value, rel=1e-5)
    assert app_page.last("show-panel")[0]["panel"] == "channel"
    # Another image meanwhile: nothing is opened on it.
    app.image = hookviz.sample_image()
    app.pointing.unpin()
    assert app.start_run()
    assert app.wait(30)
    assert app.pin == {}


def test_of_another_model_the_image_alone_is_opened(ready: Ready, folder: Path) -> None:
    app, panel, page = ready
    app.model = make_model(seed=5)
    app.open_survey(folder)
    page.say("channel", channel=0)
    assert app.wait(30)
    page.say("show", rank=1)
    assert app.wait(30)
    assert app.image.name == "20.png"
    assert "another model" in panel.said
    assert app.channel == {}


def test_an_image_that_is_gone_is_a_sentence_at_the_crop(
    ready: Ready, photos: Path, tmp_path: Path
) -> None:
    app, panel, page = ready
    out = tmp_path / "out"
    copy = tmp_path / "one"
    copy.mkdir()
    (copy / "a.png").write_bytes((photos / "kind0" / "20.png").read_bytes())
    hookviz.survey(make_model(), copy, ["relu"], out, workers=0)
    app.open_survey(out)
    page.say("channel", channel=0)
    assert app.wait(30)
    (copy / "a.png").unlink()
    page.say("show", rank=1)
    assert app.wait(30)
    assert panel.alert["field"] == "crop"
    assert "a.png" in panel.alert["message"]
    assert app.image is None


def test_a_folder_is_surveyed_as_the_library_does_it_with_progress(
    ready: Ready, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, panel, page = ready
    monkeypatch.chdir(tmp_path)
    heard: list[str] = []
    panel.observe(lambda change: heard.append(change["new"]), "progress")
    page.say("survey", images=str(photos), batch=4)
    assert app.wait(60)
    assert app.wait(60)
    assert (panel.alert, app.alert) == ({}, {})
    assert heard[0].startswith("Reading")
    assert heard[-2].startswith("22 of 22 images are done and kept, 1 could not be read")
    assert "images per second" in heard[-2]
    assert heard[-1] == ""
    assert app.status["text"] == "21 images are surveyed."
    out = tmp_path / "hookviz_surveys" / photos.name
    assert app.survey.folder.resolve() == out
    own = hookviz.survey(make_model(), photos, "relu", tmp_path / "own", batch=4, workers=0)
    for one, other in zip(app.survey.top("relu", 0), own.top("relu", 0), strict=True):
        assert (one.name, one.value, one.place) == (other.name, other.value, other.place)
    assert panel.opened["failed"] == 1


def test_a_cancelled_survey_shows_what_is_done_and_goes_on(
    ready: Ready, photos: Path, tmp_path: Path, make_page: Any
) -> None:
    app, panel, page = ready
    out = tmp_path / "out"
    copy = tmp_path / "photos"
    for number, path in enumerate(sorted(photos.rglob("[0-9]*.png"))[:20] * 8):
        copy.mkdir(exist_ok=True)
        (copy / f"{number:03}.png").write_bytes(path.read_bytes())

    def cancel(change: Any) -> None:
        if change["new"].startswith("64 of 160"):
            page.say("cancel")

    panel.observe(cancel, "progress")
    page.say("survey", images=str(copy), folder=str(out), batch=16)
    assert app.wait(60)
    assert app.wait(60)
    assert app.status["outcome"] == "cancelled"
    assert panel.progress == ""
    assert panel.opened["facts"][0] == "64 of 160 images."
    assert panel.opened["rest"] == str(copy)
    page.say("channel", channel=0)
    assert app.wait(60)
    assert {hit["shows"] for hit in panel.channel["hits"]} == {"no crop"}
    # Other ticks do not matter: it goes on with its own layers.
    app.layers = ["conv"]
    page.say("go-on")
    assert app.wait(60)
    assert app.wait(60)
    assert app.survey.complete
    assert panel.opened["facts"][0] == "160 of 160 images."
    assert panel.opened["rest"] == ""
    # New images are asked about, and surveyed where that is wanted.
    (copy / "new.png").write_bytes((photos / "kind0" / "00.png").read_bytes())
    page.say("go-on")
    assert app.wait(60)
    assert panel.alert["code"] == "new-images"
    page.say("action", do="more-images")
    assert app.wait(60)
    assert app.wait(60)
    assert panel.opened["facts"][0] == "161 of 161 images."


def test_what_cannot_be_surveyed_is_said_at_the_fields(
    ready: Ready, folder: Path, photos: Path, tmp_path: Path
) -> None:
    app, panel, page = ready
    (tmp_path / "empty").mkdir()
    cases = [
        ({"images": ""}, "Type the path"),
        ({"images": str(tmp_path / "empty")}, "holds no image"),
        ({"images": str(tmp_path / "none")}, "No such file"),
        ({"images": "../x"}, "leads out"),
        ({"images": str(photos), "batch": 0}, "1 to 4096"),
        # begun with other layers
        ({"images": str(photos), "folder": str(folder)}, "the layers: conv, relu then, relu now"),
    ]
    for given, part in cases:
        page.say("survey", **given)
        assert app.wait(60)
        assert panel.alert["field"] == "images", given
        assert part in panel.alert["message"]
    assert app.wait(60)
    app.layers = []
    assert panel.why_not == "Tick the layers to survey."
    page.say("survey", images=str(photos))
    assert panel.alert["message"] == "Tick the layers to survey."


def test_the_figure_of_a_channel_is_offered_to_the_browser(
    ready: Ready, folder: Path, make_page: Any
) -> None:
    app, _panel, page = ready
    app_page = make_page(app)
    app.open_survey(folder)
    page.say("export")
    assert "Choose a channel" in app.alert["message"]
    page.say("channel", channel=0)
    assert app.wait(30)
    for kind, magic in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")):
        page.say("export", form=kind)
        assert app.wait(60)
        ready_file = app_page.last("file-ready")[0]
        assert ready_file["name"] == f"conv channel 0.{kind}"
        app_page.say("file-piece", id=ready_file["id"], offset=0)
        assert app_page.last("file-piece")[1][0].startswith(magic)
    page.say("export", form="exe")
    assert "exe" in app.alert["message"]


def test_tokens_and_vectors_are_opened_too(photos: Path, tmp_path: Path, make_page: Any) -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(3, 4, 6, stride=6)
            self.token = nn.Linear(4, 4)
            self.head = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tokens = self.token(self.patch(x).flatten(2).transpose(1, 2))
            found: torch.Tensor = self.head(tokens.mean(1))
            return found

    torch.manual_seed(0)
    how = make_model().preprocess
    model = hookviz.load_model(Tokens().eval(), preprocess=how)
    survey = hookviz.survey(model, photos, ["token", "head"], tmp_path / "out", workers=0)
    app = explore(model)
    panel = next(part for part in app.parts if type(part).__name__ == "DataSet")
    page = make_page(panel)
    make_page(app.gallery).look()
    app.open_survey(survey.folder)
    for layer in ("token", "head"):
        page.say("layer", layer=layer)
        assert app.wait(30)
        page.say("channel", channel=1)
        assert app.wait(30)
        page.say("show", rank=1)
        assert app.wait(30)
        assert app.wait(30)
        hit = survey.top(layer, 1)[0]
        assert app.image.path == hit.path
        if layer == "token":
            assert app.channel == {"key": "token#1", "channel": 1}
            assert float(app.pin["value"]) == pytest.approx(hit.value, rel=1e-4)
    assert app.alert == {}
    app.close()


def test_a_closed_panel_holds_nothing(ready: Ready, folder: Path) -> None:
    app, panel, page = ready
    app.open_survey(folder)
    page.say("channel", channel=0)
    assert app.wait(30)
    panel.close()
    assert app.survey is None
    assert (panel.opened, panel.channels, panel.channel) == ({}, {}, {})
    held = [value for value in vars(panel).values() if isinstance(value, hookviz.Survey | tuple)]
    assert [one for one in held if one] == []
