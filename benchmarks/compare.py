"""Comparing two runs: time, memory, how large rounding is, and what is found.

``python -m benchmarks.compare [speed] [app] [rounding] [found]`` prints one table each:

- speed: two runs of ResNet-50, every layer, seconds and memory beyond what the runs hold;
- app: the same two runs in the app, from the message of the page to all rows and to the first maps;
- rounding: in nine architectures, the largest difference of any layer between two ways of computing
  the same, as a share of the layer's largest magnitude, in units of the coarser dtype's spacing ε;
- found: one weight in each layer of ResNet-152 that has weights is changed by 1e-3 in turn; how
  often `first_difference` names that layer.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

import hookviz
from benchmarks.capture import peak

MODELS = (
    "vgg16", "resnet18", "resnet152", "densenet121", "mobilenet_v2", "efficientnet_b0",
    "convnext_tiny", "vit_b_16", "swin_t",
)  # fmt: skip
MEGABYTE = 1e6


def loaded(name: str) -> hookviz.LoadedModel:
    weights = "bundled" if name == "vgg16" else None
    return hookviz.load_model(name, weights=weights, device="cpu")


def seconds_of(work: Callable[[], object], times: int = 5) -> float:
    """Median seconds."""
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def speed() -> None:
    model, image = loaded("resnet50"), hookviz.sample_image()
    other = hookviz.sample_image("coffee.png")
    a, b = (hookviz.feature_maps(model, one, "*") for one in (image, other))
    size = sum(record.tensor.nbytes for record in a.activations) / MEGABYTE
    print(f"ResNet-50, {len(a.activations)} tensors, {size:.0f} MB in each run")
    ways: dict[str, Callable[[], object]] = {
        "two runs": lambda: hookviz.compare(a, b),
        "a run and a pair (model, image)": lambda: hookviz.compare(a, (model, other)),
        "two pairs": lambda: hookviz.compare((model, image), (model, other)),
        "for comparison: one run that keeps all": lambda: hookviz.feature_maps(model, other, "*"),
    }
    for name, work in ways.items():
        more = peak(work)[0] / MEGABYTE  # of torch's own allocations
        print(f"{name:40} {seconds_of(work):6.2f} s  {more:6.0f} MB more at its highest")


def app() -> None:
    explorer = hookviz.explore(loaded("resnet50"), hookviz.sample_image(), run=False)
    explorer.layers = explorer.tree.names
    for image in ("chelsea.png", "coffee.png"):
        explorer.image = hookviz.sample_image(image)
        assert explorer.start_run(anyway=True)
        assert explorer.wait(300)
    panel = next(part for part in explorer.parts if hasattr(part, "kept"))
    panel._handle_custom_msg({"type": "look", "width": 700}, [])
    rows, maps = [], []
    for _ in range(5):
        begin = time.perf_counter()
        panel._handle_custom_msg({"type": "compare", "keys": ["1", "2"]}, [])
        while panel.compared["state"] == "comparing":
            time.sleep(0.002)
        rows.append(time.perf_counter() - begin)
        assert explorer.wait(300)
        maps.append(time.perf_counter() - begin)
    kept = panel.kept.bytes / MEGABYTE
    print(f"in the app, {len(panel.layers)} rows, {kept:.0f} MB of runs kept")
    print(f"rows after {statistics.median(rows):.2f} s, maps after {statistics.median(maps):.2f} s")
    explorer.close()


def rounding() -> None:
    print("largest difference of a layer, in ε of the coarser dtype")
    for name in MODELS:
        model, image = loaded(name), hookviz.sample_image()
        base = hookviz.feature_maps(model, image, "*")

        def native(model: hookviz.LoadedModel = model) -> object:
            with torch.backends.mkldnn.flags(enabled=False):
                return hookviz.feature_maps(model, hookviz.sample_image(), "*")

        ways: dict[str, tuple[Callable[[], object], torch.dtype]] = {
            "other kernels": (native, torch.float32)
        }
        for dtype in (torch.float64, torch.float16, torch.bfloat16):
            other = replace(model, module=copy.deepcopy(model.module)).to("cpu", dtype)
            coarser = torch.float32 if dtype is torch.float64 else dtype
            pair = (other, image)
            ways[str(dtype).removeprefix("torch.")] = (lambda pair=pair: pair, coarser)  # type: ignore[misc]
        shown = []
        for way, (make, dtype) in ways.items():
            found = hookviz.compare(base, make())
            values = [one.relative for one in found if one.relative == one.relative]
            beyond = found.first_difference()
            said = "" if beyond is None else f" (beyond rounding at {beyond.label})"
            shown.append(f"{way} {max(values) / torch.finfo(dtype).eps:.1f}{said}")
        print(f"{name:16} {', '.join(shown)}", flush=True)


def found() -> None:
    model, image = loaded("resnet152"), hookviz.sample_image()
    base = hookviz.feature_maps(model, image, "*")
    generator = torch.Generator().manual_seed(0)
    layers = [
        (name, part)
        for name, part in model.module.named_modules()
        if isinstance(part, nn.Conv2d | nn.Linear | nn.BatchNorm2d)
    ]
    right, without, smallest, wrong = 0, 0, 1.0, []
    for name, part in layers:
        weight, first = part.weight.data.view(-1), None
        while first is None:
            at = int(torch.randint(weight.numel(), (1,), generator=generator))
            before = weight[at].item()
            weight[at] += 1e-3
            compared = hookviz.compare(base, (model, image))
            weight[at] = before
            first = compared.first_difference(0)
            without += first is None  # what it is multiplied with is zero everywhere
        beyond = compared.first_difference()
        smallest = min(smallest, first.relative)
        if beyond is not None and beyond.layer == name:
            right += 1
        else:
            wrong.append(f"{name}[{at}]: {beyond and beyond.label}, {first.relative:.2g}")
    print(f"ResNet-152: {right} of {len(layers)} layers found", *wrong, sep="\n  ")
    print(f"smallest relative difference {smallest:.2g}; {without} weights without any effect")
    print("unchanged:", hookviz.compare(base, (model, image)).first_difference(0))


if __name__ == "__main__":
    tables = {"speed": speed, "app": app, "rounding": rounding, "found": found}
    for wanted in sys.argv[1:] or tables:
        tables[wanted]()
