"""What is kept of a shard as zarr arrays, one a layer; the only module that imports zarr.

Maps after a ReLU are mostly zeros, and take a tenth of the disk that way. A folder of arrays gets
its name when all of it is on the disk, and counts where the shard's own file is there too.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from hookviz._tensors import dense
from hookviz.errors import SurveyError
from hookviz.surveys._files import sync_folder
from hookviz.surveys._layout import Layout

_IMAGES, _CHANNELS = 32, 64  # of a chunk


def zarr_package() -> Any:
    """The package.

    Raises:
        SurveyError: It is not installed.
    """
    try:
        import zarr
    except ImportError as error:
        raise SurveyError(
            "store='zarr' needs the package zarr, which is not installed.",
            remedy="pip install 'hookviz[survey]'",
        ) from error
    return zarr


class ZarrWriter:
    """Writes the arrays of a shard; a context manager, after which all of them are there, or none.

    Args:
        target: The folder to be.
        layouts: Of the layers; array n is that of layout n.
        images: How many the shard has; an array has a row for each, of zeros where it is bad.
        batch: Images in a forward.
    """

    def __init__(self, target: Path, layouts: Sequence[Layout], images: int, batch: int) -> None:
        self._target, self._layouts = target, layouts
        self._images, self._rows = images, min(batch, _IMAGES)
        self._part = target.parent / f".hookviz-{secrets.token_hex(6)}.part"
        self._arrays: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._part.mkdir()
        return self

    def add(self, place: int, start: int, count: int, chosen: Tensor, kept: Tensor) -> None:
        """Writes a batch of a layer.

        Args:
            place: Of the layer.
            start: First image of the batch, from 0 in this shard.
            count: How many images it has.
            chosen: (n,) int64, which of these could be read.
            kept: (n, …), theirs.
        """
        values = dense(kept, "cpu")
        if len(chosen) < count:
            whole = torch.zeros((count, *values.shape[1:]), dtype=values.dtype)
            whole[chosen] = values
            values = whole
        array = self._arrays.get(place)
        if array is None:
            array = self._arrays[place] = self._created(place, values)
        array[start : start + count] = values.numpy()

    def _created(self, place: int, values: Tensor) -> Any:
        zarr, layout = zarr_package(), self._layouts[place]
        chunks = [self._rows, *values.shape[1:]]
        if values.dim() == len(layout.shape) + 1 and values.dim() > 2:
            axis = layout.channel_axis
            chunks[axis] = min(chunks[axis], _CHANNELS)
        return zarr.create_array(
            self._part / str(place),
            shape=(self._images, *values.shape[1:]),
            chunks=tuple(min(size, self._images) if not at else size
                         for at, size in enumerate(chunks)),
            dtype=values.numpy().dtype,
            compressors=zarr.codecs.ZstdCodec(),
            fill_value=0,
            attributes={"layer": layout.label},
        )  # fmt: skip

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            shutil.rmtree(self._part, ignore_errors=True)
            return
        for folder, _, files in os.walk(self._part, topdown=False):
            for name in files:
                with Path(folder, name).open("rb") as file:
                    os.fsync(file.fileno())
            sync_folder(Path(folder))
        if self._target.exists():  # of a shard whose own file was not committed any more
            shutil.rmtree(self._target)
        self._part.rename(self._target)
        sync_folder(self._target.parent)


def open_array(folder: Path, place: int) -> Any:
    """The array of a layer, to be read lazily: ``array[index]`` gives a NumPy array.

    Raises:
        SurveyError: The package is missing, or the array is missing or damaged.
    """
    zarr = zarr_package()
    try:
        return zarr.open_array(folder / str(place), mode="r")
    except Exception as error:
        raise SurveyError(
            f"'{folder.name}' in {str(folder.parent)!r} cannot be read: {error}."
        ) from error


def read_array(array: Any, index: tuple[Any, ...]) -> Tensor:
    """A part of an array, as a tensor."""
    return torch.from_numpy(np.ascontiguousarray(array[index]))
