"""What every room's tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# CI tries the same examples every time, so that a change is judged by what it changed; at a desk
# every run tries new ones. No test asserts a time, and a busy machine is none of its business.
settings.register_profile(
    "hookviz",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("hookviz")

# Workers side by side (pytest-xdist) share the cores; torch, which is imported after this, would
# otherwise start a thread a core in each of them.
workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
if workers > 1:
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))

ROOT = Path(__file__).resolve().parent.parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The browser's journeys are one group: one worker drives them, one after the other.

    They alone have a second try, as in Playwright's own template for CI: four programs of other
    people (Chromium, JupyterLab, its kernel, ipywidgets) work together there on a machine that may
    be busy. What failed is printed even so, and what fails twice has failed.
    """
    for item in items:
        if item.get_closest_marker("browser") is not None:
            item.add_marker(pytest.mark.xdist_group("browser"))
            item.add_marker(pytest.mark.flaky(reruns=1))


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
