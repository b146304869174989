"""Torch's switches and generators, as a run finds and leaves them."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch


@contextmanager
def torch_as_it_starts(device: torch.device) -> Iterator[None]:
    """No gradients, and none of the modes that a caller's thread may have switched on.

    A run gives the same values wherever it is called: autocast and a default device do not act
    on it. Inference mode is left too, since its tensors cannot be used with autograd later. All of
    them are as before afterwards.
    """
    with ExitStack() as modes:
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.no_grad())
        for kind in {"cpu", device.type}:
            modes.enter_context(torch.autocast(kind, enabled=False))
        if torch.empty(0).device.type not in {"cpu", device.type}:
            modes.enter_context(device)
        yield


@contextmanager
def generators_put_back(device: torch.device) -> Iterator[None]:
    """Gives generators of random numbers their state back, on the main thread."""
    if threading.current_thread() is not threading.main_thread():
        # Everybody's numbers come from the same generators: going back here would make another
        # thread, a training loop say, draw its numbers a second time.
        yield
        return
    put_back: list[Callable[[], None]] = [partial(torch.set_rng_state, torch.get_rng_state())]
    if device.type in ("cuda", "xpu"):
        module = torch.get_device_module(device)
        put_back.append(partial(module.set_rng_state, module.get_rng_state(device), device))
    elif device.type == "mps":
        put_back.append(partial(torch.mps.set_rng_state, torch.mps.get_rng_state()))
    put_back.append(partial(random.setstate, random.getstate()))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        put_back.append(partial(numpy.random.set_state, numpy.random.get_state()))
    try:
        yield
    finally:
        for put in put_back:
            put()
