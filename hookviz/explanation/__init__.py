"""Why a model gives what it gives: how much each place of a layer or of the input counts for it.

In: a model, an image, a target (a class, a box, a mask, a channel of a later layer, any number of
the output) and a method. Out: an `Explanation`: maps with their sign, figures, files; a `Sweep`:
the effect of each channel; a `FeatureVisualization`: a picture that a channel answers to. Must not
know: the widget, the command line, comparisons.
"""

from __future__ import annotations

# Importing the module of a method makes the method known.
from hookviz.explanation import _attributions, _cam, _perturbing, _rollout  # noqa: F401
from hookviz.explanation._effect import TargetEffect, effect_on
from hookviz.explanation._explain import explain
from hookviz.explanation._explanation import Explanation
from hookviz.explanation._forward import Answer, Forwards, Point, gradients
from hookviz.explanation._job import Job
from hookviz.explanation._methods import ExplainOptions, Method, methods, register
from hookviz.explanation._progress import Progress, Steps
from hookviz.explanation._reproduce import reproduce
from hookviz.explanation._sweep import Sweep, sweep
from hookviz.explanation._target import (
    BoxTarget,
    ChannelTarget,
    MaskTarget,
    SettledTarget,
    TargetLike,
    wanted_targets,
)
from hookviz.explanation._visualization import (
    FeatureVisualization,
    feature_visualization,
    visualize_again,
)

__all__ = [
    "Answer",
    "BoxTarget",
    "ChannelTarget",
    "ExplainOptions",
    "Explanation",
    "FeatureVisualization",
    "Forwards",
    "Job",
    "MaskTarget",
    "Method",
    "Point",
    "Progress",
    "SettledTarget",
    "Steps",
    "Sweep",
    "TargetEffect",
    "TargetLike",
    "effect_on",
    "explain",
    "feature_visualization",
    "gradients",
    "methods",
    "register",
    "reproduce",
    "sweep",
    "visualize_again",
    "wanted_targets",
]
