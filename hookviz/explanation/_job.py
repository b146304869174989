"""One explanation under way: what was asked for, and what every method needs of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from hookviz.activation import Activation
from hookviz.capture import Edit, LateStart
from hookviz.errors import HookvizError, LayerError
from hookviz.explanation._forward import Answer, Forwards
from hookviz.explanation._methods import Method
from hookviz.explanation._progress import Steps
from hookviz.explanation._target import SettledTarget, Wanted
from hookviz.images import NetworkInput
from hookviz.models import LoadedModel
from hookviz.render import Attribution
from hookviz.run import AxesTrial


@dataclass(eq=False)
class Job:
    """What a method is given. It runs the model by `run`, and asks `settled` for the targets.

    Attributes:
        model: The model.
        input: What it is fed: ``input.tensor`` (1, 3, H, W).
        layers: The layers to be explained; () where the method explains the input.
        wanted: The targets that were asked for.
        method: The method.
        options: All its options.
        call: Which call of the layers, from 1, or "last".
        leaf: Which tensor of a nested output.
        steps: Progress and cancelling: ``steps.expect(n)`` before, ``steps.step()`` after each.
        answer: What the unchanged model answered to the image; there after `first`.
        targets: The targets, settled by that answer.
        missing: For each layer without a record the reason.
        details: What else was found, see `Explanation.details`.
    """

    model: LoadedModel
    input: NetworkInput
    layers: tuple[str, ...]
    wanted: tuple[Wanted, ...]
    method: Method
    options: Mapping[str, Any]
    call: int | str
    leaf: str | None
    steps: Steps
    answer: Answer | None = None
    targets: tuple[SettledTarget, ...] = ()
    missing: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        read = [one.layer for one in self.wanted if one.layer is not None]
        self._forwards = Forwards(
            self.model,
            read,
            ends_early=len(read) == len(self.wanted) > 0,
            cancelled=self.steps.cancelled,
        )

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of what the network sees."""
        height, width = self.input.tensor.shape[-2:]
        return height, width

    def first(
        self, *, grad: bool, tensor: Tensor | None = None, late: LateStart | None = None
    ) -> Answer:
        """The forward of the unchanged model over the image; settles the targets.

        Args:
            grad: Whether gradients will be taken at the layers, or at ``tensor``.
            tensor: What to feed instead of ``input.tensor``: the same values, that require a
                gradient.
            late: Records it, for forwards that start at the layers.

        Returns:
            Its answer, with the layers as points whose axes are known.

        Raises:
            LayerError: None of the layers ran.
            HookvizError: The target is not in the model's answer.
        """
        fed = self.input.tensor if tensor is None else tensor
        with nullcontext() if late is None else late.recorded():
            answer = self.run(fed, self.layers, grad=grad)
        self.missing.update({name: answer.missing.get(name, "it gave no tensor")
                             for name in self.layers
                             if name not in {p.record.layer for p in answer.points}})  # fmt: skip
        if self.layers and not answer.points:
            name, why = next(iter(self.missing.items()))
            raise LayerError(f"Layer '{name or '(model)'}' has no output to explain: {why}.")
        known = self._settle([p.record for p in answer.points])
        points = tuple(replace(p, record=r) for p, r in zip(answer.points, known, strict=True))
        answer = replace(answer, points=points)
        placed = [one.layer for one in self.wanted if one.placed]
        if records := [r for name, r in answer.read.items() if name in placed]:
            for record in self._settle([replace(r, tensor=r.tensor.detach()) for r in records]):
                if record.axes is not None:
                    self._forwards.axes[record.layer] = record.axes
            read = {
                name: replace(r, axes=self._forwards.axes.get(name, r.axes))
                for name, r in answer.read.items()
            }
            answer = replace(answer, read=read)
        self.answer = answer
        if self.method.targeted:
            self.targets = tuple(one.settle(answer) for one in self.wanted)
        return answer

    def _settle(self, records: Sequence[Activation]) -> tuple[Activation, ...]:
        settings = {"eval_mode": True, "cancelled": self.steps.cancelled}
        trial = AxesTrial(self.model, self.input.tensor, settings)
        # What layers outside give is as it comes, in the order of the records given.
        return trial.settle(records)

    def run(
        self,
        tensor: Tensor,
        layers: Sequence[str] = (),
        *,
        grad: bool = False,
        edits: Iterable[Edit] = (),
    ) -> Answer:
        """One forward over (N, 3, H, W), the model edited; see `Forwards.run`."""
        return self._forwards.run(
            tensor, layers, call=self.call, leaf=self.leaf, grad=grad, edits=edits
        )

    def scores(self, answer: Answer) -> tuple[Tensor, ...]:
        """For each target (N,) its score in an answer, in autograd's graph."""
        return tuple(target.score(answer) for target in self.targets)

    def attribution(
        self,
        record: Activation | None,
        tensor: Tensor,
        *,
        apart: Tensor | None = None,
        remarks: Iterable[str] = (),
    ) -> Attribution:
        """A record of this explanation.

        Args:
            record: The layer's output; None for the network's input.
            tensor: (T, C, H, W), see `Attribution`.
            apart: (T, K), likewise.
            remarks: Sentences that the figure must carry.
        """
        if record is None:
            record = Activation("", 1, 1, 1, 0, "attribution", "", "", tensor)
        if self.answer is None:
            raise HookvizError("A job's first forward comes before its records.")
        scores = [float(score.detach()[0]) for score in self.scores(self.answer)]
        facts = vars(record) | {"kind": "attribution", "tensor": tensor.detach()}
        return Attribution(
            **facts,
            method=self.method.title,
            targets=tuple(target.name for target in self.targets),
            scores=tuple(scores),
            signed=self.method.signed,
            apart=None if apart is None else apart.detach(),
            remarks=tuple(remarks),
            recipe={
                "method": self.method.name,
                "layers": list(self.layers),
                "target": [target.written for target in self.targets],
                "call": self.call,
                "leaf": self.leaf,
                "options": dict(self.options),
            },
        )
