"""The numbers of a layer are those of NumPy in float64, whatever the tensors hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookviz import Activation, compare
from hookviz.comparison import LayerDifference

NAN, INF = math.nan, math.inf


def record(tensor: torch.Tensor, layer: str = "conv", **more) -> Activation:
    values = {"call": 1, "calls": 1, "order": 1, "leaf": "", "module_type": "Conv2d"} | more
    return Activation(
        layer, values["call"], values["calls"], 1, values["order"], "output", values["leaf"],
        values["module_type"], tensor,
    )  # fmt: skip


def one(a: torch.Tensor, b: torch.Tensor) -> LayerDifference:
    (entry,) = compare(record(a), record(b))
    return entry


def by_numpy(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float, float]:
    a, b = a.ravel(), b.ravel()
    apart = np.abs(b - a)
    off_a, off_b = a - a.mean(), b - b.mean()

    def angle(x: np.ndarray, y: np.ndarray) -> float:
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(np.vdot(x, y).real / np.sqrt(np.vdot(x, x).real * np.vdot(y, y).real))

    return apart.max(), apart.mean(), angle(a, b), angle(off_a, off_b)


def check(a: torch.Tensor, b: torch.Tensor, wide: type = np.float64) -> None:
    entry = one(a, b)
    first, second = (
        (t.to(torch.complex128) if t.is_complex() else t.double()).numpy().astype(wide)
        for t in (a, b)
    )
    largest, mean, cosine, correlation = by_numpy(first, second)
    assert entry.max_abs == pytest.approx(largest, rel=1e-15 if wide is np.float64 else 1e-14)
    assert entry.mean_abs == pytest.approx(mean, rel=1e-12)
    assert entry.cosine == pytest.approx(cosine, abs=1e-12, nan_ok=True)
    assert entry.correlation == pytest.approx(correlation, abs=1e-10, nan_ok=True)
    size = max(np.abs(first).max(), np.abs(second).max())
    assert entry.relative == pytest.approx(largest / size if size else 0.0)
    if largest:
        apart = np.abs(second - first)
        assert entry.place == np.unravel_index(apart.argmax(), apart.shape)
    assert not entry.reason


DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
    torch.int64, torch.int32, torch.uint8, torch.uint16, torch.int8,
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 3, 5, 7), (2, 300, 33, 31), (1,), ()], ids=str)
def test_numbers_are_numpys(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(len(shape))
    a = torch.randn(shape, generator=generator) * 9 + 20
    b = a + torch.randn(shape, generator=generator)
    check(a.to(dtype), b.to(dtype))


def test_complex_values_differ_by_their_magnitude() -> None:
    a = torch.randn(3, 500, dtype=torch.complex64)
    check(a, a * (0.8 + 0.1j) + torch.randn(3, 500), np.complex128)


def test_booleans_are_zero_and_one() -> None:
    entry = one(torch.tensor([True, False, True, True]), torch.tensor([True, True, True, False]))
    assert (entry.max_abs, entry.mean_abs, entry.place) == (1.0, 0.5, (1,))
    assert entry.cosine == pytest.approx(2 / 3)
    assert entry.beyond()  # nothing is rounded in booleans


def test_different_dtypes_and_memory_orders_are_compared_by_value() -> None:
    a = torch.randn(2, 6, 9, 9)
    b = (a * 1.5).to(torch.float16).to(memory_format=torch.channels_last)
    check(a, b)


def test_values_that_are_not_finite_are_alike_or_strange() -> None:
    a = torch.tensor([NAN, INF, -INF, 1.0, 5.0])
    entry = one(a, torch.tensor([NAN, INF, -INF, 2.0, 4.5]))
    assert (entry.mismatched, entry.max_abs, entry.mean_abs, entry.place) == (0, 1.0, 0.75, (3,))
    assert entry.cosine == pytest.approx(by_numpy(np.array([1.0, 5.0]), np.array([2.0, 4.5]))[2])
    for changed in ([NAN, INF, INF, 2.0, 4.5], [0.0, INF, -INF, 2.0, 4.5], [NAN] * 5):
        entry = one(a, torch.tensor(changed))
        assert entry.mismatched > 0
        assert entry.place == (int(np.flatnonzero(~_alike(a.numpy(), np.array(changed)))[0]),)
        assert entry.beyond()
        assert entry.beyond(1e9)


def _alike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    finite = np.isfinite(a) & np.isfinite(b)
    return finite | (a == b) | (np.isnan(a) & np.isnan(b))


def test_a_strange_value_in_a_late_piece_is_found() -> None:
    a = torch.zeros(3, 2**18)
    b = a.clone()
    b[0, 5] = 2.0
    b[2, 7] = NAN
    entry = one(a, b)
    assert (entry.mismatched, entry.place, entry.max_abs) == (1, (2, 7), 2.0)


def test_nothing_to_compare_is_no_difference() -> None:
    entry = one(torch.zeros(0, 3, 4, 4), torch.zeros(0, 3, 4, 4))
    assert math.isnan(entry.max_abs)
    assert math.isnan(entry.relative)
    assert (entry.note, entry.reason, entry.beyond()) == ("no values", "", False)


def test_constant_and_zero_tensors_have_no_correlation() -> None:
    constant = torch.full((1, 4, 3, 3), 0.1)
    entry = one(constant, constant * 2)
    assert entry.cosine == pytest.approx(1.0)
    assert math.isnan(entry.correlation)
    assert math.isnan(one(torch.zeros(4), torch.ones(4)).cosine)
    same = one(constant, constant.clone())
    assert (same.max_abs, same.relative, same.place, same.cosine) == (0.0, 0.0, None, 1.0)


@pytest.mark.parametrize("size", [2**53 + 1, 2**62 + 5])
def test_large_integers_that_differ_by_one_differ(size: int) -> None:
    entry = one(torch.tensor([7, size]), torch.tensor([7, size + 1]))
    assert (entry.max_abs, entry.place) == (1.0, (1,))
    assert one(torch.tensor([-(2**63)]), torch.tensor([2**63 - 1])).max_abs == 2.0**64


@pytest.mark.parametrize("size", [1e300, 1e-300, 1e-40])
def test_squares_beyond_float64_do_no_harm(size: float) -> None:
    a = torch.randn(50, dtype=torch.float64)
    b = a + torch.randn(50, dtype=torch.float64)
    plain, scaled = one(a, b), one(a * size, b * size)
    assert scaled.cosine == pytest.approx(plain.cosine)
    assert scaled.correlation == pytest.approx(plain.correlation)
    assert scaled.relative == pytest.approx(plain.relative)


@pytest.mark.parametrize("offset", [1e4, -1e7])
def test_a_large_mean_does_not_swallow_the_correlation(offset: float) -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(3, 2**18, generator=generator, dtype=torch.float64)
    b = 0.5 * a + torch.randn(3, 2**18, generator=generator, dtype=torch.float64)
    expected = np.corrcoef(a.numpy().ravel(), b.numpy().ravel())[0, 1]
    assert one(a + offset, b + offset).correlation == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (lambda t: torch.quantize_per_tensor(t, 0.5, 3, torch.quint8), [1.0, 2.0]),
        (lambda t: t.to_sparse(), [1.0, 2.0]),
        (lambda t: t.clone().requires_grad_(), [1.0, 2.0]),
        (lambda t: torch.complex(t, t).conj(), [1.0, 2.0]),
    ],
    ids=["quantised", "sparse", "with a graph", "lazily conjugated"],
)
@pytest.mark.filterwarnings("ignore")  # torch announces the end of quantised tensors
def test_odd_tensors_are_compared_by_what_they_stand_for(make, values) -> None:
    a = make(torch.tensor(values))
    assert one(a, make(torch.tensor(values))).max_abs == 0.0
    assert one(a, make(torch.tensor([values[0], values[1] + 1]))).max_abs == pytest.approx(
        math.sqrt(2) if a.is_complex() else 1.0
    )


def test_a_tensor_without_values_is_a_reason_and_no_difference() -> None:
    entry = one(torch.zeros(3), torch.zeros(3, device="meta"))
    assert "meta" in entry.reason
    assert not entry.beyond()
    assert entry.verdict() == "not compared"


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=1, max_size=40),
)
def test_any_float32_values(pairs: list[tuple[float, float]]) -> None:
    a, b = (np.array(part, np.float32) for part in zip(*pairs, strict=True))
    entry = one(torch.from_numpy(a), torch.from_numpy(b))
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(invalid="ignore"):
        assert entry.mismatched == int((~_alike(a, b)).sum())
    if finite.any():
        apart = np.abs(b[finite].astype(np.float64) - a[finite].astype(np.float64))
        assert entry.max_abs == apart.max()
        assert entry.mean_abs == pytest.approx(apart.mean())
    else:
        assert math.isnan(entry.max_abs)
