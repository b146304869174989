"""What is exported is what was on the screen."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from journey_app import App
from journey_lab import Lab
from PIL import Image
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

READY = """import hookviz
photo = hookviz.sample_image("chelsea.png")
app = hookviz.explore("vgg16", photo, ["features.0", "features.28"], run=False)
app"""


# Where a card's tiles stand, on the screen or in a file, and a file's picture as Python has it.
PLACES = """
import hashlib
from hookviz.widget._painting import draw_card
def drawing(key, on_page=False):
    card = app.gallery.card(key)
    return draw_card(card.activation, app.gallery.options_of(card, on_page=on_page), card.origin)[0]
def places(key, on_page):
    return [list(place) for place in drawing(key, on_page).places]
def sha256(key):
    return hashlib.sha256(drawing(key).pixels()[..., :3].tobytes()).hexdigest()
"""


def cells(picture: Image.Image, places: list[list[int]], side: int) -> list[object]:
    """The color of each activation of maps of side × side, read in its middle."""
    return [
        picture.convert("RGB").getpixel(
            (left + int((x + 0.5) * wide / side), top + int((y + 0.5) * tall / side))
        )
        for top, left, tall, wide in places
        for y in range(side)
        for x in range(side)
    ]


def sha256(path: Path | io.BytesIO) -> str:
    with Image.open(path) as png:
        return hashlib.sha256(png.convert("RGB").tobytes()).hexdigest()


def test_exports_are_what_the_screen_shows(
    open_app: Callable[..., tuple[Lab, App]], tmp_path: Path
) -> None:
    lab, app = open_app(PLACES, READY)
    app.expect_image("chelsea.png")
    app.run("features.0", "features.28")
    version = app.version("features.28")
    app.choose("Colours", "inferno")
    app.painted("features.28", than=version)
    version = app.version("features.28")
    app.button("Next page of features.28").click()
    app.painted("features.28", than=version)

    # this grid: the card that was touched last, the page that it shows, value for value; the file
    # has its own title and colorbar besides, as app.figures has
    key = "'features.28#1'"
    on_screen = lab.value(f"places({key}, True)"), lab.value(f"places({key}, False)")
    shown = cells(app.pixels("features.28"), on_screen[0], 14)
    assert len(set(shown)) > 20
    folder = app.export("This grid", str(tmp_path / "one"))
    lab.screenshot("export_1_this_grid")
    grids = list(folder.glob("*_grid_*.png"))
    assert [path.name for path in grids if "features.28" not in path.name] == []
    (grid,) = grids
    assert "p2of8" in grid.name
    with Image.open(grid) as png:
        assert cells(png, on_screen[1], 14) == shown
    assert sha256(grid) == lab.value(f"sha256({key})")
    lab.page.keyboard.press("Escape")

    # everything ticked: all pages of all layers
    folder = app.export("Ticked layers", str(tmp_path / "all"), "Grids", "Values")
    names = sorted(path.name for path in folder.iterdir())
    assert sum("features.28_Conv2d_grid" in name for name in names) == 8
    assert any(name.endswith(".npz") for name in names)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert [entry["shape"] for entry in manifest["layers"]] == [
        [1, 64, 224, 224],
        [1, 512, 14, 14],
    ]
    page_2 = next(folder.glob("*features.28_Conv2d_grid_p2of8.png"))
    assert sha256(page_2) == sha256(grid)

    # the path can be copied, and nothing is ever overwritten
    lab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    app.button("Copy path").click()
    assert lab.page.evaluate("navigator.clipboard.readText()") == str(folder)
    lab.page.keyboard.press("Escape")
    again = app.export("Ticked layers", str(tmp_path / "all"))
    assert again != folder
    assert sorted(path.name for path in folder.iterdir()) == names
    lab.page.keyboard.press("Escape")

    # chosen channels of the card that was touched last, one pixel per activation
    app.part("export-button").click()
    dialog = app.part("export-dialog")
    dialog.get_by_label("Chosen channels", exact=True).check()
    dialog.get_by_label("Channels to export", exact=True).fill("3,17")
    lab.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    app.part("export-button").click()
    dialog.get_by_label("Chosen channels", exact=True).check()
    dialog.get_by_label("Channels to export", exact=True).fill("3,17")
    dialog.get_by_label("Grids", exact=True).uncheck()
    dialog.get_by_label("Channels as PNG", exact=True).check()
    dialog.get_by_label("Folder", exact=True).fill(str(tmp_path / "channels"))
    dialog.get_by_role("button", name="Export now", exact=True).click()
    expect(dialog.locator('[data-hv="export-path"]')).to_contain_text("channels")
    channels = sorted((tmp_path / "channels").glob("*/*_ch*.png"))
    assert [path.name.split("_", 1)[1] for path in channels] == [
        "features.28_Conv2d_ch003.png",
        "features.28_Conv2d_ch017.png",
    ]
    with Image.open(channels[0]) as png:
        assert png.size == (14, 14)
    lab.screenshot("export_2_channels")
    lab.page.keyboard.press("Escape")


def test_zip_reaches_the_browser(open_app: Callable[..., tuple[Lab, App]], tmp_path: Path) -> None:
    lab, app = open_app(PLACES, READY)
    app.expect_image("chelsea.png")
    app.run("features.0", "features.28")
    app.part("export-button").click()
    dialog = app.part("export-dialog")
    dialog.get_by_label("Ticked layers", exact=True).check()
    with lab.page.expect_download() as download:
        dialog.get_by_role("button", name="Download zip", exact=True).click()
    path = tmp_path / "maps.zip"
    download.value.save_as(path)
    assert download.value.suggested_filename.endswith(".zip")
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert any(name.endswith("manifest.json") for name in names)
        grid = next(name for name in names if "features.0" in name and "_grid_" in name)
        assert sha256(io.BytesIO(archive.read(grid))) == lab.value("sha256('features.0#1')")
    app.wait_idle()


def test_a_page_reaches_the_browser_and_opens_from_the_disk(
    open_app: Callable[..., tuple[Lab, App]], tmp_path: Path
) -> None:
    lab, app = open_app(READY)
    app.expect_image("chelsea.png")
    app.run("features.0", "features.28")
    app.part("export-button").click()
    dialog = app.part("export-dialog")
    about = dialog.locator('[data-hv="page-about"]')
    expect(about).to_contain_text("at most")
    most = float(about.inner_text().split("at most ")[1].split(" MB")[0]) * 1e6
    lab.screenshot("export_4_page")
    with lab.page.expect_download() as download:
        dialog.get_by_role("button", name="Download page", exact=True).click()
    path = tmp_path / "page.html"
    download.value.save_as(path)
    assert download.value.suggested_filename.endswith(".html")
    assert path.stat().st_size <= most + 50_000  # the text says two digits
    page = lab.page.context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    expect(page.get_by_role("heading", name="features.28", exact=False)).to_be_visible()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    page.close()
    app.wait_idle()


def test_a_folder_that_cannot_be_written_is_one_sentence(
    open_app: Callable[..., tuple[Lab, App]], tmp_path: Path
) -> None:
    lab, app = open_app(PLACES, READY)
    app.expect_image("chelsea.png")
    app.run("features.0")
    (tmp_path / "a_file").write_text("in the way")
    app.part("export-button").click()
    dialog = app.part("export-dialog")
    dialog.get_by_label("Folder", exact=True).fill(str(tmp_path / "a_file" / "below"))
    dialog.get_by_role("button", name="Export now", exact=True).click()
    app.expect_alert("a_file")
    lab.screenshot("export_3_refused")
    app.wait_idle()
