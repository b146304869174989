"""A camera through the app in a real JupyterLab and Chromium: ``python -m benchmarks.live``.

ResNet-18, untrained, one layer of 64 maps, torch on one thread, a y4m film as the camera. What is
measured in one run: from the frame that the page takes to the picture that it has painted, and, in
turns with that, the bare loop of forward and maps in the same kernel (the camera off then);
frames a second, frames while another cell runs, and the memory of the kernel over many frames.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

JOURNEYS = Path(__file__).resolve().parents[1] / "tests" / "journeys"
sys.path.insert(0, str(JOURNEYS))

from journey_app import App  # noqa: E402  (needs the path set above)
from journey_lab import BROWSER_ARGUMENTS, Lab, find_browser  # noqa: E402  (the same)
from journey_servers import LabServer  # noqa: E402  (the same)
from playwright.sync_api import sync_playwright  # noqa: E402  (after our own path)

SIZE = (320, 240)
READY = """import torch
torch.set_num_threads(1)
import hookviz
model = hookviz.load_model("resnet18", weights="none", device="cpu")
app = hookviz.explore(model, layers=["layer1"])
live = next(part for part in app.parts if type(part).__name__ == "LiveView")
app"""
# The very frames that the app ran, without it: forward, levels, no message and no page.
BARE = """import time, statistics
from hookviz.render import FigureFacts, GridOptions, Subject, tile_levels
times = []
for _ in range(12):
    begin = time.perf_counter()
    again = hookviz.feature_maps(model, picture, ["layer1"])
    for a in again.activations:
        tile_levels(Subject(a, GridOptions(), FigureFacts(input_size=(224, 224))), 80)
    times.append(1000 * (time.perf_counter() - begin))
bare = statistics.median(times)"""
RESIDENT = """int([line.split()[1] for line in open("/proc/self/status")
     if line.startswith("VmRSS")][0])"""
AFTER = "([el, than]) => Number(el.dataset.painted) >= than"
# What another cell does for five seconds meanwhile.
CELLS = {
    "time.sleep": "import time; time.sleep(5)",
    "a loop in Python": """import time
end = time.monotonic() + 5
while time.monotonic() < end: sum(range(1000))""",
    "products of torch": """import time
end, square = time.monotonic() + 5, torch.rand(400, 400)
while time.monotonic() < end: square @ square""",
}
# From the message with a frame to the animation frame after its maps were drawn, of each frame.
WATCH = """el => {
  window.hvShown = [];
  const note = () => window.hvShown.push(Number(el.dataset.shown));
  new MutationObserver(note).observe(el, {attributes: true, attributeFilter: ['data-shown']});
}"""
SHOWN = "() => window.hvShown.splice(0)"


def film(path: Path) -> None:
    """Two seconds of a bar that moves over a ramp."""
    width, height = SIZE
    gray = np.full((height // 2, width // 2), 128, np.uint8).tobytes()
    with path.open("wb") as file:
        file.write(f"YUV4MPEG2 W{width} H{height} F20:1 Ip A1:1 C420mpeg2\n".encode())
        for number in range(40):
            luma = np.tile(np.linspace(30, 220, width).astype(np.uint8), (height, 1))
            luma[40:200, 6 * number : 6 * number + 60] = 235 - 4 * number
            file.write(b"FRAME\n" + luma.tobytes() + gray + gray)


def measured(lab: Lab, frames: int, rounds: int) -> dict[str, Any]:
    """The figures of one session."""
    lab.open("live.ipynb", [READY])
    lab.run_all()
    app = App(lab.page, lab.output(0)).wait_ready()
    app.part("tab-live").click()
    app.part("live-camera").click()
    live = app.part("live").element_handle()
    lab.page.evaluate(WATCH, live)

    def until(painted: int) -> None:
        lab.page.wait_for_function(AFTER, arg=[live, painted], timeout=300_000)

    def count() -> int:
        return int(live.get_attribute("data-painted") or 0)

    rates: list[float] = []
    memory: list[int] = []
    for painted in range(100, frames + 1, 100):
        until(painted)
        rates.append(float(live.get_attribute("data-rate") or 0))
        memory.append(lab.value(RESIDENT))
        print(f"{painted} frames: {rates[-1]} a second, {memory[-1] / 1e3:.0f} MB", flush=True)
    others: dict[str, int] = {}
    for name, code in CELLS.items():
        before = count()
        lab.python(code)
        others[name] = count() - before
        until(count() + 5)  # it goes on
    pairs: list[tuple[float, float]] = []
    for _ in range(rounds):
        until(count() + 5)
        lab.page.evaluate(SHOWN)
        until(count() + 25)
        delay = statistics.median(lab.page.evaluate(SHOWN))
        lab.python("picture = live.run.image")
        app.part("live-stop").click()
        lab.python(BARE)
        pairs.append((delay, lab.value("bare")))
        app.part("live-camera").click()
        load = os.getloadavg()[0]
        print(f"{delay:.0f} ms, bare {pairs[-1][1]:.0f} ms, load {load:.1f}", flush=True)
    return {"pairs": pairs, "rate": statistics.median(rates), "memory": memory, "others": others}


def main() -> None:
    """Runs it and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder)
        film(path / "clip.y4m")
        found = find_browser(playwright.chromium.executable_path)
        arguments = [
            *BROWSER_ARGUMENTS,
            "--use-fake-device-for-media-stream",
            "--use-fake-ui-for-media-stream",
            f"--use-file-for-fake-video-capture={path / 'clip.y4m'}",
        ]
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        with LabServer(path / "home", path / "notebooks") as server:
            page = browser.new_page(viewport={"width": 1440, "height": 1000})
            lab = Lab(page, server, path)
            result = measured(lab, given.frames, given.rounds)
            lab.shutdown()
        browser.close()
    memory = result["memory"]
    print("\n| | |\n|---|---:|")
    delays, bares = zip(*result["pairs"], strict=True)
    beyond = sorted(delay - bare for delay, bare in result["pairs"])
    print(f"| bare loop of forward and maps | {statistics.median(bares):.0f} ms |")
    print(f"| frame → painted | {statistics.median(delays):.0f} ms |")
    ends = f"{beyond[0]:.0f} – {beyond[-1]:.0f}"
    print(f"| of it beyond the bare loop, by pairs | {statistics.median(beyond):.0f} ms ({ends}) |")
    print(f"| frames a second | {result['rate']:.1f} |")
    for name, during in result["others"].items():
        print(f"| painted while another cell runs for 5 s: {name} | {during}, then on |")
    grown = f"{(memory[-1] - memory[0]) / 1e3:+.1f} MB of {memory[0] / 1e3:.0f} MB"
    print(f"| kernel's memory from frame 100 to {len(memory) * 100} | {grown} |")


if __name__ == "__main__":
    main()
