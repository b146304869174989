"""What every room's tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# CI tries the same examples every time, so that a change is judged by what it changed; at a desk
# every run tries new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

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
