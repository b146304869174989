"""A watched training as a widget."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import hookviz
from hookviz.monitoring import Monitor
from hookviz.widget import TrainingView


class Page:
    """What a page gets of a view."""

    def __init__(self, view: TrainingView) -> None:
        self.view = view
        self.pictures: dict[str, tuple[dict[str, Any], bytes]] = {}
        view.send = self.take  # type: ignore[method-assign]

    def take(self, content: dict[str, Any], buffers: Any = None) -> None:
        if content["type"] == "picture":
            self.pictures[content["part"]] = content, buffers[0]

    def look(self, width: int = 500, style: str = "light") -> None:
        message = {"type": "look", "width": width, "ratio": 1, "style": style}
        self.view._on_message(self.view, message, [])
        assert self.view.wait(20)

    def choose(self, **traits: Any) -> None:
        self.view.set_state(traits)
        assert self.view.wait(20)

    def shown(self, part: str) -> Any:
        return np.asarray(Image.open(io.BytesIO(self.pictures[part][1])).convert("RGB"))


def pixels(figure: Any) -> Any:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return np.asarray(Image.open(file).convert("RGB"))


class Loop:
    """A training by single steps."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.5)
        self.monitor: Monitor = hookviz.monitor(
            self.net, every=1, stats_every=1, probe=hookviz.sample_image(), on_alert="record",
            width=300,
        )  # fmt: skip

    def step(self) -> None:
        self.net(torch.rand(2, 3, 8, 8)).square().mean().backward()
        self.optimizer.step()
        self.monitor.step()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    with loop.monitor:
        yield loop


def test_a_view_follows_a_training(loop: Loop) -> None:
    m = loop.monitor
    view = TrainingView(m)
    page = Page(view)
    loop.step()
    view.refresh()
    assert page.pictures == {}  # nobody looks
    page.look()
    assert (view.steps, view.step) == ([0, 1], 1)  # the newest
    assert view.figures == [["0, maps", "0, maps"], ["0, filters", "0, filters"]]
    assert view.about == "Sequential: step 1, running"
    same = m.over_time("0").drawing(1, {"width": 500})
    assert np.array_equal(page.shown("maps"), same.pixels()[..., :3])
    assert np.array_equal(page.shown("curves"), pixels(m.figure(None, "zeros", width=500)))
    page.choose(step=0)
    first = page.shown("maps")
    assert np.array_equal(first, m.over_time("0").drawing(0, {"width": 500}).pixels()[..., :3])
    loop.step()
    view.refresh()
    assert view.wait(20)
    assert view.steps == [0, 1, 2]
    assert view.step == 0  # who has gone back stays there
    page.choose(step=2)
    loop.step()
    view.refresh()
    assert view.step == 3  # who looks at the newest goes on with it
    page.choose(quantity="mean", layer="1")
    assert page.pictures["curves"][0]["alt"] == "mean of 1 over the steps"
    assert np.array_equal(page.shown("curves"), pixels(m.figure("1", "mean", width=500)))
    view.close()


def test_a_channel_is_shown_at_several_steps(loop: Loop) -> None:
    m = loop.monitor
    loop.step()
    page = Page(TrainingView(m))
    page.look(style="dark")
    assert page.view.channels == 4
    assert page.pictures["strip"][1] == b""
    tiles = page.pictures["maps"][0]["tiles"]
    assert tiles["channels"] == [0, 1, 2, 3]
    page.choose(channel=2)
    strip = m.over_time("0").strip_drawing(2, 8, {"width": 500, "style": "dark"})
    assert np.array_equal(page.shown("strip"), strip.pixels()[..., :3])
    page.choose(drawn="0, filters")  # colors, which have no channels by themselves
    assert (page.view.channel, page.view.channels) == (-1, 0)
    page.view.close()


def test_what_is_not_there_to_choose_is_refused(loop: Loop) -> None:
    loop.step()
    view = TrainingView(loop.monitor)
    for name, value in (
        ("channel", 4), ("channel", -2), ("step", 7), ("drawn", "x"), ("layer", "9"),
        ("quantity", "loss"), ("quantity", "nothing"), ("channel", True), ("about", "x"),
    ):  # fmt: skip
        before = getattr(view, name)
        view.set_state({name: value})
        assert getattr(view, name) == before
    assert "There is no channel" in view.alert["message"] or "channel=True" in view.alert["message"]
    view.close()


def test_a_note_names_its_layer() -> None:
    net = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    with hookviz.monitor(net) as m:
        net["a"](torch.ones(1, 2)).sum().backward()
        m.step()
        view = TrainingView(m)
        assert [note.split(":")[0] for note in view.notes] == ["b"]
        view.close()


def test_an_alert_is_a_sentence_and_the_thread_ends(loop: Loop) -> None:
    view = TrainingView(loop.monitor)
    loop.net[0].weight.data[1, 0, 0, 0] = float("nan")
    loop.step()
    view.refresh()
    assert len(view.alerts) == 1
    assert "the output of layer '0' (Conv2d) has" in view.alerts[0]
    view.close()
    assert view._worker._thread is None or not view._worker._thread.is_alive()


def test_a_notebook_gets_the_widget_or_the_curve(loop: Loop, monkeypatch: Any) -> None:
    loop.step()
    assert set(loop.monitor._repr_mimebundle_()) == {"text/plain", "image/png"}
    shell = type("Shell", (), {"kernel": object()})()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    made: list[TrainingView] = []
    monkeypatch.setattr(
        "hookviz.widget.TrainingView", lambda m: made.append(TrainingView(m)) or made[0]
    )
    found = loop.monitor._repr_mimebundle_()
    made[0].close()
    assert "application/vnd.jupyter.widget-view+json" in found
    assert "image/png" in found
