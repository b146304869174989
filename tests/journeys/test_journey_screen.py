"""The screen's room: how many layers and maps are in sight, in the windows that people have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from journey_app import App, soon, steady_box
from journey_lab import Lab

pytestmark = pytest.mark.browser

# How many rows, and how many whole tiles of at least so many pixels, are in sight.
ROWS = """root => {
  const box = root.querySelector('[data-hv="treebox"], .hv-treebox').getBoundingClientRect();
  const limit = Math.min(box.bottom, innerHeight);
  return [...root.querySelectorAll('[data-hv="row"]')].filter(row => {
    const r = row.getBoundingClientRect();
    return r.height > 0 && r.top >= box.top - 1 && r.bottom <= limit + 1;
  }).length;
}"""
IMAGE = """img => {
  const list = img.closest('.hv-cards').getBoundingClientRect();
  const card = img.closest('[data-hv="card"]');
  const head = card.querySelector('.hv-card-head').getBoundingClientRect();
  const box = img.getBoundingClientRect();
  return [box.left, box.top, box.width / img.naturalWidth, Math.max(list.top, head.bottom),
    Math.min(list.bottom, innerHeight), list.left, list.right];
}"""


PLACES = """
def places(key):
    from hookviz.widget._painting import draw_card
    gallery = app.gallery
    card = gallery.card(key)
    options = gallery.options_of(card, on_page=True)
    return [list(place) for place in draw_card(card.activation, options, card.origin)[0].places]
"""
READY = """
import hookviz
app = hookviz.explore("vgg16", hookviz.sample_image("chelsea.png"), ["features.28", "features.0"])
app
"""


def whole_tiles(lab: Lab, app: App, layer: str) -> tuple[int, float]:
    """How many tiles of a card are wholly in sight, and how wide they are in the page's pixels."""
    left, top, scale, above, below, first, last = app.painted(layer).evaluate(IMAGE)
    seen = [
        wide * scale
        for y, x, tall, wide in lab.value(f"places('{layer}#1')")
        if top + y * scale >= above - 1
        and top + (y + tall) * scale <= below + 1
        and left + x * scale >= first - 1
        and left + (x + wide) * scale <= last + 1
    ]
    return len(seen), min(seen, default=0.0)


def test_layers_and_maps_are_in_sight(open_app: Callable[..., tuple[Lab, App]]) -> None:
    lab, app = open_app(PLACES, READY)
    app.painted("features.0")
    found: list[float] = []
    for width, height, rows, tiles, pixels in (
        (1366, 625, 1, 1, 30),
        (1280, 720, 12, 40, 60),
        (1920, 1080, 12, 56, 104),
    ):
        lab.page.set_viewport_size({"width": width, "height": height})
        lab.wait_idle()
        app.painted("features.0")
        if pixels > 64:
            version = app.version("features.0")
            app.part("view-tile").fill(str(pixels))
            app.painted("features.0", than=version)

        def in_sight(wanted: tuple[int, ...] = (rows, tiles, pixels)) -> bool:
            app.root.evaluate("root => root.scrollIntoView({block: 'end'})")
            app.card("features.0").evaluate("card => card.scrollIntoView({block: 'start'})")
            app.root.evaluate("root => root.scrollIntoView({block: 'end'})")
            found[:] = app.root.evaluate(ROWS), *whole_tiles(lab, app, "features.0")
            return all(have >= asked for have, asked in zip(found, wanted, strict=True))

        # The page tells its new width once that stays; the pictures of before are shown until then.
        soon(in_sight, lambda: f"rows, whole tiles and their width: {found}")
        lab.screenshot(f"screen_{width}x{height}")
        run = steady_box(app.run_button)
        assert run["y"] >= 0
        assert run["y"] + run["height"] <= height


def test_half_a_window_shows_the_results_of_a_run_and_traps_no_wheel(
    open_app: Callable[..., tuple[Lab, App]],
) -> None:
    lab, app = open_app(PLACES, READY.replace('"])', '"], run=False)'))
    lab.page.set_viewport_size({"width": 1010, "height": 720})
    lab.wait_idle()
    app.run("features.0")
    columns = app.root.locator(".hv-columns")
    box = steady_box(columns)
    assert box["width"] <= 720
    soon(lambda: abs(steady_box(app.root.locator(".hv-results"))["y"] - box["y"]) < 60)
    lab.screenshot("screen_half")
    # Back at the layers, the wheel goes on past the list's end, to the results below it.
    columns.evaluate("box => { box.scrollTop = 0; }")
    tree = steady_box(app.part("treebox"))
    lab.page.mouse.move(tree["x"] + 40, tree["y"] + 60)
    for _ in range(60):
        lab.page.mouse.wheel(0, 120)
        lab.page.wait_for_timeout(15)
    end = "box => box.scrollTop + box.clientHeight >= box.scrollHeight - 2"
    soon(lambda: columns.evaluate(end))
