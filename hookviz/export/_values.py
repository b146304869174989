"""The part of raw values: the numbers themselves, as NumPy or safetensors files.

``.npz`` files hold two arrays: ``values``, the whole tensor in the layer's own axis order, and
``facts``, a JSON text. What NumPy lacks is widened to what holds each value exactly: bfloat16 and
8-bit floats to float32, complex32 to complex64; quantised tensors are written as the float32 they
stand for. Read them with ``numpy.load(path)`` (no pickle is in them). safetensors files hold a
tensor ``values`` in its own dtype, and the same facts as metadata.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from hookviz._tensors import dense
from hookviz._text import error_text
from hookviz.activation import Activation
from hookviz.errors import HookvizError
from hookviz.export._facts import activation_texts, run_texts
from hookviz.export._part import Export, ExportPart, Task, TensorError, ValueFormat


def write_values(
    file: IO[bytes], activation: Activation, texts: Mapping[str, str], form: ValueFormat
) -> None:
    """Writes an activation's tensor and facts into an open file.

    Args:
        file: Open for binary reading and writing, empty, with its path as ``name``.
        activation: The record; its tensor is left as it is.
        texts: Facts by key.
        form: "npz" or "safetensors".

    Raises:
        TensorError: The tensor has no values, or its dtype has no place in that form.
        OSError: As the operating system says it.
    """
    try:
        tensor = dense(activation.tensor, "cpu").as_subclass(Tensor).contiguous()
    except HookvizError as error:
        raise TensorError(error.message, remedy=error.remedy) from error
    if form == "npz":
        facts = np.array(json.dumps(dict(texts), ensure_ascii=True))
        np.savez(file, values=_as_array(tensor), facts=facts, allow_pickle=False)
        return
    if tensor.dtype in {torch.complex32, torch.complex128}:
        raise TensorError(
            f"Its dtype is {tensor.dtype}, which safetensors files cannot hold.",
            remedy="Use values='npz'.",
        )
    path = Path(file.name)
    mode = path.stat().st_mode
    try:
        save_file({"values": tensor}, path, metadata=dict(texts))
    except SafetensorError as error:
        if number := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        raise TensorError(f"safetensors cannot write it: {error}.") from error
    path.chmod(mode)  # save_file makes a new file, for its owner alone


def _as_array(tensor: Tensor) -> np.ndarray:
    for wider in (tensor.dtype, torch.complex64 if tensor.is_complex() else torch.float32):
        try:
            return tensor.to(wider).numpy()
        except (TypeError, RuntimeError) as error:  # NumPy, or torch itself, lacks the dtype
            fault = error
    raise TensorError(
        f"Its dtype is {tensor.dtype}, which NumPy cannot hold ({error_text(fault)}).",
        remedy="Use values='safetensors'.",
    )


class Values(ExportPart):
    """The tensors themselves."""

    name, draws = "values", False

    def plan(self, export: Export) -> Iterator[Task]:
        """One task a tensor."""
        for item in export.items:
            name = export.book.take(item.stem, f"_values.{export.values}")
            yield Task(self, [name], item)

    def write(self, task: Task, export: Export) -> None:
        """Writes one file, which cannot be stopped midway."""
        if task.item is None:
            return
        (name,), activation, form = task.names, task.item.activation, export.values

        def write() -> bool:
            texts = run_texts(export.facts) | activation_texts(activation)
            with export.folder.open(name) as file:
                write_values(file, activation, texts, form)
            return True

        if export.made(write, task):
            export.pipeline.wrote(name)
