"""What the app keeps of the process's memory, however long it is used.

``python -m benchmarks.memory`` uses one app as a person would (100 runs, 20 photos, 30 models) and
runs its cell 30 times, each part in a process of its own, and prints the process's resident memory
after the tenth time and at the end. Linux only: it reads /proc.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

LAYERS = ["features.0", "features.2", "features.5", "features.7", "features.10"]
TIMES = {"runs": 100, "cells": 30, "models": 30, "photos": 20}


def resident() -> float:
    """Megabytes of memory that the process occupies, once its threads have come to rest."""
    lowest = float("inf")
    for _ in range(6):
        time.sleep(0.5)  # the static picture comes half a second after the grids
        gc.collect()
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        lowest = min(lowest, int(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6)
    return lowest


def look(app: object) -> None:
    """Has the gallery draw as for a page of 1,000 pixels."""
    app.gallery._handle_custom_msg({"type": "look", "width": 1000}, [])  # type: ignore[attr-defined]


def run(app: object) -> None:
    assert app.start_run()  # type: ignore[attr-defined]
    assert app.wait(120)  # type: ignore[attr-defined]


def runs(explore: Callable[..., object]) -> Iterator[None]:
    """The same image and layers, run again and again."""
    import hookviz

    app = explore("vgg16", hookviz.sample_image(), LAYERS, run=False)
    look(app)
    while True:
        run(app)
        yield


def photos(explore: Callable[..., object]) -> Iterator[None]:
    """Another photo of 12 megapixels each time."""
    import numpy as np

    app = explore("vgg16", layers=LAYERS)
    look(app)
    random = np.random.default_rng(0)
    while True:
        app.image = random.integers(0, 255, (3000, 4000, 3), np.uint8)  # type: ignore[attr-defined]
        run(app)
        yield


def models(explore: Callable[..., object]) -> Iterator[None]:
    """Another model each time, with a run."""
    import hookviz

    app = explore("vgg16", hookviz.sample_image(), run=False)
    look(app)
    names = ["vgg16", "resnet18", "squeezenet1_1"]
    turn = 0
    while True:
        name = names[turn % 3]
        weights = "bundled" if name == "vgg16" else None
        app.model = hookviz.load_model(name, weights)  # type: ignore[attr-defined]
        app.layers = app.tree.names[1:12]  # type: ignore[attr-defined]
        run(app)
        turn += 1
        yield


def cells(explore: Callable[..., object]) -> Iterator[None]:
    """The cell of the app run again: the former app is closed, but the notebook's Out keeps it."""
    import hookviz
    from hookviz.widget import _explorer

    out = []
    while True:
        _explorer.current_cell = lambda: ("cell", str(len(out)))
        app = explore("vgg16", hookviz.sample_image(), LAYERS, run=False)
        out.append(app)
        look(app)
        run(app)
        yield


def measure(name: str) -> None:
    """One part, in this process."""
    import hookviz

    steps = {"runs": runs, "photos": photos, "models": models, "cells": cells}[name](
        hookviz.explore
    )
    tenth = 0.0
    for turn in range(1, TIMES[name] + 1):
        next(steps)
        if turn == 10:
            tenth = resident()
    print(
        f"{name:8} {TIMES[name]:4} times {tenth:8.0f} {resident():8.0f} {resident() - tenth:+8.0f}"
    )


def main() -> None:
    """All parts, each in a process of its own."""
    print(f"{'':19} {'tenth':>8} {'last':>8} {'growth':>8}  MB resident")
    for name in TIMES:
        subprocess.run([sys.executable, "-m", "benchmarks.memory", name], check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1])
    else:
        main()
