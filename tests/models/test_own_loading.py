"""What load_state_dict(strict=True) of a module takes, load_model takes; nothing is half-loaded."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.models as tv
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from hookviz.errors import WeightsError
from hookviz.models import load_model


class Renamed(nn.Module):
    """Takes the parameter names of its first version, through its own loading."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.new = nn.Linear(3, 2)

    def _load_from_state_dict(
        self, state: Any, prefix: str, metadata: Mapping[str, Any], *rest: Any
    ) -> None:
        if metadata.get("version", 1) < 2:
            for kind in ("weight", "bias"):
                if f"{prefix}old.{kind}" in state:
                    state[f"{prefix}new.{kind}"] = state.pop(f"{prefix}old.{kind}")
        super()._load_from_state_dict(state, prefix, metadata, *rest)

    def forward(self, x: Tensor) -> Tensor:
        return self.new(x)


class Versioned(nn.Module):
    """What the numbers mean depends on the version that was saved with them."""

    _version = 3

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(2))

    def _load_from_state_dict(
        self, state: Any, prefix: str, metadata: Mapping[str, Any], *rest: Any
    ) -> None:
        super()._load_from_state_dict(state, prefix, metadata, *rest)
        if metadata.get("version") == 2:
            with torch.no_grad():
                self.scale.mul_(10)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Extra(nn.Module):
    """Keeps something beside tensors in its state dict."""

    def __init__(self, said: str = "") -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.said = said

    def get_extra_state(self) -> Any:
        return {"said": self.said}

    def set_extra_state(self, state: Any) -> None:
        self.said = state["said"]


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.register_load_state_dict_pre_hook(self.rename)

    @staticmethod
    def rename(module: nn.Module, state: Any, prefix: str, *_: Any) -> None:
        for name in [n for n in state if n.startswith(f"{prefix}backbone/")]:
            state[prefix + name.removeprefix(f"{prefix}backbone/").replace("/", ".")] = state.pop(
                name
            )


class OwnLoadStateDict(nn.Module):
    """Overrides the method itself, with the two arguments that everybody passes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:  # type: ignore[override]
        inner = {n.replace("net/", "fc."): v for n, v in state_dict.items()}
        return super().load_state_dict(inner, strict=strict)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(2, 2)
        self.two = nn.Linear(2, 2)
        self.two.weight = self.one.weight


class Codes(nn.Module):
    """Stores whole numbers and makes weights of them when it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        state[f"{prefix}weight"] = state[f"{prefix}weight"].float() / 100
        super()._load_from_state_dict(state, prefix, *rest)


def lazy() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))


def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 2)))


def quantized() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 3)), {nn.Linear})


def with_old_names() -> Mapping[str, Tensor]:
    made = Renamed().state_dict()
    return OrderedDict((n.replace("new.", "old."), v) for n, v in made.items())


def with_version_two() -> Any:
    state: Any = OrderedDict(scale=torch.tensor([1.0, 2.0]))
    state._metadata = {"": {"version": 2}}
    return state


def materialised() -> Mapping[str, Tensor]:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)).state_dict()


def before_parametrizations() -> Mapping[str, Tensor]:
    return nn.Sequential(old_weight_norm()[0]).state_dict()


def old_vit() -> Mapping[str, Tensor]:
    """The keys that torchvision's ViT had before 0.12; it still takes them."""
    made = tv.vit_b_32(weights=None, num_classes=4, image_size=64).state_dict()
    old: Any = OrderedDict(
        (n.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."), v)
        for n, v in made.items()
    )
    old._metadata = {
        n: {"version": 1} if n.endswith("mlp") else v for n, v in made._metadata.items()
    }
    return old


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "renamed by _load_from_state_dict": (Renamed, with_old_names),
    "a version in _metadata": (Versioned, with_version_two),
    "extra state": (Extra, lambda: Extra("hello").state_dict()),
    "a pre-hook": (
        Hooked,
        lambda: {"backbone/a/weight": torch.ones(2, 2), "backbone/a/bias": torch.ones(2)},
    ),
    "a load_state_dict of its own": (
        OwnLoadStateDict,
        lambda: {"net/weight": torch.ones(2, 2), "net/bias": torch.ones(2)},
    ),
    "tied weights": (Tied, lambda: Tied().state_dict()),
    "whole numbers that the class converts": (Codes, lambda: {"weight": torch.arange(4)}),
    "lazy layers": (lazy, materialised),
    "a lazy state dict": (lazy, lambda: lazy().state_dict()),
    "old names of weight_norm": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 2))),
        before_parametrizations,
    ),
    "the former weight_norm": (old_weight_norm, lambda: old_weight_norm().state_dict()),
    "a parametrization": (
        lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(3, 3))),
        lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(3, 3))).state_dict(),
    ),
    "quantised": (quantized, lambda: quantized().state_dict()),
    "multihead attention": (
        lambda: nn.MultiheadAttention(4, 2),
        lambda: nn.MultiheadAttention(4, 2).state_dict(),
    ),
    "BatchNorm of its first version": (
        lambda: nn.Sequential(nn.BatchNorm2d(3)),
        lambda: {
            n: v for n, v in nn.Sequential(nn.BatchNorm2d(3)).state_dict().items() if "num" not in n
        },
    ),
    "a scalar saved as one number": (
        lambda: nn.ParameterDict({"t": nn.Parameter(torch.tensor(0.0))}),
        lambda: {"t": torch.tensor([2.0])},
    ),
    "torchvision's former ViT names": (
        lambda: tv.vit_b_32(weights=None, num_classes=4, image_size=64),
        old_vit,
    ),
    "nothing at all": (nn.Identity, dict),
}

WRAPPED: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda state: state,
    "in a training script's dict": lambda state: {"epoch": 3, "model": state, "best": 0.5},
}


def values(module: nn.Module) -> dict[str, Any]:
    return dict(module.state_dict())


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and not isinstance(one, nn.parameter.UninitializedTensorMixin):
        return torch.equal(one, other)
    return str(one) == str(other)


@pytest.mark.filterwarnings("ignore:.*uantize")  # torch's own, on its quantised tensors
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("wrapping", WRAPPED)
def test_what_strict_loading_takes_is_taken(case: str, wrapping: str) -> None:
    make, state = CASES[case]
    if case == "nothing at all" and wrapping != "as it is":
        pytest.skip("an empty mapping among others is nothing to find")
    module, given = make(), state()
    reference = (
        copy.deepcopy(load_model(module).module) if case != "the former weight_norm" else (make())
    )
    reference.load_state_dict(given, strict=True)
    before = {n: str(v) for n, v in values(module).items()}
    model = load_model(module, weights=WRAPPED[wrapping](given))
    mine, theirs = values(model.module), values(reference)
    assert mine.keys() == theirs.keys()
    assert all(equal(mine[n], theirs[n]) for n in mine)
    assert model.report.faults == ()
    assert model.weights == "state dict"
    assert {n: str(v) for n, v in values(module).items()} == before
    assert model.weights_hash


@pytest.mark.parametrize("prefix", ["module.", "model._orig_mod."])
def test_versions_survive_a_prefix_that_is_taken_off(prefix: str) -> None:
    state: Any = OrderedDict({f"{prefix}scale": torch.tensor([1.0, 2.0])})
    state._metadata = {prefix.removesuffix("."): {"version": 2}}
    module = load_model(Versioned(), weights=state).module
    assert module.scale.tolist() == [10.0, 20.0]


def test_versions_survive_a_file(tmp_path: Path) -> None:
    torch.save({"state_dict": with_version_two()}, tmp_path / "my.pth")
    module = load_model(Versioned(), weights=tmp_path / "my.pth").module
    assert module.scale.tolist() == [10.0, 20.0]


@pytest.mark.parametrize("prefix", ["", "module."])
def test_torchvision_takes_its_former_names_by_name(prefix: str) -> None:
    old = old_vit()
    state: Any = OrderedDict((prefix + n, v) for n, v in old.items())
    state._metadata = {f"{prefix}{n}".rstrip("."): v for n, v in old._metadata.items()}
    model = load_model("vit_b_32", weights=state, device="cpu")
    layer = model.module.encoder.layers.encoder_layer_0.mlp[0]
    assert torch.equal(layer.weight, old["encoder.layers.encoder_layer_0.mlp.linear_1.weight"])
    assert "older names" in model.report.table()
    assert model.report.classes == 4


def test_timm_takes_what_its_own_conversion_takes() -> None:
    timm = pytest.importorskip("timm", reason="timm is not installed (extra timm)")
    made = timm.create_model("deit_tiny_distilled_patch16_224")
    # The names of Swin's authors, whose downsampling belongs to the stage before it.
    swin = timm.create_model("swin_tiny_patch4_window7_224")
    theirs = {
        n.replace("head.fc.", "head.")
        .replace("layers.1.downsample", "layers.0.downsample")
        .replace("layers.2.downsample", "layers.1.downsample")
        .replace("layers.3.downsample", "layers.2.downsample"): v
        for n, v in swin.state_dict().items()
    }
    model = load_model("timm:swin_tiny_patch4_window7_224", weights={"model": theirs})
    assert torch.equal(model.module.head.fc.weight, swin.head.fc.weight)
    assert torch.equal(
        model.module.layers[3].downsample.reduction.weight,
        swin.layers[3].downsample.reduction.weight,
    )
    again = load_model("timm:deit_tiny_distilled_patch16_224", weights=made.state_dict())
    assert torch.equal(again.module.head_dist.weight, made.head_dist.weight)


def test_a_try_that_fails_leaves_no_trace() -> None:
    class Spoiling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.tries = 0

        def _load_from_state_dict(self, *args: Any) -> None:
            self.tries += 1
            super()._load_from_state_dict(*args)

    module = Spoiling()
    given = {"fc.weight": torch.full((2, 2), 5.0), "fc.bias": torch.ones(2), "x": torch.ones(1)}
    with pytest.raises(WeightsError, match=r"1 unexpected \(x\)"):
        load_model(module, weights=given)
    assert module.tries == 0
    assert 5.0 not in module.fc.weight
    fitted = load_model(module, weights=given, strict=False).module
    assert fitted.tries == 1  # the copy that is kept has seen one loading


def test_lazy_layers_whose_sizes_do_not_fit_are_one_sentence() -> None:
    state = {"0.weight": torch.zeros(4, 3, 3, 3), "nonsense": torch.zeros(2)}
    with pytest.raises(WeightsError, match=r"sizes are open.*Run the module once") as caught:
        load_model(lazy(), weights=state)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("state", [{3: torch.zeros(2)}, {"fc": {"x": 1}}, OrderedDict()])
def test_mappings_without_named_tensors(state: Any) -> None:
    with pytest.raises(WeightsError, match="holds no named weights"):
        load_model(nn.Linear(2, 2), weights=state)
