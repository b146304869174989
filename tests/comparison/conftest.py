"""Small models, and the runs of them that the tests compare."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

import hookviz
from hookviz import LoadedModel, Picture, Preprocessing, Run


class Net(nn.Module):
    """A reused layer, an output of several tensors, a layer that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.relu = nn.ReLU()
        self.down = nn.Conv2d(8, 8, 3, stride=2)
        self.idle = nn.Linear(2, 2)
        self.head = nn.Linear(8, 5)
        for conv in (self.conv, self.down):
            nn.init.constant_(conv.bias, 1.0)  # so that no channel is dead behind the ReLU

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.relu(self.down(self.relu(self.conv(x))))
        logits = self.head(x.mean((2, 3)))
        return {"maps": x, "logits": logits}


@pytest.fixture(scope="session")
def cat() -> Picture:
    return hookviz.sample_image("chelsea.png")


@pytest.fixture(scope="session")
def cup() -> Picture:
    return hookviz.sample_image("coffee.png")


@pytest.fixture
def model() -> LoadedModel:
    torch.manual_seed(0)
    preprocess = Preprocessing(resize=(40, 40), crop=(32, 32), fit="crop")
    return hookviz.load_model(Net(), preprocess=preprocess, device="cpu")


@pytest.fixture
def changed() -> Callable[..., LoadedModel]:
    """A copy of a model with one weight of a layer changed."""

    def make(model: LoadedModel, layer: str, by: float = 1e-3) -> LoadedModel:
        module = copy.deepcopy(model.module)
        module.get_submodule(layer).weight.data.view(-1)[-1] += by
        return replace(model, module=module)

    return make


@pytest.fixture
def run() -> Callable[..., Run]:
    """A run of every layer, the model itself included."""

    def make(model: LoadedModel, image: Picture) -> Run:
        return hookviz.feature_maps(model, image, lambda *_: True)

    return make
