"""torch's global settings and the user's random numbers neither matter to a load nor change."""

from __future__ import annotations

import contextlib
import random
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.models as tv
from torch import nn

from hookviz.models import expected_input, feed, load_model, predictions


def generators() -> tuple[Any, ...]:
    """The state of every generator of the user's."""
    found: tuple[Any, ...] = (
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
    )
    if torch.cuda.is_available():
        found += tuple(state.tolist() for state in torch.cuda.get_rng_state_all())
    if torch.backends.mps.is_available():
        found += (torch.mps.get_rng_state().tolist(),)
    return found


FAMILIES = [
    "resnet18", "swin_t", "googlenet", "mnasnet0_5", "regnet_y_400mf", "squeezenet1_1",
    "mobilenet_v3_small", "s3d", "raft_small", "ssdlite320_mobilenet_v3_large",
    "quantized_resnet18",
]  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_an_untrained_model_moves_no_generator_and_is_the_same_each_time(name: str) -> None:
    torch.manual_seed(1)
    before = generators()
    first = load_model(name, weights=None, device="cpu")
    assert generators() == before
    torch.manual_seed(2)
    torch.rand(3)
    assert load_model(name, weights=None, device="cpu").weights_hash == first.weights_hash
    assert all(torch.isfinite(p).all() for p in first.module.parameters())


def test_untrained_weights_are_those_of_seed_zero() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = tv.resnet18(weights=None).state_dict()
    mine = load_model("resnet18", weights=None, device="cpu").module.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_a_timm_model_moves_no_generator() -> None:
    pytest.importorskip("timm", reason="timm is not installed (extra timm)")
    before = generators()
    first = load_model("timm:vit_tiny_patch16_224", weights=None, device="cpu")
    assert generators() == before
    again = load_model("timm:vit_tiny_patch16_224", weights=None, device="cpu")
    assert first.weights_hash == again.weights_hash


@pytest.mark.cuda
def test_cudas_generator_stays(tmp_path: Path) -> None:
    torch.cuda.manual_seed_all(5)
    torch.rand(3, device="cuda")
    before = generators()
    model = load_model("resnet18", weights=None, device="cuda")
    torch.save(model.module.state_dict(), tmp_path / "my.pth")
    load_model("resnet18", weights=tmp_path / "my.pth", device="cuda")
    assert generators() == before
    with torch.device("cuda"):
        assert load_model("resnet18", None, device="cpu").weights_hash == model.weights_hash


def test_another_thread_draws_its_own_numbers_meanwhile() -> None:
    torch.manual_seed(3)
    expected = [torch.rand(1).item() for _ in range(2000)]
    done = threading.Event()

    def build() -> None:
        while not done.is_set():
            load_model("squeezenet1_1", weights=None, device="cpu")

    worker = threading.Thread(target=build)
    torch.manual_seed(3)
    worker.start()
    try:
        drawn = [torch.rand(1).item() for _ in range(2000)]
    finally:
        done.set()
        worker.join()
    assert drawn == expected


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SETTINGS: dict[str, Any] = {
    "meta as default device": lambda: torch.device("meta"),
    "inference mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "float64 as default dtype": lambda: default_dtype(torch.float64),
    "float16 as default dtype": lambda: default_dtype(torch.float16),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("way", ["untrained", "a checkpoint", "bundled", "a module", "torchvision"])
def test_global_settings_do_not_matter(
    setting: str, way: str, served_squeezenet: Any, torch_cache: Path
) -> None:
    state = tv.squeezenet1_1(weights=None).state_dict()
    module = tv.squeezenet1_1(weights=None).eval()

    def load() -> Any:
        if way == "untrained":
            return load_model("squeezenet1_1", weights=None, device="cpu")
        if way == "a checkpoint":
            return load_model("squeezenet1_1", weights=state, device="cpu")
        if way == "a module":
            return load_model(module, weights=state)
        if way == "bundled":
            return load_model("vgg16", weights="bundled", device="cpu")
        return load_model("squeezenet1_1", device="cpu", progress=False)

    expected = load()
    with SETTINGS[setting]():
        default, grad = torch.get_default_dtype(), torch.is_grad_enabled()
        found = load()
        assert torch.get_default_dtype() == default
        assert torch.is_grad_enabled() == grad
    assert found.weights_hash == expected.weights_hash
    assert found.device == torch.device("cpu")
    assert found.dtype == torch.float32
    assert not any(p.is_inference() for p in found.module.parameters())
    args, kwargs = feed(found, torch.rand(1, 3, 64, 64))
    assert found.module(*args, **kwargs).requires_grad


def test_a_module_made_in_inference_mode_can_be_copied() -> None:
    with torch.inference_mode():
        module = nn.Linear(2, 2)
    state = nn.Linear(2, 2).state_dict()
    model = load_model(module, weights=state)
    assert torch.equal(model.module.weight, state["weight"])
    assert len(load_model(module).weights_hash) == 12


def test_a_state_dict_of_the_users_is_not_shared() -> None:
    state = tv.squeezenet1_1(weights=None).state_dict()
    model = load_model("squeezenet1_1", weights=state, device="cpu")
    mine = {v.data_ptr() for v in model.module.state_dict().values()}
    assert not mine & {v.data_ptr() for v in state.values()}


def test_no_filter_of_warnings_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """catch_warnings changes the filters of all threads: nothing may call it."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the filters were touched")

    state = tv.squeezenet1_1(weights=None).state_dict()
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    for call in ("simplefilter", "filterwarnings", "resetwarnings"):
        monkeypatch.setattr(warnings, call, refuse)
    load_model("googlenet", weights=None, device="cpu")
    load_model("squeezenet1_1", weights=tmp_path / "old.pth")
    load_model(nn.Linear(2, 2), weights=nn.Linear(2, 2).state_dict())
    load_model("vgg16", weights="bundled", device="auto")


def test_torchvisions_enum_is_never_touched(served_squeezenet: Any, torch_cache: Path) -> None:
    """Another thread that asks the enum meanwhile gets torchvision's own."""
    member = tv.SqueezeNet1_1_Weights.DEFAULT
    seen: list[bool] = []

    def cancelled() -> bool:
        seen.append("get_state_dict" in vars(member))
        return False

    load_model("squeezenet1_1", device="cpu", progress=False, cancelled=cancelled)
    assert seen
    assert not any(seen)
    assert "get_state_dict" not in vars(member)


TASKS = {
    "squeezenet1_1": 64, "lraspp_mobilenet_v3_large": 64, "ssdlite320_mobilenet_v3_large": 64,
    "raft_small": 128, "mc3_18": 32,
}  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", TASKS)
def test_feeding_and_predicting_are_the_same_under_every_setting(name: str, setting: str) -> None:
    model = load_model(name, weights=None, device="cpu")
    image = torch.rand(1, 3, TASKS[name], TASKS[name])
    args, kwargs = feed(model, image)
    with torch.no_grad():
        output = model.module(*args, **kwargs)
    expected = str(predictions(model, output))
    with SETTINGS[setting]():
        again, _ = feed(model, image)
        assert str(predictions(model, output)) == expected
        hints = expected_input(model)
    assert hints == expected_input(model)
    for one, other in zip(args, again, strict=True):
        pairs = zip(one, other, strict=True) if isinstance(one, list) else [(one, other)]
        assert all(torch.equal(a, b) for a, b in pairs)
