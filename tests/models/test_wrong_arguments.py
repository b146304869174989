"""Whatever is passed by mistake, one sentence says what was found and what is legal."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.models as tv
from safetensors.torch import save_file
from torch import nn

from hookviz.errors import HookvizError, WeightsError
from hookviz.models import (
    choose_device,
    feed,
    is_local,
    list_models,
    list_weights,
    load_model,
    predictions,
)


class NoStateDict(nn.Module):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no state dict here")


class ListForAStateDict(nn.Module):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return [1, 2]


def linear() -> nn.Module:
    return nn.Linear(2, 2)


def state() -> Any:
    return linear().state_dict()


def cyclic() -> Any:
    content: dict[str, Any] = {"w": torch.ones(1)}
    content["itself"] = content
    return content


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "None": (lambda: load_model(None), "not NoneType"),
    "a number": (lambda: load_model(3), "not int"),
    "a class": (lambda: load_model(nn.Linear), "not type"),
    "a builder": (lambda: load_model(tv.resnet18), "not function"),
    "bytes": (lambda: load_model(b"resnet18"), "not bytes"),
    "a tensor": (lambda: load_model(torch.ones(2)), "not Tensor"),
    "a long name": (lambda: load_model("x" * 5000), r"Unknown model 'x{100}…'"),
    "a NUL": (lambda: load_model("a\0b"), "Unknown model"),
    "a NUL in a path": (lambda: load_model("a\0b.pth"), "cannot be read"),
    "the root": (lambda: load_model("/"), "Unknown model"),
    "a device as path": (lambda: load_model(linear(), "/dev/zero"), "device or pipe"),
    "a path of bytes": (lambda: load_model(linear(), b"a.pth"), "not bytes"),
    "weights: a number": (lambda: load_model(linear(), 3), "not int"),
    "weights: a list": (lambda: load_model(linear(), [torch.ones(2)]), "not list"),
    "weights: a file object": (lambda: load_model(linear(), io.BytesIO(b"x")), "not BytesIO"),
    "weights: a module": (lambda: load_model(linear(), linear()), "not Linear"),
    "weights: a LoadedModel": (lambda: load_model(linear(), load_model(linear())), "LoadedModel"),
    "weights: a tensor": (lambda: load_model("resnet18", torch.ones(2)), "'Tensor': legal are"),
    "weights: an array": (lambda: load_model("resnet18", np.ones(2)), "'ndarray': legal are"),
    "weights: a boolean": (lambda: load_model("resnet18", False), "'False': legal are"),
    "weights: an enum": (lambda: load_model("resnet18", tv.ResNet18_Weights), "legal are"),
    "weights: another's member": (
        lambda: load_model("resnet18", tv.VGG16_Weights.DEFAULT),
        "no weights 'VGG16_Weights.IMAGENET1K_V1'",
    ),
    "weights: empty": (lambda: load_model("resnet18", ""), "no weights ''"),
    "weights: an empty dict": (lambda: load_model("resnet18", {}), "no named weights"),
    "weights: numbers": (lambda: load_model("resnet18", {"a": 1}), "no named weights"),
    "weights: arrays": (lambda: load_model(linear(), {"weight": np.ones(2)}), "no named weights"),
    "weights: a dict in itself": (lambda: load_model("resnet18", cyclic()), "does not fit"),
    "weights: on meta": (
        lambda: load_model(linear(), nn.Linear(2, 2, device="meta").state_dict()),
        "0 tensors match",
    ),
    "timm: no name": (lambda: load_model("timm:"), "has no model ''"),
    "timm: no such tag": (lambda: load_model("timm:resnet18.nosuchtag"), "Did you mean"),
    "timm: a number": (lambda: load_model("timm:resnet18", 3), "not int"),
    "no state dict": (lambda: load_model(NoStateDict(), state()), "gives no state dict"),
    "a list for a state dict": (lambda: load_model(ListForAStateDict(), state()), "no state dict"),
    "meta, moved": (
        lambda: load_model(nn.Linear(2, 2, device="meta"), device="cpu"),
        "has no values yet",
    ),
    "meta, cast": (
        lambda: load_model(nn.Linear(2, 2, device="meta"), dtype="float16"),
        "has no values yet",
    ),
    "two devices, cast": (
        lambda: load_model(
            nn.Sequential(linear(), nn.Linear(2, 2, device="meta")), dtype="float16"
        ),
        "lies on several devices",
    ),
    "device: None": (lambda: load_model("resnet18", None, device=None), "Unknown device"),
    "device: True": (lambda: choose_device(True), "Unknown device"),
    "device: of to": (lambda: load_model(linear()).to("nope"), "Unknown device"),
    "dtype: a number": (lambda: load_model("resnet18", None, dtype=3), "Unknown dtype"),
    "dtype: numpy's": (lambda: load_model("resnet18", None, dtype=np.float16), "Unknown dtype"),
    "categories: a text": (
        lambda: load_model("resnet18", None, categories="cats"),
        "a list of class names",
    ),
    "categories: a number": (
        lambda: load_model("resnet18", None, categories=3),
        "a list of class names",
    ),
    "num_classes: a text": (lambda: load_model("resnet18", None, num_classes="7"), "whole number"),
    "num_classes: of flow": (lambda: load_model("raft_small", None, num_classes=7), "no classes"),
    "num_classes: of a module": (lambda: load_model(linear(), num_classes=7), "has its own"),
    "num_classes: bundled": (lambda: load_model("vgg16", "bundled", num_classes=7), "num_classes"),
    "list_weights": (lambda: list_weights(3), "not int"),
    "is_local": (lambda: is_local(None), "not NoneType"),
    "feed: a number": (lambda: feed(load_model(linear()), 3), "fed with a tensor"),
    "feed: on meta": (
        lambda: feed(load_model(linear()), torch.ones(1, 3, 8, 8, device="meta")),
        "on the meta device",
    ),
    "k": (lambda: predictions(load_model(linear()), torch.ones(1, 2), k=0), "not 0"),
}


@pytest.mark.parametrize("case", MODELS)
def test_a_mistake_is_one_sentence(case: str) -> None:
    if case.startswith("timm"):
        pytest.importorskip("timm", reason="timm is not installed (extra timm)")
    call, said = MODELS[case]
    with pytest.raises(HookvizError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_paths_that_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(state(), "a.pth")
    Path("dangling.pth").symlink_to("nowhere.pth")
    Path("loop.pth").symlink_to("loop.pth")
    Path("folder.pth").mkdir()
    with pytest.raises(WeightsError, match=r"file dangling\.pth\. In that folder: a\.pth"):
        load_model("dangling.pth")
    with pytest.raises(WeightsError, match="cannot be read"):
        load_model("loop.pth")
    with pytest.raises(WeightsError, match="is a folder"):
        load_model("folder.pth")


@pytest.mark.parametrize("kept", [7, 20, -3])
def test_cut_off_safetensors(tmp_path: Path, kept: int) -> None:
    save_file(state(), tmp_path / "a.safetensors")
    body = (tmp_path / "a.safetensors").read_bytes()
    (tmp_path / "a.safetensors").write_bytes(body[:kept])
    with pytest.raises(WeightsError, match="damaged or cut off"):
        load_model(linear(), weights=tmp_path / "a.safetensors")


def test_a_module_on_the_meta_device_gets_the_values_of_a_file(tmp_path: Path) -> None:
    torch.save({"model": state()}, tmp_path / "a.pth")
    meta = nn.Linear(2, 2, device="meta")
    assert load_model(meta).module is meta
    assert len(load_model(meta).weights_hash) == 12
    given = state()
    model = load_model(meta, weights=given)
    assert torch.equal(model.module.weight, given["weight"])
    assert model.module.weight.data_ptr() != given["weight"].data_ptr()
    assert meta.weight.is_meta
    assert load_model(meta, weights=tmp_path / "a.pth").device == torch.device("cpu")


def test_a_buffer_that_no_file_has_is_said() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.register_buffer("table", torch.ones(2), persistent=False)

    with torch.device("meta"):
        net = Net()
    with pytest.raises(HookvizError, match=r"no file has its table\. Build it on the CPU"):
        load_model(net, weights=Net().state_dict())


def test_a_module_that_gives_no_state_dict_is_used_as_it_is() -> None:
    for module in (NoStateDict(), ListForAStateDict()):
        model = load_model(module)
        assert model.module is module
        assert model.weights_hash == ""


def test_numbers_of_numpy_are_numbers() -> None:
    model = load_model("squeezenet1_1", None, num_classes=np.int64(7), device="cpu")
    assert model.module.classifier[1].out_channels == 7


@pytest.mark.parametrize(
    "output",
    [
        torch.ones(1, 2, device="meta"),
        torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
        {"out": 3},
        {"logits": "text"},
        object(),
        [],
        torch.ones(1, 0),
    ],
)
@pytest.mark.parametrize("task", ["classification", "segmentation", "detection", "optical_flow"])
def test_an_output_of_any_kind_ends_in_a_reason(output: Any, task: Any) -> None:
    from dataclasses import replace

    answer = predictions(replace(load_model(linear()), task=task), output)
    assert answer.reason or answer.items


def test_a_sparse_output_is_read() -> None:
    answer = predictions(load_model(linear()), torch.tensor([[0.0, 3.0]]).to_sparse())
    assert answer.items[0][0] == 1


def test_a_search_is_any_text() -> None:
    assert list_models("[") == []
    assert list_models(None) == list_models()
    assert os.sep not in "".join(list_models())


def test_faults_of_checkpoints_have_codes_for_programs(tmp_path: Path) -> None:
    """The app says another remedy than the arguments of Python."""
    torch.save(nn.Linear(2, 2), tmp_path / "whole.pth")
    torch.save(state(), tmp_path / "mine.pth")
    for call, code in (
        (lambda: load_model("resnet18", tmp_path / "whole.pth"), "not-plain-weights"),
        (lambda: load_model("resnet18", tmp_path / "mine.pth"), "weights-mismatch"),
        (lambda: load_model(tmp_path / "mine.pth"), "architecture-unknown"),
    ):
        with pytest.raises(HookvizError) as caught:
            call()
        assert caught.value.code == code
