"""From the images of a source to batches of the network's input, in worker processes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hookviz._text import fault_text, shape_text
from hookviz.errors import HookvizError, ImageError, SurveyError
from hookviz.images import Box, NetworkInput, Picture, Preprocessing, network_input, read_image
from hookviz.surveys._sources import Row, Source, is_input


class Batch(NamedTuple):
    """Some images as the network is fed them.

    Attributes:
        images: (N, C, H, W); zeros where an image could not be read.
        bad: Numbers (in the plan) of those, each with the reason.
    """

    images: Tensor
    bad: list[tuple[int, str]]


class Inputs:
    """Makes the network's input of what a source gives.

    Args:
        preprocess: The model's; what ``Preprocessing.from_transforms`` takes.
        dtype: Of the input.
    """

    def __init__(self, preprocess: Any, dtype: torch.dtype) -> None:
        self.how = Preprocessing.from_transforms(preprocess)
        self.dtype = dtype

    def tensor(self, found: Any) -> Tensor:
        """(C, H, W), on the CPU.

        Raises:
            ImageError: It is no image, or the preprocessing fails.
        """
        if is_input(found):
            given: Tensor = found.detach().to("cpu", self.dtype)
            return given
        return self.how(read_image(found)).to(self.dtype)

    def picture(self, found: Any) -> tuple[Picture, Box]:
        """The image, and where the input's edges lie in it.

        Where a data set gives the input itself, or nobody knows what the preprocessing shows of
        the image, it is the input, shown as an image.

        Raises:
            ImageError: As for `tensor`.
        """
        if is_input(found):
            size = (found.shape[-1], found.shape[-2])
            given = NetworkInput(self.tensor(found)[None], self._shown(found), None, size, "")
        else:
            picture = read_image(found)
            given = network_input(picture, self.how, dtype=self.dtype)
            if given.box is not None:
                return picture, given.box
        image = given.picture()
        return read_image(image, name="input"), (0.0, 0.0, float(image.width), float(image.height))

    def _shown(self, found: Tensor) -> Preprocessing:
        """Numbers that turn such an input into an image."""
        if self.how.channels == found.shape[0] and any(self.how.mean):
            return Preprocessing(mean=self.how.mean, std=self.how.std)
        low, high = float(found.min()), float(found.max())
        span = (high - low) or 1.0
        return Preprocessing(mean=(-low / span,) * 3, std=(1 / span,) * 3)


def reason_of(error: Exception) -> str:
    """Why an image cannot be read, as one sentence."""
    return error.message if isinstance(error, HookvizError) else fault_text(error)


def digest_of(tensor: Tensor) -> str:
    """SHA-256 (hex) over a tensor's values."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(flat.numpy().data).hexdigest()


class BatchMaker:
    """Puts images together, with zeros in the place of what cannot be read.

    Args:
        inputs: Makes the network's input.
        shape: (C, H, W) of every input.
    """

    def __init__(self, inputs: Inputs, shape: tuple[int, ...]) -> None:
        self._inputs, self._shape = inputs, shape

    def batch(self, numbers: Sequence[int], read: Callable[[int], Any]) -> Batch:
        """The batch of some images.

        Args:
            numbers: Of the images, in the plan.
            read: Gives one of them by its number.
        """
        images = torch.zeros((len(numbers), *self._shape), dtype=self._inputs.dtype, device="cpu")
        bad = []
        for at, number in enumerate(numbers):
            try:
                images[at] = self._checked(self._inputs.tensor(read(number)))
            except Exception as error:  # noqa: BLE001 - whatever a data set of the user's raises
                bad.append((number, reason_of(error)))
        return Batch(images, bad)

    def _checked(self, tensor: Tensor) -> Tensor:
        if tuple(tensor.shape) != self._shape:
            raise ImageError(
                f"The network's input would be {shape_text(tensor.shape)} for it, and is "
                f"{shape_text(self._shape)} for the first image."
            )
        return tensor


class _Batches(Dataset[Batch]):
    """One item is one batch, so that a worker makes it whole."""

    def __init__(
        self, maker: BatchMaker, source: Source, rows: Sequence[Row], parts: Sequence[range]
    ) -> None:
        self._maker, self._source, self._rows, self._parts = maker, source, rows, parts

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, at: int) -> Batch:
        return self._maker.batch(self._parts[at], lambda n: self._source.read(n, self._rows[n]))


def batches_of(
    maker: BatchMaker, source: Source, rows: Sequence[Row], parts: Sequence[range], workers: int
) -> Iterator[Batch]:
    """Batches in order, read ahead by worker processes.

    Args:
        maker: Makes them.
        source: Where the images are.
        rows: The plan.
        parts: The images of each batch.
        workers: How many processes; 0 reads in this one.

    Raises:
        SurveyError: A worker was killed.
    """
    yield from in_workers(_Batches(maker, source, rows, parts), workers)


def in_workers(items: Dataset[Any], workers: int) -> Iterator[Any]:
    """The items of a data set in order, each made in a worker process.

    Raises:
        SurveyError: A worker was killed.
    """
    loader = DataLoader(
        items, batch_size=None, num_workers=workers, collate_fn=_itself,
        generator=torch.Generator(),  # else the seeds of the workers move the user's generator
    )  # fmt: skip
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise SurveyError(
            f"A process that reads images ended unexpectedly: {fault_text(error)}",
            remedy="Run it again, with workers=0 where memory is short; what is kept stays.",
        ) from error


def _itself(item: Any) -> Any:
    return item
