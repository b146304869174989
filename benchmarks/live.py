"""A camera through the app in a real JupyterLab and Chromium: ``python -m benchmarks.live``.

ResNet-18, untrained, one layer of 64 maps, torch on one thread, a y4m film as the camera. What is
measured in one run: from the frame that the page takes to the picture that it has painted, and, in
turns with that, the bare loop of forward and maps in the same kernel (the camera off then);
frames a second, frames while another cell runs, and the memory of the kernel over many frames.
Nobody looks on meanwhile: DevTools, by which the page is driven, are detached.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

JOURNEYS = Path(__file__).resolve().parents[1] / "tests" / "journeys"
sys.path.insert(0, str(JOURNEYS))

from journey_app import App  # noqa: E402  (needs the path set above)
from journey_lab import BROWSER_ARGUMENTS, Lab, find_browser  # noqa: E402  (the same)
from journey_servers import LabServer  # noqa: E402  (the same)
from playwright.sync_api import Browser, Page, Playwright, sync_playwright  # noqa: E402  (after our own path)

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
for _ in range(30):
    begin = time.perf_counter()
    again = hookviz.feature_maps(model, picture, ["layer1"])
    for a in again.activations:
        tile_levels(Subject(a, GridOptions(), FigureFacts(input_size=(224, 224))), 80)
    times.append(1000 * (time.perf_counter() - begin))
bare = statistics.median(times)"""
RESIDENT = """int([line.split()[1] for line in open("/proc/self/status")
     if line.startswith("VmRSS")][0])"""
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
WATCH = """() => {
  const el = document.querySelector('[data-hv="live"]');
  window.hvShown = [];
  const note = () => window.hvShown.push(Number(el.dataset.shown));
  new MutationObserver(note).observe(el, {attributes: true, attributeFilter: ['data-shown']});
}"""
# … of those to come, kept before anybody attaches to the page again.
KEEP = """milliseconds => {
  window.hvShown.splice(0);
  setTimeout(() => { window.hvKept = window.hvShown.splice(0); }, milliseconds);
}"""


class Apart:
    """Chromium in a process of its own, with DevTools that are attached only for a question.

    DevTools are told each message of a page: with frames of 230 kB up and 220 kB down they keep
    two more processes busy on the same cores, which nobody has who uses the app.
    """

    def __init__(self, playwright: Playwright, folder: Path, film: Path) -> None:
        found = find_browser(playwright.chromium.executable_path)
        if found is None:
            raise SystemExit("There is no Chromium. Install it: apt-get install chromium")
        arguments = [
            *BROWSER_ARGUMENTS,
            "--window-size=1440,1000",
            "--remote-debugging-port=0",
            f"--user-data-dir={folder}",
            "--use-fake-device-for-media-stream",
            "--use-fake-ui-for-media-stream",
            f"--use-file-for-fake-video-capture={film}",
        ]
        self.playwright = playwright
        self.process = subprocess.Popen([found, *arguments], stderr=subprocess.DEVNULL)
        self.port = folder / "DevToolsActivePort"
        while not (self.port.exists() and self.port.read_text()):
            time.sleep(0.1)
        self.browser: Browser | None = None

    def attach(self) -> Page:
        """The page, for questions."""
        if self.browser is None:
            address = f"http://127.0.0.1:{self.port.read_text().split()[0]}"
            self.browser = self.playwright.chromium.connect_over_cdp(address)
        return self.browser.contexts[0].pages[0]

    def leave(self, seconds: float) -> Page:
        """Leaves the page alone for so long; the page, attached again."""
        if self.browser is not None:
            self.browser.close()
        self.browser = None
        time.sleep(seconds)
        return self.attach()

    def close(self) -> None:
        """Ends it."""
        self.process.terminate()
        self.process.wait()


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


def stolen() -> np.ndarray:
    """What the host has given to others so far, and all there was, in hundredths of a second."""
    first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
    times = [int(text) for text in first.split()[1:9]]
    return np.array([times[7], sum(times)])


def measured(lab: Lab, apart: Apart, frames: int, rounds: int) -> dict[str, Any]:
    """The figures of one session."""
    lab.open("live.ipynb", [READY])
    lab.run_all()
    app = App(lab.page, lab.output(0)).wait_ready()
    app.part("tab-live").click()
    app.part("live-camera").click()
    lab.page.evaluate(WATCH)

    def press(name: str) -> None:
        lab.page.locator(f'[data-hv="{name}"]').click()

    def fact(name: str) -> float:
        return float(lab.page.locator('[data-hv="live"]').get_attribute(f"data-{name}") or 0)

    rates: list[float] = []
    memory: list[tuple[float, int]] = []
    while fact("painted") < frames:
        lab.page = apart.leave(10)
        rates.append(fact("rate"))
        memory.append((fact("painted"), lab.value(RESIDENT)))
        print(f"{memory[-1][0]:.0f} frames: {rates[-1]} a second, {memory[-1][1] / 1e3:.0f} MB")
    others: dict[str, int] = {}
    for name, code in CELLS.items():
        before = fact("painted")
        lab.python(code)
        others[name] = round(fact("painted") - before)
    pairs: list[tuple[float, float]] = []
    for _ in range(rounds):
        before, taken = fact("painted"), stolen()
        lab.page.evaluate(KEEP, 6000)
        lab.page = apart.leave(6.5)
        assert fact("painted") > before  # it went on
        delay = statistics.median(lab.page.evaluate("window.hvKept"))
        lab.python("picture = live.run.image")
        press("live-stop")
        lab.python(BARE)
        pairs.append((delay, lab.value("bare")))
        press("live-camera")
        lost, all_there_was = stolen() - taken
        share = f"{lost / all_there_was:.0%} taken by the host"
        print(f"{delay:.0f} ms, bare {pairs[-1][1]:.0f} ms, {share}", flush=True)
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
        apart = Apart(playwright, path / "profile", path / "clip.y4m")
        try:
            with LabServer(path / "home", path / "notebooks") as server:
                lab = Lab(apart.attach(), server, path)
                result = measured(lab, apart, given.frames, given.rounds)
                lab.shutdown()
        finally:
            apart.close()
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
    (first, small), (last, large) = memory[0], memory[-1]
    grown = f"{(large - small) / 1e3:+.1f} MB of {small / 1e3:.0f} MB"
    print(f"| kernel's memory from frame {first:.0f} to {last:.0f} | {grown} |")


if __name__ == "__main__":
    main()
