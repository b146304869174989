"""Pointing, keeping, views, panels, dialogs and taking along, by keyboard alone; axe on the way."""

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
app = hookviz.explore("vgg16", photo, ["features.28", "features.0"], device="cpu")
app"""
FULL = "() => Boolean(document.fullscreenElement)"


def tiles_of(grid: Locator) -> dict[str, Any]:
    found: dict[str, Any] = grid.evaluate("img => JSON.parse(img.dataset.tiles)")
    return found


def test_all_of_the_instrument_by_keyboard_alone(
    open_app: Callable[..., tuple[Lab, App]], axe_source: str
) -> None:
    lab, app = open_app(READY)
    lab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    press = lab.page.keyboard.press

    def clean(what: str) -> None:
        assert lab.axe(axe_source, '[data-hv="app"]') == [], what

    app.painted("features.28")
    grid = app.grid("features.28")
    lab.page.locator(".jp-Cell.jp-mod-selected").first.focus()

    # A region of the photo, taken back and marked again.
    app.tab_to(app.part("original"))
    for key in ("Shift+ArrowRight", "Shift+ArrowRight", "Shift+ArrowDown", "Enter"):
        press(key)
    lab.page.wait_for_function("() => document.querySelector('[data-pinned]')")
    lab.expect_value("len(app.region)", 4)
    press("Escape")
    lab.page.wait_for_function("() => !document.querySelector('[data-pinned]')")
    lab.expect_value("list(app.region)", [])

    # A column's width, the size of the maps, and what is behind "more".
    app.tab_to(app.part("edge-side"))
    before = int(app.part("edge-side").get_attribute("aria-valuenow") or 0)
    press("ArrowRight")
    expect(app.part("edge-side")).to_have_attribute("aria-valuenow", str(before + 16))
    press("Enter")
    app.tab_to(app.part("view-tile"))
    columns = tiles_of(grid)["columns"]
    version = app.version("features.28")
    for _ in range(8):
        press("ArrowRight")
    lab.page.wait_for_function(
        "([img, columns]) => JSON.parse(img.dataset.tiles || '{}').columns < columns",
        arg=[grid.element_handle(), columns],
    )
    assert app.version("features.28") > version
    app.tab_to(app.part("view-more"))
    press("Enter")
    expect(app.part("view-rare")).to_be_visible()
    clean("more of the view")
    app.tab_to(app.part("view-dead"))
    press("Space")
    expect(app.part("view-dead")).to_be_checked()
    press("Space")
    expect(app.part("view-dead")).not_to_be_checked()

    # A map: point, pin, keep first.
    app.painted("features.28")
    app.tab_to(grid)
    readout = app.part("readout")
    expect(readout).to_be_visible()
    for key in ("ArrowUp", "ArrowRight", "Shift+ArrowRight", "Enter"):
        press(key)
    lab.page.wait_for_function("() => document.querySelector('[data-pinned]')")
    channel = tiles_of(grid)["channels"][1]
    lab.expect_value("[app.pin.get(part) for part in ('channel', 'y', 'x')]", [channel, 5, 7])
    version = app.version("features.28")
    press("p")
    app.painted("features.28", than=version)
    assert tiles_of(grid)["channels"][0] == channel
    clean("a pinned place")

    # The tabs, by arrows; in Inspect a bar leads to its channel.
    app.tab_to(app.root.get_by_role("tab", selected=True))
    press("ArrowRight")
    expect(app.root.get_by_role("tab", name="Inspect")).to_be_focused()
    expect(app.part("inspect-field")).to_contain_text("Sees 196 × 196")
    titles = app.root.get_by_role("tab").all_inner_texts()
    for theme in ("light", "dark"):
        lab.theme(theme)
        for number, _ in enumerate(titles):
            lab.screenshot(f"keys_{theme}_tab_{number}")
            clean(f"tab {number}, {theme}")
            press("ArrowRight")
    lab.theme("light")
    expect(app.root.get_by_role("tab", selected=True)).to_have_text(titles[1])
    # Changing JupyterLab's theme may take the focus away from any cell.
    lab.page.locator(".jp-Cell.jp-mod-selected").first.focus()
    app.tab_to(app.root.get_by_role("tab", selected=True))
    bar = app.part("inspect-bar").first
    app.tab_to(bar)
    wanted = bar.get_attribute("data-channel")
    press("Enter")
    expect(grid).to_be_focused()
    expect(readout).to_have_attribute("data-place", f"features.28#1 {wanted} 5 7")
    press("Escape")
    lab.page.wait_for_function("() => !document.querySelector('[data-pinned]')")

    # The whole window, and back.
    app.tab_to(app.part("full-window"))
    press("Enter")
    lab.page.wait_for_function(FULL)
    press("Enter")
    lab.page.wait_for_function(f"() => !({FULL})()")

    # Dialogs take the focus, keep it, and give it back.
    for theme in ("light", "dark"):
        lab.theme(theme)
        for opener, dialog in (("e", "export-dialog"), ("?", "help-dialog")):
            press(opener)
            expect(app.part(dialog)).to_be_visible()
            for _ in range(25):
                press("Tab")
            assert app.part(dialog).evaluate("box => box.contains(document.activeElement)")
            lab.screenshot(f"keys_{theme}_{dialog}")
            clean(f"{dialog}, {theme}")
            press("Escape")
            expect(app.part(dialog)).to_be_hidden()
            expect(app.part("full-window")).to_be_focused()
    lab.theme("light")
    press("e")
    app.tab_to(app.part("share"))
    with lab.page.expect_download() as download:
        press("Enter")
    assert download.value.suggested_filename.endswith(".html")
    press("Escape")
    app.wait_idle()
    app.tab_to(app.part("python"))
    press("Enter")
    expect(app.part("copied")).to_have_text("Copied: paste it into a cell.")
    assert "hookviz.feature_maps" in lab.page.evaluate("navigator.clipboard.readText()")
