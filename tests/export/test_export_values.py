"""Raw values: every dtype comes back, nothing is pickled."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

from hookviz.activation import Activation
from hookviz.export import whole_file
from hookviz.export._part import TensorError
from hookviz.export._values import write_values


def record(tensor: torch.Tensor) -> Activation:
    return Activation("conv", 1, 1, 1, 1, "output", "", "Conv2d", tensor)


def written(tensor: torch.Tensor, form: str, texts: dict[str, str] | None = None) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values"
        with whole_file(path) as file:
            write_values(file, record(tensor), texts or {"layer": "слой"}, form)  # type: ignore[arg-type]
        assert list(Path(folder).iterdir()) == [path]
        return path.read_bytes()


PLAIN = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
]


@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (7,), (), (0, 3)])
def test_npz_holds_the_tensor_as_it_is(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 100).to(dtype)
    with np.load(io.BytesIO(written(tensor, "npz"))) as found:
        assert np.array_equal(found["values"], tensor.numpy())
        assert found["values"].dtype == tensor.numpy().dtype
        assert json.loads(str(found["facts"])) == {"layer": "слой"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_npz_widens_what_numpy_lacks_without_loss(dtype: torch.dtype) -> None:
    tensor = torch.randn(3, 4).to(dtype)
    with np.load(io.BytesIO(written(tensor, "npz"))) as found:
        assert found["values"].dtype == np.float32
        assert torch.equal(torch.from_numpy(found["values"]), tensor.to(torch.float32))


@pytest.mark.parametrize("dtype", [*PLAIN, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (), (0, 3)])
def test_safetensors_holds_the_tensor_in_its_own_dtype(
    dtype: torch.dtype, shape: tuple[int, ...], tmp_path
) -> None:
    tensor = (torch.rand(shape) * 100).to(dtype)
    data = written(tensor, "safetensors")
    found = safetensors.torch.load(data)["values"]
    assert found.dtype == dtype
    assert found.shape == tensor.shape
    assert torch.equal(found.to(torch.float64), tensor.to(torch.float64))
    path = tmp_path / "v.safetensors"
    path.write_bytes(data)
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"layer": "слой"}


@pytest.mark.parametrize("form", ["npz", "safetensors"])
def test_views_and_graphs_are_written_as_what_they_show(form: str) -> None:
    tensor = torch.randn(4, 6, requires_grad=True).t()[::2]
    data = written(tensor, form)
    found = (
        torch.from_numpy(np.load(io.BytesIO(data))["values"])
        if form == "npz"
        else safetensors.torch.load(data)["values"]
    )
    assert torch.equal(found, tensor.detach())
    assert len(data) < 2_000


def test_nan_and_infinities_stay() -> None:
    tensor = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0])
    found = np.load(io.BytesIO(written(tensor, "npz")))["values"]
    assert np.array_equal(found.view(np.uint32), tensor.numpy().view(np.uint32))


def test_sparse_tensors_are_written_dense() -> None:
    tensor = torch.eye(3).to_sparse()
    assert np.array_equal(np.load(io.BytesIO(written(tensor, "npz")))["values"], np.eye(3))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_values_stay_complex(dtype: torch.dtype) -> None:
    tensor = torch.tensor([1 + 2j], dtype=dtype)
    for tried in (tensor, tensor.conj()):
        found = np.load(io.BytesIO(written(tried, "npz")))["values"]
        assert found.dtype == tensor.numpy().dtype
        assert found[0] == complex(tried[0])


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_half_precision_complex_values_keep_their_imaginary_part() -> None:
    tensor = torch.tensor([1 + 2j]).to(torch.complex32)
    assert np.load(io.BytesIO(written(tensor, "npz")))["values"].tolist() == [1 + 2j]


FLOAT4 = getattr(torch, "float4_e2m1fn_x2", None)  # the oldest torch has none
UNDRAWABLE = torch.zeros(4, 4, dtype=torch.uint8).view(FLOAT4 or torch.uint8)


@pytest.mark.parametrize(
    ("tensor", "form", "other"),
    [
        (torch.zeros(2, dtype=torch.complex128), "safetensors", "npz"),
        pytest.param(
            *(UNDRAWABLE, "npz", "safetensors"),
            marks=pytest.mark.skipif(FLOAT4 is None, reason="this torch has no float4"),
        ),
    ],
)
def test_the_form_that_is_advised_does_hold_the_tensor(
    tensor: torch.Tensor, form: str, other: str
) -> None:
    with pytest.raises(TensorError, match=rf"{tensor.dtype!s}.*Use values='{other}'"):
        written(tensor, form)
    assert written(tensor, other)


@pytest.mark.parametrize("form", ["npz", "safetensors"])
def test_a_tensor_without_values_is_one_sentence(form: str) -> None:
    with pytest.raises(TensorError, match="meta device"):
        written(torch.zeros(2, device="meta"), form)


@pytest.mark.parametrize("form", ["npz", "safetensors"])
def test_files_have_the_rights_that_new_files_have_here(form: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"")
    with whole_file(tmp_path / "values") as file:
        write_values(file, record(torch.zeros(2)), {}, form)  # type: ignore[arg-type]
    assert (tmp_path / "values").stat().st_mode == (tmp_path / "other").stat().st_mode
