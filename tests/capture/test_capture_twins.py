"""Random small networks with in-place layers, against twins without any in-place operation."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hookviz.capture import Capture

WIDTH = 4

ACTIVATIONS = {
    "relu": lambda: nn.ReLU(inplace=True),
    "relu6": lambda: nn.ReLU6(inplace=True),
    "leaky": lambda: nn.LeakyReLU(0.1, inplace=True),
    "elu": lambda: nn.ELU(inplace=True),
    "silu": lambda: nn.SiLU(inplace=True),
    "hardtanh": lambda: nn.Hardtanh(inplace=True),
    "dropout": lambda: nn.Dropout(0.5, inplace=True),
}


class AddInPlace(nn.Module):
    """``x + f(x)``, written into f(x) in place."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.inplace = True

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        if self.inplace:
            y += x
            return y
        return y + x


class Reshape(nn.Module):
    """Gives a view of what it receives."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x.view(self.shape)


class Split(nn.Module):
    """Gives a nested value with views, a shared tensor and things that are no tensors."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"all": x * 1, "parts": (x[:, :2], [x[:, 2:], "text"]), "none": None}


class Nest(nn.Module):
    """Uses a nested output."""

    def __init__(self) -> None:
        super().__init__()
        self.split = Split()

    def forward(self, x: Tensor) -> Tensor:
        found = self.split(x=x)
        left, (right, _) = found["parts"]
        return torch.cat([left * 2, right], 1) + found["all"]


class Shared(nn.Module):
    """Calls one module twice."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.act = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.second(self.act(self.first(x))))


act_names = st.sampled_from(sorted(ACTIVATIONS))
acts = act_names.map(lambda name: ACTIVATIONS[name]())
leaves = st.one_of(
    st.builds(lambda: nn.Linear(WIDTH, WIDTH)),
    st.builds(nn.Identity),
    st.builds(nn.Tanh),
    st.builds(Nest),
    acts,
    acts,
    st.builds(Shared, acts),
    st.builds(lambda act: nn.Sequential(Reshape((-1, 1, WIDTH)), act, nn.Flatten()), acts),
    st.builds(lambda act: nn.Sequential(Reshape((-1,)), act, Reshape((-1, WIDTH))), acts),
)
networks = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map(lambda parts: nn.Sequential(*parts)),
        st.lists(inner, max_size=2).map(
            lambda parts: AddInPlace(nn.Sequential(nn.Linear(WIDTH, WIDTH), *parts))
        ),
    ),
    max_leaves=8,
)


def without_in_place(net: nn.Module) -> nn.Module:
    twin = copy.deepcopy(net)
    for module in twin.modules():
        if hasattr(module, "inplace"):
            module.inplace = False
    return twin


def runs(net: nn.Module, x: Tensor) -> bool:
    """Whether autograd itself accepts the network's in-place operations."""
    try:
        net(x).square().sum().backward()
    except RuntimeError as error:
        if "inplace" in str(error) or "in-place" in str(error):
            return False
        raise
    return True


@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much])
@given(net=networks, seed=st.integers(0, 2**16), train=st.booleans())
def test_captured_values_are_those_of_the_twin(net: nn.Module, seed: int, train: bool) -> None:
    torch.manual_seed(seed)
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    # In float64, so that the other order of a sum in place stays far below the tolerance.
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), net, nn.Linear(WIDTH, WIDTH)).train(train).double()
    twin = without_in_place(net)
    x = torch.randn(3, WIDTH, dtype=torch.float64)
    torch.manual_seed(seed)
    assume(runs(net, x))
    net.zero_grad()
    found = []
    for model in (net, twin):
        torch.manual_seed(seed)
        with Capture(
            model,
            lambda name, module: True,
            inputs=True,
            gradients=True,
            input_gradients=True,
            eval_mode=False,
        ) as cap:
            y = model(x)
            state = torch.get_rng_state()
            y.square().sum().backward()
        found.append((cap, y, state))
    (ours, y, state), (theirs, expected, twin_state) = found
    assert torch.equal(y, expected)
    assert torch.equal(state, twin_state)
    kept = [(a.layer, a.call, a.order, a.kind, a.leaf) for a in ours.activations]
    assert kept == [(a.layer, a.call, a.order, a.kind, a.leaf) for a in theirs.activations]
    for a, b in zip(ours.activations, theirs.activations, strict=True):
        # A residual sum adds its gradients in another order in place.
        torch.testing.assert_close(a.tensor, b.tensor, msg=lambda m, a=a: f"{a.label}: {m}")
        if "gradient" not in a.kind:
            assert torch.equal(a.tensor, b.tensor)
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


@settings(max_examples=30, suppress_health_check=[HealthCheck.filter_too_much])
@given(net=networks, seed=st.integers(0, 2**16))
def test_a_layer_run_on_its_recorded_input_gives_its_recorded_output(
    net: nn.Module, seed: int
) -> None:
    torch.manual_seed(seed)
    net.eval()
    lone = copy.deepcopy(net)
    with torch.no_grad(), Capture(net, lambda name, module: True, inputs=True) as cap:
        net(torch.randn(3, WIDTH))
    modules = dict(lone.named_modules())
    for name in cap.layers:
        calls = {a.call for a in cap.activations if a.layer == name}
        for call in calls:
            given_, gave = (
                {
                    a.leaf: a.tensor.clone()
                    for a in cap.activations
                    if (a.layer, a.call, a.kind) == (name, call, kind)
                }
                for kind in ("input", "output")
            )
            with torch.no_grad(), Capture(modules[name], "") as again:
                modules[name](**given_)
            got = {a.leaf: a.tensor for a in again.activations}
            assert got.keys() == gave.keys()
            assert all(torch.equal(got[leaf], gave[leaf]) for leaf in got)


def test_gradient_of_a_view_that_is_changed_in_place() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (2, 2)), nn.ReLU(inplace=True))
    twin = without_in_place(net)
    x = torch.randn(3, 4)
    got = []
    for model in (net, twin):
        with Capture(model, "*", gradients=True, input_gradients=True) as cap:
            model(x).square().sum().backward()
        got.append(cap)
    for name in ("0", "1", "2"):
        assert torch.equal(got[0].gradient(name), got[1].gradient(name))
    assert torch.equal(got[0].gradient("2", of="input"), got[1].gradient("2", of="input"))


def test_identity_in_a_residual_has_its_own_gradient() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.skip, self.body, self.stem = nn.Identity(), nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return self.skip(x) + self.body(x)

    net = Residual()
    with Capture(net, "*", gradients=True, input_gradients=True) as cap:
        net(torch.randn(2, 3)).sum().backward()
    ones = torch.ones(2, 3)
    assert torch.equal(cap.gradient("skip"), ones)
    assert torch.equal(cap.gradient("skip", of="input"), ones)
    through = ones @ net.body.weight
    torch.testing.assert_close(cap.gradient("body", of="input"), through.detach())
    torch.testing.assert_close(cap.gradient("stem"), (ones + through).detach())


@pytest.mark.parametrize("in_place", [True, False])
def test_gradients_equal_those_of_full_backward_hooks(in_place: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.Tanh())
    expected: dict[str, tuple[Any, Any]] = {}
    handles = [
        m.register_full_backward_hook(
            lambda m, gi, go, n=n: expected.__setitem__(n, (gi[0], go[0]))
        )
        for n, m in net.named_children()
    ]
    x = torch.randn(2, 3, requires_grad=True)
    net(x).square().sum().backward()
    for handle in handles:
        handle.remove()
    net[1].inplace = in_place
    with Capture(net, "*", gradients=True, input_gradients=True) as cap:
        net(x).square().sum().backward()
    for name, (grad_input, grad_output) in expected.items():
        assert torch.equal(cap.gradient(name), grad_output)
        assert torch.equal(cap.gradient(name, of="input"), grad_input)
