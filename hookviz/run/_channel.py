"""One channel of a layer: its map and numbers, where it answers most, which inputs it reads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules import activation as elementwise
from torch.nn.modules import dropout, padding, pooling, upsampling
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from hookviz._meta import without_values
from hookviz.activation import Activation
from hookviz.errors import LayerError
from hookviz.models import LoadedModel, feed
from hookviz.run._field import watching
from hookviz.run._filters import layer_weights
from hookviz.run._point import Pointed, check_index, read_values, real_values

if TYPE_CHECKING:
    from hookviz.render import ChannelStatistics
    from hookviz.run._record import Run


@dataclass(frozen=True, eq=False)
class ChannelSummary:
    """One channel of a layer: its map, its numbers, and how it ranks among the layer's channels.

    Numbers are over the finite values, in the activation's own units (of complex values the
    magnitude).

    Attributes:
        layer: The layer, with call and leaf where there are several.
        channel: Number of the channel, from 0.
        channels: How many the layer has.
        map: (H, W), its values in the tensor's dtype and on its device; a copy.
        low: Smallest value; NaN where none is finite.
        high: Largest value.
        mean: Their mean.
        std: Standard deviation of the population.
        zeros: Share of exact zeros, 0 to 1.
        nan: How many values are NaN.
        posinf: How many are +Inf.
        neginf: How many are −Inf.
        ranks: The channel's rank by "high", "mean", "std" and "zeros", from 1 (the largest); equal
            ones share a rank; None where no value is finite.
    """

    layer: str
    channel: int
    channels: int
    map: Tensor
    low: float
    high: float
    mean: float
    std: float
    zeros: float
    nan: int
    posinf: int
    neginf: int
    ranks: Mapping[str, int | None]
    _values: NDArray[np.float64] = field(repr=False)

    def histogram(self, bins: int = 64) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """How many finite values fall into equal parts of their range, as ``numpy.histogram``.

        Args:
            bins: How many parts, at least 1.

        Returns:
            (bins,) counts and (bins + 1,) edges, both empty where no value is finite. Where all
            values are the same, the edges are half a unit below to half a unit above.

        Raises:
            LayerError: ``bins`` is less than 1.

        Examples:
            >>> import hookviz
            >>> model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
            >>> run = hookviz.feature_maps(model, hookviz.sample_image(), ["features.28"])
            >>> counts, edges = run.channel("features.28", 7).histogram(10)
            >>> int(counts.sum()), len(edges)
            (196, 11)
        """
        if not isinstance(bins, int) or isinstance(bins, bool) or bins < 1:
            raise LayerError(f"bins is {bins!r:.40}; it must be a whole number of at least 1.")
        finite = self._values[np.isfinite(self._values)]
        if not finite.size:
            return np.zeros(0, np.int64), np.zeros(0)
        # Halved, so that the range of the largest numbers does not leave float64.
        counts, edges = np.histogram(finite / 2, bins)
        return counts.astype(np.int64), edges * 2 if self.low < self.high else edges + finite[0] / 2

    def strongest(self, count: int = 6, apart: int = 1) -> list[tuple[int, int, Any]]:
        """The places of the largest values.

        Args:
            count: At most so many.
            apart: A place is left out where a stronger one lies less than so many rows and
                columns away; 1 leaves none out.

        Returns:
            (y, x, value) with the value as a Python number, largest first (of complex values the
            magnitude), equal ones from the top left; NaN never.

        Examples:
            >>> import hookviz
            >>> model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
            >>> run = hookviz.feature_maps(model, hookviz.sample_image(), ["features.28"])
            >>> channel = run.channel("features.28", 7)
            >>> y, x, value = channel.strongest(1)[0]
            >>> value == channel.high == run.value("features.28", 7, y, x)
            True
        """
        free = ~np.isnan(self._values)
        found: list[tuple[int, int, Any]] = []
        while len(found) < count and free.any():
            # What is not free must not be found, not even where all that is left is −Inf.
            best = self._values[free].max()
            y, x = (int(i) for i in np.argwhere(free & (self._values == best))[0])
            found.append((y, x, self.map[y, x].item()))
            reach = max(1, apart) - 1
            free[max(0, y - reach) : y + reach + 1, max(0, x - reach) : x + reach + 1] = False
        return found


_NUMBERS: WeakKeyDictionary[Activation, dict[Any, ChannelStatistics]] = WeakKeyDictionary()
"""Statistics of whole layers, numbers alone: whoever asks for a channel asks for the next one."""


def _statistics_of(at: Pointed) -> ChannelStatistics:
    from hookviz.render import FigureFacts, channel_statistics

    facts, tensor = FigureFacts(input_size=at.input_size), at.record.tensor
    if tensor.is_inference():  # has no count of changes
        return channel_statistics(at.record, at.options, facts=facts)
    key = (at.view, at.input_size, tensor._version)  # noqa: SLF001  # torch offers no other way
    kept = _NUMBERS.setdefault(at.record, {})
    if key not in kept:
        kept[key] = channel_statistics(at.record, at.options, facts=facts)
    return kept[key]


def channel_summary(at: Pointed, channel: int) -> ChannelSummary:
    """See `Run.channel`."""
    values = read_values(at.record.tensor, at.positions(channel))
    layer = _statistics_of(at)
    numbers = {
        "high": layer.high, "mean": layer.mean, "std": np.sqrt(layer.variance),
        "zeros": layer.zeros,
    }  # fmt: skip
    own = {name: float(all_[channel]) for name, all_ in numbers.items()}
    ranks = {
        name: None if np.isnan(own[name]) else 1 + int((all_ > own[name]).sum())
        for name, all_ in numbers.items()
    }
    return ChannelSummary(
        layer=at.record.label,
        channel=int(channel),
        channels=len(layer.high),
        map=values,
        low=float(layer.low[channel]),
        **own,
        nan=int(layer.nan[channel]),
        posinf=int(layer.posinf[channel]),
        neginf=int(layer.neginf[channel]),
        ranks=MappingProxyType(ranks),
        _values=real_values(values).numpy(),
    )


# ── what it reads


class InputSource(NamedTuple):
    """A layer whose channels are those that another one reads.

    Attributes:
        layer: Its name.
        call: Which of its calls, from 1.
        leaf: Which tensor of what it gave; "" for a bare one.
        through: Layers between, which work channel by channel (ReLU, BatchNorm, pooling), nearest
            to the reading layer first; () where it gave the very tensor.
    """

    layer: str
    call: int
    leaf: str = ""
    through: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class InputChannels:
    """The input channels that one output channel of a layer reads, by weight.

    Attributes:
        layer: The layer.
        channel: Number of the output channel.
        channels: Numbers of the input channels that it reads, ascending, counted over the whole
            input: all of them, or those of its group.
        norms: (len(channels),) float64: the root of the sum of squares of the weights for each.
        sums: (len(channels),) float64: the sum of the weights for each, whose sign says whether an
            even input excites or inhibits.
        total: How many channels the layer's input has.
        order: ``channels``, the largest norm first, equal ones by number.
        sources: The layers known to give that input, nearest first; () where it is computed
            between layers or the forward cannot be followed.
    """

    layer: str
    channel: int
    channels: tuple[int, ...]
    norms: Tensor
    sums: Tensor
    total: int
    order: tuple[int, ...]
    sources: tuple[InputSource, ...]

    def top(self, count: int = 10) -> list[tuple[int, float, float]]:
        """The input channels of the largest weights: (channel, norm, sum).

        Examples:
            >>> import hookviz
            >>> model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
            >>> run = hookviz.feature_maps(model, hookviz.sample_image(), ["features.2"])
            >>> inputs = run.input_channels("features.2", 5)
            >>> channel, norm, _ = inputs.top(1)[0]
            >>> weight = model.module.get_submodule("features.2").weight[5]
            >>> channel == int(weight.flatten(1).norm(dim=1).argmax())
            True
            >>> [(source.layer, source.through) for source in inputs.sources]
            [('features.1', ()), ('features.0', ('features.1',))]
        """
        first = self.channels[0]
        return [
            (c, self.norms[c - first].item(), self.sums[c - first].item())
            for c in self.order[:count]
        ]


def input_channels(run: Run, layer: str, channel: int, call: int) -> InputChannels:
    """See `Run.input_channels`."""
    record = layer_weights(run.model.module, layer)
    weight = record.tensor
    outputs, each = weight.shape[:2]
    channel = check_index(layer, "channel", channel, outputs)
    groups = 1 if record.axes is None else record.axes.groups
    first = channel // (outputs // groups) * each
    kernels = real_values(weight[channel]).reshape(each, -1)
    norms = kernels.square().sum(1).sqrt()
    order = torch.argsort(norms, descending=True, stable=True) + first
    return InputChannels(
        layer=layer,
        channel=channel,
        channels=tuple(range(first, first + each)),
        norms=norms,
        sums=kernels.sum(1),
        total=each * groups,
        order=tuple(order.tolist()),
        sources=sources_of(run.model, run.input.tensor, layer, call),
    )


_CHANNELWISE: tuple[type[nn.Module], ...] = (
    *(getattr(elementwise, name) for name in (
        "Threshold", "ReLU", "RReLU", "Hardtanh", "ReLU6", "Sigmoid", "Hardsigmoid", "Tanh",
        "SiLU", "Mish", "Hardswish", "ELU", "CELU", "SELU", "GELU", "Hardshrink", "LeakyReLU",
        "LogSigmoid", "Softplus", "Softshrink", "PReLU", "Softsign", "Tanhshrink",
    )),
    _BatchNorm, _InstanceNorm, dropout._DropoutNd, nn.Identity, upsampling.Upsample,  # noqa: SLF001
    pooling._MaxPoolNd, pooling._AvgPoolNd, pooling._LPPoolNd,  # noqa: SLF001
    pooling._AdaptiveMaxPoolNd, pooling._AdaptiveAvgPoolNd,  # noqa: SLF001
    padding._ConstantPadNd, padding._ReflectionPadNd, padding._ReplicationPadNd,  # noqa: SLF001
)  # fmt: skip
"""Channel k of what they give is made of channel k of what they are given alone."""

_Call: TypeAlias = tuple[str, int]
_KNOWN: WeakKeyDictionary[nn.Module, dict[Any, dict[_Call, tuple[InputSource, ...]]]] = (
    WeakKeyDictionary()
)
_LOCK = threading.Lock()


def sources_of(
    model: LoadedModel, tensor: Tensor, layer: str, call: int
) -> tuple[InputSource, ...]:
    """The layers that give the channels which one call of a layer reads, nearest first."""
    settings = (tuple(tensor.shape), repr(model.module))
    with _LOCK:
        known = _KNOWN.setdefault(model.module, {})
        if settings not in known:
            try:
                known[settings] = _followed(model, tensor)
            except Exception:  # noqa: BLE001 - whatever a model does without values
                known[settings] = {}
        return known[settings].get((layer, call), ())


def _followed(model: LoadedModel, tensor: Tensor) -> dict[_Call, tuple[InputSource, ...]]:
    """One forward without values: who is given the very tensor that another one gave."""
    twin = without_values(model.module)
    kinds = dict(twin.named_modules())
    calls: Counter[str] = Counter()
    # Held, so that no id is given to another tensor; they have no values.
    given: dict[int, tuple[Tensor, list[tuple[int, InputSource]]]] = {}
    read: dict[_Call, list[InputSource]] = {}

    def enter(name: str, args: tuple[Any, ...]) -> None:
        calls[name] += 1
        tensor = args[0] if args else None
        if isinstance(tensor, Tensor) and id(tensor) in given:
            # What was changed in place since is no longer what the layer gave.
            now = tensor._version  # noqa: SLF001  # torch offers no other way
            found = [source for version, source in given[id(tensor)][1] if version == now]
            read[name, calls[name]] = found

    def leave(name: str, out: Any) -> None:
        for leaf, tensor in _leaves(out):
            _, sources = given.setdefault(id(tensor), (tensor, []))
            sources.append((tensor._version, InputSource(name, calls[name], leaf)))  # noqa: SLF001

    twin.eval()
    with watching(twin, enter, leave), torch.no_grad():
        args, kwargs = feed(replace(model, module=twin), torch.empty_like(tensor, device="meta"))
        twin(*args, **kwargs)
    return {at: tuple(_through(sources, read, kinds)) for at, sources in read.items()}


def _through(
    sources: list[InputSource],
    read: Mapping[_Call, list[InputSource]],
    kinds: Mapping[str, nn.Module],
) -> Iterator[InputSource]:
    """Sources, and what is before those that work channel by channel."""
    yield from sources
    for source in sources:
        if isinstance(kinds[source.layer], _CHANNELWISE):
            before = read.get((source.layer, source.call), [])
            between = (*source.through, source.layer)
            further = [one._replace(through=between) for one in before]
            yield from _through(further, read, kinds)
            return


def _leaves(out: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of what a layer gave, one level deep."""
    if isinstance(out, Tensor):
        yield "", out
        return
    listed = enumerate(out) if isinstance(out, tuple | list) else ()
    for name, value in out.items() if isinstance(out, Mapping) else listed:
        if isinstance(value, Tensor):
            yield str(name), value
