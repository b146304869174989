"""Pointing at maps and at the photo, by mouse and by keyboard alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from journey_app import App, steady_box
from journey_lab import Lab
from playwright.sync_api import Locator, expect

pytestmark = pytest.mark.browser

READY = """import hookviz
photo = hookviz.sample_image("chelsea.png")
app = hookviz.explore("vgg16", photo, ["features.0", "features.28"], device="cpu")
app"""


def tiles_of(grid: Locator) -> dict[str, Any]:
    """Where the maps stand in a picture, once it is painted."""
    found: dict[str, Any] = grid.evaluate("img => JSON.parse(img.dataset.tiles)")
    return found


def hover(lab: Lab, grid: Locator, index: int, y: int, x: int) -> dict[str, Any]:
    """Move the mouse to a place of the nth map on the page; the page's tiles."""
    tiles = tiles_of(grid)
    row, column = divmod(index, tiles["columns"])
    left = tiles["left"] + column * tiles["across"] + (x + 0.5) * tiles["width"] / tiles["cols"]
    top = tiles["top"] + row * tiles["down"] + (y + 0.5) * tiles["height"] / tiles["rows"]
    grid.evaluate("img => img.scrollIntoView({block: 'start'})")
    box = steady_box(grid)
    scale = box["width"] / grid.evaluate("img => Number(img.getAttribute('width'))")
    lab.page.mouse.move(box["x"] + left * scale, box["y"] + top * scale, steps=3)
    return tiles


def test_hover_says_the_value_that_python_has(open_app: Callable[..., tuple[Lab, App]]) -> None:
    lab, app = open_app(READY)
    grid = app.painted("features.28")
    tiles = hover(lab, grid, 9, 5, 6)
    channel = tiles["channels"][9]
    readout = app.part("readout")
    expect(readout).to_have_attribute("data-place", f"features.28#1 {channel} 5 6")
    expect(readout).to_be_visible()
    value, rank = lab.value(
        f"(app.run.value('features.28', {channel}, 5, 6),"
        f" app.run.vector('features.28', 5, 6).rank({channel}))"
    )
    shown = readout.get_attribute("data-value")
    lab.expect_value(f"__import__('numpy').float32('{shown}').item()", value)
    expect(readout).to_contain_text(f"rank {rank} of 512")
    lab.screenshot("point_hover")
    # The same place is outlined on every map of every card on the screen, and on the photo.
    count = "img => (img.nextElementSibling.querySelector('.hv-mark-over.hv-mark-hover')"
    count += ".getAttribute('d').match(/M/g) ?? []).length"
    assert grid.evaluate(count) == len(tiles["channels"])
    # On the photo it is the pixels that this place is the nearest of, once the centers are known.
    photo = app.part("original").first
    shown = "img => img.nextElementSibling.querySelector('.hv-mark-over.hv-mark-hover')"
    lab.page.wait_for_function(f"{shown}?.getAttribute('d')", arg=photo.element_handle())
    middle = photo.evaluate(
        f"img => {{ const path = ({shown})(img), box = path.getBBox();"
        " const { width, height } = path.ownerSVGElement.viewBox.baseVal;"
        " return [(box.x + box.width / 2) / width, (box.y + box.height / 2) / height]; }"
    )
    width, height = lab.value("app.run.image.size")
    at = int(middle[0] * width), int(middle[1] * height)
    lab.expect_value(f"app.run.place_at('features.28', {at[0]}, {at[1]})", [5, 6])
    # Nothing is left of it once the mouse is gone.
    lab.page.mouse.move(2, 2)
    expect(readout).to_be_hidden()


def test_pin_by_keyboard_and_follow_a_bar(
    open_app: Callable[..., tuple[Lab, App]], axe_source: str
) -> None:
    lab, app = open_app(READY)
    grid = app.painted("features.28")
    app.tab_to(grid)
    readout = app.part("readout")
    expect(readout).to_be_visible()
    tiles = tiles_of(grid)
    first = f"features.28#1 {tiles['channels'][0]}"
    expect(readout).to_have_attribute("data-place", f"{first} 6 6")
    for key in ("ArrowUp", "ArrowUp", "ArrowRight", "Shift+ArrowRight", "Shift+ArrowRight"):
        lab.page.keyboard.press(key)
    channel = tiles["channels"][2]
    expect(readout).to_have_attribute("data-place", f"features.28#1 {channel} 4 7")
    lab.page.keyboard.press("Enter")
    app.part("tab-inspect").click()
    expect(app.part("inspect-place")).to_have_text("features.28 · y 4, x 7 of 14 × 14")
    expect(app.part("inspect-field")).to_contain_text("Sees 196 × 196 pixels of the input")
    box = lab.value("app.run.receptive_field('features.28', 4, 7).image_box")
    shown = app.part("inspect").locator(".hv-field-box")
    expect(shown).to_have_attribute("data-box", " ".join(map(str, box)))
    picture = app.part("inspect-photo")
    lab.await_picture(picture)
    # The box lies over the very pixels of the photo.
    size = lab.value("app.run.image.size")
    outer, inner = steady_box(picture), steady_box(shown.locator("path").first)
    assert abs((inner["x"] - outer["x"]) / outer["width"] - box[0] / size[0]) < 0.02
    lab.screenshot("point_pinned")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    try:
        lab.theme("dark")
        lab.screenshot("point_pinned_dark")
        assert lab.axe(axe_source, '[data-hv="app"]') == []
    finally:
        lab.theme("light")
    expect(grid).to_be_visible()  # the maps stay beside the panel
    # A bar leads to its channel: its page, and its tile under the keys.
    top = lab.value("app.run.vector('features.28', 4, 7).order[3]")
    bar = app.part("inspect-bar").and_(
        lab.page.locator(f'[data-channel="{top}"][data-key="features.28#1"]')
    )
    bar.focus()
    lab.page.keyboard.press("Enter")
    expect(grid).to_be_focused()
    expect(readout).to_have_attribute("data-place", f"features.28#1 {top} 4 7")
    assert top in tiles_of(grid)["channels"]
    expect(grid).to_be_in_viewport()
    lab.screenshot("point_bar")
    lab.expect_value("app.pin.get('channel')", channel)
    lab.page.keyboard.press("Escape")
    app.part("tab-inspect").click()
    expect(app.part("inspect-place")).to_be_hidden()
    lab.expect_value("app.pin", {})


def test_a_region_of_the_photo(open_app: Callable[..., tuple[Lab, App]], axe_source: str) -> None:
    lab, app = open_app(READY)
    app.painted("features.28")
    photo = app.part("original")
    expect(photo).to_have_attribute("tabindex", "0")
    box = steady_box(photo)
    lab.page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.2)
    lab.page.mouse.down()
    lab.page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.6, steps=4)
    lab.page.mouse.up()
    app.part("tab-inspect").click()
    expect(app.part("inspect-region")).to_contain_text("Region")
    inside = app.part("inspect-inside").locator('[data-key="features.28#1"] .hv-vector-channel')
    expect(inside.first).to_be_visible()
    region = lab.value("list(app.region)")
    assert len(region) == 4
    order = lab.value(f"app.run.channels_in('features.28', {region}).order[:10]")
    assert inside.all_inner_texts() == [str(channel) for channel in order]
    lab.screenshot("point_region")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    # The same by keyboard: Shift and arrows mark, Enter takes it.
    app.part("inspect-region").locator("xpath=..").get_by_role("button", name="Clear").click()
    expect(app.part("inspect-region")).to_be_hidden()
    photo.focus()
    lab.page.keyboard.press("ArrowLeft")
    for key in ("Shift+ArrowRight", "Shift+ArrowDown", "Shift+ArrowDown", "Enter"):
        lab.page.keyboard.press(key)
    expect(app.part("inspect-region")).to_be_visible()
    left, top, right, bottom = lab.value("list(app.region)")
    assert right - left > 1
    assert bottom - top > 2
