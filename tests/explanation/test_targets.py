"""What is explained: classes, boxes, masks, channels and places of later layers, functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookviz
from hookviz.errors import HookvizError
from hookviz.explanation import BoxTarget, ChannelTarget, MaskTarget

SIZE = hookviz.Preprocessing.for_size(32)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 6, 3, padding=1, stride=2)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Conv2d(6, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.second(self.relu(self.first(x))))


def grad_cam(a: Tensor, score: Tensor) -> Tensor:
    (g,) = torch.autograd.grad(score, a, retain_graph=True)
    return (g.double().mean((2, 3), keepdim=True) * a.detach().double()).sum(1)[0]


def close(found: Any, expected: Tensor) -> None:
    assert expected.abs().max() > 0
    torch.testing.assert_close(found.map(signed=True), expected, rtol=2e-5, atol=1e-12)


def test_channels_and_places_of_a_later_layer(photo: Any) -> None:
    module = Convolutions()
    model = hookviz.load_model(module, preprocess=SIZE)
    found = hookviz.explain(model, photo, "first", target="channel 2 of second")
    a = module.first(found.input.tensor).detach().requires_grad_()
    later = module.second(a.clone().relu())
    close(found, grad_cam(a, later[0, 2].mean()))
    assert found.scores == (pytest.approx(float(later[0, 2].mean().detach()), rel=1e-5),)
    at = hookviz.explain(model, photo, "first", target=ChannelTarget("second", 2, (5, 7)))
    close(at, grad_cam(a, later[0, 2, 5, 7]))
    assert at.targets == ("channel 2 of second at 5, 7",)


def test_several_targets_share_a_forward(photo: Any) -> None:
    module = Convolutions()
    model = hookviz.load_model(module, preprocess=SIZE)
    calls: list[int] = []
    handle = module.first.register_forward_hook(lambda *_: calls.append(1))
    wanted = ["channel 0 of second", "channel 3 of second at 1, 2", lambda out: out[0, 1].sum()]
    try:
        both = hookviz.explain(model, photo, "first", target=wanted)
    finally:
        handle.remove()
    assert len(calls) == 1
    assert both.activations[0].shape == (3, 1, 16, 16)
    for number, target in enumerate(wanted):
        alone = hookviz.explain(model, photo, "first", target=target)
        assert torch.equal(alone.map(signed=True), both.map(target=number, signed=True))


def test_classes_by_number_and_name(photo: Any) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)
    )
    model = hookviz.load_model(module, preprocess=SIZE, categories=("tench", "tabby", "box 0"))
    same = [
        hookviz.explain(model, photo, "0", target=target)
        for target in (1, "1", "tabby", "TABBY", torch.tensor(1), [1], lambda out: out[:, 1])
    ]
    for one in same[1:]:
        assert torch.equal(one.map(signed=True), same[0].map(signed=True))
    assert same[0].targets == ("class 1 (tabby)",)
    assert hookviz.explain(model, photo, "0", target="box 0").targets == ("class 2 (box 0)",)
    best = hookviz.explain(model, photo, "0")
    assert best.targets[0].startswith(f"class {best.predictions.items[0][0]} ")


class Segments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": self.head(self.body(x)), "aux": x}


def test_the_mask_of_a_class(photo: Any) -> None:
    module = Segments()
    model = hookviz.load_model(module, preprocess=SIZE)
    likely = module(
        hookviz.explain(model, photo, "body", target=lambda o: o["out"].sum()).input.tensor
    )
    shares = torch.bincount(likely["out"][0].argmax(0).flatten(), minlength=4)
    label = int(shares.argmax())
    found = hookviz.explain(model, photo, "body", target=MaskTarget(label))
    a = module.body(found.input.tensor).detach().requires_grad_()
    out = module.head(a)
    mask = out[0].argmax(0) == label
    close(found, grad_cam(a, (out[0, label] * mask).sum()))
    for written in (label, f"mask of {label}"):
        again = hookviz.explain(model, photo, "body", target=written)
        assert torch.equal(again.map(signed=True), found.map(signed=True))
    empty = int(shares.argmin())
    if not shares[empty]:
        with pytest.raises(HookvizError, match="is empty"):
            hookviz.explain(model, photo, "body", target=MaskTarget(empty))


class Detects(nn.Module):
    """Two boxes whose scores are sums over the halves of the image, the stronger first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, images: Tensor) -> list[dict[str, Tensor]]:
        found = []
        for one in self.body(images):
            scores = torch.stack([one[:, :, :16].mean(), one[:, :, 16:].mean()]).sigmoid()
            boxes = torch.tensor([[0.0, 0, 16, 32], [16, 0, 32, 32]])
            order = scores.argsort(descending=True)
            found.append(
                {
                    "scores": scores[order],
                    "boxes": boxes[order],
                    "labels": torch.tensor([1, 2])[order],
                }
            )
        return found


def test_the_score_of_a_box(photo: Any) -> None:
    module = Detects()
    model = hookviz.load_model(module, preprocess=SIZE, categories=("none", "cat", "dog"))
    found = hookviz.explain(model, photo, "body", target="box 1")
    a = module.body(found.input.tensor).detach().requires_grad_()
    scores = torch.stack([a[0, :, :, :16].mean(), a[0, :, :, 16:].mean()]).sigmoid()
    close(found, grad_cam(a, scores.min()))
    label = int(scores.argmin()) + 1
    assert found.targets == (f"box 1 of class {label} ({model.categories[label]})",)
    by_name = hookviz.explain(model, photo, "body", target=model.categories[label])
    assert torch.equal(by_name.map(signed=True), found.map(signed=True))
    assert hookviz.explain(model, photo, "body").targets[0].startswith("box 0 of")
    with pytest.raises(HookvizError, match=r"no box 2 .* it found 2, 0 to 1"):
        hookviz.explain(model, photo, "body", target=BoxTarget(2))
    # Of masked images the box is found again by its place and class, not by its number.
    assert hookviz.explain(model, photo, "body", target="box 1", method="scorecam").map().any()


def test_a_real_segmentation_model(photo: Any) -> None:
    model = hookviz.load_model("lraspp_mobilenet_v3_large", weights=None, device="cpu")
    model = hookviz.load_model(model.module, preprocess=hookviz.Preprocessing.for_size(64))
    found = hookviz.explain(model, photo, "backbone.16")
    assert found.targets[0].startswith("mask of class ")
    assert found.map(signed=True).any()


def test_the_last_block_of_a_vit_says_that_the_class_token_alone_counts(photo: Any) -> None:
    model = hookviz.load_model("vit_b_16", weights=None, device="cpu")
    nn.init.normal_(model.module.heads.head.weight, 0, 0.02)
    names = [f"encoder.layers.encoder_layer_{i}" for i in (10, 11)]
    found = hookviz.explain(model, photo, names, target=5, method="hirescam")
    notes = [found.drawing(name).notes for name in names]
    assert any("only the class token leads on" in note for note in notes[1])
    assert not any("class token leads" in note for note in notes[0])
    assert found.select(names[1]).apart is not None
    assert bool(found.select(names[1]).apart.any())
    channel = hookviz.explain(model, photo, names[0], target=f"channel 3 of {names[1]} at 2, 5")
    at = hookviz.explain(model, photo, names[0], target=f"channel 3 of {names[1]} at 2, 6")
    assert not torch.equal(channel.map(signed=True), at.map(signed=True))
