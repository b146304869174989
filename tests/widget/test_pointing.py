"""Pointing at places: what the page is answered, what is pinned, and what goes with a change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hookviz import sample_image
from hookviz.images import Preprocessing
from hookviz.models import LoadedModel
from hookviz.widget import Explorer, explore


class Cast(nn.Module):
    """Gives its input in another dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype)


def ready(app: Explorer, gallery_page: Any, *layers: str) -> None:
    """A run of these layers, with their pictures on the page."""
    gallery_page.look()
    app.image = app.image or sample_image("chelsea.png")
    app.layers = list(layers)
    assert app.start_run()
    assert app.wait(30)


def inspect(app: Explorer) -> Any:
    return next(part for part in app.parts if type(part).__name__ == "InspectPlace")


def answer(app: Explorer, page: Any, key: str, channel: int, y: int, x: int) -> dict[str, Any]:
    version = app.gallery.card(key).version  # type: ignore[union-attr]
    page.say("point", ask=7, key=key, version=version, channel=channel, y=y, x=x)
    found: dict[str, Any] = page.last("pointed")[0]
    assert found["ask"] == 7
    return found


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int16, torch.bool]
)
def test_the_page_gets_the_element_of_the_tensor_bit_for_bit(
    dtype: torch.dtype, make_page: Any
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), Cast(dtype))
    app = explore(LoadedModel(net, "net", "", True, preprocess=Preprocessing.for_size(24)))
    try:
        page, gallery_page = make_page(app), make_page(app.gallery)
        ready(app, gallery_page, "1")
        tensor = app.run.activations[0].tensor
        for c, y, x in ((0, 0, 0), (4, 23, 5), (2, 7, 19)):
            found = answer(app, page, "1#1", c, y, x)
            own = tensor[0, c, y, x]
            read = torch.tensor(float(found["value"]), dtype=torch.float64).to(dtype)
            assert torch.equal(read, own), found
            larger = int((tensor[0, :, y, x].double() > own.double()).sum())
            assert (found["rank"], found["of"]) == (1 + larger, 5)
            around = found["around"]
            rows = slice(around["y"], around["y"] + around["rows"])
            columns = slice(around["x"], around["x"] + around["cols"])
            block = tensor[0, :, rows, columns]
            values = torch.tensor([float(v) for v in around["values"]], dtype=torch.float64)
            assert torch.equal(values.to(dtype).view(block.shape[1:]), block[c])
            ranks = 1 + (block.double() > block[c].double()).sum(0)
            assert torch.equal(torch.tensor(around["ranks"]).view(ranks.shape), ranks)
            assert (
                around["values"][(y - around["y"]) * around["cols"] + x - around["x"]]
                == found["value"]
            )
    finally:
        app.close()


def test_what_is_not_finite_is_named(app: Explorer, page: Any, gallery_page: Any) -> None:
    ready(app, gallery_page, "conv")
    tensor = app.run.activations[0].tensor
    tensor[0, :3, 4, 5] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    values = [answer(app, page, "conv#1", c, 4, 5) for c in range(3)]
    assert [found["value"] for found in values] == ["NaN", "+Inf", "-Inf"]
    assert [found["rank"] for found in values] == [None, 1, 5]


def test_places_are_sent_with_the_picture_and_hold_what_is_drawn(
    app: Explorer, gallery_page: Any
) -> None:
    ready(app, gallery_page, "conv", "fc")
    sent = {m["key"]: m["tiles"] for m, _ in gallery_page.heard if m["type"] == "pixels"}
    assert sent["fc#1"] == {}  # bars
    tiles = sent["conv#1"]
    assert (tiles["channels"], tiles["rows"], tiles["cols"]) == ([0, 1, 2, 3, 4, 5], 24, 24)
    card = app.gallery.card("conv#1")
    options = app.gallery.options_of(card, on_page=True)  # type: ignore[arg-type]
    places = app.run.drawing("conv", options=options).places
    for index, (top, left, height, width) in enumerate(places):
        row, column = divmod(index, tiles["columns"])
        assert tiles["left"] + column * tiles["across"] == left
        assert tiles["top"] + row * tiles["down"] == top
        assert (tiles["height"], tiles["width"]) == (height, width)
    for what in ("statistics", "filters"):
        gallery_page.say(what, key="conv#1", on=True)
        assert app.wait(30)
        assert gallery_page.last("pixels")[0]["tiles"] == {}


@pytest.mark.parametrize("wrong", [{"version": -1}, {"key": "no#1"}, {"channel": 6}, {"y": 24}])
def test_what_the_page_has_not_is_answered_by_nothing(
    wrong: dict[str, Any], app: Explorer, page: Any, gallery_page: Any
) -> None:
    ready(app, gallery_page, "conv")
    right = {"key": "conv#1", "version": app.gallery.card("conv#1").version}  # type: ignore[union-attr]
    page.say("point", **{"ask": 3, **right, "channel": 0, "y": 0, "x": 0, **wrong})
    found, _ = page.last("pointed")
    assert found["ask"] == 3
    assert "value" not in found
    assert app.alert == {}


def test_photo_and_input_are_read_by_pixel(app: Explorer, page: Any, gallery_page: Any) -> None:
    ready(app, gallery_page, "conv")
    page.say("point-photo", ask=1, which="original", y=20, x=30)
    pixel = app.image.image.getpixel((30, 20))
    assert page.last("pointed")[0]["values"] == [str(value) for value in pixel]
    page.say("point-photo", ask=2, which="seen", y=20, x=3)
    values = np.array(page.last("pointed")[0]["values"], np.float32)
    assert np.array_equal(values, app.run.input.tensor[0, :, 20, 3].numpy())
    for y, x in ((-1, 0), (24, 0), (0, 5000)):
        page.say("point-photo", ask=3, which="seen", y=y, x=x)
        assert "values" not in page.last("pointed")[0]
    assert app.alert == {}


def test_a_pin_has_its_vector_and_its_field(app: Explorer, page: Any, gallery_page: Any) -> None:
    ready(app, gallery_page, "conv", "deep.0", "fc")
    page.say("pin", key="deep.0#1", channel=2, y=3, x=4)
    assert app.wait(30)
    panel = inspect(app)
    value = app.run.value("deep.0", 2, 3, 4)
    assert np.float32(app.pin["value"]) == np.float32(value)
    assert panel.place == app.pin
    field = app.run.receptive_field("deep.0", 3, 4)
    assert panel.field["state"] == "known"
    assert panel.field["box"] == list(field.image_box)
    assert panel.field["beyond"] == list(field.beyond)
    layers = {found["label"]: found for found in panel.vectors}
    assert list(layers) == ["deep.0", "conv", "fc"]
    rows, columns = app.run.centers("deep.0")
    conv = layers["conv"]
    middle = (float(columns[4]) - 0.5, float(rows[3]) - 0.5)  # of a pixel
    assert (conv["y"], conv["x"]) == app.run.place_at("conv", *middle, of="input")  # type: ignore[arg-type]
    for name, found in layers.items():
        vector = app.run.vector(name, found["y"], found["x"])
        assert [bar[0] for bar in found["bars"]] == list(vector.order[:10])
        texts = np.array([bar[1] for bar in found["bars"]], np.float32)
        assert np.array_equal(texts, vector.values[list(vector.order[:10])].numpy())


def test_the_page_gets_the_centers_of_places_once_it_points(
    app: Explorer, page: Any, gallery_page: Any
) -> None:
    ready(app, gallery_page, "conv", "deep.0", "fc")
    assert app.centers == {}
    answer(app, page, "conv#1", 0, 0, 0)
    assert app.wait(30)
    for layer in ("conv", "deep.0"):
        for axis, sent in zip(app.run.centers(layer), app.centers[f"{layer}#1"], strict=True):
            numbers = [sent["start"] + i * sent["step"] for i in range(sent["count"])]
            assert numbers == axis.tolist()
    # They follow another size of the input, and go with their layers.
    app.image_input.set_size(16, 20)
    assert app.start_run()
    assert app.wait(30)
    assert [axis["count"] for axis in app.centers["conv#1"]] == [16, 20]
    app.layers = ["deep.0"]
    assert app.wait(30)
    assert list(app.centers) == ["deep.0#1"]
    app.close()
    assert app.centers == {}


def test_a_pin_that_is_refused_leaves_the_old_one(
    app: Explorer, page: Any, gallery_page: Any
) -> None:
    ready(app, gallery_page, "conv")
    page.say("pin", key="conv#1", channel=1, y=2, x=3)
    before = app.pin
    for wrong in ({"channel": 6}, {"y": 24}, {"x": -1}, {"key": "fc#1"}, {"y": 0.5}, {"key": 3}):
        page.say("pin", **{"key": "conv#1", "channel": 1, "y": 2, "x": 3, **wrong})
        assert app.alert["message"], wrong
        assert app.pin == before, wrong
        page.say("dismiss")
    page.say("unpin")
    assert app.pin == {}
    assert inspect(app).place == {}


def test_a_pin_follows_a_new_run_and_goes_with_its_layer_or_model(
    app: Explorer, page: Any, gallery_page: Any
) -> None:
    ready(app, gallery_page, "conv", "deep.0")
    page.say("pin", key="conv#1", channel=1, y=2, x=3)
    page.say("region", left=0, top=0, right=50, bottom=40)
    assert app.region == [0, 0, 50, 40]
    first = app.pin["value"]
    app.image = sample_image("coffee.png")
    assert app.region == []  # another photo
    assert app.start_run()
    assert app.wait(30)
    assert app.pin["value"] != first
    assert np.float32(app.pin["value"]) == np.float32(app.run.value("conv", 1, 2, 3))
    app.image_input.set_size(2, 2)  # the place is there no more
    assert app.start_run()
    assert app.wait(30)
    assert app.pin == {}
    page.say("pin", key="conv#1", channel=1, y=0, x=1)
    app.layers = ["deep.0"]
    assert app.pin == {}
    page.say("pin", key="deep.0#1", channel=1, y=0, x=0)
    assert app.pin["key"] == "deep.0#1"
    app.model = nn.Sequential(nn.Conv2d(3, 2, 1))
    assert app.pin == {}
    assert inspect(app).vectors == []


def test_a_region_ranks_channels(app: Explorer, page: Any, gallery_page: Any) -> None:
    ready(app, gallery_page, "conv", "deep.0", "fc")
    page.say("region", left=150, top=60, right=230, bottom=2000)
    width, height = app.image.size
    assert app.region == [150, 60, 230, height]
    assert app.wait(30)
    inside = {found["label"]: found for found in inspect(app).inside}
    assert list(inside) == ["conv", "deep.0"]
    for name, found in inside.items():
        order = app.run.channels_in(name, app.region).order
        assert [bar[0] for bar in found["bars"]] == list(order[:10])
    page.say("region", left=width, top=0, right=width + 5, bottom=5)
    assert "no pixel" in app.alert["message"]
    assert app.region == [150, 60, 230, height]
    page.say("no-region")
    assert (app.region, inspect(app).inside) == ([], [])


def test_a_bar_leads_to_the_page_of_its_channel(
    app: Explorer, page: Any, gallery_page: Any, make_page: Any
) -> None:
    ready(app, gallery_page, "conv")
    app.options = app.options.replace(per_page=2, order="mean")
    panel_page = make_page(inspect(app))
    order = [c for number in range(3) for c in app.run.drawing(
        "conv", options=app.options.replace(page=number)).channels]  # fmt: skip
    gallery_page.say("collapse", key="conv#1", on=True)
    panel_page.say("show", key="conv#1", channel=order[5])
    assert app.wait(30)
    assert page.last("show-channel")[0] == {
        "type": "show-channel", "key": "conv#1", "channel": order[5]
    }  # fmt: skip
    assert order[5] in gallery_page.last("pixels")[0]["tiles"]["channels"]
    gallery_page.say("view", changes={"channels": "0-1"})
    panel_page.say("show", key="conv#1", channel=5)
    assert "leaves out channel 5" in app.alert["message"]


def test_more_channels_are_shown_where_asked(
    app: Explorer, page: Any, gallery_page: Any, make_page: Any
) -> None:
    net = nn.Sequential(nn.Conv2d(3, 70, 1))
    app.model = LoadedModel(net, "wide", "", True, preprocess=Preprocessing.for_size(8))
    ready(app, gallery_page, "0")
    page.say("pin", key="0#1", channel=1, y=2, x=3)
    assert len(inspect(app).vectors[0]["bars"]) == 10
    make_page(inspect(app)).say("more", key="0#1")
    assert len(inspect(app).vectors[0]["bars"]) == 60
