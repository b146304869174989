"""What is set for one layer or one browser: channels that come first, a layer's list, columns."""

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
app = hookviz.explore("vgg16", photo, ["features.28", "features.0"], device="cpu")
app"""


def channels(grid: Locator) -> list[int]:
    found: list[int] = grid.evaluate("img => JSON.parse(img.dataset.tiles).channels")
    return found


def test_channels_first_and_of_one_layer(
    open_app: Callable[..., tuple[Lab, App]], axe_source: str
) -> None:
    lab, app = open_app(READY)
    grid = app.painted("features.28")
    # By mouse: the star over the map that the pointer is on.
    tiles: dict[str, Any] = grid.evaluate("img => JSON.parse(img.dataset.tiles)")
    grid.evaluate("img => img.scrollIntoView({block: 'center'})")
    box = steady_box(grid)
    scale = box["width"] / grid.evaluate("img => Number(img.getAttribute('width'))")
    lab.page.mouse.move(
        box["x"] + scale * (tiles["left"] + 5.7 * tiles["across"]),
        box["y"] + scale * (tiles["top"] + 4),
        steps=3,
    )
    star = app.part("keep-first")
    expect(star).to_be_visible()
    lab.screenshot("own_star")
    version = app.version("features.28")
    star.click()
    app.painted("features.28", than=version)
    assert channels(grid)[:3] == [5, 0, 1]
    # By keyboard.
    app.tab_to(grid)
    for _ in range(3):
        lab.page.keyboard.press("Shift+ArrowRight")
    version = app.version("features.28")
    lab.page.keyboard.press("p")
    app.painted("features.28", than=version)
    first = channels(grid)[:2]
    assert first[0] == 5
    expect(app.card("features.28").locator('[data-hv="own-first"]')).to_contain_text(str(first[1]))
    # A list of this layer alone.
    app.choose("Channels of", "one")
    version = app.version("features.28")
    app.type_into("Channels", "7-9")
    app.painted("features.28", than=version)
    assert channels(grid) == [*first, *[c for c in (7, 8, 9) if c not in first]]
    assert len(channels(app.painted("features.0"))) == 64
    app.expect_refused("Channels", "600", "7-9", "0 to 511")
    for theme in ("light", "dark"):
        lab.theme(theme)
        lab.screenshot(f"own_channels_{theme}")
        assert lab.axe(axe_source, '[data-hv="app"]') == [], theme
    lab.theme("light")
    app.card("features.28").locator('[data-hv="own-channels"]').click()
    app.card("features.28").locator('[data-hv="own-first"]').click()
    expect(app.card("features.28").locator('[data-hv="own-first"]')).to_be_hidden()
    soon(lambda: channels(app.painted("features.28"))[:3] == [0, 1, 2])


def test_columns_are_as_wide_as_wanted_and_stay_so(
    open_app: Callable[..., tuple[Lab, App]], axe_source: str
) -> None:
    lab, app = open_app(READY)
    app.painted("features.28")
    side = app.root.locator(".hv-side")

    def wide(part: Locator) -> float:
        return steady_box(part)["width"]

    before, edge = wide(side), app.part("edge-side")
    box = steady_box(edge)
    x, y = box["x"] + box["width"] / 2, box["y"] + 200
    lab.page.mouse.move(x, y)
    lab.page.mouse.down()
    lab.page.mouse.move(x + 70, y, steps=4)
    lab.page.mouse.up()
    assert abs(wide(side) - before - 70) < 3
    edge.focus()
    lab.page.keyboard.press("ArrowLeft")
    assert abs(wide(side) - before - 54) < 3
    expect(edge).to_have_attribute("aria-valuenow", str(round(wide(side))))
    app.part("tab-inspect").click()
    beside = app.root.locator(".hv-beside:not([hidden])")
    panel = wide(beside)
    app.part("edge-beside").focus()
    lab.page.keyboard.press("ArrowLeft")
    lab.page.keyboard.press("ArrowLeft")
    assert abs(wide(beside) - panel - 32) < 3
    lab.screenshot("own_columns")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    chosen = wide(side)
    lab.run_cell(0)
    again = App(lab.page, lab.output(0)).wait_ready()
    soon(lambda: abs(wide(again.root.locator(".hv-side")) - chosen) < 3)
    again.part("edge-side").focus()
    lab.page.keyboard.press("Enter")
    assert abs(wide(again.root.locator(".hv-side")) - before) < 3
