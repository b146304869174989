"""The numbers themselves, as NumPy or safetensors files.

In: an activation. Out: one file with its tensor and its facts. Must not know: pictures.

``.npz`` files hold two arrays: ``values``, the whole tensor in the layer's own axis order, and
``facts``, a JSON text. NumPy has no bfloat16 and no 8-bit floats, so those are widened to float32,
which holds each of them exactly; quantised tensors are written as the float32 they stand for.
Read them with ``numpy.load(path)`` (no pickle is in them). safetensors files hold a tensor
``values`` in its own dtype, and the same facts as metadata.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import IO, Any, Literal

import numpy as np
import torch
from torch import Tensor

from hookviz._tensors import dense
from hookviz.capture import Activation
from hookviz.errors import ExportError

__all__ = ["VALUE_FORMATS", "ValueFormat", "write_values"]

ValueFormat = Literal["npz", "safetensors"]
VALUE_FORMATS: tuple[ValueFormat, ...] = ("npz", "safetensors")

_PIECE = 4 * 1024 * 1024


def _as_array(tensor: Tensor) -> np.ndarray:
    try:
        return tensor.numpy()
    except TypeError:  # bfloat16 and 8-bit floats, which NumPy does not have
        return tensor.to(torch.float32).numpy()


class _Watched:
    """A file that asks between pieces whether to go on, so that a large file can be cancelled."""

    def __init__(self, file: IO[bytes], proceed: Callable[[], None]) -> None:
        self._file, self._proceed = file, proceed

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _PIECE):
            self._proceed()
            self._file.write(view[start : start + _PIECE])
        return len(view)

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)

    def seek(self, place: int, whence: int = 0) -> int:
        return self._file.seek(place, whence)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()


def _nothing() -> None:
    return None


def write_values(
    file: IO[bytes],
    activation: Activation,
    texts: Mapping[str, str],
    form: ValueFormat,
    proceed: Callable[[], None] = _nothing,
) -> None:
    """Writes an activation's tensor and facts into an open file.

    Args:
        file: Open for binary reading and writing, empty.
        activation: The record; its tensor is left as it is.
        texts: Facts by key.
        form: "npz" or "safetensors".
        proceed: Called between pieces; raises to stop.

    Raises:
        ExportError: The form is unknown, or the tensor's dtype has no place in it.
        OSError: As the operating system says it.
    """
    tensor = dense(activation.tensor, "cpu").contiguous()
    watched = _Watched(file, proceed)
    if form == "npz":
        facts = np.array(json.dumps(dict(texts), ensure_ascii=True))
        np.savez(watched, values=_as_array(tensor), facts=facts, allow_pickle=False)
        return
    if form != "safetensors":
        raise ExportError(f"{form!r} is no form for values; legal are 'npz' and 'safetensors'.")
    header, body = _safetensors(tensor, texts, activation)
    watched.write(header)
    watched.write(body)


def _safetensors(
    tensor: Tensor, texts: Mapping[str, str], activation: Activation
) -> tuple[bytes, memoryview]:
    """Header and body of a safetensors file with the one tensor ``values``.

    The package's own writer builds the whole file in memory a second time; the form is simple
    enough to stream (source: the format's description in the safetensors README).
    """
    name = _SAFETENSORS_NAMES.get(tensor.dtype)
    if name is None:
        raise ExportError(
            f"'{activation.label}' has dtype {tensor.dtype}, which safetensors files cannot hold.",
            remedy="Use values='npz'.",
        )
    flat = tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0).byte()
    # NumPy arrays have the buffer protocol; numpy's annotations say so from Python 3.12 on only.
    array: Any = flat.numpy() if tensor.numel() else b""
    body = memoryview(array)
    entry = {"dtype": name, "shape": list(tensor.shape), "data_offsets": [0, body.nbytes]}
    header = json.dumps({"__metadata__": dict(texts), "values": entry}, ensure_ascii=True).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header, body


_SAFETENSORS_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
