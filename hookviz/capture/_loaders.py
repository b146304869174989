"""Features of a whole data set, batch by batch.

In: a model, layers, a data loader. Out: rows by layer, on the CPU.
Must not know: pictures, files, what labels mean.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from hookviz.capture._checks import check_choice, check_count, check_function
from hookviz.capture._layers import LayerSelector, resolve, select_layers
from hookviz.capture._session import Capture
from hookviz.capture._snapshot import known_device
from hookviz.capture._wrappers import features_of
from hookviz.errors import CaptureError

__all__ = ["Reduction", "Rows", "extract_features"]

Rows: TypeAlias = Tensor | list[Tensor]
"""One tensor with a row per sample or, where sizes differ, a list with a tensor per sample."""

Reduction: TypeAlias = Literal["mean", "max"] | Callable[[Tensor], Tensor]

_KEY = "image"


def extract_features(
    model: nn.Module,
    layers: LayerSelector | Iterable[LayerSelector] | Mapping[str, LayerSelector],
    loader: Iterable[Any],
    *,
    key: str | int | Callable[[Any], Any] | None = None,
    calls: Literal["error", "first", "last"] = "error",
    reduction: Reduction | None = None,
    max_batches: int | None = None,
    shuffled: bool = False,
    device: torch.device | str | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> dict[str, Rows]:
    """Runs a model over a data loader and gathers the outputs of layers, row by row.

    The model runs in eval mode without gradients and gets its modes back afterwards. What is
    gathered leaves the device with every batch.

    Args:
        model: The model.
        layers: Selectors, or a mapping from names of one's own to layers.
        loader: A ``DataLoader`` or anything that gives batches.
        key: Where a batch's input is. None: a tensor is the input itself; of a tuple or list the
            first entry is, and the rest (labels) is not fed; of a mapping the entry "image". A
            string or number names another entry; a function takes the batch and returns the
            input. An input that is a list of tensors (images of different sizes, one per sample)
            is run image by image.
        calls: For layers that run several times per forward: "error", "first" or "last".
        reduction: Applied to each output inside the hook: "mean" or "max" over all axes after the
            channels, (N, C, …) → (N, C), or a function of one's own.
        max_batches: Stop after so many batches; None for all.
        shuffled: A loader that shuffles is refused, because rows would not be in the order of the
            data set; True takes them in the loader's order.
        device: Where inputs go; default the device of the model's parameters.
        progress: Called after each batch with the number done and the number in all (None where
            the loader has no length).

    Returns:
        Name → rows in the order of the data set: a tensor (samples, …), or a list of one tensor
        (…) per sample, each with storage of its own, where the samples' sizes differ.

    Raises:
        LayerError: A layer is unknown, did not run, or ran several times while ``calls`` is
            "error".
        CaptureError: A batch has no such entry or is of an unknown kind, an output has not one
            row per sample, the loader shuffles or gave no batch.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        >>> data = [(torch.zeros(3, 6, 6), label) for label in range(5)]
        >>> rows = extract_features(net, "1", DataLoader(data, batch_size=2))
        >>> rows["1"].shape
        torch.Size([5, 8, 4, 4])
        >>> extract_features(net, "1", DataLoader(data, batch_size=2), reduction="max")["1"].shape
        torch.Size([5, 8])
    """
    check_choice("calls", calls, "error", "first", "last")
    check_function("progress", progress)
    if max_batches is not None:
        check_count("max_batches", max_batches, 1)
    given: object = loader
    if not isinstance(given, Iterable) and not hasattr(given, "__getitem__"):
        raise CaptureError(
            f"A {type(loader).__name__} gives no batches; a DataLoader or an iterable is needed."
        )
    chosen = select_layers(model, layers)
    if not shuffled and _shuffles(loader):
        raise CaptureError(
            "The loader shuffles, so rows would not be in the order of the data set.",
            remedy="Build it with shuffle=False, or pass shuffled=True.",
        )
    root = resolve(model)
    place = _place(root) if device is None else known_device(device, "Inputs")
    total = _batches(loader, max_batches)
    pieces: dict[str, list[Tensor]] = {}
    done = 0
    # One capture for all batches: opening it is what puts the model in eval mode.
    with (
        torch.no_grad(),
        Capture(
            model, chosen, device="cpu", transform=_transform(reduction), eval_mode=True
        ) as capture,
    ):
        for batch in loader:
            for piece in _pieces(_input(batch, key, done + 1), place, done + 1):
                capture.run(piece)
                found = features_of(capture, calls)
                capture.clear()
                for name, tensor in found.items():
                    _check_rows(name, tensor, piece)
                    pieces.setdefault(name, []).append(tensor)
            done += 1
            if progress is not None:
                progress(done, total)
            if max_batches is not None and done >= max_batches:
                break
    if not pieces:
        raise CaptureError("The loader gave no batch, so there are no features.")
    # Popped one by one, so that no more than one layer is held twice.
    return {name: _rows(pieces.pop(name)) for name in list(pieces)}


def _input(batch: Any, key: str | int | Callable[[Any], Any] | None, number: int) -> Any:
    if callable(key):
        return key(batch)
    if isinstance(batch, Tensor):
        if key is not None:
            raise CaptureError(f"Batch {number} is a tensor and has no entry {key!r}.")
        return batch
    if isinstance(batch, Mapping):
        wanted = _KEY if key is None else key
        if not isinstance(wanted, Hashable) or wanted not in batch:
            has = ", ".join(repr(k) for k in batch)
            raise CaptureError(
                f"Batch {number} is a mapping without {wanted!r}; it has {has}.",
                remedy="Name the entry to feed with key=.",
            )
        return batch[wanted]
    if isinstance(batch, tuple | list):
        if key is None and _is_samples(batch):
            raise CaptureError(
                f"Batch {number} is a list of {len(batch)} images, or of inputs and targets that "
                "look like images; which of the two cannot be seen.",
                remedy="Pass key=0 for the first entry, or key=list to feed every entry.",
            )
        wanted = 0 if key is None else key
        if not isinstance(wanted, int) or not -len(batch) <= wanted < len(batch):
            raise CaptureError(f"Batch {number} has {len(batch)} entries and no entry {wanted!r}.")
        return batch[wanted]
    raise CaptureError(
        f"Batch {number} is a {type(batch).__name__}; a tensor, tuple, list or mapping is needed.",
        remedy="Pass key= with a function that returns the model's input.",
    )


def _is_samples(batch: Any) -> bool:
    """Several images without a batch axis: what a collate function that keeps samples gives."""
    return len(batch) > 1 and all(
        isinstance(entry, Tensor) and entry.ndim == 3 and entry.is_floating_point()
        for entry in batch
    )


def _pieces(value: Any, place: torch.device | None, number: int) -> list[Tensor]:
    """What the model is called with, one after the other: the batch, or its images alone."""
    if isinstance(value, Tensor):
        batches = [value]
    elif isinstance(value, tuple | list) and all(isinstance(item, Tensor) for item in value):
        batches = [item.unsqueeze(0) for item in value]
    else:
        raise CaptureError(
            f"The input of batch {number} is a {type(value).__name__}, not a tensor or a list of "
            "tensors.",
            remedy="Pass key= with a function that returns the model's input.",
        )
    return [batch if place is None else batch.to(place) for batch in batches]


def _check_rows(name: str, tensor: Tensor, piece: Tensor) -> None:
    samples = piece.shape[0] if piece.ndim else 0
    if tensor.ndim == 0 or tensor.shape[0] != samples:
        raise CaptureError(
            f"Layer '{name}' gives {list(tensor.shape)} for a batch of {samples} samples, which is "
            "not one row per sample.",
            remedy="Choose another layer, or a reduction= that makes one row of each sample.",
        )


def _rows(pieces: list[Tensor]) -> Rows:
    # Rows made under inference mode would be inference tensors, which autograd refuses for ever.
    with torch.inference_mode(mode=False):
        if len({(piece.shape[1:], piece.dtype) for piece in pieces}) == 1:
            return torch.cat(pieces)
        # Clones: a row that is a view would carry its whole batch along into a file.
        return [row.clone() for piece in pieces for row in piece]


def _transform(reduction: Reduction | None) -> Callable[[Tensor], Tensor] | None:
    if reduction is None or (callable(reduction) and not isinstance(reduction, str)):
        return reduction
    if reduction not in ("mean", "max"):
        raise CaptureError(
            f"reduction={reduction!r} is unknown; it is 'mean', 'max' or a function of a tensor."
        )

    def reduce(tensor: Tensor) -> Tensor:
        axes = tuple(range(2, tensor.ndim))
        if not axes:
            return tensor
        if reduction == "max":
            return tensor.amax(axes)
        tensor = tensor.dequantize() if tensor.is_quantized else tensor
        whole = not (tensor.is_floating_point() or tensor.is_complex())
        return (tensor.float() if whole else tensor).mean(axes)

    return reduce


def _shuffles(loader: Any) -> bool:
    if not isinstance(loader, DataLoader):
        return False
    samplers = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    random = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
    return any(isinstance(sampler, random) for sampler in samplers)


def _batches(loader: Any, max_batches: int | None) -> int | None:
    try:
        count: int | None = len(loader)
    except TypeError:
        count = None
    if count is None or max_batches is None:
        return count
    return min(count, max_batches)


def _place(model: nn.Module) -> torch.device | None:
    first = next(model.parameters(), None)
    return None if first is None else first.device
