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

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hookviz.activation import Activation
from hookviz.capture import Edit, LateStart, leaves
from hookviz.errors import HookvizError, LayerError, RunCancelled
from hookviz.explanation._checks import check_whole
from hookviz.explanation._forward import Answer, Point
from hookviz.explanation._job import Job
from hookviz.explanation._methods import Method, register
from hookviz.explanation._places import ByPlace, by_place, reading_of
from hookviz.render import Attribution

_BATCH = 16  # images: larger batches were slower on a CPU (ResNet-18: 8 % with 32)
_WORTH_A_TRIAL = 64  # images from which a trial of one pays
_MOST_BYTES = 2**24  # of a layer's output, for as many channels as fit: 4 times as much took longer


def _check(options: Mapping[str, Any]) -> None:
    for name in ("channels", "batch"):
        if options[name] is not None:
            check_whole(name, options[name], 1)


def _strongest(maps: Tensor, count: int | None) -> list[int]:
    """The channels of the largest mean magnitude, all of them where ``count`` is None."""
    if count is None or count >= len(maps):
        return list(range(len(maps)))
    strength = maps.abs().mean((1, 2))
    return sorted(strength.argsort(descending=True, stable=True)[:count].tolist())


def _chosen(job: Job, answer: Answer) -> list[tuple[Point, ByPlace, list[int]]]:
    """Each layer with its maps and the channels that are to be gone through, a step each."""
    found = []
    for point in answer.points:
        here = by_place(point.record, job.size)
        found.append((point, here, _strongest(here.maps, job.options["channels"])))
    job.steps.expect(sum(len(channels) for *_, channels in found))
    return found


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
    layers = _chosen(job, answer)
    given, layout = job.input.tensor, torch.contiguous_format
    if sum(len(channels) for *_, channels in layers) >= _WORTH_A_TRIAL:
        layout = _fast_layout(job, _wide(torch.stack(job.scores(answer))))
    for point, here, channels in layers:
        maps = here.maps[channels]
        constant = (maps == maps[:, :1, :1]).flatten(1).all(1).cpu()
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
    late = LateStart(job.model.module, dict.fromkeys(job.layers, job.call))
    answer = job.first(grad=False, late=late)
    before = _wide(torch.stack(job.scores(answer)))[:, 0]
    for target, score in zip(job.targets, before.tolist(), strict=True):
        if score == 0:
            raise HookvizError(
                f"The score of the target ({target.name}) is 0, and Ablation-CAM divides by it.",
                remedy="Choose another target or method.",
            )
    for point, here, channels in _chosen(job, answer):
        after = Ablation(job, point.record, late, before).scores(channels)
        weights = (before[:, None] - after) / before[:, None]
        yield _weighted(job, point, here, channels, weights)


@dataclass(eq=False)
class Ablation:
    """The scores with channels of a layer set to 0, or to their mean, one by one.

    The forward starts at the layer, so that only what follows runs for each. Where a model does not
    take that, or gives something else than when it runs whole, it runs whole.

    Args:
        job: Whose forwards are used.
        record: The layer's output.
        late: Has recorded the job's first forward.
        before: (T,) the scores without ablation.
        mean: A channel becomes its mean over its places (that of a vector the mean over all
            channels) instead of 0.
    """

    job: Job
    record: Activation
    late: LateStart
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
        late = self._starts_late(channels[0])
        most = max(1, min(512, _MOST_BYTES // max(1, self.record.tensor.nbytes)))
        found = []
        for part in _parts(channels, asked or (most if late else _BATCH)):
            found.append(self._of(part, late=late))
            steps.step(len(part))
        return torch.cat(found, 1)

    def _starts_late(self, channel: int) -> bool:
        """Whether forwards that start at the layer give what whole ones give.

        One without ablation must give the very bits, and two images with a channel ablated in the
        second what each of them gives alone.
        """
        answer = self.job.answer
        try:
            again = self._answer([None], late=True)
            same = answer is not None and _same_bits(
                (again.output, [r.tensor for r in again.read.values()]),
                (answer.output, [r.tensor for r in answer.read.values()]),
            )
            if not same:
                return False
            both = self._of([None, channel], late=True)
            alone = torch.cat((self.before[:, None], self._of([channel], late=True)), 1)
        except RunCancelled:
            raise
        except Exception:  # noqa: BLE001 - the model's code met something that it does not expect
            return False
        bound = 1e3 * torch.finfo(self.record.tensor.dtype).eps * float(both.abs().amax())
        return bool(((both - alone).abs() <= bound).all())

    def _of(self, channels: Sequence[int | None], *, late: bool) -> Tensor:
        """(T, n) the scores with each of the channels set to 0; None leaves all as they are."""
        return _wide(torch.stack(self.job.scores(self._answer(channels, late=late))))

    def _answer(self, channels: Sequence[int | None], *, late: bool) -> Answer:
        """The model's answer to as many images as there are channels, each with one set to 0."""
        record, count = self.record, len(channels)
        changed: list[object] = []

        def change(tensor: Tensor, site: object) -> Tensor:
            changed.append(site)
            many = tensor.clone()
            for image, channel in zip(many, channels, strict=True):
                if channel is not None:
                    part = image.select(self._axis - 1, channel)
                    kept = part if part.dim() else image
                    part.fill_(kept.float().mean() if self.mean else 0)
            return many

        images = self.job.input.tensor
        with ExitStack() as stack:
            if late:
                call: int | None = stack.enter_context(self.late.started(record.layer, count))
                images = images.expand(count, *images.shape[1:])
            else:
                call = record.call if record.calls > 1 else None
                images = images.repeat_interleave(count, 0)
            ablate = Edit([record.layer], "output", change, "ablate", call, record.leaf or None)
            answer = self.job.run(images, edits=[ablate])
        if not changed:
            raise LayerError(f"Layer '{record.layer}' gave no output to ablate.")
        return answer


def _same_bits(one: Any, other: Any) -> bool:
    """Whether two answers hold the same tensors, NaN in the same places."""
    pairs = zip(leaves(one), leaves(other), strict=True)
    return all(
        path == its and a.shape == b.shape and torch.equal(a.isnan(), b.isnan())
        and torch.equal(a.nan_to_num(), b.nan_to_num())
        for (path, a), (its, b) in pairs
    )  # fmt: skip


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
