"""Models to be explained, and formulas of papers written out in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torchvision.models as tv
from torch import Tensor, nn

import hookviz
from hookviz.images import network_input


class Twice(nn.Module):
    """Calls one convolution twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=8, padding=1)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        x = self.act(self.conv(x))
        x = self.act(self.conv(x))
        return self.head(x.mean((2, 3)))


def narrow(name: str) -> nn.Module:
    """A network of torchvision's; the two large ones with the same layers and fewer channels."""
    if name == "twice":
        return Twice()
    if name == "vgg16":
        widths = (8, 8, "M", 8, 8, "M", *(16, 16, 16, "M"), *(32, 32, 32, "M"), *(32, 32, 32, "M"))
        net = tv.VGG(tv.vgg.make_layers(list(widths)), init_weights=False)
        for part in net.features:
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
        net.classifier = nn.Sequential(
            nn.Linear(32 * 49, 64), nn.ReLU(True), nn.Dropout(), nn.Linear(64, 50)
        )
        return net
    if name == "vit_b_16":
        return tv.VisionTransformer(224, 16, 12, 4, 64, 128, num_classes=50)
    return getattr(tv, name)()


def settled(module: nn.Module) -> nn.Module:
    """The module in eval mode, with batch norms and a head as after training."""
    for part in module.modules():
        if isinstance(part, nn.Linear) and not bool(part.weight.any()):  # ViT's head starts at 0
            nn.init.normal_(part.weight, 0, 0.02)
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.2)
            part.running_var.uniform_(0.5, 2)
            part.weight.data.uniform_(0.5, 1.5)
    return module.eval()


@dataclass
class Case:
    """A model with a layer to explain.

    Attributes:
        model: What `narrow` takes.
        layer: The layer.
        maps: Turns what the layer gives to (C, H, W).
        tokens: Turns it to (C, K), what stands apart.
        call: Which call, from 1.
    """

    model: str
    layer: str
    maps: Callable[[Tensor], Tensor]
    tokens: Callable[[Tensor], Tensor] | None = None
    call: int = 1


def _first(x: Tensor) -> Tensor:
    return x[0]


CASES = {
    "resnet18": Case("resnet18", "layer4", _first),
    "resnet18-early": Case("resnet18", "layer2.0.conv2", _first),
    "vgg16-before-relu": Case("vgg16", "features.28", _first),
    "vgg16-after-relu": Case("vgg16", "features.29", _first),
    "twice-first": Case("twice", "conv", _first, call=1),
    "twice-last": Case("twice", "conv", _first, call=2),
    "vit_b_16": Case(
        "vit_b_16",
        "encoder.layers.encoder_layer_9",
        lambda x: x[0, 1:].T.reshape(-1, 14, 14),
        lambda x: x[0, :1].T,
    ),
    "swin_t": Case("swin_t", "features.5", lambda x: x[0].permute(2, 0, 1)),
}


@dataclass
class Own:
    """What a test computed by itself: A and g in float64, by channel and place."""

    loaded: Any
    module: nn.Module
    layer: str
    call: int
    calls: int
    target: int
    score: float
    a: Tensor
    g: Tensor
    tokens: tuple[Tensor, Tensor] | None
    input: Tensor


_BUILT: dict[str, nn.Module] = {}


def own(name: str, image: Any, *, frozen: bool = False) -> Own:
    """A and g from a cloned output, by a hook of the test's own."""
    case = CASES[name]
    if case.model not in _BUILT:
        torch.manual_seed(0)
        _BUILT[case.model] = settled(narrow(case.model))
    module = _BUILT[case.model]
    loaded = hookviz.load_model(module, preprocess=hookviz.Preprocessing.for_size(224))
    x = network_input(image, loaded.preprocess).tensor
    kept: list[Tensor] = []

    def hook(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        copy = output.detach().clone().requires_grad_() if frozen else output.clone()
        kept.append(copy)
        return copy.clone()

    handle = dict(module.named_modules())[case.layer].register_forward_hook(hook)
    try:
        with torch.enable_grad():
            scores = module(x.clone().requires_grad_())[0]
    finally:
        handle.remove()
    target = int(scores.argmax())
    value = kept[case.call - 1]
    (gradient,) = torch.autograd.grad(scores[target], value)
    value = value.detach()
    tokens = None
    if case.tokens is not None:
        tokens = (case.tokens(value).double(), case.tokens(gradient).double())
    return Own(
        loaded, module, case.layer, case.call, len(kept), target, float(scores[target].detach()),
        case.maps(value).double(), case.maps(gradient).double(), tokens, x,
    )  # fmt: skip


@pytest.fixture(scope="session")
def photo() -> Any:
    return hookviz.sample_image()


@pytest.fixture(scope="session", autouse=True)
def _let_go() -> Iterator[None]:
    yield
    _BUILT.clear()
