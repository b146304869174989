"""How far edits move a target: its score in a run without them and in one with them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hookviz.activation import Activation
from hookviz.errors import HookvizError, LayerError
from hookviz.explanation._forward import Answer
from hookviz.explanation._target import TargetLike, wanted_targets
from hookviz.run import Run


@dataclass(frozen=True)
class TargetEffect:
    """The score of one target before and after.

    Attributes:
        target: The target in words; the likeliest class is that of the run before.
        before: Its score in the run before.
        after: Its score in the run after.
    """

    target: str
    before: float
    after: float

    @property
    def difference(self) -> float:
        """``after - before``."""
        return self.after - self.before

    def __str__(self) -> str:
        return f"{self.target}: {self.before:.5g} → {self.after:.5g} ({self.difference:+.5g})"


def effect_on(before: Run, after: Run, target: TargetLike = None) -> TargetEffect:
    """The effect of edits on a target, as one number.

    Args:
        before: A run; it says which class is the likeliest.
        after: A run of the same model, edited.
        target: One target, see `explain`; None is the likeliest class. The layer of a channel must
            have been captured in both runs.

    Returns:
        The score in both, and the difference.

    Raises:
        LayerError: The target's layer was not captured.
        HookvizError: The target is not in the model's answer, or there are several; a run ended
            early.

    Examples:
        >>> import hookviz
        >>> from hookviz.capture import zero
        >>> model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
        >>> photo, layers = hookviz.sample_image(), ["features.28"]
        >>> plain = hookviz.feature_maps(model, photo, layers)
        >>> edited = hookviz.feature_maps(model, photo, layers, edits=[zero("features.26")])
        >>> str(effect_on(plain, edited, "channel 7 of features.28")).split(":")[0]
        'channel 7 of features.28'
    """
    wanted = wanted_targets(before.model, target)
    if len(wanted) != 1:
        raise HookvizError(f"The effect is that on one target, and {len(wanted)} were named.")
    layer = wanted[0].layer
    one, other = (_answer(run, layer) for run in (before, after))
    settled = wanted[0].settle(one)
    with torch.no_grad():
        scores = [float(settled.score(answer).detach()[0]) for answer in (one, other)]
    return TargetEffect(settled.name, *scores)


def _answer(run: Run, layer: str | None) -> Answer:
    """A run as the answer that a target reads."""
    if layer is None:
        if run.output is None:
            raise HookvizError(
                "A run that ended early has no output, so the target has no score.",
                remedy="Run it with stop_early=False.",
            )
        return Answer(run.output, 1)
    records: list[Activation] = [
        a for a in run.activations if a.layer == layer and a.kind == "output"
    ]
    if not records:
        raise LayerError(
            f"The target's layer '{layer}' was not captured in one of the runs.",
            remedy=f"Run both with '{layer}' among the layers.",
        )
    return Answer(run.output, 1, {layer: records[-1]})
