"""Crops show the receptive field in the original image, and mark what lies beyond."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import hookviz
from hookviz.errors import ImageError, SurveyError
from hookviz.images import Preprocessing
from hookviz.surveys._crops import SIDE, crop_of

from .conftest import Begin


@pytest.fixture(scope="module")
def spots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Black images of 64×96 with one white pixel each, which decides where a channel answers."""
    folder = tmp_path_factory.mktemp("spots")
    for number, (y, x) in enumerate([(32, 48), (0, 16), (63, 79), (10, 90), (33, 20)]):
        pixels = np.zeros((64, 96, 3), np.uint8)
        pixels[y, x] = 255
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def test_boxes_are_those_of_the_theory(spots: Path, tmp_path: Path) -> None:
    # Two convolutions: 5 wide at stride 2, then 3 wide: the field is 5 + 2·2 = 9 wide, at stride 2.
    net = nn.Sequential(
        nn.Conv2d(3, 1, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(1, 1, 3, padding=1)
    )
    for parameter in net.parameters():
        nn.init.constant_(parameter, 1.0)
    cut = Preprocessing(resize=(64, 96), crop=(64, 64), fit="crop")  # columns 16 to 79
    found = hookviz.survey(net, spots, ["2"], tmp_path, preprocess=cut, workers=0, top=5)
    hits = {hit.image: hit for hit in found.top("2", 0)}
    assert set(hits) == {0, 1, 2, 3, 4}
    for hit in hits.values():
        y, x = hit.place
        left, top = 2 * x - 4 + 16, 2 * y - 4
        assert hit.box == (left, top, left + 9, top + 9)
        assert hit.shows == "field"
        crop = np.asarray(hit.crop).astype(int)
        assert crop.shape == (SIDE, SIDE, 3)
        inside = np.zeros((9, 9), bool)
        rows, columns = np.arange(top, top + 9), np.arange(left, left + 9)
        inside[:] = ((rows >= 0) & (rows < 64))[:, None] & (columns >= 16) & (columns < 80)
        centers = ((np.arange(9) + 0.5) * SIDE / 9).astype(int)
        pixels = crop[centers][:, centers].mean(-1)
        assert (pixels[~inside] > 120).all()  # hatched, not black
        spot = {0: (32, 48), 1: (0, 16), 2: (63, 79), 4: (33, 20)}.get(hit.image)
        for at in np.argwhere(inside):
            white = spot is not None and (rows[at[0]], columns[at[1]]) == spot
            assert (pixels[tuple(at)] > 120) == white, (hit, at)


def test_a_field_that_is_the_whole_input_shows_all_that_the_network_saw(
    spots: Path, tmp_path: Path
) -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3))
    cut = Preprocessing(resize=(64, 96), crop=(64, 64), fit="crop")
    found = hookviz.survey(net, spots, ["1", "3"], tmp_path, preprocess=cut, workers=0)
    for layer in ("1", "3"):
        hit = found.top(layer, 0)[0]
        assert hit.shows == "whole image"
        assert hit.box == (16, 0, 80, 64)
        expected = hookviz.read_image(hit.path).image.crop((16, 0, 80, 64))
        expected = expected.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        assert np.abs(np.asarray(hit.crop).astype(int) - np.asarray(expected)).max() < 25


class Tokens(nn.Module):
    """Patches of 8×8, a class token before them, attention over all."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 8, stride=8)
        self.cls = nn.Parameter(torch.zeros(1, 1, 8))
        self.norm = nn.LayerNorm(8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.block(self.norm(torch.cat([self.cls.expand(len(x), -1, -1), x], 1)))


def test_tokens_show_their_patch(spots: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    cut = Preprocessing(resize=(64, 96), crop=(64, 64), fit="crop")
    found = hookviz.survey(Tokens(), spots, ["norm", "block"], tmp_path, preprocess=cut, workers=0)
    assert found.facts["layouts"][0]["grid"] == [8, 8]
    seen = set()
    for channel in range(8):
        for hit in found.top("norm", channel):
            (token,) = hit.place
            seen.add(hit.shows)
            if token == 0:
                assert hit.shows == "whole image"
                continue
            y, x = divmod(token - 1, 8)
            assert hit.shows == "token patch"
            assert hit.box == (16 + 8 * x, 8 * y, 24 + 8 * x, 8 * y + 8)
    assert "token patch" in seen


def test_a_crop_of_a_part_is_that_part() -> None:
    random = np.random.default_rng(0)
    image = Image.fromarray(random.integers(0, 256, (40, 50, 3), dtype=np.uint8))
    # The input is the image at half its size: a box of 14×14 of it is 28×28 pixels.
    crop = crop_of(image, (0.0, 0.0, 50.0, 40.0), (25, 20), (2.0, 3.0, 16.0, 17.0))
    expected = image.crop((4, 6, 32, 34)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    assert np.array_equal(np.asarray(crop), np.asarray(expected))
    outside = crop_of(image, (0.0, 0.0, 50.0, 40.0), (25, 20), (-30.0, 0.0, -10.0, 20.0))
    assert len(np.unique(np.asarray(outside))) == 2


def test_a_figure_holds_the_crops(spots: Path, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 12, 5, stride=2, padding=2), nn.ReLU())
    cut = Preprocessing(resize=(64, 96), crop=(64, 64), fit="crop")
    found = hookviz.survey(net, spots, ["0"], tmp_path, preprocess=cut, workers=0)
    figure = found.figure("0", [3, 1], count=4)
    shown = [axes for axes in figure.axes if axes.images]
    assert len(shown) == 8
    assert np.array_equal(shown[0].images[0].get_array(), np.asarray(found.top("0", 3)[0].crop))
    assert [axes.get_title() for axes in shown[:4]] == [
        f"{hit.value:.4g}" for hit in found.top("0", 3, 4)
    ]
    assert len(found.figure("0").axes) == 8 * 10
    counts = found.statistics("0").histogram[3]
    (histogram,) = [axes for axes in figure.axes if axes.patches][:1]
    heights = histogram.patches[0].get_data().values
    assert heights.sum() == pytest.approx(counts.sum() - counts[0] - counts[2048])
    with pytest.raises(hookviz.HookvizError, match="channels 0 to 11"):
        found.figure("0", 12)


def test_the_image_of_a_crop_is_read_again(begin: Begin, photos: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(photos, tmp_path / "photos")
    survey = begin(copy, tmp_path / "out")
    hit = survey.top("conv", 2, 1)[0]
    picture = survey.picture(hit.image)
    assert picture.path == hit.path
    assert picture.image.tobytes() == hookviz.read_image(photos / hit.name).image.tobytes()
    Path(hit.path).write_bytes((photos / survey.images[hit.image - 1].name).read_bytes())
    with pytest.raises(ImageError, match="changed"):
        survey.picture(hit.image)
    Path(hit.path).unlink()
    with pytest.raises(ImageError, match=Path(hit.name).name):
        survey.picture(hit.image)
    with pytest.raises(SurveyError, match="0 to 20"):
        survey.picture(21)
    of_tensors = begin([torch.rand(3, 24, 24)], tmp_path / "tensors")
    with pytest.raises(ImageError, match="without a file"):
        of_tensors.picture(0)
