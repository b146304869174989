"""The automatic scale shows the maps: the few strongest places do not hide all others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hookviz
from hookviz.render import GridOptions, draw


@pytest.fixture(scope="module")
def model() -> hookviz.LoadedModel:
    return hookviz.load_model("vgg16", "bundled", device="cpu")


@pytest.mark.parametrize("name", ["astronaut", "chelsea", "coffee"])
def test_at_most_a_third_of_the_live_maps_of_vgg16_are_nearly_black(model, name):
    run = hookviz.feature_maps(model, hookviz.sample_image(f"{name}.png"), ["features.*"])
    assert len(run.activations) == 31
    for activation in run.activations:
        largest = activation.tensor[0].double().abs().flatten(1).amax(1).numpy()
        drawing = draw(activation, GridOptions(per_page=1))
        assert drawing.vmax is not None
        dim = largest[largest > 0] < 0.3 * drawing.vmax
        assert dim.mean() <= 0.35, activation.layer


def outlier(sign: float) -> torch.Tensor:
    """10,000 values up to ±1, one of them 50."""
    tensor = torch.linspace(min(sign, 0.0), 1.0, 10_000).reshape(1, 1, 100, 100)
    tensor[0, 0, 40, 60] = 50.0
    return tensor


@pytest.mark.parametrize("sign", [0.0, -1.0])
def test_what_lies_beyond_the_automatic_scale_is_marked_and_counted(sign):
    tensor = outlier(sign)
    drawing = draw(tensor)
    size = np.sort(np.abs(tensor.numpy().ravel()))[round(0.98 * 9_999)]
    assert drawing.vmax == size
    assert drawing.vmin == (0.0 if sign == 0 else -size)
    assert drawing.above == int((tensor > size).sum()) > 0
    assert drawing.below == int((tensor < drawing.vmin).sum())
    full = draw(tensor, GridOptions(scale="full"))
    assert (full.vmin, full.vmax) == ((0.0 if sign == 0 else -50.0), 50.0)
    assert (full.below, full.above) == (0, 0)


@pytest.mark.parametrize(
    ("tensor", "ends"),
    [
        # Nothing would be gained, or nothing would be left.
        (torch.linspace(0, 1, 400), (0.0, 1.0)),
        (torch.linspace(-1, 1, 400), (-1.0, 1.0)),
        (torch.cat([torch.zeros(399), torch.tensor([3.0])]), (0.0, 3.0)),
        (torch.zeros(400), (0.0, 0.0)),
        (torch.full((400,), -2.0), (-2.0, 2.0)),
    ],
)  # fmt: skip
def test_the_full_range_stays_where_clipping_gains_nothing(tensor, ends):
    drawing = draw(tensor.reshape(1, 1, 20, 20))
    assert (drawing.vmin, drawing.vmax) == ends
    assert (drawing.below, drawing.above) == (0, 0)


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int32, torch.float16, torch.bfloat16, torch.float64]
)
def test_every_dtype_has_the_same_automatic_scale(dtype):
    tensor = torch.arange(400).remainder(20).reshape(1, 1, 20, 20).to(dtype)
    tensor[0, 0, 3, 4] = 100
    drawing = draw(tensor)
    assert (drawing.vmin, drawing.vmax, drawing.above) == (0.0, 19.0, 1)


def test_what_is_not_finite_does_not_move_the_automatic_scale():
    tensor = outlier(-1.0)
    ends = draw(tensor).vmax
    tensor[0, 0, 7, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    assert draw(tensor).vmax == pytest.approx(ends, rel=1e-3)
