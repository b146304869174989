"""Class activation maps: a weighted sum of a layer's maps.

A is the layer's output (channels k, places i, j), g the gradient of the target's score with respect
to it, both as they leave the layer, before any in-place layer behind it. Sums and products are
formed in float64. Every map is at the layer's own resolution, with its sign; the ReLU of a paper's
formula, and normalisation, are views of it (`Explanation.map`, ``signed=``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hookviz.activation import Activation
from hookviz.errors import LayerError
from hookviz.explanation._forward import Point, gradients
from hookviz.explanation._job import Job
from hookviz.explanation._methods import Method, register
from hookviz.render import Attribution, GridOptions, arrange


@dataclass(frozen=True, eq=False)
class ByPlace:
    """A layer's output or gradient by channel and place.

    Attributes:
        maps: (C, H, W) float64.
        apart: (C, K) float64, of tokens that stand for no place; None without.
    """

    maps: Tensor
    apart: Tensor | None


def places_of(record: Activation, input_size: tuple[int, int]) -> ByPlace:
    """Turns a layer's output to channels and places, as its figures show it.

    Raises:
        LayerError: It has no rows and columns.
    """
    arranged = arrange(record, GridOptions(), input_size)
    if arranged.kind not in ("maps", "tokens") or arranged.part or arranged.samples > 1:
        found = f"a {arranged.part} for each sample" if arranged.part else f"{arranged.kind}"
        raise LayerError(
            f"Layer '{record.layer}' has no rows and columns that lie as the image does: its "
            f"output {tuple(record.shape)} holds {found} {arranged.statement}.",
            remedy="Choose a layer before it whose feature maps can be seen.",
        )
    wide = torch.float32 if record.tensor.device.type == "mps" else torch.float64
    apart = arranged.apart
    return ByPlace(arranged.maps.to(wide), None if apart is None else apart.to(wide))


Formula = Callable[[Tensor, Tensor], Tensor]
"""From A (C, H, W) and g (C, H, W) to the weight of each channel, (C, 1, 1), or of each value."""


def by_gradient(formula: Formula) -> Callable[[Job], Iterator[Attribution]]:
    """The method whose map is the sum over channels of a weight, given by A and g, times A."""

    def explain(job: Job) -> Iterator[Attribution]:
        answer = job.first(grad=True)
        points = answer.points
        size = (int(job.input.tensor.shape[2]), int(job.input.tensor.shape[3]))
        seen = [places_of(point.record, size) for point in points]
        scores = job.scores(answer)
        job.steps.expect(len(scores))
        found: list[list[tuple[Tensor, Tensor | None]]] = [[] for _ in points]
        for number, (target, score) in enumerate(zip(job.targets, scores, strict=True)):
            again = number + 1 < len(scores)
            given = gradients(score, target.name, points, again=again)
            for maps, point, here, gradient in zip(found, points, seen, given, strict=True):
                maps.append(_map(formula, point, here, gradient, size))
            job.steps.step()
        for maps, point in zip(found, points, strict=True):
            tensor = torch.stack([one for one, _ in maps])[:, None]
            tokens = [one for _, one in maps if one is not None]
            yield job.attribution(
                point.record, tensor, apart=torch.stack(tokens) if tokens else None
            )

    return explain


def _map(
    formula: Formula, point: Point, here: ByPlace, gradient: Tensor, size: tuple[int, int]
) -> tuple[Tensor, Tensor | None]:
    there = places_of(replace(point.record, tensor=gradient), size)
    weights = formula(here.maps, there.maps)
    found = (weights * here.maps).sum(0)
    if here.apart is None or weights.shape[1:] != (1, 1):
        return found, None
    return found, (weights[:, 0] * here.apart).sum(0)


def _grad_cam(_maps: Tensor, gradient: Tensor) -> Tensor:
    return gradient.mean((1, 2), keepdim=True)


register(
    Method("gradcam", "Grad-CAM", "Selvaraju et al. 2017, arXiv:1610.02391", by_gradient(_grad_cam))
)
