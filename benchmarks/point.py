"""How quick pointing at a place is: ``python -m benchmarks.point``.

In: this machine. Out: a Markdown table of medians in milliseconds: a layer's receptive field when
it is first asked for (of a model that nothing is known of yet) and at each further place, a value,
a vector of all channels, the channels ranked for a region.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torchvision

import hookviz

LAYERS = [
    ("vgg16", "features.28"),
    ("resnet50", "layer4"),
    ("densenet121", "features.norm5"),
    ("mobilenet_v2", "features.18"),
    ("convnext_tiny", "features.7"),
    ("vit_b_16", "encoder.layers.encoder_layer_11"),
]


def milliseconds(task: Callable[[], object]) -> float:
    begin = time.perf_counter()
    task()
    return 1000 * (time.perf_counter() - begin)


def measured(name: str, layer: str, times: int) -> list[str]:
    found: dict[str, list[float]] = {k: [] for k in ("first", "next", "value", "vector", "region")}
    for _ in range(times):
        net = torchvision.models.get_model(name, weights=None)
        run = hookviz.feature_maps(net, hookviz.sample_image(), [layer], preprocess=HOW)
        tasks = {
            "first": partial(run.receptive_field, layer, 3, 3),
            "next": partial(run.receptive_field, layer, 2, 3),
            "value": partial(run.value, layer, 7, 3, 2),
            "vector": partial(run.vector, layer, 3, 2),
            "region": partial(run.channels_in, layer, (60, 60, 120, 120), of="input"),
        }
        for task, function in tasks.items():
            found[task].append(milliseconds(function))
    height, width = run.receptive_field(layer, 3, 3).size
    medians = (f"{statistics.median(values):,.1f}" for values in found.values())
    return [f"{name} `{layer}`", f"{height}×{width}", *medians]


HOW = hookviz.Preprocessing.for_size(224)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    times = parser.parse_args().times
    # The first figure of a process loads matplotlib; that is not pointing.
    hookviz.feature_maps(torch.nn.Conv2d(3, 3, 3), hookviz.sample_image(), [""]).value("", 0, 0, 0)
    threads = torch.get_num_threads()
    print(
        f"{platform.machine()}, torch {torch.__version__}, {threads} threads; medians of {times}\n"
    )
    print("| layer | side (pixels) | first | further place | value | vector | region |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, layer in LAYERS:
        print("| " + " | ".join(measured(name, layer, times)) + " |", flush=True)


if __name__ == "__main__":
    main()
