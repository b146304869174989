"""Forwards of the model that is explained: outputs of layers at which a gradient can be taken.

The forward of a layer is ended by a hook that hands on a copy, so that no in-place layer behind it
can change what was kept, and the gradient is that of the very output. The first such layer is cut
off from what lies before it: nothing below is differentiated, and a frozen network has a gradient
there as well. Layers that run later stay connected, so that one backward serves all. Nothing ever
calls ``backward``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hookviz._axes import KnownAxes
from hookviz._text import error_text
from hookviz.activation import Activation, choose
from hookviz.capture import Capture, Edit, edit
from hookviz.errors import HookvizError, LayerError
from hookviz.models import LoadedModel, feed, out_of_memory


@dataclass(frozen=True, eq=False)
class Point:
    """The output of a layer in one call.

    Attributes:
        record: The output with all that is known of it; the tensor is a detached copy.
        tensor: The same in its place in autograd's graph: what a gradient is taken at.
    """

    record: Activation
    tensor: Tensor


@dataclass(frozen=True, eq=False)
class Answer:
    """What one forward gave.

    Attributes:
        output: What the model returned; None where the forward ended at its last layer.
        count: How many images went in.
        read: The outputs of the layers that the target reads, each in its last call.
        points: The outputs of the layers to be explained, in order of execution.
        missing: For each layer that has none the reason.
    """

    output: Any
    count: int
    read: Mapping[str, Activation] = field(default_factory=dict)
    points: tuple[Point, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)


class Forwards:
    """Runs one model as often as an explanation needs it.

    Args:
        model: The model.
        read: Layers whose outputs the target reads.
        ends_early: Whether nothing but these is asked for: the forward ends after the last.
        cancelled: Asked before every module's call; True ends the forward with RunCancelled.

    Attributes:
        axes: What is known of the axes of the layers that the target reads, where it was found out.
    """

    def __init__(
        self,
        model: LoadedModel,
        read: Iterable[str] = (),
        *,
        ends_early: bool = False,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.model, self.cancelled = model, cancelled
        self._read, self._ends_early = tuple(dict.fromkeys(read)), ends_early
        self.axes: dict[str, KnownAxes] = {}

    def run(
        self,
        tensor: Tensor,
        layers: Sequence[str] = (),
        *,
        call: int | str = "last",
        leaf: str | None = None,
        grad: bool = False,
        edits: Iterable[Edit] = (),
    ) -> Answer:
        """One forward in eval mode.

        Args:
            tensor: (N, 3, H, W), what the network is fed.
            layers: Layers whose output is kept.
            call: Which call of them, from 1, or "last".
            leaf: Which tensor of a nested output.
            grad: Whether a gradient of the output will be taken at these layers (at ``tensor``
                itself it can be taken wherever that requires one).
            edits: Further edits, which act first.

        Returns:
            What it gave. A layer without output is in ``missing``.

        Raises:
            LayerError: A layer has no such call or leaf.
            HookvizError: A layer's output has no gradient because of what it is.
            RunCancelled: ``cancelled`` answered True.
            Exception: Whatever the model's own forward raised, unchanged.
        """
        kept, read = _Outputs(grad=grad), _Outputs(grad=grad, cut=False)
        changes = [*edits]
        if layers:
            changes.append(Edit(list(layers), "output", kept.keep, "explain", leaf=leaf))
        if self._read:
            changes.append(Edit(list(self._read), "output", read.keep, "target"))
        watched = list(dict.fromkeys((*layers, *self._read))) or [""]
        capture = Capture(
            self.model.module,
            watched,
            transform=_without_values,
            stop_early=self._ends_early and bool(self._read),
            eval_mode=True,
            cancelled=self.cancelled,
        )
        args, kwargs = feed(self.model, tensor)
        with (
            out_of_memory(f"running {self.model.name}", self.model.device),
            torch.set_grad_enabled(grad),
            edit(self.model.module, *changes),
            capture,  # last, as the hook that ends the forward must come after those that keep
        ):
            output = capture.run(*args, **kwargs)
        records = [a for a in capture.activations if not a.layer or a.layer in watched]
        points = kept.points(layers, records, call)
        return Answer(
            output,
            len(tensor),
            {p.record.layer: replace(p.record, tensor=p.tensor, axes=self.axes.get(p.record.layer))
             for p in read.points(self._read, records, "last")},
            tuple(sorted(points, key=lambda point: point.record.order)),
            dict(capture.missing),
        )  # fmt: skip


def _without_values(tensor: Tensor) -> Tensor:
    """What a layer gave by shape alone: its values are kept elsewhere, once."""
    return torch.empty(tensor.shape, device="meta")


class _Outputs:
    """The outputs of some layers, call by call.

    Args:
        grad: Whether gradients will be taken at them.
        cut: Whether the first is cut off from what lies before.
    """

    def __init__(self, *, grad: bool, cut: bool = True) -> None:
        self._grad, self._cut = grad, cut
        self._there: dict[tuple[str, int, str], Tensor] = {}

    def keep(self, tensor: Tensor, site: Any) -> Tensor:
        """Keeps the output of one call; an edit's change."""
        if site.recomputed:
            return tensor
        key = (site.layer, site.call, site.leaf)
        if not self._grad:
            self._there[key] = tensor.detach().clone()
            return tensor
        if not tensor.is_floating_point() or tensor.is_quantized:
            kind = "is quantised" if tensor.is_quantized else f"holds {_plain(tensor.dtype)}"
            instead = "'eigencam', 'scorecam'" + ", 'ablationcam'" * (not tensor.is_quantized)
            raise HookvizError(
                f"{str(site)[:1].upper()}{str(site)[1:]} {kind}, and has no gradient.",
                remedy=f"Use a method without gradients ({instead}), another layer, or the model "
                "in floating point.",
                code="no-gradient",
                details={"layer": site.layer},
            )
        with torch.enable_grad():
            if not self._cut:
                self._there[key] = tensor.clone()
                return tensor
            connected = bool(self._there) and tensor.requires_grad
            kept = (tensor if connected else tensor.detach()).clone()
            if not connected:
                kept.requires_grad_()
            self._there[key] = kept
            return kept.clone()

    def points(
        self, layers: Sequence[str], records: Sequence[Activation], call: int | str
    ) -> list[Point]:
        """The points of the calls that are meant."""
        found: list[Point] = []
        for layer in layers:
            mine = [a for a in records if a.layer == layer and _key(a) in self._there]
            if mine:
                chosen = choose(mine, layer, "output", call=call, leaf=None)[0]  # type: ignore[arg-type]
                tensor = self._there[_key(chosen)]
                found.append(Point(replace(chosen, tensor=tensor.detach()), tensor))
        return found


def _key(record: Activation) -> tuple[str, int, str]:
    return record.layer, record.call, record.leaf


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def gradients(
    score: Tensor, target: str, answer: Answer, points: Sequence[Point], *, again: bool
) -> list[Tensor]:
    """The gradient of a score at each point.

    Args:
        score: () or (1,), in autograd's graph.
        target: What it is, for sentences.
        answer: The forward that it comes from.
        points: Where.
        again: Whether further gradients of the same forward are to come.

    Returns:
        One detached tensor for each point, of its shape and dtype.

    Raises:
        HookvizError: Nothing leads from the point to the score, or not all of it can be
            differentiated.
    """
    if not score.is_floating_point():
        raise _no_way(f"The target ({target}) is of {_plain(score.dtype)}, which has no gradient.")
    if not score.requires_grad:
        layers = ", ".join(f"'{p.record.layer}'" for p in points)
        raise _no_way(
            f"No gradient leads from the target ({target}) to {layers}: something between cuts it "
            "off (no_grad, detach, rounding or a lookup in the model's forward), or the target is "
            "computed before."
        )
    tensors = [point.tensor for point in points]
    try:
        found: tuple[Tensor | None, ...] = torch.autograd.grad(
            score, tensors, torch.ones_like(score), retain_graph=again, allow_unused=True
        )
    except (RuntimeError, NotImplementedError) as error:
        raise _no_way(
            f"The target ({target}) cannot be differentiated ({error_text(error)})."
        ) from error
    given: list[Tensor] = []
    for point, gradient in zip(points, found, strict=True):
        if gradient is None:
            layer = point.record.layer
            later = [name for name, r in answer.read.items() if r.order < point.record.order]
            if later:
                raise LayerError(
                    f"Layer '{layer}' runs after '{later[0]}', which the target ({target}) reads, "
                    "and cannot have an influence on it.",
                    remedy=f"Choose a layer before '{later[0]}', or a target behind '{layer}'.",
                    code="layer-after-target",
                    details={"layer": layer},
                )
            raise _no_way(
                f"The target ({target}) does not depend on layer '{layer}': it lies beside the way "
                "to it, or something between cuts it off (no_grad, detach).",
                layer=layer,
            )
        given.append(gradient.detach())
    return given


def _no_way(sentence: str, layer: str | None = None) -> HookvizError:
    remedy = (
        "Choose a layer before, or a method without gradients ('eigencam', 'scorecam', "
        "'ablationcam')."
    )
    kind = HookvizError if layer is None else LayerError
    return kind(sentence, remedy=remedy, code="no-gradient", details={"layer": layer})
