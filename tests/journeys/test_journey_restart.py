"""After a kernel restart the cell offers the former choices, and takes none unasked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from journey_app import App
from journey_lab import Lab
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

READY = """import hookviz
app = hookviz.explore("vgg16")
app"""
KEPT = """() => Object.keys(localStorage).some(key => key.startsWith('hookviz:choices:')
  && JSON.parse(localStorage[key]).text.includes('features.28#1'))"""


def test_the_former_choices_are_offered_after_a_restart(
    open_app: Callable[..., tuple[Lab, App]], axe_source: str
) -> None:
    lab, app = open_app(READY, own_kernel=True)
    app.sample("coffee")
    app.find_and_tick("features.28")
    app.run("features.28")
    app.choose("Colours", "magma")
    grid = app.painted("features.28")
    app.tab_to(grid)
    lab.page.keyboard.press("Enter")
    lab.page.wait_for_function(KEPT)
    pin = lab.value("app.pin")
    assert pin["key"] == "features.28#1"
    lab.restart()
    lab.run_cell(0)
    again = App(lab.page, lab.output(0)).wait_ready()
    offer = again.part("former")
    expect(offer).to_contain_text("vgg16, coffee.png, 1 layer, view, a pinned place")
    lab.expect_value("(app.layers, app.image)", [[], None])
    lab.screenshot("former_light")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    lab.theme("dark")
    lab.screenshot("former_dark")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    lab.theme("light")
    again.tab_to(again.part("use-former"))
    lab.page.keyboard.press("Enter")
    expect(offer).to_be_hidden()
    again.expect_image("coffee.png")
    lab.expect_value("(app.layers, app.run)", [["features.28"], None])
    again.run("features.28")
    lab.expect_value("(app.options.cmap, app.pin)", ["magma", pin])
