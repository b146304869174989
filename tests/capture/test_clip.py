"""Gradients clipped by hooks: what is clipped, when, and what is left alone."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hookviz.capture import clip_gradients
from hookviz.errors import CaptureError


class Pair(nn.Module):
    """One parameter of two elements, whose gradient is what the forward is given."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return (self.w * gradient).sum()


def two_passes(net: Pair, first=(2.0, 0.0), second=(0.0, 2.0)) -> None:
    net(torch.tensor(first)).backward()
    net(torch.tensor(second)).backward()


def hooks_on(net: nn.Module) -> int:
    count = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules())
    for parameter in net.parameters():
        count += len(parameter._backward_hooks or ())
        count += len(parameter._post_accumulate_grad_hooks or ())
    return count


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"norm": 1.0}, [0.4472, 0.8944]),
        ({"norm": 1.0, "when": "backward"}, [0.4472, 0.8944]),
        ({"norm": 1.0, "when": "backward", "over": "parameter"}, [0.4472, 0.8944]),
        ({"norm": 1.0, "when": "gradient"}, [1.0, 1.0]),
        ({"value": 1.0}, [1.0, 1.0]),
        ({"value": 1.0, "when": "backward"}, [1.0, 1.0]),
    ],
)
def test_when_clipping_acts(options, expected):
    net = Pair()
    with clip_gradients(net, **options):
        two_passes(net)
    assert net.w.grad.tolist() == pytest.approx(expected, abs=1e-4)
    assert hooks_on(net) == 0


def test_once_at_the_end_by_optimizer_or_by_hand():
    net = Pair()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    with clip_gradients(net, norm=1.0, when="step", optimizer=optimizer):
        two_passes(net)
        assert net.w.grad.tolist() == [2.0, 2.0]
        optimizer.step()
    assert net.w.grad.tolist() == pytest.approx([0.7071, 0.7071], abs=1e-4)
    assert net.w.tolist() == pytest.approx([-0.7071, -0.7071], abs=1e-4)
    net.w.grad = torch.tensor([2.0, 2.0])
    optimizer.step()
    assert net.w.grad.tolist() == [2.0, 2.0]  # removed from the optimizer too

    by_hand = clip_gradients(net, norm=1.0, when="step")
    assert by_hand.clip() == pytest.approx(8**0.5)
    assert net.w.grad.tolist() == pytest.approx([0.7071, 0.7071], abs=1e-4)


def test_value_on_each_pass_lets_the_sum_reach_two():
    net = Pair()
    with clip_gradients(net, value=1.0):
        two_passes(net, (2.0, 0.0), (2.0, 0.0))
    assert net.w.grad.tolist() == [2.0, 0.0]
    net.w.grad = None
    with clip_gradients(net, value=1.0, when="backward"):
        two_passes(net, (2.0, 0.0), (2.0, 0.0))
    assert net.w.grad.tolist() == [1.0, 0.0]


def test_norm_over_the_model_equals_torch():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    x = torch.randn(6, 4)
    net(x).square().sum().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
    wanted = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    with clip_gradients(net, norm=0.3):
        net(x).square().sum().backward()
    for parameter, expected in zip(net.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=0)
    total = torch.cat([p.grad.flatten() for p in net.parameters()]).norm()
    assert float(total) == pytest.approx(0.3, rel=1e-4)


def test_infinity_norm():
    net = Pair()
    with clip_gradients(net, norm=1.0, norm_type=float("inf")):
        net(torch.tensor([4.0, 2.0])).backward()
    assert net.w.grad.tolist() == pytest.approx([1.0, 0.5], abs=1e-4)


def test_small_gradients_are_left_alone():
    net = Pair()
    with clip_gradients(net, norm=10.0):
        net(torch.tensor([4.0, 2.0])).backward()
    assert net.w.grad.tolist() == [4.0, 2.0]


def test_frozen_parameters_are_skipped_and_named():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    net[0].weight.requires_grad_(False)
    with clip_gradients(net, value=0.001) as clipping:
        assert clipping.skipped == ("0.weight",)
        assert clipping.hooked == ("0.bias", "1.weight", "1.bias")
        net(torch.full((1, 2), 100.0)).sum().backward()
    assert net[0].weight.grad is None
    for name in ("0.bias", "1.weight", "1.bias"):
        assert float(net.get_parameter(name).grad.abs().max()) <= 0.001 + 1e-9


def test_unfrozen_later_is_clipped_and_frozen_later_is_not_touched():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    net[0].weight.requires_grad_(False)
    x = torch.full((1, 2), 100.0)
    with clip_gradients(net, value=0.001) as clipping:
        net[0].weight.requires_grad_(True)
        net[1].weight.requires_grad_(False)
        net(x).sum().backward()
        assert "0.weight" in clipping.hooked
    assert float(net[0].weight.grad.abs().max()) <= 0.001 + 1e-9
    assert net[1].weight.grad is None
    assert hooks_on(net) == 0


def test_replaced_parameter_is_followed():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    old = net[1].weight
    with clip_gradients(net, value=0.001):
        net[1] = nn.Linear(2, 1)
        net(torch.full((1, 2), 100.0)).sum().backward()
        assert not old._backward_hooks
    assert float(net[1].weight.grad.abs().max()) <= 0.001 + 1e-9


def test_lazy_module_is_hooked_once_it_has_parameters():
    net = nn.Sequential(nn.LazyLinear(3))
    with clip_gradients(net, value=0.001) as clipping:
        assert clipping.hooked == ()
        net(torch.full((1, 2), 100.0)).sum().backward()
        assert clipping.hooked == ("0.weight", "0.bias")
    assert float(net[0].weight.grad.abs().max()) <= 0.001 + 1e-9


def test_shared_parameter_is_clipped_once():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    with clip_gradients(net, norm=1.0) as clipping:
        net(torch.full((1, 2), 10.0)).sum().backward()
        assert clipping.hooked == ("0.weight", "0.bias", "1.bias")
    total = torch.cat([p.grad.flatten() for p in net.parameters()]).norm()
    assert float(total) == pytest.approx(1.0, abs=1e-4)


def test_sparse_and_complex_gradients():
    embedding = nn.Embedding(5, 2, sparse=True)
    for options in ({"value": 0.5}, {"norm": 0.5}, {"value": 0.5, "when": "backward"}):
        embedding.zero_grad()
        with clip_gradients(embedding, **options):
            embedding(torch.tensor([1, 1, 3])).sum().backward()
        dense = embedding.weight.grad.to_dense()
        assert float(dense.abs().max()) <= 0.5
        assert float(dense[1].abs().max()) > 0

    net = nn.Module()
    net.w = nn.Parameter(torch.zeros(1, dtype=torch.complex64))
    with clip_gradients(net, value=1.0):
        (net.w * torch.tensor([3.0 - 0.5j])).sum().abs().backward()
        net.w.grad = None
        torch.view_as_real(net.w * torch.tensor([3.0 - 0.5j])).sum().backward()
    assert abs(net.w.grad.real.item()) <= 1
    assert abs(net.w.grad.imag.item()) <= 1


def test_nonfinite_policies():
    bad = torch.tensor([float("nan"), 3.0])
    kept = Pair()
    with clip_gradients(kept, value=1.0):
        kept(bad).backward()
    assert kept.w.grad.isnan().tolist() == [True, False]
    assert kept.w.grad[1] == 1.0

    for options in ({"value": 1.0}, {"norm": 1.0}, {"norm": 1.0, "when": "gradient"}):
        zeroed = Pair()
        with clip_gradients(zeroed, nonfinite="zero", **options):
            zeroed(bad).backward()
        assert zeroed.w.grad.tolist() == pytest.approx([0.0, 1.0], abs=1e-5)

        strict = Pair()
        with (
            clip_gradients(strict, nonfinite="error", **options),
            pytest.raises(CaptureError, match="gradient of 'w' has 1 NaN or infinite of 2"),
        ):
            strict(bad).backward()
        assert hooks_on(strict) == 0


def test_after_a_failed_backward_the_next_one_is_clipped():
    net = Pair()

    def fail(_gradient):
        raise ValueError("mine")

    with clip_gradients(net, norm=1.0):
        leaf = torch.zeros(2, requires_grad=True)
        handle = leaf.register_hook(fail)
        with pytest.raises(ValueError, match="mine"):
            (net(torch.tensor([2.0, 0.0])) + leaf.sum()).backward()
        handle.remove()
        net.zero_grad()
        net(torch.tensor([3.0, 4.0])).backward()
    assert net.w.grad.tolist() == pytest.approx([0.6, 0.8], abs=1e-4)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_clips_once_over_all(use_reentrant):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 1))
    x = torch.randn(4, 3, requires_grad=True)

    def forward():
        return net[3](checkpoint(net[:3], x, use_reentrant=use_reentrant)).sum()

    forward().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    wanted = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    with clip_gradients(net, norm=0.1):
        forward().backward()
    for parameter, expected in zip(net.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, expected)


def test_hooks_of_others_stay_and_removal_is_repeatable():
    net = Pair()
    seen = []
    net.w.register_hook(lambda g: seen.append(g.tolist()))
    clipping = clip_gradients(net, value=1.0)
    clipping.remove()
    clipping.remove()
    net(torch.tensor([5.0, 0.0])).backward()
    assert seen == [[5.0, 0.0]]
    assert net.w.grad.tolist() == [5.0, 0.0]
    assert hooks_on(net) == 1


def test_hooks_outlive_a_dropped_handle_and_model_dies_without_the_collector():
    net = Pair()
    clip_gradients(net, value=1.0)
    net(torch.tensor([5.0, 0.0])).backward()
    assert net.w.grad.tolist() == [1.0, 0.0]
    gc.collect()
    gc.disable()
    try:
        ghost = weakref.ref(net)
        handle = clip_gradients(net, norm=1.0)
        net(torch.tensor([5.0, 0.0])).backward()
        del net
        assert ghost() is None
        assert handle.clip() == 0.0
        assert handle.skipped == ()
    finally:
        gc.enable()


def test_exception_in_the_block_removes():
    net = Pair()
    with pytest.raises(KeyboardInterrupt), clip_gradients(net, value=1.0):
        raise KeyboardInterrupt
    assert hooks_on(net) == 0


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, "either value= or norm="),
        ({"value": 1.0, "norm": 1.0}, "either value= or norm="),
        ({"value": -1.0}, "value must be a finite number > 0, not -1.0"),
        ({"norm": 0}, "norm must be a finite number > 0, not 0"),
        ({"value": float("nan")}, "value must be a finite number > 0, not nan"),
        ({"value": True}, "value must be a finite number > 0, not True"),
        ({"value": "1"}, "value must be a finite number > 0, not '1'"),
        ({"norm": 1.0, "norm_type": 0}, "norm_type must be a number > 0 or inf, not 0"),
        (
            {"norm": 1.0, "when": "later"},
            "when must be 'gradient', 'backward', 'step' or None, not 'later'",
        ),
        ({"norm": 1.0, "over": "layer"}, "over must be 'parameter' or 'model', not 'layer'"),
        ({"norm": 1.0, "nonfinite": "drop"}, "'keep', 'zero' or 'error'"),
        ({"norm": 1.0, "when": "gradient", "over": "model"}, 'Use when="backward"'),
        ({"value": 1.0, "over": "model"}, "value= limits each element by itself"),
    ],
)
def test_bad_options(options, part):
    net = Pair()
    with pytest.raises(CaptureError) as caught:
        clip_gradients(net, **options)
    assert part in str(caught.value)
    assert hooks_on(net) == 0


def test_optimizer_without_step_and_not_a_module():
    net = Pair()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    with pytest.raises(CaptureError, match='optimizer= is for when="step"'):
        clip_gradients(net, norm=1.0, optimizer=optimizer)
    with pytest.raises(CaptureError, match="not list"):
        clip_gradients([net.w], value=1.0)


def test_repr_says_what_it_does():
    net = Pair()
    with clip_gradients(net, value=0.5) as clipping:
        assert repr(clipping) == (
            "GradientClipping(value=0.5, when='gradient', 1 parameters hooked, 0 frozen)"
        )
