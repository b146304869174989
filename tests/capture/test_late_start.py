"""Forwards that start at a layer give the very bits of whole forwards, edited or not."""

from __future__ import annotations

import copy
import pickle
import threading
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet

from hookviz.capture import LateStart, edit, zero
from hookviz.errors import CaptureError


class Round(nn.Module):
    """A residual, functional steps, in-place ReLUs, one convolution called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, 2)
        self.conv = nn.Conv2d(6, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x * 0.5 + 0.1)
        y = F.relu(self.norm(self.conv(x)) - 0.2)
        y = self.relu(self.conv(y) + x)
        y += x
        y = torch.cat((y.amax((2, 3)), x.mean((2, 3))), 1)
        return self.head(y.reshape(len(x), 12))


class Shared(nn.Module):
    """One module in two blocks; outputs that are tuples and dicts."""

    class Block(nn.Module):
        def __init__(self, conv: nn.Module) -> None:
            super().__init__()
            self.first, self.conv, self.relu = nn.Conv2d(3, 3, 1), conv, nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> dict[str, object]:
            y = self.relu(self.first(x))
            return {"map": self.conv(y), "more": (y, 3)}

    def __init__(self) -> None:
        super().__init__()
        conv = nn.Conv2d(3, 3, 3, padding=1)
        self.one, self.two = Shared.Block(conv), Shared.Block(conv)
        self.last = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten())

    def forward(self, x: Tensor) -> Tensor:
        one = self.one(x)
        two = self.two(one["map"] + one["more"][0])
        return self.last(two["map"] * two["more"][1] + x)


NETS = {
    "round": Round,
    "shared": Shared,
    "resnet": lambda: ResNet(BasicBlock, [1, 1, 2, 1], num_classes=5),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    net = NETS[name]().eval()
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.2)
            part.bias.data.normal_(0, 0.2)
    return net.requires_grad_(requires_grad=False)


def calls_of(net: nn.Module, x: Tensor) -> Counter[str]:
    """How often each layer runs."""
    counts: Counter[str] = Counter()
    handles = [
        module.register_forward_hook(lambda *_, name=name: counts.update([name]))
        for name, module in net.named_modules()
    ]
    net(x)
    for handle in handles:
        handle.remove()
    return counts


@pytest.mark.parametrize("name", NETS)
def test_from_every_call_of_every_layer_the_bits_of_a_whole_forward(name):
    net, x = made(name), torch.randn(1, 3, 16, 16)
    counts = calls_of(net, x)
    plain = net(x)
    attributes = [sorted(m.__dict__) for m in net.modules()]
    layers = list(counts)[:: 4 if name == "resnet" else 1]
    for layer, count in ((layer, counts[layer]) for layer in layers):
        for call in range(1, count + 1):
            late = LateStart(net, {layer: call})
            with late.recorded():
                assert torch.equal(net(x), plain)
            with late.started(layer, 1):
                assert torch.equal(net(x), plain)
            if name == "shared" and layer in ("one", "two"):
                continue  # gives a dict, of which an edit takes a leaf
            with edit(net, zero(layer, call=call if count > 1 else None, channels=1)):
                whole = net(x)
            with late.started(layer, 3) as its, edit(net, zero(layer, channels=1, call=its)):
                several = net(x.expand(3, -1, -1, -1))
            torch.testing.assert_close(several, whole.expand(3, *whole.shape[1:]))
            with late.started(layer, 1) as its, edit(net, zero(layer, channels=1, call=its)):
                assert torch.equal(net(x), whole)
            assert torch.equal(net(x), plain)
    assert [sorted(m.__dict__) for m in net.modules()] == attributes


def test_only_what_follows_computes():
    net, x = made("resnet"), torch.randn(1, 3, 16, 16)
    late = LateStart(net, {"layer3.1.conv1": "last", "layer4": "last"})
    with late.recorded():
        net(x)
    ran: list[str] = []
    for name, module in net.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            own = module._conv_forward if isinstance(module, nn.Conv2d) else None
            if own is not None:
                module._conv_forward = lambda *a, own=own, name=name: (ran.append(name), own(*a))[1]
    with late.started("layer3.1.conv1", 1):
        net(x)
    assert ran == ["layer3.1.conv2", "layer4.0.conv1", "layer4.0.conv2", "layer4.0.downsample.0"]
    ran.clear()
    with late.started("layer4", 1):
        net(x)
    assert ran == []


class Counting(nn.Module):
    """Calls its layers in turns: no forward is like the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.turn = nn.Linear(3, 3), nn.Linear(3, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.turn += 1
        return self.b(self.a(x)) if self.turn % 2 else self.a(self.b(x))


def test_another_order_and_a_layer_that_did_not_run_are_refused():
    net = Counting()
    late = LateStart(net, {"b": "last"})
    with pytest.raises(CaptureError, match="No forward that ran 'b' was recorded"):
        late.started("b", 1).__enter__()
    with late.recorded():
        net(torch.ones(1, 3))
    with late.started("b", 1), pytest.raises(CaptureError, match="another order"):
        net(torch.ones(1, 3))
    assert "forward" not in net.a.__dict__ | net.b.__dict__


class Only:
    """One of a kind: it refuses to be copied."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __copy__(self) -> Only:
        raise TypeError("there is only one")


class Unusual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)
        self.wrap = type("Wrap", (nn.Module,), {"forward": lambda _, x: Only(x)})()

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.wrap(self.one(x)).tensor)


def test_what_cannot_be_copied_leaves_the_recorded_forward_as_it_is():
    net, x = Unusual(), torch.ones(1, 2)
    late, plain = LateStart(net, {"two": 1}), net(x)
    with late.recorded():
        assert torch.equal(net(x), plain)
    with pytest.raises(CaptureError, match="No forward"), late.started("two", 1):
        pass


def test_other_threads_and_copies_run_whole_and_a_forward_of_ones_own_comes_back():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    own = lambda x: x * 3  # noqa: E731
    net[0].forward = own
    late = LateStart(net, {"0": "last"})
    one, two = torch.ones(1, 2), torch.full((1, 2), 2.0)
    expected = net[1](two * 3)
    with late.recorded():
        net(one)
    given: list[Tensor] = []
    del net[0].forward
    plain = net(two)
    with late.started("0", 1):
        other = threading.Thread(target=lambda: given.append(net(two)))
        other.start()
        other.join()
        given += [copy.deepcopy(net)(two), pickle.loads(pickle.dumps(net))(two)]  # noqa: S301
    assert all(torch.equal(found, plain) for found in given)
    net[0].forward = own
    with late.started("0", 1), pytest.raises(ZeroDivisionError):
        1 / 0  # noqa: B018
    assert net[0].forward is own
    assert torch.equal(net(two), expected)
