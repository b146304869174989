"""What attention costs: ``python -m benchmarks.attention``.

In: this machine. Out: a Markdown table: the processor time of a forward with all attention kept
over that of the bare forward, medians of pairs run in turn; the second call of every
``nn.MultiheadAttention`` in a forward hook, as one would write it by hand, beside it.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
import torchvision
from torch import nn

from hookviz import Capture


@contextmanager
def second_calls(model: nn.Module) -> Iterator[None]:
    """By hand: each module is called again for its weights, in a hook."""
    kept: list[torch.Tensor] = []

    def hook(
        module: nn.Module, args: tuple[torch.Tensor, ...], _kwargs: object, _out: object
    ) -> None:
        weights = type(module).forward(module, *args, average_attn_weights=False)[1]
        kept.append(weights)

    found = [m for m in model.modules() if isinstance(m, nn.MultiheadAttention)]
    handles = [m.register_forward_hook(hook, with_kwargs=True) for m in found]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def keeping(model: nn.Module) -> AbstractContextManager[object]:
    return Capture(model, "", outputs=False, attention=True)


def seconds(model: nn.Module, x: torch.Tensor) -> float:
    begin = time.thread_time()
    model(x)
    return time.thread_time() - begin


def ratio(
    model: nn.Module,
    x: torch.Tensor,
    how: Callable[[nn.Module], AbstractContextManager[object]],
    times: int,
) -> float:
    """Median over pairs of the time with attention over that without."""
    found = []
    with torch.no_grad():
        model(x)
        for _ in range(times):
            bare = seconds(model, x)
            with how(model):
                found.append(seconds(model, x) / bare)
    return statistics.median(found)


def rows(times: int) -> Iterator[tuple[str, int, float, float | None]]:
    """Model, how many maps it gives, the ratio with hookviz, and that by hand."""
    for name in ("vit_b_16", "swin_t", "swin_v2_t"):
        model = torchvision.models.get_model(name, weights=None).eval()
        x = torch.randn(1, 3, 224, 224)
        with torch.no_grad(), Capture(model, "", outputs=False, attention=True) as cap:
            model(x)
        by_hand = ratio(model, x, second_calls, times) if name == "vit_b_16" else None
        yield name, len(cap.activations), ratio(model, x, keeping, times), by_hand


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=9)
    times = parser.parse_args().times
    torch.set_num_threads(1)
    print(f"{platform.machine()}, torch {torch.__version__}, 1 thread; medians of {times} pairs\n")
    print("| attention of every layer | maps | hookviz / bare | second calls by hand / bare |")
    print("|---|---:|---:|---:|")
    for name, count, ours, by_hand in rows(times):
        print(f"| {name} | {count} | {ours:.2f} | {'–' if by_hand is None else f'{by_hand:.2f}'} |")


if __name__ == "__main__":
    main()
