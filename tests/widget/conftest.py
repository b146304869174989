"""In: the widgets. Out: a page that is no browser: it speaks, and keeps what it hears."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from hookviz.images import Preprocessing
from hookviz.models import LoadedModel
from hookviz.widget import Explorer, ImageInput, explore


class Page:
    """Stands in for the front end of one widget."""

    def __init__(self, widget: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.widget = widget
        self.heard: list[tuple[dict[str, Any], list[Any]]] = []
        monkeypatch.setattr(
            widget,
            "send",
            lambda message, buffers=None: self.heard.append((message, buffers or [])),
        )

    def say(self, kind: str, *buffers: bytes, settle: bool = True, **content: Any) -> None:
        # The way that ipywidgets takes: what a handler raises there would be lost.
        self.widget._handle_custom_msg({"type": kind, **content}, [memoryview(b) for b in buffers])
        if settle and isinstance(self.widget, ImageInput):
            assert self.widget.wait(30)

    def types(self) -> list[str]:
        return [message["type"] for message, _ in self.heard]

    def last(self, kind: str) -> tuple[dict[str, Any], list[Any]]:
        return [entry for entry in self.heard if entry[0]["type"] == kind][-1]

    def look(self, width: int = 500) -> None:
        self.say("look", width=width, ratio=1, style="light")


class Net(nn.Module):
    """Small, with a ReLU that is called twice, in place, and a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.deep = nn.Sequential(nn.Conv2d(6, 8, 3, stride=2), nn.BatchNorm2d(8))
        self.unused = nn.Conv2d(8, 8, 1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.deep(self.relu(self.conv(x))))
        return self.fc(x.mean((2, 3)))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().train()


@pytest.fixture
def model(net: nn.Module) -> LoadedModel:
    return LoadedModel(
        net, "net", "as passed in", True, preprocess=Preprocessing.for_size(24), passed_in=True
    )


@pytest.fixture
def app(model: LoadedModel) -> Iterator[Explorer]:
    app = explore(model)
    yield app
    app.close()


@pytest.fixture
def page(app: Explorer, monkeypatch: pytest.MonkeyPatch) -> Page:
    return Page(app, monkeypatch)


@pytest.fixture
def gallery_page(app: Explorer, monkeypatch: pytest.MonkeyPatch) -> Page:
    return Page(app.gallery, monkeypatch)


@pytest.fixture
def image_page(app: Explorer, monkeypatch: pytest.MonkeyPatch) -> Page:
    return Page(app.image_input, monkeypatch)


@pytest.fixture
def make_page(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda widget: Page(widget, monkeypatch)


def stack_of(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame else "no frame"


def own_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("hookviz-")]


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    """After each test, closed apps have no thread left."""
    yield
    until = time.monotonic() + 30  # a machine that does much else besides
    while own_threads() and time.monotonic() < until:
        time.sleep(0.01)
    doing = {t.name: stack_of(t) for t in own_threads()}
    assert doing == {}


def hook_count(module: nn.Module) -> int:
    return sum(
        len(hooks)
        for part in module.modules()
        for name, hooks in vars(part).items()
        if name.endswith("_hooks") and isinstance(hooks, dict)
    )
