"""The app through a notebook's life: cell run again, page reloaded, kernel restarted, reopened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from journey_app import App
from journey_lab import Lab
from journey_pictures import heavy_photo
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

MODEL = """import threading, hookviz
model = hookviz.load_model("vgg16")
photo, other = hookviz.sample_image("chelsea.png"), hookviz.sample_image("coffee.png")
def hooks():
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.module.modules())
def threads():
    return sorted(t.name for t in threading.enumerate() if "hookviz" in t.name.lower())
def left_over(seconds=10):
    ours = [t for t in threading.enumerate() if "hookviz" in t.name.lower()]
    for t in ours:
        t.join(seconds)
    return [t.name for t in ours if t.is_alive()]
app = None"""
SHOW = """app = hookviz.explore(model, photo, ["features.0", "features.5"], run=False)
app"""


def test_the_cell_run_again_gives_one_fresh_app(
    open_app: Callable[..., tuple[Lab, App]],
) -> None:
    lab, app = open_app(MODEL, SHOW, own_kernel=True)
    app.expect_image("chelsea.png")
    app.run("features.0", "features.5")
    for _again in range(3):
        lab.run_cell(1)
        app = App(lab.page, lab.output(1)).wait_ready()
        expect(lab.output(1).locator('[data-hv="app"]')).to_have_count(1)
    app.expect_image("chelsea.png")
    app.run("features.0", "features.5")
    lab.expect_value("len(app.run.activations)", 2)  # each layer once, whatever ran before
    lab.expect_value("hooks()", 0)
    # None of an older app's is left, once its last work is done.
    lab.expect_value("len(threads()) - len(set(threads()))", 0)
    # closed: no thread, no hook, and the page says so instead of pretending
    lab.python("app.close()")
    lab.expect_value("left_over()", [])
    lab.expect_value("hooks()", 0)


def test_clearing_the_output_ends_the_app(open_app: Callable[..., tuple[Lab, App]]) -> None:
    lab, app = open_app(MODEL, SHOW, own_kernel=True)
    app.expect_image("chelsea.png")
    app.run("features.0", "features.5")
    lab.command("notebook:clear-cell-output")
    expect(lab.output(1).locator('[data-hv="app"]')).to_have_count(0)
    lab.expect_value("left_over(30)", [])
    lab.expect_value("hooks()", 0)


def test_reload_restart_save_and_reopen(
    open_app: Callable[..., tuple[Lab, App]], tmp_path: Path
) -> None:
    lab, app = open_app(MODEL, SHOW, own_kernel=True)
    empty = lab.save().stat().st_size
    app.browse(heavy_photo(tmp_path / "ten_megabytes.jpg", 10))
    app.expect_image("ten_megabytes.jpg")
    app.run("features.0", "features.5")
    before = app.pixels("features.0").tobytes()
    lab.wait_output("image/png")
    lab.save()

    # a page that comes back finds everything as it was
    lab.reload()
    app = App(lab.page, lab.output(1)).wait_ready()
    app.expect_image("ten_megabytes.jpg")
    expect(app.row("features.0")).to_have_attribute("aria-checked", "true")
    app.painted("features.0")
    assert app.pixels("features.0").tobytes() == before
    lab.screenshot("life_1_reloaded")
    app.run("features.0")

    # what is in the file: no uploaded bytes, one static picture at most
    path = lab.save()
    notebook = nbformat.read(path, 4)
    pictures = [
        output["data"]["image/png"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 1, "one static picture of the last result"
    assert path.stat().st_size - len(pictures[0]) - empty < 100_000

    # a restarted kernel: the app says what to do, and the cell run again gives a living one
    lab.restart()
    expect(lab.output(1).locator('[data-hv="dead"]').first).to_contain_text("run the cell again")
    lab.screenshot("life_2_restarted")
    lab.run_all()
    app = App(lab.page, lab.output(1)).wait_ready()
    app.expect_image("chelsea.png")
    app.run("features.0")
    lab.wait_output("image/png")
    lab.save()

    # reopened by somebody without that kernel: a picture, not an error
    lab.shutdown()
    lab.open(lab.name)
    static = lab.output(1).locator("img")
    expect(static.first).to_be_visible()
    lab.await_picture(static.first)
    for noise in ("Error displaying widget", "Loading widget"):
        expect(lab.output(1).get_by_text(noise)).to_be_hidden()
    lab.screenshot("life_3_reopened")
    # JupyterLab itself logs that the widget's kernel is gone; here that is what was wanted.
    lab.console = [line for line in lab.console if "widget model not found" not in line]


def test_two_apps_on_one_model(open_app: Callable[..., tuple[Lab, App]]) -> None:
    lab, _ = open_app(
        MODEL,
        'first = hookviz.explore(model, photo, ["features.0"], run=False)\nfirst',
        'second = hookviz.explore(model, other, ["features.2"], run=False)\nsecond',
        own_kernel=True,
    )
    first = App(lab.page, lab.output(1)).wait_ready()
    second = App(lab.page, lab.output(2)).wait_ready()
    first.expect_image("chelsea.png")
    second.expect_image("coffee.png")
    first.run_button.click()
    second.run_button.click()
    first.painted("features.0")
    second.painted("features.2")
    first.wait_idle()
    second.wait_idle()
    lab.expect_value("[first.run.layers, second.run.layers]", [["features.0"], ["features.2"]])
    assert lab.value("[first.run.image.name, second.run.image.name]") == [
        "chelsea.png",
        "coffee.png",
    ]
    alone = lab.python(
        "import torch\n"
        "again = hookviz.feature_maps(model, photo, ['features.0'])\n"
        "print(torch.equal(again.select('features.0').tensor,"
        " first.run.select('features.0').tensor))"
    )
    assert alone.strip() == "True"
    lab.expect_value("hooks()", 0)
    second.find_and_tick("features.5")
    second.run("features.5")
    expect(first.card("features.5")).to_have_count(0)
    lab.screenshot("life_4_two_apps")
    # closing one leaves the other alone
    lab.python("first.close()")
    second.run("features.2")
