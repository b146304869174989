"""A run depends on none of torch's switches, and moves none of them."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hookviz


class Net(nn.Module):
    """An in-place ReLU after a convolution, a BatchNorm, and a tensor made in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = self.relu(self.norm(self.conv(x)))
        return self.fc(maps.mean((2, 3)) + torch.ones(4, dtype=maps.dtype))


@pytest.fixture(scope="module")
def model() -> hookviz.LoadedModel:
    torch.manual_seed(0)
    return hookviz.load_model(Net(), device="cpu")


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def switches() -> tuple[Any, ...]:
    return (
        torch.empty(0).device,  # torch 2.6 forgets get_default_device() after None
        torch.get_default_dtype(),
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(),
    )


def random_state() -> tuple[Any, ...]:
    numpy = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), numpy[1].tolist(), numpy[2]


SWITCHED: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "device meta": lambda: torch.device("meta"),
    "default device meta": lambda: default_device("meta"),
    "float64": lambda: default_dtype(torch.float64),
    "float16": lambda: default_dtype(torch.float16),
    "inference mode": torch.inference_mode,
    "gradients off": lambda: torch.set_grad_enabled(False),
    "gradients on": torch.enable_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "deterministic": deterministic,
}


@pytest.mark.parametrize("switch", SWITCHED)
def test_a_run_its_figures_files_and_their_redrawing_are_the_same_under_every_switch(
    switch: str, model: hookviz.LoadedModel, tmp_path: Path
) -> None:
    image = hookviz.sample_image()
    plain = hookviz.feature_maps(model, image, ["conv", "fc"])
    page = plain.drawing("conv").pixels()
    with SWITCHED[switch]():
        before, drawn = switches(), random_state()
        run = hookviz.feature_maps(model, image, ["conv", "fc"])
        assert np.array_equal(run.drawing("conv").pixels(), page)
        result = run.export(tmp_path, what={"grids", "channels", "values", "contact", "input"})
        pngs = [path for path in result.files if path.suffix == ".png"]
        assert [hookviz.reproduce(png, model=model).differences for png in pngs] == [()] * len(pngs)
        assert switches() == before
        assert random_state() == drawn
    assert result.notes == plain.export(tmp_path, what={"channels"}).notes
    for there, here in zip(plain.activations, run.activations, strict=True):
        assert torch.equal(there.tensor, here.tensor)
        assert there.tensor.dtype == here.tensor.dtype
        assert not here.tensor.is_inference()
        assert not here.tensor.requires_grad
    assert not run.output.is_inference()
    after = hookviz.feature_maps(model, image, ["conv"])
    assert np.array_equal(after.drawing("conv").pixels(), page)


class Random(nn.Module):
    """Draws numbers from each generator in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x) * (torch.rand(()) + random.random() + np.random.rand())  # noqa: S311


def test_the_random_state_is_put_back() -> None:
    model = hookviz.load_model(Random(), device="cpu")
    before = random_state()
    hookviz.feature_maps(model, hookviz.sample_image(), "conv")
    assert random_state() == before
    hookviz.feature_maps(model, hookviz.sample_image(), "conv", stop_early=True)
    assert random_state() == before


def test_another_threads_numbers_are_not_drawn_twice() -> None:
    # The application runs models on a thread, beside a training loop on the main one.
    drawn: list[float] = []

    class Meanwhile(nn.Identity):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            begun.set()
            assert ended.wait(10)
            return x

    begun, ended = threading.Event(), threading.Event()
    model = hookviz.load_model(nn.Sequential(Meanwhile(), nn.Conv2d(3, 2, 3)), device="cpu")
    image = hookviz.sample_image()
    thread = threading.Thread(target=hookviz.feature_maps, args=(model, image, "1"))
    thread.start()
    assert begun.wait(10)
    drawn += torch.rand(3).tolist()
    ended.set()
    thread.join()
    drawn += torch.rand(3).tolist()
    assert len(set(drawn)) == 6
