"""Attributions of the network's input: how each pixel bears on a target.

captum computes what it computes rightly (saliency, input × gradient, integrated gradients,
occlusion); guided backpropagation, SmoothGrad's noise, the batches, progress and cancel are ours.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torchvision.transforms.functional import gaussian_blur

from hookviz._text import names_text
from hookviz.errors import HookvizError, RunCancelled, did_you_mean
from hookviz.explanation._guided import GuidedReLUs
from hookviz.images import NetworkInput

Score = Callable[[Tensor], Tensor]
"""(B, C, H, W), inputs of the network → (B,), the target of each."""
Progress = Callable[[int, int, float | None], object]
"""Called with how many inputs were run, how many will be, and the seconds that are left (None
while that is not known)."""

TOLERANCE = 0.05
"""By how much of the output's difference the sum of integrated gradients may err, unmarked."""
_FIRST_STEPS, _MOST_STEPS = 32, 256
_MEMORY = 2**30  # bytes that the tensors of one batch may take where a device does not tell
_MOST_BATCH = {"cpu": 16}  # larger ones are no faster there
_MOST_BATCH_ELSEWHERE = 64


class AttributionChoices(TypedDict, total=False):
    """Keywords of the methods that attribute to the network's input.

    Attributes:
        baseline: Of integrated gradients and occlusion: what stands for no image. "black",
            "gray", "white", "mean" (zeros in the network's units), "blur" (the input, blurred),
            a level from 0 (black) to 1 (white), or a tensor (1, C, H, W) in the network's units.
            Default "black" for integrated gradients, "mean" for occlusion.
        steps: Of integrated gradients: how many points of the path are taken, by Gauss-Legendre.
            None begins with 32 and doubles them until the sum is within 5 %, up to 256.
        samples: Of SmoothGrad: how many noisy inputs are averaged. Default 32.
        noise: Of SmoothGrad: the noise's standard deviation as a share of the input's range, from
            its lowest to its highest value. Default 0.15.
        seed: Of SmoothGrad's noise. Default 0.
        window: Of occlusion: (height, width) in pixels of what is covered at a time, or one number
            for both. Default an eighth of each side.
        stride: Of occlusion: how far the window moves, likewise; at most ``window``. Default half
            of it.
        batch: How many inputs are run at once; None chooses as many as 1 GiB of memory takes (of
            CUDA's, half of what is free), at most 16 on the CPU and 64 elsewhere.
    """

    baseline: str | float | Tensor
    steps: int | None
    samples: int
    noise: float
    seed: int
    window: int | Sequence[int]
    stride: int | Sequence[int]
    batch: int | None


@dataclass(frozen=True, eq=False)
class Completeness:
    """Whether integrated gradients add up to what they explain (Sundararajan et al. 2017).

    Attributes:
        total: Sum of all attributions.
        difference: The target for the input minus that for the baseline.
        steps: How many steps were taken.
    """

    total: float
    difference: float
    steps: int

    @property
    def ratio(self) -> float:
        """``total`` as a share of ``difference``; NaN where that is 0."""
        return self.total / self.difference if self.difference else math.nan

    @property
    def holds(self) -> bool:
        """Whether the sum errs by at most 5 % of the difference."""
        return abs(self.total - self.difference) <= TOLERANCE * abs(self.difference)

    def __str__(self) -> str:
        of = f"sum {self.total:.4g}, difference of the target {self.difference:.4g}"
        if not self.difference:
            return f"{of}, {self.steps} steps"
        text = f"{of}, ratio {self.ratio:.3f}, {self.steps} steps"
        return text if self.holds else f"NOT COMPLETE, errs by more than 5 %: {text}"


@dataclass(frozen=True, eq=False)
class Attributed:
    """What a method gave.

    Attributes:
        values: (1, C, H, W), on the input's device; C is 1 where channels were not told apart.
        facts: How it was computed, as texts by name, for the figure and the file.
        completeness: Of integrated gradients; None for others.
        baseline: (1, C, H, W), what stood for no image; None where nothing did.
    """

    values: Tensor
    facts: dict[str, str]
    completeness: Completeness | None = None
    baseline: Tensor | None = None


@dataclass(eq=False)
class Attribution:
    """One attribution under way.

    Attributes:
        module: The model, for its parameters alone.
        score: The target of a batch of inputs. It must be differentiable but for occlusion.
        given: The network's input.
        choices: See `AttributionChoices`.
        progress: See `Progress`; None tells nobody.
        cancelled: Asked before each batch; True ends it.
        done: How many inputs were run.
        total: How many will be.
    """

    module: nn.Module
    score: Score
    given: NetworkInput
    choices: AttributionChoices = field(default_factory=AttributionChoices)
    progress: Progress | None = None
    cancelled: Callable[[], bool] | None = None
    done: int = 0
    total: int = 1
    _began: float = 0.0

    def __call__(self, tensor: Tensor) -> Tensor:
        """The target of a batch, counted."""
        if self.cancelled is not None and self.cancelled():
            raise RunCancelled("The attribution was ended on request.", code="cancelled")
        self._began = self._began or time.perf_counter()
        # A layer in place may write over its input, which here is a leaf of the graph.
        given = self.score(tensor.clone())
        self.done += len(tensor)
        if self.progress is not None:
            each = (time.perf_counter() - self._began) / self.done
            self.progress(self.done, self.total, each * (self.total - self.done))
        return given

    @property
    def input(self) -> Tensor:
        """A copy of the network's input that gradients are taken of."""
        return self.given.tensor.detach().clone().requires_grad_()

    def gradient(self, inputs: Tensor) -> Tensor:
        """(B, C, H, W), the gradient of each input's target."""
        found: Tensor = _captum("Saliency")(self).attribute(inputs, abs=False)
        return found

    def batch(self, most: int) -> int:
        """How many inputs to run at once, where ``most`` are to be run."""
        chosen = self.choices.get("batch")
        if chosen is None:
            chosen = fitting_batch(self.module, self.score, self.input)
        return max(1, min(chosen, most))


def saliency(work: Attribution) -> Attributed:
    """The gradient of the target with respect to the input (Simonyan et al. 2013).

    Its sign is kept; the paper draws the largest magnitude over the channels.
    """
    return Attributed(work.gradient(work.input), {})


def input_x_gradient(work: Attribution) -> Attributed:
    """The input times its gradient (Shrikumar et al. 2016)."""
    values = _captum("InputXGradient")(work).attribute(work.input)
    return Attributed(values.detach(), {})


def guided_backprop(work: Attribution) -> Attributed:
    """The gradient, held back wherever it is negative at a ReLU (Springenberg et al. 2014).

    Every form of ReLU is taken, see `GuidedReLUs`. The result is that of captum where all ReLUs are
    modules of class ``nn.ReLU``.

    Raises:
        HookvizError: No ReLU ran: the result would be the plain gradient.
    """
    with GuidedReLUs() as relus:
        values = work.gradient(work.input)
    if not relus.count:
        raise HookvizError(
            "Guided backpropagation changes the gradient at ReLUs, and none lies between this "
            "model's input and the target.",
            remedy="Use method='saliency', which is the plain gradient, or 'integrated_gradients'.",
            code="no-relu",
        )
    return Attributed(values, {"relus": str(relus.count)})


def integrated_gradients(work: Attribution) -> Attributed:
    """The gradient averaged from a baseline to the input, times the way between.

    Sundararajan et al. 2017, "Axiomatic Attribution for Deep Networks". The average is taken by
    Gauss-Legendre quadrature. The attributions ought to add up to the difference of the target
    between input and baseline; by how much they do is in ``completeness``.
    """
    captum = _captum("IntegratedGradients")
    baseline, words = baseline_of(work.given, work.choices.get("baseline", "black"))
    asked = work.choices.get("steps")
    steps = asked or _FIRST_STEPS
    batch = work.batch(steps)
    work.total = 2 + steps
    with torch.no_grad():
        ends = [float(work(end)) for end in (work.given.tensor, baseline)]
    while True:
        values = captum(work).attribute(
            work.input,
            baselines=baseline,
            n_steps=steps,
            method="gausslegendre",
            internal_batch_size=batch,
        )
        found = Completeness(float(values.double().sum()), ends[0] - ends[1], steps)
        if asked or found.holds or steps >= _MOST_STEPS:
            break
        steps *= 2
        work.total += steps
    facts = {"completeness": str(found), "baseline": words, "batch": str(batch)}
    return Attributed(values.detach(), facts, found, baseline)


def smoothgrad(work: Attribution) -> Attributed:
    """The mean gradient of noisy copies of the input (Smilkov et al. 2017).

    Each copy draws its noise by itself, on the CPU and from a generator of its own: the noise
    depends on the seed alone, not on the batch or the device.
    """
    samples = work.choices.get("samples", 32)
    share = work.choices.get("noise", 0.15)
    seed = work.choices.get("seed", 0)
    tensor = work.given.tensor.detach()
    sigma = share * float(tensor.max() - tensor.min())
    generator = torch.Generator("cpu").manual_seed(seed)
    batch = work.batch(samples)
    work.total = samples
    total = torch.zeros_like(tensor)
    for start in range(0, samples, batch):
        noise = [
            torch.empty(tensor.shape, dtype=torch.float32, device="cpu").normal_(
                0, sigma, generator=generator
            )
            for _ in range(min(batch, samples - start))
        ]
        noisy = tensor + torch.cat(noise).to(tensor)
        total += work.gradient(noisy.requires_grad_()).sum(0, keepdim=True)
    facts = {
        "noise": f"{samples} samples, standard deviation {sigma:.4g} ({share:g} of the range)",
        "seed": str(seed),
        "batch": str(batch),
    }
    return Attributed(total / samples, facts)


def occlusion(work: Attribution) -> Attributed:
    """How much the target falls where a window is covered (Zeiler & Fergus 2013).

    All channels are covered together. Where windows overlap, their mean is taken.
    """
    tensor = work.given.tensor.detach()
    baseline, words = baseline_of(work.given, work.choices.get("baseline", "mean"))
    sides = (int(tensor.shape[-2]), int(tensor.shape[-1]))
    window = _sides("window", work.choices.get("window", [-(-s // 8) for s in sides]), sides)
    stride = _sides("stride", work.choices.get("stride", [-(-w // 2) for w in window]), window)
    counts = [1 + -(-(s - w) // t) for s, w, t in zip(sides, window, stride, strict=True)]
    work.total = 1 + math.prod(counts)
    batch = work.batch(math.prod(counts))
    values = _captum("Occlusion")(work).attribute(
        tensor,
        sliding_window_shapes=(tensor.shape[1], *window),
        strides=(tensor.shape[1], *stride),
        baselines=baseline,
        perturbations_per_eval=batch,
    )
    facts = {
        "window": f"{window[0]}×{window[1]} pixels, every {stride[0]}×{stride[1]}",
        "baseline": words,
        "batch": str(batch),
    }
    return Attributed(values[:, :1], facts, baseline=baseline)


METHODS: dict[str, tuple[Callable[[Attribution], Attributed], tuple[str, ...]]] = {
    "saliency": (saliency, ()),
    "input_x_gradient": (input_x_gradient, ()),
    "guided_backprop": (guided_backprop, ()),
    "integrated_gradients": (integrated_gradients, ("baseline", "steps", "batch")),
    "smoothgrad": (smoothgrad, ("samples", "noise", "seed", "batch")),
    "occlusion": (occlusion, ("baseline", "window", "stride", "batch")),
}
"""By name: what computes it, and its choices."""

NOT_OFFERED: Mapping[str, str] = {
    "deeplift": "DeepLIFT is not offered: by captum's rules it is silently wrong where an "
    "activation is no module (all zero for GoogLeNet, the plain gradient for ViT and MobileNetV2).",
    "lrp": "LRP is not offered: without rules made for the model its relevance does not add up to "
    "the output (for ResNet-18 and DenseNet by many times), and nothing says so.",
}
"""Why some well-known methods are not there."""


def attribute(method: str, work: Attribution) -> Attributed:
    """Attributions by a method's name.

    Args:
        method: One of `METHODS`.
        work: What is attributed to what; its score runs without gradients of the caller's.

    Returns:
        The values and how they came about.

    Raises:
        HookvizError: A choice is not the method's, or not legal; captum is not there; or the
            target does not depend on the input by a gradient.
        RunCancelled: ``work.cancelled`` answered True.
    """
    function, own = METHODS[method]
    for name in work.choices:
        if name not in own:
            legal = f"it has {names_text(own)}" if own else "it has none"
            raise HookvizError(
                f"{name} is no option of method='{method}'; {legal}.",
                remedy=did_you_mean(name, own) or None,
            )
    _check(work.choices)
    return function(work)


def _check(choices: Mapping[str, Any]) -> None:
    for name in ("steps", "samples", "batch", "seed"):
        value = choices.get(name)
        least = 0 if name == "seed" else 1
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and value >= least):
            raise HookvizError(f"{name} is a whole number from {least}, not {value!r:.80}.")
    noise = choices.get("noise", 0.15)
    if isinstance(noise, bool) or not isinstance(noise, Real) or not 0 < noise < math.inf:
        raise HookvizError(f"noise is a share of the input's range above 0, not {noise!r:.80}.")


def _sides(name: str, value: Any, most: Sequence[int]) -> tuple[int, int]:
    """(height, width) of a window or a stride."""
    pair = [value, value] if isinstance(value, int) else value
    whole = isinstance(pair, Sequence) and [*map(type, pair)] == [int, int]
    if not whole or not all(1 <= v <= m for v, m in zip(pair, most, strict=True)):
        legal = f"from 1 to {most[0]} and from 1 to {most[1]}"
        raise HookvizError(f"{name} is (height, width) in pixels, {legal}, not {value!r:.80}.")
    return int(pair[0]), int(pair[1])


_LEVELS = {"black": 0.0, "gray": 0.5, "white": 1.0}


def baseline_of(given: NetworkInput, choice: Any) -> tuple[Tensor, str]:
    """What stands for no image.

    Args:
        given: The network's input.
        choice: See `AttributionChoices`.

    Returns:
        (1, C, H, W) like the input, and what it is, with its values in the network's units.

    Raises:
        HookvizError: There is no such baseline, or it has another shape.

    Examples:
        >>> from hookviz.images import Preprocessing, network_input
        >>> from PIL import Image
        >>> given = network_input(Image.new("RGB", (8, 8)), Preprocessing.for_size(8))
        >>> baseline_of(given, "black")[1]
        'black, (-2.118, -2.036, -1.804) in units of the input'
    """
    tensor = given.tensor.detach()
    if isinstance(choice, Tensor):
        if choice.shape != tensor.shape:
            shapes = f"{tuple(tensor.shape)}, not {tuple(choice.shape)}"
            raise HookvizError(f"A baseline has the shape of the network's input, {shapes}.")
        return choice.detach().to(tensor), "as given"
    if choice == "mean":
        return torch.zeros_like(tensor), "mean, 0 in units of the input"
    if choice == "blur":
        sigma = max(1.0, min(tensor.shape[-2:]) / 16)
        # The kernel's half must be smaller than the image, whose edge is mirrored.
        sizes = [2 * min(math.ceil(3 * sigma), side - 1) + 1 for side in tensor.shape[-2:]]
        blurred = gaussian_blur(tensor, sizes[::-1], [sigma, sigma])
        return blurred, f"the input blurred with a sigma of {sigma:g} pixels"
    level = _LEVELS.get(choice) if isinstance(choice, str) else choice
    if isinstance(level, bool) or not isinstance(level, Real) or not 0 <= level <= 1:
        raise HookvizError(
            f"baseline is {choice!r:.80}; legal are {names_text([*_LEVELS, 'mean', 'blur'])}, a "
            "level from 0 to 1, or a tensor like the network's input.",
            remedy=did_you_mean(str(choice), [*_LEVELS, "mean", "blur"]) or None,
        )
    how = given.preprocessing
    if len(how.mean) not in (1, tensor.shape[1]):
        raise HookvizError(
            f"Where black and white lie in an input of {tensor.shape[1]} channels is not known.",
            remedy="Use baseline='mean', 'blur' or a tensor.",
        )
    units = [(float(level) - m) / s for m, s in zip(how.mean, how.std, strict=True)]
    value = torch.tensor(units, device="cpu").to(tensor)[None, :, None, None]
    name = choice if isinstance(choice, str) else f"level {level:g}"
    values = ", ".join(f"{unit:.4g}" for unit in units)
    return value.expand_as(tensor).contiguous(), f"{name}, ({values}) in units of the input"


def fitting_batch(module: nn.Module, score: Score, tensor: Tensor) -> int:
    """How many inputs fit into the memory that a batch may take.

    One forward is made, whose graph says what it keeps for the backward.

    Args:
        module: The model; its parameters are not counted.
        score: See `Attribution`.
        tensor: (1, C, H, W), an input that requires gradients.
    """
    owned = {p.untyped_storage().data_ptr() for p in (*module.parameters(), *module.buffers())}
    kept: dict[int, int] = {}

    def note(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in owned:
            kept[storage.data_ptr()] = storage.nbytes()
        return saved

    with torch.enable_grad(), saved_tensors_hooks(note, lambda saved: saved):
        score(tensor.clone())
    room = _MEMORY
    if tensor.device.type == "cuda":
        room = torch.cuda.mem_get_info(tensor.device)[0] // 2
    # The backward has as much again in gradients at its widest place.
    each = 2 * max(sum(kept.values()), tensor.nbytes)
    return max(1, min(room // each, _MOST_BATCH.get(tensor.device.type, _MOST_BATCH_ELSEWHERE)))


def _captum(name: str) -> Any:
    """A class of captum's."""
    try:
        import captum.attr
    except ImportError as error:
        raise HookvizError(
            "Attributions of the input need captum, which is not installed.",
            remedy="Install it with: pip install 'hookviz[explain]'.",
            code="captum-missing",
        ) from error
    return getattr(captum.attr, name)
