"""A channel's page, by mouse and by keyboard alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from journey_app import App
from journey_lab import Lab
from playwright.sync_api import Locator, expect

pytestmark = pytest.mark.browser

READY = """import hookviz
photo = hookviz.sample_image("chelsea.png")
app = hookviz.explore("vgg16", photo, ["features.0", "features.26", "features.28"], device="cpu")
app"""


def spot(grid: Locator, index: int, y: int, x: int) -> tuple[float, float, int]:
    """Where on the screen a place of the nth map is, and that map's channel."""
    tiles: dict[str, Any] = grid.evaluate("img => JSON.parse(img.dataset.tiles)")
    row, column = divmod(index, tiles["columns"])
    left = tiles["left"] + column * tiles["across"] + (x + 0.5) * tiles["width"] / tiles["cols"]
    top = tiles["top"] + row * tiles["down"] + (y + 0.5) * tiles["height"] / tiles["rows"]
    box = grid.bounding_box()
    assert box is not None
    scale = box["width"] / grid.evaluate("img => Number(img.getAttribute('width'))")
    return box["x"] + left * scale, box["y"] + top * scale, tiles["channels"][index]


def shown(app: App) -> Locator:
    """The map, once it is painted."""
    large = app.part("channel-map")
    expect(large).to_be_visible()
    app.page.wait_for_function(
        "img => img.complete && img.naturalWidth > 0", arg=large.element_handle()
    )
    return large


def view_of(app: App) -> list[float]:
    """Scale, left and top of the view of the map."""
    return [float(n) for n in (app.part("channel-frame").get_attribute("data-view") or "").split()]


def test_a_channel_by_mouse(open_app: Callable[..., tuple[Lab, App]], axe_source: str) -> None:
    lab, app = open_app(READY)
    page = lab.page
    grid = app.painted("features.28")
    grid.evaluate("img => img.scrollIntoView({block: 'start'})")
    x, y, channel = spot(grid, 9, 5, 6)
    page.mouse.dblclick(x, y)
    large = shown(app)
    expect(large).to_have_attribute("data-channel", str(channel))
    expect(app.part("channel-title")).to_have_text("features.28 Conv2d")
    assert lab.value("app.channel") == {"key": "features.28#1", "channel": channel}
    # One pixel an activation, and the value is the tensor's.
    assert large.evaluate("img => [img.naturalWidth, img.naturalHeight]") == [14, 14]
    page.mouse.move(*spot(large, 0, 3, 4)[:2], steps=3)
    said = app.part("channel-cursor")
    expect(said).to_contain_text(f"channel {channel} · y 3, x 4 · ")
    value = app.part("readout").get_attribute("data-value")
    exact = lab.value(f"app.run.value('features.28', {channel}, 3, 4)")
    assert lab.value(f"__import__('numpy').float32('{value}').item()") == exact
    expect(app.part("channel-histogram")).to_have_attribute("data-mark", str(value))
    expect(app.part("readout")).to_be_hidden()
    expect(app.part("channel-places").locator("img").first).to_be_visible()
    expect(app.part("channel-filters")).to_be_visible()
    lab.screenshot("channel_mouse")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    try:
        lab.theme("dark")
        lab.screenshot("channel_mouse_dark")
        assert lab.axe(axe_source, '[data-hv="app"]') == []
    finally:
        lab.theme("light")
