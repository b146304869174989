"""Features of layers: of one forward, by a module that wraps the model, or of a whole data set."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from hookviz.activation import Activation
from hookviz.capture._checks import check, check_choice, check_count, check_function
from hookviz.capture._session import Capture
from hookviz.capture._snapshot import known_device
from hookviz.capture._tree import LayerSelectors, select_layers
from hookviz.errors import CaptureError, LayerError

Calls: TypeAlias = Literal["error", "first", "last", "all"]
Features: TypeAlias = dict[str, Any]
"""Name → tensor; with ``calls="all"`` name → tuple of tensors, one per call."""


class FeatureExtractor(nn.Module):
    """A model whose forward returns the outputs of chosen layers instead of its own.

    Hooks are set for the length of one forward and removed on every way out; nothing stays on the
    model between forwards. Mode, gradients and random numbers are those of the model: call
    ``eval()`` and use ``torch.no_grad()`` as with the model itself.

    Args:
        model: Any ``nn.Module``.
        layers: Names, globs, patterns, types, modules or predicates (see
            `select_layers`), or a mapping from names that you
            choose to layers. "" is the model's own output.
        calls: What to do with a layer that runs several times in one forward: "error" (the
            default) refuses, "first" and "last" take one, "all" makes every value of the result a
            tuple with one tensor per call, also for layers that ran once.
        gradients: False: detached copies. True: copies in autograd's graph, through which a loss
            on features reaches the parameters and the input.
        stop_early: End the forward after the last chosen layer, as far as that can be known (see
            `Capture`).
        device: Where the copies go; None leaves them where they are.

    Attributes:
        model: The model that was wrapped.
        layers: Name → layer name.

    Raises:
        LayerError: A layer is unknown, here and not at the first forward.
        CaptureError: ``calls`` is none of the four.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True))
        >>> extract = FeatureExtractor(net, {"edges": "0"})
        >>> {name: tuple(t.shape) for name, t in extract(torch.zeros(1, 3, 8, 8)).items()}
        {'edges': (1, 8, 6, 6)}
    """

    def __init__(
        self,
        model: nn.Module,
        layers: LayerSelectors,
        *,
        calls: Calls = "error",
        gradients: bool = False,
        stop_early: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        check_choice("calls", calls, "error", "first", "last", "all")
        self.layers = select_layers(model, layers)
        self.model = model
        self.calls: Calls = calls
        self.gradients = gradients
        self.stop_early = stop_early
        self.device = None if device is None else known_device(device, "Features")

    def forward(self, *args: Any, **kwargs: Any) -> Features:
        """Runs the model and returns the features.

        Args:
            *args: Passed to the model.
            **kwargs: Passed to the model.

        Returns:
            Name → tensor, in the order of ``layers``; axis order, dtype and (unless chosen)
            device as the layer gave it. A layer with several tensors in its output gives one
            entry for each, "name[path]".

        Raises:
            LayerError: A layer did not run, with the reason, or ran several times while ``calls``
                is "error", with the shapes of its calls.
            Exception: What the model raises, unchanged.
        """
        with Capture(
            self.model,
            self.layers,
            keep_graph=self.gradients,
            stop_early=self.stop_early,
            device=self.device,
            eval_mode=False,
        ) as capture:
            capture.run(*args, **kwargs)
            return features_of(capture, self.calls)

    def extra_repr(self) -> str:
        """The layers, for ``print(extractor)``."""
        shown = [n if n == layer else f"{n}={layer}" for n, layer in self.layers.items()]
        return f"layers=[{', '.join(shown)}], calls={self.calls!r}"


def features_of(capture: Capture, calls: Calls) -> Features:
    """The outputs of a capture's one run by name; the policies are those of FeatureExtractor.

    Args:
        capture: A capture with exactly one run.
        calls: "error", "first", "last" or "all".

    Returns:
        Name → tensor or, with "all", tuple of tensors.

    Raises:
        LayerError: A layer did not run, or ran several times while ``calls`` is "error".
    """
    found: dict[str, list[Activation]] = {name: [] for name in capture.layers}
    for one in capture.activations:
        found[one.layer].append(one)
    features: Features = {}
    for name, records in found.items():
        if not records:
            raise LayerError(f"There are no features of layer '{name}': {capture.missing[name]}.")
        number = records[0].calls
        if number > 1 and calls == "error":
            shapes = ", ".join(f"{r.call}: {list(r.shape)}" for r in records[:8])
            raise LayerError(
                f"Layer '{name}' ran {number} times ({shapes}), so the output is ambiguous.",
                remedy='Choose calls="first", "last" or "all".',
            )
        by_leaf: dict[str, list[Tensor]] = {}
        for record in records:
            by_leaf.setdefault(record.leaf, []).append(record.tensor)
        for leaf, tensors in by_leaf.items():
            key = name if len(by_leaf) == 1 else f"{name}[{leaf}]"
            chosen = tensors[-1 if calls == "last" else 0]
            features[key] = tuple(tensors) if calls == "all" else chosen
    return features


Rows: TypeAlias = Tensor | list[Tensor]
"""One tensor with a row per sample or, where sizes differ, a list with a tensor per sample."""

Reduction: TypeAlias = Literal["mean", "max"] | Callable[[Tensor], Tensor]


def extract_features(
    model: nn.Module,
    layers: LayerSelectors,
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
        layers: Selectors, or a mapping from names that you choose to layers.
        loader: A ``DataLoader`` or anything that gives batches.
        key: Where a batch's input is. None: a tensor is the input itself; of a tuple or list the
            first entry is, and the rest (labels) is not fed; of a mapping the entry "image". A
            string or number names another entry; a function takes the batch and returns the
            input. An input that is a list of tensors (images of different sizes, one per sample)
            is run image by image.
        calls: For layers that run several times per forward: "error", "first" or "last".
        reduction: Applied to each output inside the hook: "mean" or "max" over all axes after the
            channels, (N, C, …) → (N, C), or your own function.
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
    gives = hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")
    check("loader", loader, "a DataLoader or another iterable of batches", holds=gives)
    transform = _transform(reduction)
    # One capture for all batches: opening it is what puts the model in eval mode.
    capture = Capture(model, layers, device="cpu", transform=transform, eval_mode=True)
    if not shuffled and _shuffles(loader):
        raise CaptureError(
            "The loader shuffles, so rows would not be in the order of the data set.",
            remedy="Build it with shuffle=False, or pass shuffled=True.",
        )
    place = next((parameter.device for parameter in capture.module.parameters()), None)
    if device is not None:
        place = known_device(device, "Inputs")
    length = operator.length_hint(loader, -1)
    total = None if length < 0 else min(length, max_batches or length)
    pieces: dict[str, list[Tensor]] = {}
    with torch.no_grad(), capture:
        for number, batch in enumerate(itertools.islice(loader, max_batches), start=1):
            for piece in _pieces(_input(batch, key, number), place, number):
                capture.run(piece)
                found = features_of(capture, calls)
                capture.clear()
                for name, tensor in found.items():
                    _check_rows(name, tensor, piece)
                    pieces.setdefault(name, []).append(tensor)
            if progress is not None:
                progress(number, total)
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
        wanted = "image" if key is None else key
        if not isinstance(wanted, Hashable) or wanted not in batch:
            has = ", ".join(repr(k) for k in batch)
            raise CaptureError(
                f"Batch {number} is a mapping without {wanted!r}; it has {has}.",
                remedy="Name the entry to feed with key=.",
            )
        return batch[wanted]
    if isinstance(batch, tuple | list):
        images = [one for one in batch if isinstance(one, Tensor) and one.ndim == 3]
        # Without a batch axis: what a collate function that keeps samples gives.
        if key is None and 1 < len(batch) == sum(one.is_floating_point() for one in images):
            raise CaptureError(
                f"Batch {number} is a list of {len(batch)} images, or of inputs and targets that "
                "look like images; hookviz cannot tell which.",
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


def _pieces(value: Any, place: torch.device | None, number: int) -> list[Tensor]:
    """What the model is called with, one after the other: the batch, or its images alone."""
    batches: Any = [value]
    if isinstance(value, tuple | list):
        batches = [item.unsqueeze(0) if isinstance(item, Tensor) else item for item in value]
    if not all(isinstance(batch, Tensor) for batch in batches):
        raise CaptureError(
            f"The input of batch {number} is a {type(value).__name__}, not one or several tensors.",
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
