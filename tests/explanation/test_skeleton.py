"""What every method stands on: targets, records, figures."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hookviz
from hookviz.errors import HookvizError
from hookviz.explanation import methods


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    ).eval()  # fmt: skip


def test_grad_cam_is_its_formula_before_an_in_place_relu():
    model = net()
    loaded = hookviz.load_model(model)
    found = hookviz.explain(loaded, hookviz.sample_image(), ["0", "2"], target=3)
    x = found.input.tensor
    before = model[0](x)
    kept = before.clone()
    score = model[1:](kept.clone())[0, 3]
    (gradient,) = torch.autograd.grad(score, kept)
    wide, slope = kept.double(), gradient.double()
    expected = (slope.mean((2, 3), keepdim=True) * wide).sum(1)[0]
    torch.testing.assert_close(found.activations[0].tensor[0, 0], expected, rtol=1e-6, atol=1e-9)
    assert torch.equal(found.map("0"), found.activations[0].tensor[0, 0].clamp(min=0))
    assert found.targets == ("class 3",)
    assert found.scores == pytest.approx([float(score.detach())])
    assert all(p.grad is None for p in model.parameters())


def test_an_unknown_method_is_a_sentence_with_those_there_are():
    with pytest.raises(HookvizError, match=r"There is no method 'gradcan'.*'gradcam'"):
        hookviz.explain(net(), hookviz.sample_image(), "0", method="gradcan")


def test_every_method_names_its_paper():
    assert all(one.paper and one.title for one in methods())
