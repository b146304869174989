"""After a restart: the choices of the app before are offered, and made where they are wanted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import hookviz
from hookviz.widget import Explorer

LAYERS = ["features.0", "features.5"]


@pytest.fixture
def open_app(
    monkeypatch: pytest.MonkeyPatch, make_page: Callable[..., Any]
) -> Iterator[Callable[..., tuple[Explorer, Any]]]:
    """An app of one cell of one notebook, and its page."""
    import hookviz.widget._explorer as explorer

    apps: list[Explorer] = []
    monkeypatch.setattr(explorer, "current_cell", lambda: ("c1", str(len(apps))))
    monkeypatch.setenv("JPY_SESSION_NAME", "folder/nb.ipynb")

    def open_app(*given: Any, **more: Any) -> tuple[Explorer, Any]:
        apps.append(hookviz.explore(*given, device="cpu", **more))
        page = make_page(apps[-1])
        make_page(apps[-1].gallery).look()
        assert apps[-1].wait(60)
        tell(apps[-1])  # as it does half a second later: what it began with
        return apps[-1], page

    yield open_app
    for app in apps:
        app.close()


def tell(app: Explorer) -> None:
    app.remembering._tell(lambda: False)


def kept(app: Explorer, page: Any) -> str:
    tell(app)
    found: str = page.last("choices")[0]["text"]
    return found


def test_choices_are_told_once_they_are_somebodys_and_made_where_wanted(
    open_app: Callable[..., tuple[Explorer, Any]],
) -> None:
    app, page = open_app("vgg16", hookviz.sample_image("coffee.png"), ["features.0"])
    assert app.cell == "folder/nb.ipynb#c1"
    tell(app)
    assert not [m for m, _ in page.heard if m["type"] == "choices"]
    app.layers = LAYERS
    app.options = app.options.replace(cmap="magma", order="mean")
    app.image_input.choice = "squash"
    assert app.start_run()
    assert app.wait(60)
    app.gallery.keep_first("features.0#1", 7, True)
    page.say("pin", key="features.5#1", channel=3, y=4, x=5)
    page.say("region", left=10, top=20, right=30, bottom=40)
    pin = app.pin
    text = kept(app, page)
    app.close()

    again, page = open_app("vgg16", hookviz.sample_image(), ["features.0"], run=False)
    page.say("former", text=text)
    assert again.former == {
        "text": "vgg16, coffee.png, 2 layers, preprocessing, view, a pinned place, a region"
    }
    # Nothing happens unasked.
    assert again.layers == ["features.0"]
    assert (again.options.cmap, again.image.name, again.run) == ("auto", "chelsea.png", None)
    page.say("use-former")
    assert again.wait(60)
    assert again.alert == {}
    assert again.former == {}
    assert again.layers == LAYERS
    assert (again.options.cmap, again.options.order) == ("magma", "mean")
    assert (again.image.name, again.image_input.choice) == ("coffee.png", "squash")
    assert (again.run, again.pin) == (None, {})
    assert again.region == [10, 20, 30, 40]
    assert again.start_run()
    assert again.wait(60)
    assert again.pin == pin
    assert again.gallery.card("features.0#1").first == [7]  # type: ignore[union-attr]
    page.say("unpin")
    assert again.start_run()
    assert again.wait(60)
    assert again.pin == {}


def test_a_dropped_photo_is_not_kept_and_a_file_is_by_its_path(
    open_app: Callable[..., tuple[Explorer, Any]], tmp_path: Path
) -> None:
    photo = tmp_path / "p.png"
    hookviz.sample_image("coffee.png").image.save(photo)
    app, page = open_app("vgg16", photo, ["features.0"], run=False)
    app.layers = LAYERS
    text = kept(app, page)
    assert json.loads(text)["image"]["path"] == str(photo)
    app.image = photo.read_bytes()
    text = kept(app, page)
    assert json.loads(text)["image"] is None
    assert len(text) < 2000
    app.close()
    again, page = open_app("vgg16", run=False)
    page.say("former", text=text)
    assert "not kept" in again.former["text"]
    page.say("use-former")
    assert again.wait(60)
    assert (again.image, again.layers) == (None, LAYERS)


def test_what_is_no_session_or_already_so_is_not_offered(
    open_app: Callable[..., tuple[Explorer, Any]],
) -> None:
    app, page = open_app("vgg16", run=False)
    app.layers = LAYERS
    text = kept(app, page)
    content = json.loads(text)
    app.close()
    for wrong in (
        "", "no", "[]", text[:-5], json.dumps({**content, "evil": 1}),
        json.dumps({**content, "pin": {"key": "features.0#1"}}),
        json.dumps({**content, "region": [1, 2, 3]}),
        json.dumps({**content, "model": {"device": "cpu", "own": "your own Other"}}),
    ):  # fmt: skip
        again, page = open_app("vgg16", run=False)
        page.say("former", text=wrong)
        assert (again.former, again.alert) == ({}, {}), wrong
        page.say("use-former")
        assert again.layers == []
        again.close()
    same, page = open_app("vgg16", layers=LAYERS, run=False)
    page.say("former", text=text)
    assert same.former == {}
    same.close()
    left, page = open_app("vgg16", run=False)
    page.say("former", text=text)
    assert left.former["text"] == "vgg16, no photo, or one that is not kept, 2 layers"
    page.say("no-former")
    page.say("use-former")
    assert left.wait(60)
    assert (left.former, left.layers) == ({}, [])


def test_an_own_model_stays_the_one_of_the_cell(
    open_app: Callable[..., tuple[Explorer, Any]],
) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())

    app, page = open_app(net())
    app.layers = ["1"]
    text = kept(app, page)
    app.close()
    again, page = open_app(net())
    model = again.model
    page.say("former", text=text)
    assert again.former["text"].startswith("your own Sequential")
    page.say("use-former")
    assert again.wait(60)
    assert again.model is model
    assert again.layers == ["1"]


def test_pins_and_regions_are_in_session_files(
    open_app: Callable[..., tuple[Explorer, Any]], tmp_path: Path
) -> None:
    app, page = open_app("vgg16", hookviz.sample_image(), LAYERS)
    page.say("pin", key="features.5#1", channel=3, y=4, x=5)
    page.say("region", left=10, top=20, right=30, bottom=40)
    file = app.save(tmp_path / "a.hookviz.json")
    pin = app.pin
    again, _ = open_app(file)
    assert again.pin == pin
    assert again.region == [10, 20, 30, 40]
    # Files of before have neither.
    content = json.loads(file.read_text())
    del content["pin"], content["region"]
    file.write_text(json.dumps(content))
    assert open_app(file)[0].pin == {}
