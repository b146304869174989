"""Dark theme, narrow window, 200 % zoom, and what axe-core says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
from journey_app import App, soon
from journey_lab import Lab
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

READY = """import hookviz
photo = hookviz.sample_image("chelsea.png")
app = hookviz.explore("vgg16", photo, ["features.0", "features.28"], run=False)
app"""

# A control that is cut off at the right edge, or text that its box does not hold.
OVERFLOWING = """root => {
  const right = root.getBoundingClientRect().right + 1;
  const found = [];
  for (const element of root.querySelectorAll('button, select, input, img, [data-hv]')) {
    if (!element.checkVisibility()) continue;
    if (element.closest('[data-hv="treebox"]')) continue;  // scrolls on purpose
    const box = element.getBoundingClientRect();
    if (box.width && box.right > right) {
      found.push(`${element.tagName} ${element.dataset.hv ?? element.ariaLabel} ends at `
        + `${Math.round(box.right)}, the app at ${Math.round(right)}`);
    }
  }
  return found;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_themes_and_axe(
    open_app: Callable[..., tuple[Lab, App]], axe_source: str, theme: Literal["light", "dark"]
) -> None:
    lab, app = open_app(READY)
    lab.theme(theme)
    try:
        app.expect_image("chelsea.png")
        lab.screenshot(f"looks_{theme}_1_before")
        assert lab.axe(axe_source, '[data-hv="app"]') == []
        app.run("features.0", "features.28")
        # A fresh grid is shown as it was drawn, neither dimmed nor paled.
        expect(app.grid("features.0")).to_have_css("opacity", "1")
        expect(app.grid("features.0")).to_have_css("filter", "none")
        lab.screenshot(f"looks_{theme}_2_results")
        assert lab.axe(axe_source, '[data-hv="app"]') == []
        for button, dialog in (
            ("help-button", "help-dialog"),
            ("model-button", "model-dialog"),
            ("export-button", "export-dialog"),
        ):
            app.part(button).click()
            expect(app.part(dialog)).to_be_visible()
            lab.screenshot(f"looks_{theme}_3_{dialog}")
            assert lab.axe(axe_source, '[data-hv="app"]') == [], dialog
            lab.page.keyboard.press("Escape")
            expect(app.part(dialog)).to_be_hidden()
        app.expect_refused("Channels", "nonsense", "", "nonsense")
        lab.screenshot(f"looks_{theme}_4_refused")
        assert lab.axe(axe_source, '[data-hv="app"]') == [], "refused value"
        app.browse({"name": "page.png", "mimeType": "image/png", "buffer": b"<html>404</html>"})
        app.expect_alert("page.png")
        lab.screenshot(f"looks_{theme}_5_alert")
        assert lab.axe(axe_source, '[data-hv="app"]') == [], "alert"
    finally:
        lab.theme("light")  # the server remembers the theme: the next test starts light


def test_narrow_window_and_zoom(open_app: Callable[..., tuple[Lab, App]]) -> None:
    lab, app = open_app(READY)
    app.expect_image("chelsea.png")
    app.run("features.0", "features.28")
    lab.command("application:toggle-left-area")
    # 800 px wide; then 200 % zoom of an ordinary screen, which leaves 720 px of page
    for name, width, height in (("800px", 800, 1000), ("zoom200", 720, 500)):
        lab.page.set_viewport_size({"width": width, "height": height})
        app.run_button.scroll_into_view_if_needed()
        soon(
            lambda: app.root.evaluate(OVERFLOWING) == [],
            lambda name=name: f"{name}: {app.root.evaluate(OVERFLOWING)}",
        )
        lab.screenshot(f"looks_{name}_runbar")
        app.part("search").scroll_into_view_if_needed()
        lab.screenshot(f"looks_{name}_layers")
        app.tick("features.2")
        app.run("features.2")
        app.grid("features.2").scroll_into_view_if_needed()
        lab.screenshot(f"looks_{name}_results")
        app.tick("features.2", "false")
