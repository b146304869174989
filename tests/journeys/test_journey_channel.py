"""A channel's page, by mouse and by keyboard alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from journey_app import App, soon, steady_box
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
    box = steady_box(grid)
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
    lab.expect_value("app.channel", {"key": "features.28#1", "channel": channel})
    # One pixel an activation, and the value is the tensor's.
    assert large.evaluate("img => [img.naturalWidth, img.naturalHeight]") == [14, 14]
    page.mouse.move(*spot(large, 0, 3, 4)[:2], steps=3)
    said = app.part("channel-cursor")
    expect(said).to_contain_text(f"channel {channel} · y 3, x 4 · ")
    value = app.part("readout").get_attribute("data-value")
    exact = lab.value(f"app.run.value('features.28', {channel}, 3, 4)")
    lab.expect_value(f"__import__('numpy').float32('{value}').item()", exact)
    expect(app.part("channel-histogram")).to_have_attribute("data-mark", str(value))
    expect(app.part("readout")).to_be_hidden()
    expect(app.part("channel-places").locator("img").first).to_be_visible()
    expect(app.part("channel-filters")).to_be_visible()
    lab.screenshot("channel_mouse")
    assert lab.axe(axe_source, '[data-hv="app"]') == []

    # Its photo through it, by the slider.
    app.part("channel-opacity").fill("60")
    assert large.evaluate("img => getComputedStyle(img).opacity") == "0.4"
    lab.screenshot("channel_photo")
    app.part("channel-opacity").fill("0")

    # The wheel: over a whole map it is the page's; enlarged, the map's, until its end.
    place = 'document.querySelector(\'[data-hv="channel"]\').closest(".hv-place-panel").scrollTop'
    middle = spot(large, 0, 7, 7)[:2]
    page.mouse.move(*middle)
    page.mouse.wheel(0, 60)
    page.wait_for_function(f"{place} > 20")
    page.mouse.wheel(0, -60)
    page.wait_for_function(f"{place} === 0")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    expect(app.part("channel-frame")).not_to_have_attribute("data-view", "1.0000 0.0000 0.0000")
    assert view_of(app)[0] == pytest.approx(1.25**2, abs=1e-3)
    page.mouse.wheel(0, 9999)
    page.wait_for_function(
        "f => Number(f.dataset.view.split(' ')[2]) > 0.359",
        arg=app.part("channel-frame").element_handle(),
    )
    assert page.evaluate(place) == 0
    page.mouse.wheel(0, 60)
    page.wait_for_function(f"{place} > 20")
    page.mouse.wheel(0, -60)
    # A value is said where it stands in the enlarged map, too; buttons move and end it.
    app.part("channel-places").scroll_into_view_if_needed()
    large.scroll_into_view_if_needed()
    app.part("channel-whole").click()
    app.part("channel-more").click()
    app.part("channel-right").click()
    assert view_of(app)[1] > 0.3
    x, y, _ = spot(large, 0, 6, 9)
    page.mouse.move(x, y, steps=2)
    expect(said).to_contain_text("y 6, x 9 · ")
    # A drag moves the map and pins nothing.
    pin = lab.value("app.pin")
    page.mouse.down()
    page.mouse.move(x + 60, y + 10, steps=4)
    page.mouse.up()
    assert view_of(app)[1] < 0.3
    lab.expect_value("app.pin", pin)
    app.part("channel-whole").click()
    assert view_of(app) == [1, 0, 0]

    # A crop pins its place.
    strongest = lab.value(f"app.run.channel('features.28', {channel}).strongest(1)[0][:2]")
    app.part("channel-place").first.click()
    expect(app.part("channel-place").first).to_have_attribute(
        "data-place", " ".join(map(str, strongest))
    )
    lab.expect_value("[app.pin['y'], app.pin['x']]", list(strongest))

    # An input channel leads to the layer before, previous and next to its neighbors.
    source = lab.value(f"app.run.input_channels('features.28', {channel}).order[1]")
    app.part("channel-input").nth(1).click()
    expect(app.part("channel-title")).to_have_text("features.26 Conv2d")
    expect(app.part("channel-number")).to_have_value(str(source))
    app.part("channel-next").click()
    expect(app.part("channel-number")).to_have_value(str(source + 1))
    app.part("channel-previous").click()
    expect(shown(app)).to_have_attribute("data-channel", str(source))

    # The real tensor in the notebook.
    app.part("channel-name").fill("mine")
    app.part("channel-send").click()
    expect(app.part("channel-sent")).to_contain_text("mine in the notebook is channel")
    own = f"app.run.select('features.26').tensor[0, {source}]"
    assert lab.value(f"bool((mine == {own}).all()) and mine.data_ptr() != {own}.data_ptr()")
    app.part("channel-name").fill("photo")
    app.part("channel-send").click()
    expect(app.part("channel-sent")).to_contain_text("photo already")
    lab.expect_value("type(photo).__name__", "Picture")
    app.part("channel-replace").click()
    expect(app.part("channel-sent")).to_contain_text("replaced")

    # A picture grows until it is cancelled, and stays.
    app.part("channel-size").fill("32")
    app.part("channel-steps").fill("4000")
    app.part("channel-looks").click()
    picture = app.part("channel-looks-picture")
    expect(picture).to_be_visible()
    before = picture.get_attribute("src")
    expect(picture).not_to_have_attribute("src", before or "")
    app.part("channel-looks-cancel").click()
    expect(app.part("channel-looks-done")).to_contain_text("(cancelled)")
    expect(app.part("channel-looks-values")).to_contain_text("under small moves")
    expect(picture).to_be_in_viewport()
    lab.screenshot("channel_looks_cancelled")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    app.wait_idle()

    # The next image beside the earlier one, and back among the maps.
    app.sample("coffee")
    expect(app.part("channel").locator(".hv-badge").filter(visible=True)).to_have_text("stale")
    app.run_button.click()
    app.wait_idle()
    expect(app.part("channel-earlier").locator("img").nth(3)).to_be_visible()
    earlier = app.part("channel-earlier").locator("li")
    expect(earlier.nth(0)).to_contain_text("coffee.png, now")
    expect(earlier.nth(1)).to_contain_text("chelsea.png")
    app.expect_no_alert()
    app.expect_plain_words()
    app.part("channel-gallery").click()
    expect(app.part("channel")).to_be_hidden()
    expect(app.grid("features.26")).to_be_focused()


def test_a_channel_by_keyboard_alone(
    open_app: Callable[..., tuple[Lab, App]], axe_source: str
) -> None:
    lab, app = open_app(READY)
    page, press = lab.page, lab.page.keyboard.press
    grid = app.painted("features.28")
    app.tab_to(grid)
    readout = app.part("readout")
    expect(readout).to_be_visible()
    press("Shift+ArrowRight")
    channel = grid.evaluate("img => JSON.parse(img.dataset.tiles).channels[1]")
    expect(readout).to_have_attribute("data-place", f"features.28#1 {channel} 6 6")
    press("c")
    large = shown(app)
    expect(large).to_be_focused()  # the keys go on in the map
    expect(large).to_have_attribute("data-channel", str(channel))
    expect(app.part("channel-cursor")).to_contain_text(f"channel {channel} · y 6, x 6 · ")
    press("ArrowUp")
    expect(app.part("channel-cursor")).to_contain_text("y 5, x 6 · ")
    press("Shift+ArrowRight")
    expect(large).to_have_attribute("data-channel", str(channel + 1))
    expect(app.part("channel-cursor")).to_contain_text(f"channel {channel + 1} · y 5, x 6 · ")
    exact = lab.value(f"app.run.value('features.28', {channel + 1}, 5, 6)")
    value = readout.get_attribute("data-value")
    lab.expect_value(f"__import__('numpy').float32('{value}').item()", exact)
    press("PageDown")
    expect(app.part("channel-number")).to_have_value(str(channel + 2))
    press("PageUp")
    # Enlarged, the view follows the keys.
    for _ in range(3):
        press("+")
    assert view_of(app)[0] == pytest.approx(1.25**6, abs=1e-3)
    for _ in range(8):
        press("ArrowLeft")
    expect(app.part("channel-cursor")).to_contain_text("y 5, x 0 · ")
    page.wait_for_function(
        "f => Number(f.dataset.view.split(' ')[1]) === 0",
        arg=app.part("channel-frame").element_handle(),
    )
    press("0")
    assert view_of(app) == [1, 0, 0]
    press("Enter")  # pins
    expect(large).to_be_focused()
    lab.expect_value("[app.pin.get(part) for part in ('channel', 'y', 'x')]", [channel + 1, 5, 0])
    expect(app.part("channel-filters")).to_be_visible()
    for theme in ("light", "dark"):
        try:
            lab.theme(theme)  # type: ignore[arg-type]
            for width, height in ((1280, 720), (650, 900)):
                page.set_viewport_size({"width": width, "height": height})
                steady_box(large)
                lab.screenshot(f"channel_{theme}_{width}")
                assert lab.axe(axe_source, '[data-hv="app"]') == []
                # Nothing is wider than its place.
                soon(
                    lambda: app.part("channel").evaluate("e => e.scrollWidth <= e.clientWidth + 1")
                )
        finally:
            page.set_viewport_size({"width": 1440, "height": 1000})
            lab.theme("light")
    # A strongest place, an input channel, the notebook, each reached by Tab.
    app.tab_to(app.part("channel-name"))
    press("Control+a")
    page.keyboard.type("mine")
    press("Enter")
    expect(app.part("channel-sent")).to_contain_text("mine in the notebook is channel")
    lab.expect_value("list(mine.shape)", [14, 14])
    app.tab_to(app.part("channel-place").nth(1))
    press("Enter")
    y, x = (app.part("channel-place").nth(1).get_attribute("data-place") or "").split()
    lab.expect_value("[app.pin['y'], app.pin['x']]", [int(y), int(x)])
    # What it looks for, as Python gives it.
    app.tab_to(app.part("channel-size"))
    page.keyboard.type("32")
    press("Tab")
    press("Control+a")
    page.keyboard.type("3")
    press("Enter")
    expect(app.part("channel-looks-done")).to_contain_text("3 steps, 32 × 32 pixels, seed 0")
    layer = f"app.model, 'features.28', {channel + 1}"
    lab.python(f"made = hookviz.feature_visualization({layer}, size=32, steps=3)")
    lab.expect_value(
        "f'{made.activation:.4g}'.replace('-', '−')",
        app.part("channel-looks-values").locator("td").first.inner_text(),
    )
    try:
        lab.theme("dark")
        lab.screenshot("channel_looks_dark")
        assert lab.axe(axe_source, '[data-hv="app"]') == []
    finally:
        lab.theme("light")
    app.tab_to(app.part("channel-input").first)
    press("Enter")
    expect(app.part("channel-title")).to_have_text("features.26 Conv2d")
    # From the pinned place in Inspect, and by Enter on what is pinned.
    app.part("tab-inspect").focus()
    press("Enter")
    app.tab_to(app.part("inspect-channel"))
    press("Enter")
    expect(app.part("channel-title")).to_have_text("features.28 Conv2d")
    expect(app.part("tab-channel")).to_have_attribute("aria-selected", "true")
