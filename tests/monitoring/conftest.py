"""A small network that has what makes watching hard, and loops that train it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Small(nn.Module):
    """Convolution, BatchNorm, one ReLU (in place) for two places, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.conv1(x)))
        x = self.relu(self.conv2(x))
        return self.fc(self.drop(x.mean((2, 3))))


@pytest.fixture
def small() -> Small:
    torch.manual_seed(0)
    return Small()


def batches(count: int, size: int = 4, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, 3, 8, 8, generator=generator),
            torch.randint(0, 5, (size,), generator=generator),
        )
        for _ in range(count)
    ]


def train(
    model: nn.Module,
    data: list[tuple[Tensor, Tensor]],
    after: Callable[..., Any] | None = None,
    before: Callable[[int], Any] | None = None,
    lr: float = 0.05,
) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for number, (x, y) in enumerate(data, 1):
        optimizer.zero_grad()
        if before is not None:
            before(number)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if after is not None:
            after(loss=loss)
    return optimizer
