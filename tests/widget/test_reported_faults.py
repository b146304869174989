"""What widgets have been reported to get wrong elsewhere, each by its name."""

from __future__ import annotations

import io
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from hookviz.errors import ImageError
from hookviz.images import Preprocessing, sample_image
from hookviz.models import LoadedModel
from hookviz.widget import Explorer, explore
from hookviz.widget import _map_gallery as map_gallery
from hookviz.widget import _painting as painting
from hookviz.widget import _running as running
from hookviz.widget import _still as still


def png(value: int = 90, side: int = 24) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def upload(page: Any, data: bytes, name: str, key: str) -> None:
    page.say("upload-start", id=key, name=name, size=len(data))
    page.say("upload-piece", data, id=key, offset=0)


def forwards_of(model: LoadedModel) -> list[int]:
    """Grows by one with each forward of the model."""
    seen: list[int] = []
    model.module.register_forward_pre_hook(lambda _module, _args: seen.append(1))
    return seen


def run(app: Explorer) -> None:
    assert app.start_run()
    assert app.wait(30)


def until(condition: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# Old hooks survive re-running a cell.


def test_three_apps_record_each_layer_once_and_a_users_own_hooks_remain(
    model: LoadedModel,
) -> None:
    calls: list[str] = []
    own = model.module.conv.register_forward_hook(lambda *_: calls.append("own"))
    apps = [explore(model, sample_image(), ["conv", "relu"], run=False) for _ in range(3)]
    run(apps[-1])
    assert calls == ["own"]
    assert [(a.layer, a.call) for a in apps[-1].run.activations] == [
        ("conv", 1),
        ("relu", 1),
        ("relu", 2),
    ]
    for app in apps:
        app.close()
    assert list(model.module.conv._forward_hooks) == [own.id]
    others = [m for m in model.module.modules() if m is not model.module.conv]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in others)
    model.module(torch.rand(1, 3, 24, 24))
    assert calls == ["own", "own"]
    own.remove()


# Eval() forgotten.


def test_batch_norm_and_dropout_stand_still_and_the_users_mode_comes_back() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.ReLU())
    net.train()
    net[1].eval()  # one layer that the user froze
    before = {k: v.clone() for k, v in net.state_dict().items()}
    model = LoadedModel(net, "net", "as passed in", True, preprocess=Preprocessing.for_size(16))
    app = explore(model, sample_image(), ["2"], run=False)
    results = []
    for _ in range(2):
        run(app)
        results.append(app.run.activations[0].tensor)
    app.close()
    assert torch.equal(*results)
    assert [m.training for m in net.modules()] == [True, True, False, True, True]
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


# Widget events.


def test_the_value_of_ipywidgets_own_upload_control_is_taken(app: Explorer) -> None:
    data = png()
    app.image = ({"name": "v8.png", "type": "image/png", "content": memoryview(data)},)
    assert app.image.name == "v8.png"
    app.image = {"v7.png": {"metadata": {"name": "v7.png"}, "content": data}}
    assert app.image.name == "v7.png"


def test_the_same_file_again_counts_as_new_and_runs_again(
    app: Explorer, model: LoadedModel, image_page: Any
) -> None:
    forwards = forwards_of(model)
    app.layers = ["conv"]
    app.auto_run = True
    for turn in (1, 2):
        upload(image_page, png(), "same.png", f"u{turn}")
        until(lambda turn=turn: len(forwards) == turn)
        assert app.wait(30)
        assert app.results.stale == set()
    assert len(forwards) == 2


def test_an_empty_upload_gets_advice_and_nothing_is_lost(app: Explorer, image_page: Any) -> None:
    app.image = sample_image()
    with pytest.raises(ImageError, match=r"No file has arrived.*10 MB"):
        app.image = ()
    upload(image_page, b"", "empty.png", "u")
    assert "empty.png" in app.alert["message"]
    assert app.image.name == "chelsea.png"
    # What the page writes beside the button comes from here.
    assert app.image_input.max_bytes == app.max_bytes == 50_000_000


def test_a_handler_that_fails_is_a_text_in_the_widget(
    app: Explorer, page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_options: Any) -> bool:
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr(app, "start_run", broken)
    page.say("run")  # ipywidgets would swallow what a handler raises
    assert "the disk is on fire" in app.alert["message"]
    assert "RuntimeError" in app.alert["traceback"]


def test_a_run_is_of_what_was_ticked_before_it_was_pressed(
    app: Explorer, page: Any, make_page: Any
) -> None:
    app.image = sample_image()
    tree = make_page(app.tree)
    app.tree.set_state({"selected": ["conv"], "hidden_calls": []})
    # The next state is held back by ipywidgets until this one is answered; messages are not.
    tree.say("ticks", selected=["fc", "gone", "conv"], hidden_calls=[])
    page.say("run")
    assert app.wait(30)
    assert app.run is not None
    assert app.run.layers == ("conv", "fc")
    app.tree.set_state({"selected": ["conv", "fc"], "hidden_calls": []})
    assert not app.results.stale


def test_one_tick_is_one_run(
    app: Explorer, model: LoadedModel, make_page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = make_page(app.tree)
    forwards = forwards_of(model)
    monkeypatch.setattr(running, "_AUTO_DELAY", 0.05)
    app.image = sample_image()
    app.auto_run = True
    for count, ticked in enumerate((["conv"], ["conv", "fc"]), 1):
        # What the page sends for a tick; ipywidgets tells observers of each part of a state.
        app.tree.set_state({"selected": ticked, "hidden_calls": []})
        tree.say("ticks", selected=ticked, hidden_calls=[])
        until(lambda count=count: len(forwards) == count)
        assert app.wait(30)
        time.sleep(0.2)  # a second run would come within 0.05 s
        assert len(forwards) == count


class Shy(nn.Module):
    """Its layer runs for bright pictures only."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.bright = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.always(x)
        return self.bright(y) if x.mean() > 0.5 else y


def test_a_layer_that_gives_nothing_this_time_loses_its_old_picture(make_page: Any) -> None:
    model = LoadedModel(Shy(), "shy", "as passed in", True)
    app = explore(model, png(250), ["bright"], run=False)
    page = make_page(app.gallery)
    page.look()
    run(app)
    assert [c.layer for c in app.gallery.shown_cards] == ["bright"]
    app.image = png(5)
    run(app)
    assert app.gallery.shown_cards == []
    assert dict(app.figures) == {}
    (card,) = app.gallery.cards
    assert card["state"] == "pending"
    assert "did not run" in card["reason"] or "not called" in card["reason"].lower()
    assert app.why_no_export
    app.close()


def test_one_picture_is_published_per_run_and_no_figure_as_a_value(
    app: Explorer, gallery_page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    arrived = threading.Semaphore(0)

    class Publisher:
        def publish(self, **what: Any) -> None:
            told.append(what)
            arrived.release()

    monkeypatch.setattr(still, "_publisher", Publisher)
    app._still.id = "display"
    gallery_page.look()
    app.layers = ["conv", "fc"]
    for count, value in enumerate((40, 200), 1):
        app.image = png(value)
        assert app.start_run() is True
        assert app.wait(30)
        assert arrived.acquire(timeout=10)
        assert len(told) == count
    assert {what["transient"]["display_id"] for what in told} == {"display"}
    assert all(what["update"] for what in told)


def test_a_run_draws_each_card_once(
    app: Explorer, gallery_page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    for module in (painting, map_gallery):
        plain = module.draw_card

        def draw(activation: Any, *rest: Any, plain: Any = plain, **more: Any) -> Any:
            if rest[0].bare:  # the static picture, once at rest, has title and colorbar
                drawn.append(activation.label)
            return plain(activation, *rest, **more)

        monkeypatch.setattr(module, "draw_card", draw)
    # The static picture is made once no grid came for a while; on a busy machine the next grid may
    # take longer than the usual half a second.
    monkeypatch.setattr("hookviz.widget._explorer._STILL_DELAY", 2.0)
    at_rest: list[int] = []
    monkeypatch.setattr(still, "_publisher", lambda: at_rest.append(1))
    app._still.id = "display"
    gallery_page.look()
    app.image, app.layers = png(), ["conv", "relu", "fc"]
    labels = ["conv", "relu call 1 of 2", "relu call 2 of 2", "fc"]
    for count in (1, 2):
        app.image = png(40 * count)
        run(app)
        until(lambda count=count: len(at_rest) == count)
        assert sorted(drawn) == sorted(labels * count)
    assert list(app.figures) == labels
    assert app.figures == app.figures
    assert app.figures != type(app.figures)(app.gallery)
    assert sorted(drawn) == sorted(labels * 2)


# What two threads change at once.


def test_a_model_set_by_the_user_while_another_is_moved_is_taken(
    app: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = nn.Sequential(nn.Conv2d(3, 2, 1))
    moved = LoadedModel(nn.Sequential(nn.Conv2d(3, 5, 1)), "moved", "none", False)
    shown = Explorer.show_model
    inside, go = threading.Event(), threading.Event()

    def slow(self: Explorer) -> None:
        if self.model is moved and not inside.is_set():
            inside.set()
            go.wait(0.3)  # the user's assignment comes now, and waits for its turn
        shown(self)

    monkeypatch.setattr(Explorer, "show_model", slow)
    worker = threading.Thread(target=app.swap_model, args=(moved,))
    worker.start()
    assert inside.wait(10)
    app.model = mine
    go.set()
    worker.join(10)
    assert app.model.module is mine
    assert app.model_info["name"] == "Sequential"
    assert app.tree.names == ["", "0"]


def test_automatic_runs_asked_for_on_two_threads_at_once_end_in_the_last_state(
    app: Explorer, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    forwards = forwards_of(model)
    monkeypatch.setattr(running, "_AUTO_DELAY", 0.01)
    app.image = sample_image()
    app.auto_run = True

    def tick() -> None:
        for names in (["conv"], ["fc"], ["conv", "fc"]) * 20:
            app.tree.selected = names

    threads = [threading.Thread(target=tick) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # One run after the other may have brought them.
    until(lambda: all(name in app.results for name in ("conv", "fc")) or len(forwards) > 9)
    assert app.wait(30)
    time.sleep(0.2)
    assert app.wait(30)
    assert [c.layer for c in app.gallery.shown_cards] == ["conv", "fc"]
    assert app.results.stale == set()
    count = len(forwards)
    time.sleep(0.2)
    assert len(forwards) == count  # no run is left waiting
