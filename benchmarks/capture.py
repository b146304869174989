"""What capturing costs, against hooks written by hand.

    python -m benchmarks.capture [--models resnet18,resnet50,vgg16] [--rounds N] [--size 224]

One process measures all contenders in turn, round after round, so that what slows the machine
slows all of them; each ratio is the median over the rounds of a contender's time divided by that
of its floor in the same round. The floor (1.00) is what one would write by hand: forward hooks
that keep ``output.detach().clone()``, registered, run and removed. Contenders are asked for the
same layers on the same input; each is checked to give the right shapes before it is timed, and it
is told whether its values are those of the layers or what an in-place ReLU made of them.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers import PEERS, Contender, by_hand
from hookviz.capture import Capture

LAYERS = {
    "resnet18": ["conv1", "layer1", "layer3", "avgpool"],
    "resnet50": ["conv1", "layer1", "layer3", "avgpool"],
    "vgg16": ["features.0", "features.10", "features.28", "classifier.6"],
}
EARLY = {"resnet18": "layer1", "resnet50": "layer1", "vgg16": "features.7"}


def by_hookviz(model: nn.Module, layers: list[str], x: Tensor) -> Capture:
    with Capture(model, layers) as capture:
        model(x)
    return capture


def prefix(model: nn.Module, until: str) -> nn.Module:
    """The model up to a layer, as a module that runs nothing else."""
    if until.startswith("features."):
        return model.features[: int(until.split(".")[1]) + 1]
    children = dict(model.named_children())
    names = list(children)
    return nn.Sequential(*(children[name] for name in names[: names.index(until) + 1]))


def contenders(name: str, model: nn.Module, x: Tensor) -> tuple[list[Contender], dict[str, str]]:
    layers, early = LAYERS[name], EARLY[name]
    every = [n for n, _ in model.named_modules()]
    head = prefix(model, early)

    def stopped() -> Capture:
        with Capture(model, early, stop_early=True) as capture:
            model(x)
        return capture

    with torch.no_grad():
        assert torch.equal(stopped().output(early), head(x))
    found = [
        Contender("hooks by hand, 4 layers", "4", lambda: by_hand(model, layers, x)),
        Contender("**hookviz, 4 layers**", "4", lambda: by_hookviz(model, layers, x)),
        Contender("forward without hooks", "4", lambda: model(x)),
        Contender("hooks by hand, all modules", "all", lambda: by_hand(model, every, x)),
        Contender("**hookviz, all modules**", "all", lambda: by_hookviz(model, every, x)),
        Contender(f"prefix alone ({early})", "early", lambda: head(x)),
        Contender(f"**hookviz, early stop ({early})**", "early", stopped),
    ]
    absent: dict[str, str] = {}
    for peer, make in PEERS.items():
        try:
            found.append(make(model, layers, x))
        except ImportError:
            absent[peer] = "not installed"
        except Exception as error:
            absent[peer] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return found, absent


# Measuring ---------------------------------------------------------------------------------------


def measure(found: list[Contender], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {c.name: [] for c in found}
    for turn in range(rounds + 2):
        # Another one begins each round, so that none always runs after the same other.
        order = found[turn % len(found) :] + found[: turn % len(found)]
        gc.collect()
        for contender in order:
            contender.before()
            gc.disable()
            try:
                began = time.perf_counter()
                result = contender.run()
                took = time.perf_counter() - began
            finally:
                gc.enable()
            del result
            contender.after()
            if turn >= 2:
                times[contender.name].append(took)
    return times


def peak(run: Callable[[], Any]) -> tuple[int, Any]:
    """Highest number of bytes that torch's CPU allocator held at once, beyond the start's."""
    from torch.autograd.profiler import profile

    with profile(use_cpu=True, profile_memory=True) as profiler:
        result = run()
    events = [e for e in profiler.kineto_results.events() if e.name() == "[memory]"]
    held = highest = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    return highest, result


def memory(name: str, model: nn.Module, x: Tensor) -> str:
    every = [n for n, _ in model.named_modules()]
    bare, _ = peak(lambda: model(x))
    rows = []
    for label, layers in (("4 layers", LAYERS[name]), ("all modules", every)):
        ours, capture = peak(lambda layers=layers: by_hookviz(model, layers, x))
        bound = bare + capture.bytes
        rows.append(
            f"| {name}, {label} | {bare / 2**20:.1f} | {capture.bytes / 2**20:.1f} | "
            f"{ours / 2**20:.1f} | {ours / bound:.3f} |"
        )
    return "\n".join(rows)


# Report ------------------------------------------------------------------------------------------


def machine() -> str:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = lines[0].partition(":")[2].strip() if lines else cpu
    versions = []
    for package in ("torch", "torchvision", "hookviz", *(p for p in PEERS if p != "torchvision")):
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return (
        f"{cpu}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads, "
        f"{platform.system()}, Python {platform.python_version()}; {', '.join(versions)}"
    )


FLOORS = {
    "4": "hooks by hand, 4 layers",
    "all": "hooks by hand, all modules",
    "early": "prefix alone",
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.capture", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--models", default=",".join(LAYERS))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--size", type=int, default=224, help="height and width of the input")
    args = parser.parse_args(argv)
    unknown = set(args.models.split(",")) - set(LAYERS)
    if unknown:
        print(
            f"Unknown models: {', '.join(sorted(unknown))}; known: {', '.join(LAYERS)}.",
            file=sys.stderr,
        )
        return 2
    warnings.simplefilter("ignore")
    from torchvision.models import get_model

    names = args.models.split(",")
    cells: dict[str, dict[str, str]] = {}
    notes: dict[str, set[str]] = {}
    memories, absent = [], {}
    for name in names:
        torch.manual_seed(0)
        model = get_model(name, weights=None).eval()
        x = torch.randn(1, 3, args.size, args.size)
        with torch.no_grad():
            found, missing = contenders(name, model, x)
            absent.update(missing)
            times = measure(found, args.rounds)
            memories.append(memory(name, model, x))
        for contender in found:
            floor = next(times[c] for c in times if c.startswith(FLOORS[contender.group]))
            ratio = statistics.median(
                a / b for a, b in zip(times[contender.name], floor, strict=True)
            )
            milliseconds = statistics.median(times[contender.name]) * 1000
            row = (
                contender.name.partition(" (")[0] if contender.group == "early" else contender.name
            )
            row += "**" if row.startswith("**") and not row.endswith("**") else ""
            cells.setdefault(row, {})[name] = f"{ratio:.2f} ({milliseconds:.0f} ms)"
            if contender.note:
                notes.setdefault(row, set()).add(f"{name}: {contender.note}")
    print(f"{machine()}; batch 1, {args.size}×{args.size}, {args.rounds} rounds, no_grad\n")
    print(f"| time / floor | {' | '.join(names)} | |")
    print(f"|---|{'---:|' * len(names)}---|")
    for row, values in cells.items():
        told = "; ".join(sorted(notes.get(row, ())))
        print(f"| {row} | {' | '.join(values.get(n, '–') for n in names)} | {told} |")
    print("\n| peak memory | bare, MiB | kept, MiB | hookviz, MiB | hookviz / (bare + kept) |")
    print("|---|---:|---:|---:|---:|")
    print("\n".join(memories))
    early = ", ".join(f"{name}: {EARLY[name]}" for name in names)
    layers = "; ".join(f"{name}: {', '.join(LAYERS[name])}" for name in names)
    print(f"\n4 layers: {layers}. Early stop after {early}.")
    for peer, reason in absent.items():
        print(f"Not measured: {peer} ({reason}).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
