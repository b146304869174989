"""What the app keeps: bounded while it is used, nothing once it is closed."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hookviz.activation import Activation
from hookviz.images import sample_image
from hookviz.models import LoadedModel
from hookviz.widget import _kept_runs as kept_runs
from hookviz.widget import _painting as painting
from hookviz.widget import _results as results
from hookviz.widget import explore

# 26 MB of maps a run: what is kept wrongly shows after a few.
PROGRAM = """
import gc, os, sys, time
from pathlib import Path
import numpy as np
import hookviz, torch
from torch import nn
from hookviz.images import Preprocessing
from hookviz.models import LoadedModel
from hookviz.widget import _explorer

def model():
    net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU())
    return LoadedModel(net, "net", "as passed in", True, preprocess=Preprocessing.for_size(224))

def opened():
    app = hookviz.explore(model(), hookviz.sample_image(), ["0", "1"], run=False)
    app.gallery._take_look(400)
    return app

def run(app):
    assert app.start_run()
    assert app.wait(60)
    assert app.status["outcome"] == "ok"

def again(app):
    run(app)

def photo(app):
    app.image = random.integers(0, 255, (1500, 2000, 3), np.uint8)
    run(app)

def another_model(app):
    app.model = model()
    app.layers = ["0", "1"]
    run(app)

def cell(app):
    number = len(out)
    _explorer.current_cell = lambda: ("cell", str(number))
    out.append(opened())  # as a notebook's Out does
    run(out[-1])

def resident(enough=float("inf")):
    # The least of some seconds: the collection comes after two of rest, later on a busy machine.
    found, began, settled = [], time.monotonic(), False
    while not (settled and min(found) < enough) and time.monotonic() < began + 25:
        time.sleep(0.9)
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        found.append(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
        settled = time.monotonic() > began + 3 and found[-1] - min(found) < 5
    return min(found)

torch.set_num_threads(1)
out = []
random = np.random.default_rng(0)
act, app = globals()[sys.argv[1]], opened()
for _ in range(5):
    act(app)
before = resident()
for _ in range(15):
    act(app)
print(resident(before + 120) - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("act", ["again", "photo", "another_model", "cell"])
def test_the_process_does_not_grow_however_long_the_app_is_used(
    act: str, fresh_python: Any, tmp_path: Path
) -> None:
    done = fresh_python.run(PROGRAM, act, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # One run more that is kept in each would be 390 MB; benchmarks/memory.py has the tight figures.
    assert float(done.stdout) < 150


def gone(*references: weakref.ref[Any]) -> bool:
    until = time.monotonic() + 10
    while any(r() is not None for r in references) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.02)
    return all(r() is None for r in references)


def run(app: Any) -> None:
    assert app.start_run()
    assert app.wait(60)


def test_a_closed_app_holds_nothing_though_it_is_held() -> None:
    app = explore(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), sample_image(), ["0"], run=False)
    seen: list[Any] = []
    app.observe(seen.append, "run")
    app.gallery._take_look(300)
    run(app)
    held = [app.run, app.run.activations[0].tensor, app.model, app.model.module, app.run.output]
    references = [weakref.ref(thing) for thing in held]
    seen.clear()
    del held
    app.close()
    assert gone(*references)
    assert seen == []  # nobody observes it any more, that it is emptied included
    assert app.run is app.model is None
    assert app.gallery.cards == []
    assert app.gallery.activations == ()
    assert app._still.id is None
    assert {part.comm for part in (app, *app.parts)} == {None}
    assert {part.layout.comm for part in (app, *app.parts)} == {None}


def test_a_closed_app_comes_back_with_what_still_is_there(model: LoadedModel) -> None:
    app = explore(model, sample_image(), ["conv"], run=False)
    app.close()
    app.open()
    assert app.model is model
    assert app.image.name == "chelsea.png"
    app.layers = ["conv"]
    run(app)
    app.image = torch.rand(3, 900, 900)  # more than a closed app keeps
    app.close()
    assert app.image is None
    app.open()
    assert app.why_not == "Choose an image."
    app.close()


def test_a_closed_app_whose_model_is_gone_comes_back_without_it() -> None:
    app = explore(nn.Sequential(nn.Conv2d(3, 4, 3)), sample_image(), ["0"], run=False)
    run(app)
    app.close()
    gc.collect()
    app.open()
    assert app.why_not == "Choose a model."
    assert app.tree.rows == app.gallery.cards == []
    assert app.model_info == app.predictions == {}
    app.model = nn.Sequential(nn.Conv2d(3, 4, 3))
    assert app.layers == ["0"]
    run(app)
    app.close()


def test_an_older_run_goes_with_the_next_and_with_image_and_model(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_runs, "KEPT_BYTES", 0)  # see test_compare_panel.py for these
    app = explore(model, sample_image(), ["conv", "fc"], run=False)
    app.gallery._take_look(300)
    run(app)
    first = [weakref.ref(app.run), *(weakref.ref(a.tensor) for a in app.run.activations)]
    app.layers = ["conv"]
    run(app)
    # The other layer is not run again: its values are those of the first run, and stay.
    assert gone(first[0], first[1])
    assert first[2]() is not None
    app.image = sample_image("coffee.png")
    run(app)
    assert gone(*first)
    last = [weakref.ref(app.run), *(weakref.ref(a.tensor) for a in app.run.activations)]
    app.model = nn.Sequential(nn.Conv2d(3, 4, 3))
    assert gone(*last)
    assert app.run is None
    app.close()


def test_layers_that_are_not_ticked_any_more_are_kept_up_to_a_limit(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = explore(model, sample_image(), ["conv", "deep", "fc"], run=False)
    run(app)
    sizes = {name: app.results.get(name).bytes for name in ("conv", "deep", "fc")}
    assert sizes["conv"] == 6 * 24 * 24 * 4
    monkeypatch.setattr(results, "TENSOR_BYTES", sizes["deep"] + sizes["fc"])
    app.layers = []
    assert [name in app.results for name in ("conv", "deep", "fc")] == [False, True, True]
    app.close()


def test_pictures_are_kept_up_to_a_limit_and_no_tensor_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(painting, "PICTURE_BYTES", 60_000)
    box, origin = painting.PaintBox(), painting.Origin()

    def activation(number: int) -> Activation:
        maps = torch.rand(1, 8, 16, 16)
        return Activation(f"layer{number}", 1, 1, 1, number, "output", "", "Conv2d", maps)

    shown = [activation(number) for number in range(6)]
    options = painting.GridOptions(width=300)
    first = [box.paint(a, options, origin).png for a in shown]
    assert 0 < box.bytes <= 60_000 < sum(map(len, first))
    assert box.paint(shown[-1], options, origin).png is first[-1]
    tensors = [weakref.ref(a.tensor) for a in shown]
    shown.clear()
    assert gone(*tensors)
    box.paint(activation(7), options, origin)
    assert box.bytes < 2 * len(first[0])
