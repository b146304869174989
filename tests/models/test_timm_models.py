"""timm's models by name, fed and preprocessed as timm states it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from hookviz.errors import ModelError, WeightsError
from hookviz.images import Preprocessing
from hookviz.models import feed, load_model, predictions

timm = pytest.importorskip("timm", reason="timm is not installed (extra timm)")


@pytest.mark.parametrize(
    "name", ["resnet10t", "vit_tiny_patch16_224", "lcnet_050", "tf_efficientnet_lite0"]
)
def test_the_preprocessing_gives_timms_own_numbers(name: str) -> None:
    model = load_model(f"timm:{name}", weights=None, device="cpu")
    assert model.name == f"timm:{name}"
    assert "UNTRAINED" in model.note
    config = timm.data.resolve_model_data_config(model.module)
    theirs = timm.data.create_transform(**config, is_training=False)
    image = Image.effect_mandelbrot((300, 260), (-2, -1, 1, 1), 50).convert("RGB")
    assert torch.equal(model.preprocess(image), theirs(image))
    args, kwargs = feed(model, model.preprocess(image))
    with torch.no_grad():
        assert predictions(model, model.module(*args, **kwargs)).items


@pytest.mark.parametrize(
    ("config", "resize", "crop"),
    [
        ({"input_size": (3, 224, 224), "crop_pct": 0.875}, 256, (224, 224)),
        (
            {"input_size": (3, 384, 384), "crop_pct": 1.0, "crop_mode": "squash"},
            (384, 384),
            (384, 384),
        ),
        ({"input_size": (3, 192, 256), "crop_pct": 1.0}, (192, 256), (192, 256)),
    ],
)
def test_sizes_and_crop_modes(config: Any, resize: list[int], crop: list[int]) -> None:
    common = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "interpolation": "bicubic"}
    steps = Preprocessing.from_transforms({**common, **config})
    assert (steps.resize, steps.crop) == (resize, crop)


def test_a_checkpoint_with_its_number_of_classes(tmp_path: Path) -> None:
    made = timm.create_model("resnet10t", num_classes=6)
    torch.save({"state_dict_ema": made.state_dict(), "epoch": 2}, tmp_path / "best.pth.tar")
    model = load_model("timm:resnet10t", weights=tmp_path / "best.pth.tar", device="cpu")
    assert model.report.classes == 6
    assert model.module.num_classes == 6
    assert torch.equal(model.module.fc.weight, made.fc.weight)


def test_an_unknown_name_offers_the_closest() -> None:
    with pytest.raises(ModelError, match=r"has no model 'resnet50x'.*Did you mean"):
        load_model("timm:resnet50x")


def test_offline_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hookviz.models._timm._cached", lambda config: False)
    monkeypatch.setattr("hookviz.models._timm.reachable", lambda url: False)
    with pytest.raises(WeightsError) as caught:
        load_model("timm:resnet10t")
    assert "cannot be reached" in str(caught.value)
    assert "weights=None" in str(caught.value)


def test_a_mirror_of_the_hub_is_asked_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("hookviz.models._timm._cached", lambda config: False)
    with pytest.raises(WeightsError, match=r"http://127\.0\.0\.1:9 cannot be reached"):
        load_model("timm:resnet10t")


def test_other_weights_are_part_of_the_name() -> None:
    with pytest.raises(WeightsError, match=r"takes weights='DEFAULT', None or a path"):
        load_model("timm:resnet10t", weights="IMAGENET1K_V1")


def test_without_timm_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModelError, match=r"pip install 'hookviz\[timm\]'"):
        load_model("timm:resnet18")
