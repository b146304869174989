"""The modules at the bottom of hookviz: texts for sentences, and tensors of any kind."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hookviz._tensors import dense
from hookviz._text import bytes_text, names_text, shape_text
from hookviz.errors import HookvizError

VALUES = torch.tensor([[1.0, 0.0, -2.0], [0.0, 3.0, 0.0]])


@pytest.mark.parametrize(
    "given",
    [
        lambda: VALUES.to_sparse(),
        lambda: VALUES.to_sparse_csr(),
        lambda: VALUES.to_sparse_csc(),
        lambda: torch.quantize_per_tensor(VALUES, 0.5, 4, torch.qint8),
        lambda: VALUES.clone().requires_grad_(),
        lambda: torch.complex(VALUES, torch.zeros(2, 3)).conj(),
        lambda: torch.complex(torch.zeros(2, 3), -VALUES).conj().imag,
    ],
    ids=["coo", "csr", "csc", "quantised", "with a graph", "conjugated", "negated"],
)
@pytest.mark.filterwarnings("ignore:Sparse CS[RC] tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:.*[Qq]uantiz.*")  # torch deprecates what is tested here
def test_every_kind_of_tensor_becomes_the_plain_one(given):
    plain = dense(given(), "cpu")
    assert plain.layout == torch.strided
    assert not plain.requires_grad
    # NumPy refuses quantised, conjugated and negated tensors.
    assert np.array_equal(plain.numpy(), VALUES.numpy())


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_padded_with_zeros(layout):
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=layout)
    plain = dense(nested)
    assert plain.shape == (2, 2, 3)
    assert plain[1, 1].tolist() == [0, 0, 0]


def test_a_plain_tensor_is_not_copied():
    assert dense(VALUES).data_ptr() == VALUES.data_ptr()


def test_a_meta_tensor_is_refused_in_a_sentence():
    with pytest.raises(HookvizError, match=r"shape \(2, 3\) is on the meta device"):
        dense(torch.empty(2, 3, device="meta"))


def test_texts():
    assert [bytes_text(n) for n in (0, 9_999, 12_345, 9_990_000, 1e12)] == [
        "0 bytes",
        "9,999 bytes",
        "12 kB",
        "10.0 MB",
        "1,000 GB",
    ]
    assert bytes_text(1023, binary=True) == "1,023 bytes"
    assert bytes_text(32112640, binary=True) == "30.6 MiB"
    assert shape_text((3,)) == "3"
    assert shape_text(torch.Size([]), "no axes") == "no axes"
    assert names_text([]) == ""
    assert names_text("abc", 3) == "'a', 'b', 'c'"
