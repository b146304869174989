"""A module of one's own with an input of a fixed size or of one channel, from the photo to maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import hookviz
from hookviz.images import sample_image


def digits() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 12 * 12, 10)
    ).eval()


def test_digits_of_28_pixels_in_grey() -> None:
    run = hookviz.feature_maps(digits(), sample_image(), ["0", "4"])
    assert run.input.tensor.shape == (1, 1, 28, 28)
    assert run.activations[0].shape == (1, 8, 24, 24)
    assert "found by trial: 28×28 pixels, grey" in run.model.note
    grey = sample_image().image.convert("L")
    side = 300 * 28 // 300
    width = round(451 * side / 300)
    left = round((width - side) / 2)
    small = grey.resize((width, side), Image.Resampling.BILINEAR).crop((left, 0, left + 28, 28))
    wanted = torch.from_numpy(np.array(small, np.float32) / 255)
    assert torch.equal(run.input.tensor[0, 0], wanted)
    assert np.array_equal(np.asarray(run.input.picture())[..., 0], np.asarray(small))


def test_a_size_and_a_mean_of_ones_own_take_the_place_of_what_was_found() -> None:
    how = hookviz.Preprocessing.for_size(28, "pad", channels=1, mean=0.1307, std=0.3081)
    run = hookviz.feature_maps(digits(), sample_image(), ["0"], preprocess=how)
    assert run.input.preprocessing == how
    assert run.input.box == (0.0, pytest.approx(-75.5, abs=16), 451.0, pytest.approx(375.5, abs=16))


def test_three_channels_become_grey_by_luma_for_a_model_of_one() -> None:
    run = hookviz.feature_maps(
        nn.Conv2d(1, 2, 3), sample_image(), [""], preprocess=hookviz.Preprocessing.for_size(32)
    )
    assert run.activations[0].shape == (1, 2, 30, 30)


@pytest.mark.parametrize("side", [64, 299])
def test_other_sizes(side: int) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, 2), nn.Flatten(), nn.Linear(4 * ((side - 1) // 2) ** 2, 2)
    )
    run = hookviz.feature_maps(net, sample_image(), ["0"])
    assert run.input.tensor.shape[2:] in ((side, side), (side + side % 2 - 1,) * 2)


def test_a_module_of_any_size_gets_the_whole_photo() -> None:
    run = hookviz.feature_maps(nn.Conv2d(3, 2, 3), sample_image(), [""])
    assert run.input.tensor.shape == (1, 3, 300, 451)
    assert run.model.note == ""


@pytest.mark.parametrize("name", ["MobileViTImageProcessor", "ConvNextImageProcessor"])
@pytest.mark.filterwarnings("ignore")
def test_a_processor_given_to_a_run_decides_every_value(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    processor: Any = getattr(transformers, name)()
    run = hookviz.feature_maps(nn.Conv2d(3, 2, 3), sample_image(), [""], preprocess=processor)
    wanted: Tensor = processor(images=sample_image().image, return_tensors="pt")["pixel_values"]
    assert torch.equal(run.input.tensor, wanted)
