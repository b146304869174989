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
    expect(app.part("inspect")).to_be_visible()
    lab.page.keyboard.press("ArrowLeft")
    expect(app.part("about")).to_be_hidden()
    expect(app.card("features.2")).to_be_visible()
    expect(app.part("tab-gallery")).to_be_focused()
    lab.screenshot("panel_gallery")
