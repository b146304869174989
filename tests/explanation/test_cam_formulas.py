"""Every class activation map is the formula of its paper, in float64, written out here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import hookviz

from .conftest import CASES, Own, own

Formula = Callable[[Any, Any], Any]


def grad_cam(a: Any, g: Any) -> Any:
    out = np.zeros(a.shape[1:])
    for k in range(len(a)):
        out += g[k].mean() * a[k]
    return out


def grad_cam_plus_plus(a: Any, g: Any) -> Any:
    # Equation 19 with the derivatives of exp(score): alpha = g² / (2 g² + S g³).
    out = np.zeros(a.shape[1:])
    for k in range(len(a)):
        total, weight = a[k].sum(), 0.0
        for i in range(a.shape[1]):
            for j in range(a.shape[2]):
                slope = g[k, i, j]
                if slope > 0:
                    weight += slope**2 / (2 * slope**2 + total * slope**3) * slope
        out += weight * a[k]
    return out


def hires_cam(a: Any, g: Any) -> Any:
    return sum(g[k] * a[k] for k in range(len(a)))


def layer_cam(a: Any, g: Any) -> Any:
    return sum(np.maximum(g[k], 0) * a[k] for k in range(len(a)))


def xgrad_cam(a: Any, g: Any) -> Any:
    out = np.zeros(a.shape[1:])
    for k in range(len(a)):
        if a[k].sum() != 0:
            out += (g[k] * a[k] / a[k].sum()).sum() * a[k]
    return out


def eigen_cam(a: Any, _g: Any) -> Any:
    rows = a.reshape(len(a), -1).T  # places × channels
    right = np.linalg.svd(rows, full_matrices=False)[2][0]
    found = (rows @ right).reshape(a.shape[1:])
    return found if found.sum() > 0 else -found


FORMULAS: dict[str, Formula] = {
    "gradcam": grad_cam,
    "gradcam++": grad_cam_plus_plus,
    "hirescam": hires_cam,
    "layercam": layer_cam,
    "xgradcam": xgrad_cam,
    "eigencam": eigen_cam,
}


def same(found: Tensor, expected: Any, within: float = 2e-6) -> None:
    """Equal within a share of the range of the expected map, which is not constant."""
    expected = np.asarray(expected)
    size = float(np.ptp(expected))
    assert size > 0
    assert found.shape == expected.shape
    assert float(np.abs(found.numpy() - expected).max()) <= within * size


def explained(reference: Own, photo: Any, method: str, **options: Any) -> Any:
    if reference.calls > 1:
        options["call"] = reference.call
    return hookviz.explain(
        reference.loaded, photo, reference.layer, target=reference.target, method=method, **options
    )


@pytest.fixture(scope="module", params=CASES)
def reference(request: pytest.FixtureRequest, photo: Any) -> Own:
    return own(request.param, photo)


@pytest.mark.parametrize("method", FORMULAS)
def test_a_map_is_the_formula_of_its_paper(reference: Own, photo: Any, method: str) -> None:
    expected = FORMULAS[method](reference.a.numpy(), reference.g.numpy())
    with torch.no_grad():
        found = explained(reference, photo, method)
    record = found.activations[0]
    same(record.tensor[0, 0], expected)
    assert torch.equal(found.map(signed=False), record.tensor[0, 0].clamp(min=0))
    if method != "eigencam":
        assert found.scores == (pytest.approx(reference.score, rel=1e-6),)
    if reference.tokens is None:
        assert record.apart is None
    else:
        value, slope = (t.numpy()[:, :, None] for t in reference.tokens)
        if method in ("hirescam", "layercam"):
            apart = FORMULAS[method](value, slope)[:, 0]
        elif method == "gradcam":
            weights = reference.g.numpy().mean((1, 2))
            apart = np.tensordot(weights, value[:, :, 0], 1)
        else:
            return
        np.testing.assert_allclose(
            record.apart[0], apart, rtol=1e-5, atol=1e-5 * np.abs(apart).max()
        )


def test_layers_share_one_forward_and_one_backward(photo: Any) -> None:
    reference = own("vgg16-before-relu", photo)
    layers = ["features.28", "features.23", "features.29", "features.16", "features"]
    runs = []
    handle = reference.module.features[0].register_forward_hook(lambda *_: runs.append(1))
    try:
        several = hookviz.explain(reference.loaded, photo, layers, target=reference.target)
    finally:
        handle.remove()
    assert len(runs) == 1
    assert several.layers == (
        "features.16",
        "features.23",
        "features.28",
        "features.29",
        "features",
    )
    for layer in layers:
        alone = hookviz.explain(reference.loaded, photo, layer, target=reference.target)
        same(several.map(layer, signed=True), alone.map(signed=True).numpy())


@pytest.mark.parametrize("name", ["resnet18", "vit_b_16"])
def test_a_frozen_network_gives_the_same(name: str, photo: Any) -> None:
    reference = own(name, photo, frozen=True)
    before = explained(reference, photo, "gradcam").map(signed=True)
    flags = [p.requires_grad for p in reference.module.parameters()]
    reference.module.requires_grad_(False)
    try:
        frozen = explained(reference, photo, "gradcam").map(signed=True)
        assert not any(p.requires_grad for p in reference.module.parameters())
    finally:
        for p, flag in zip(reference.module.parameters(), flags, strict=True):
            p.requires_grad_(flag)
    # Without parameters that learn, torch's attention takes a kernel that rounds otherwise.
    same(frozen, before.numpy(), 2e-6 if name == "resnet18" else 1e-3)


def masks_of(a: Tensor, size: tuple[int, int]) -> Tensor:
    large = F.interpolate(a[:, None], size, mode="bilinear", align_corners=False)
    low = large.flatten(1).min(1).values[:, None, None, None]
    high = large.flatten(1).max(1).values[:, None, None, None]
    return (large - low) / (high - low)


@pytest.mark.parametrize("name", ["resnet18-early", "twice-last", "vit_b_16", "swin_t"])
def test_score_cam_is_its_formula(name: str, photo: Any) -> None:
    reference = own(name, photo)
    strength = reference.a.abs().mean((1, 2))
    chosen = sorted(strength.topk(6).indices.tolist())
    masks = masks_of(reference.a[chosen], (224, 224))
    with torch.no_grad():
        scores = [
            reference.module(reference.input * mask.float()[None])[0, reference.target].double()
            for mask in masks
        ]
    weights = torch.stack(scores).softmax(0)
    expected = (weights[:, None, None] * reference.a[chosen]).sum(0)
    found = explained(reference, photo, "scorecam", channels=6, batch=4)
    same(found.activations[0].tensor[0, 0], expected, 5e-6)


def test_score_cam_of_all_channels(photo: Any) -> None:
    reference = own("twice-last", photo)
    masks = masks_of(reference.a, (224, 224))
    with torch.no_grad():
        scores = reference.module(reference.input * masks.float())[:, reference.target].double()
    expected = (scores.softmax(0)[:, None, None] * reference.a).sum(0)
    same(explained(reference, photo, "scorecam").activations[0].tensor[0, 0], expected)


@pytest.mark.parametrize("name", CASES)
def test_ablation_cam_is_its_formula(name: str, photo: Any) -> None:
    reference = own(name, photo)
    case = CASES[name]
    chosen = sorted(reference.a.abs().mean((1, 2)).topk(5).indices.tolist())
    last = case.tokens is not None or name == "swin_t"
    scores = []
    for channel in chosen:
        calls: list[int] = []

        def ablate(_module: Any, _args: Any, output: Tensor) -> Tensor | None:
            calls.append(1)  # noqa: B023
            if len(calls) != reference.call:  # noqa: B023
                return None
            output = output.clone()
            if last:
                output[..., channel] = 0  # noqa: B023
            else:
                output[:, channel] = 0  # noqa: B023
            return output

        layer = dict(reference.module.named_modules())[reference.layer]
        handle = layer.register_forward_hook(ablate)
        with torch.no_grad():
            scores.append(float(reference.module(reference.input)[0, reference.target]))
        handle.remove()
    y = reference.score
    weights = [(y - score) / y for score in scores]
    expected = sum(w * reference.a[k] for w, k in zip(weights, chosen, strict=True))
    found = explained(reference, photo, "ablationcam", channels=5)
    # The weights are small differences of scores in float32.
    same(
        found.activations[0].tensor[0, 0], expected, 2e-6 * y / max(abs(y - s) for s in scores) * 2
    )
