"""What every room's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout's folder."""
    return ROOT


@pytest.fixture(autouse=True)
def _cuda_only_where_there_is_one(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("cuda") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
