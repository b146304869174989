"""Class activation maps by gradients, and Eigen-CAM: a weighted sum of a layer's maps.

A is the layer's output (channels k, places i, j), g the gradient of the target's score with respect
to it, both as they leave the layer, before any in-place layer behind it; S is the sum of A over the
places of a channel. Sums and products are formed in float64, places alone are summed over: class
tokens stand apart and have the map's value of their own. Every map is at the layer's own
resolution, with its sign; the ReLU of a paper's formula, and normalisation, are views of it
(`Explanation.map`, ``signed=``). No small number is added to any denominator.

=============  ====================================================================================
gradcam        sum over k of mean(g_k) A_k, then ReLU.
               Selvaraju et al. 2017, arXiv:1610.02391, equations 1 and 2
gradcam++      sum over k of w_k A_k, then ReLU; w_k = sum of ReLU(g) / (2 + g S_k) over places.
               Chattopadhay et al. 2018, arXiv:1710.11063, equations 10 and 19 with an exponential
               on top of the score, whose factor, the same for all channels, is left out.
               Made for layers whose values are not negative
hirescam       sum over k of g_k A_k, value by value, then ReLU. Draelos and Carin 2020,
               arXiv:2011.08891
layercam       sum over k of ReLU(g_k) A_k, value by value, then ReLU. Jiang et al. 2021,
               IEEE Transactions on Image Processing 30
xgradcam       sum over k of w_k A_k, then ReLU; w_k = sum of g A_k / S_k over places, 0 where S_k
               is 0. Fu et al. 2020, arXiv:2008.02312
eigencam       A, as (places, channels) and not centred, times its first right singular vector.
               Muhammad and Yeasin 2020, arXiv:2008.00299. It has no target. The sign, which the
               decomposition leaves open, is that which makes the sum over all places positive
=============  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hookviz.explanation._forward import Point, gradients
from hookviz.explanation._job import Job
from hookviz.explanation._methods import Method, register
from hookviz.explanation._places import ByPlace, by_place
from hookviz.render import Attribution

Weigh = Callable[[Tensor, Tensor], Tensor]
"""From A (C, H, W) and g (C, H, W) to the weight of each channel, (C, 1, 1), or of each value."""


def _by_gradient(weigh: Weigh, *, positive: bool = False) -> Callable[[Job], Iterator[Attribution]]:
    """The method whose map is the sum over channels of a weight, given by A and g, times A.

    Args:
        weigh: Gives the weights.
        positive: Whether the method is made for layers whose values are not negative.
    """

    def explain(job: Job) -> Iterator[Attribution]:
        answer = job.first(grad=True)
        points = answer.points
        layers = [_LayerMaps(point, by_place(point.record, job.size)) for point in points]
        scores = job.scores(answer)
        job.steps.expect(len(scores))
        for number, (target, score) in enumerate(zip(job.targets, scores, strict=True)):
            more = number + 1 < len(scores)
            for layer, gradient in zip(
                layers, gradients(score, target.name, answer, points, again=more), strict=True
            ):
                record = replace(layer.point.record, tensor=gradient)
                layer.add(weigh, by_place(record, job.size))
            job.steps.step()
        for layer in layers:
            yield layer.done(job, positive=positive)

    return explain


@dataclass(eq=False)
class _LayerMaps:
    """The maps of one layer, target by target."""

    point: Point
    here: ByPlace

    def __post_init__(self) -> None:
        self.maps: list[Tensor] = []
        self.tokens: list[Tensor] = []
        self.flat: list[bool] = []

    def add(self, weigh: Weigh, gradient: ByPlace) -> None:
        """The map of one more target."""
        a, g = self.here.maps, gradient.maps
        weights = weigh(a, g)
        self.maps.append((weights * a).sum(0))
        self.flat.append(not bool(g.any()))
        if self.here.apart is not None and gradient.apart is not None:
            a, g = self.here.apart[:, :, None], gradient.apart[:, :, None]
            if weights.shape[1:] != (1, 1):
                weights = weigh(a, g)
            self.tokens.append((weights * a).sum((0, 2)))

    def done(self, job: Job, *, positive: bool) -> Attribution:
        """The record of the layer."""
        remarks = []
        if positive and bool((self.here.maps < 0).any()):
            remarks.append(
                "the method is made for values that are not negative; some of this layer's are"
            )
        for number, flat in enumerate(self.flat):
            if not flat:
                continue
            of = f" of {number}" if len(self.flat) > 1 else ""
            remarks.append(
                f"the gradient{of} is 0 at every place"
                + (": only the class token leads on to the target; an earlier layer shows more"
                   if self.tokens else "")
            )  # fmt: skip
        tokens = torch.stack(self.tokens) if self.tokens else None
        maps = torch.stack(self.maps)[:, None]
        return job.attribution(self.point.record, maps, apart=tokens, remarks=remarks)


def _mean(_a: Tensor, g: Tensor) -> Tensor:
    return g.mean((1, 2), keepdim=True)


def _plus_plus(a: Tensor, g: Tensor) -> Tensor:
    total = a.sum((1, 2), keepdim=True)
    alpha = torch.where(g > 0, 1 / (2 + g * total), 0.0)
    return (alpha * g.clamp(min=0)).sum((1, 2), keepdim=True)


def _each(_a: Tensor, g: Tensor) -> Tensor:
    return g


def _each_positive(_a: Tensor, g: Tensor) -> Tensor:
    return g.clamp(min=0)


def _share(a: Tensor, g: Tensor) -> Tensor:
    total = a.sum((1, 2), keepdim=True)
    return torch.where(total == 0, 0.0, (g * a).sum((1, 2), keepdim=True) / total)


def _eigen(job: Job) -> Iterator[Attribution]:
    """A times its first right singular vector."""
    job.steps.expect(1)
    for point in job.first(grad=False).points:
        here = by_place(point.record, job.size)
        vector = principal_direction(here.maps)
        found = torch.einsum("chw,c->hw", here.maps, vector)
        apart = None if here.apart is None else (vector @ here.apart)[None]
        remark = "the layer's main direction, whatever the target is"
        yield job.attribution(point.record, found[None, None], apart=apart, remarks=[remark])
    job.steps.step()


def principal_direction(maps: Tensor) -> Tensor:
    """The first right singular vector of (places, channels), not centred.

    Args:
        maps: (C, H, W) of a floating dtype.

    Returns:
        (C,) of length 1 (0 where all maps are 0), with the sign that makes the sum over all places
        of its product with the maps positive.

    Examples:
        >>> principal_direction(torch.tensor([[[3.0]], [[4.0]]]))
        tensor([0.6000, 0.8000])
    """
    matrix = maps.flatten(1)
    channels, places = matrix.shape
    if not bool(matrix.any()):
        return matrix.new_zeros(channels)
    if channels <= places:
        vector = torch.linalg.eigh(matrix @ matrix.T).eigenvectors[:, -1]
    else:  # the smaller of the two products has the same singular vectors behind it
        left = torch.linalg.eigh(matrix.T @ matrix).eigenvectors[:, -1]
        vector = matrix @ left
    vector = vector / vector.norm()
    return torch.where(vector @ matrix.sum(1) >= 0, vector, -vector)


for _method in (
    Method("gradcam", "Grad-CAM", "Selvaraju et al. 2017, arXiv:1610.02391", _by_gradient(_mean)),
    Method(
        "gradcam++",
        "Grad-CAM++",
        "Chattopadhay et al. 2018, arXiv:1710.11063",
        _by_gradient(_plus_plus, positive=True),
    ),
    Method("hirescam", "HiResCAM", "Draelos and Carin 2020, arXiv:2011.08891", _by_gradient(_each)),
    Method(
        "layercam",
        "LayerCAM",
        "Jiang et al. 2021, IEEE Transactions on Image Processing 30",
        _by_gradient(_each_positive),
    ),
    Method(
        "xgradcam",
        "XGrad-CAM",
        "Fu et al. 2020, arXiv:2008.02312",
        _by_gradient(_share, positive=True),
    ),
    Method(
        "eigencam",
        "Eigen-CAM",
        "Muhammad and Yeasin 2020, arXiv:2008.00299",
        _eigen,
        targeted=False,
        signed=True,
    ),
):
    register(_method)
