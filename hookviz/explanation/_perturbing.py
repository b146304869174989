"""Class activation maps without gradients: each channel's weight is found by a forward of its own.

=============  ====================================================================================
scorecam       sum over k of softmax(s)_k A_k, then ReLU; s_k is the target's score for the input
               times channel k as a mask: A_k, brought to the input's size (bilinear, half-pixel
               centers), then normalised to 0 … 1 (0 where it is constant). The network's input is
               multiplied as it is, after normalisation: what is masked becomes the mean color.
               The paper subtracts the score of a baseline from each s_k, which the softmax takes
               away again. Wang et al. 2020, arXiv:1910.01279
ablationcam    sum over k of w_k A_k, then ReLU; w_k = (y - y_k) / y, where y is the target's score
               and y_k that with channel k set to 0 (of tokens: that feature of all of them).
               Desai and Ramaswamy 2020, IEEE WACV
=============  ====================================================================================

Both take all channels, or the n strongest (largest mean of their absolute values); the others then
have the weight 0, and the softmax runs over the n alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hookviz.activation import Activation
from hookviz.capture import Edit
from hookviz.errors import HookvizError, LayerError, RunCancelled
from hookviz.explanation._forward import Point
from hookviz.explanation._job import Job
from hookviz.explanation._methods import Method, register
from hookviz.explanation._places import ByPlace, by_place, reading_of
from hookviz.render import Attribution

_BATCH = 16  # images: larger batches were slower on a CPU (ResNet-18: 8 % with 32)
_WORTH_A_TRIAL = 64  # images from which a trial of one pays
_MOST_BYTES = 2**26  # of a layer's output, copied for as many channels as fit


def _check(options: Mapping[str, Any]) -> None:
    for name in ("channels", "batch"):
        number = options[name]
        whole = isinstance(number, int) and not isinstance(number, bool) and number >= 1
        if number is not None and not whole:
            raise HookvizError(f"{name} is {number!r:.80}; it must be a whole number from 1.")


def _strongest(maps: Tensor, count: int | None) -> list[int]:
    """The channels of the largest mean magnitude, all of them where ``count`` is None."""
    if count is None or count >= len(maps):
        return list(range(len(maps)))
    strength = maps.abs().mean((1, 2))
    return sorted(strength.argsort(descending=True, stable=True)[:count].tolist())


def _parts(channels: list[int], size: int) -> Iterator[list[int]]:
    return (channels[at : at + size] for at in range(0, len(channels), size))


def _weighted(
    job: Job, point: Point, here: ByPlace, channels: list[int], weights: Tensor
) -> Attribution:
    """The record: weights (T, n) of some channels times their maps."""
    weights = weights.to(here.maps)
    maps = torch.einsum("tc,chw->thw", weights, here.maps[channels])
    apart = None if here.apart is None else weights @ here.apart[channels]
    of = len(here.maps)
    remarks = [f"of {len(channels)} of {of} channels, the strongest"] * (len(channels) < of)
    return job.attribution(point.record, maps[:, None], apart=apart, remarks=remarks)


def _score_cam(job: Job) -> Iterator[Attribution]:
    answer = job.first(grad=False)
    layers = [(point, by_place(point.record, job.size)) for point in answer.points]
    chosen = [_strongest(here.maps, job.options["channels"]) for _, here in layers]
    count = sum(map(len, chosen))
    job.steps.expect(count)
    given, layout = job.input.tensor, torch.contiguous_format
    if count >= _WORTH_A_TRIAL:
        layout = _fast_layout(job, _wide(torch.stack(job.scores(answer))))
    for (point, here), channels in zip(layers, chosen, strict=True):
        maps = here.maps[channels]
        constant = (maps == maps[:, :1, :1]).flatten(1).all(1)
        scores = torch.empty(len(job.targets), len(channels), dtype=torch.float64)
        if constant.any():  # all of them mask everything
            scores[:, constant] = _scores_of(job, given * 0).to(scores)
            job.steps.step(int(constant.sum()))
        speaking = (~constant).nonzero()[:, 0].tolist()
        for part in _parts(speaking, job.options["batch"] or _BATCH):
            masks = _masks(maps[part].to(given.dtype), job.size)
            masked = given.new_empty((len(part), *given.shape[1:])).to(memory_format=layout)
            torch.mul(given, masks, out=masked)
            scores[:, part] = _scores_of(job, masked).to(scores)
            job.steps.step(len(part))
        yield _weighted(job, point, here, channels, scores.softmax(1))


def _fast_layout(job: Job, known: Tensor) -> torch.memory_format:
    """How the input is laid out in memory: channels last where a CPU is faster so.

    ResNet-18 takes 0.83 of the time, MobileNetV2 0.66. A model that cannot be fed such a tensor
    (it uses ``view``), or gives another score for it than by rounding, gets it as it is.

    Args:
        job: The job.
        known: (T, 1) the scores of the input as it is.
    """
    given, plain = job.input.tensor, torch.contiguous_format
    if given.device.type != "cpu" or given.dtype != torch.float32 or given.dim() != 4:
        return plain
    try:
        found = _scores_of(job, given.contiguous(memory_format=torch.channels_last))
    except RunCancelled:
        raise
    except Exception:  # noqa: BLE001 - the model's own code; it runs as it did before
        return plain
    bound = 100 * torch.finfo(given.dtype).eps * max(1.0, float(known.abs().max()))
    return torch.channels_last if bool(((found - known).abs() <= bound).all()) else plain


def _scores_of(job: Job, images: Tensor) -> Tensor:
    """(T, N) float64 (or the widest there is): each target's score for N images."""
    return _wide(torch.stack(job.scores(job.run(images))))


def _wide(scores: Tensor) -> Tensor:
    return scores.detach().to(torch.float32 if scores.device.type == "mps" else torch.float64)


def _masks(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """(n, 1, H, W) from 0 to 1 of (n, h, w) maps; 0 where a map is constant."""
    large = F.interpolate(maps[:, None], size, mode="bilinear", align_corners=False)
    low, high = large.amin((2, 3), keepdim=True), large.amax((2, 3), keepdim=True)
    return torch.where(high > low, (large - low) / (high - low), 0.0)


def _ablation_cam(job: Job) -> Iterator[Attribution]:
    answer = job.first(grad=False)
    before = _wide(torch.stack(job.scores(answer)))[:, 0]
    for target, score in zip(job.targets, before.tolist(), strict=True):
        if score == 0:
            raise HookvizError(
                f"The score of the target ({target.name}) is 0, and Ablation-CAM divides by it.",
                remedy="Choose another target or method.",
            )
    layers = [(point, by_place(point.record, job.size)) for point in answer.points]
    chosen = [_strongest(here.maps, job.options["channels"]) for _, here in layers]
    job.steps.expect(sum(map(len, chosen)))
    for (point, here), channels in zip(layers, chosen, strict=True):
        after = Ablation(job, point.record, before).scores(channels)
        weights = (before[:, None] - after) / before[:, None]
        yield _weighted(job, point, here, channels, weights)


@dataclass(eq=False)
class Ablation:
    """The scores with channels of a layer set to 0, or to their mean, one by one.

    One image goes in, and the layer hands on as many copies of its output as channels are ablated
    at once, so that only what follows runs for each. Where a model does not take that (it joins
    the layer's output with what comes from elsewhere, or knows the size of its batch), or gives
    something else than with one channel alone, as many images go in.

    Args:
        job: Whose forwards are used.
        record: The layer's output.
        before: (T,) the scores without ablation.
        mean: A channel becomes its mean over its places (that of a vector the mean over all
            channels) instead of 0.
    """

    job: Job
    record: Activation
    before: Tensor
    mean: bool = False

    def __post_init__(self) -> None:
        found = reading_of(self.record, 1)
        if found is None or self.record.tensor.is_quantized:
            why = "is quantised" if self.record.tensor.is_quantized else "has no known channel axis"
            raise LayerError(
                f"The output of '{self.record.layer}' {why}, so no channel of it can be ablated.",
                remedy="Use 'eigencam' or 'scorecam'.",
            )
        self._axis = found[1]

    def scores(self, channels: list[int]) -> Tensor:
        """(T, n) the scores with each of the channels set to 0."""
        asked, steps = self.job.options["batch"], self.job.steps
        size = asked or max(1, min(512, _MOST_BYTES // max(1, self.record.tensor.nbytes)))
        first = self._from_layer(channels[:size])
        found = [] if first is None else [first]
        if first is None:
            size = asked or _BATCH
        else:
            steps.step(first.shape[1])
            channels = channels[size:]
        for part in _parts(channels, size):
            found.append(self._of(part, from_layer=first is not None))
            steps.step(len(part))
        return torch.cat(found, 1)

    def _from_layer(self, channels: list[int]) -> Tensor | None:
        """(T, n) the scores by copies made at the layer.

        None where they are not what images of their own give: the copy without ablation must have
        the score of the image, and that of the first channel the one that it has alone.
        """
        if len(channels) < 2:
            return None
        try:
            copied = self._of([None, *channels], from_layer=True)
        except RunCancelled:
            raise
        except Exception:  # noqa: BLE001 - the model's code met a batch that it does not expect
            return None
        alone = self._of(channels[:1], from_layer=False)
        expected = torch.cat((self.before[:, None], alone), 1)
        size = torch.cat((expected, copied), 1).abs().amax()
        bound = 1e3 * torch.finfo(self.record.tensor.dtype).eps * float(size)
        same = bool(((copied[:, :2] - expected).abs() <= bound).all())
        return copied[:, 1:] if same else None

    def _of(self, channels: list[int] | list[int | None], *, from_layer: bool) -> Tensor:
        """(T, n) the scores with each of the channels set to 0; None leaves all as they are."""
        count = len(channels)

        def change(tensor: Tensor, _site: object) -> Tensor:
            many = tensor.repeat_interleave(count, 0) if from_layer else tensor.clone()
            for position, channel in enumerate(channels):
                if channel is not None:
                    part = many[position].select(self._axis - 1, channel)
                    kept = part if part.dim() else many[position]
                    part.fill_(kept.float().mean() if self.mean else 0)
            return many

        record = self.record
        call = record.call if record.calls > 1 else None
        ablate = Edit([record.layer], "output", change, "ablate", call, record.leaf or None)
        images = self.job.input.tensor
        if not from_layer:
            images = images.repeat_interleave(count, 0)
        answer = self.job.run(images, edits=[ablate])
        return _wide(torch.stack(self.job.scores(replace(answer, count=count))))


for _method in (
    Method(
        "scorecam",
        "Score-CAM",
        "Wang et al. 2020, arXiv:1910.01279",
        _score_cam,
        options={"channels": None, "batch": None},
        check=_check,
    ),
    Method(
        "ablationcam",
        "Ablation-CAM",
        "Desai and Ramaswamy 2020, IEEE WACV",
        _ablation_cam,
        options={"channels": None, "batch": None},
        check=_check,
    ),
):
    register(_method)
