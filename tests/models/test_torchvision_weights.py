"""torchvision's weights through hookviz give the module that torchvision's own builder gives."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.models as tv

from hookviz.errors import WeightsError
from hookviz.models import feed, load_model, predictions
from hookviz.models._torchvision import TorchvisionArchitecture

# One of each kind of builder that does something of its own with its weights.
KINDS = [
    "resnet18", "googlenet", "densenet121", "mnasnet0_5", "shufflenet_v2_x0_5", "regnet_y_400mf",
    "lraspp_mobilenet_v3_large", "ssdlite320_mobilenet_v3_large",
    "fasterrcnn_mobilenet_v3_large_320_fpn", "mc3_18", "raft_small", "quantized_mobilenet_v2",
    "quantized_resnet18",
]  # fmt: skip


def put_into_cache(
    name: str, member: Any, state: Any, cache: Path, as_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = as_file(state)
    file = f"{name.replace('_', '')}-{hashlib.sha256(body).hexdigest()[:8]}.pth"
    cache.mkdir(parents=True, exist_ok=True)
    (cache / file).write_bytes(body)
    monkeypatch.setattr(member.value, "url", f"http://127.0.0.1:9/models/{file}")


def raw(name: str, member: Any) -> Any:
    """The state dict of an untrained module such as the member's file holds."""
    arch = TorchvisionArchitecture(name)
    options: dict[str, Any] = {}
    quantized = name.startswith("quantized_")
    if quantized:
        options = {"quantize": True, "backend": member.meta["backend"]}
    if name == "googlenet":
        options = {"aux_logits": True, "init_weights": False}
    if name.startswith("lraspp"):
        options = {"num_classes": 21}
    if (
        "backend" in options
        and options["backend"] not in torch.backends.quantized.supported_engines
    ):
        pytest.skip(f"this machine has no {options['backend']}")
    try:
        return arch.build(**options).state_dict()
    except Exception as error:
        if quantized:
            pytest.skip(f"torch cannot quantize here: {error}")
        raise


@pytest.mark.filterwarnings("ignore")  # torchvision's quantized builders warn about themselves
@pytest.mark.parametrize("name", KINDS)
def test_the_module_is_torchvisions_own(
    name: str, torch_cache: Path, as_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = TorchvisionArchitecture(name).default
    put_into_cache(name, member, raw(name, member), torch_cache, as_file, monkeypatch)
    mine = load_model(name, device="cpu", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"quantize": True} if name.startswith("quantized") else {}
        theirs = tv.get_model(name, weights=member, **options).eval()
    assert mine.weights == member.name
    assert str(mine.module) == str(theirs)
    args, kwargs = feed(mine, torch.rand(1, 3, 128, 128))
    with torch.no_grad():
        ours, reference = mine.module(*args, **kwargs), theirs(*args, **kwargs)
    assert str(ours) == str(reference)
    answer = predictions(mine, ours)
    assert answer.items or answer.summary
    if answer.items:
        assert answer.items[0][1] in mine.categories


def test_a_file_with_the_right_hash_and_the_wrong_tensors_is_one_sentence(
    torch_cache: Path, as_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tv.resnet18(weights=None, num_classes=3).state_dict()
    member = tv.ResNet18_Weights.DEFAULT
    put_into_cache("resnet18", member, state, torch_cache, as_file, monkeypatch)
    with pytest.raises(WeightsError) as caught:
        load_model("resnet18", device="cpu")
    assert "do not fit 'resnet18'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_that_have_no_classifier_say_so(
    torch_cache: Path, as_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = tv.VGG16_Weights.IMAGENET1K_FEATURES
    with torch.device("meta"):
        state = tv.vgg16(weights=None).state_dict()
    zeros = {n: torch.zeros(1).expand(v.shape) for n, v in state.items()}
    put_into_cache("vgg16", member, zeros, torch_cache, as_file, monkeypatch)
    model = load_model("vgg16", weights="IMAGENET1K_FEATURES", device="cpu")
    assert "No classifier" in model.note
    assert predictions(model, torch.zeros(1, 1000)).reason == model.no_classifier


def test_untrained_models_are_the_same_each_time_and_say_so() -> None:
    torch.manual_seed(1)
    first = load_model("resnet18", weights=None, device="cpu")
    torch.manual_seed(2)
    second = load_model("resnet18", weights="none", device="cpu")
    assert first.weights_hash == second.weights_hash
    assert not first.trained
    assert first.weights == "none"
    assert first.note.startswith("UNTRAINED")
    assert first.categories == ()
    assert first.preprocess is not None


def test_num_classes_does_not_go_with_torchvisions_weights() -> None:
    with pytest.raises(Exception, match="num_classes goes with weights=None"):
        load_model("resnet18", weights="DEFAULT", num_classes=3)
    model = load_model("resnet18", weights=None, num_classes=3, device="cpu")
    assert model.module.fc.out_features == 3
