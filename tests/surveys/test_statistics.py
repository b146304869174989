"""The numbers of a survey are those of all values at once."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import hookviz
from hookviz.surveys._tally import BINS, NOBODY, Tally, bin_edges

from .conftest import LAYERS, SIZE, Begin


def answers(net: hookviz.LoadedModel, folder: Path) -> dict[str, np.ndarray]:
    """(images, channels, …) of each layer, by hooks of PyTorch's own, image by image."""
    found: dict[str, list[torch.Tensor]] = {}
    names = {module: name for name, module in net.module.named_modules()}
    calls: dict[str, int] = {}

    def keep(module: nn.Module, _args: Any, output: torch.Tensor) -> None:
        name = names[module]
        calls[name] = calls.get(name, 0) + 1
        if name == "relu":
            name = f"relu call {calls[name]} of 2"
        found.setdefault(name, []).append(output[0].clone())

    handles = [module.register_forward_hook(keep) for module in names]
    with torch.no_grad():
        for path in sorted(folder.rglob("*.png")):
            calls.clear()
            net.module(SIZE(hookviz.read_image(path))[None])
    for handle in handles:
        handle.remove()
    return {name: torch.stack(values).numpy() for name, values in found.items()}


@pytest.fixture(scope="module")
def surveyed(
    net: hookviz.LoadedModel, photos: Path, tmp_path_factory: pytest.TempPathFactory
) -> hookviz.Survey:
    out = tmp_path_factory.mktemp("out")
    options: Any = {"batch": 4, "shard": 8, "top": 5, "workers": 0}
    return hookviz.survey(net, photos, [*LAYERS, "more"], out, keep="whole", **options)


def test_statistics_are_those_of_all_values(
    net: hookviz.LoadedModel, photos: Path, surveyed: hookviz.Survey
) -> None:
    expected = answers(net, photos)
    assert set(surveyed.layers) == {
        "conv", "relu call 1 of 2", "more", "relu call 2 of 2", "fc",
    }  # fmt: skip
    for layer in surveyed.layers:
        values = expected[layer]
        flat = np.moveaxis(values, 1, 0).reshape(values.shape[1], -1).astype(np.float64)
        found = surveyed.statistics(layer)
        assert found.images == 21
        np.testing.assert_array_equal(found.count, flat.shape[1])
        np.testing.assert_allclose(found.mean, flat.mean(1), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.std, flat.std(1), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(found.min, flat.min(1), rtol=1e-5)
        np.testing.assert_allclose(found.max, flat.max(1), rtol=1e-5)
        np.testing.assert_array_equal(found.zeros, (flat == 0).sum(1))
        assert found.histogram.sum() == flat.size
        for share in (0.0, 0.01, 0.3, 0.5, 0.9, 1.0):
            true = np.quantile(flat, share, axis=1, method="inverted_cdf")
            assert (np.abs(found.quantile(share) - true) <= np.abs(true) / 8).all()


def test_equal_bins_hold_the_values_of_the_histogram(
    net: hookviz.LoadedModel, photos: Path, surveyed: hookviz.Survey
) -> None:
    values = answers(net, photos)["conv"]
    found = surveyed.statistics("conv")
    for channel in range(6):
        counts, edges = found.equal_bins(channel, 10)
        flat = values[:, channel].ravel().astype(np.float64)
        assert edges[[0, -1]].tolist() == [found.min[channel], found.max[channel]]
        assert counts.sum() == pytest.approx((flat != 0).sum())
        expected, _ = np.histogram(flat, edges)
        # A bin of the histogram lies across the edge of a step: it is an eighth of its value wide.
        assert np.abs(counts - expected).sum() < 0.25 * flat.size
    dead = replace(found, min=found.max)
    assert [len(part) for part in dead.equal_bins(0)] == [0, 0]


def test_an_incomplete_survey_and_one_layer_after_the_other_give_the_same_numbers(
    surveyed: hookviz.Survey, tmp_path: Path
) -> None:
    copy = shutil.copytree(surveyed.folder, tmp_path / "copy")
    (copy / "summary.safetensors").unlink()
    again = hookviz.open_survey(copy)
    for layer in (*surveyed.layers, *surveyed.layers):
        for one, other in zip(
            astuple(surveyed.statistics(layer)), astuple(again.statistics(layer)), strict=True
        ):
            np.testing.assert_array_equal(one, other)


def test_whole_tensors_and_the_strongest_images(
    net: hookviz.LoadedModel, photos: Path, surveyed: hookviz.Survey
) -> None:
    expected = answers(net, photos)
    for layer in surveyed.layers:
        kept = surveyed.tensor(layer).numpy()
        np.testing.assert_allclose(kept, expected[layer], rtol=1e-4, atol=1e-5)
        strongest = kept.reshape(*kept.shape[:2], -1)
        most = strongest.max(-1)
        for channel in range(kept.shape[1]):
            order = np.lexsort((np.arange(21), -most[:, channel]))[:5]
            hits = surveyed.top(layer, channel)
            assert [hit.image for hit in hits] == order.tolist()
            for hit in hits:
                assert (
                    hit.value == most[hit.image, channel] == kept[(hit.image, channel, *hit.place)]
                )
                at = int(strongest[hit.image, channel].argmax())
                assert hit.place == tuple(np.unravel_index(at, kept.shape[2:]))
        found = surveyed.statistics(layer)
        for channel, (image, place) in enumerate(
            zip(found.min_image, found.min_place, strict=True)
        ):
            assert kept[(image, channel, *place)] == found.min[channel] == kept[:, channel].min()
        np.testing.assert_array_equal(found.max_image, most.argmax(0))


def test_tensors_by_image_and_by_channel(surveyed: hookviz.Survey) -> None:
    whole = surveyed.tensor("conv")
    ids = [20, 3, 3, 0]
    assert torch.equal(surveyed.tensor("conv", ids), whole[ids])
    assert torch.equal(surveyed.tensor("conv", ids, channel=2), whole[ids][:, 2])
    assert torch.equal(surveyed.tensor("fc", channel=1), surveyed.tensor("fc")[:, 1])
    assert surveyed.tensor("conv", []).shape == (0, *whole.shape[1:])
    with pytest.raises(hookviz.HookvizError, match="images 0 to 20"):
        surveyed.tensor("conv", [21])


def test_pooled_is_the_mean_over_the_places(
    surveyed: hookviz.Survey, photos: Path, tmp_path: Path, begin: Begin
) -> None:
    pooled = begin(photos, tmp_path, layers=["conv", "fc"], batch=4, shard=8)
    expected = surveyed.tensor("conv").mean((2, 3))
    torch.testing.assert_close(pooled.tensor("conv"), expected)
    torch.testing.assert_close(pooled.tensor("fc"), surveyed.tensor("fc"))
    half = begin(photos, tmp_path / "half", layers=["conv"], batch=4, shard=8, dtype="float16")
    assert torch.equal(half.tensor("conv"), pooled.tensor("conv").half())


def test_a_thousand_images_against_numpy(begin: Begin, tmp_path: Path) -> None:
    images = torch.rand(1000, 3, 8, 8, generator=torch.Generator().manual_seed(0)) - 0.5
    images[500:520] = images[:20]  # equal values, which the number of the image orders
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Conv2d(3, 7, 3), nn.ReLU())
    data = torch.utils.data.TensorDataset(images)
    options: Any = {"batch": 50, "shard": 250, "top": 30, "keep": "whole", "layers": ["1"]}
    found = begin(data, tmp_path, model=net, **options)
    kept = found.tensor("1")
    with torch.no_grad():
        torch.testing.assert_close(kept, net(images))
    values = kept.numpy().astype(np.float64)
    by_channel = values.transpose(1, 0, 2, 3).reshape(7, -1)
    numbers = found.statistics("1")
    assert numbers.images == 1000
    np.testing.assert_allclose(numbers.mean, by_channel.mean(1), rtol=1e-6)
    np.testing.assert_allclose(numbers.std, by_channel.std(1), rtol=1e-6)
    np.testing.assert_array_equal(numbers.max, by_channel.max(1))
    np.testing.assert_array_equal(numbers.zeros, (by_channel == 0).sum(1))
    most = values.max((2, 3))
    ties = 0
    for channel in range(7):
        order = np.lexsort((np.arange(1000), -most[:, channel]))[:30]
        hits = found.top("1", channel)
        assert [hit.image for hit in hits] == order.tolist()
        assert [hit.value for hit in hits] == most[order, channel].tolist()
        ties += 30 - len({hit.value for hit in hits})
    assert ties


def of(values: np.ndarray, images: np.ndarray, top: int) -> Tally:
    tally = Tally.empty(values.shape[1], top)
    tally.add(torch.from_numpy(values), images)
    return tally


@settings(max_examples=60)
@given(st.data())
def test_parts_merged_are_the_whole(data: st.DataObject) -> None:
    n, c, p = (data.draw(st.integers(1, most)) for most in (9, 3, 5))
    numbers = st.sampled_from([0.0, -0.0, 1.0, -2.5, 3e38, 1e-30, np.nan, np.inf, -np.inf, 7.0])
    values = np.array(
        data.draw(st.lists(numbers, min_size=n * c * p, max_size=n * c * p)), np.float32
    ).reshape(n, c, p)
    values = np.where(np.abs(values) == np.float32(3e38), np.float32(3e18), values)
    cuts = sorted(data.draw(st.sets(st.integers(1, n), max_size=4)) | {0, n})
    top = data.draw(st.integers(1, 4))
    parts = [of(values[a:b], np.arange(a, b), top) for a, b in itertools.pairwise(cuts)]
    kept = [Tally.of(part.tensors()) for part in parts]
    for order in (kept, data.draw(st.permutations(kept))):
        merged = Tally.empty(c, top)
        for part in order:
            merged.merge(part)
        flat = np.moveaxis(values, 1, 0).reshape(c, -1)
        finite = [row[np.isfinite(row)].astype(np.float64) for row in flat]
        for channel, row in enumerate(finite):
            assert merged.count[channel] == len(row)
            assert merged.histogram[channel].sum() == flat.shape[1]
            odd = merged.histogram[channel]
            assert odd[2040] == (flat[channel] == np.inf).sum()
            assert odd[4088] == (flat[channel] == -np.inf).sum()
            assert odd[2041:2048].sum() + odd[4089:].sum() == np.isnan(flat[channel]).sum()
            assert odd[0] + odd[2048] == (row == 0).sum()
            if len(row):
                np.testing.assert_allclose(merged.mean[channel], row.mean(), rtol=1e-6, atol=1e-6)
                spread = np.sqrt(merged.squares[channel] / len(row))
                np.testing.assert_allclose(spread, row.std(), rtol=1e-5, atol=1e-6)
                assert merged.low[channel, 0] == row.min()
        clean = np.where(np.isfinite(values), values, -np.inf).max(-1).T.astype(np.float64)
        images = np.where(np.isfinite(clean), np.arange(n), NOBODY)
        first = np.lexsort((images, -clean), axis=1)[:, :top]
        expected = np.take_along_axis(images, first, 1)
        np.testing.assert_array_equal(merged.high_image[:, : expected.shape[1]], expected)
        np.testing.assert_array_equal(merged.high_image, kept_order(kept, c, top).high_image)


def kept_order(parts: list[Tally], channels: int, top: int) -> Tally:
    merged = Tally.empty(channels, top)
    for part in parts:
        merged.merge(part)
    return merged


def test_a_large_mean_does_not_swallow_the_deviation() -> None:
    values = (1000 + 3 * np.random.default_rng(0).standard_normal((64, 2, 500))).astype(np.float32)
    tally = Tally.empty(2, 1)
    for start in range(0, 64, 8):
        tally.add(torch.from_numpy(values[start : start + 8]), np.arange(start, start + 8))
    flat = np.moveaxis(values, 1, 0).reshape(2, -1).astype(np.float64)
    np.testing.assert_allclose(tally.mean, flat.mean(1), rtol=1e-7)
    np.testing.assert_allclose(tally.squares / flat.shape[1], flat.var(1), rtol=2e-6)


def test_every_value_lies_in_its_bin() -> None:
    values = np.array([1e-40, 1e-20, 0.1, 1.0, 1.124, 1.126, -3.0, 6e4, -3e38], np.float32)
    tally = of(values.reshape(1, -1, 1), np.array([0]), 1)
    edges = bin_edges()
    assert edges.shape == (BINS, 2)
    for channel, value in enumerate(values):
        (at,) = np.flatnonzero(tally.histogram[channel])
        low, high = np.sort(edges[at])
        assert low <= value <= high
        assert high - low <= max(abs(low), abs(high)) / 8 or at in (0, 2048)


def test_values_that_are_no_numbers_are_counted_apart(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(x > 0.9, torch.nan, torch.where(x < 0.1, -torch.inf, x))

    net = nn.Sequential(Odd())
    images = [torch.linspace(0, 1, 3 * 16).reshape(3, 4, 4).roll(n) for n in range(4)]
    found = hookviz.survey(net, images, "0", tmp_path, workers=0).statistics("0")
    flat = torch.stack(images).movedim(1, 0).flatten(1).numpy()
    np.testing.assert_array_equal(found.nan, (flat > 0.9).sum(1))
    np.testing.assert_array_equal(found.neginf, (flat < 0.1).sum(1))
    fine = np.where((flat > 0.9) | (flat < 0.1), np.nan, flat.astype(np.float64))
    np.testing.assert_array_equal(found.count, np.isfinite(fine).sum(1))
    np.testing.assert_array_equal(found.max, np.nanmax(fine, 1))
    np.testing.assert_array_equal(found.min, np.nanmin(fine, 1))
    np.testing.assert_allclose(found.mean, np.nanmean(fine, 1), rtol=1e-6)
