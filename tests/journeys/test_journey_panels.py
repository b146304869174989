"""The panels beside the gallery."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from journey_app import App, soon
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
    soon(lambda: figures.first.is_visible() and figures.first.evaluate(corner) < 60)
    lab.screenshot("panel_explain_dark")
    assert lab.axe(axe_source, '[data-hv="app"]') == []


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


def test_what_if_by_keyboard_and_mouse_in_both_themes(
    open_app: Callable[..., tuple[Lab, App]], axe_source: str
) -> None:
    lab, app = open_app(ATTENDING)
    expect(app.card("patches")).to_be_visible()
    app.part("tab-what if").focus()
    press = lab.page.keyboard.press
    press("Enter")
    expect(app.part("what-if")).to_be_visible()
    # By keyboard: channels at a place of the layer that is proposed.
    expect(app.part("whatif-layer")).to_have_value("patches")
    expect(app.part("whatif-channels")).to_have_attribute("placeholder", "all (0–7)")
    app.tab_to(app.part("whatif-channels"))
    lab.page.keyboard.type("0-3")
    press("Tab")
    lab.page.keyboard.type("2, 5")
    press("Enter")
    edits = app.part("whatif-edits").locator("li")
    expect(edits).to_have_count(1)
    expect(edits.first).to_contain_text("at (2, 5)")
    effect = app.part("whatif-effect")
    expect(effect).to_contain_text("class")
    expect(app.part("whatif-classes").locator("tbody tr")).to_have_count(3)
    first = effect.inner_text()
    # By mouse: a head of two, that scales, and what the layer gives for another photo.
    app.part("whatif-place").fill("")
    app.part("whatif-channels").fill("")
    app.part("whatif-kind").select_option("scale")
    app.part("whatif-layer").fill("block.self_attn")
    expect(app.part("whatif-head")).to_have_count(2)
    app.part("whatif-head").nth(1).click()
    app.part("whatif-add").click()
    expect(edits).to_have_count(2)
    expect(edits.nth(1)).to_contain_text("head 1")
    app.part("whatif-slider").focus()
    press("Home")
    expect(edits.nth(1)).to_contain_text("by -2")
    expect(effect).not_to_have_text(first)
    app.part("whatif-kind").select_option("other_image")
    app.part("whatif-layer").fill("patches")
    expect(app.part("whatif-head")).to_have_count(0)
    app.part("whatif-image").select_option("coffee.png")
    app.part("whatif-add").click()
    expect(edits.nth(2)).to_contain_text("coffee.png")
    # The list: later ones earlier, one switched off, and what was done undone, by keyboard.
    app.part("whatif-up").nth(2).focus()
    press("Enter")
    expect(edits.nth(1)).to_contain_text("coffee.png")
    app.part("whatif-on").nth(0).focus()
    press("Space")
    expect(app.part("whatif-on").nth(0)).not_to_be_checked()
    lab.expect_value("[str(e).split(':')[0] for e in app.what_if.chosen]",
                     ["patches", "block.self_attn"])  # fmt: skip
    app.tab_to(app.part("whatif-undo"))
    press("Enter")
    expect(app.part("whatif-on").nth(0)).to_be_checked()
    # What is not legal is said at the fields.
    app.part("whatif-layer").fill("nonsense")
    app.part("whatif-add").click()
    expect(app.part("whatif-problem")).to_contain_text("nonsense")
    # Channels by their effect, and as a table.
    app.part("whatif-layer").fill("patches")
    app.part("whatif-rank").click()
    expect(app.part("whatif-ranking")).to_contain_text("without the edits")
    with lab.page.expect_download() as table:
        app.part("whatif-table").click()
    wanted = lab.value("hookviz.sweep(app.model, app.image, 'patches').to_csv()")
    assert table.value.path().read_bytes().decode() == wanted
    lab.screenshot("panel_whatif")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    lab.theme("dark")
    lab.screenshot("panel_whatif_dark")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    app.expect_plain_words()
    app.part("whatif-compare").click()
    expect(app.part("compare-verdict")).to_be_visible()
    app.part("tab-explain").click()
    expect(app.part("explain-unedited")).to_contain_text("without them")


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
    app.part("explain-heads").select_option("1")
    expect(figure).not_to_have_attribute("alt", re.compile("mean of 2 heads"))
    lab.screenshot("panel_attention_dark")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    # While a clip runs in Live, what is explained is its newest frame.
    app.part("tab-live").click()
    app.part("live-sample").click()
    expect(app.part("live")).to_have_attribute("data-painted", re.compile(r"[1-9]"))
    app.part("live-play").click()
    app.part("tab-explain").click()
    expect(app.part("explain-live")).to_be_visible()
    expect(app.part("explain-facts")).to_contain_text("frame")
    frame = app.part("explain-facts").inner_text()
    expect(app.part("explain-facts")).not_to_have_text(frame)
    lab.screenshot("panel_explain_live")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    app.part("tab-live").click()
    app.part("live-stop").click()
    app.part("tab-explain").click()
    expect(app.part("explain-stale")).to_be_visible()
