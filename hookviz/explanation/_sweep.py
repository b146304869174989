"""What a target hangs on: each channel of a layer is ablated by itself, and the score compared."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch
from torch import Tensor, nn

from hookviz._tables import csv_text, data_frame
from hookviz._text import columns
from hookviz.activation import Activation
from hookviz.capture import LateStart, select_layers
from hookviz.errors import HookvizError, LayerError
from hookviz.explanation._checks import check_call
from hookviz.explanation._job import Job
from hookviz.explanation._methods import Method
from hookviz.explanation._perturbing import Ablation
from hookviz.explanation._places import reading_of
from hookviz.explanation._progress import Progress, Steps
from hookviz.explanation._target import TargetLike, wanted_targets
from hookviz.images import Picture, Preprocessing, network_input, read_image
from hookviz.models import LoadedModel
from hookviz.run import loaded_model, undisturbed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hookviz.render import Attribution, DrawingOptions

_LISTED = 24  # bars that a figure lists in their order


@dataclass(frozen=True, eq=False)
class Sweep:
    """The effect of each channel of a layer on a target. Its text is a table of the largest.

    Attributes:
        model: The model.
        image: The image.
        layer: The layer, with call and leaf where there are several.
        target: The target in words.
        by: What a channel was replaced by: "zero" or "mean".
        before: The target's score without ablation.
        channels: The channels that were ablated, in their own order.
        after: (n,) float64 on the CPU (float32 where the device has nothing wider): the score
            without each of them.
        started: When it began (UTC).
        seconds: How long it took.
    """

    model: LoadedModel
    image: Picture
    layer: str
    target: str
    by: str
    before: float
    channels: tuple[int, ...]
    after: Tensor
    started: datetime
    seconds: float

    @property
    def effects(self) -> Tensor:
        """(n,) score without the channel minus score with it: below 0 the channel spoke for it."""
        return self.after - self.before

    @property
    def order(self) -> tuple[int, ...]:
        """The channels by the size of their effect, the largest first, NaN last."""
        sizes = [-abs(e) if not math.isnan(e) else math.inf for e in self.effects.tolist()]
        ranked = sorted(range(len(sizes)), key=sizes.__getitem__)
        return tuple(self.channels[i] for i in ranked)

    def top(self, n: int = 10) -> list[tuple[int, float]]:
        """The channels of the largest effects, each with its effect.

        Args:
            n: How many.
        """
        effects = dict(zip(self.channels, self.effects.tolist(), strict=True))
        return [(channel, effects[channel]) for channel in self.order[:n]]

    def rows(self) -> list[dict[str, Any]]:
        """All channels as dicts of plain values, the largest effect first."""
        scores = dict(zip(self.channels, self.after.tolist(), strict=True))
        return [
            {
                "rank": rank,
                "channel": channel,
                "effect": effect,
                "before": self.before,
                "after": scores[channel],
            }
            for rank, (channel, effect) in enumerate(self.top(len(self.channels)), 1)
        ]

    def table(self, n: int | None = 20) -> str:
        """The largest effects as aligned text.

        Args:
            n: How many; None for all.
        """
        cells = [
            (str(r["rank"]), str(r["channel"]), f"{r['effect']:+.5g}", f"{r['after']:.5g}")
            for r in self.rows()[:n]
        ]
        return columns([("rank", "channel", "effect", "score without"), *cells])

    def __str__(self) -> str:
        return (
            f"{self.target}: {self.before:.5g}; each channel of {self.layer} set to {self.by}\n"
            f"{self.table()}"
        )

    def __repr__(self) -> str:
        return f"<Sweep of {len(self.channels)} channels of {self.layer} for {self.target}>"

    def to_csv(self) -> str:
        """All channels as CSV with a head, the largest effect first."""
        return csv_text(["rank", "channel", "effect", "before", "after"], self.rows())

    def to_pandas(self) -> Any:
        """The same as a ``pandas.DataFrame``.

        Raises:
            HookvizError: pandas is not installed.
        """
        return data_frame(self.rows())

    def figure(self, n: int = 20, **options: Unpack[DrawingOptions]) -> Figure:
        """The largest effects as bars.

        Args:
            n: How many channels, at most 24.
            **options: Fields of `hookviz.render.GridOptions`: ``width``, ``style`` …

        Returns:
            A new figure that is not registered with pyplot.

        Raises:
            HookvizError: ``n`` is no number from 1 to 24.
            RenderError: An option is unknown.
        """
        from hookviz.export import draw_activation
        from hookviz.render import GridOptions
        from hookviz.run import facts_of

        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= _LISTED:
            raise HookvizError(f"n is {n!r:.80}; it must be a whole number from 1 to {_LISTED}.")
        count = max(self.channels) + 1
        effects = torch.zeros(count, dtype=self.after.dtype)
        effects[list(self.channels)] = self.effects
        record = Activation(self.layer, 1, 1, 1, 1, "output", "", "", effects[None])
        own: DrawingOptions = {
            "channels": self.order[:n],
            "title": f"{self.target} without a channel of {self.layer} ({self.by}): change of "
            f"{self.before:.4g}",
        }
        own.update(options)
        facts = replace(facts_of(self.model), image_name=self.image.name, categories=())
        return draw_activation(facts, record, GridOptions.of(**own)).figure


def sweep(
    model: LoadedModel | str | nn.Module,
    image: Any,
    layer: str,
    *,
    target: TargetLike = None,
    by: Literal["zero", "mean"] = "zero",
    channels: Iterable[int] | None = None,
    call: int | str = "last",
    leaf: str | None = None,
    batch: int | None = None,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    weights: Any = "auto",
    device: str | torch.device | None = None,
    preprocess: Preprocessing | Callable[..., Any] | None = None,
) -> Sweep:
    """Ranks the channels of a layer by their effect on a target.

    Each channel is ablated by itself (``feature_maps(…, edits=[zero(layer, channels=c)])`` does it
    for one), many of them in a batch. What lies before the layer runs once; where a model gives
    something else when it starts at the layer, it runs whole for each. Values differ from those
    of single runs by the rounding of larger batches alone. Modes, hooks and generators of random
    numbers are afterwards as they were, also after an error and after cancelling.

    Args:
        model: What `load_model` gave, a name that it knows, or any ``nn.Module``.
        image: A path, bytes, PIL image, array, tensor or `Picture`, see `read_image`.
        layer: The layer's name.
        target: One target, see `explain`; None is the likeliest class.
        by: "zero", or "mean": the channel's mean over its places (in a vector the mean of all
            channels), which takes away where it speaks but not how much.
        channels: Only these, from 0; None is all.
        call: Which call of a layer that runs several times: from 1, or "last".
        leaf: Which tensor of a nested output, by its path.
        batch: How many channels at once; None is as many as take little memory.
        progress: Called after each batch with the channels done, the channels in all, and the
            seconds that the rest will take.
        cancelled: Asked before every module's call and every batch; True ends with RunCancelled.
        weights: Which weights where ``model`` is a name, see `load_model`.
        device: Where to run, as in `feature_maps`.
        preprocess: In place of the model's own preprocessing.

    Returns:
        ``.top(n)``, ``.table()``, ``.to_csv()``, ``.to_pandas()``, ``.figure()``.

    Raises:
        LayerError: There is no such layer, call or channel, it did not run, has no channels, or
            comes after the target.
        HookvizError: The target or an option cannot be used.
        RunCancelled: ``cancelled`` answered True.
        Exception: Whatever the model's own forward raised, unchanged.

    Examples:
        >>> import hookviz
        >>> model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
        >>> found = hookviz.sweep(model, hookviz.sample_image(), "features.26",
        ...                       target="channel 7 of features.28", channels=range(8))
        >>> len(found.top(3)), found.to_csv().splitlines()[0]
        (3, 'rank,channel,effect,before,after')
    """
    if by not in ("zero", "mean"):
        raise HookvizError(f"by is {by!r:.80}; it must be 'zero' or 'mean'.")
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise HookvizError(f"batch is {batch!r:.80}; it must be a whole number from 1, or None.")
    check_call(call)
    steps = Steps(progress, cancelled, "The sweep")
    loaded = loaded_model(model, weights, device, preprocess)
    names = tuple(select_layers(loaded.module, [layer]).values())
    if len(names) != 1:
        raise LayerError(f"'{layer}' names {len(names)} layers; a sweep goes through one.")
    picture = read_image(image)
    wanted = wanted_targets(loaded, target)
    if len(wanted) != 1:
        raise HookvizError(f"A sweep has one target, and {len(wanted)} were named.")
    started, begin = datetime.now(UTC), time.perf_counter()
    with undisturbed(loaded.device):
        received = network_input(
            picture, loaded.preprocess, device=loaded.device, dtype=loaded.dtype
        )
        job = Job(loaded, received, names, wanted, _SWEEP, {"batch": batch}, call, leaf, steps)
        late = LateStart(loaded.module, dict.fromkeys(names, call))
        answer = job.first(grad=False, late=late)
        record = answer.points[0].record
        for other in answer.read.values():
            if (other.order, other.layer) < (record.order, record.layer):
                raise LayerError(
                    f"Layer '{record.layer}' runs after the target ({job.targets[0].name}), which "
                    "does not depend on it.",
                    remedy="Choose a layer before the target.",
                )
        chosen = _chosen(record, channels)
        before = job.scores(answer)[0].detach().double()
        steps.expect(len(chosen))
        ablation = Ablation(job, record, late, before.reshape(1), mean=by == "mean")
        after = ablation.scores(chosen)[0].cpu()
    return Sweep(
        loaded, picture, record.label, job.targets[0].name, by, float(before), tuple(chosen), after,
        started, time.perf_counter() - begin,
    )  # fmt: skip


def _no_records(_job: Job) -> Iterator[Attribution]:
    return iter(())


_SWEEP = Method("sweep", "A sweep", "", _no_records, options={"batch": None})


def _chosen(record: Activation, channels: Iterable[int] | None) -> list[int]:
    """The channels to be ablated.

    Raises:
        LayerError: The layer has no channels that are known, or not these.
    """
    found = reading_of(record, 1)
    if record.tensor.is_quantized:
        raise LayerError(
            f"The output of '{record.layer}' is quantised, so no channel of it can be ablated.",
            remedy="Use the model in floating point.",
        )
    if found is None:
        raise LayerError(
            f"Which axis of '{record.layer}', of shape {tuple(record.shape)}, holds channels is "
            "not known, so none can be ablated.",
            remedy="Choose a layer that is drawn as maps, tokens or a vector.",
        )
    count = record.shape[found[1]]
    if channels is None:
        return list(range(count))
    given: Any = channels
    wanted = [*given] if isinstance(given, Iterable) else [given]
    for channel in wanted:
        if isinstance(channel, bool) or not isinstance(channel, int) or not 0 <= channel < count:
            raise LayerError(
                f"There is no channel {channel!r:.40} in '{record.layer}', of shape "
                f"{tuple(record.shape)}: its channels are 0 to {count - 1}."
            )
    if not wanted:
        raise HookvizError("channels is empty; name at least one, or leave it out for all.")
    return list(dict.fromkeys(wanted))
