"""A folder of images is surveyed, a channel found, a crop opened: by mouse, then by keyboard."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from journey_app import App
from journey_lab import Lab
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

READY = """import hookviz, numpy, shutil, torch
from pathlib import Path
from PIL import Image
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 5, stride=2, padding=2), torch.nn.ReLU())
random = numpy.random.default_rng(0)
for before in ("dots", "hookviz_surveys"):
    shutil.rmtree(before, ignore_errors=True)
for number in range(36):
    pixels = random.integers(0, 60, (40, 40, 3), dtype=numpy.uint8)
    y, x = random.integers(0, 30, 2)
    pixels[y : y + 10, x : x + 10] = random.integers(100, 256, 3)
    folder = Path("dots", ("left", "right")[x // 15])
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(folder / f"{number:02}.png")
model = hookviz.load_model(net, preprocess=hookviz.Preprocessing.for_size(32))
app = hookviz.explore(model, layers=["0", "1"])
app"""
HITS = "[hit.name for hit in app.survey.top('1', {channel}, 9)]"
PIN = "[*map(app.pin.get, ('channel', 'y', 'x')), app.image.path.endswith(hit.name)]"


def test_a_survey_is_made_and_a_crop_opened_by_mouse_and_by_keyboard(
    open_app: Callable[..., tuple[Lab, App]], axe_source: str
) -> None:
    lab, app = open_app(READY)
    press, rows = lab.page.keyboard.press, app.part("dataset-rows").locator("tr")
    crops = app.part("dataset-crop")

    def clean(what: str) -> None:
        assert lab.axe(axe_source, '[data-hv="app"]') == [], what

    # By mouse: a survey is made, a channel chosen, its figure saved, a crop opened.
    app.part("tab-data set").click()
    expect(app.part("dataset-images")).to_be_visible()
    clean("nothing opened")
    app.part("dataset-images").fill("no_such_folder")
    app.part("dataset-start").click()
    expect(app.part("dataset-problem")).to_contain_text("no_such_folder")
    app.part("dataset-images").fill("dots")
    app.part("dataset-start").click()
    expect(app.part("dataset-facts")).to_contain_text("36 of 36 images")
    expect(app.part("dataset-problem")).to_be_hidden()
    app.part("dataset-layer").select_option("1")
    expect(rows).to_have_count(8)
    app.part("dataset-by-max").click()
    expect(rows.first).to_have_attribute(
        "data-channel", str(lab.value("app.survey.strongest_channels('1', 1)[0]"))
    )
    lab.await_picture(rows.first.locator("img"))
    rows.nth(2).click()
    expect(rows.nth(2)).to_have_attribute("aria-current", "true")
    expect(crops).to_have_count(9)
    for number in range(9):
        lab.await_picture(crops.nth(number).locator("img"))
    channel = rows.nth(2).get_attribute("data-channel")
    names = lab.value(HITS.format(channel=channel))
    assert app.part("dataset-name").all_inner_texts() == [name.split("/")[-1] for name in names]
    app.expect_plain_words()
    for theme in ("dark", "light"):
        lab.theme(theme)
        lab.screenshot(f"dataset_{theme}")
        clean(theme)
    with lab.page.expect_download() as download:
        app.part("dataset-export").click()
    assert download.value.suggested_filename == f"1 channel {channel}.png"
    app.wait_idle()
    crops.nth(1).click()
    expect(app.part("channel-title")).to_contain_text("1 ReLU")
    lab.value(f"globals().update(hit=app.survey.top('1', {channel})[1])")
    lab.expect_value(PIN, [int(channel or 0), *lab.value("hit.place"), True])

    # By keyboard, in half the width.
    lab.page.set_viewport_size({"width": 700, "height": 900})
    app.part("tab-data set").focus()
    press("Enter")
    app.tab_to(app.part("dataset-folder"))
    lab.page.keyboard.type("x")
    press("Enter")
    expect(app.part("dataset-folder-problem")).to_contain_text("no survey")
    press("Control+A")
    lab.page.keyboard.type("hookviz_surveys/dots")
    press("Enter")
    expect(app.part("dataset-folder-problem")).to_be_hidden()
    expect(crops).to_have_count(0)
    app.tab_to(app.part("dataset-row").first)
    press("ArrowDown")
    press("Enter")
    expect(rows.nth(1)).to_have_attribute("aria-current", "true")
    expect(crops).to_have_count(9)
    app.tab_to(crops.nth(0))
    lab.screenshot("dataset_narrow")
    clean("narrow")
    channel = rows.nth(1).get_attribute("data-channel")
    press("Enter")
    expect(app.part("channel-title")).to_be_visible()
    lab.value(f"globals().update(hit=app.survey.top(app.survey.layers[1], {channel})[0])")
    lab.expect_value(PIN, [int(channel or 0), *lab.value("hit.place"), True])
