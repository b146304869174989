"""Edits of a part of an output: channels, a place, heads; and their records."""

from __future__ import annotations

import json

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import VisionTransformer

from hookviz.capture import (
    add_noise,
    edit,
    edit_from_json,
    effect,
    patch,
    replace_by_mean,
    replace_by_noise,
    replace_output,
    scale,
    zero,
)
from hookviz.errors import CaptureError, LayerError

X = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(1))


def edited(x: torch.Tensor, *edits, module: nn.Module | None = None) -> torch.Tensor:
    net = nn.Sequential(module or nn.Identity())
    with torch.no_grad(), edit(net, *edits):
        return net(x)


# Parts -----------------------------------------------------------------------------------------


def test_the_whole_a_channel_a_place_and_a_channel_at_a_place():
    assert torch.equal(edited(X, zero("0")), torch.zeros_like(X))
    by_hand = X.clone()
    by_hand[:, [0, 2]] *= 0.5
    assert torch.equal(edited(X, scale("0", 0.5, channels=[0, 2])), by_hand)
    by_hand = X.clone()
    by_hand[:, :, 3, 4] = 0
    assert torch.equal(edited(X, zero("0", place=(3, 4))), by_hand)
    by_hand = X.clone()
    by_hand[:, 1, 3, 0] = 0
    assert torch.equal(edited(X, zero("0", channels=1, place=(3, 0))), by_hand)


def test_channels_last_and_tokens():
    tokens = torch.randn(2, 17, 6)
    by_hand = tokens.clone()
    by_hand[:, 1 + 4 * 2 + 3] = 0
    linear = nn.Identity()
    assert torch.equal(edited(tokens, zero("0", place=(2, 3), axis=-1), module=linear), by_hand)
    assert torch.equal(edited(tokens, zero("0", place=12, axis=-1), module=linear), by_hand)
    by_hand = X.clone()
    by_hand[:, 1, 3, 4] = 0
    assert torch.equal(edited(X, zero("0", place=(1, 3), channels=4, axis=3)), by_hand)


def test_mean_of_each_channel_over_its_places():
    mean = X.mean((2, 3), keepdim=True).expand_as(X)
    assert torch.allclose(edited(X, replace_by_mean("0")), mean)
    by_hand = X.clone()
    by_hand[:, :, 0, 0] = mean[:, :, 0, 0]
    assert torch.allclose(edited(X, replace_by_mean("0", place=(0, 0))), by_hand)
    vector = torch.tensor([[1.0, 2.0, 6.0]])
    assert edited(vector, replace_by_mean("0", channels=0)).tolist() == [[3.0, 2.0, 6.0]]


def test_noise_has_the_mean_and_deviation_of_its_channel_and_repeats():
    x = torch.randn(1, 2, 64, 64) * torch.tensor([1.0, 5.0])[:, None, None] + 3
    before = torch.get_rng_state()
    one, again = (edited(x, replace_by_noise("0", seed=4)) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, again)
    assert not torch.equal(one, edited(x, replace_by_noise("0", seed=5)))
    assert abs(float(torch.corrcoef(torch.stack([one.flatten(), x.flatten()]))[0, 1])) < 0.05
    torch.testing.assert_close(one.mean((2, 3)), x.mean((2, 3)), atol=0.3, rtol=0)
    torch.testing.assert_close(one.std((2, 3)), x.std((2, 3)), atol=0, rtol=0.05)


def test_a_stored_value_at_one_place():
    by_hand = X.clone()
    by_hand[:, 1, 2, 2] = 7.0
    stored = torch.full_like(X, 7.0)
    assert torch.equal(edited(X, patch(stored, "0", channels=1, place=(2, 2))), by_hand)


def test_edits_act_in_their_order():
    one = edited(X, zero("0", channels=0), replace_by_mean("0"))
    other = edited(X, replace_by_mean("0"), zero("0", channels=0))
    assert torch.equal(one, other)  # the mean of zeros
    doubled = edited(X, replace_output("0", lambda t: t + 1), scale("0", 2.0))
    assert torch.equal(doubled, (X + 1) * 2)
    assert torch.equal(edited(X, scale("0", 2.0), replace_output("0", lambda t: t + 1)), X * 2 + 1)


# Heads -----------------------------------------------------------------------------------------


def attention_by_hand(module: nn.MultiheadAttention, x: torch.Tensor, factor: dict[int, float]):
    """Self-attention of a batch-first layer in float64, its heads scaled before the projection."""
    module = module.double()
    x, count = x.double(), module.num_heads
    size = module.embed_dim // count
    q, k, v = F.linear(x, module.in_proj_weight, module.in_proj_bias).chunk(3, -1)
    heads = []
    for h in range(count):
        own = slice(h * size, (h + 1) * size)
        weights = (q[..., own] @ k[..., own].transpose(1, 2) / size**0.5).softmax(-1)
        heads.append(weights @ v[..., own] * factor.get(h, 1.0))
    return F.linear(torch.cat(heads, -1), module.out_proj.weight, module.out_proj.bias)


class SelfAttention(nn.Module):
    def __init__(self, *, batch_first: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(12, 3, batch_first=batch_first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_a_head_of_multihead_attention_by_hand(batch_first, grad):
    net, x = SelfAttention(batch_first=batch_first).eval(), torch.randn(2, 5, 12)
    given = x if batch_first else x.transpose(0, 1)
    with torch.set_grad_enabled(grad):
        with edit(net, scale("attention", -0.5, heads=1), zero("attention", heads=[2])) as editing:
            found = net(given)
        plain = net(given)
        with edit(net, scale("attention", 1.0, heads=[0, 1])):
            assert torch.equal(net(given), plain)  # an edit that changes nothing keeps every bit
    assert editing.counts == [1, 1]
    found = found if batch_first else found.transpose(0, 1)
    with torch.no_grad():
        expected = attention_by_hand(net.attention, x, {1: -0.5, 2: 0.0})
    assert float((found.detach().double() - expected).abs().max()) < 2e-6
    assert not net.attention._forward_hooks
    assert not net.attention._forward_pre_hooks


def test_edits_of_one_head_act_in_their_order_and_before_those_of_the_output():
    net, x = SelfAttention().eval(), torch.randn(2, 5, 12)
    with torch.no_grad():
        with edit(net, scale("attention", 0.5, heads=1), scale("attention", 0.5, heads=1)):
            found = net(x)
        with edit(net, scale("attention", 0.25, heads=1)):
            torch.testing.assert_close(found, net(x), atol=1e-6, rtol=0)
        with edit(net, zero("attention", leaf="0"), zero("attention", heads=1)):
            assert float(net(x).abs().max()) == 0


def test_heads_of_torchvision_and_timm_by_their_projection():
    torch.manual_seed(0)
    x = torch.randn(1, 3, 224, 224)
    net = VisionTransformer(224, 32, 2, 4, 32, 64).eval()
    layer = net.encoder.layers.encoder_layer_1.self_attention
    net.heads = nn.Identity()
    with torch.no_grad():
        with edit(net, zero("encoder.layers.encoder_layer_1.self_attention", heads=[0, 3])):
            found = net(x)
        assert float((found - net(x)).abs().max()) > 1e-2
        layer.out_proj.weight[:, :8] = 0
        layer.out_proj.weight[:, 3 * 8 :] = 0
        torch.testing.assert_close(found, net(x), atol=2e-6, rtol=0)

    net = timm.create_model("vit_tiny_patch16_224", pretrained=False).eval()
    with torch.no_grad():
        with edit(net, zero("blocks.3.attn", heads=1)):
            found = net(x)
        net.blocks[3].attn.proj.weight[:, 64:128] = 0
        torch.testing.assert_close(found, net(x), atol=1e-6, rtol=0)


def test_heads_where_there_are_none_or_not_so_many():
    net = SelfAttention()
    with pytest.raises(LayerError, match=r"'' .* has no attention heads; .*: 'attention'"):
        edit(net, zero("", heads=0))
    x = torch.randn(1, 5, 12)
    with (
        edit(net, zero("attention", heads=3)),
        pytest.raises(CaptureError, match="no head 3 in 'attention': its heads are 0 to 2"),
    ):
        net(x)


# Bad parts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: zero("0", place=(1, 2, 3, 4)), "place must be (row, column)"),
        (lambda: zero("0", place=-1), "not -1"),
        (lambda: zero("0", heads=1, channels=2), "heads= already says which values"),
        (lambda: zero("0", heads=[]), "Heads are given by one or more indices"),
        (lambda: zero("0", chanels=3), "zero has no option 'chanels'; it has"),
        (lambda: scale("0", float("nan")), "factor must be a finite number, not nan"),
        (lambda: replace_by_noise("0", seed=-1), "seed must be a whole number from 0, not -1"),
    ],
)
def test_bad_parts(make, part):
    with pytest.raises(CaptureError) as caught:
        make()
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("one", "part"),
    [
        (zero("0", channels=3), "its channels are 0 to 2"),
        (zero("0", place=(4, 0)), "no place 4 along axis 2"),
        (zero("0", place=7), "places (row, column)"),
    ],
)
def test_parts_that_are_not_there(one, part):
    with pytest.raises(CaptureError) as caught:
        edited(X, one)
    assert part in str(caught.value)


# Records ---------------------------------------------------------------------------------------

ALL = [
    zero("0"),
    zero("0", channels=[0, 2], call=1),
    scale("0", -0.3, place=(1, 2)),
    replace_by_mean("0", channels=1, axis=1),
    replace_by_noise("0", seed=9, channels=2),
]


@pytest.mark.parametrize("one", ALL, ids=str)
def test_an_edit_comes_back_from_its_record(one):
    again = edit_from_json(json.loads(json.dumps(one.to_json())))
    assert (str(again), again.to_json()) == (str(one), one.to_json())
    assert torch.equal(edited(X, again), edited(X, one))


def test_what_no_record_can_hold_says_so():
    for one in (add_noise("0", 1.0), patch(X, "0"), replace_output("0", torch.relu)):
        with pytest.raises(CaptureError, match="which no file can say again"):
            one.to_json()
    with pytest.raises(CaptureError, match="does not name its layers"):
        zero(nn.Conv2d).to_json()


@pytest.mark.parametrize(
    ("record", "part"),
    [
        ([], "is a mapping"),
        ({"edit": "eval", "layers": ["0"]}, "no edit 'eval'; legal are 'zero'"),
        ({"edit": ["zero"], "layers": ["0"]}, "no edit ['zero']"),
        ({"edit": "zero", "layers": "0"}, "a list of names"),
        ({"edit": "zero", "layers": []}, "a list of names"),
        ({"edit": "zero", "layers": ["0"], "source": 1}, "'source'"),
        ({"edit": "scale", "layers": ["0"]}, "does not fit it"),
        ({"edit": "scale", "layers": ["0"], "factor": "2"}, "factor must be"),
        ({"edit": "zero", "layers": ["0"], "factor": 2}, "'factor'"),
        ({"edit": "zero", "layers": ["0"], "channels": "ab"}, "indices"),
        ({"edit": "zero", "layers": ["0"], "channels": {"a": 1}}, "indices"),
        ({"edit": "zero", "layers": ["0"], "place": [1.5, 2]}, "place must be"),
        ({"edit": "zero", "layers": ["0"], "call": "1"}, "call must be"),
        ({"edit": "zero", "layers": ["0"], "leaf": 3}, "leaf must be"),
    ],
)
def test_records_from_outside_are_checked(record, part):
    with pytest.raises(CaptureError) as caught:
        edit_from_json(record)
    assert part in str(caught.value)


def test_effect_of_an_edit_that_did_not_run():
    with pytest.raises(LayerError, match="changed nothing"):
        effect(nn.Sequential(nn.Identity()), X, zero("0", call=2))
