"""What watching a training costs: ``python -m benchmarks.monitor [--rounds N] [--only WORD]``.

ResNet-18, 32 pictures of 64×64, forward + backward + SGD with momentum, torch on one thread; in
seconds of the CPU of that thread, and of the clock on the wall. Each way trains a model of its own;
each of its steps stands between two bare ones and is divided by their geometric mean, so that what
else the machine does falls on both. A way that measures every tenth step is ten steps a round: the
median over the rounds of each of the ten, and the mean of these. Printed are these figures, the
interval that holds 95 % of 2,000 redrawings of the rounds (bootstrap), and the machine's load; a
bare model treated as if it was watched says how far from 1 nothing comes. Ctrl-C prints what there
is by then.
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
from hookviz.monitoring._parameters import Parameters, _arrived, _norms, _together

KINDS = (nn.Conv2d, nn.BatchNorm2d, nn.ReLU)


class Loop:
    """A model that trains a step at a time, of which every so many are alike."""

    def __init__(self, name: str, every: int = 1) -> None:
        torch.manual_seed(0)
        self.name, self.every = name, every
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


def watched(name: str, every: int = 1, **options: Any) -> Loop:
    loop = Loop(name, every)
    monitor = hookviz.monitor(
        loop.model, list(KINDS), stats_every=every, on_alert="record", **options
    )
    loop.watching, loop.after = monitor, lambda loss: monitor.step(loss=loss)
    return loop


def without_outputs(name: str, *, updates: bool, numbers: Any = None) -> Loop:
    """The parameters alone: the monitor's own way, without the hooks."""
    loop = watched(name, updates=updates)
    monitor = loop.watching
    assert isinstance(monitor, Monitor)
    monitor._watch.open = lambda: None  # type: ignore[method-assign]
    if numbers is not None:
        parameters = monitor._parameters
        parameters.numbers = lambda again=False: numbers(parameters)  # type: ignore[method-assign]
    return loop


def outputs_alone(name: str, every: int) -> Loop:
    """The hooks alone: the monitor's own way, without norms of parameters."""
    loop = watched(name, every, updates=False)
    monitor = loop.watching
    assert isinstance(monitor, Monitor)
    monitor._parameters.numbers = lambda again=False: {}  # type: ignore[method-assign]
    return loop


def of_gradients(parameters: Parameters) -> dict[str, dict[str, float]]:
    """What a monitor keeps of gradients, without the weights."""
    own = parameters._own()
    gradients = {id(p): p.grad for found in own.values() for _, p in found if p.grad is not None}
    (norms,) = _arrived(_norms(gradients))
    return {
        name: {"gradient": _together(norms, [id(p) for _, p in found])}
        for name, found in own.items()
    }


def by_foreach_norm() -> Loop:
    """The norms that torch gives in one call: float32 all the way, joined by no layer."""
    loop = Loop("torch._foreach_norm of the gradients, every step")

    def norms(_loss: Any) -> list[float]:
        found = torch._foreach_norm([p.grad for p in loop.model.parameters()])
        return torch.stack(found).tolist()  # type: ignore[no-any-return]

    loop.after = norms
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


def _figure(ratios: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(clocks,) what a step costs, of (rounds, steps, clocks): the average over a round's steps."""
    figure: np.ndarray[Any, Any] = np.median(ratios, axis=0).mean(axis=0)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", help="ways whose name has this word")
    parser.add_argument("--wandb", action="store_true", help="also wandb.watch")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    x, y = torch.randn(32, 3, 64, 64), torch.randint(0, 10, (32,))
    gradients = "gradient norms alone, every step"
    loops = [
        watched("everything, every step"),
        watched("everything, every tenth step", 10),
        outputs_alone("outputs alone, every step", 1),
        outputs_alone("outputs alone, every tenth step", 10),
        without_outputs(gradients, updates=False, numbers=of_gradients),
        by_foreach_norm(),
        without_outputs("gradient and weight norms, every step", updates=False),
        without_outputs("gradient, weight and update norms, every step", updates=True),
        naive(),
        Loop("bare, as if every tenth step was watched", 10),
    ]
    if arguments.wandb and (loop := by_wandb()) is not None:
        loops.append(loop)
    loops = [loop for loop in loops if arguments.only in loop.name]
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
                found = []
                for _ in range(loop.every):
                    now = loop.step(x, y)
                    after = bare.step(x, y)
                    found.append(now / np.sqrt(before * after))
                    steps.append(after)
                    before = after
                ratios[loop.name].append(found)
    except KeyboardInterrupt:
        print("interrupted: of the rounds until now")
    finally:
        for loop in loops:
            loop.watching.__exit__(None, None, None)
    cpu, wall = 1000 * np.median(steps, axis=0)
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"bare step: median {cpu:.0f} ms CPU, {wall:.0f} ms wall, torch {torch.__version__}")
    print(f"load of the machine ({os.cpu_count()} cores) over 1, 5 and 15 minutes: {load}")
    print("| way | rounds | CPU | 95 % | wall |\n|---|---:|---:|---|---:|")
    generator = np.random.default_rng(0)
    for name, rows in ratios.items():
        if not rows:
            continue
        all_rounds = np.array(rows)
        middle, walls = _figure(all_rounds)
        again = generator.integers(len(rows), size=(2000, len(rows)))
        low, high = np.quantile([_figure(all_rounds[one])[0] for one in again], [0.025, 0.975])
        print(f"| {name} | {len(rows)} | {middle:.3f} | {low:.3f}–{high:.3f} | {walls:.3f} |")


if __name__ == "__main__":
    main()
