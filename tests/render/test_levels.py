"""From values to pixels: by hand, and against a slow, obvious reference."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookviz.render import Flag, GridOptions, SingleChannels, draw, to_levels


def levels_of(values: list[float], low: float, high: float, dtype=torch.float32):
    maps = torch.tensor(values, dtype=dtype).reshape(1, 1, -1)
    return to_levels(maps, np.array([low]), np.array([high]), flagged=True)


def test_levels_by_hand():
    got = levels_of([0.0, 0.5, 1.0, 0.25, 2.0, -1.0], 0.0, 1.0)
    assert got.levels.tolist() == [[[0, 128, 255, 64, 255, 0]]]
    assert got.flags is not None
    assert got.flags.tolist() == [[[0, 0, 0, 0, Flag.ABOVE, Flag.BELOW]]]


def test_what_is_not_finite_is_flagged_and_moves_nothing():
    got = levels_of([math.nan, math.inf, -math.inf, 0.0, 10.0], 0.0, 10.0)
    assert got.flags is not None
    assert got.flags.tolist() == [[[Flag.NAN, Flag.POSINF, Flag.NEGINF, 0, 0]]]
    assert got.levels[0, 0, 3:].tolist() == [0, 255]


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (-3.4e38, 3.4e38, torch.float32),  # max − min overflows float32
        (-1.7e308, 1.7e308, torch.float64),  # and float64
        (0.0, 2.0**-149, torch.float32),  # denormal
        (0.0, 5e-324, torch.float64),
        (1e300, 1.5e300, torch.float64),
        (1e6, 1e6 + 1, torch.float64),
        (-65504.0, 65504.0, torch.float16),  # max − min overflows half
        (float(2**62), float(2**63 - 1024), torch.int64),
    ],
)
def test_extreme_ranges_keep_both_ends_and_the_middle(low, high, dtype):
    middle = low / 2 + high / 2
    got = levels_of([low, high], low, high, dtype)
    assert got.levels.ravel().tolist() == [0, 255]
    assert not got.flags.any()
    values = torch.tensor([middle], dtype=torch.float64).to(dtype).reshape(1, 1, 1)
    if values.item() not in (low, high):
        got = to_levels(values, np.array([low]), np.array([high]), flagged=False)
        assert abs(int(got.levels.item()) - 127.5) <= 1


def test_a_constant_map_takes_the_middle_level():
    got = levels_of([7.0, 7.0], 7.0, 7.0)
    assert got.levels.ravel().tolist() == [128, 128]
    assert not got.flags.any()


def test_shrinking_takes_the_mean_and_keeps_every_flag():
    maps = torch.arange(16.0).reshape(1, 4, 4)
    got = to_levels(maps, np.array([0.0]), np.array([15.0]), flagged=False, size=(2, 2))
    # Means of the four quarters are 2.5, 4.5, 10.5 and 12.5 of 15.
    assert np.abs(got.levels.ravel() - np.array([2.5, 4.5, 10.5, 12.5]) * 17).max() <= 0.5
    maps[0, 0, 0] = math.nan
    got = to_levels(maps, np.array([0.0]), np.array([15.0]), flagged=True, size=(2, 2))
    assert got.flags.ravel().tolist() == [Flag.NAN, 0, 0, 0]
    # A million values to one pixel: the one NaN is still seen.
    large = torch.zeros(1, 1000, 1000)
    large[0, 500, 17] = math.nan
    got = to_levels(large, np.array([0.0]), np.array([1.0]), flagged=True, size=(10, 10))
    assert (got.flags == Flag.NAN).sum() == 1


def test_a_large_constant_map_keeps_its_level_when_shrunk():
    for fill in (0.1, -3.3, 1e20):
        maps = torch.full((1, 301, 299), fill)
        ends = np.array([float(maps[0, 0, 0])])
        got = to_levels(maps, ends, ends, flagged=False, size=(70, 60))
        assert (got.levels == 128).all()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = to_levels(maps, ends - 1, ends + 1, flagged=False, size=(70, 60))
        assert (abs(got.levels.astype(int) - 127.5) <= 1).all() or fill == 1e20


def test_shrinking_to_the_nearest_shows_real_activations():
    maps = torch.arange(36.0).reshape(1, 6, 6)
    got = to_levels(
        maps, np.array([0.0]), np.array([255.0]), flagged=False, size=(3, 2), shrink="nearest"
    )
    assert got.levels.tolist() == [[[7, 10], [19, 22], [31, 34]]]


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


def reference(values: np.ndarray, low: float, high: float) -> list[int | str]:
    """Levels by exact fractions, one value at a time."""
    found: list[int | str] = []
    for v in values.ravel().tolist():
        v = float(v)
        if math.isnan(v):
            found.append("nan")
        elif math.isinf(v):
            found.append("+inf" if v > 0 else "-inf")
        elif low == high:
            found.append(128)
        else:
            share = (Fraction(v) - Fraction(low)) / (Fraction(high) - Fraction(low))
            found.append(share * 255)  # type: ignore[arg-type]
    return found


@st.composite
def tensors(draw_):
    dtype = draw_(st.sampled_from(DTYPES))
    shape = (
        draw_(st.integers(1, 7)),
        draw_(st.integers(1, 6)),
        draw_(st.integers(2, 6)),
    )
    count = math.prod(shape)
    if dtype.is_floating_point:
        size = draw_(st.sampled_from([1e-3, 1.0, 1e4, 1e30 if dtype != torch.float16 else 10.0]))
        parts = st.floats(-1, 1, width=32).map(lambda v: v * size)
        odd = st.sampled_from([math.nan, math.inf, -math.inf, 0.0])
        pool = st.one_of(parts, parts, parts, odd) if draw_(st.booleans()) else parts
    elif dtype is torch.bool:
        pool = st.booleans()
    else:
        info = torch.iinfo(dtype)
        top = min(info.max, 2**53)
        pool = st.integers(max(info.min, -top), top)
    values = draw_(st.lists(pool, min_size=count, max_size=count))
    return torch.tensor(values, dtype=dtype).reshape(1, *shape)


@settings(max_examples=40)
@given(
    tensor=tensors(),
    scale=st.sampled_from(["layer", "channel", "symmetric"]),
    per_page=st.integers(1, 9),
)
def test_every_pixel_shows_its_value(tensor, scale, per_page):
    """Level and value agree within 1/255 of the stated range, for every activation of a page."""
    options = GridOptions(
        scale=scale, per_page=per_page, cmap="gray", width=260, labels=False, axes="maps",
        style="light",
    )  # fmt: skip
    drawing = draw(tensor, options)
    if drawing.kind == "bars":
        return
    pixels = drawing.pixels()
    height, width = tensor.shape[2:]
    values = tensor.double().numpy()[0]
    shown = {"nan": drawing.nan, "+inf": drawing.posinf, "-inf": drawing.neginf}
    for name, test in (("nan", np.isnan), ("+inf", np.isposinf), ("-inf", np.isneginf)):
        assert shown[name] == test(values).sum()
    for channel, (top, left, tall, wide), (low, high) in zip(
        drawing.channels, drawing.places, drawing.tile_ranges, strict=True
    ):
        y = top + ((np.arange(height) + 0.5) * tall / height).astype(int)
        x = left + ((np.arange(width) + 0.5) * wide / width).astype(int)
        colors = pixels[np.ix_(y, x)].reshape(-1, 4)[:, :3].astype(int)
        for color, level in zip(colors, reference(values[channel], low, high), strict=True):
            grey = len(set(color.tolist())) == 1
            if isinstance(level, str):
                assert not grey
            elif low != high:
                assert grey
                assert abs(color[0] - level) <= 1


def test_mosaic_by_hand_with_a_ragged_last_row():
    tensor = torch.arange(5.0).reshape(1, 5, 1, 1).expand(1, 5, 2, 2).contiguous()
    tensor[:, :, 0, 1] = 0.0
    drawing = draw(tensor, GridOptions(cmap="gray", width=200, ncols=2, labels=False))
    pixels = drawing.pixels()
    assert len(drawing.places) == 5
    rows = sorted({place[0] for place in drawing.places})
    columns = sorted({place[1] for place in drawing.places})
    assert (len(rows), len(columns)) == (3, 2)
    for channel, (top, left, tall, wide) in enumerate(drawing.places):
        level = round(channel / 4 * 255)
        assert abs(int(pixels[top, left, 0]) - level) <= 1
        assert pixels[top, left + wide - 1, 0] == 0
        assert abs(int(pixels[top + tall - 1, left + wide - 1, 0]) - level) <= 1
    # Where the sixth tile would be stands the page.
    top, left = rows[2], columns[1]
    assert pixels[top, left, :3].tolist() == [255, 255, 255]


def test_a_color_on_the_bar_is_the_color_in_the_map():
    """The bar and the mosaic share one table."""
    ramp = torch.linspace(0, 1, 256).reshape(1, 1, 16, 16)
    for cmap in ("viridis", "RdBu_r", "tab10", "twilight"):
        drawing = draw(ramp, GridOptions(cmap=cmap, scale="full", width=400))
        bar = next(a for a in drawing.figure.axes if a.get_label() == "colorbar")
        colors = bar.images[0].get_array()[::-1, 0, :3].astype(int)
        top, left, tall, wide = drawing.places[0]
        step = tall // 16
        pixels = drawing.pixels()[top : top + tall : step, left : left + wide : step, :3]
        shown = pixels.reshape(-1, 3).astype(int)
        at = np.round(np.linspace(0, 255, len(colors))).astype(int)
        assert np.abs(shown[at] - colors).max() <= 1
        assert bar.get_ylim() == (0.0, 1.0)


def test_single_channels_are_one_pixel_per_activation():
    tensor = torch.arange(24.0).reshape(1, 2, 3, 4)
    layer = SingleChannels(tensor, GridOptions())
    first, one = layer.images([0, 1])
    color = first.rgb(layer.table)
    assert one.levels.shape == (3, 4)
    assert one.levels.dtype == np.uint8
    assert np.abs(one.levels.ravel() - np.arange(12, 24) / 23 * 255).max() <= 0.5
    gray = SingleChannels(tensor, GridOptions(cmap="gray"))
    (grey,) = gray.images([1])
    assert np.array_equal(grey.rgb(gray.table), np.stack([one.levels] * 3, axis=2))
    assert color.shape == (3, 4, 3)
    assert color[0, 0].tolist() == [68, 1, 84]  # viridis begins so
