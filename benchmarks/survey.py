"""Surveys against the bare loop, as ratios measured side by side in one run.

    python -m benchmarks.survey [--only speed,memory,…] [--pairs 6]

The bare loop reads, decodes and runs the same batches without a hook. Images: Debian's
tuxpaint-stamps-default where it is installed, else generated ones. CPU, one thread, ResNet-18 with
random weights. ``ray`` and ``torchlens`` are left out where they are not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch

import numpy as np
import torch
from PIL import Image

import hookviz
from hookviz.models import feed
from hookviz.surveys import open_survey, survey
from hookviz.surveys._find import find_source
from hookviz.surveys._inputs import BatchMaker, Inputs, batches_of
from hookviz.surveys._plan import Plan, read_manifest, read_rows, rows_file, write_rows
from hookviz.surveys._shards import ShardMaker, parts_of
from hookviz.surveys._sources import Row

LAYERS = ["layer1", "layer2", "layer3", "layer4"]
STAMPS = Path("/usr/share/tuxpaint/stamps")
IMAGES, BATCH = 64, 32


def generated(folder: Path, count: int, side: int = 300) -> Path:
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        small = Image.fromarray(random.integers(0, 256, (9, 9, 3), dtype=np.uint8))
        small.resize((side, side)).save(folder / f"{number:06d}.jpg")
    return folder


def pictures(tmp: Path) -> list[Path]:
    if STAMPS.exists():
        found = sorted(STAMPS.rglob("*.png"))
        return [path for path in found if "mirror" not in path.name][:IMAGES]
    return sorted(generated(tmp / "images", IMAGES).glob("*.jpg"))


def against_the_bare_loop(tmp: Path, pairs: int) -> None:
    """Alternating: the bare loop, then a shard of the survey over the same images."""
    model = hookviz.load_model("resnet18", weights=None, device="cpu")
    paths = pictures(tmp)
    for name, options in {
        "statistics + top-16": {"keep": "none"},
        "the same + pooled": {"keep": "pooled"},
        "the same + whole float16, fsync": {"keep": "whole", "dtype": "float16"},
    }.items():
        out = tmp / "speed"
        shutil.rmtree(out, ignore_errors=True)
        survey(model, paths[:1], LAYERS, out, batch=BATCH, shard=IMAGES, workers=0, **options)
        source = find_source(paths)
        facts = {**(read_manifest(out) or {}), "sections": [len(paths)]}
        plan = Plan(out, facts, [source.stamped(row) for row in source.rows()])
        maker = BatchMaker(Inputs(model.preprocess, model.dtype), tuple(facts["input_shape"]))
        parts = parts_of(range(len(paths)), BATCH)

        given = (maker, source, plan.rows, parts, 0)

        def bare(given=given) -> None:
            for batch in batches_of(*given):
                with torch.no_grad():
                    args, kwargs = feed(model, batch.images)
                    model.module(*args, **kwargs)

        with ShardMaker(model, plan) as shards:

            def surveyed(shards=shards, given=given) -> None:
                shards.make(0, range(len(paths)), batches_of(*given))

            ratios, work, speeds = paired(bare, surveyed, pairs, len(paths))
        print(
            f"{name:34} {statistics.median(ratios):.3f} of the bare loop (pairs {min(ratios):.2f} "
            f"to {max(ratios):.2f}; bare {statistics.median(speeds):.1f} images/s), by processor "
            f"time {statistics.median(work):.3f} ({min(work):.2f} to {max(work):.2f})",
            flush=True,
        )


def paired(
    bare: Callable[[], None], other: Callable[[], None], pairs: int, images: int
) -> tuple[list[float], list[float], list[float]]:
    """Ratios of the time, ratios of this process's processor time, images a second of the first.

    Processor time leaves out what other processes take, and waiting for the disk.
    """
    ratios, work, speeds = [], [], []
    for number in range(pairs + 1):
        times = {}
        for run in (bare, other) if number % 2 else (other, bare):
            began, at = time.perf_counter(), time.process_time()
            run()
            times[run] = time.perf_counter() - began, time.process_time() - at
        if number:  # the first pair warms up
            ratios.append(times[bare][0] / times[other][0])
            work.append(times[bare][1] / times[other][1])
            speeds.append(images / times[bare][0])
    return ratios, work, speeds


MEMORY = """
import sys, torch, hookviz
from torch import nn
from pathlib import Path
def rss():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024
net = nn.Sequential(nn.Conv2d(3, 64, 5, stride=2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU())
seen = {}
def told(p):
    for at in (1000, 10000):
        if p.images_done >= at and at not in seen:
            seen[at] = rss()
size = hookviz.Preprocessing(crop=(64, 64), fit="squash")
hookviz.survey(net, sys.argv[1], ["1", "3"], sys.argv[2], keep="pooled", batch=50, shard=250,
    workers=0, preprocess=size, progress=told)
print(seen[1000], seen[10000], rss())
"""


def memory(tmp: Path, _pairs: int) -> None:
    folder = generated(tmp / "many", 200, 48)
    for number in range(200, 10_000):
        os.link(folder / f"{number % 200:06d}.jpg", folder / f"{number:06d}.jpg")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(folder), str(tmp / "memory")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    first, last, end = map(float, done.stdout.split())
    print(
        f"memory: {first:.0f} MiB at image 1,000, {last:.0f} at 10,000 ({last - first:+.1f}), "
        f"{end:.0f} after folding and crops"
    )


def complete(tmp: Path, _pairs: int) -> None:
    """100,000 images whose shards are all there; opening; nine crops."""
    model = hookviz.load_model("resnet18", weights=None, device="cpu")
    data, out = tmp / "data", tmp / "complete"
    generated(data, 32, 64)
    options = {"batch": 32, "shard": 256, "workers": 0}
    survey(model, data, LAYERS, out, **options)
    shards = -(-(100_000 - 32) // 256) + 1
    for number in range(32, 100_000):
        (data / f"{number:06d}.jpg").touch()
    plan = Plan(out, read_manifest(out) or {}, read_rows(out, read_manifest(out) or {}))
    write_rows(out, 1, [Row(f"{n:06d}.jpg") for n in range(32, 100_000)])
    facts = {**plan.facts, "sections": [32, 100_000 - 32]}
    (out / "manifest.json").write_text(json.dumps(facts))
    assert rows_file(out, 1).exists()
    for number in range(1, shards):
        os.link(plan.shard_file(0), plan.shard_file(number))
    survey(model, data, LAYERS, out, **options)  # folds
    times = []
    for _ in range(3):
        began, at = time.perf_counter(), time.process_time()
        survey(model, data, LAYERS, out, **options)
        times.append((time.perf_counter() - began, time.process_time() - at))
    took, work = map(min, zip(*times, strict=True))
    print(
        f"noticing that 100,000 images are complete: {took:.2f} s, processor time {work:.2f} s "
        "(best of 3)"
    )
    times = []
    for _ in range(5):
        began = time.perf_counter()
        hits = open_survey(out).top("layer4", 37, 9)
        crops = [hit.crop for hit in hits]
        times.append(time.perf_counter() - began)
        assert len(crops) == 9
    print(f"opening it and decoding nine crops: {min(times) * 1e3:.0f} ms (best of 5)")


def on_ray(tmp: Path, _pairs: int) -> None:
    """From the first shard to the last, so that starting Ray does not count."""
    try:
        import ray
    except ImportError:
        print("ray: not installed")
        return
    model = hookviz.load_model("resnet18", weights=None, device="cpu")
    data = pictures(tmp) * 3
    speeds: dict[str, float] = {}
    digests = set()
    for name, cpus in {"here": 0, "one actor": 1, "two actors": 2}.items():
        moments: list[tuple[float, int]] = []
        options = {"batch": 16, "shard": 16, "workers": 0, "keep": "pooled"}
        if cpus:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False)
            options["engine"] = "ray"
        out = tmp / name
        survey(
            model, data, LAYERS, out, **options,
            progress=lambda p, m=moments: m.append((time.perf_counter(), p.images_done)),
        )  # fmt: skip
        if cpus:
            ray.shutdown()
        start = max(1, cpus) - 1  # each actor has built its model
        seconds = moments[-1][0] - moments[start][0]
        speeds[name] = (moments[-1][1] - moments[start][1]) / seconds
        digests.add((out / "summary.safetensors").read_bytes())
    print(
        f"Ray: one actor {speeds['one actor'] / speeds['here']:.2f} of here, two actors "
        f"{speeds['two actors'] / speeds['one actor']:.2f} of one; the same bits: "
        f"{len(digests) == 1}"
    )


def stores(tmp: Path, _pairs: int) -> None:
    """Real maps of VGG16's features.29 (a ReLU) through a model that gives back what it gets."""
    vgg = hookviz.load_model("vgg16", weights="bundled", device="cpu")
    maps = []
    with torch.no_grad():
        for path in pictures(tmp):
            picture = hookviz.read_image(path)
            tensor = hookviz.images.network_input(picture, vgg.preprocess, dtype=vgg.dtype).tensor
            maps.append(vgg.module.features[:30](tensor)[0].float())
    zeros = float(torch.stack(maps).eq(0).float().mean())
    data = maps * 8
    print(f"stores: {len(data)} maps {list(maps[0].shape)} as float16, {zeros:.1%} zeros")
    through = torch.nn.Sequential(torch.nn.Identity())
    values = []
    for store in ("safetensors", "zarr"):
        out = tmp / store
        began = time.perf_counter()
        found = survey(
            through, data, ["0"], out, keep="whole", dtype="float16", store=store, batch=BATCH,
            shard=256, top=1, workers=0, preprocess=hookviz.Preprocessing(),
        )  # fmt: skip
        took = time.perf_counter() - began
        kept = sum(path.stat().st_size for path in (out / "shards").rglob("*") if path.is_file())
        random = np.random.default_rng(0)
        one = middle_ms(lambda f=found, r=random: f.tensor("0", [int(r.integers(len(data)))]))
        channel = middle_ms(lambda f=found, r=random: f.tensor("0", channel=int(r.integers(512))))
        values.append(found.tensor("0"))
        print(
            f"  {store:12} {kept / 1e6:6.1f} MB, one image {one:.1f} ms, a channel of all "
            f"{channel:.1f} ms (page cache, medians of 15); the whole survey {took:.1f} s"
        )
    assert torch.equal(*values)


def middle_ms(work: Callable[[], object]) -> float:
    times = []
    for _ in range(15):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def against_torchlens(tmp: Path, pairs: int) -> None:
    """Both keep the outputs of four layers on the disk, ours pooled; tensors in memory go in."""
    try:
        from torchlens import extract_dataset
    except ImportError:
        print("torchlens: not installed")
        return
    model = hookviz.load_model("resnet18", weights=None, device="cpu")
    tensors = [model.preprocess(hookviz.read_image(p).image) for p in pictures(tmp)]
    number = iter(range(1000))

    def theirs() -> None:
        extract_dataset(
            model.module, torch.stack(tensors), LAYERS, BATCH, pool="spatial_mean", progress=False,
            output_dir=tmp / f"lens{next(number)}",
        )  # fmt: skip

    def ours() -> None:
        survey(
            model, tensors, LAYERS, tmp / f"ours{next(number)}", keep="pooled", batch=BATCH,
            shard=IMAGES, workers=0,
        )  # fmt: skip

    ratios, work, _ = paired(theirs, ours, pairs, len(tensors))
    print(
        f"torchlens: {statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to "
        f"{max(ratios):.2f}), crops included; by processor time {statistics.median(work):.2f}"
    )


PARTS = {
    "speed": against_the_bare_loop, "memory": memory, "complete": complete, "ray": on_ray,
    "stores": stores, "torchlens": against_torchlens,
}  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", default=",".join(PARTS))
    options.add_argument("--pairs", type=int, default=6)
    asked = options.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    print(
        f"{platform.processor() or platform.machine()}, torch {torch.__version__}, load {load:.1f}"
    )
    for name in asked.only.split(","):
        with tempfile.TemporaryDirectory() as tmp:
            PARTS[name](Path(tmp), asked.pairs)


if __name__ == "__main__":
    main()
