"""Small nets, small images, and what a survey says computed by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import hookviz
from hookviz.images import Preprocessing

SIZE = Preprocessing(crop=(24, 24), fit="squash", mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


class Net(nn.Module):
    """Maps, a ReLU called twice, a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 5, stride=2, padding=2)
        self.relu = nn.ReLU()
        self.more = nn.Conv2d(6, 5, 3)
        self.fc = nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.more(self.relu(self.conv(x))))
        return self.fc(x.mean((2, 3)))


def small_net() -> nn.Module:
    """The same weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net().eval()


@pytest.fixture(scope="session")
def net() -> hookviz.LoadedModel:
    return hookviz.load_model(small_net(), preprocess=SIZE)


def write_images(folder: Path, count: int, seed: int = 0) -> list[Path]:
    """Images of several sizes in two class folders."""
    random = np.random.default_rng(seed)
    paths = []
    for number in range(count):
        path = folder / ("even", "odd")[number % 2] / f"{seed}-{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        height, width = 12 + number % 5, 20 - number % 3
        pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((width * 2, height * 2)).save(path)
        paths.append(path)
    return paths


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_images(folder, 21)
    return folder


LAYERS = ["conv", "relu", "fc"]
Begin = Callable[..., hookviz.Survey]


@pytest.fixture
def begin(net: hookviz.LoadedModel) -> Begin:
    """Surveys with small batches and shards, in this process."""

    def survey(data: object, out: Path, **changes: object) -> hookviz.Survey:
        options = {"batch": 3, "shard": 6, "top": 4, "workers": 0, "keep": "pooled"} | changes
        model = options.pop("model", net)
        layers = options.pop("layers", LAYERS)
        return hookviz.survey(model, data, layers, out, **options)  # type: ignore[arg-type]

    return survey


def digest(folder: Path) -> str:
    """Over everything that a survey found: shards, summary, crops, images."""
    found = hashlib.sha256()
    names = sorted(folder.glob("shards/*")) + sorted(folder.glob("images-*"))
    for path in [*names, folder / "summary.safetensors", folder / "crops.safetensors"]:
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()
