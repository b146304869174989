"""Pictures of one's own: dropped, pasted, chosen, heavy, twice the same, and bad ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from journey_app import App
from journey_lab import Lab
from journey_pictures import bad_files, heavy_photo, huge_file, photo
from PIL import Image
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

EXPLORE = """import hookviz
app = hookviz.explore()
seen = []
app.observe(lambda change: seen.append(change.new and change.new.name), 'image')
app"""


def test_own_photo_by_drop_paste_and_browse(
    open_app: Callable[..., tuple[Lab, App]], tmp_path: Path
) -> None:
    lab, app = open_app(EXPLORE)
    dropped = photo(tmp_path / "dropped.jpg", hue=90)
    lab.drop(app.part("image"), dropped)
    app.expect_image("dropped.jpg")
    lab.expect_value("app.image.source_size", [640, 480])

    # Anywhere on the app is good enough, and JupyterLab does not open the file as a page.
    lab.drop(app.part("gallery"), photo(tmp_path / "beside.png", hue=150))
    app.expect_image("beside.png")
    assert lab.page.evaluate("[...jupyterapp.shell.widgets('main')].length") == 1

    Image.new("RGB", (30, 20), "purple").save(tmp_path / "clip.png")
    lab.copy_image(tmp_path / "clip.png")
    app.part("treebox").focus()
    lab.page.keyboard.press("Control+V")
    expect(app.part("image-caption")).to_contain_text("30 × 20")
    lab.expect_value("app.image.image.getpixel((0, 0))", [128, 0, 128])

    several = [photo(tmp_path / f"{name}.png", hue=hue) for name, hue in (("a", 10), ("b", 20))]
    lab.drop(app.part("image"), *several)
    app.expect_image("a.png")
    expect(app.part("left-out")).to_contain_text("b.png")
    lab.screenshot("images_0_several")

    app.browse(photo(tmp_path / "chosen.webp", hue=200))
    app.expect_image("chosen.webp")
    expect(app.part("seen-caption")).to_contain_text("224")
    lab.screenshot("images_1_chosen")
    app.expect_no_alert()


def test_a_heavy_photo_and_the_same_file_twice(
    open_app: Callable[..., tuple[Lab, App]], tmp_path: Path
) -> None:
    lab, app = open_app(EXPLORE)
    heavy = heavy_photo(tmp_path / "heavy.jpg", 30)
    app.browse(heavy)
    app.expect_image("heavy.jpg")
    import hashlib

    lab.expect_value("app.image.sha256", hashlib.sha256(heavy.read_bytes()).hexdigest())
    # and the app is as good as before: the same small file again and again
    small = photo(tmp_path / "small.png")
    app.browse(small)
    app.expect_image("small.png")
    app.find_and_tick("features.0")
    app.run("features.0")
    count = lab.value("len(seen)")
    version = app.version("features.0")
    app.browse(small)
    lab.page.wait_for_function(
        "root => !root.querySelector('[data-hv=\"upload\"]')?.checkVisibility()",
        arg=app.root.element_handle(),
    )
    app.expect_image("small.png")
    app.run("features.0")
    assert app.version("features.0") > version
    assert lab.value("len(seen)") >= count
    lab.expect_value("app.image.name", "small.png")


def test_bad_files_each_with_its_sentence_then_a_good_one(
    open_app: Callable[..., tuple[Lab, App]], tmp_path: Path
) -> None:
    lab, app = open_app(EXPLORE)
    app.sample("chelsea")
    files = bad_files(tmp_path / "bad")
    sentences = {
        "half": ("half.jpg",),
        "empty": ("empty.png", "empty"),
        "html": ("page.png", "HTML"),
        "svg": ("drawing.svg", "SVG"),
        "heic": ("phone.jpg", "HEI"),
        "bomb": ("bomb.png", "million pixels"),
        "pdf": ("paper.pdf", "PDF"),
    }
    assert sorted(files) == sorted(sentences)
    said = set()
    for kind, parts in sentences.items():
        app.browse(files[kind])
        alert = app.expect_alert(*parts)
        said.add(alert.locator('[data-hv="alert-message"]').inner_text())
        lab.screenshot(f"images_bad_{kind}", app.root)
        # the picture from before is still there
        lab.expect_value("app.image.name", "chelsea.png")
        alert.get_by_role("button", name="Dismiss").click()
        app.expect_no_alert()
    assert len(said) == len(sentences), said
    # 60 MB are refused in the browser, before they travel
    frames = lab.frames
    app.browse(huge_file(tmp_path / "huge.jpg", 60))
    app.expect_alert("huge.jpg", "50")
    assert lab.frames - frames < 20
    lab.screenshot("images_bad_huge", app.root)
    app.browse(photo(tmp_path / "good.png"))
    app.expect_image("good.png")
    app.expect_no_alert()
    app.find_and_tick("features.0")
    app.run("features.0")
