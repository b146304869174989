"""Models of one's own, and models whose weights are not here: the app alone leads to the maps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from journey_app import App
from journey_lab import Lab
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

DIGITS = """import hookviz, torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 13 * 13, 10))
app = hookviz.explore(net, layers=["0", "2", "4"])
app"""

# The size cannot be found where a forward asks for values.
UNKNOWN = """import hookviz, torch
from torch import nn
class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4 * 18 * 18, 10)
    def forward(self, x):
        if x.sum().item() == 12345:
            return x
        return self.fc(self.conv(x).flatten(1))
app = hookviz.explore(Odd(), hookviz.sample_image("chelsea.png"), ["conv", "fc"])
app"""

# Nobody listens on this port: what has to be downloaded cannot be.
OFFLINE = """import os
os.environ["HOOKVIZ_WEIGHTS_HOST"] = "http://127.0.0.1:9"
import hookviz, torch
app = hookviz.explore(image=hookviz.sample_image("chelsea.png"))
app"""


def test_a_module_of_a_fixed_size_runs_at_the_size_that_was_found(
    open_app: Callable[..., tuple[Lab, App]],
) -> None:
    lab, app = open_app(DIGITS)
    app.sample("coffee")
    expect(app.part("seen-caption")).to_contain_text("28 × 28")
    app.run("0", "2")
    expect(app.card("4")).to_contain_text("10")
    lab.expect_value("list(app.run.input.tensor.shape)", [1, 1, 28, 28])
    lab.screenshot("models_1_digits")
    # the usual numbers of such a data set, and a slip
    app.choose("Preprocessing", "own")
    expect(app.root.get_by_label("Size of the input", exact=True)).to_have_value("28 × 28")
    expect(app.root.get_by_label("Channels of the input", exact=True)).to_have_value("1")
    app.expect_refused("Mean", "zero", "0", "zero")
    app.type_into("Mean", "0.1307")
    app.type_into("Standard deviation", "0.3081")
    expect(app.root.get_by_label("Standard deviation", exact=True)).to_have_value("0.3081")
    app.run("0")
    lab.expect_value("app.run.input.tensor.min().item()", pytest.approx(-0.4242, abs=0.2))
    app.expect_plain_words()
    app.expect_no_alert()


def test_a_size_that_cannot_be_found_is_asked_for_where_the_forward_failed(
    open_app: Callable[..., tuple[Lab, App]],
) -> None:
    lab, app = open_app(UNKNOWN)
    app.expect_alert("fc").get_by_role("button", name="Set the size of the input").click()
    expect(app.part("state").locator("..")).to_have_attribute("data-outcome", "failed")
    lab.screenshot("models_2_asked")
    app.type_into("Size of the input", "20")
    expect(app.part("seen-caption")).to_contain_text("20 × 20")
    app.run("conv")
    lab.expect_value("list(app.run.input.tensor.shape)", [1, 3, 20, 20])
    expect(app.part("state").locator("..")).to_have_attribute("data-outcome", "ok")
    app.expect_no_alert()


def test_weights_that_cannot_be_had_lead_to_buttons_that_help(
    open_app: Callable[..., tuple[Lab, App]], tmp_path: Path
) -> None:
    lab, app = open_app(OFFLINE, own_kernel=True)
    app.expect_plain_words()
    app.button("Download the full model (528 MB)").click()
    alert = app.expect_alert("could not be downloaded", "vgg16")
    lab.expect_value("app.model.name", "vgg16")

    def choose(name: str) -> None:
        app.part("model-button").click()
        app.root.get_by_label("Search models", exact=True).fill(name)
        app.root.locator(f'[data-hv="model-option"][data-name="{name}"]').click()
        lab.screenshot("models_3_choose")
        app.part("model-load").click()

    choose("resnet18")
    app.expect_alert("resnet18")
    app.wait_idle()
    lab.screenshot("models_4_offline")
    app.expect_plain_words()
    # a file of one's own, by the button
    path = tmp_path / "mine.pth"
    lab.python(
        "mine = hookviz.load_model('resnet18', weights=None).module.state_dict()\n"
        f"torch.save(mine, {str(path)!r})"
    )
    alert.get_by_role("button", name="Choose a file").click()
    expect(app.part("model-file")).to_be_focused()
    app.part("model-file").fill(str(path))
    app.part("model-load").click()
    expect(app.part("weights")).to_contain_text("mine.pth")
    app.wait_idle()
    app.expect_no_alert()
    choose("resnet34")
    app.expect_alert("resnet34").get_by_role("button", name="Load it untrained").click()
    expect(app.part("untrained")).to_be_visible()
    expect(app.part("model-button")).to_contain_text("resnet34")
    app.wait_idle()
    app.expect_plain_words()
