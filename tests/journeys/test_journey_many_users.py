"""Many people: an address of one's own behind a proxy, a slow connection, two people at one app."""

from __future__ import annotations

from pathlib import Path

import pytest
from journey_app import App
from journey_lab import PANEL, Lab
from journey_pictures import photo
from journey_servers import LabServer, SlowProxy
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.browser

EXPLORE = "import hookviz\napp = hookviz.explore()\napp"


def test_behind_a_slow_proxy_at_an_address_of_ones_own(
    page: Page, tmp_path: Path, lab: Lab
) -> None:
    with (
        LabServer(tmp_path / "home", tmp_path / "root", "/user/ann") as server,
        SlowProxy(server) as proxy,
    ):
        server.proxy = proxy
        far = Lab(page, server, lab.pictures)
        far.open("far.ipynb", [EXPLORE])
        far.run_all()
        app = App(page, far.output(0)).wait_ready()
        proxy.bytes_per_second = 2e6 / 8  # 2 Mbit/s
        app.reach(app.part("view-small")).check()
        app.browse(photo(tmp_path / "holiday.jpg"))
        app.expect_image("holiday.jpg")
        app.find_and_tick("features.2", "features.28")
        app.run("features.2", "features.28")
        colors = app.pixels("features.28").getcolors(2**24)
        assert colors is not None
        assert len(colors) <= 256
        # a click is answered while pictures are on their way
        version = app.version("features.28")
        app.choose("Colours", "magma")
        app.find_and_tick("features.5")
        expect(app.part("summary")).to_contain_text("3 of 34")
        app.painted("features.28", than=version)
        app.export("Ticked layers", str(tmp_path / "out"))
        dialog = app.part("export-dialog")
        with page.expect_download() as download:
            dialog.get_by_role("button", name="Download zip", exact=True).click()
        assert Path(download.value.path()).stat().st_size > 100_000
        app.expect_no_alert()
        far.leave(keep_kernel=False)
        page.goto("about:blank")


def test_two_people_in_one_notebook(lab: Lab, browser: Browser, tmp_path: Path) -> None:
    lab.open("both.ipynb", [EXPLORE])
    lab.run_all()
    ann = App(lab.page, lab.output(0)).wait_ready()
    lab.save()
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    try:
        there = Lab(context.new_page(), lab.server, lab.pictures)
        there.open("both.ipynb")
        bob = App(there.page, there.page.locator(PANEL)).wait_ready()
        ann.sample("astronaut")
        bob.find_and_tick("features.2")
        expect(ann.part("summary")).to_contain_text("1 of 34")
        ann.find_and_tick("features.28")
        expect(bob.part("summary")).to_contain_text("2 of 34")
        bob.run("features.2", "features.28")
        ann.painted("features.28", than=0)
        assert ann.pixels("features.28").tobytes() == bob.pixels("features.28").tobytes()
        # one turns a page, the other one chooses other colors: both see both
        version = ann.version("features.28")
        bob.button("Next page of features.28").click()
        ann.painted("features.28", than=version)
        expect(ann.card("features.28")).to_contain_text("2 of 8")
        version = bob.version("features.28")
        ann.choose("Colours", "magma")
        bob.painted("features.28", than=version)
        assert bob.part("view-cmap").input_value() == "magma"
        # one leaves; the other one goes on
        there.page.close()
        ann.export("Ticked layers", str(tmp_path / "out"))
        lab.page.keyboard.press("Escape")
        ann.expect_no_alert()
        assert not there.console_errors()
    finally:
        context.close()
