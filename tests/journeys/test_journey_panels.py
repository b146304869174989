"""The panels beside the gallery."""

from __future__ import annotations

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
