"""Values, channel vectors and regions of captured layers."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import hookviz
from hookviz import HookvizError
from hookviz.errors import LayerError
from hookviz.run import Run

PHOTO = hookviz.sample_image("chelsea.png")


class Cast(nn.Module):
    """Gives its input in another dtype or layout."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Any:
        return self.change(x)


def run_of(change: Any, size: int = 24) -> Run:
    net = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), Cast(change))
    torch.manual_seed(0)
    return hookviz.feature_maps(net, PHOTO, ["1"], preprocess=hookviz.Preprocessing.for_size(size))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x,
        lambda x: x.half(),
        lambda x: x.bfloat16(),
        lambda x: x.double(),
        lambda x: x.to(torch.float8_e4m3fn),
        lambda x: (x * 100).to(torch.int16),
        lambda x: x > 0,
        lambda x: torch.complex(x, -x),
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x.clone().masked_fill_(x > 0.5, torch.nan),
    ],
)
def test_a_value_is_the_element_of_the_tensor(change: Any) -> None:
    run = run_of(change)
    tensor = run.activations[0].tensor
    for c, y, x in ((0, 0, 0), (4, 23, 5), (2, 7, 19)):
        value, own = run.value("1", c, y, x, axes="maps"), tensor[0, c, y, x].item()
        assert type(value) is type(own)
        assert value == own or (value != value and own != own)
        vector = run.vector("1", y, x, axes="maps")
        assert vector.values.dtype == tensor.dtype
        assert repr(vector.values[c].item()) == repr(own)


def test_places_are_those_of_the_figure_for_tokens_and_channels_last() -> None:
    tokens = run_of(lambda x: F.pad(x.flatten(2).transpose(1, 2), (0, 0, 1, 0)))
    tensor = tokens.activations[0].tensor
    assert tokens.value("1", 3, 2, 5, grid=(24, 24)) == tensor[0, 1 + 2 * 24 + 5, 3].item()
    last = run_of(lambda x: x.permute(0, 2, 3, 1))
    assert last.value("1", 3, 2, 5) == last.activations[0].tensor[0, 2, 5, 3].item()
    vector = run_of(lambda x: x.mean((2, 3)))
    assert vector.value("1", 3, 0, 0) == vector.activations[0].tensor[0, 3].item()


def test_samples_and_calls_are_chosen() -> None:
    batch = run_of(lambda x: torch.cat((x, 2 * x)))
    tensor = batch.activations[0].tensor
    assert batch.value("1", 1, 4, 5, sample=1, axes="maps") == tensor[1, 1, 4, 5].item()
    net = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU())
    both = nn.Sequential(net, net)
    run = hookviz.feature_maps(both, PHOTO, ["0.0"])
    assert run.value("0.0", 1, 4, 5, call=2) == run.activations[1].tensor[0, 1, 4, 5].item()
    with pytest.raises(LayerError, match="called 2 times"):
        run.value("0.0", 1, 4, 5)


def test_ranks_count_from_the_largest_and_nan_has_none() -> None:
    def change(x: Tensor) -> Tensor:
        x = x.clone()
        x[0, :, 3, 4] = torch.tensor([1.0, 5.0, torch.nan, 5.0, -torch.inf])
        return x

    vector = run_of(change).vector("1", 3, 4)
    assert vector.order == (1, 3, 0, 4, 2)
    assert [vector.rank(c) for c in range(5)] == [3, 1, None, 1, 4]
    assert vector.top(2) == [(1, 5.0), (3, 5.0)]
    assert (vector.layer, vector.y, vector.x) == ("1", 3, 4)


@pytest.mark.parametrize("most", [1, 5, 45, 125, 10**6])
def test_values_around_a_place_are_those_of_each_place(most: int) -> None:
    run = run_of(lambda x: x.clone().masked_fill_(x > 0.6, torch.nan))
    for c, y, x in ((0, 0, 0), (4, 23, 11), (2, 9, 22)):
        around = run.values_around("1", c, y, x, most=most)
        rows, columns = around.values.shape
        assert rows == columns == max(1, min(24, int((most // 5) ** 0.5)))
        assert 0 <= y - around.top < rows
        assert 0 <= x - around.left < columns
        for i in range(rows):
            for j in range(columns):
                vector = run.vector("1", around.top + i, around.left + j)
                assert torch.equal(
                    around.values[i, j].nan_to_num(9.0), vector.values[c].nan_to_num(9.0)
                )
                assert int(around.ranks[i, j]) == (vector.rank(c) or 0)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ((5, 0, 0), r"channel is 5; '1' has channels 0 to 4"),
        ((0, 24, 0), r"row is 24; '1' has rows 0 to 23"),
        ((0, 0, -1), r"column is -1; '1' has columns 0 to 23"),
        ((0, 0.5, 0), r"row is 0.5"),
        ((True, 0, 0), r"channel is True"),
    ],
)
def test_a_place_outside_is_one_sentence(place: tuple[Any, Any, Any], words: str) -> None:
    with pytest.raises(LayerError, match=words):
        run_of(lambda x: x).value("1", *place)


# ── Regions


def test_channels_are_ranked_by_their_mean_inside_against_outside() -> None:
    run = run_of(lambda x: x)
    box = run.input.box
    assert box is not None
    scale = (box[2] - box[0]) / 24
    # Rows 4 to 9 and columns 10 to 19 of the input, whose places are the convolution's own.
    region = (box[0] + 10 * scale, box[1] + 4 * scale, box[0] + 20 * scale, box[1] + 10 * scale)
    found = run.channels_in("1", region)
    maps = run.activations[0].tensor[0].double()
    mask = torch.zeros(24, 24, dtype=torch.bool)
    mask[4:10, 10:20] = True
    assert torch.equal(found.places, mask)
    assert torch.allclose(found.inside, maps[:, mask].mean(1))
    assert torch.allclose(found.outside, maps[:, ~mask].mean(1))
    expected = maps[:, mask].mean(1) - maps[:, ~mask].mean(1)
    assert found.order == tuple(expected.argsort(descending=True).tolist())
    same = run.channels_in("1", (10, 4, 20, 10), of="input")
    assert torch.equal(same.places, mask)


def test_places_lie_where_the_centers_of_their_fields_do() -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 5, stride=4))
    run = hookviz.feature_maps(net, PHOTO, ["0"], preprocess=hookviz.Preprocessing.for_size(24))
    found = run.channels_in("0", (2, 2, 7, 3), of="input")  # centers at 2.5, 6.5, 10.5, ...
    assert found.places.nonzero().tolist() == [[0, 0], [0, 1]]
    tiny = run.channels_in("0", (9.9, 2, 10, 3), of="input")
    assert tiny.places.nonzero().tolist() == [[0, 2]]
    assert "nearest" in tiny.note


def test_places_of_attention_lie_evenly() -> None:
    run = run_of(lambda x: x.softmax(2).softmax(3))
    found = run.channels_in("1", (0, 0, 12, 24), of="input")
    assert found.places[:, :12].all()
    assert not found.places[:, 12:].any()
    assert "evenly" in found.note


@pytest.mark.parametrize("region", [(5, 5, 5, 9), (1, 2, 3), "abcd", (0, 9, 9, 2), None])
def test_a_region_that_is_none_is_one_sentence(region: Any) -> None:
    with pytest.raises(LayerError, match="region"):
        run_of(lambda x: x).channels_in("1", region)


def test_a_pixel_leads_to_the_place_whose_field_lies_around_it() -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 5, stride=4), nn.Conv2d(2, 2, 3, padding=1))
    how = hookviz.Preprocessing(crop=(25, 25), fit="squash")
    run = hookviz.feature_maps(net, PHOTO, ["0", "1"], preprocess=how)
    for layer in ("0", "1"):
        assert run.place_at(layer, 2, 2, of="input") == (0, 0)
        assert run.place_at(layer, 10, 17, of="input") == (4, 2)
        assert run.place_at(layer, 24, 0, of="input") == (0, 5)
        rows, columns = run.centers(layer)
        for y, x in ((0, 24), (7, 3), (12, 12), (20, 1)):
            at = int((rows - y - 0.5).abs().argmin()), int((columns - x - 0.5).abs().argmin())
            assert run.place_at(layer, x, y, of="input") == at
    assert run.centers("0")[0].tolist() == [2.5, 6.5, 10.5, 14.5, 18.5, 22.5]
    width, height = run.image.size
    assert run.place_at("0", width - 1, 0) == (0, 5)
    assert run.place_at("0", width // 2, height // 2) in ((2, 2), (3, 3), (2, 3), (3, 2))


def test_values_do_not_depend_on_the_default_device_or_dtype() -> None:
    run = run_of(lambda x: x)
    plain = run.value("1", 3, 2, 5), run.receptive_field("1", 2, 5)
    torch.set_default_device("meta")
    torch.set_default_dtype(torch.float64)
    try:
        other = run_again(run)
        assert (other.value("1", 3, 2, 5), other.receptive_field("1", 2, 5)) == plain
        assert other.channels_in("1", (0, 0, 9, 9), of="input").places[:9, :9].all()
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def run_again(run: Run) -> Run:
    """The same run with nothing kept of what was asked before."""
    return replace(run, activations=tuple(replace(a) for a in run.activations))


# ── The photo


def stored(pixels: np.ndarray, orientation: int) -> bytes:
    """A PNG with an EXIF orientation."""
    image = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    image.save(buffer, "PNG", exif=exif)
    return buffer.getvalue()


PREPROCESSINGS: dict[str, Any] = {
    "cropped": hookviz.Preprocessing(16, (12, 12), "crop"),
    "squashed": hookviz.Preprocessing(crop=(14, 10), fit="squash"),
    "letterboxed": hookviz.Preprocessing(crop=(12, 12), fit="pad"),
    "enlarged": hookviz.Preprocessing(crop=(40, 40), fit="squash"),
    "as it is": hookviz.Preprocessing(),
}


def flipped(image: Image.Image) -> Tensor:
    array = np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).resize((12, 12)))
    return torch.from_numpy(array.copy()).permute(2, 0, 1) / 255


PREPROCESSINGS["flipped by a function"] = flipped


@pytest.mark.parametrize("orientation", [1, 2, 6, 7])
@pytest.mark.parametrize("name", PREPROCESSINGS)
def test_the_box_on_the_photo_holds_the_pixels_that_move_the_place(
    name: str, orientation: int
) -> None:
    generator = np.random.default_rng(3)
    pixels = generator.integers(0, 256, (19, 27, 3), np.uint8)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 8, 2)).double()

    def run(values: np.ndarray) -> Run:
        return hookviz.feature_maps(
            net, stored(values, orientation), ["1"], preprocess=PREPROCESSINGS[name]
        )

    plain = run(pixels)
    upright = np.asarray(plain.image.image)
    # Where each upright pixel is stored.
    places = np.arange(pixels.shape[0] * pixels.shape[1]).reshape(pixels.shape[:2])
    coded = np.stack((places // 256, places % 256, places * 0), 2).astype(np.uint8)
    turned = np.asarray(run(coded).image.image).astype(int)
    where = turned[..., 0] * 256 + turned[..., 1]
    y, x = 1, 2
    field = plain.receptive_field("1", y, x, axes="maps")
    before = plain.activations[0].tensor[0, :, y, x]

    def moves(line: tuple[Any, Any]) -> bool:
        """Whether any change of a row or a column of the photo moves the place."""
        for shift in (97, 160):
            changed = pixels.copy()
            changed.reshape(-1, 3)[where[line].ravel()] += np.uint8(shift)
            after = run(changed).activations[0].tensor[0, :, y, x]
            if not torch.equal(before, after):
                return True
        return False

    rows = [row for row in range(len(upright)) if moves((row, slice(None)))]
    columns = [column for column in range(upright.shape[1]) if moves((slice(None), column))]
    assert field.image_box == (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
    assert field.image_size == (upright.shape[1], upright.shape[0])


def test_a_frame_around_the_photo_is_no_part_of_it(tmp_path: Path) -> None:
    Image.new("RGB", (40, 10), "red").save(tmp_path / "wide.png")
    run = hookviz.feature_maps(
        nn.Conv2d(3, 2, 3), tmp_path / "wide.png", [""],
        preprocess=hookviz.Preprocessing(crop=(40, 40), fit="pad"),
    )  # fmt: skip
    field = run.receptive_field("", 0, 0)
    assert field.seen == (0, 0, 3, 3)
    assert field.image_box is None
    assert "frame" in field.note


def test_preprocessing_by_chance_has_no_box_on_the_photo() -> None:
    def random(image: Image.Image) -> Tensor:
        return torch.rand(3, 8, 8) * image.width

    run = hookviz.feature_maps(nn.Conv2d(3, 2, 3), PHOTO, [""], preprocess=random)
    field = run.receptive_field("", 0, 0)
    assert field.box == (0, 0, 3, 3)
    assert field.image_box is None
    assert "another input each time" in field.note
    with pytest.raises(HookvizError, match="function of your own"):
        run.channels_in("", (0, 0, 4, 4))
