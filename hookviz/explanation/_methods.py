"""Methods: the ways in which an explanation is computed, by name.

A method is one object: what it is called, whose paper it is, what it needs, and the function that
computes it. To add one, write a module with such a function, ``register(Method(...))`` below it,
and import it in the ``__init__`` of `hookviz.explanation`. Targets, drawing, export, `reproduce`
and the command line need no change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from hookviz._text import names_text
from hookviz.errors import HookvizError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

    from hookviz.explanation._job import Job
    from hookviz.render import Attribution, DrawingOptions


def _over_the_input() -> DrawingOptions:
    return {"overlay": True, "scale": "full", "show_input": True}


class ExplainOptions(TypedDict, total=False):
    """The options of all methods as keyword arguments, for editors and type checkers.

    A method has some of them, see `Method.options`; another one is refused. ``channels``: of
    Score-CAM and Ablation-CAM only so many, the strongest; None is all. ``batch``: how many images,
    channels or points at once; None lets the method choose. ``baseline``: what integrated
    gradients and occlusion compare with: "black", "white", "gray", "mean", "blur", a level from 0
    to 1, or a tensor like the network's input. ``steps``: of integrated gradients; None raises them
    until they add up. ``samples``, ``noise`` (a share of the input's range) and ``seed``: of
    SmoothGrad. ``window`` and ``stride``: of occlusion, (height, width) in pixels. ``query``: of
    attention rollout: "class", "mean", or a patch as (row, column).
    """

    channels: int | None
    batch: int | None
    baseline: str | float | Tensor
    steps: int | None
    samples: int
    noise: float
    seed: int
    window: int | tuple[int, int] | None
    stride: int | tuple[int, int] | None
    query: Literal["class", "mean"] | tuple[int, int] | None


@dataclass(frozen=True, eq=False)
class Method:
    """One way of explaining.

    Attributes:
        name: What ``method=`` takes, for example "gradcam".
        title: As the paper calls it, for example "Grad-CAM".
        paper: Authors, year and number of the paper.
        explain: Computes the records of a job.
        of_layers: Whether it explains layers; else the network's input.
        targeted: Whether the target has an influence on it.
        signed: Whether it is drawn with its sign; else cut at zero, as its paper does.
        options: Name and default of each option of its own.
        check: Refuses options that are not legal, before anything runs.
        drawing: How its figures are drawn where nothing else is asked for.
    """

    name: str
    title: str
    paper: str
    explain: Callable[[Job], Iterable[Attribution]]
    of_layers: bool = True
    targeted: bool = True
    signed: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[Mapping[str, Any]], None] | None = None
    drawing: DrawingOptions = field(default_factory=_over_the_input)

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All of the method's options: those given, else their defaults.

        Raises:
            HookvizError: A name or a value is not legal.
        """
        for name in given:
            if name not in self.options:
                legal = names_text(self.options, 12)
                raise HookvizError(
                    f"{self.title} has no option {name!r}; it has {legal or 'none'}.",
                    remedy=did_you_mean(name, self.options) or None,
                )
        settings = {**self.options, **given}
        if self.check is not None:
            self.check(settings)
        return settings


METHODS: dict[str, Method] = {}

_NOT_OFFERED = {
    "deeplift": "DeepLIFT is not offered: the implementations that there are take rules from "
    "modules alone, and where an activation is none they silently give something else.",
    "lrp": "LRP is not offered: without rules made for the very model its relevances do not add up "
    "to the output, and nothing says so.",
}
"""Well-known methods that are left out, by their plain names, and why. captum 0.9 measured:
DeepLift gave the plain gradient times the difference for ViT-B/16 and MobileNetV2 and nothing but
zeros for GoogLeNet; LRP's relevances added up to 5e13 times ResNet-18's output."""


def register(method: Method) -> None:
    """Make a method known under its name."""
    METHODS[method.name] = method


def methods() -> tuple[Method, ...]:
    """All methods, in the order in which they were registered."""
    return tuple(METHODS.values())


def method_called(name: object) -> Method:
    """The method of that name; "Grad-CAM++" and "grad_cam_pp" are spellings of "gradcam++".

    Raises:
        HookvizError: There is none.
    """
    text = str(name)
    plain = text.lower().replace("-", "").replace("_", "").replace(" ", "")
    plain = plain.removesuffix("pp") + "++" if plain.endswith("pp") else plain
    for method in METHODS.values():
        if plain == method.name.replace("_", ""):
            return method
    if plain in _NOT_OFFERED:
        raise HookvizError(
            _NOT_OFFERED[plain],
            remedy="Use method='integrated_gradients', which says how far it adds up.",
            code="no-such-method",
        )
    raise HookvizError(
        f"There is no method {text!r:.80}; there are {names_text(METHODS, 30)}.",
        remedy=did_you_mean(text.lower(), METHODS) or None,
        code="no-such-method",
        details={"method": text, "methods": list(METHODS)},
    )
