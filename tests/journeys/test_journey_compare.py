"""Two runs side by side, by mouse and by keyboard alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from journey_app import App, soon, steady_box
from journey_lab import Lab
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

READY = """import hookviz
photo = hookviz.sample_image("chelsea.png")
app = hookviz.explore("vgg16", photo, ["features.0", "features.28"], device="cpu")
app"""


# As long as the page blinks once, by its own clock: what is to stay has had its time to change.
ONE_BLINK = "() => new Promise(resolve => setTimeout(resolve, 850))"
PIN = "next(part.pin for part in app.parts if type(part).__name__ == 'CompareRuns')"


def cells(app: App) -> tuple[list[dict[str, Any]], list[int]]:
    """Where the tiles stand on the canvas, and their (width, height), in its pixels."""
    canvas = app.part("compare-maps")
    found = canvas.get_attribute("data-cells"), canvas.get_attribute("data-tile")
    return json.loads(found[0] or "[]"), json.loads(found[1] or "[]")


def hover(lab: Lab, app: App, cell: dict[str, Any], y: int, x: int, size: int) -> None:
    """Move the mouse to a place of a tile of ``size`` × ``size`` activations."""
    _, (width, height) = cells(app)
    canvas = app.part("compare-maps")
    canvas.scroll_into_view_if_needed()
    box = steady_box(canvas)
    scale = box["width"] / canvas.evaluate("canvas => canvas.width")
    left, top = cell["x"] + (x + 0.5) * width / size, cell["y"] + (y + 0.5) * height / size
    lab.page.mouse.move(box["x"] + left * scale, box["y"] + top * scale, steps=2)


def compare_two_photos(lab: Lab, app: App) -> None:
    app.painted("features.28")
    app.sample("coffee")
    app.run("features.28")
    app.part("tab-compare").click()
    ticks = app.part("compare-tick")
    expect(ticks).to_have_count(2)
    ticks.nth(0).check()
    ticks.nth(1).check()
    lab.screenshot("compare_tray")
    app.part("compare-go").click()
    expect(app.part("compare")).to_have_attribute("data-state", "ready")
    expect(app.part("compare-maps")).to_have_attribute("data-version", re.compile(r"\d"))


def test_compare_two_photos_by_mouse(
    open_app: Callable[..., tuple[Lab, App]], axe_source: str, tmp_path: Path
) -> None:
    lab, app = open_app(READY)
    compare_two_photos(lab, app)
    expect(app.part("compare-verdict")).to_contain_text(
        "First difference beyond rounding: features.0"
    )
    rows = app.part("compare-layers").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("first difference")
    expect(rows.nth(1)).not_to_contain_text("first difference")
    app.part("compare-layer").nth(1).click()
    expect(app.part("compare-maps")).to_have_attribute("aria-label", re.compile(r"features\.28"))
    lab.screenshot("compare_side")
    # The channels that differ most come first, and the values are those of the tensors.
    lab.python("a, b = (side.records('*')[1].tensor[0] for side in app.comparison._sides)")
    first = lab.value("int((b - a).double().square().mean((1, 2)).sqrt().argmax())")
    places, _ = cells(app)
    assert places[0]["channel"] == first
    assert app.part("compare-maps").get_attribute("data-parts") == "1 2 2 − 1"
    hover(lab, app, places[1], 5, 6, 14)
    readout = app.part("compare-readout")
    expect(readout).to_have_attribute("data-place", f"{first} 5 6")
    wanted = lab.value(f"[str(t[{first}, 5, 6].numpy()) for t in (a, b, b - a)]")
    assert [
        *(readout.get_attribute("data-values") or "").split(),
        readout.get_attribute("data-difference"),
    ] == wanted
    # Outlined in every tile of every run.
    count = "el => (el.querySelector('.hv-mark-over.hv-mark-hover')"
    count += ".getAttribute('d').match(/M/g) ?? []).length"
    assert app.part("compare").evaluate(count) == len(places)
    lab.page.mouse.down()
    lab.page.mouse.up()
    lab.page.mouse.move(2, 2)
    expect(readout).to_contain_text("Pinned: channel")
    lab.expect_value(f"{PIN}['y']", 5)
    lab.screenshot("compare_pinned")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    app.expect_plain_words()
    # The other ways to look ask for nothing new.
    app.part("compare-mode-difference").click()
    expect(app.part("compare-maps")).to_have_attribute("data-parts", "2 − 1")
    app.part("compare-relative").check()
    expect(app.part("compare-maps")).to_have_attribute("data-parts", "relative")
    lab.screenshot("compare_relative")
    app.part("compare-mode-blink").click()
    for run in ("2", "1", "2"):
        expect(app.part("compare-maps")).to_have_attribute("data-parts", run)
    app.part("compare-play").click()
    expect(app.part("compare-play")).to_have_text("Play")
    now = app.part("compare-maps").get_attribute("data-parts")
    lab.page.evaluate(ONE_BLINK)
    assert app.part("compare-maps").get_attribute("data-parts") == now
    app.part("compare-switch").click()
    expect(app.part("compare-maps")).not_to_have_attribute("data-parts", now or "")
    # Under the wipe the left of each tile is of the reference, the right of the other.
    app.part("compare-mode-wipe").click()
    places, (width, height) = cells(app)
    hover(lab, app, places[0], 7, 3, 14)
    lab.page.mouse.down()
    hover(lab, app, places[0], 7, 10, 14)
    lab.page.mouse.up()
    expect(app.part("compare-wipe")).to_have_value("75")
    expect(app.part("compare-maps")).to_have_attribute("data-wipe", "75")
    lab.screenshot("compare_wipe")
    pixels = """(canvas, [x, y]) => [...canvas.getContext('2d').getImageData(x, y, 1, 1).data]"""

    def pixel(column: int) -> list[int]:
        x = places[0]["x"] + round((column + 0.5) * width / 14)
        y = places[0]["y"] + round(0.5 * height / 14)
        found: list[int] = app.part("compare-maps").evaluate(pixels, [x, y])
        return found

    wiped = [pixel(column) for column in (1, 12)]
    app.part("compare-mode-blink").click()
    alone = {}
    for _ in range(2):
        app.part("compare-switch").click()
        alone[app.part("compare-maps").get_attribute("data-parts")] = [pixel(c) for c in (1, 12)]
    assert wiped == [alone["1"][0], alone["2"][1]]
    # Files.
    app.part("compare-export").click()
    exported = app.part("compare-exported")
    expect(exported).to_contain_text("hookviz_exports")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    version = app.part("compare-maps").get_attribute("data-version")
    try:
        lab.theme("dark")
        app.part("compare-mode-side").click()
        expect(app.part("compare-maps")).not_to_have_attribute("data-version", version or "")
        lab.screenshot("compare_dark")
        assert lab.axe(axe_source, '[data-hv="app"]') == []
    finally:
        lab.theme("light")
    app.part("compare-close").click()
    expect(app.part("compare-result")).to_be_hidden()
    expect(app.part("compare-tick").first).to_be_visible()


def test_compare_by_keyboard_alone(open_app: Callable[..., tuple[Lab, App]]) -> None:
    lab, app = open_app(READY)
    app.painted("features.28")
    lab.python(
        "app.image = hookviz.sample_image('coffee.png')\nassert app.start_run() and app.wait()"
    )
    press = lab.page.keyboard.press
    app.tab_to(app.part("tab-gallery"))
    tab = app.part("tab-compare")
    for _ in range(app.root.get_by_role("tab").count()):
        if tab.get_attribute("aria-selected") == "true":
            break
        press("ArrowRight")
    expect(tab).to_be_focused()
    for index in (1, 0):  # the second run is the reference
        app.tab_to(app.part("compare-tick").nth(index))
        press("Space")
        if index:
            press("Shift+Tab")
            app.part("tab-compare").focus()
    app.tab_to(app.part("compare-go"))
    press("Enter")
    expect(app.part("compare")).to_have_attribute("data-state", "ready")
    expect(app.part("compare-reference")).to_contain_text("coffee.png")
    app.tab_to(app.part("compare-layer").nth(0))
    press("ArrowDown")
    press("Enter")
    expect(app.part("compare-maps")).to_have_attribute("aria-label", re.compile(r"features\.28"))
    version = app.part("compare-maps").get_attribute("data-version") or ""
    app.tab_to(app.part("compare-mode-wipe"))
    press("Enter")
    app.tab_to(app.part("compare-wipe"))
    press("ArrowRight")
    press("ArrowRight")
    expect(app.part("compare-maps")).to_have_attribute("data-wipe", "52")
    app.tab_to(app.part("compare-maps"))
    readout = app.part("compare-readout")
    places, _ = cells(app)
    expect(readout).to_have_attribute("data-place", f"{places[0]['channel']} 6 6")
    for key in ("ArrowDown", "ArrowRight", "Shift+ArrowRight"):
        press(key)
    expect(readout).to_have_attribute("data-place", f"{places[1]['channel']} 7 7")
    press("Enter")
    lab.expect_value(f"{PIN}['x']", 7)
    press("PageDown")
    expect(app.part("compare-maps")).not_to_have_attribute("data-version", version)
    assert cells(app)[0][0]["channel"] != places[0]["channel"]
    press("Escape")
    expect(app.part("compare-maps")).to_be_focused()
    lab.expect_value(PIN, {})


def test_reduced_motion_leaves_blinking_to_the_hand(
    open_app: Callable[..., tuple[Lab, App]],
) -> None:
    lab, app = open_app(READY)
    lab.page.emulate_media(reduced_motion="reduce")
    try:
        compare_two_photos(lab, app)
        app.part("compare-mode-blink").click()
        expect(app.part("compare-play")).to_be_hidden()
        now = app.part("compare-maps").get_attribute("data-parts")
        lab.page.evaluate(ONE_BLINK)
        assert app.part("compare-maps").get_attribute("data-parts") == now
        app.part("compare-switch").click()
        expect(app.part("compare-maps")).not_to_have_attribute("data-parts", now or "")
    finally:
        lab.page.emulate_media(reduced_motion="no-preference")


def test_the_maps_are_in_sight_however_wide_the_page(
    open_app: Callable[..., tuple[Lab, App]],
) -> None:
    lab, app = open_app(READY)
    compare_two_photos(lab, app)
    for width, height in ((1280, 720), (650, 900)):
        lab.page.set_viewport_size({"width": width, "height": height})
        app.root.scroll_into_view_if_needed()
        app.part("compare").evaluate("el => el.scrollIntoView({block: 'start'})")
        expect(app.part("compare-maps")).to_be_in_viewport()
        # Nothing is wider than its place.
        soon(lambda: app.part("compare").evaluate("e => e.scrollWidth <= e.clientWidth + 1"))
        steady_box(app.part("compare-maps"))
        lab.screenshot(f"compare_{width}")
        for layer in range(2):
            app.part("compare-layer").nth(layer).focus()
            expect(app.part("compare-layer").nth(layer)).to_be_in_viewport()
