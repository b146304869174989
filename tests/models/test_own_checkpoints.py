"""Checkpoints of one's own: every wrapping, prefix and number of classes; nothing half-loaded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.models as tv
from safetensors.torch import save_file
from torch import Tensor, nn

from hookviz.errors import WeightsError
from hookviz.models import load_model

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def state() -> State:
    """resnet18 with 7 classes, all values known."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        return dict(tv.resnet18(weights=None, num_classes=7).state_dict())


def same(module: nn.Module, state: State) -> bool:
    mine = module.state_dict()
    return set(mine) == set(state) and all(
        torch.equal(mine[n].float(), state[n].float()) for n in mine
    )


def under(prefix: str, state: State) -> State:
    return {prefix + name: value for name, value in state.items()}


def lightning(state: State) -> Any:
    return {
        "epoch": 3,
        "pytorch-lightning_version": "2.4.0",
        "state_dict": {**under("model.", state), "criterion.weight": torch.ones(7)},
        "optimizer_states": [{"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": []}],
        "hyper_parameters": {"lr": 0.1, "class_names": list("abcdefg")},
        "callbacks": {},
    }


WRAPPINGS: dict[str, Callable[[State], Any]] = {
    "bare": dict,
    "OrderedDict": OrderedDict,
    "parameters": lambda s: {
        n: nn.Parameter(v) if v.is_floating_point() else v for n, v in s.items()
    },
    "state_dict": lambda s: {"state_dict": s, "epoch": 9, "best_acc": 0.7},
    "model_state_dict": lambda s: {"model_state_dict": s, "loss": torch.tensor(0.1)},
    "model": lambda s: {"model": s, "scaler": {"scale": 2.0}},
    "net": lambda s: {"net": s, "acc": 93.2},
    "network": lambda s: {"network": s},
    "ema": lambda s: {"ema": s},
    "deep": lambda s: {"checkpoint": {"payload": {"weights": s}}},
    "unheard of": lambda s: {"my_best_thing": s},
    "module.": lambda s: under("module.", s),
    "DDP in state_dict": lambda s: {"state_dict": under("module.", s)},
    "model.": lambda s: under("model.", s),
    "_orig_mod.": lambda s: under("_orig_mod.", s),
    "module._orig_mod.": lambda s: under("module._orig_mod.", s),
    "model._orig_mod. inside": lambda s: {
        (n.replace("layer1.", "layer1._orig_mod.")): v for n, v in s.items()
    },
    "backbone.model.": lambda s: under("backbone.model.", s),
    "lightning": lightning,
    "with optimizer": lambda s: {
        "model": s,
        "optimizer": {"state": {0: {"momentum_buffer": torch.zeros(64, 3, 7, 7)}}, "lr": 0.1},
    },
    "ema beside model": lambda s: {
        "ema": {n: v + 1 if v.is_floating_point() else v for n, v in s.items()},
        "model": s,
    },
    "thop's leftovers": lambda s: {**s, "layer1.total_ops": torch.zeros(1)},
    "values that are no tensors": lambda s: {**s, "classes": 7, "date": "today", "none": None},
    "without num_batches_tracked": lambda s: {n: v for n, v in s.items() if "num_batches" not in n},
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_every_wrapping_is_unwrapped(tmp_path: Path, state: State, wrapping: str) -> None:
    path = tmp_path / "my.pth"
    torch.save(WRAPPINGS[wrapping](state), path)
    model = load_model("resnet18", weights=str(path), device="cpu")
    assert same(model.module, state) or wrapping == "without num_batches_tracked"
    assert torch.equal(model.module.fc.weight, state["fc.weight"])
    assert model.weights == "file my.pth"
    assert model.trained
    assert model.module.fc.out_features == 7
    assert model.report is not None
    assert model.report.faults == ()
    assert model.report.classes == 7
    assert not model.module.training


@pytest.mark.parametrize("suffix", ["safetensors", "pth", "pt", "ckpt"])
def test_every_format(tmp_path: Path, state: State, suffix: str) -> None:
    path = tmp_path / f"my.{suffix}"
    (save_file if suffix == "safetensors" else torch.save)(under("module.", state), path)
    assert same(load_model("resnet18", weights=path, device="cpu").module, state)


def test_a_state_dict_itself(state: State) -> None:
    model = load_model("resnet18", weights=state, device="cpu")
    assert same(model.module, state)
    assert model.weights == "state dict"


def test_the_other_weights_of_a_file_are_told(tmp_path: Path, state: State) -> None:
    torch.save({"model": state, "ema": state}, tmp_path / "my.pth")
    report = load_model("resnet18", weights=tmp_path / "my.pth", device="cpu").report
    assert report.wrapping == "model"
    assert "the file also holds ema" in report.table()


def test_lightnings_own_is_found_and_the_rest_reported(tmp_path: Path, state: State) -> None:
    torch.save(lightning(state), tmp_path / "my.ckpt")
    model = load_model("resnet18", weights=tmp_path / "my.ckpt", device="cpu")
    table = model.report.table()
    assert "state_dict" in table
    assert "model. (taken off)" in table
    assert "criterion.weight" in table
    assert model.categories == tuple("abcdefg")


@pytest.mark.parametrize(
    ("extra", "names"),
    [
        ({"classes": ["a", "b", "c", "d", "e", "f", "g"]}, tuple("abcdefg")),
        (
            {"class_to_idx": {"b": 1, "a": 0, **{c: i for i, c in enumerate("cdefg", 2)}}},
            tuple("abcdefg"),
        ),
        ({"idx_to_class": dict(enumerate("gfedcba"))}, tuple("gfedcba")),
        ({"classes": ["too", "few"]}, ()),
        ({"classes": 7}, ()),
    ],
)
def test_class_names_in_the_file(state: State, extra: Any, names: tuple[str, ...]) -> None:
    model = load_model("resnet18", weights={"state_dict": state, **extra}, device="cpu")
    assert model.categories == names


def test_a_thousand_classes_are_assumed_to_be_imagenets() -> None:
    model = load_model("resnet18", weights=tv.resnet18(weights=None).state_dict(), device="cpu")
    assert model.categories[281] == "tabby"
    assert "assumed" in model.note


# --- another number of classes, every family ----------------------------------------------------

FAMILIES = {
    "alexnet": {}, "convnext_tiny": {}, "densenet121": {}, "efficientnet_b0": {},
    "efficientnet_v2_s": {}, "maxvit_t": {}, "mnasnet0_5": {}, "mobilenet_v2": {},
    "mobilenet_v3_small": {}, "regnet_y_400mf": {}, "resnet34": {}, "resnext50_32x4d": {},
    "shufflenet_v2_x0_5": {}, "squeezenet1_0": {}, "swin_t": {}, "swin_v2_t": {}, "vgg11_bn": {},
    "vit_b_32": {},
    "googlenet": {"aux_logits": True, "init_weights": False},
    "inception_v3": {"aux_logits": True, "init_weights": False},
    "quantized_resnet18": {}, "quantized_mobilenet_v2": {},
    "fcn_resnet50": {"aux_loss": True}, "deeplabv3_mobilenet_v3_large": {},
    "lraspp_mobilenet_v3_large": {},
    "fasterrcnn_mobilenet_v3_large_fpn": {}, "maskrcnn_resnet50_fpn": {},
    "retinanet_resnet50_fpn": {}, "fcos_resnet50_fpn": {}, "ssd300_vgg16": {},
    "ssdlite320_mobilenet_v3_large": {}, "keypointrcnn_resnet50_fpn": {},
    "r3d_18": {}, "s3d": {}, "mvit_v2_s": {}, "swin3d_t": {},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_the_number_of_classes_is_taken_from_the_file(name: str) -> None:
    options: dict[str, Any] = {"weights": None, "num_classes": 5, **FAMILIES[name]}
    if (
        name.startswith(("fcn", "deeplab", "lraspp"))
        or "cnn" in name
        or "_fpn" in name
        or "ssd" in name
    ):
        options["weights_backbone"] = None
    made = tv.get_model(name, **options)
    model = load_model(
        name, weights={"state_dict": under("module.", made.state_dict())}, device="cpu"
    )
    assert same(model.module, made.state_dict())
    assert model.report.classes == 5
    assert model.report.faults == ()
    assert model.no_classifier == ""


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_auxiliary_classifiers_follow_the_file(name: str) -> None:
    made = tv.get_model(name, weights=None, num_classes=1000, aux_logits=False, init_weights=False)
    model = load_model(name, weights=made.state_dict(), device="cpu")
    assert same(model.module, made.state_dict())


@pytest.mark.parametrize("aux", [True, False])
def test_auxiliary_segmentation_heads_follow_the_file(aux: bool) -> None:
    made = tv.get_model(
        "deeplabv3_mobilenet_v3_large", weights=None, weights_backbone=None, aux_loss=aux
    )
    model = load_model("deeplabv3_mobilenet_v3_large", weights=made.state_dict(), device="cpu")
    assert same(model.module, made.state_dict())


def test_a_vit_of_another_image_size() -> None:
    made = tv.vit_b_32(weights=None, image_size=384, num_classes=3)
    model = load_model("vit_b_32", weights=made.state_dict(), device="cpu")
    assert same(model.module, made.state_dict())
    assert model.module.image_size == 384
    assert model.preprocess.crop == (384, 384)


def test_old_densenet_names() -> None:
    made = tv.densenet121(weights=None).state_dict()
    old = {
        n.replace(".norm1.", ".norm.1.").replace(".conv2.", ".conv.2."): v for n, v in made.items()
    }
    assert same(load_model("densenet121", weights=old, device="cpu").module, made)


# --- mismatches ---------------------------------------------------------------------------------


def test_another_architecture_is_an_error_with_the_table(state: State) -> None:
    with pytest.raises(WeightsError) as caught:
        load_model("resnet34", weights=state, device="cpu")
    text = str(caught.value)
    assert "does not fit 'resnet34'" in text
    assert "missing (layer1.2.conv1.weight" in text
    assert "It fits 'resnet18'" in text
    assert "\n" not in text
    assert "layer1.2.conv1.weight" in caught.value.report.table()


def test_a_wider_body_is_an_error_even_with_the_same_names(state: State) -> None:
    bad = {**state, "layer1.0.conv1.weight": torch.zeros(32, 64, 3, 3)}
    with pytest.raises(WeightsError, match=r"layer1\.0\.conv1\.weight is \(32, 64, 3, 3\) float32"):
        load_model("resnet18", weights=bad, device="cpu")


def test_one_missing_layer_of_the_body_is_an_error(state: State) -> None:
    bad = {n: v for n, v in state.items() if n != "layer2.0.conv1.weight"}
    with pytest.raises(WeightsError, match=r"1 missing \(layer2\.0\.conv1\.weight\)"):
        load_model("resnet18", weights=bad, device="cpu")


def test_an_unexpected_layer_of_the_body_is_an_error(state: State) -> None:
    with pytest.raises(WeightsError, match=r"1 unexpected \(layer5\.weight\)"):
        load_model("resnet18", weights={**state, "layer5.weight": torch.zeros(3)}, device="cpu")


def test_not_strict_loads_what_fits_and_says_so(state: State) -> None:
    bad = {n: v for n, v in state.items() if n != "layer2.0.conv1.weight"}
    model = load_model("resnet18", weights=bad, strict=False, device="cpu")
    assert "LOADED IN PART: 1 tensors do not fit (layer2.0.conv1.weight)" in model.note
    assert torch.equal(model.module.conv1.weight, state["conv1.weight"])


@pytest.mark.parametrize("strict", [True, False])
def test_nothing_that_matches_is_always_an_error(strict: bool) -> None:
    with pytest.raises(WeightsError, match="0 tensors match"):
        load_model("resnet18", weights={"x.weight": torch.zeros(3)}, strict=strict)


@pytest.mark.parametrize("name", ["resnet18", "vgg11", "vit_b_32", "densenet121", "convnext_tiny"])
def test_a_file_without_the_classifier_says_so(name: str) -> None:
    made = tv.get_model(name, weights=None).state_dict()
    heads = ("fc.", "classifier.", "heads.")
    body = {n: v for n, v in made.items() if not n.startswith(heads)}
    model = load_model(name, weights=body, device="cpu")
    assert "No classifier in state dict" in model.note
    assert model.no_classifier
    assert model.categories == ()
    assert model.trained


def test_a_classifier_of_ones_own_making(state: State) -> None:
    own = {n: v for n, v in state.items() if not n.startswith("fc.")}
    own |= {"fc.1.weight": torch.zeros(9, 512), "fc.1.bias": torch.zeros(9)}
    model = load_model("resnet18", weights=own, device="cpu")
    assert "No classifier" in model.note
    assert "fc.1.weight (head)" in model.report.table()


def test_num_classes_of_the_user_beats_the_files(state: State) -> None:
    with pytest.raises(
        WeightsError, match=r"fc\.weight is \(7, 512\) float32, expected \(9, 512\)"
    ):
        load_model("resnet18", weights=state, num_classes=9, device="cpu")


# --- strange values -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_dtypes_are_converted_and_told(state: State, dtype: torch.dtype) -> None:
    other = {n: v.to(dtype) if v.is_floating_point() else v for n, v in state.items()}
    model = load_model("resnet18", weights=other, device="cpu")
    assert model.dtype == torch.float32
    assert torch.equal(model.module.fc.weight, other["fc.weight"].float())
    assert str(dtype).removeprefix("torch.") in model.report.table()


def test_nan_is_told(state: State) -> None:
    bad = {**state, "layer1.0.conv1.weight": torch.full((64, 64, 3, 3), torch.nan)}
    model = load_model("resnet18", weights=bad, device="cpu")
    assert "NaN or infinite values in layer1.0.conv1.weight" in model.report.table()
    assert "NaN" in model.note


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(64, 3, 7, 7, dtype=torch.int64),
        torch.zeros(64, 3, 7, 7, dtype=torch.complex64),
        torch.zeros(64, 3, 7, 7, dtype=torch.bool),
        torch.zeros(64, 3, 7, 7).to_sparse(),
        torch.zeros(1).expand(64, 3, 7, 7),
        torch.zeros(64, 3, 7, 7, device="meta"),
        torch.zeros(0),
        torch.tensor(1.0),
    ],
    ids=["int", "complex", "bool", "sparse", "expanded", "meta", "empty", "scalar"],
)
def test_values_that_are_no_such_weights_are_an_error(state: State, value: Tensor) -> None:
    with pytest.raises(WeightsError, match=r"conv1\.weight is"):
        load_model("resnet18", weights={**state, "conv1.weight": value}, device="cpu")


def test_an_absurd_number_of_classes_is_not_built(state: State) -> None:
    giant = torch.zeros(1).expand(2_000_000_000, 512)
    with pytest.raises(WeightsError, match=r"fc\.weight is \(2000000000, 512\)"):
        load_model("resnet18", weights={**state, "fc.weight": giant}, device="cpu")


@pytest.mark.parametrize(
    "content",
    [{}, [], torch.zeros(3), 7, "text", {"epoch": 3}, {"state_dict": {}}, [torch.zeros(2)]],
)
def test_a_file_without_named_tensors(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "my.pth")
    with pytest.raises(WeightsError, match=r"my\.pth holds no named weights"):
        load_model("resnet18", weights=tmp_path / "my.pth")


def test_weights_of_the_wrong_kind() -> None:
    with pytest.raises(WeightsError, match="has no weights '7'"):
        load_model("resnet18", weights=7)


@pytest.mark.parametrize("count", [0, -1, 2.5, True, 10**9])
def test_an_illegal_number_of_classes(count: Any) -> None:
    with pytest.raises(Exception, match="num_classes is a whole number"):
        load_model("resnet18", weights=None, num_classes=count)
