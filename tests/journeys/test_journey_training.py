"""A network that learns, watched in a notebook while its cell runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from journey_lab import Lab
from playwright.sync_api import Locator, expect

pytestmark = pytest.mark.browser

READY = """import hookviz, torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
labels = torch.tensor(digits.target)
net = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(768, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
m = hookviz.monitor(
    net, ["0", "1"], every=20, stats_every=2, probe=(images[0, 0].numpy() * 255).astype("uint8"),
    preprocess=hookviz.Preprocessing.for_size(8, "squash", channels=1, mean=0, std=1),
    on_alert="record",
).__enter__()
m"""
TRAIN = """for number in range(1, 61):
    chosen = torch.randint(0, 1500, (64,))
    loss = F.cross_entropy(net(images[chosen]), labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if number == 50:
        net[0].bias.data.fill_(-8)
    m.step(loss=loss)
m.close()"""


def shows(picture: Locator, text: str) -> None:
    expect(picture).to_have_attribute("alt", text)
    expect(picture).to_be_visible()


def test_a_training_is_watched_while_its_cell_runs(
    lab: Lab, journey_name: str, axe_source: str
) -> None:
    lab.open(f"{journey_name}.ipynb", [READY, TRAIN], own_kernel=False)
    lab.run_cell(0)
    view, page = lab.output(0).locator('[data-hv="training"]'), lab.page
    part: Callable[[str], Any] = lambda name: view.locator(f'[data-hv="training-{name}"]')  # noqa: E731
    expect(part("about")).to_have_text("Sequential: step 0, running")
    expect(part("maps")).to_be_visible()
    lab.run_cell(1)
    # It has followed by itself: the newest figure, the curves, the ReLU that died.
    expect(part("about")).to_have_text("Sequential: step 60, ended")
    expect(part("step")).to_have_text("after 60 steps (0 to 60)")
    expect(part("alerts")).to_contain_text("12 of 12 channels of layer '1' (ReLU) are dead")
    shows(part("curves"), "share of zeros of all layers over the steps")
    part("quantity").select_option("loss")
    shows(part("curves"), "loss of all layers over the steps")
    # Through time by keys and by mouse, on one scale.
    slider = part("slider")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(part("step")).to_contain_text("after 40 steps")
    expect(slider).to_have_attribute("aria-valuetext", "after 40 steps")
    low, high = lab.value("[hookviz.render.value(end) for end in m.over_time('0').ends]")
    said = f"0 after {{}} steps. shared scale: {low} to {high}"
    expect(part("maps")).to_have_attribute("alt", re.compile(re.escape(said.format(40))))
    slider.click(position={"x": 3, "y": 5})
    expect(part("step")).to_contain_text("after 0 steps")
    expect(part("maps")).to_have_attribute("alt", re.compile(re.escape(said.format(0))))
    # A channel by a click on its map, and another by its number.
    tiles = json.loads(part("maps").get_attribute("data-tiles") or "")
    at = tiles["channels"].index(5)
    row, column = divmod(at, tiles["columns"])
    part("maps").click(
        position={
            "x": tiles["left"] + column * tiles["across"] + tiles["width"] / 2,
            "y": tiles["top"] + row * tiles["down"] + tiles["height"] / 2,
        }
    )
    expect(part("channel")).to_have_value("5")
    expect(part("strip")).to_have_attribute("alt", re.compile("Channel 5 after 4 steps"))
    lab.await_picture(part("strip"))
    lab.screenshot("training_light")
    assert lab.axe(axe_source, '[data-hv="training"]') == []
    part("channel").fill("2")
    page.keyboard.press("Enter")
    expect(part("strip")).to_have_attribute("alt", re.compile("Channel 2 after 4 steps"))
    lab.theme("dark")
    expect(view).to_have_attribute("data-style", "dark")
    for name in ("curves", "maps", "strip"):
        expect(part(name)).to_have_attribute("data-style", "dark")
    lab.screenshot("training_dark")
    assert lab.axe(axe_source, '[data-hv="training"]') == []
