"""How long an export of single channels takes, against Pillow alone.

    python -m benchmarks.export            832 channels of three layers of VGG16
    python -m benchmarks.export --all      every channel of all 31 layers of VGG16's features
    python -m benchmarks.export --repeat 9
    python -m benchmarks.export --page     size of the HTML page of three layers, and its time

Three ways write the same pictures, in turn, several times in one run; medians are printed.

* hookviz: ``write_export(what={"channels"})``: measuring, scaling, names, texts, atomic files,
  manifest.
* Pillow: pixels that are coloured already, ``Image.fromarray(...).save(path)`` at the same level of
  compression, one after another: palette pictures as hookviz writes them, without texts.
* Pillow with texts: the same with the texts that hookviz writes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

import hookviz
from hookviz.activation import Activation
from hookviz.export import RunFacts, page_size, read_png_facts, write_export
from hookviz.export._png import LEVEL

LAYERS = ("features.0", "features.14", "features.28")


def captured(layers: tuple[str, ...] | None) -> tuple[RunFacts, list[Activation]]:
    model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
    picture = hookviz.sample_image()
    chosen = layers or [name for name, _ in model.module.named_modules() if "features." in name]
    run = hookviz.feature_maps(model, picture, list(chosen))
    return run.facts, list(run.activations)


class Floor:
    """The same pictures, with everything but the writing done before the clock starts."""

    def __init__(self, written: list[Path]) -> None:
        self.pictures = []
        for path in written:
            image = Image.open(path)
            levels, palette = np.asarray(image), image.getpalette()
            self.pictures.append((path.name, levels, palette, read_png_facts(path)))

    def write(self, folder: Path, texts: bool) -> None:
        for name, levels, palette, facts in self.pictures:
            image = Image.fromarray(levels)
            if palette is not None:
                image = Image.fromarray(levels, "L")
                image.putpalette(palette)
            info = None
            if texts:
                info = PngInfo()
                for key, text in facts.items():
                    info.add_text(key, text)
            image.save(folder / name, "PNG", compress_level=LEVEL, pnginfo=info)


def page(repeat: int) -> None:
    """Prints how large the page of three layers of VGG16 is, and how long it takes."""
    facts, activations = captured(("features.0", "features.10", "features.28"))
    said, times = page_size(facts, activations), []
    with tempfile.TemporaryDirectory() as place:
        for _ in range(repeat):
            start = time.perf_counter()
            (path,) = write_export(facts, activations, place, what="page").files
            times.append(time.perf_counter() - start)
        size = path.stat().st_size
    print(f"page: {size / 1e6:.2f} MB (said before: {said / 1e6:.2f} MB at most; the aim: 8 MB)")
    print(f"      {statistics.median(times):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--all", action="store_true", help="all layers instead of three")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--page", action="store_true", help="the HTML page instead")
    arguments = parser.parse_args()
    if arguments.page:
        page(arguments.repeat)
        return
    facts, activations = captured(None if arguments.all else LAYERS)
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        first = write_export(facts, activations, root, name="first", what={"channels"})
        floor = Floor([path for path in first.files if path.suffix == ".png"])
        times: dict[str, list[float]] = {}
        for turn in range(arguments.repeat):
            for way in ("hookviz", "Pillow", "Pillow with texts"):
                folder = root / f"{way}-{turn}"
                if way != "hookviz":
                    folder.mkdir()
                start = time.perf_counter()
                if way == "hookviz":
                    write_export(facts, activations, root, name=folder.name, what={"channels"})
                else:
                    floor.write(folder, texts=way != "Pillow")
                times.setdefault(way, []).append(time.perf_counter() - start)
                shutil.rmtree(folder)
    medians = {way: statistics.median(each) for way, each in times.items()}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {cores} cores, torch {torch.__version__}")
    print(f"{len(floor.pictures)} single-channel PNGs, median of {arguments.repeat} in turn")
    print(f"{'way':20} {'seconds':>8} {'per file':>10} {'ratio':>7}")
    for way, seconds in medians.items():
        per = seconds / len(floor.pictures) * 1e6
        print(f"{way:20} {seconds:8.3f} {per:8.0f} µs {seconds / medians['Pillow']:7.2f}")


if __name__ == "__main__":
    main()
