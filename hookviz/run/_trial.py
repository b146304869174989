"""Where a layer's places lie in the image, found out by changing the image.

The order of tokens, windows and channels is the model's own affair: Hiera keeps its tokens in
another order than the image, a masked autoencoder keeps a random quarter of them, and shapes do
not tell. So where the layer's type and shape leave a doubt, the forward runs three times more: as
it was, with noise in about half of the image, and with noise in the other half. A reading is right
where those places change more in the first case that lie under the first half. The halves are a
pattern that no turned, mirrored, windowed or interleaved order maps onto itself. The three
forwards are made once for a model, a layer and a shape of input; the result is kept with the model.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hookviz._axes import Hints, KnownAxes, Places, candidates, read_axes
from hookviz.activation import Activation
from hookviz.capture import Capture, Editing
from hookviz.errors import HookvizError
from hookviz.models import LoadedModel, feed
from hookviz.run._torch_state import generators_put_back

# Correlation of the pattern with itself in any other order stays below 0.21.
_PATTERN = ((0, 0, 0, 1), (1, 1, 0, 0), (1, 0, 0, 1), (1, 1, 0, 1))
# Correlation of a layer's places with the pattern. Blocks whose tokens lie as the image does gave
# 0.96 and more (untrained ViT and Swin, Hiera's last stage), Hiera's other stages 0.02.
_RIGHT, _WRONG = 0.7, 0.2
# Standard deviation of the places' log ratios. Attention over all tokens, before the residual sum,
# moves all places alike (0.02 to 0.12); blocks gave 1.9 and more.
_SPREAD = 0.6
_MOST_BYTES = 2**29  # of activations in doubt that are tried at a time

_Key = tuple[Any, ...]
_KNOWN: WeakKeyDictionary[nn.Module, dict[_Key, KnownAxes]] = WeakKeyDictionary()


class AxesTrial:
    """What one run finds out about the axes of its activations.

    Args:
        model: The model that runs.
        tensor: (N, 3, H, W), what it is fed.
        settings: How the run captures: keywords of `Capture`. Where ``cancelled`` ends the further
            forwards, what is in doubt stays so.
        editing: How the run is edited, if it is; the further forwards are edited alike.
    """

    def __init__(
        self,
        model: LoadedModel,
        tensor: Tensor,
        settings: Mapping[str, Any],
        editing: Editing | None = None,
    ) -> None:
        self._model, self._tensor, self._settings = model, tensor, settings
        self._editing = editing or contextlib.nullcontext()
        self._parts = dict(model.module.named_modules())
        self._frames = _frames(feed(model, tensor))
        self._size = (int(tensor.shape[-2]), int(tensor.shape[-1]))
        self._kept = _KNOWN.setdefault(model.module, {})

    def with_axes(self, activation: Activation) -> Activation | None:
        """The activation with what is known of its axes; None while that needs a trial."""
        known = self._kept.get(self._key(activation))
        if known is None:
            known = self._before(activation)
            if self._in_doubt(activation, known):
                return None
        return replace(activation, axes=known)

    def settle(self, activations: Iterable[Activation]) -> tuple[Activation, ...]:
        """All activations with what is known of their axes; runs the trial where one is needed."""
        everything = tuple(activations)
        doubtful = [a for a in everything if self.with_axes(a) is None]
        # A model that does not take such an image leaves the doubt.
        with contextlib.suppress(
            HookvizError, RuntimeError, ValueError, TypeError, IndexError, AssertionError
        ):
            while doubtful:
                part, size = [doubtful.pop()], 0
                while doubtful and (size := size + doubtful[-1].tensor.nbytes) < _MOST_BYTES:
                    part.append(doubtful.pop())
                self._try(part)
        return tuple(
            self.with_axes(a) or replace(a, axes=replace(self._before(a), tried="open"))
            for a in everything
        )

    def _key(self, a: Activation) -> _Key:
        return (*_short(a), _shape(a), tuple(self._tensor.shape))

    def _before(self, activation: Activation) -> KnownAxes:
        """What is known without a trial."""
        if activation.axes is not None:
            return activation.axes
        batch = int(self._tensor.shape[0])
        shape = _shape(activation)
        if not shape or shape[0] == batch:
            return KnownAxes(batch)
        around = ((name, self._parts.get(name)) for name in _enclosing(activation.layer))
        return KnownAxes(batch, _leading(shape[0], around, batch * self._frames))

    def _in_doubt(self, activation: Activation, known: KnownAxes) -> bool:
        if activation.kind == "attention":
            if len(_shape(activation)) != 4:  # a transform made something else of it
                return False
            tokens = candidates(_shape_of_tokens(activation), self._size, self._frames)
            return known.windows is None and next(tokens, None) is not None
        hints = Hints(activation.module_type, activation.layer, self._size, known=known)
        try:
            return bool(read_axes(_shape(activation), hints=hints).doubt)
        except HookvizError:
            return False

    def _try(self, doubtful: list[Activation]) -> None:
        """Run the three forwards and keep what they show."""
        layers = {name for a in doubtful for name in _enclosing(a.layer)}
        # Attention moves all places alike; its tokens are best told by what it is given.
        settings = {**self._settings}
        if any(a.kind == "attention" for a in doubtful):
            settings["inputs"] = True
        pattern = torch.tensor([[_PATTERN]], dtype=torch.float32, device=self._tensor.device)
        half = F.interpolate(pattern, self._size)
        generator = torch.Generator("cpu").manual_seed(0)
        noise = torch.randn(self._tensor.shape, generator=generator, device="cpu")
        spread = float(self._tensor.float().std()) or 1.0
        noise = (noise * spread).to(self._tensor)
        images = [self._tensor]
        images += [torch.where(part, noise, self._tensor) for part in (half > 0, half == 0)]
        given = []
        for image in images:
            with generators_put_back(self._tensor.device):  # each draws the same numbers
                given.append(self._forward(image, layers, settings))
        same, *changed = given
        found: dict[_Key, tuple[tuple[int, ...], _Verdict]] = {}
        for key, before in same.items():
            after = [each[key] for each in changed if key in each]
            if [value.shape for value in after] == [before.shape] * 2:
                squares = [(value.float() - before.float()).square() for value in after]
                verdict = _verdict(squares, half[0, 0], self._size, self._frames)
                found[key] = (tuple(before.shape), verdict)
        for activation in doubtful:
            key = _short(activation)
            shape = _shape(activation)
            if activation.kind == "attention":
                shape = _shape_of_tokens(activation)
            verdict = _settled(key, shape, found)
            differs = key in same and _differ(activation.tensor, same[key])
            known = replace(self._before(activation), random=differs, **verdict._asdict())
            self._kept[self._key(activation)] = known

    def _forward(
        self, tensor: Tensor, layers: Iterable[str], settings: Mapping[str, Any]
    ) -> dict[_Key, Tensor]:
        args, kwargs = feed(self._model, tensor)
        capture = Capture(self._model.module, sorted(layers), **settings)
        with torch.no_grad(), self._editing, capture:
            capture.run(*args, **kwargs)
        return {
            _short(a): a.tensor
            for a in capture.activations
            if _shape(a) and a.tensor.layout is torch.strided and a.tensor.is_floating_point()
        }


def _short(a: Activation) -> _Key:
    return (a.layer, a.call, a.leaf, a.kind)


def _shape(a: Activation) -> tuple[int, ...]:
    """The tensor's shape; () for a nested tensor, which has none."""
    return () if a.tensor.is_nested else tuple(a.tensor.shape)


def _shape_of_tokens(a: Activation) -> tuple[int, ...]:
    """(N, T, D) of the tokens that an attention's keys are, D unknown."""
    return (a.shape[0], a.shape[3], 0)


def _enclosing(layer: str) -> Iterator[str]:
    """The layer and all that enclose it but the model itself."""
    parts = layer.split(".")
    return (".".join(parts[:count]) for count in range(len(parts), 0, -1))


def _frames(fed: tuple[tuple[Any, ...], Mapping[str, Any]]) -> int:
    """How many frames of one image a model is fed."""
    tensors = [value for value in (*fed[0], *fed[1].values()) if isinstance(value, Tensor)]
    if tensors and tensors[0].dim() == 5:  # (N, 3, T, H, W) or (N, T, 3, H, W)
        return max(int(tensors[0].shape[1]), int(tensors[0].shape[2]))
    return max(1, len(tensors))


def _leading(count: int, around: Iterable[tuple[str, nn.Module | None]], frames: int) -> str:
    """What the first axis counts where it does not count images, by what encloses the layer."""
    for name, part in around:
        kind = type(part).__name__
        size = getattr(part, "window_size", None) or getattr(part, "partition_size", None)
        if size or "Window" in kind or "Partition" in kind:
            return "window"
        if "RoI" in kind or "roi_" in name:
            return "proposal"
    return "frame" if count == frames > 1 else "part"


class _Verdict(NamedTuple):
    tried: str
    places: Places | None = None


def _verdict(squares: list[Tensor], half: Tensor, size: tuple[int, int], frames: int) -> _Verdict:
    """What two changes say about a tensor.

    Args:
        squares: Squared change of each value where noise lies under ``half``, and for noise
            everywhere else.
        half: (H, W), 1 where the image was changed first.
        size: (height, width) of what the network saw.
        frames: How many frames went in.
    """
    first, second = squares
    best, best_score, count, spread = None, -1.0, 1, math.inf
    sums: dict[tuple[int, ...], Tensor] = {}
    for places in candidates(tuple(first.shape), size, frames):
        kept = [at for at, axis in enumerate(places.axes) if axis in "HWT"]
        if "H" in places.axes and "T" in places.axes:  # frames of a volume
            kept.remove(places.axes.index("T"))
        others = tuple(at for at in range(first.dim()) if at not in kept)
        if others not in sums:
            ratios = (first.sum(others) + 1e-30).log() - (second.sum(others) + 1e-30).log()
            sums[others] = ratios.clamp(-40, 40)  # where one half alone arrives: enough is enough
        ratio = sums[others]
        if places.grid is not None:
            ratio = ratio[places.apart :].reshape(places.frames, *places.grid).mean(0)
        rows, columns = ratio.shape
        share = F.adaptive_avg_pool2d(half[None], (rows, columns))[0]
        score = float(torch.corrcoef(torch.stack((ratio.flatten(), share.flatten())))[0, 1])
        if places.axes not in ("NDT", "CHW"):  # rare: what they show is no proof of an order
            spread = min(spread, float(ratio.std()))
        if score > best_score:  # NaN where no place differs from another
            best, best_score, count = places, score, ratio.numel()
    chance = 1 / math.sqrt(count)  # standard deviation of the correlation of unrelated values
    if best is not None and best_score >= max(_RIGHT, 3.4 * chance):
        return _Verdict("confirmed", best)
    wrong = best_score <= max(_WRONG, 2 * chance) and _SPREAD <= spread < math.inf
    return _Verdict("other order" if wrong else "open")


def _settled(
    key: _Key, shape: tuple[int, ...], found: Mapping[_Key, tuple[tuple[int, ...], _Verdict]]
) -> _Verdict:
    """The verdict on a layer; where it moves all places alike, that of what encloses it.

    An attention's own answer is such a layer: its tokens are those of the block around it.
    """
    _, own = found.get(key, (shape, _Verdict("open")))
    for name in _enclosing(key[0]):
        for other, (size, its) in found.items():
            # The axis that may differ is that of the features.
            alike = len(size) == len(shape) and sum(map(int.__ne__, size, shape)) <= 1
            another = other[0] != key[0] or key[3] == "attention"
            if own.tried == "open" and other[0] == name and another and alike:
                own = its
    return own


def _differ(one: Tensor, other: Tensor) -> bool:
    """Whether two forwards over one image gave values that no rounding explains."""
    if one.shape != other.shape:
        return True
    values = one.double(), other.to(one.device).double()
    difference = (values[0] - values[1]).nan_to_num(0.0).norm()
    return bool(difference > 1e-3 * values[0].nan_to_num(0.0).norm())
