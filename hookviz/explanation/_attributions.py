"""Attributions: how much each value of the network's input counts for a target.

captum computes what it computes rightly: saliency, input × gradient, integrated gradients and
occlusion, called with a function that gives the target of a batch. Targets, guided backpropagation,
SmoothGrad's noise, the size of batches, progress and cancelling are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torchvision.transforms.functional import gaussian_blur

from hookviz._text import names_text
from hookviz.errors import HookvizError, did_you_mean
from hookviz.explanation._checks import check_whole
from hookviz.explanation._guided import GuidedReLUs
from hookviz.explanation._job import Job
from hookviz.explanation._methods import Method, register
from hookviz.explanation._target import SettledTarget
from hookviz.images import NetworkInput
from hookviz.render import Attribution, Colors, value

_TOLERANCE = 0.05  # the share by which a sum of integrated gradients may err unmarked
_FIRST_STEPS, _MOST_STEPS = 32, 128
# Bytes that the tensors of one batch may take where the device does not tell what is free.
_MEMORY = 2**30
# ResNet-18 at 224 pixels on one core: 17 images/s one by one, 21 at 16, 17 again at 64.
_MOST_BATCH, _MOST_BATCH_ON_CPU = 64, 16
_LEVELS = {"black": 0.0, "gray": 0.5, "white": 1.0}


@dataclass(frozen=True)
class Completeness:
    """Whether integrated gradients add up to what they explain.

    Attributes:
        total: Sum of all attributions.
        difference: The target for the input minus the target for the baseline.
        steps: How many steps were taken on the way.
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
        return abs(self.total - self.difference) <= _TOLERANCE * abs(self.difference)

    def __str__(self) -> str:
        text = f"sum {value(self.total, 4)}, difference of the target {value(self.difference, 4)}"
        text += f", ratio {value(self.ratio, 4)}" if self.difference else ""
        text += f" ({self.steps} steps)"
        return text if self.holds else f"NOT COMPLETE, off by more than 5 %: {text}"


@dataclass(eq=False)
class Found:
    """What a method gave for one target.

    Attributes:
        values: (1, C, H, W), on the input's device; C is 1 where channels were changed together.
        remarks: Sentences that the figure must carry.
        settings: Options as they were settled.
        details: What `Explanation.details` holds of it.
    """

    values: Tensor
    remarks: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class TargetOfInput:
    """One target as a function of the network's input.

    Attributes:
        job: The explanation under way.
        target: One of its targets.
    """

    job: Job
    target: SettledTarget

    @property
    def tensor(self) -> Tensor:
        """(1, C, H, W), the network's input; a copy."""
        return self.job.input.tensor.detach().clone()

    def __call__(self, tensor: Tensor) -> Tensor:
        """(B,) the target for each of a batch of inputs (B, C, H, W)."""
        found = self.score(tensor)
        self.job.steps.step(len(tensor))
        return found

    def score(self, tensor: Tensor) -> Tensor:
        """The same, not counted as a step."""
        grad = tensor.requires_grad
        # A layer in place writes over its input, which a leaf of the graph does not allow.
        answer = self.job.run(tensor.clone() if grad else tensor, grad=grad)
        found = self.target.score(answer)
        if grad and not found.requires_grad:
            raise self._no_way()
        return found

    def by_captum(self, name: str, tensor: Tensor, **settings: Any) -> Tensor:
        """What a gradient method of captum's gives for a batch of inputs."""
        method = captum_class(name)(self)
        try:
            found: Tensor = method.attribute(tensor.requires_grad_(), **settings)
        except RuntimeError as error:
            if "not have been used in the graph" in str(error):
                raise self._no_way() from error
            raise
        return found.detach()

    def gradient(self, tensor: Tensor) -> Tensor:
        """(B, C, H, W), the gradient of each input's target."""
        return self.by_captum("Saliency", tensor, abs=False)

    def batch(self, most: int) -> int:
        """How many inputs to run at once, where ``most`` are to be run."""
        chosen = self.job.options["batch"]
        if chosen is None:
            chosen = fitting_batch(self.job.model.module, self.score, self.tensor)
        return min(int(chosen), most)

    def _no_way(self) -> HookvizError:
        return HookvizError(
            f"No gradient leads from the target ({self.target.name}) to the network's input: "
            "something between cuts it off (no_grad, detach, rounding, whole numbers, quantised "
            "layers), or the target does not depend on the input.",
            remedy="Use method='occlusion', which needs no gradient.",
            code="no-gradient",
        )


def saliency(asked: TargetOfInput) -> Found:
    """The gradient of the target with respect to the input, with its sign.

    Simonyan, Vedaldi & Zisserman 2013; the paper draws its largest magnitude over the colors.
    """
    asked.job.steps.expect(1)
    return Found(asked.gradient(asked.tensor))


def input_x_gradient(asked: TargetOfInput) -> Found:
    """The input, in the network's units, times its gradient (Shrikumar et al. 2016)."""
    asked.job.steps.expect(1)
    return Found(asked.by_captum("InputXGradient", asked.tensor))


def guided_backprop(asked: TargetOfInput) -> Found:
    """The gradient, to which at every ReLU only its positive part passes.

    Springenberg et al. 2014. Every form of ReLU is taken, see `GuidedReLUs`; where each is a module
    ``nn.ReLU`` the values are those of captum. It shows what an image holds more than what the
    target depends on (Adebayo et al. 2018, "Sanity Checks for Saliency Maps").

    Raises:
        HookvizError: There is no ReLU: the values would be the plain gradient.
    """
    asked.job.steps.expect(1)
    tensor = asked.tensor.requires_grad_()
    with torch.enable_grad(), GuidedReLUs() as relus:
        score = asked(tensor)
    if not relus.count:
        raise HookvizError(
            "Guided backpropagation changes the gradient at ReLUs, and none lies between the "
            f"network's input and the target ({asked.target.name}).",
            remedy="Use method='saliency', the plain gradient, or 'integrated_gradients'.",
            code="no-relu",
        )
    (values,) = torch.autograd.grad(score, tensor)
    return Found(values, [f"{relus.count} ReLUs"], details={"relus": relus.count})


def integrated_gradients(asked: TargetOfInput) -> Found:
    """The mean gradient on the straight way from a baseline to the input, times that way.

    Sundararajan, Taly & Yan 2017. The mean is taken by Gauss-Legendre quadrature. The values ought
    to add up to the difference of the target between input and baseline; the figure says how far
    they do.
    """
    options, steps_done = asked.job.options, asked.job.steps
    baseline, words = baseline_of(asked.job.input, options["baseline"])
    steps = options["steps"] or _FIRST_STEPS
    batch = asked.batch(steps)
    steps_done.expect(2 + steps)
    ends = [float(asked(end)) for end in (asked.tensor, baseline)]
    while True:
        values = asked.by_captum(
            "IntegratedGradients",
            asked.tensor,
            baselines=baseline,
            n_steps=steps,
            method="gausslegendre",
            internal_batch_size=batch,
        )
        complete = Completeness(float(values.double().sum()), ends[0] - ends[1], steps)
        if options["steps"] or complete.holds or steps >= _MOST_STEPS:
            break
        steps *= 2
        steps_done.expect(steps)
    return Found(
        values,
        [str(complete), f"baseline {words}"],
        {"steps": steps, "batch": batch},
        {"completeness": complete, "baseline": baseline},
    )


def smoothgrad(asked: TargetOfInput) -> Found:
    """The mean gradient of copies of the input with normal noise (Smilkov et al. 2017).

    Each copy draws its noise by itself, on the CPU and from a generator of its own: it depends on
    the seed and on nothing else, and no other generator moves.
    """
    options, steps = asked.job.options, asked.job.steps
    samples, tensor = options["samples"], asked.tensor
    sigma = options["noise"] * float(tensor.max() - tensor.min())
    generator = torch.Generator("cpu").manual_seed(options["seed"])
    batch = asked.batch(samples)
    steps.expect(samples)
    total = torch.zeros_like(tensor)
    for start in range(0, samples, batch):
        drawn = [
            torch.empty(tensor.shape, device="cpu").normal_(0, sigma, generator=generator)
            for _ in range(min(batch, samples - start))
        ]
        total += asked.gradient(tensor + torch.cat(drawn).to(tensor)).sum(0, keepdim=True)
    words = f"{samples} samples, noise of standard deviation {value(sigma)} in the input's units"
    return Found(total / samples, [words], {"batch": batch}, {"sigma": sigma})


def occlusion(asked: TargetOfInput) -> Found:
    """By how much the target falls where a window of the input is covered.

    Zeiler & Fergus 2013. All channels are covered together. Where windows overlap, a pixel has the
    mean over those that cover it. It needs no gradient.
    """
    options, tensor = asked.job.options, asked.tensor
    baseline, words = baseline_of(asked.job.input, options["baseline"])
    sides = (int(tensor.shape[2]), int(tensor.shape[3]))
    window = _pair("window", options["window"] or [-(-side // 8) for side in sides], sides)
    stride = _pair("stride", options["stride"] or [-(-side // 2) for side in window], window)
    ways = zip(sides, window, stride, strict=True)
    windows = math.prod(1 + -(-(side - wide) // step) for side, wide, step in ways)
    batch = asked.batch(windows)
    asked.job.steps.expect(1 + windows)
    values: Tensor = captum_class("Occlusion")(asked).attribute(
        tensor,
        sliding_window_shapes=(tensor.shape[1], *window),
        strides=(tensor.shape[1], *stride),
        baselines=baseline,
        perturbations_per_eval=batch,
    )
    size = f"window {window[0]}×{window[1]} pixels, every {stride[0]}×{stride[1]}"
    return Found(
        values[:, :1].clone(),  # the same for all channels
        [size, f"covered with {words}"],
        {"window": window, "stride": stride, "batch": batch},
        {"baseline": baseline},
    )


def _explained(compute: Callable[[TargetOfInput], Found], job: Job) -> Iterator[Attribution]:
    """The one record of a job, with the maps of all its targets."""
    job.first(grad=False)
    found = [compute(TargetOfInput(job, target)) for target in job.targets]
    shared = [one for one in found[0].remarks if all(one in each.remarks for each in found)]
    for at, one in enumerate(found):
        for name, detail in one.details.items():
            job.details[name] = (*job.details.get(name, ()), detail)
        if len(found) > 1:
            one.remarks = [r if r in shared else f"{at}: {r}" for r in one.remarks]
    record = job.attribution(
        None,
        torch.cat([one.values for one in found]),
        remarks=dict.fromkeys(remark for one in found for remark in one.remarks),
    )
    settled = [one.settings for one in found]
    options = dict(job.options)
    if settled.count(settled[0]) == len(settled):
        options |= settled[0]
    if isinstance(options.get("baseline"), Tensor):
        options["baseline"] = "as given"
    yield replace(record, recipe={**record.recipe, "options": options})


def baseline_of(given: NetworkInput, choice: Any) -> tuple[Tensor, str]:
    """What stands for no image.

    Args:
        given: The network's input.
        choice: "black", "gray", "white", "mean" (0 in the network's units), "blur" (the input,
            blurred), a level from 0 (black) to 1 (white), or a tensor in the network's units.

    Returns:
        (1, C, H, W) like the input, and what it is, with its values in the network's units.

    Raises:
        HookvizError: There is no such baseline, or it has another shape.

    Examples:
        >>> from hookviz.images import Preprocessing, network_input
        >>> from PIL import Image
        >>> given = network_input(Image.new("RGB", (8, 8)), Preprocessing.for_size(8))
        >>> baseline_of(given, "black")[1]
        "black, (−2.118, −2.036, −1.804) in the input's units"
    """
    tensor = given.tensor.detach()
    if isinstance(choice, Tensor):
        if choice.shape != tensor.shape:
            raise HookvizError(
                f"A baseline has the shape of the network's input, {tuple(tensor.shape)}, not "
                f"{tuple(choice.shape)}."
            )
        return choice.detach().to(tensor), "as given"
    if choice == "mean":
        return torch.zeros_like(tensor), "mean, 0 in the input's units"
    if choice == "blur":
        sigma = max(1.0, min(tensor.shape[2:]) / 16)
        # The edge is mirrored, so half of the kernel has to be smaller than the image.
        width, height = (2 * min(math.ceil(3 * sigma), n - 1) + 1 for n in tensor.shape[:1:-1])
        blurred = gaussian_blur(tensor, [width, height], [sigma, sigma])
        return blurred, f"the input blurred, sigma {sigma:g} pixels"
    how, level = given.preprocessing, _LEVELS.get(choice, choice)
    if len(how.mean) not in (1, tensor.shape[1]):
        raise HookvizError(
            f"Where {choice} lies in an input of {tensor.shape[1]} channels is not known.",
            remedy="Use baseline='mean', 'blur' or a tensor.",
        )
    units = [(float(level) - mean) / std for mean, std in zip(how.mean, how.std, strict=True)]
    color = torch.tensor(units, device="cpu").to(tensor)[None, :, None, None]
    name = choice if isinstance(choice, str) else f"level {level:g}"
    values = ", ".join(value(unit, 4) for unit in units)
    return color.expand_as(tensor).contiguous(), f"{name}, ({values}) in the input's units"


def fitting_batch(module: nn.Module, score: Callable[[Tensor], Tensor], tensor: Tensor) -> int:
    """How many inputs fit into the memory that a batch may take.

    One forward is made, whose graph tells what it keeps.

    Args:
        module: The model, whose parameters are not counted.
        score: Gives the target for a batch of inputs.
        tensor: (1, C, H, W), an input.
    """
    owned = {_address(p) for p in (*module.parameters(), *module.buffers())}
    kept: dict[int, int] = {}

    def note(saved: Tensor) -> Tensor:
        if saved.layout is torch.strided and _address(saved) not in owned:
            kept[_address(saved)] = saved.untyped_storage().nbytes()
        return saved

    try:
        with torch.enable_grad(), saved_tensors_hooks(note, lambda saved: saved):
            score(tensor.clone().requires_grad_())
    except HookvizError:  # no gradient: what it keeps cannot be seen
        return 1
    free = _MEMORY
    if tensor.device.type == "cuda":
        free = torch.cuda.mem_get_info(tensor.device)[0] // 2
    most = _MOST_BATCH_ON_CPU if tensor.device.type == "cpu" else _MOST_BATCH
    # The gradients on the way back take less than what was kept, but may take as much.
    return max(1, min(most, free // (2 * max(1, sum(kept.values())))))


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def captum_class(name: str) -> Any:
    """A class of captum's.

    Raises:
        HookvizError: captum is not installed.
    """
    try:
        import captum.attr
    except ImportError as error:
        raise HookvizError(
            "Attributions of the network's input need captum, which is not installed.",
            remedy="Install it with: pip install 'hookviz[explain]'.",
            code="captum-missing",
        ) from error
    return getattr(captum.attr, name)


def _check_all(settings: Mapping[str, Any]) -> None:
    """Refuses options that are not legal, and that captum is missing, before anything runs."""
    captum_class("Saliency")
    _check(settings)


def _check(settings: Mapping[str, Any]) -> None:
    for name in ("steps", "batch"):
        if settings.get(name) is not None:
            check_whole(name, settings[name], 1)
    check_whole("samples", settings.get("samples", 1), 1)
    check_whole("seed", settings.get("seed", 0), 0)
    noise = settings.get("noise", 1)
    if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 < noise < math.inf:
        raise HookvizError(
            f"noise is {noise!r:.80}; it must be a share of the input's range, above 0."
        )
    baseline = settings.get("baseline", "mean")
    if isinstance(baseline, Tensor):
        return
    named = isinstance(baseline, str) and baseline in (*_LEVELS, "mean", "blur")
    number = isinstance(baseline, int | float) and not isinstance(baseline, bool)
    if not named and not (number and 0 <= baseline <= 1):
        raise HookvizError(
            f"baseline is {baseline!r:.80}; legal are {names_text([*_LEVELS, 'mean', 'blur'])}, a "
            "level from 0 (black) to 1 (white), and a tensor like the network's input.",
            remedy=did_you_mean(str(baseline), [*_LEVELS, "mean", "blur"]) or None,
        )


def _pair(name: str, given: Any, most: Sequence[int]) -> tuple[int, int]:
    """(height, width) of a window or a stride."""
    pair = [given, given] if isinstance(given, int) else given
    whole = isinstance(pair, Sequence) and [*map(type, pair)] == [int, int]
    if not whole or not all(1 <= v <= m for v, m in zip(pair, most, strict=True)):
        raise HookvizError(
            f"{name} is {given!r:.80}; it must be (height, width) in pixels, from 1 to {most[0]} "
            f"and from 1 to {most[1]}."
        )
    return int(pair[0]), int(pair[1])


def _register(
    compute: Callable[[TargetOfInput], Found],
    title: str,
    paper: str,
    *,
    colors: Colors = "sum",
    **own: Any,
) -> None:
    register(
        Method(
            compute.__name__,
            title,
            paper,
            partial(_explained, compute),
            of_layers=False,
            signed=True,
            options=own,
            check=None if compute is guided_backprop else _check_all,
            drawing={"overlay": True, "show_input": True, "colors": colors},
        )
    )


_register(saliency, "Saliency", "Simonyan et al. 2013, arXiv:1312.6034", colors="max")
_register(input_x_gradient, "Input × gradient", "Shrikumar et al. 2016, arXiv:1605.01713")
_register(guided_backprop, "Guided backpropagation", "Springenberg et al. 2014, arXiv:1412.6806")
_register(
    integrated_gradients,
    "Integrated gradients",
    "Sundararajan et al. 2017, arXiv:1703.01365",
    baseline="black",
    steps=None,
    batch=None,
)
_register(
    smoothgrad,
    "SmoothGrad",
    "Smilkov et al. 2017, arXiv:1706.03825",
    samples=32,
    noise=0.15,
    seed=0,
    batch=None,
)
_register(
    occlusion,
    "Occlusion",
    "Zeiler & Fergus 2013, arXiv:1311.2901",
    baseline="mean",
    window=None,
    stride=None,
    batch=None,
)
