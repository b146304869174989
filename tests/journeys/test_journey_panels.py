"""The panels beside the gallery."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from journey_app import App
from journey_lab import Lab
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

READY = """import hookviz
photo = hookviz.sample_image("chelsea.png")
app = hookviz.explore("vgg16", photo, ["features.0", "features.2"])
app"""


def test_about_follows_the_card_in_use(
    open_app: Callable[..., tuple[Lab, App]], axe_source: str
) -> None:
    lab, app = open_app(READY)
    expect(app.card("features.2")).to_be_visible()
    app.card("features.2").click()
    app.part("tab-about").click()
    expect(app.part("about")).to_contain_text("features.2")
    expect(app.part("about")).to_contain_text("36,928 (weight 64×64×3×3, bias 64)")
    lab.screenshot("panel_about")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    lab.page.keyboard.press("ArrowLeft")
    expect(app.part("about")).to_be_hidden()
    app.part("tab-inspect").click()
    expect(app.part("inspect")).to_be_visible()
    lab.page.keyboard.press("ArrowLeft")
    expect(app.part("inspect")).to_be_hidden()
    expect(app.card("features.2")).to_be_visible()
    expect(app.part("tab-gallery")).to_be_focused()
    lab.screenshot("panel_gallery")


def test_explain_by_keyboard_in_both_themes(
    open_app: Callable[..., tuple[Lab, App]], axe_source: str
) -> None:
    lab, app = open_app(READY.replace("features.2", "features.23"))
    expect(app.card("features.23")).to_be_visible()
    app.part("tab-explain").focus()
    lab.page.keyboard.press("Enter")
    expect(app.part("explanation")).to_be_visible()
    app.part("explain-target").focus()
    lab.page.keyboard.type("channel 31 of features.28")
    lab.page.keyboard.press("Enter")
    expect(app.part("explain-title")).to_contain_text("Grad-CAM", timeout=60_000)
    expect(app.part("explain-facts")).to_contain_text("channel 31 of features.28")
    figures = app.part("explain-figures").locator("img")
    expect(figures).to_have_count(2)
    expect(figures.first).to_be_visible()
    assert all(figures.nth(i).evaluate("img => img.naturalWidth") > 300 for i in range(2))
    lab.screenshot("panel_explain")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    # What does not suit is said at the field, and the result stays.
    app.part("explain-target").fill("channel 31 of features.29x")
    lab.page.keyboard.press("Enter")
    expect(app.part("explain-problem")).to_contain_text("features.29")
    expect(figures).to_have_count(2)
    # Drawn anew for the theme: dark at its corner.
    lab.theme("dark")
    corner = """img => { const c = document.createElement("canvas").getContext("2d");
        c.drawImage(img, 0, 0); return c.getImageData(2, 2, 1, 1).data[0]; }"""
    for _ in range(100):
        if figures.first.is_visible() and figures.first.evaluate(corner) < 60:
            break
        lab.page.wait_for_timeout(100)
    assert figures.first.evaluate(corner) < 60
    lab.screenshot("panel_explain_dark")
    assert lab.axe(axe_source, '[data-hv="app"]') == []


def test_what_if_by_keyboard_and_mouse_in_both_themes(
    open_app: Callable[..., tuple[Lab, App]], axe_source: str
) -> None:
    lab, app = open_app(
        "import hookviz, torch\n"
        "from torchvision.models import resnet18\n"
        "torch.manual_seed(0)\n"
        'photo = hookviz.sample_image("chelsea.png")\n'
        'app = hookviz.explore(resnet18(), photo, ["layer1"])\n'
        "app"
    )
    expect(app.card("layer1")).to_be_visible()
    app.part("tab-what if").focus()
    lab.page.keyboard.press("Enter")
    expect(app.part("what-if")).to_be_visible()
    expect(app.part("whatif-layer")).to_have_value("layer1")
    app.part("whatif-channels").focus()
    lab.page.keyboard.type("0-31")
    lab.page.keyboard.press("Enter")
    expect(app.part("whatif-edits").locator("li")).to_have_count(1)
    expect(app.part("whatif-effect")).to_contain_text("class", timeout=60_000)
    rows = app.part("whatif-classes").locator("tbody tr")
    assert rows.count() >= 5
    first = app.part("whatif-effect").inner_text()
    # A second edit, that scales; its slider by keyboard.
    app.part("whatif-kind").select_option("scale")
    app.part("whatif-layer").fill("layer2")
    app.part("whatif-channels").fill("")
    app.part("whatif-add").click()
    expect(app.part("whatif-edits").locator("li")).to_have_count(2)
    app.part("whatif-slider").focus()
    lab.page.keyboard.press("Home")
    expect(app.part("whatif-edits")).to_contain_text("by -2")
    expect(app.part("whatif-effect")).not_to_have_text(first, timeout=60_000)
    app.part("whatif-layer").fill("nonsense")
    app.part("whatif-add").click()
    expect(app.part("whatif-problem")).to_contain_text("nonsense")
    app.part("whatif-layer").fill("layer4")
    app.part("whatif-rank").click()
    expect(app.part("whatif-ranking")).to_contain_text("of 512 channels", timeout=120_000)
    lab.screenshot("panel_whatif")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    lab.theme("dark")
    lab.screenshot("panel_whatif_dark")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    app.part("whatif-compare").click()
    expect(app.part("compare-verdict")).to_be_visible(timeout=60_000)


ATTENDING = """
import hookviz, torch
from torch import nn
from hookviz.images import Preprocessing

class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 8, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        self.token, self.fc = nn.Parameter(torch.randn(1, 1, 8)), nn.Linear(8, 3)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.fc(self.block(torch.cat([self.token.expand(len(x), -1, -1), x], 1))[:, 0])

torch.manual_seed(0)
model = hookviz.load_model(Attending(), preprocess=Preprocessing.for_size(64))
app = hookviz.explore(model, hookviz.sample_image("chelsea.png"), ["patches", "block"], run=True)
app
"""


def test_attention_over_the_photo_in_both_themes(
    open_app: Callable[..., tuple[Lab, App]], axe_source: str
) -> None:
    lab, app = open_app(ATTENDING)
    expect(app.card("patches")).to_be_visible()
    app.part("tab-explain").click()
    app.part("explain-method").select_option("attention")
    app.part("explain").click()
    expect(app.part("explain-query")).to_have_text("From the class token", timeout=60_000)
    figure = app.part("explain-figures").locator("img")
    expect(figure).to_have_count(1)
    photo = app.part("explain-photo")
    photo.click(position={"x": 10, "y": 100})
    expect(app.part("explain-query")).to_contain_text("column 0 of 8 × 8")
    photo.focus()
    lab.page.keyboard.press("ArrowRight")
    expect(app.part("explain-query")).to_contain_text("column 1 of 8 × 8")
    app.part("explain-heads").select_option("mean")
    expect(figure).to_have_attribute("alt", re.compile("mean of 2 heads"))
    lab.screenshot("panel_attention")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    lab.theme("dark")
    lab.screenshot("panel_attention_dark")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
