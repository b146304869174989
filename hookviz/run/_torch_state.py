"""What a forward must not depend on, and must not move: torch's modes and generators."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial

import torch


@contextmanager
def torch_as_it_starts(device: torch.device) -> Iterator[None]:
    """No gradients, and none of the modes that a caller's thread may have switched on.

    A run gives the same values wherever it is called: autocast and a default device do not act
    on it. Inference mode is left too, since its tensors cannot be used with autograd later. All of
    them are as before afterwards.
    """
    with torch.inference_mode(False), torch.no_grad(), ExitStack() as modes:
        for kind in {"cpu", device.type}:
            modes.enter_context(torch.autocast(kind, enabled=False))
        if torch.empty(0).device.type not in {"cpu", device.type}:
            modes.enter_context(device)
        yield


@contextmanager
def generators_put_back(device: torch.device) -> Iterator[None]:
    """Gives torch's generators (CPU and device), Python's and NumPy's their state back."""
    put_back: list[Callable[[], None]] = [partial(torch.set_rng_state, torch.get_rng_state())]
    if device.type in ("cuda", "xpu"):
        module = torch.get_device_module(device)
        put_back.append(partial(module.set_rng_state, module.get_rng_state(device), device))
    elif device.type == "mps":
        put_back.append(partial(torch.mps.set_rng_state, torch.mps.get_rng_state()))
    put_back.append(partial(random.setstate, random.getstate()))
    if numpy := sys.modules.get("numpy"):
        put_back.append(partial(numpy.random.set_state, numpy.random.get_state()))
    try:
        yield
    finally:
        for put in put_back:
            put()


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Both, the generators on the main thread alone.

    Everybody's numbers come from the same generators: going back on another thread would make the
    main one, a training loop say, draw its numbers a second time.
    """
    alone = threading.current_thread() is threading.main_thread()
    put_back = generators_put_back(device) if alone else nullcontext()
    with torch_as_it_starts(device), put_back:
        yield
