"""How long a page of feature maps takes, from the tensor to the PNG's bytes.

    python -m benchmarks.render [--repeats 7] [--quick] [--memory]

Every way draws the same values at the same page size, one after the other in one run, alternating;
the figures are medians. The ways:

* hookviz: ``draw(...)`` and ``png_bytes()``: title, labels, colourbar, scale, everything;
* subplots: one Axes per map, ``plt.subplots`` and ``imshow``, saved at the same dpi;
* one imshow: a mosaic put together by hand, one ``imshow`` in one Axes, with a colourbar;
* make_grid: torchvision's ``make_grid`` and the PNG of its pixels as they come (no colours, no
  labels, no colourbar, its own size: maps are not brought to the page's size);
* MapExtrackt: ``display_from_map`` at the page's size, where it and OpenCV are installed;
* floor: levels are ready at the page's size; a colour table and Pillow's PNG, nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import platform
import statistics
import time
from collections.abc import Callable

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import psutil
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image

from hookviz.render import GridOptions, color_table, draw, packed

WIDTH, DPI = 1200, 100
LAYERS = [
    (64, 224, 64),
    (256, 56, 256),
    (512, 14, 512),
    (512, 14, 64),
    (2048, 7, 2048),
]  # channels, side, maps on the page


def layer(channels: int, side: int) -> torch.Tensor:
    """Smooth maps with some detail, as convolutions give them."""
    torch.manual_seed(0)
    coarse = torch.randn(1, channels, max(2, side // 8), max(2, side // 8))
    smooth = F.interpolate(coarse, (side, side), mode="bicubic")
    return smooth + 0.15 * torch.randn(1, channels, side, side)


def png(rgb: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(rgb).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def hookviz_page(tensor: torch.Tensor, count: int) -> Callable[[], object]:
    options = GridOptions(per_page=count, width=WIDTH, dpi=DPI, style="light")
    return lambda: draw(tensor, options).png_bytes()


def subplots(tensor: torch.Tensor, count: int, height: int) -> Callable[[], object]:
    def run() -> bytes:
        columns = round(count**0.5)
        rows = -(-count // columns)
        figure, axes = plt.subplots(
            rows, columns, figsize=(WIDTH / DPI, height / DPI), dpi=DPI, squeeze=False
        )
        for at, ax in enumerate(axes.flat):
            ax.axis("off")
            if at < count:
                ax.imshow(tensor[0, at].numpy(), cmap="viridis")
                ax.set_title(str(at), fontsize=6)
        stream = io.BytesIO()
        figure.savefig(stream, dpi=DPI, pil_kwargs={"compress_level": 1})
        plt.close(figure)
        return stream.getvalue()

    return run


def one_imshow(tensor: torch.Tensor, count: int, height: int) -> Callable[[], object]:
    def run() -> bytes:
        columns = round(count**0.5)
        rows = -(-count // columns)
        side = tensor.shape[-1]
        mosaic = np.full((rows * (side + 1), columns * (side + 1)), np.nan, np.float32)
        for at, values in enumerate(tensor[0, :count].numpy()):
            y, x = divmod(at, columns)
            mosaic[y * (side + 1) :, x * (side + 1) :][:side, :side] = values
        figure, ax = plt.subplots(figsize=(WIDTH / DPI, height / DPI), dpi=DPI)
        shown = ax.imshow(mosaic, cmap="viridis", interpolation="nearest")
        figure.colorbar(shown)
        ax.axis("off")
        stream = io.BytesIO()
        figure.savefig(stream, dpi=DPI, pil_kwargs={"compress_level": 1})
        plt.close(figure)
        return stream.getvalue()

    return run


def grid_of_torchvision(tensor: torch.Tensor, count: int) -> Callable[[], object]:
    def run() -> bytes:
        maps = tensor[0, :count, None]
        grid = torchvision.utils.make_grid(maps, nrow=round(count**0.5), normalize=True)
        # What save_image does, with the same level of compression as the others.
        array = grid.mul(255).add_(0.5).clamp_(0, 255).permute(1, 2, 0).to(torch.uint8).numpy()
        return png(array)

    return run


def map_extrackt(tensor: torch.Tensor, count: int, height: int) -> Callable[[], object] | None:
    try:
        from MapExtrackt import FeatureExtractor
    except ImportError:
        return None
    channels, side = tensor.shape[1], tensor.shape[-1]
    if count != channels:
        return None  # it draws whole layers
    with contextlib.redirect_stdout(io.StringIO()):
        conv = torch.nn.Conv2d(3, channels, 3, padding=1)
        extractor = FeatureExtractor(torch.nn.Sequential(conv).eval())
        picture = Image.fromarray(
            np.random.default_rng(0).integers(0, 255, (side, side, 3), np.uint8)
        )
        extractor.set_image(picture, order_by_intensity=False)

    def run() -> bytes:
        with contextlib.redirect_stdout(io.StringIO()):
            image = extractor.display_from_map(
                layer_no=0, out_type="pil", outsize=(WIDTH, height), colourize=3,
                picture_in_picture=False, write_text="none",
            )  # fmt: skip
        return png(np.asarray(image))

    try:
        run()
    except Exception as error:  # whatever another tool raises is reported
        print(f"MapExtrackt on {channels}×{side}×{side}: {type(error).__name__}: {error}")
        return None
    return run


def floor(tensor: torch.Tensor, count: int) -> tuple[Callable[[], object], int]:
    """The PNG of the very page that hookviz draws, from levels that are ready."""
    options = GridOptions(per_page=count, width=WIDTH, dpi=DPI, style="light")
    pixels = draw(tensor, options.replace(cmap="gray")).pixels()
    levels = np.ascontiguousarray(pixels[..., 0])
    table = packed(color_table("RdBu_r").rgb)

    def run() -> bytes:
        colours = table.take(levels)
        rgba = colours.view(np.uint8).reshape(*colours.shape, 4)
        return png(np.ascontiguousarray(rgba[..., :3]))

    return run, levels.shape[0]


def measure(ways: dict[str, Callable[[], object] | None], repeats: int) -> dict[str, float]:
    """Median milliseconds of each way; those that take seconds run three times at most."""
    times: dict[str, list[float]] = {name: [] for name, way in ways.items() if way}
    for way in ways.values():
        if way:
            way()
    for turn in range(repeats):
        for name, way in ways.items():
            if not way or (turn >= 3 and statistics.median(times[name]) > 2000):
                continue
            gc.collect()
            started = time.perf_counter()
            way()
            times[name].append((time.perf_counter() - started) * 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def memory() -> None:
    """A thousand draws: what grows?"""
    process = psutil.Process()
    tensor = layer(64, 14)
    before = plt.get_fignums()
    print("\n| draws | resident MB | figures of pyplot |\n|---:|---:|---:|")
    for turn in range(1001):
        draw(tensor, GridOptions(width=600)).png_bytes()
        if turn % 250 == 0:
            gc.collect()
            figures = len(plt.get_fignums()) - len(before)
            print(f"| {turn} | {process.memory_info().rss / 1e6:.0f} | {figures} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="only hookviz and the floor")
    parser.add_argument("--memory", action="store_true", help="also a thousand draws")
    given = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__} ({torch.get_num_threads()} threads), "
        f"matplotlib {mpl.__version__}, {WIDTH} pixels wide, median of {given.repeats}\n"
    )
    print("| layer | page | hookviz ms | subplots | one imshow | make_grid | MapExtrackt | floor |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for channels, side, count in LAYERS:
        tensor = layer(channels, side)
        bare, height = floor(tensor, count)
        ways: dict[str, Callable[[], object] | None] = {
            "hookviz": hookviz_page(tensor, count),
            "floor": bare,
        }
        if not given.quick:
            ways |= {
                "subplots": subplots(tensor, count, height),
                "imshow": one_imshow(tensor, count, height),
                "make_grid": grid_of_torchvision(tensor, count),
                "MapExtrackt": map_extrackt(tensor, count, height),
            }
        found = measure(ways, given.repeats)
        ours = found["hookviz"]

        def told(name: str, found: dict[str, float] = found, ours: float = ours) -> str:
            if name not in found:
                return "–"
            return f"{found[name]:.0f} ({found[name] / ours:.2g}×)"

        others = " | ".join(map(told, ("subplots", "imshow", "make_grid", "MapExtrackt", "floor")))
        print(f"| {channels}×{side}×{side} | {count} maps | {ours:.0f} | {others} |", flush=True)
    print("\nIn brackets: that way's time over ours; more than 1 means that ours is faster.")
    if given.memory:
        memory()


if __name__ == "__main__":
    main()
