"""Attention rollout is the paper's product of matrices, of the layers that were selected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torchvision import models as tv

import hookviz
from hookviz.errors import HookvizError, LayerError
from hookviz.images import network_input

LAYERS = [f"encoder.layers.encoder_layer_{i}.self_attention" for i in range(3)]
# Attention is kept in float32, and kernels of several threads round it otherwise.
ROUNDING = 5e-7
SMALL = hookviz.Preprocessing(resize=(96, 96))


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    torch.manual_seed(0)
    model = tv.VisionTransformer(96, 16, 3, 4, 32, 64).eval()
    for block in model.encoder.layers:  # else attention is nearly even
        nn.init.normal_(block.self_attention.in_proj_weight, std=0.6)
    return model


def by_hand(vit: nn.Module, layers: range) -> NDArray[np.float64]:
    """(T, T), block by block, in NumPy."""
    fed = network_input(hookviz.sample_image(), SMALL, device="cpu", dtype=torch.float32).tensor
    with torch.no_grad():
        x = vit._process_input(fed)
        x = torch.cat([vit.class_token, x], 1) + vit.encoder.pos_embedding
        rolled = np.eye(37)
        for number, block in enumerate(vit.encoder.layers):
            y = block.ln_1(x)
            y, weights = block.self_attention(y, y, y, average_attn_weights=False)
            if number in layers:
                mean = weights[0].double().numpy().mean(0)
                one = 0.5 * mean + 0.5 * np.eye(37)
                rolled = np.matmul(one, rolled)
            x = x + y
            x = x + block.mlp(block.ln_2(x))
    return rolled


def roll(model: nn.Module, layers: Any, **options: Any) -> hookviz.Explanation:
    size = options.pop("preprocess", SMALL)
    return hookviz.explain(
        model, hookviz.sample_image(), layers, method="rollout", preprocess=size, **options
    )


@pytest.mark.parametrize("layers", ["encoder", [*LAYERS], "", ["encoder.layers"]])
def test_it_is_the_product_of_all_selected_layers(vit: nn.Module, layers: Any) -> None:
    if layers == ["encoder.layers"]:
        layers = ["encoder.layers.encoder_layer_*"]
    found = roll(vit, layers)
    rolled = by_hand(vit, range(3))
    record = found.activations[-1]
    assert np.allclose(record.tensor[0, 0].flatten().numpy(), rolled[0, 1:], rtol=0, atol=ROUNDING)
    assert np.allclose(record.apart.numpy(), rolled[:1, :1], rtol=0, atol=ROUNDING)
    assert float(record.tensor.sum() + record.apart.sum()) == pytest.approx(1, abs=1e-6)
    assert rolled[0, 1:].std() > 1e-3  # and not even
    assert record.remarks == ("query: class token", "through 3 attention layers")
    assert (record.targets, record.scores) == ((), ())


def test_each_selected_layer_has_the_product_up_to_it(vit: nn.Module) -> None:
    found = roll(vit, LAYERS[1:], query=(2, 5))
    for count, layer in enumerate(LAYERS[1:], start=1):
        rolled = by_hand(vit, range(1, 1 + count))
        row = found.select(layer).tensor.flatten().numpy()
        assert np.allclose(row, rolled[1 + 2 * 6 + 5, 1:], rtol=0, atol=ROUNDING)
    mean = roll(vit, LAYERS[:1], query="mean").activations[0]
    expected = by_hand(vit, range(1))[1:].mean(0)
    assert np.allclose(mean.tensor.flatten().numpy(), expected[1:], rtol=0, atol=ROUNDING)


def test_what_the_file_says_draws_it_again(vit: nn.Module, tmp_path: Any) -> None:
    found = roll(vit, LAYERS, query="class")
    files = found.export(tmp_path, what="grids").files
    assert len(files) == 3
    for file in files:
        again = hookviz.reproduce(file, model=found.model)
        assert again.identical, again.differences
    assert "Attention rollout" in found.select(LAYERS[2]).label


def test_windows_of_one_stage_and_what_cannot_be_rolled_out(vit: nn.Module) -> None:
    torch.manual_seed(0)
    swin = tv.SwinTransformer([4, 4], 24, [2, 2], [2, 2], [7, 7], stochastic_depth_prob=0.0).eval()
    size = hookviz.Preprocessing(resize=(76, 76))
    found = roll(swin, ["features.1.0.attn", "features.1.1.attn"], query=(3, 3), preprocess=size)
    first, second = found.activations
    assert first.tensor.shape == (1, 1, 19, 19)
    assert int((first.tensor > 0).sum()) == 49  # its window, no further
    assert first.tensor[0, 0, 3, 3] > 0.5
    assert int((second.tensor > 1e-12).sum()) > 49
    for record in found.activations:
        assert float(record.tensor.sum()) == pytest.approx(1, abs=1e-9)
    with pytest.raises(LayerError, match=r"has 10×10 patches, 'features\.1\.0\.attn' has 19×19"):
        roll(swin, "features", preprocess=size)
    with pytest.raises(LayerError, match="'conv_proj' cannot be rolled out: no attention"):
        roll(vit, "conv_proj")
    with pytest.raises(HookvizError, match=r"query is 'class', but 'features\.1\.1\.attn' has no"):
        roll(swin, "features.1", query="class", preprocess=size)
    with pytest.raises(HookvizError, match=r"query is \(6, 0\), but the patch grid has 6 rows"):
        roll(vit, "encoder", query=(6, 0))
    for wrong in ({"query": "middle"}, {"query": (1, -2)}):
        with pytest.raises(HookvizError, match=rf"{next(iter(wrong))} is"):
            roll(vit, "encoder", **wrong)
