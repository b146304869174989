"""From the demo notebook to a PNG on the disk: the whole first path with a photo of one's own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from journey_app import App
from journey_lab import PANEL, Lab
from journey_pictures import photo
from journey_servers import REPOSITORY
from PIL import Image
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def test_first_light(lab: Lab, tmp_path: Path) -> None:
    shutil.copy(REPOSITORY / "notebooks" / "hookviz.ipynb", lab.server.root)
    lab.open("hookviz.ipynb")
    lab.run_all()
    app = App(lab.page, lab.page.locator(PANEL)).wait_ready()

    app.browse(photo(tmp_path / "holiday.jpg"))
    app.expect_image("holiday.jpg")
    app.find_and_tick("features.0", "features.28")
    app.run("features.0", "features.28")
    expect(app.card("features.0")).to_contain_text("64×224×224")
    lab.screenshot("first_light_grids")

    last = app.card("features.28")
    expect(last.locator('[data-hv="page-text"]')).to_contain_text("1 of 8")
    first_page, before = app.pixels("features.28"), app.version("features.28")
    app.button("Next page of features.28").click()
    expect(last.locator('[data-hv="page-text"]')).to_contain_text("2 of 8")
    app.painted("features.28", than=before)
    assert app.pixels("features.28").tobytes() != first_page.tobytes()
    lab.screenshot("first_light_page_2")

    folder = app.export("Ticked layers", str(tmp_path / "out"))
    lab.screenshot("first_light_export")
    assert folder.parent == tmp_path / "out"
    files = sorted(path.name for path in folder.iterdir())
    grids = [name for name in files if "_grid_" in name]
    assert any("features.0_Conv2d" in name for name in grids), files
    assert any("features.28_Conv2d" in name for name in grids), files
    assert "000_input.png" in files
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert [entry["layer"] for entry in manifest["layers"]] == ["features.0", "features.28"]

    name = next(name for name in grids if "features.28_Conv2d" in name)
    with Image.open(folder / name) as png:
        png.load()
        texts = {key.lower(): value for key, value in png.text.items()}
    found = json.dumps(texts)
    for part in ("vgg16", "features.28", "Conv2d", "holiday.jpg", "float32", "cpu"):
        assert part in found, f"{part} is not among the PNG's text keys: {found}"
    assert str(tmp_path) not in found
    with Image.open(folder / "000_input.png") as seen:
        assert seen.size == (224, 224)
