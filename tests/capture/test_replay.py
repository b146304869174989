"""A sample of the replay: recorded inputs give recorded outputs, bit for bit.

The whole runs as `python -m benchmarks.replay`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.replaying import replay
from benchmarks.zoo import FastInit, build_torchvision, randomise


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "googlenet",
        "swin_v2_t",
        "shufflenet_v2_x0_5",
        "lraspp_mobilenet_v3_large",
        "fasterrcnn_mobilenet_v3_large_320_fpn",
        "raft_small",
        "quantized_shufflenet_v2_x0_5",
    ],
)
def test_every_call_gives_its_recorded_output_again(name):
    specimen = build_torchvision(name)
    result = replay(specimen.model, specimen.args, specimen.kwargs)
    assert result.mismatches == []
    assert result.stateful == []
    assert result.same == result.calls - result.silent
    assert result.calls >= result.modules > 50
    assert result.trivial < result.calls // 4


def test_random_layers_are_replayed_with_their_numbers():
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Dropout(0.5))
    for layer in net:
        layer.train(isinstance(layer, nn.Dropout))
    with pytest.warns(UserWarning, match="train mode"):
        result = replay(net, (torch.randn(4, 8),), {})
    assert result.mismatches == []
    assert (result.modules, result.calls, result.same) == (5, 5, 5)


class Odd(nn.Module):
    """Takes numbers, lists and one tensor twice; keeps state that its parent sets."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0

    def forward(self, x, many, *, scale, again=None):
        if again is x:
            return {"out": x * scale * self.factor, "rest": [t + 1 for t in many]}
        return x


class Parent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.odd = Odd()

    def forward(self, x):
        self.odd.factor = 3.0
        found = self.odd(x, [x[:1], x[1:]], scale=2, again=x)
        self.odd.factor = 1.0
        return found["out"].sum() + found["rest"][0].sum()


def test_arguments_that_are_no_tensors_and_state_set_from_outside():
    result = replay(Parent(), (torch.randn(4, 8),), {})
    assert result.mismatches == []
    assert len(result.stateful) == 1
    assert "odd (Odd) call 1" in result.stateful[0]
    assert result.same == result.calls == 2


def test_a_wrong_record_is_found(monkeypatch):
    # What a capture without copies would record: the in-place ReLU has been there already.
    import hookviz.capture._snapshot as snapshots

    monkeypatch.setattr(snapshots, "plain_snapshot", lambda tensor: tensor.detach())
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True))
    result = replay(net, (torch.randn(4, 8),), {})
    assert len(result.mismatches) == 1
    assert "0 (Linear) call 1: [] differs by" in result.mismatches[0]


def test_large_weights_are_seeded():
    def build():
        torch.manual_seed(0)
        with FastInit():
            return randomise(nn.Sequential(nn.Linear(300, 300), nn.Conv2d(3, 4, 3)))

    one, other = build(), build()
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert bool(a.isfinite().all())
    assert 0.5 < float(one[0].weight.detach().std() * 300**0.5) < 2
