"""The whole job with the sample photo: by mouse alone, and by keyboard alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from journey_app import App
from journey_lab import Lab
from PIL import Image
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

EXPLORE = "import hookviz\napp = hookviz.explore()\napp"

# With the app's control focused none of these may reach the notebook: x cuts a cell, b and a add
# one, m and y change its type, d d deletes it, c v copy and paste, arrows and j k move, Enter
# edits, Shift+M merges, 1 makes a heading, o hides the output, l shows line numbers.
NOTEBOOK_KEYS = ["x", "b", "a", "m", "y", "c", "v", "j", "k", "o", "l", "1", "Shift+M", "Shift+D"]
NOTEBOOK_KEYS += ["d", "d", "ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight", "Delete"]

# The focus to a control, if it can be seen; in one question, as it is asked a thousand times.
FOCUS = """control => {
  const box = control.getBoundingClientRect();
  const seen = box.width * box.height > 0 && control.checkVisibility({visibilityProperty: true});
  if (seen) control.focus();
  return seen;
}"""


def test_by_mouse_alone(open_app: Callable[..., tuple[Lab, App]], tmp_path: Path) -> None:
    lab, app = open_app(EXPLORE)
    expect(app.run_button).to_have_attribute("aria-disabled", "true")
    expect(app.part("run-reason")).to_contain_text("image")
    lab.screenshot("mouse_1_empty")
    app.sample("chelsea")
    expect(app.part("run-reason")).to_contain_text("layer")
    app.tick("features.0")
    app.tick("features.2")
    expect(app.part("summary")).to_contain_text("2 of")
    app.run("features.0", "features.2")
    app.expect_no_alert()
    lab.screenshot("mouse_2_results")
    # the figures that issue "First light" names for this photo
    assert lab.value(
        "[round(v, 1) for v in (lambda t: (t.min().item(), t.max().item()))"
        "(app.run.select('features.0').tensor)]"
    ) == pytest.approx([-344.1, 361.1], rel=2e-3)
    # a ticked layer leaves the results when it is unticked, and comes back without a new run
    started = lab.value("app.run.started.isoformat()")
    app.tick("features.0", "false")
    expect(app.card("features.0")).to_have_count(0)
    app.tick("features.0")
    app.painted("features.0")
    lab.expect_value("app.run.started.isoformat()", started)
    folder = app.export("Ticked layers", str(tmp_path))
    assert sum("_grid_" in path.name for path in folder.iterdir()) == 2


def test_by_keyboard_alone(open_app: Callable[..., tuple[Lab, App]], tmp_path: Path) -> None:
    lab, app = open_app(EXPLORE)
    press = lab.page.keyboard.press
    before = lab.sources()
    # Into the app: from the cell that was run, Tab goes through its output.
    lab.page.locator(".jp-Cell.jp-mod-selected").first.focus()
    app.tab_to(app.button("Sample chelsea"))
    press("Enter")
    app.expect_image("chelsea.png")
    press("/")
    search = app.root.get_by_role("searchbox", name="Search layers")
    expect(search).to_be_focused()
    lab.page.keyboard.type("features.2")
    expect(app.row("features.2")).to_be_visible()
    expect(app.row("features.0")).to_have_count(0)
    app.tab_to(app.part("treebox"))
    for layer in ("features.2", "features.28"):
        for _row in range(40):
            if app.row(layer).evaluate(
                "row => row.id === row.closest('[role=tree]').getAttribute('aria-activedescendant')"
            ):
                break
            press("ArrowDown")
        press("Space")
        expect(app.row(layer)).to_have_attribute("aria-checked", "true")
    lab.screenshot("keyboard_1_ticked")
    press("Enter")
    app.painted("features.2")
    app.painted("features.28")
    app.wait_idle()
    # cards and their pages
    press("]")
    press("]")
    expect(app.card("features.28").locator('[data-hv="page-text"]')).to_contain_text("1 of 8")
    version = app.version("features.28")
    press("PageDown")
    expect(app.card("features.28").locator('[data-hv="page-text"]')).to_contain_text("2 of 8")
    app.painted("features.28", than=version)
    press("PageUp")
    expect(app.card("features.28").locator('[data-hv="page-text"]')).to_contain_text("1 of 8")
    press("[")
    lab.screenshot("keyboard_2_results")
    # help
    press("?")
    help_dialog = app.part("help-dialog")
    expect(help_dialog).to_be_visible()
    lab.screenshot("keyboard_3_help")
    press("Escape")
    expect(help_dialog).to_be_hidden()
    assert app.has_focus()
    # export
    press("e")
    dialog = app.part("export-dialog")
    expect(dialog).to_be_visible()
    folder = dialog.get_by_label("Folder", exact=True)
    app.tab_to(folder)
    press("Control+A")
    lab.page.keyboard.type(str(tmp_path / "by_keyboard"))
    app.tab_to(dialog.get_by_role("button", name="Export now", exact=True))
    press("Enter")
    path = dialog.locator('[data-hv="export-path"]')
    expect(path).to_be_visible()
    written = Path(path.inner_text())
    assert list(written.glob("*_grid_*.png"))
    with Image.open(next(written.glob("*_grid_*.png"))) as png:
        png.load()
    press("Escape")
    expect(dialog).to_be_hidden()
    # Esc leaves the app: back to the notebook
    press("Escape")
    lab.page.wait_for_function(
        "root => !root.contains(document.activeElement)", arg=app.root.element_handle()
    )
    assert lab.sources() == before


def test_no_key_reaches_the_notebook(open_app: Callable[..., tuple[Lab, App]]) -> None:
    lab, app = open_app("spare = 'a cell that a leaked x or d d would cut'", EXPLORE)
    app.sample("coffee")
    app.find_and_tick("features.0", "features.5")
    app.run("features.0", "features.5")
    before = lab.sources()
    focusable = app.root.locator(
        "button, input:not([type=file]), select, textarea, summary, [tabindex='0']"
    )
    kinds: dict[str, int] = {}
    pressed = 0
    # Handles, since a place in the page's order would mean another control once a key (a page
    # turned, a dialog opened) has changed what is there.
    for control in focusable.element_handles():
        if not control.is_visible():
            continue
        name = control.evaluate(
            "e => [e.tagName, e.type, e.dataset.hv, e.getAttribute('role')].join(' ')"
        )
        kinds[name] = kinds.get(name, 0) + 1
        if kinds[name] > 2:  # the third button of a kind is wired like the first two
            continue
        for key in NOTEBOOK_KEYS:
            if not control.evaluate(FOCUS):  # the key before replaced it
                break
            lab.page.keyboard.press(key)
            pressed += 1
        assert lab.sources() == before, f"a key leaked with {name} focused"
        mode = lab.page.evaluate("jupyterapp.shell.currentWidget.content.mode")
        assert mode == "command", f"a key put the cell into {mode} mode with {name} focused"
        lab.page.keyboard.press("Escape")
    assert len(kinds) > 15, kinds
    assert pressed > 15 * len(NOTEBOOK_KEYS), pressed
    assert lab.page.evaluate("jupyterapp.shell.currentWidget.content.widgets.length") == 2
    app.expect_no_alert()
