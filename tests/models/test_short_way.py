"""A model's name passes few files on its way through load_model, and no source but its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import hookviz
from hookviz.models import load_model

ROOT = Path(hookviz.__file__).parent


def entered(call: Callable[[], Any]) -> set[str]:
    """Files of hookviz whose code runs during a call."""
    found: set[str] = set()

    def see(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and ROOT in path.parents:
            found.add(path.relative_to(ROOT).as_posix())

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize(
    ("name", "weights"),
    [("resnet18", None), ("vit_b_32", None), ("vgg16", "bundled"), ("vgg16", "auto")],
)
def test_a_name_of_torchvisions_passes_six_files(
    name: str, weights: str | None, torch_cache: Path
) -> None:
    files = entered(lambda: load_model(name, weights, device="cpu"))
    assert len(files) <= 6
    assert {f for f in files if "timm" in f or "own_module" in f or "checkpoint_file" in f} == set()


def test_a_name_with_a_download_passes_six_files(served_squeezenet: Any, torch_cache: Path) -> None:
    files = entered(lambda: load_model(served_squeezenet.name, device="cpu", progress=False))
    assert len(files) <= 6


def test_a_name_of_timms_passes_six_files() -> None:
    pytest.importorskip("timm", reason="timm is not installed (extra timm)")
    files = entered(lambda: load_model("timm:resnet10t", None, device="cpu"))
    assert len(files) <= 6
