"""An export read back: the facts of its run, and the raw values of one tensor at a time.

Of the folder only files are read that its manifest lists under plain names; nothing is unpickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hookviz.activation import Activation
from hookviz.errors import ExportError
from hookviz.export._facts import Key, RunFacts, key_of
from hookviz.export._folder import checked_path, listed_files
from hookviz.export._names import MANIFEST_NAME

_MOST_BYTES = 64 * 1024 * 1024  # of a manifest
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, SafetensorError)
_VALUES = ("_values.npz", "_values.safetensors")


@dataclass(frozen=True, eq=False)
class SavedExport:
    """The folder of an export that holds raw values.

    Attributes:
        folder: The folder.
        facts: The run; without its input image and class names.
        activations: What was captured, in order; the tensors have a shape and a dtype, but no
            values (they are on the meta device).
        input_size: (height, width) of what the network saw; None where there was no image.
    """

    folder: Path
    facts: RunFacts
    activations: tuple[Activation, ...]
    input_size: tuple[int, int] | None
    _files: Mapping[Key, str]

    @classmethod
    def of(cls, folder: str | os.PathLike[str]) -> SavedExport:
        """Reads the manifest of a folder that ``export(what="values")`` made.

        Args:
            folder: The export's own folder.

        Raises:
            ExportError: It is no folder of an export, or one without raw values.
        """
        path = checked_path("folder", folder)
        try:
            with (path / MANIFEST_NAME).open("rb") as file:
                manifest = json.loads(file.read(_MOST_BYTES))
        except (OSError, ValueError, RecursionError) as error:
            raise ExportError(
                f"{str(folder)!r} is not a folder of an export: its {MANIFEST_NAME} cannot be read."
            ) from error
        there = listed_files(path, MANIFEST_NAME)
        try:
            found = {
                key_of(activation): (activation, name)
                for entry in manifest["layers"]
                for activation in (_without_values(entry),)
                for name in entry["files"]
                if str(name).endswith(_VALUES) and name in there
            }
            facts, size = _facts(manifest), _input_size(manifest)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ExportError(f"The {MANIFEST_NAME} in {str(folder)!r} is damaged.") from error
        if not found:
            raise ExportError(
                f"The export in {str(folder)!r} holds no raw values.",
                remedy='Export them with what="values".',
            )
        files = {key: name for key, (_, name) in found.items()}
        return cls(path, facts, tuple(a for a, _ in found.values()), size, files)

    def read(self, activation: Activation) -> Activation:
        """One of ``activations`` with its values, on the CPU, in the dtype that it had.

        Args:
            activation: One of ``activations``.

        Raises:
            ExportError: The file cannot be read.
        """
        path = self.folder / self._files[key_of(activation)]
        try:
            tensor = _values(path)
        except _UNREADABLE as error:
            raise ExportError(f"The values in {path.name!r} cannot be read: {error}.") from error
        dtype = activation.tensor.dtype
        # NumPy lacks bfloat16 and 8-bit floats, which were widened without loss.
        if tensor.is_floating_point() and dtype.is_floating_point:
            tensor = tensor.to(dtype)
        return replace(activation, tensor=tensor)


def _values(path: Path) -> Tensor:
    if path.suffix == ".npz":
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return torch.from_numpy(arrays["values"])
    with safe_open(path, "pt") as file:
        tensor: Tensor = file.get_tensor("values")
        return tensor


def _without_values(entry: Mapping[str, Any]) -> Activation:
    dtype = getattr(torch, entry["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{dtype} is no dtype")
    if str(dtype).startswith("torch.q"):  # written as the float32 that they stand for
        dtype = torch.float32
    return Activation(
        entry["layer"], entry["call"], entry["calls"], entry["run"], entry["order"],
        entry["kind"], entry["leaf"], entry["type"],
        torch.empty(entry["shape"], dtype=dtype, device="meta"),
    )  # fmt: skip


def _input_size(manifest: Mapping[str, Any]) -> tuple[int, int] | None:
    seen = manifest["image"]["seen"]
    return None if seen is None else (int(seen[1]), int(seen[0]))


def _facts(manifest: Mapping[str, Any]) -> RunFacts:
    model, image = manifest["model"], manifest["image"]
    return RunFacts(
        model=str(model["name"]),
        weights=str(model["weights"]),
        weights_hash=str(model["weights_hash"]),
        trained=bool(model["trained"]),
        image_name=str(image["name"]),
        image_sha256=str(image["sha256"]),
        preprocessing=str(image["preprocessing"]),
        device=str(manifest["device"]),
        dtype=str(model["dtype"]),
        torch_version=str(manifest["torch_version"]),
        hookviz_version=str(manifest["hookviz_version"]),
        started=datetime.fromisoformat(manifest["time"]),
        edits=str(manifest.get("edits", "")),
        edits_record=str(manifest.get("edits_record", "")),
    )
