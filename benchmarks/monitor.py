"""What watching a training costs: ``python -m benchmarks.monitor [--rounds N]``.

ResNet-18, 32 pictures of 64×64, forward + backward + SGD with momentum, torch on one thread; in
seconds of the CPU of that thread, and of the clock on the wall. Each way trains a model of its own;
steps are interleaved with bare ones, and each is divided by the bare steps before and after it, so
that what else the machine does falls on both. Printed are medians and quartiles of these ratios,
and the machine's load.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torchvision
from torch import nn
from torch.nn import functional as F

import hookviz
from hookviz.monitoring import Monitor

KINDS = (nn.Conv2d, nn.BatchNorm2d, nn.ReLU)


class Loop:
    """A model that trains a step at a time."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.name = name
        self.model = torchvision.models.resnet18(num_classes=10)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.after: Callable[[Any], Any] = lambda loss: None
        self.watching: AbstractContextManager[Any] = nullcontext()

    def step(self, x: torch.Tensor, y: torch.Tensor) -> np.ndarray[Any, Any]:
        """Trains a step; gives the seconds that it took of the CPU and on the wall."""
        begin = _clocks()
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.after(loss)
        took: np.ndarray[Any, Any] = _clocks() - begin
        return took


def _clocks() -> np.ndarray[Any, Any]:
    return np.array([time.thread_time(), time.perf_counter()])


def watched(name: str, **options: Any) -> Loop:
    loop = Loop(name)
    chosen: dict[str, Any] = {"layers": list(KINDS), "on_alert": "record", **options}
    monitor = hookviz.monitor(loop.model, **chosen)
    loop.watching, loop.after = monitor, lambda loss: monitor.step(loss=loss)
    return loop


def without_outputs(name: str, *, updates: bool) -> Loop:
    """The parameters alone: the monitor's own way, without the hooks."""
    loop = watched(name, stats_every=1, updates=updates)
    monitor = loop.watching
    assert isinstance(monitor, Monitor)
    monitor._watch.open = lambda: None  # type: ignore[method-assign]
    return loop


def outputs_alone(name: str, every: int) -> Loop:
    """The hooks alone: the monitor's own way, without norms of parameters."""
    loop = watched(name, stats_every=every, updates=False)
    monitor = loop.watching
    assert isinstance(monitor, Monitor)
    monitor._parameters.numbers = lambda again=False: {}  # type: ignore[method-assign]
    return loop


def naive() -> Loop:
    """Five numbers of each output by ``.item()``, as most scripts do it."""
    loop, rows = Loop("naive .item(), every step"), []

    def hook(_module: nn.Module, _args: Any, output: torch.Tensor) -> None:
        t = output.detach()
        rows.append(
            (
                t.mean().item(), t.std().item(), t.min().item(), t.max().item(),
                (t == 0).float().mean().item(), t.isnan().sum().item(),
            )
        )  # fmt: skip

    for module in loop.model.modules():
        if isinstance(module, KINDS):
            module.register_forward_hook(hook)
    return loop


def by_wandb() -> Loop | None:
    try:
        import wandb
    except ImportError:
        return None
    import tempfile

    run = wandb.init(mode="offline", dir=tempfile.mkdtemp(), settings={"console": "off"})
    loop = Loop("wandb.watch(log='all'), every step")
    run.watch(loop.model, log="all", log_freq=1)
    loop.after = lambda loss: run.log({"loss": loss.item()})
    return loop


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--wandb", action="store_true", help="also wandb.watch")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    x, y = torch.randn(32, 3, 64, 64), torch.randint(0, 10, (32,))
    loops = [
        watched("everything, every step", stats_every=1),
        watched("everything, every tenth step", stats_every=10),
        outputs_alone("outputs alone, every step", 1),
        outputs_alone("outputs alone, every tenth step", 10),
        without_outputs("gradient and weight norms alone, every step", updates=False),
        without_outputs("with updates", updates=True),
        naive(),
    ]
    if arguments.wandb and (loop := by_wandb()) is not None:
        loops.append(loop)
    bare = Loop("bare")
    ratios: dict[str, list[Any]] = {loop.name: [] for loop in loops}
    steps: list[Any] = []
    for loop in (bare, *loops):
        loop.watching.__enter__()
    try:
        for _ in range(2):
            for loop in (bare, *loops):
                loop.step(x, y)
        for _ in range(arguments.rounds):
            before = bare.step(x, y)
            for loop in loops:
                # Every tenth step of ten: their sum, each beside a bare one of its own.
                count = 10 if "tenth" in loop.name else 1
                took, base = np.zeros(2), np.zeros(2)
                for _ in range(count):
                    now = loop.step(x, y)
                    after = bare.step(x, y)
                    took, base = took + now, base + np.sqrt(before * after)
                    steps.append(after)
                    before = after
                ratios[loop.name].append(took / base)
    finally:
        for loop in loops:
            loop.watching.__exit__(None, None, None)
    cpu, wall = 1000 * np.median(steps, axis=0)
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"bare step: median {cpu:.0f} ms CPU, {wall:.0f} ms wall, torch {torch.__version__}")
    print(f"load of the machine ({os.cpu_count()} cores) over 1, 5 and 15 minutes: {load}")
    print("| way | CPU | quartiles | wall |\n|---|---:|---|---:|")
    for name, found in ratios.items():
        (low, middle, high), (_, walls, _) = np.quantile(found, [0.25, 0.5, 0.75], axis=0).T
        print(f"| {name} | {middle:.3f} | {low:.3f}–{high:.3f} | {walls:.3f} |")


if __name__ == "__main__":
    main()
