"""Runs that need no model: facts and activations made by hand."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from PIL import Image

from hookviz.activation import Activation
from hookviz.export import RunFacts


@pytest.fixture
def record() -> Callable[..., Activation]:
    """Makes an activation."""

    def make(
        layer: str = "features.2", tensor: torch.Tensor | None = None, **changes
    ) -> Activation:
        if tensor is None:
            tensor = torch.arange(2 * 4 * 5, dtype=torch.float32).reshape(1, 2, 4, 5)
        values = {
            "call": 1,
            "calls": 1,
            "run": 1,
            "order": 3,
            "kind": "output",
            "leaf": "",
            "module_type": "Conv2d",
        } | changes
        return Activation(layer=layer, tensor=tensor, **values)

    return make


@pytest.fixture
def make_facts() -> Callable[..., RunFacts]:
    """Makes the facts of a run."""

    def make(**changes) -> RunFacts:
        picture = Image.radial_gradient("L").resize((40, 30)).convert("RGB")
        values = {
            "model": "vgg16",
            "weights": "IMAGENET1K_V1",
            "weights_hash": "0123456789abcdef",
            "trained": True,
            "image_name": "dog.jpg",
            "image_sha256": "ab" * 32,
            "preprocessing": "resized to 256 (bilinear), centre crop 224×224",
            "device": "cpu",
            "dtype": "float32",
            "torch_version": "2.14.1",
            "hookviz_version": "0.1.0",
            "started": datetime(2026, 11, 4, 14, 22, 33, tzinfo=UTC),
            "input_image": picture,
        } | changes
        return RunFacts(**values)

    return make


@pytest.fixture
def facts(make_facts: Callable[..., RunFacts]) -> RunFacts:
    return make_facts()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.name != "posix" or os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    command = [mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a small file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)
