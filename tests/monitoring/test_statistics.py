"""The numbers of a tensor are those that NumPy gives in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hookviz.monitoring._statistics import (
    Meter,
    OnDevice,
    OutputNumbers,
    _on_its_device,
    channel_axis,
)


def tally(x: Tensor, module_type: str = "Conv2d") -> OutputNumbers:
    found = Meter().measure(x, module_type)
    return found if isinstance(found, OutputNumbers) else found.tally(found.packed.tolist())


def check(found: OutputNumbers, x: Tensor, axis: int | None, rel: float = 1e-6) -> None:
    values = x.detach().double().numpy()
    finite = values[np.isfinite(values)]
    numbers = found.numbers()
    assert numbers["mean"] == pytest.approx(finite.mean(), rel=rel, abs=rel * finite.std())
    assert numbers["std"] == pytest.approx(finite.std(), rel=max(rel, 1e-6), abs=1e-12)
    assert (numbers["min"], numbers["max"]) == (finite.min(), finite.max())
    assert numbers["zeros"] == (values == 0).mean()
    assert numbers["nan"] == np.isnan(values).mean()
    assert numbers["inf"] == np.isinf(values).mean()
    if axis is None:
        assert "dead" not in numbers
    else:
        others = tuple(a for a in range(values.ndim) if a != axis)
        assert numbers["dead"] == (values == 0).all(others).mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("shape", "module_type", "axis"),
    [
        ((4, 8, 9, 9), "Conv2d", 1),
        ((4, 8, 2, 2), "Conv2d", 1),
        ((64, 16, 24, 24), "ReLU", 1),  # several pieces
        ((2, 3, 400, 500), "Conv2d", 1),  # a sample is larger than a piece
        ((3, 10), "Linear", 1),
        ((2, 17, 12), "LayerNorm", 2),
        ((2, 5, 4, 6, 6), "Conv3d", 1),
        ((2, 7, 30), "Conv1d", 1),
        ((6,), "Flatten", None),
        ((), "Loss", None),
    ],
)
def test_every_dtype_and_shape(
    dtype: torch.dtype, shape: tuple[int, ...], module_type: str, axis: int | None
) -> None:
    torch.manual_seed(0)
    x = (torch.randn(shape) * 3 + 1).relu().to(dtype)
    if axis is not None:
        x.select(axis, 1).zero_()
    check(tally(x, module_type), x, axis)


def test_channels_last_and_slices() -> None:
    x = torch.randn(4, 8, 16, 16).relu().to(memory_format=torch.channels_last)
    x[:, 3] = 0
    check(tally(x), x, 1)
    check(tally(x[:, ::2, 1:]), x[:, ::2, 1:], 1)
    check(tally(x[:1].expand(3, -1, -1, -1)), x[:1].expand(3, -1, -1, -1), 1)


def test_values_far_from_zero_keep_their_spread() -> None:
    x = torch.randn(8, 4, 32, 32) + 500
    assert tally(x).numbers()["std"] == pytest.approx(x.double().std(correction=0), rel=5e-5)


def test_half_precision_is_accumulated_in_float32() -> None:
    x = torch.full((4, 8, 64, 64), 3.0, dtype=torch.bfloat16)
    x[:, 0] = 5.0
    assert tally(x).numbers()["mean"] == pytest.approx(3.25, abs=1e-6)
    large = torch.full((4, 8, 64, 64), 60000.0, dtype=torch.float16)  # its sum is beyond float16
    assert tally(large).numbers() | {"std": 0} == {
        "mean": 60000, "std": 0, "min": 60000, "max": 60000, "zeros": 0, "nan": 0, "inf": 0,
        "dead": 0,
    }  # fmt: skip


def test_values_that_are_not_finite_are_counted_and_left_out() -> None:
    x = torch.randn(4, 8, 5, 5)
    x[0, 1, 2, 3], x[1, 2], x[2, 0, 0, :2] = float("nan"), float("inf"), -float("inf")
    check(tally(x), x, 1)
    nothing = tally(torch.full((2, 2), float("nan"))).numbers()
    assert np.isnan(nothing["mean"])
    assert nothing["nan"] == 1


def test_sums_beyond_float32_are_followed_in_float64() -> None:
    x = torch.full((2, 4, 64, 64), 3e38)
    x[0, 0] = -3e38
    check(tally(x), x, 1)


def test_integers_and_booleans() -> None:
    check(tally(torch.arange(24).reshape(2, 3, 2, 2)), torch.arange(24).reshape(2, 3, 2, 2), 1)
    flags = torch.tensor([[True, False], [True, True]])
    check(tally(flags), flags, 1)


@given(st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=6), min_size=1))
@settings(max_examples=50, deadline=None)
def test_tallies_join_as_if_of_one_tensor(parts: list[list[float]]) -> None:
    whole = OutputNumbers()
    for part in parts:
        whole.add(tally(torch.tensor(part), ""))
    values = np.array([number for part in parts for number in part])
    assert whole.numbers()["mean"] == pytest.approx(values.mean(), rel=1e-5, abs=1e-3)
    assert whole.numbers()["std"] == pytest.approx(values.std(), rel=1e-4, abs=2e-3)
    assert whole.numbers()["zeros"] == (values == 0).mean()


def test_the_way_of_other_devices_gives_the_same() -> None:
    x = torch.randn(4, 8, 9, 9).relu()
    x[:, 2] = 0
    there = OnDevice(_on_its_device(x, 1), x.numel())
    check(there.tally(there.packed.tolist()), x, 1)


def test_channels_are_known_or_left_open() -> None:
    assert channel_axis((4, 7, 30), "ReLU") is None  # (N, C, L) or (N, T, D)
    assert channel_axis((4, 14, 14, 96), "LayerNorm") == 3
    assert channel_axis((4, 6, 8, 8), "ReLU") == 1
