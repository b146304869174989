"""A channel's page: what it shows is the tensor's, what is asked is checked, nothing is kept."""

from __future__ import annotations

import gc
import io
import itertools
import math
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image
from torch import Tensor, nn

import hookviz
from hookviz import sample_image
from hookviz.images import Preprocessing
from hookviz.models import LoadedModel
from hookviz.widget import Explorer, explore
from hookviz.widget import _earlier as earlier
from hookviz.widget import _kept_runs as kept_runs
from hookviz.widget import _looks_for as looks_for
from hookviz.widget._channel_page import ChannelPage


class Net(nn.Module):
    """Two convolutions with a ReLU between, and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.relu = nn.ReLU()
        self.deep = nn.Conv2d(6, 8, 3, stride=2, groups=2)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(self.deep(self.relu(self.conv(x))).mean((2, 3)))
        return y


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def app(net: nn.Module) -> Iterator[Explorer]:
    model = LoadedModel(
        net, "net", "as passed in", True, preprocess=Preprocessing.for_size(24), passed_in=True
    )
    app = explore(model, sample_image("chelsea.png"), run=False)
    app.gallery._take_look(500)
    run(app, "conv", "relu", "deep", "fc")
    yield app
    app.close()


def run(app: Explorer, *layers: str) -> None:
    app.layers = list(layers) or app.layers
    assert app.start_run()
    settle(app)


def settle(app: Explorer) -> None:
    """Until the map, and then what follows it, are there."""
    for _ in range(3):
        assert app.wait(30)


def panel(app: Explorer) -> ChannelPage:
    return next(part for part in app.parts if isinstance(part, ChannelPage))


@pytest.fixture
def page(app: Explorer, make_page: Any) -> Any:
    return make_page(app)


@pytest.fixture
def channel_page(app: Explorer, make_page: Any) -> Any:
    return make_page(panel(app))


def open_channel(app: Explorer, page: Any, key: str, channel: int) -> ChannelPage:
    page.say("open-channel", key=key, channel=channel)
    settle(app)
    return panel(app)


def picture(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png))


def test_opening_shows_the_map_and_its_numbers(app: Explorer, page: Any, channel_page: Any) -> None:
    found = open_channel(app, page, "conv#1", 4)
    assert page.last("show-panel")[0]["panel"] == "channel"
    assert app.channel == {"key": "conv#1", "channel": 4}
    own = app.run.activations[0].tensor[0, 4].double().numpy()
    shown = found.shown
    assert (shown["label"], shown["channel"], shown["of"]) == ("conv", 4, 6)
    assert (shown["rows"], shown["cols"], shown["image"]) == (24, 24, True)
    counts, edges = np.histogram(own, len(shown["counts"]))
    assert shown["counts"] == counts.tolist()
    assert shown["ends"] == pytest.approx([edges[0], edges[-1]])
    numbers = {name: (text.replace("−", "-"), rank) for name, text, rank in shown["numbers"]}
    assert float(numbers["Mean"][0]) == pytest.approx(own.mean(), rel=0.01)
    means = app.run.activations[0].tensor[0].mean((1, 2))
    assert numbers["Mean"][1] == 1 + int((means > means[4]).sum())
    assert numbers["Zeros"] == ("0 %", None)  # no rank where none is zero


def test_a_pixel_of_the_map_is_an_activation_in_the_cards_colors(
    app: Explorer, page: Any, channel_page: Any
) -> None:
    open_channel(app, page, "conv#1", 2)
    message, (png, jpeg) = channel_page.last("map")
    assert message["version"] == app.gallery.card("conv#1").version  # type: ignore[union-attr]
    large = np.asarray(picture(png).convert("RGB"))
    assert large.shape == (24, 24, 3)
    options = app.gallery.options_of(app.gallery.card("conv#1"), on_page=True)  # type: ignore[arg-type]
    drawing = app.run.drawing("conv", options=options)
    top, left, height, _ = drawing.places[drawing.channels.index(2)]
    grid = np.asarray(picture(drawing.png_bytes()).convert("RGB"))
    middle = [int((i + 0.5) * height / 24) for i in range(24)]
    assert (grid[top + np.array(middle)[:, None], left + np.array(middle)] == large).mean() > 0.95
    assert picture(jpeg).size == (24, 24)  # what the network saw


def test_the_strongest_places_and_their_crops(app: Explorer, page: Any, channel_page: Any) -> None:
    found = open_channel(app, page, "conv#1", 4)
    own = app.run.activations[0].tensor[0, 4]
    first = found.places[0]
    assert own[first["y"], first["x"]] == own.max()
    assert float(first["value"]) == np.float32(own.max().item())
    places = [(p["y"], p["x"]) for p in found.places]
    apart = math.ceil(24 / 5)
    for (a, b), (c, d) in itertools.combinations(places, 2):
        assert max(abs(a - c), abs(b - d)) >= apart
    _, crops = channel_page.last("crops")
    assert len(crops) == len(places)
    field = app.run.receptive_field("conv", *places[0])
    assert first["field"]["size"] == list(field.size)
    channel_page.say("pin", key="conv#1", channel=4, y=places[1][0], x=places[1][1])
    assert (app.pin["y"], app.pin["x"], app.pin["value"]) == (*places[1], found.places[1]["value"])


def test_a_crop_is_the_photo_where_the_place_sees_it_and_striped_beyond(
    app: Explorer, page: Any, channel_page: Any
) -> None:
    """A place at the corner sees a row and a column of padding, which are no photo."""
    with torch.no_grad():
        app.model.module.conv.weight.zero_()
        app.model.module.conv.bias.zero_()
    run(app)
    app.run.activations[0].tensor[0, 1, 0, 0] = 5.0
    open_channel(app, page, "conv#1", 1)
    field = app.run.receptive_field("conv", 0, 0)
    assert field.beyond == (1, 1, 0, 0)
    _, crops = channel_page.last("crops")
    crop = np.asarray(picture(crops[0]).convert("RGB")).astype(int)
    assert crop.shape[:2] == (96, 96)
    corner, photo = crop[:20, :20], crop[72:, 72:]
    assert set(np.unique(corner)) <= {120, 205}
    left, top, right, bottom = field.image_box
    seen = np.asarray(app.image.image.crop((left, top, right, bottom))).mean((0, 1))
    assert np.abs(photo.mean((0, 1)) - seen).max() < 25


def test_input_channels_lead_to_the_layer_before(
    app: Explorer, page: Any, channel_page: Any
) -> None:
    found = open_channel(app, page, "deep#1", 6)
    weight = app.model.module.deep.weight[6].detach()
    norms = weight.flatten(1).norm(dim=1)
    assert found.inputs["total"] == 6
    order = [3 + int(i) for i in norms.argsort(descending=True)]
    assert [bar[0] for bar in found.inputs["bars"]] == order
    assert found.inputs["leads"] == {"key": "relu#1", "label": "relu", "through": []}
    message, (png,) = channel_page.last("filters")
    assert message["channel"] == 6
    assert picture(png).width > 0
    assert found.inputs["filters"].startswith("3 of 3 kernels")
    # A layer that is not ticked is no way: what is before it is.
    app.layers = ["conv", "deep"]
    settle(app)
    assert found.inputs["leads"] == {"key": "conv#1", "label": "conv", "through": ["relu"]}
    app.layers = ["deep"]
    settle(app)
    assert (found.inputs["leads"], found.inputs["nearest"]) == ({}, "relu")
    app.layers = ["conv", "deep"]
    settle(app)
    channel_page.say("open", key="conv#1", channel=4)
    assert app.channel == {"key": "conv#1", "channel": 4}


def test_a_vector_has_a_page_without_places(app: Explorer, page: Any, channel_page: Any) -> None:
    found = open_channel(app, page, "fc#1", 3)
    assert (found.shown["rows"], found.shown["cols"], found.shown["image"]) == (1, 1, False)
    assert found.places == []
    order = app.model.module.fc.weight[3].abs().argsort(descending=True).tolist()
    assert [bar[0] for bar in found.inputs["bars"]] == order


def test_steps_stay_within_the_layer(app: Explorer, page: Any, channel_page: Any) -> None:
    found = open_channel(app, page, "conv#1", 4)
    channel_page.say("step", by=1)
    channel_page.say("step", by=1)
    settle(app)
    assert app.channel["channel"] == found.shown["channel"] == 5
    channel_page.say("step", by=-99)
    settle(app)
    assert found.shown["channel"] == 0


@pytest.mark.parametrize(
    "wrong", [{"channel": 6}, {"channel": -1}, {"key": "gone#1"}, {"channel": "x"}]
)
def test_what_is_no_channel_is_refused_and_the_one_before_stays(
    wrong: dict[str, Any], app: Explorer, page: Any, channel_page: Any
) -> None:
    found = open_channel(app, page, "conv#1", 4)
    page.say("open-channel", **{"key": "conv#1", "channel": 1, **wrong})
    settle(app)
    assert app.alert["message"]
    assert app.channel == {"key": "conv#1", "channel": 4}
    assert found.shown["channel"] == 4


def test_the_page_follows_the_next_image_and_goes_with_its_layer(
    app: Explorer, page: Any, channel_page: Any
) -> None:
    found = open_channel(app, page, "conv#1", 4)
    before = found.shown
    app.image = sample_image("coffee.png")
    settle(app)
    assert found.shown["stale"]
    run(app)
    assert not found.shown["stale"]
    assert found.shown["counts"] != before["counts"]
    own = app.run.activations[0].tensor[0, 4]
    assert sum(found.shown["counts"]) == own.numel()
    app.layers = ["deep"]
    settle(app)
    assert app.channel == found.shown == {}


def test_a_hidden_page_computes_nothing_until_it_is_seen(
    app: Explorer, page: Any, channel_page: Any
) -> None:
    found = open_channel(app, page, "conv#1", 4)
    channel_page.say("visible", on=False)
    heard = len(channel_page.heard)
    app.image = sample_image("coffee.png")
    run(app)
    assert len(channel_page.heard) == heard
    channel_page.say("visible", on=True)
    settle(app)
    own = app.run.activations[0].tensor[0, 4].double().numpy()
    assert found.shown["counts"] == np.histogram(own, 64)[0].tolist()


def test_colors_follow_the_view_and_the_theme(app: Explorer, page: Any, channel_page: Any) -> None:
    open_channel(app, page, "conv#1", 4)
    first = channel_page.last("map")[0]["colors"]
    channel_page.say("look", width=500, ratio=1, style="dark")
    settle(app)
    dark = channel_page.last("map")[0]["colors"]
    assert dark != first
    app.options = app.options.replace(cmap="magma")
    settle(app)
    assert channel_page.last("map")[0]["colors"] not in (first, dark)


# ── earlier images


def test_earlier_images_are_what_a_run_gave_then_on_one_scale(
    app: Explorer, page: Any, channel_page: Any
) -> None:
    then = app.run.activations[0].tensor[0, 4].clone()
    app.image = sample_image("coffee.png")
    run(app)
    found = open_channel(app, page, "conv#1", 4)
    now = app.run.activations[0].tensor[0, 4]
    assert [one["name"] for one in found.earlier] == ["coffee.png", "chelsea.png"]
    _, pictures = channel_page.last("earlier")
    assert len(pictures) == 4
    # Equal values have equal colors over both maps, and what is larger is further in the colors.
    maps = [np.asarray(picture(png).convert("RGB")) for png in pictures[1::2]]
    size = max(now.abs().max().item(), then.abs().max().item())
    from hookviz.render import color_table

    table = color_table("RdBu_r").rgb
    for drawn, values in zip(maps, (now, then), strict=True):
        level = ((values.double() / size + 1) / 2 * 255).round().long().numpy()
        assert np.abs(drawn.astype(int) - table[level].astype(int)).max() <= 8  # one level
    page.say("open-channel", key="deep#1", channel=0)
    settle(app)
    assert [one["name"] for one in found.earlier] == ["coffee.png", "chelsea.png"]


def test_no_live_frame_runs_beside_an_earlier_image(
    app: Explorer, page: Any, channel_page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.image = sample_image("coffee.png")
    run(app)
    held, again = [], earlier.run_model

    def looked(*arguments: Any, **options: Any) -> Any:
        held.append(app.jobs.turn.locked())
        return again(*arguments, **options)

    monkeypatch.setattr(earlier, "run_model", looked)
    assert len(open_channel(app, page, "deep#1", 0).earlier) == 2
    assert held == [True]


def test_the_only_image_has_none_before_it(app: Explorer, page: Any, channel_page: Any) -> None:
    assert open_channel(app, page, "conv#1", 4).earlier == []
    run(app)
    assert panel(app).earlier == []


def test_earlier_images_are_bounded_in_bytes_and_go_with_model_and_app(
    app: Explorer, page: Any, channel_page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = 3 * 24 * 24 * 4
    monkeypatch.setattr(earlier, "INPUT_BYTES", 3 * each)
    monkeypatch.setattr(earlier, "MAP_BYTES", 6 * 24 * 24 * 4)
    found = open_channel(app, page, "conv#1", 4)
    generator = np.random.default_rng(0)
    for _ in range(5):
        app.image = generator.integers(0, 255, (30, 30, 3), np.uint8)
        run(app)
        assert found.images.bytes <= 3 * each + 6 * 24 * 24 * 4
    assert len(found.earlier) == 3  # the present one and two before
    app.model = Net()
    run(app, "conv")
    assert found.images.bytes == app.run.input.tensor.nbytes
    app.close()
    assert found.images.bytes == 0


@pytest.fixture
def no_runs_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    """The panel Compare keeps no run."""
    monkeypatch.setattr(kept_runs, "KEPT_BYTES", 0)


@pytest.mark.usefixtures("no_runs_to_compare")
def test_no_captured_tensor_is_kept(app: Explorer, page: Any, channel_page: Any) -> None:
    open_channel(app, page, "conv#1", 4)
    held = [weakref.ref(app.run), *(weakref.ref(a.tensor) for a in app.run.activations)]
    app.image = sample_image("coffee.png")
    run(app)
    until = time.monotonic() + 10
    while any(r() is not None for r in held) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.02)
    assert [r() for r in held] == [None] * 5


# ── the notebook


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Shell:
        user_ns: dict[str, Any] = {"photo": 5, "In": []}  # noqa: RUF012
        user_ns_hidden: dict[str, Any] = {"In": 0, "get_ipython": 0}  # noqa: RUF012

    found = Shell()
    monkeypatch.setattr("IPython.get_ipython", lambda: found)
    return found


def test_a_copy_of_the_tensor_goes_to_the_notebook(
    app: Explorer, page: Any, channel_page: Any, shell: Any
) -> None:
    found = open_channel(app, page, "conv#1", 4)
    name = found.shown["name"]
    assert name == "conv_channel_4"
    channel_page.say("send", name=name)
    assert found.sent["state"] == "sent"
    for part in (name, "channel 4 of conv", "copy", "24×24", "float32", "cpu", "own units"):
        assert part in found.sent["text"]
    own = app.run.activations[0].tensor[0, 4]
    assert torch.equal(shell.user_ns[name], own)
    shell.user_ns[name].zero_()
    assert own.abs().sum() > 0


def test_nothing_is_overwritten_without_saying_so(
    app: Explorer, page: Any, channel_page: Any, shell: Any
) -> None:
    found = open_channel(app, page, "conv#1", 4)
    channel_page.say("send", name="photo")
    assert (found.sent["state"], shell.user_ns["photo"]) == ("taken", 5)
    assert "photo already (int)" in found.sent["text"]
    channel_page.say("send", name="photo", again=True)
    assert found.sent["state"] == "sent"
    assert "replaced" in found.sent["text"]
    assert isinstance(shell.user_ns["photo"], Tensor)


@pytest.mark.parametrize("name", ["", "a b", "1x", "for", "list", "In", "__name__", "x.y", "a\n"])
def test_a_name_that_is_none_is_refused(
    name: str, app: Explorer, page: Any, channel_page: Any, shell: Any
) -> None:
    found = open_channel(app, page, "conv#1", 4)
    before = dict(shell.user_ns)
    channel_page.say("send", name=name, again=True)
    if name.strip() == "a":
        return
    assert found.sent["state"] == "refused"
    assert shell.user_ns == before


def test_without_a_notebook_one_sentence_says_so(
    app: Explorer, page: Any, channel_page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("IPython.get_ipython", lambda: None)
    found = open_channel(app, page, "conv#1", 4)
    channel_page.say("send", name="x")
    assert found.sent["state"] == "refused"
    assert "no notebook" in found.sent["text"]
    assert not InteractiveShell.initialized()


def test_what_a_channel_looks_for_is_made_kept_and_exported(app: Explorer, make_page: Any) -> None:
    panel = next(part for part in app.parts if isinstance(part, ChannelPage))
    page = make_page(panel)
    app.pointing.open("conv#1", 2)
    page.say("look", width=600)
    assert app.wait(30)
    assert panel.looks_for == {"state": "none", "why_not": "", "edited": False}
    page.say("visualize", size=16, steps=3, seed=5)
    assert app.wait(30)
    expected = hookviz.feature_visualization(app.model, "conv", 2, size=16, steps=3, seed=5)
    shown = panel.looks_for
    assert shown["state"] == "done"
    assert shown["title"] == "channel 2 of conv"
    assert shown["clean"] == f"{expected.activation:.4g}".replace("-", "−")
    assert shown["robust"] == f"{expected.robust[0]:.4g}".replace("-", "−")
    message, (png,) = page.last("looks-for")
    assert (message["key"], message["channel"]) == ("conv#1", 2)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png))), expected.array)
    # Another channel has none; another photo and a run that goes away leave it.
    page.say("step", by=1)
    assert app.wait(30)
    assert panel.looks_for["state"] == "none"
    app.image = sample_image("coffee.png")
    run(app, "conv", "relu")
    page.say("step", by=-1)
    assert app.wait(30)
    assert panel.looks_for["title"] == "channel 2 of conv"
    app_page = make_page(app)
    page.say("export")
    assert app.wait(30)
    assert app_page.last("file-ready")[0]["size"] > 0
    page.say("visualize", size=4, steps=3, seed=5)
    assert app.wait(30)
    assert panel.alert["field"] == "looks-for"
    assert panel.looks_for["state"] == "done"


def test_a_cancelled_picture_stays_as_far_as_it_is(
    app: Explorer, make_page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = next(part for part in app.parts if isinstance(part, ChannelPage))
    page = make_page(panel)
    app.pointing.open("conv#1", 0)
    page.say("look", width=600)
    assert app.wait(30)
    monkeypatch.setattr(looks_for, "_INTERVAL", 0.0)
    states = []

    def note(change: Any) -> None:
        states.append(change["new"])
        if change["new"].get("step", 0) >= 2:
            page.say("cancel")

    panel.observe(note, "looks_for")
    page.say("visualize", size=16, steps=1000)
    assert app.wait(30)
    panel.unobserve(note, "looks_for")
    assert [s["step"] for s in states if s.get("state") == "working"][:3] == [0, 1, 2]
    assert panel.looks_for["state"] == "done"
    assert "(cancelled)" in panel.looks_for["note"]
    assert app.status["outcome"] == "cancelled"
