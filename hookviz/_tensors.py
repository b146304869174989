"""A tensor of any kind as an ordinary one.

Every place that reads values (a file, a figure, a hash, an image) goes through `dense`, so that
all of them accept the same kinds of tensor. Must not know: any other part of hookviz but its
errors and its words for sentences, nor any library but torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hookviz._text import error_text
from hookviz.errors import HookvizError


def dense(tensor: Tensor, device: str | torch.device | None = None) -> Tensor:
    """The same values as a strided tensor without graph, lazy conjugation or quantisation.

    Args:
        tensor: Any layout, dtype and device. Quantised tensors become the float32 values that they
            stand for, sparse ones are filled with zeros, nested ones padded with zeros.
        device: Where the result goes; None leaves it where the tensor is.

    Returns:
        A detached tensor of the same shape (nested: padded) and dtype (quantised: float32). It
        shares memory with ``tensor`` where nothing had to be converted.

    Raises:
        HookvizError: The tensor has no values to read: it is on the meta device, or of a kind
            that torch cannot convert.

    Examples:
        >>> dense(torch.eye(2).to_sparse()).layout
        torch.strided
    """
    if tensor.is_meta:
        raise HookvizError(
            f"A tensor of shape {tuple(tensor.shape)} is on the meta device and has no values."
        )
    try:
        plain = tensor.detach()
        if plain.is_quantized:
            plain = plain.dequantize()
        if plain.is_nested:
            plain = torch.nested.to_padded_tensor(plain, 0)
        elif plain.layout != torch.strided:
            plain = plain.to_dense()
        plain = plain.resolve_conj().resolve_neg()
        storage = plain.untyped_storage()
        if plain.numel() and (storage.device.type == "meta" or not storage.nbytes()):
            raise TypeError("it is a fake tensor, or its memory was freed")
        return plain if device is None else plain.to(device)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        raise HookvizError(
            f"The values of a {tensor.dtype} tensor ({tensor.layout}) cannot be read: "
            f"{error_text(error)}"
        ) from error
