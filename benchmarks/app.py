"""How quick the app is in a real JupyterLab and a real Chromium: ``python -m benchmarks.app``.

In: this machine, its Chromium, the checkout. Out: a Markdown table of medians, with the machine
named. Must not know: how the app is built (it is driven by the same handles as the journeys).

Times are taken in the page, from the click (or the call) to the first animation frame in which
the picture is complete, so a browser frame (17 ms) is in each of them.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

JOURNEYS = Path(__file__).resolve().parents[1] / "tests" / "journeys"
sys.path.insert(0, str(JOURNEYS))

from journey_app import App  # noqa: E402  (needs the path set above)
from journey_lab import BROWSER_ARGUMENTS, Lab, find_browser  # noqa: E402  (the same)
from journey_servers import LabServer  # noqa: E402  (the same)
from playwright.sync_api import Page, sync_playwright  # noqa: E402  (after our own path)

TREE_MODEL = """import hookviz
from hookviz.widget import LayerTree
model = hookviz.load_model("resnet152", weights=None)"""

APP = """import hookviz
photo = hookviz.sample_image("chelsea.png")
app = hookviz.explore("vgg16", photo, ["features.0", "features.28"], run=False)
app"""

# Runs a cell; from the command to the frame in which this many rows are in the page.
TREE_SHOWN = """async ([cell, rows]) => {
  const panel = jupyterapp.shell.currentWidget;
  panel.content.activeCellIndex = cell;
  const from = performance.now();
  jupyterapp.commands.execute('notebook:run-cell');
  let created = null;
  for (;;) {
    await new Promise(requestAnimationFrame);
    const node = panel.content.widgets[cell].node;
    if (created === null && node.querySelector('[data-hv="tree"]')) created = performance.now();
    if (node.querySelectorAll('[data-hv="row"]').length >= rows) {
      return performance.now() - from;
    }
    if (performance.now() - from > 60000) throw new Error('the tree was not shown in 60 s');
  }
}"""

# Does something; from then to the frame in which the layer's card shows a newer picture.
PAINTED = """async ([layer, act, argument]) => {
  const root = document.querySelector('[data-hv="app"]');
  const card = () => root.querySelector(`[data-hv="card"][data-layer="${layer}"]`);
  const shown = () => {
    const img = card()?.querySelector('[data-hv="grid"]');
    const now = Number(card()?.dataset.version ?? -1);
    return img && img.complete && img.naturalWidth > 0 && Number(img.dataset.version) === now
      ? now : null;
  };
  const before = act === 'tick' ? -1 : shown() ?? -1;
  const from = performance.now();
  if (act === 'tick') {
    root.querySelector(`[data-hv="row"][data-name="${layer}"] [data-hv="tick"]`).click();
  } else if (act === 'choose') {
    const select = root.querySelector('[data-hv="view-cmap"]');
    select.value = argument;
    select.dispatchEvent(new Event('change', {bubbles: true}));
  } else {
    card().querySelector(`[data-hv="${argument}"]`).click();
  }
  for (;;) {
    await new Promise(requestAnimationFrame);
    const now = shown();
    if (now !== null && now > before) return performance.now() - from;
    if (performance.now() - from > 60000) throw new Error(`${layer} was not painted in 60 s`);
  }
}"""

# Points at one place after the other; from the move to the frame in which its value is said.
POINTED = """async ([layer, number, tile]) => {
  const root = document.querySelector('[data-hv="app"]');
  const img = root.querySelector(`[data-hv="card"][data-layer="${layer}"] [data-hv="grid"]`);
  const tiles = JSON.parse(img.dataset.tiles), box = img.getBoundingClientRect();
  const scale = box.width / Number(img.getAttribute('width'));
  const x = number % tiles.cols, y = Math.floor(number / tiles.cols) % tiles.rows;
  const place = `${layer}#1 ${tiles.channels[tile]} ${y} ${x}`;
  const [left, top] = [tiles.left + (tile % tiles.columns) * tiles.across,
    tiles.top + Math.floor(tile / tiles.columns) * tiles.down];
  const from = performance.now();
  img.dispatchEvent(new PointerEvent('pointermove', {bubbles: true,
    clientX: box.left + scale * (left + (x + 0.5) * tiles.width / tiles.cols),
    clientY: box.top + scale * (top + (y + 0.5) * tiles.height / tiles.rows)}));
  for (;;) {
    await new Promise(requestAnimationFrame);
    const readout = root.querySelector('[data-hv="readout"]');
    if (!readout.hidden && readout.dataset.place === place) return performance.now() - from;
    if (performance.now() - from > 60000) throw new Error('nothing was said in 60 s');
  }
}"""

# Pins the place under the pointer; from the click to the frame with its field and channels.
PINNED = """async ([layer, number]) => {
  const root = document.querySelector('[data-hv="app"]');
  const img = root.querySelector(`[data-hv="card"][data-layer="${layer}"] [data-hv="grid"]`);
  const tiles = JSON.parse(img.dataset.tiles), box = img.getBoundingClientRect();
  const scale = box.width / Number(img.getAttribute('width'));
  const x = number % tiles.cols, y = Math.floor(number / tiles.cols) % tiles.rows;
  const from = performance.now();
  img.dispatchEvent(new MouseEvent('click', {bubbles: true,
    clientX: box.left + scale * (tiles.left + (x + 0.5) * tiles.width / tiles.cols),
    clientY: box.top + scale * (tiles.top + (y + 0.5) * tiles.height / tiles.rows)}));
  for (;;) {
    await new Promise(requestAnimationFrame);
    const said = root.querySelector('[data-hv="inspect-place"]').textContent;
    const field = root.querySelector('[data-hv="inspect-field"]').textContent;
    if (said.includes(`y ${y}, x ${x} of`) && field.startsWith('Sees')) {
      return performance.now() - from;
    }
    if (performance.now() - from > 60000) throw new Error('nothing was pinned in 60 s');
  }
}"""

# Opens the channel of the nth tile; from the double click to the frame with its map and numbers.
OPENED = """async ([layer, tile]) => {
  const root = document.querySelector('[data-hv="app"]');
  root.querySelector('[data-hv="tab-gallery"]').click();
  const img = root.querySelector(`[data-hv="card"][data-layer="${layer}"] [data-hv="grid"]`);
  const tiles = JSON.parse(img.dataset.tiles), box = img.getBoundingClientRect();
  const scale = box.width / Number(img.getAttribute('width'));
  const at = {bubbles: true, clientX: box.left + scale * (tiles.left + 1
    + (tile % tiles.columns) * tiles.across), clientY: box.top + scale * (tiles.top + 1
    + Math.floor(tile / tiles.columns) * tiles.down)};
  const from = performance.now();
  for (const name of ['click', 'click', 'dblclick']) img.dispatchEvent(new MouseEvent(name, at));
  for (;;) {
    await new Promise(requestAnimationFrame);
    const map = root.querySelector('[data-hv="channel-map"]');
    if (map && map.dataset.channel === String(tiles.channels[tile]) && map.complete
        && map.naturalWidth > 0 && map.checkVisibility()) return performance.now() - from;
    if (performance.now() - from > 60000) throw new Error('no channel was opened in 60 s');
  }
}"""

# Presses Run; from then to the frame in which the layer's card shows a newer picture.
FIRST_GRID = """async ([layer]) => {
  const root = document.querySelector('[data-hv="app"]');
  const card = () => root.querySelector(`[data-hv="card"][data-layer="${layer}"]`);
  const before = Number(card()?.dataset.version ?? -1);
  const from = performance.now();
  root.querySelector('[data-hv="run"]').click();
  for (;;) {
    await new Promise(requestAnimationFrame);
    const img = card()?.querySelector('[data-hv="grid"]');
    const now = Number(card()?.dataset.version ?? -1);
    if (img && now > before && Number(img.dataset.version) === now && img.complete
        && img.naturalWidth > 0) return performance.now() - from;
    if (performance.now() - from > 60000) throw new Error(`${layer} was not painted in 60 s`);
  }
}"""


class CommCount:
    """How many comm messages (those of widgets) the page received and sent."""

    def __init__(self, page: Page) -> None:
        self.received = 0
        self.sent = 0
        page.on("websocket", self._watch)

    def _watch(self, socket: object) -> None:
        socket.on("framereceived", self._on_received)  # type: ignore[attr-defined]
        socket.on("framesent", self._on_sent)  # type: ignore[attr-defined]

    @staticmethod
    def _is_comm(payload: bytes | str) -> bool:
        data = payload if isinstance(payload, bytes) else payload.encode()
        return b'"comm_open"' in data or b'"comm_msg"' in data

    def _on_received(self, payload: bytes | str) -> None:
        self.received += self._is_comm(payload)

    def _on_sent(self, payload: bytes | str) -> None:
        self.sent += self._is_comm(payload)


def machine() -> str:
    """This machine and the versions that matter, in one line."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("torch", "jupyterlab", "ipywidgets", "anywidget")
    )
    return (
        f"{cpu}, {os.cpu_count()} cores, {platform.system()}, Python "
        f"{platform.python_version()}, {packages}"
    )


def repeat(times: int, measure: Callable[[int], float]) -> list[float]:
    return [measure(i) for i in range(times)]


def measure_tree(lab: Lab, comms: CommCount, times: int) -> tuple[list[float], list[int]]:
    """Create and show the tree of ResNet-152, each time in a cell of its own."""
    cell = "tree = LayerTree(model.module); tree"
    lab.open("tree.ipynb", [TREE_MODEL, *[cell] * (times + 1)])
    lab.run_cell(0)
    rows = lab.value("len(hookviz.list_layers(model.module))")
    taken, messages = [], []
    for i in range(times + 1):
        before = comms.received + comms.sent
        shown = lab.page.evaluate(TREE_SHOWN, [i + 1, rows])
        lab.wait_idle()
        if i:  # the first one also loads the front end's module
            taken.append(shown)
            messages.append(comms.received + comms.sent - before)
        # One tree in the page at a time, as for a user: older ones would be laid out again.
        lab.page.evaluate("() => jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
        lab.wait_idle()
    lab.shutdown()
    return taken, messages


def measure_app(lab: Lab, times: int) -> dict[str, list[float]]:
    """Ticks, view changes, page turns and runs of VGG16 on the sample photo."""
    lab.open("app.ipynb", [APP])
    lab.run_all()
    app = App(lab.page, lab.output(0)).wait_ready()
    app.expect_image("chelsea.png")
    app.run("features.0", "features.28")
    page = lab.page

    def tick(_i: int) -> float:
        app.tick("features.28", "false")
        app.card("features.28").wait_for(state="detached")
        return float(page.evaluate(PAINTED, ["features.28", "tick", ""]))

    # One card on the screen from here on, and every picture a new one: none comes from a store.
    results = {"tick": repeat(times, tick)}
    app.tick("features.0", "false")
    app.card("features.0").wait_for(state="detached")
    colours = page.evaluate(
        "() => [...document.querySelector('[data-hv=\"view-cmap\"]').options].map(o => o.value)"
    )

    def choose(i: int) -> float:
        return float(
            page.evaluate(PAINTED, ["features.28", "choose", colours[1 + i % (len(colours) - 1)]])
        )

    def turn(_i: int) -> float:
        return float(page.evaluate(PAINTED, ["features.28", "click", "next"]))

    def first_grid(_i: int) -> float:
        painted = float(page.evaluate(FIRST_GRID, ["features.28"]))
        app.wait_idle()
        return painted - 1000 * float(lab.value("app.run.seconds"))

    results["view"] = repeat(min(times, len(colours) - 1), choose)
    results["page"] = repeat(min(times, 7), turn)  # 512 channels are eight pages
    results["run"] = repeat(times, first_grid)
    results["point"] = repeat(
        times, lambda i: float(page.evaluate(POINTED, ["features.28", 3 + 5 * i, 0]))
    )
    results["other map"] = repeat(
        times, lambda i: float(page.evaluate(POINTED, ["features.28", 3 + 5 * i, 1 + i]))
    )
    app.part("tab-inspect").click()
    app.part("inspect").wait_for()
    app.painted("features.28")
    pins = repeat(times + 1, lambda i: float(page.evaluate(PINNED, ["features.28", 3 + 5 * i])))
    results["first pin"], results["pin"] = pins[:1], pins[1:]
    opened = repeat(times + 1, lambda i: float(page.evaluate(OPENED, ["features.28", i])))
    results["first channel"], results["channel"] = opened[:1], opened[1:]
    assert not lab.console_errors(), lab.console_errors()
    lab.shutdown()
    return results


def table(rows: list[tuple[str, str, list[float], str]]) -> str:
    lines = [
        "| what | median | smallest – largest | guide |",
        "|---|---:|---:|---:|",
    ]
    for what, unit, values, guide in rows:
        middle, low, high = statistics.median(values), min(values), max(values)
        lines.append(f"| {what} | {middle:.0f} {unit} | {low:.0f} – {high:.0f} | {guide} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=9, help="how often each thing is measured")
    times = parser.parse_args().times
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = find_browser(playwright.chromium.executable_path)
        if path is None:
            sys.exit("No Chromium was found: install it, or run `playwright install chromium`.")
        browser = playwright.chromium.launch(executable_path=path, args=BROWSER_ARGUMENTS)
        with LabServer(Path(folder) / "home", Path(folder) / "notebooks") as server:
            page = browser.new_page(viewport={"width": 1440, "height": 1000})
            comms = CommCount(page)
            lab = Lab(page, server, Path(folder))
            tree, messages = measure_tree(lab, comms, times)
            results = measure_app(lab, times)
        name = f"Chromium {browser.version}"
        browser.close()
    print(f"{machine()}, {name}; at most {times} times each.\n")
    print(
        table(
            [
                ("tree of ResNet-152 created, sent and shown", "ms", tree, "≤ 300 ms"),
                ("… comm messages for it", "", [float(n) for n in messages], "≤ 3"),
                ("tick a captured layer → painted", "ms", results["tick"], "≤ 100 ms"),
                ("view change → painted", "ms", results["view"], "≤ 150 ms"),
                ("page turn → painted", "ms", results["page"], "≤ 100 ms"),
                ("Run → first grid, beyond the forward", "ms", results["run"], "≤ 250 ms"),
                ("pointer moves on a map → value painted", "ms", results["point"], "≤ 50 ms"),
                ("… onto another map", "ms", results["other map"], "≤ 50 ms"),
                ("first pin → field and channels", "ms", results["first pin"], "≤ 1500 ms"),
                ("pin → field and channels", "ms", results["pin"], "≤ 150 ms"),
                ("first double click → a channel's page", "ms", results["first channel"], ""),
                ("double click → a channel's page", "ms", results["channel"], "≤ 150 ms"),
            ]
        )
    )


if __name__ == "__main__":
    main()
