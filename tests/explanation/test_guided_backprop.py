"""Guided backpropagation takes every form of ReLU, changes no value, and leaves nothing behind."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import torchvision
from captum.attr import GuidedBackprop
from torch import Tensor, nn

from hookviz.explanation._guided import GuidedReLUs

COUNTS = {"resnet18": 17, "vgg16": 15, "densenet121": 121, "mobilenet_v2": 35, "googlenet": 57}


def untrained(name: str) -> nn.Module:
    more = {"init_weights": False} if name == "googlenet" else {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torchvision.models.get_model(name, weights=None, **more).eval()


def by_captum(net: nn.Module, x: Tensor, target: int) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GuidedBackprop(net).attribute(x.detach().clone(), target=target)


def guided(net: Callable[[Tensor], Tensor], x: Tensor, target: int = 3) -> tuple[Tensor, int]:
    x = x.detach().clone().requires_grad_()
    with GuidedReLUs() as relus:
        out = net(x.clone())
    (gradient,) = torch.autograd.grad(out[0, target], x)
    return gradient, relus.count


@pytest.mark.parametrize("name", COUNTS)
def test_it_counts_every_relu_and_keeps_the_output(name: str) -> None:
    net = untrained(name)
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    with GuidedReLUs() as relus:
        out = net(x)
    assert relus.count == COUNTS[name]
    assert torch.equal(out, net(x))


@pytest.mark.parametrize("name", ["resnet18", "vgg16"])
def test_it_is_captums_to_the_bit_where_every_relu_is_a_module(name: str) -> None:
    net = untrained(name)
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    assert torch.equal(guided(net, x)[0], by_captum(net, x, 3))


class Functional(nn.Module):
    """One ReLU after each of two layers, in the form given."""

    def __init__(self, relu: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 4, 3)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.a(x))
        return self.c(self.relu(self.b(x))).mean((2, 3))


def in_place_and_dropped(x: Tensor) -> Tensor:
    F.relu_(x)
    return x


SAME = {
    "nn.ReLU": nn.ReLU(),
    "nn.ReLU in place": nn.ReLU(inplace=True),
    "F.relu": F.relu,
    "F.relu in place": lambda x: F.relu(x, inplace=True),
    "F.relu by name": lambda x: F.relu(input=x),
    "F.relu_": F.relu_,
    "F.relu_, its value not used": in_place_and_dropped,
    "torch.relu": torch.relu,
    "torch.relu_": torch.relu_,
    "Tensor.relu": Tensor.relu,
    "Tensor.relu_": Tensor.relu_,
    "clamp": lambda x: x.clamp(min=0),
    "clamp, positional": lambda x: x.clamp(0),
    "torch.clamp": lambda x: torch.clamp(x, min=0.0),
    "clamp_": lambda x: x.clamp_(min=0),
    "clamp_min": lambda x: x.clamp_min(0),
    "clip": lambda x: torch.clip(x, 0, None),
    "F.threshold": lambda x: F.threshold(x, 0, 0),
    "nn.Threshold": nn.Threshold(0, 0),
    "torch.ops.aten.relu": lambda x: torch.ops.aten.relu(x),
}


@pytest.mark.parametrize("form", SAME)
def test_every_form_of_relu_is_taken(form: str) -> None:
    x = torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    # captum is right on modules that are called once.
    net = Functional(nn.ReLU())
    two = nn.Sequential(net.a, nn.ReLU(), net.b, nn.ReLU(), net.c, nn.Flatten(2))
    expected = by_captum(nn.Sequential(two, Mean()), x, 2)
    found, count = guided(Functional(SAME[form]), x, 2)
    assert count == 2
    assert torch.equal(found, expected)
    plain = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(net(plain)[0, 2], plain)
    assert not torch.allclose(found, gradient, rtol=0.1)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(2)


BOUNDED = {
    "nn.ReLU6": (nn.ReLU6(), 6),
    "nn.ReLU6 in place": (nn.ReLU6(inplace=True), 6),
    "F.relu6": (F.relu6, 6),
    "F.hardtanh": (lambda x: F.hardtanh(x, 0.0, 2.0), 2),
    "nn.Hardtanh": (nn.Hardtanh(0, 2), 2),
    "F.hardtanh_": (lambda x: F.hardtanh_(x, 0.0, 2.0), 2),
    "clamp": (lambda x: x.clamp(0, 2), 2),
}


@pytest.mark.parametrize("form", BOUNDED)
def test_above_its_bound_a_relu_passes_nothing(form: str) -> None:
    relu, upper = BOUNDED[form]
    x = torch.tensor([-1.0, 0.0, 0.5, upper - 0.5, upper, upper + 1.0, 1.0], requires_grad=True)
    weights = torch.tensor([1.0, 1, 1, 2, 1, 1, -1])
    with GuidedReLUs() as relus:
        out = relu(x.clone())
    assert relus.count == 1
    assert torch.equal(out, x.clamp(0, upper))
    (found,) = torch.autograd.grad((out * weights).sum(), x)
    assert found.tolist() == [0, 0, 1, 2, 0, 0, 0]


@pytest.mark.parametrize(
    "other",
    [
        nn.Hardtanh(),
        nn.LeakyReLU(),
        nn.GELU(),
        nn.Hardswish(),
        nn.Threshold(0.1, 0),
        nn.Threshold(0, 20),
        lambda x: x.clamp(min=1e-6),
        lambda x: x.clamp(max=0),
        lambda x: x.clamp(-1, 1),
        lambda x: x.clamp(min=torch.zeros(1)),
        lambda x: x.detach().relu() + x,
    ],
)
def test_what_is_no_relu_keeps_its_gradient(other: Callable[[Tensor], Tensor]) -> None:
    x = torch.linspace(-2, 2, 9).requires_grad_()
    weights = torch.linspace(1, -1, 9)
    with GuidedReLUs() as relus:
        out = other(x)
    assert relus.count == 0
    found = torch.autograd.grad((out * weights).sum(), x)
    assert torch.equal(found[0], torch.autograd.grad((other(x) * weights).sum(), x)[0])


def test_without_gradients_nothing_is_taken() -> None:
    with torch.no_grad(), GuidedReLUs() as relus:
        out = torch.relu(torch.tensor([-1.0, 1.0], requires_grad=True))
    assert (out.tolist(), relus.count) == ([0.0, 1.0], 0)


def test_nan_passes_as_in_torch() -> None:
    x = torch.tensor([float("nan"), 1.0], requires_grad=True)
    with GuidedReLUs():
        out = torch.relu(x)
    assert torch.isnan(out[0])
    assert torch.autograd.grad(out.sum(), x)[0].tolist() == [1.0, 1.0]
    assert torch.autograd.grad(torch.relu(x).sum(), x)[0].tolist() == [1.0, 1.0]
