"""The panel "Compare": the tray, what it says of two runs, and the values at a place."""

from __future__ import annotations

import copy
import gc
import io
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import hookviz
from hookviz.errors import HookvizError
from hookviz.images import Preprocessing, sample_image
from hookviz.models import LoadedModel
from hookviz.widget import Explorer, explore
from hookviz.widget import _kept_runs as kept_runs
from hookviz.widget._compare import CompareRuns


def gone(*references: weakref.ref[Any]) -> bool:
    until = time.monotonic() + 10
    while any(r() is not None for r in references) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.02)
    return all(r() is None for r in references)


def panel_of(app: Explorer) -> CompareRuns:
    return next(panel for panel in app._panels if isinstance(panel, CompareRuns))


def run(app: Explorer) -> None:
    assert app.start_run()
    assert app.wait(60)
    assert app.status["outcome"] == "ok"


@pytest.fixture
def opened(model: LoadedModel, make_page: Any) -> Iterator[tuple[Explorer, CompareRuns, Any]]:
    """An app with two runs in its tray, of two photos."""
    app = explore(model, sample_image(), ["conv", "relu", "deep.0", "fc"], run=False)
    panel = panel_of(app)
    page = make_page(panel)
    page.say("look", width=600, ratio=1, style="light")
    run(app)
    app.image = sample_image("coffee.png")
    run(app)
    yield app, panel, page
    app.close()


def keys(panel: CompareRuns) -> list[str]:
    return [one["key"] for one in panel.tray["runs"]]


def compared(app: Explorer, page: Any, chosen: list[str]) -> None:
    page.say("compare", keys=chosen)
    assert app.wait(60)
    assert app.alert == {}


def maps(run: hookviz.Run, layer: str) -> np.ndarray:
    return np.asarray(run.select(layer).tensor[0])


def test_each_run_comes_into_the_tray_with_a_picture_and_without_its_model(opened: Any) -> None:
    _, panel, page = opened
    first, second = panel.tray["runs"]
    assert (first["image"], second["image"]) == ("chelsea.png", "coffee.png")
    assert first["model"] == "net"
    assert first["layers"] == 4
    assert first["calls"] == ["relu"]
    message, buffers = page.last("thumbnails")
    assert message["keys"] == [second["key"]]
    with Image.open(io.BytesIO(buffers[0])) as image:
        assert max(image.size) <= 96
    page.say("thumbnails")
    assert page.last("thumbnails")[0]["keys"] == keys(panel)
    held = panel.kept.values()
    assert not any(isinstance(value, nn.Module) for one in held for value in vars(one).values())


def test_a_kept_run_has_neither_its_model_nor_its_photo() -> None:
    app = explore(nn.Sequential(nn.Conv2d(3, 4, 3)), sample_image(), ["0"], run=False)
    run(app)
    panel = panel_of(app)
    old = weakref.ref(app.model.module), weakref.ref(app.image), weakref.ref(app.run)
    app.model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    app.image = sample_image("coffee.png")
    app.layers = ["0", "1"]
    run(app)
    assert gone(*old)
    # And it can be compared with a run of the other model.
    panel._compare_runs(keys(panel))
    assert app.wait(60)
    assert [row["label"] for row in panel.layers] == ["0"]
    assert panel.summary["only"] == [[], ["1"]]
    app.close()


def test_rows_are_those_of_hookviz_compare(opened: Any) -> None:
    app, panel, page = opened
    a, b = (hookviz.feature_maps(app.model, sample_image(name), app.layers) for name in
            ("chelsea.png", "coffee.png"))  # fmt: skip
    compared(app, page, keys(panel))
    found = hookviz.compare(a, b)
    assert panel.compared["state"] == "ready"
    assert panel.compared["words"][0] == "net, chelsea.png, cpu float32"
    assert [row["label"] for row in panel.layers] == [entry.label for entry in found]
    for row, entry in zip(panel.layers, found, strict=True):
        for name in ("max_abs", "mean_abs", "cosine", "correlation"):
            assert row[name] == getattr(entry, name)
        assert row["place"] == list(entry.place or ())
    assert panel.summary["first"] == panel.layer == 0
    values = np.abs(maps(b, "conv").astype(np.float64) - maps(a, "conv"))
    assert panel.layers[0]["max_abs"] == values.max()
    assert app.comparison is panel.comparison is not None


def test_the_first_difference_is_found_and_shown_first(model: LoadedModel, make_page: Any) -> None:
    other = replace(model, module=copy.deepcopy(model.module))
    other.module.deep[0].weight.data[1, 2, 0, 0] += 1e-3
    app = explore(model, sample_image(), ["*"], run=False)
    names = ["conv", "relu", "deep.0", "deep.1", "fc"]
    a, b = (hookviz.feature_maps(m, sample_image(), names) for m in (model, other))
    panel = panel_of(app)
    app_page, page = make_page(app), make_page(panel)
    page.say("look", width=600)
    app.compare(a, b, titles=("before", "after"))
    assert app.wait(60)
    assert app_page.last("show-tab")[0]["tab"] == "compare"
    assert [one["title"] for one in panel.tray["runs"]] == ["before", "after"]
    verdicts = {row["label"]: row["verdict"] for row in panel.layers}
    assert verdicts["conv"] == "same"
    assert panel.layers[panel.summary["first"]]["label"] == "deep.0"
    assert panel.layer == panel.summary["first"]
    message, _ = page.last("maps")
    assert message["channels"][0] == 1  # the channel whose weight was changed
    with pytest.raises(HookvizError, match="two or more"):
        app.compare(a)
    app.close()


def test_the_pictures_are_those_of_the_library_and_stand_alike(opened: Any) -> None:
    app, panel, page = opened
    compared(app, page, keys(panel))
    message, buffers = page.last("maps")
    assert [(part["part"], part["run"]) for part in message["parts"]] == [
        ("run", 0), ("run", 1), ("difference", 1), ("relative", 1)
    ]  # fmt: skip
    assert len({Image.open(io.BytesIO(data)).size for data in buffers}) == 1
    a, b = (np.asarray(one.records[0].tensor[0], np.float64) for one in panel.kept.values())
    order = np.argsort(-np.sqrt(((b - a) ** 2).mean((1, 2))), kind="stable")
    assert message["channels"] == order.tolist()
    # Each pixel of the difference is the color of the value.
    tiles, bar = message["tiles"], message["parts"][2]["bar"]
    picture = np.asarray(Image.open(io.BytesIO(buffers[2])).convert("RGB"))
    end = bar["ends"][1]
    at = np.clip(np.round(((b - a)[order[0]] / end + 1) / 2 * 255), 0, 255)
    from hookviz.render import color_table

    wanted = color_table("RdBu_r").rgb[at.astype(int)].astype(int)
    rows = tiles["top"] + (np.arange(24) * 2 + 1) * tiles["height"] // 48
    columns = tiles["left"] + (np.arange(24) * 2 + 1) * tiles["width"] // 48
    shown = picture[np.ix_(rows, columns)].astype(int)
    inside = np.abs((b - a)[order[0]]) <= end
    assert inside.mean() > 0.5
    assert np.abs(shown - wanted)[inside].max() <= 8  # a level of 255


def test_a_place_has_the_values_of_both_and_their_difference_bit_for_bit(opened: Any) -> None:
    app, panel, page = opened
    compared(app, page, keys(panel))
    version = page.last("maps")[0]["version"]
    a, b = (one.records[0].tensor[0] for one in panel.kept.values())
    for channel, y, x in [(0, 0, 0), (5, 23, 23), (3, 7, 11)]:
        page.say("point", ask=1, version=version, channel=channel, y=y, x=x)
        answer = page.last("pointed")[0]
        one, other = a[channel, y, x].numpy(), b[channel, y, x].numpy()
        assert np.float32(answer["values"][0]) == one
        assert np.float32(answer["values"][1]) == other
        assert np.float32(answer["difference"]) == other - one
        assert np.float32(answer["relative"]) == (other - one) / max(abs(one), abs(other))
    page.say("point", ask=2, version=version - 1, channel=0, y=0, x=0)
    assert "values" not in page.last("pointed")[0]
    page.say("point", ask=3, version=version, channel=99, y=0, x=0)
    assert "values" not in page.last("pointed")[0]
    page.say("pin", channel=3, y=7, x=11)
    assert panel.pin["values"] == [str(t[3, 7, 11].numpy()) for t in (a, b)]
    page.say("pin", channel=3, y=99, x=0)
    assert "no such place" in app.alert["message"]
    assert panel.pin["y"] == 7
    page.say("scale", scale="full")
    assert app.wait(60)
    assert panel.pin["y"] == 7  # the same layer: the pin stays
    page.say("unpin")
    assert panel.pin == {}


def test_three_runs_are_compared_with_the_first_on_one_scale(opened: Any) -> None:
    app, panel, page = opened
    app.image = torch.rand(3, 50, 50)
    run(app)
    third = keys(panel)[2]
    compared(app, page, [third, *keys(panel)[:2]])
    assert panel.compared["keys"][0] == third
    message = page.last("maps")[0]
    runs = [part for part in message["parts"] if part["part"] == "run"]
    assert [part["run"] for part in runs] == [0, 1, 2]
    assert len({tuple(part["bar"]["ends"]) for part in runs}) == 1
    rows = panel.layers
    page.say("against", number=2)
    assert app.wait(60)
    assert panel.layers != rows
    assert panel.layers[0]["max_abs"] == float(
        (panel.kept["2"].records[0].tensor.double() - panel.kept[third].records[0].tensor)
        .abs()
        .max()
    )
    page.say("point", ask=1, version=page.last("maps")[0]["version"], channel=0, y=1, x=1)
    order = [third, "1", "2"]
    wanted = [str(panel.kept[key].records[0].tensor[0, 0, 1, 1].numpy()) for key in order]
    assert page.last("pointed")[0]["values"] == wanted


def test_other_sizes_are_compared_on_the_coarser_grid_and_it_is_said(opened: Any) -> None:
    app, panel, page = opened
    app.image_input.set_size(36, 36)
    run(app)
    compared(app, page, [keys(panel)[0], keys(panel)[-1]])
    message = page.last("maps")[0]
    assert (message["rows"], message["cols"]) == (24, 24)
    notes = [note for note in message["notes"] if note.startswith("compared on the coarser grid")]
    assert notes == ["compared on the coarser grid 24×24: a has 24×24, b has 36×36"]
    page.say("point", ask=1, version=message["version"], channel=2, y=3, x=4)
    b = panel.kept[keys(panel)[-1]].records[0].tensor
    mean = torch.nn.functional.adaptive_avg_pool2d(b.double(), 24)[0, 2, 3, 4]
    assert float(page.last("pointed")[0]["values"][1]) == pytest.approx(float(mean), rel=1e-12)


def test_the_calls_of_one_layer_are_compared(opened: Any) -> None:
    app, panel, page = opened
    page.say("calls", key="1", layer="relu")
    assert app.wait(60)
    assert app.alert == {}
    assert panel.compared["words"][1].startswith("call 2 of 2")
    (row,) = panel.layers
    assert row["label"] == "relu call 1 of 2 | relu call 2 of 2"
    assert row["reason"]  # 6 and 8 channels: no maps, and the reason why
    assert page.last("maps")[0]["error"]
    page.say("calls", key="1", layer="conv")
    assert "not called several times" in app.alert["message"]


def test_a_vector_is_one_figure(opened: Any) -> None:
    app, panel, page = opened
    compared(app, page, keys(panel))
    page.say("layer", index=[row["label"] for row in panel.layers].index("fc"))
    assert app.wait(60)
    message, buffers = page.last("maps")
    assert [part["part"] for part in message["parts"]] == ["whole"]
    assert Image.open(io.BytesIO(buffers[0])).size[0] == 600


def test_pages_of_channels(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hookviz.widget import _compare

    monkeypatch.setattr(_compare, "_PER_PAGE", 4)
    app, panel, page = opened
    compared(app, page, keys(panel))
    first = page.last("maps")[0]
    assert first["pages"] == 2
    page.say("page", page=7)
    assert app.wait(60)
    second = page.last("maps")[0]
    assert panel.page == second["page"] == 1
    assert sorted(first["channels"] + second["channels"]) == list(range(6))


def test_the_tray_is_bounded_and_says_so(
    model: LoadedModel, make_page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = explore(model, sample_image(), ["conv"], run=False)
    panel = panel_of(app)
    page = make_page(panel)
    size = 6 * 24 * 24 * 4
    monkeypatch.setattr(kept_runs, "KEPT_BYTES", 3 * size)
    for _ in range(3):
        run(app)
    assert keys(panel) == ["1", "2", "3"]
    oldest = weakref.ref(panel.kept["1"].records[0].tensor)
    run(app)
    assert keys(panel) == ["2", "3", "4"]
    assert (panel.tray["bytes"], panel.tray["let_go"]) == (3 * size, 1)
    assert gone(oldest)
    # What is compared goes last, and ends the comparison where it has to.
    compared(app, page, ["2", "3"])
    run(app)
    assert keys(panel) == ["2", "3", "5"]
    monkeypatch.setattr(kept_runs, "KEPT_BYTES", size)
    run(app)
    assert keys(panel) == ["6"]
    assert panel.compared == {}
    monkeypatch.setattr(kept_runs, "KEPT_BYTES", size - 1)
    run(app)
    assert panel.tray["too_large"] == size
    with pytest.raises(HookvizError, match="fewer layers"):
        app.compare(app.run, app.run)
    monkeypatch.setattr(kept_runs, "KEPT_BYTES", 100 * size)
    monkeypatch.setattr(kept_runs, "KEPT_RUNS", 2)
    for _ in range(3):
        run(app)
    assert len(panel.kept) == 2
    app.close()


def test_a_run_that_is_let_go_ends_its_comparison_and_nothing_holds_it(opened: Any) -> None:
    app, panel, page = opened
    compared(app, page, keys(panel))
    held = weakref.ref(panel.kept["1"].records[0].tensor)
    page.say("forget", key="1")
    assert keys(panel) == ["2"]
    assert panel.compared == panel.summary == {}
    assert panel.layers == []
    assert app.comparison is None
    assert gone(held)
    page.say("compare", keys=["1", "2"])
    assert "no run '1' any more" in app.alert["message"]
    page.say("compare", keys=["2", "2"])
    assert "Fewer than two" in app.alert["message"]


def test_a_closed_app_lets_go_of_all_runs(model: LoadedModel, make_page: Any) -> None:
    app = explore(model, sample_image(), ["conv"], run=False)
    panel = panel_of(app)
    page = make_page(panel)
    page.say("look", width=500)
    run(app)
    run(app)
    compared(app, page, keys(panel))
    held = [weakref.ref(one.records[0].tensor) for one in panel.kept.values()]
    app.close()
    assert gone(*held)
    assert panel.tray["runs"] == []
    app.open()
    app.layers = ["conv"]
    run(app)
    assert len(panel.kept) == 1
    app.close()


def test_an_export_has_the_table_and_the_facts_of_both(opened: Any, tmp_path: Any) -> None:
    app, panel, page = opened
    compared(app, page, keys(panel))
    page.say("export", everything=False, folder=str(tmp_path))
    assert app.wait(60)
    assert app.alert == {}
    (folder,) = tmp_path.iterdir()
    names = sorted(path.name for path in folder.iterdir())
    assert names[:2] == ["000_comparison.csv", "000_comparison.txt"]
    assert panel.exported["path"] == str(folder.resolve())
    (png,) = [name for name in names if name.endswith(".png")]
    with Image.open(folder / png) as image:
        image.load()
        texts = dict(image.text)  # type: ignore[attr-defined]
    assert texts["image"] == "chelsea.png | coffee.png"
    assert app.model.weights_hash in "".join(texts.values())
    photos = (sample_image(), sample_image("coffee.png"))
    assert hookviz.reproduce(folder / png, model=app.model, image=photos).same_pixels


def test_a_run_that_failed_is_not_kept(make_page: Any) -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.last = nn.Conv2d(5, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.conv(x))  # type: ignore[no-any-return]

    model = LoadedModel(Fails(), "fails", "", True, preprocess=Preprocessing.for_size(24))
    app = explore(model, sample_image(), ["conv"], run=False)
    assert app.start_run()
    assert app.wait(60)
    assert panel_of(app).tray["runs"] == []
    app.close()
