"""The same app in each host that shows anywidgets: the whole job, with the parts in step."""

from __future__ import annotations

import importlib.util
import io
import re
import textwrap
import zipfile
from pathlib import Path

import pytest
from journey_app import App
from journey_lab import Lab, write_notebook
from journey_servers import MarimoServer, PanelServer, SolaraServer, VoilaServer
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

EXPLORE = "import hookviz\napp = hookviz.explore()\napp"

MARIMO = """import marimo

app = marimo.App()


@app.cell
def _():
    import hookviz
    explorer = hookviz.explore()
    explorer
    return (explorer,)


{more}if __name__ == "__main__":
    app.run()
"""

WATCHED = """import torch
net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
with hookviz.monitor(net, every=2, stats_every=1, probe=hookviz.sample_image()) as watched:
    for _ in range(4):
        net(torch.rand(2, 3, 8, 8)).square().mean().backward()
        optimizer.step()
        watched.step()
watched"""

MARIMO_WATCHED = f"""@app.cell
def _():
{textwrap.indent(WATCHED, "    ")}
    return


"""


SOLARA = """import hookviz
import solara


@solara.component
def Page():
    explorer = solara.use_memo(hookviz.explore, [])
    solara.display(explorer)
"""

PANEL = """import hookviz
import panel as pn

pn.extension("ipywidgets")
pn.panel(hookviz.explore(), sizing_mode="stretch_width").servable()
"""

# Solara and Panel load anywidget's own script from a content network, where these journeys have
# none: the same file comes from the package that is installed.
CONTENT_NETWORK = re.compile(r"https://(unpkg\.com|cdn\.jsdelivr\.net/npm)/anywidget")


def without_network(page: Page) -> None:
    """Answer for the content network."""
    found = importlib.util.find_spec("anywidget")
    assert found is not None
    assert found.origin is not None
    script = Path(found.origin).parent / "nbextension" / "index.js"
    headers = {"Access-Control-Allow-Origin": "*"}
    page.route(
        CONTENT_NETWORK,
        lambda route: route.fulfill(path=script, content_type="text/javascript", headers=headers),
    )


def whole_job(app: App, folder: Path) -> None:
    """From a photo to files: each part does what another one asked for."""
    app.sample("astronaut")
    app.find_and_tick("features.2", "features.28")
    expect(app.part("summary")).to_contain_text("2 of 34")
    app.run("features.2", "features.28")
    version = app.version("features.28")
    app.choose("Colours", "magma")
    app.painted("features.28", than=version)
    version = app.version("features.28")
    app.button("Next page of features.28").click()
    app.painted("features.28", than=version)
    expect(app.card("features.28")).to_contain_text("2 of 8")
    # a refused value: said at the field, and nothing is lost
    channels = app.labelled("Channels")
    channels.fill("0-3,cat")
    channels.press("Enter")
    expect(app.part("field-problem").filter(visible=True)).to_contain_text("cat")
    expect(channels).to_have_value("")
    expect(app.grid("features.28")).to_be_visible()
    written = app.export("Ticked layers", str(folder))
    assert sum("_grid_" in path.name for path in written.iterdir()) == 9
    with app.page.expect_download() as download:
        app.part("export-dialog").get_by_role("button", name="Download zip", exact=True).click()
    with zipfile.ZipFile(io.BytesIO(Path(download.value.path()).read_bytes())) as archive:
        assert archive.testzip() is None
    app.page.keyboard.press("Escape")
    app.expect_no_alert()
    app.wait_idle()


# What of a watched training sticks out to its right.
OUTSIDE = """root => [...root.querySelectorAll("*")].filter(
  one => one.getBoundingClientRect().right > root.getBoundingClientRect().right + 1
).map(one => one.outerHTML.slice(0, 90))"""


def watched_training(page: Page) -> None:
    """A training that was watched, through time, and on a narrow page."""
    view = page.locator('[data-hv="training"]')
    expect(view.locator('[data-hv="training-about"]')).to_have_text("Sequential: step 4, ended")
    view.locator('[data-hv="training-slider"]').focus()
    page.keyboard.press("ArrowLeft")
    maps = view.locator('[data-hv="training-maps"]')
    expect(maps).to_have_attribute("alt", re.compile("0 after 2 steps"))
    view.locator('[data-hv="training-channel"]').fill("3")
    page.keyboard.press("Enter")
    expect(view.locator('[data-hv="training-strip"]')).to_be_visible()
    page.set_viewport_size({"width": 400, "height": 1000})
    assert view.evaluate(OUTSIDE) == []


def test_voila(page: Page, tmp_path: Path, lab: Lab) -> None:
    notebook = write_notebook(tmp_path / "app.ipynb", [EXPLORE, WATCHED])
    with VoilaServer(tmp_path / "home", tmp_path, notebook.name) as voila:
        page.goto(voila.url)
        app = App(page, page.locator("body")).wait_ready()
        whole_job(app, tmp_path / "files")
        lab.screenshot("hosts_voila")
        watched_training(page)
        lab.screenshot("hosts_voila_training")


def test_notebook_7(page: Page, tmp_path: Path, lab: Lab) -> None:
    notebook = write_notebook(lab.server.root / "notebook_7.ipynb", [EXPLORE])
    page.goto(lab.server.notebook_7_url(notebook.name))
    page.locator(".jp-Notebook .jp-Cell").first.click()
    expect(page.locator('.jp-Notebook-ExecutionIndicator[data-status="idle"]')).to_be_visible()
    page.keyboard.press("Shift+Enter")
    app = App(page, page.locator(".jp-NotebookPanel")).wait_ready()
    whole_job(app, tmp_path / "files")
    lab.screenshot("hosts_notebook_7")
    lab.server.end_kernels(page)


@pytest.mark.parametrize("mode", ["edit", "run"])
def test_marimo(page: Page, tmp_path: Path, lab: Lab, mode: str) -> None:
    more = MARIMO_WATCHED if mode == "run" else ""
    (tmp_path / "app.py").write_text(MARIMO.format(more=more))
    with MarimoServer(tmp_path / "home", tmp_path, "app.py", mode) as marimo:
        page.goto(marimo.page_url)
        if mode == "edit":
            expect(page.get_by_test_id("cell-status")).to_have_attribute("data-status", "outdated")
            page.get_by_test_id("run-button").last.click()
        app = App(page, page.locator("body")).wait_ready()
        whole_job(app, tmp_path / "files")
        lab.screenshot(f"hosts_marimo_{mode}")
        if mode == "run":
            watched_training(page)
            lab.screenshot("hosts_marimo_training")
        # keys typed on the app stay there, also in a host that is not Jupyter
        app.part("treebox").focus()
        page.keyboard.press("/")
        page.keyboard.type("conv")
        expect(app.part("search")).to_have_value("conv")
        if mode == "edit":  # the cell run again: a fresh app in the place of the old one
            page.get_by_test_id("cell-editor").click()
            page.keyboard.press("Control+Enter")
            expect(app.part("summary")).to_contain_text("0 of 34")
            expect(page.locator('[data-hv="app"]')).to_have_count(1)
            app.sample("coffee")


def test_solara(page: Page, tmp_path: Path, lab: Lab) -> None:
    pytest.importorskip("solara.server", reason="solara is not installed (extra hosts)")
    (tmp_path / "app.py").write_text(SOLARA)
    with SolaraServer(tmp_path / "home", tmp_path, "app.py") as solara:
        without_network(page)
        page.goto(solara.url)
        whole_job(App(page, page.locator("body")).wait_ready(), tmp_path / "files")
        lab.screenshot("hosts_solara")
        lab.console.clear()  # of Solara's own page


def test_panel(page: Page, tmp_path: Path, lab: Lab) -> None:
    pytest.importorskip("ipywidgets_bokeh", reason="panel is not installed (extra hosts)")
    (tmp_path / "app.py").write_text(PANEL)
    with PanelServer(tmp_path / "home", tmp_path, "app.py") as panel:
        without_network(page)
        page.goto(f"{panel.url}/app")
        whole_job(App(page, page.locator("body")).wait_ready(), tmp_path / "files")
        lab.screenshot("hosts_panel")
        lab.console.clear()  # of Panel's own page
