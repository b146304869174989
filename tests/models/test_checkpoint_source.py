"""load_model("my.pth"): a file that says what it is loads, any other says what to write."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.models as tv
from safetensors.torch import save_file
from torch import nn

import hookviz
from hookviz.errors import HookvizError, ModelError, WeightsError
from hookviz.models import is_local, list_weights, load_model


@pytest.mark.parametrize("suffix", ["pth", "safetensors", "pth.tar"])
def test_an_architecture_is_found_by_names_and_shapes(tmp_path: Path, suffix: str) -> None:
    state = tv.resnet18(weights=None, num_classes=7).state_dict()
    path = tmp_path / f"mine.{suffix}"
    if suffix == "safetensors":
        save_file(state, path)
    else:
        torch.save({"state_dict": {f"module.{n}": v for n, v in state.items()}}, path)
    for given in (str(path), path)[: 1 + (suffix == "pth")]:
        model = load_model(given, device="cpu")
        assert (model.name, model.weights) == ("resnet18", f"file {path.name}")
        assert torch.equal(model.module.fc.weight, state["fc.weight"])
        assert model.report.classes == 7
        assert "has this architecture's names and shapes" in model.note


@pytest.mark.parametrize(
    "name", ["regnet_y_400mf", "lraspp_mobilenet_v3_large", "googlenet", "swin_t"]
)  # fmt: skip
def test_every_family_is_found(tmp_path: Path, name: str) -> None:
    module = load_model(name, weights=None, device="cpu").module
    torch.save(module.state_dict(), tmp_path / f"my_{name}.pth")
    model = load_model(tmp_path / f"my_{name}.pth", device="cpu")
    assert model.name == name
    assert all(torch.equal(v, model.module.state_dict()[n]) for n, v in module.state_dict().items())


def test_what_the_file_says_of_itself_comes_first(tmp_path: Path) -> None:
    state = tv.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None
    ).state_dict()
    torch.save({"model": state}, tmp_path / "a.pth")
    with pytest.raises(ModelError) as caught:  # two have the same names and shapes
        load_model(tmp_path / "a.pth")
    assert "'fasterrcnn_mobilenet_v3_large_320_fpn'" in str(caught.value)
    assert "'fasterrcnn_mobilenet_v3_large_fpn'" in str(caught.value)
    for place in (
        {"arch": "fasterrcnn_mobilenet_v3_large_320_fpn"},
        {"args": argparse.Namespace(model="fasterrcnn_mobilenet_v3_large_320_fpn")},
        {"hyper_parameters": {"model_name": "fasterrcnn_mobilenet_v3_large_320_fpn"}},
    ):
        torch.save({"model": state, **place}, tmp_path / "a.pth")
        model = load_model(tmp_path / "a.pth", device="cpu")
        assert model.name == "fasterrcnn_mobilenet_v3_large_320_fpn"
        assert "names its architecture" in model.note


def test_a_timm_checkpoint_that_names_its_model(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm", reason="timm is not installed (extra timm)")
    made = timm.create_model("resnet10t", num_classes=3)
    content = {"arch": "resnet10t", "state_dict": made.state_dict(), "version": 2}
    torch.save(content, tmp_path / "model_best.pth.tar")
    model = load_model(tmp_path / "model_best.pth.tar", device="cpu")
    assert model.name == "timm:resnet10t"
    assert torch.equal(model.module.fc.weight, made.fc.weight)


@pytest.mark.parametrize(
    "content",
    [
        nn.Linear(2, 2).state_dict(),
        {"arch": "resnet18", "state_dict": nn.Linear(2, 2).state_dict()},
        {"epoch": 3},
        [1, 2],
    ],
)
def test_a_file_that_does_not_say_is_told_what_to_write(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "my.pth")
    with pytest.raises(ModelError) as caught:
        load_model(str(tmp_path / "my.pth"))
    text = str(caught.value)
    assert "my.pth does not say which architecture its weights are for" in text
    assert f"load_model('resnet18', weights={str(tmp_path / 'my.pth')!r})" in text
    assert "load_model(module, weights=" in text
    assert "\n" not in text


def test_without_timm_a_name_of_timms_is_just_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    content = {"arch": "resnet10t", "state_dict": nn.Linear(2, 2).state_dict()}
    torch.save(content, tmp_path / "my.pth")
    with pytest.raises(ModelError, match="does not say which architecture"):
        load_model(tmp_path / "my.pth")


def test_the_sentences_advice_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = nn.Linear(2, 2)
    torch.save(module.state_dict(), "my.pth")
    with pytest.raises(ModelError) as caught:
        load_model("my.pth")
    written = str(caught.value).rpartition("pass the module: ")[2].removesuffix(".")
    assert written == "load_model(module, weights='my.pth')"
    assert torch.equal(load_model(nn.Linear(2, 2), weights="my.pth").module.weight, module.weight)


def test_a_missing_file_offers_the_closest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({}, "resnet18_best.pth")
    (tmp_path / "resnet18_best.txt").write_text("notes")
    for given in ("resnet18_bst.pth", "./resnet18_bst.pth", Path("resnet18_bst.pth")):
        with pytest.raises(WeightsError, match=r"no weights file.*In that folder: \S+best\.pth\."):
            load_model(given)
    with pytest.raises(WeightsError, match="There is no weights file"):
        load_model(nn.Linear(2, 2), weights="nowhere/my.pth")


def test_home_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    torch.save(tv.squeezenet1_1(weights=None).state_dict(), tmp_path / "net.pth")
    assert load_model("~/net.pth", device="cpu").name == "squeezenet1_1"
    assert load_model("squeezenet1_1", weights="~/net.pth").weights == "file net.pth"
    with pytest.raises(WeightsError, match="cannot be used"):
        load_model("~no-such-user-here/net.pth")


def test_a_folder_and_an_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="is a folder"):
        load_model(tmp_path)
    locked = tmp_path / "locked.pth"
    torch.save({}, locked)
    locked.chmod(0)
    if not os.access(locked, os.R_OK):
        with pytest.raises(WeightsError, match="cannot be read"):
            load_model(locked)


def test_a_file_beside_other_weights(tmp_path: Path) -> None:
    torch.save(tv.squeezenet1_1(weights=None).state_dict(), tmp_path / "net.pth")
    for weights in (None, "DEFAULT", {}, tmp_path / "other.pth"):
        with pytest.raises(ModelError, match="is a file of weights and takes no others"):
            load_model(tmp_path / "net.pth", weights=weights)


def test_the_app_and_the_lists_take_a_path(tmp_path: Path) -> None:
    path = tmp_path / "net.pth"
    torch.save(tv.squeezenet1_1(weights=None).state_dict(), path)
    assert is_local(str(path))
    assert [info.name for info in list_weights(str(path))] == ["auto"]
    app = hookviz.explore(str(path))
    try:
        assert app.model.name == "squeezenet1_1"
        assert app.choosing.weights(str(path))[0][0] == "auto"
    finally:
        app.close()


def test_a_name_is_not_taken_for_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "resnet18").mkdir()
    assert load_model("resnet18", weights=None, device="cpu").name == "resnet18"


def test_timm_in_the_app_and_the_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("timm", reason="timm is not installed (extra timm)")
    monkeypatch.setattr("hookviz.models._timm._cached", lambda config: False)
    assert not is_local("timm:resnet10t")
    assert [info.name for info in list_weights("timm:resnet10t")] == ["DEFAULT"]
    monkeypatch.setattr("hookviz.models._timm.reachable", lambda url: False)
    app = hookviz.explore("timm:resnet10t")  # loaded afterwards, as any model with a download
    try:
        assert app.choosing.weights("timm:resnet10t")[1][0] == "DEFAULT"
        assert app.choosing.names("timm:resnet10t")[0] == "timm:resnet10t"
        assert "timm:resnet10t" in app.choosing.names("timm:resnet 10")
        app.choosing.load("timm:resnet10t", "none")
    finally:
        app.close()


@pytest.mark.parametrize("name", ["timm:no_such_model", "resnet81", "nothing"])
def test_unknown_names_are_the_same_sentence_everywhere(name: str) -> None:
    sentences = set()
    for ask in (load_model, list_weights, is_local):
        with pytest.raises(HookvizError) as caught:
            ask(name)
        sentences.add(str(caught.value))
    assert len(sentences) == 1
