"""Gradients clipped by hooks on the parameters."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookviz.capture._checks import check, check_choice, check_number
from hookviz.capture._module_hooks import StaysHere, set_forward_hook, set_tensor_hook
from hookviz.errors import CaptureError

LimitKind = Literal["value", "norm"]
Over = Literal["parameter", "model"]
NonFinite = Literal["keep", "zero", "error"]

_EPSILON = 1e-6  # what torch.nn.utils.clip_grad_norm_ adds to a norm before it divides by it


@dataclass(frozen=True)
class Limit:
    """What gradients are limited to; `clip_gradients` documents the fields.

    Raises:
        CaptureError: A field is no legal value.
    """

    kind: LimitKind
    size: float
    over: Over
    norm_type: float
    nonfinite: NonFinite
    foreach: bool | None

    def __post_init__(self) -> None:
        check_number(self.kind, self.size, "a finite number > 0", lambda n: 0 < n < math.inf)
        check_number("norm_type", self.norm_type, "a number > 0 or inf", lambda n: n > 0)
        check_choice("over", self.over, "parameter", "model")
        check_choice("nonfinite", self.nonfinite, "keep", "zero", "error")
        check_choice("foreach", self.foreach, True, False, None)
        if self.kind == "value" and self.over == "model":
            raise CaptureError('over="model" is about norms; value= limits each element by itself.')

    @torch.no_grad()
    def clip_(self, pairs: list[tuple[str, Tensor]]) -> None:
        """Brings gradients under the limit, in place.

        Args:
            pairs: Names of parameters with their gradients, of any shape.
        """
        change = self.clipped if self.over == "parameter" else self._cleaned
        for name, gradient in pairs:
            gradient.copy_(change(name, gradient))
        if self.over == "model":
            scale = self._scale(self.total_norm([gradient for _, gradient in pairs]))
            for _, gradient in pairs:
                gradient.mul_(scale.to(gradient.device))

    def clipped(self, name: str, gradient: Tensor) -> Tensor:
        """One gradient brought under the limit by itself, as a new tensor of the same shape."""
        if gradient.is_sparse:
            return _of_values(gradient, partial(self.clipped, name))
        gradient = self._cleaned(name, gradient)
        if self.kind == "value":
            if gradient.is_complex():
                parts = torch.view_as_real(gradient).clamp(-self.size, self.size)
                return torch.view_as_complex(parts)
            return gradient.clamp(-self.size, self.size)
        return gradient * self._scale(torch.linalg.vector_norm(gradient, self.norm_type))

    def _scale(self, norm: Tensor) -> Tensor:
        return torch.clamp(self.size / (norm + _EPSILON), max=1.0)

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        """The norm of all gradients as one vector, a tensor of no axes; 0 where there are none."""
        # A sparse gradient's norm is that of its elements, once those of one place are added up.
        parts = [g.coalesce().values() if g.is_sparse else g for g in gradients]
        if not parts:
            return torch.zeros((), device="cpu")  # and not on the default device
        return torch.nn.utils.get_total_norm(parts, self.norm_type, foreach=self.foreach)

    def _cleaned(self, name: str, gradient: Tensor) -> Tensor:
        if self.nonfinite == "keep":
            return gradient
        if gradient.is_sparse:
            return _of_values(gradient, partial(self._cleaned, name))
        finite = torch.isfinite(gradient)
        if self.nonfinite == "zero":
            return torch.where(finite, gradient, torch.zeros_like(gradient))
        bad = gradient.numel() - int(finite.sum())
        if bad:
            raise CaptureError(
                f"The gradient of '{name}' has {bad} NaN or infinite of {gradient.numel()} "
                'elements, and nonfinite="error" was asked for.'
            )
        return gradient


def _of_values(gradient: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """A sparse gradient with its elements changed, once those of one place are added up."""
    whole = gradient.coalesce()
    parts = whole.indices(), change(whole.values()), whole.shape
    return torch.sparse_coo_tensor(*parts, is_coalesced=True, check_invariants=False)


When = Literal["gradient", "backward", "step"]


def clip_gradients(
    model: nn.Module,
    *,
    value: float | None = None,
    norm: float | None = None,
    norm_type: float = 2.0,
    when: When | None = None,
    over: Over | None = None,
    optimizer: Optimizer | None = None,
    nonfinite: NonFinite = "keep",
    foreach: bool | None = None,
) -> GradientClipping:
    """Clips the gradients of a model's parameters by hooks on the parameters.

    The hooks stay until the handle's ``remove()``, or to the end of a ``with`` block; dropping the
    handle keeps them, as with PyTorch's own. Frozen parameters (``requires_grad=False``) are
    skipped. A parameter that is unfrozen, replaced or initialised later is hooked after the next
    forward of ``model`` (or by ``refresh()``); one frozen later receives no gradient and so is
    left alone.

    When clipping acts changes the result. With two backward passes that bring one parameter the
    gradients [2, 0] and [0, 2]:

    ========================================  ===========  ======================================
    call                                      ``.grad``    what happened
    ========================================  ===========  ======================================
    ``norm=1`` (``when="backward"``)          [.447,.894]  the sum so far clipped after each pass
    ``norm=1, when="step"``                   [.707,.707]  the sum clipped once, at the end
    ``norm=1, when="gradient"``               [1, 1]       each pass clipped, then added
    ``value=1`` (``when="gradient"``)         [1, 1]       each pass clipped, then added
    ========================================  ===========  ======================================

    Two passes of [2, 0] and ``value=1`` therefore reach [2, 0]: a limit on each pass is no limit
    on the sum. For a limit on the sum take ``when="backward"`` or ``when="step"``.

    Args:
        model: Whose parameters are meant (each once, shared ones too).
        value: Every element is limited to [-value, value] (of a complex one the real and the
            imaginary part).
        norm: The norm is scaled down to at most this. Give ``value`` or ``norm``.
        norm_type: Which norm, 2.0 by default; ``math.inf`` is the largest absolute value.
        when: "gradient": each gradient on its way in, before it is added to ``.grad`` (a tensor
            hook; ``torch.autograd.grad`` sees it too). "backward": ``.grad`` at the end of each
            backward pass. "step": ``.grad`` just before ``optimizer.step()``, or only at
            ``handle.clip()`` where no optimizer is given. Default: "gradient" for a value,
            "backward" for a norm.
        over: What the norm is taken over: "model", the gradients of all its parameters as one
            vector (what ``clip_grad_norm_`` does), or "parameter", each by itself. Default: "model"
            for "backward" and "step"; for "gradient" only "parameter" can be, since one gradient
            arrives before the others are known.
        optimizer: For ``when="step"``: whose steps are preceded by clipping.
        nonfinite: NaN and infinite elements. "keep": as PyTorch does (clamping keeps NaN and
            limits Inf; a norm that is NaN or Inf spoils every gradient under it). "zero": they
            become 0 before anything else. "error": CaptureError out of the backward pass or step,
            naming the parameter (asks the device each time, so it is slower on a GPU).
        foreach: Passed to ``torch.nn.utils.clip_grad_norm_`` where the norm is over the model.

    Returns:
        A handle, usable as a context manager.

    Raises:
        CaptureError: Both or neither of value and norm, a limit that is not a positive number, or
            options that contradict each other.

    Under mixed precision with a ``GradScaler`` gradients arrive scaled: unscale first and use
    ``when="step"`` without an optimizer and ``handle.clip()``.

    Examples:
        >>> import torch
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> with clip_gradients(net, value=0.001) as clipping:
        ...     net(torch.tensor([[3.0, -5.0]])).sum().backward()
        >>> net.weight.grad
        tensor([[ 0.0010, -0.0010]])
        >>> clipping.hooked
        ()
    """
    if not isinstance(model, nn.Module):
        raise CaptureError(f"clip_gradients takes an nn.Module, not {type(model).__name__}.")
    if (value is None) == (norm is None):
        raise CaptureError("clip_gradients takes either value= or norm=, not both or neither.")
    check_choice("when", when, "gradient", "backward", "step", None)
    known = isinstance(optimizer, Optimizer | None)
    check("optimizer", optimizer, "a torch.optim.Optimizer or None", holds=known)
    if optimizer is not None and when != "step":
        raise CaptureError(f'optimizer= is for when="step", and when is {when!r}.')
    moment: When = when or ("backward" if value is None else "gradient")
    if value is None and over == "model" and moment == "gradient":
        raise CaptureError(
            'over="model" needs all gradients, and when="gradient" clips each as it arrives.',
            remedy='Use when="backward" or when="step".',
        )
    kind: LimitKind = "norm" if value is None else "value"
    size: Any = norm if value is None else value
    by_itself = value is not None or moment == "gradient"
    span: Over = over or ("parameter" if by_itself else "model")
    limit = Limit(kind, size, span, norm_type, nonfinite, foreach)
    return GradientClipping(model, limit, moment, optimizer)


class GradientClipping(StaysHere):
    """The handle of `clip_gradients`: it clips until ``remove()``.

    Args:
        model: Whose parameters are meant.
        limit: What the gradients are limited to.
        when: "gradient", "backward" or "step".
        optimizer: Whose steps are preceded by clipping, for "step".
    """

    def __init__(
        self, model: nn.Module, limit: Limit, when: When, optimizer: Optimizer | None = None
    ) -> None:
        self.limit = limit
        self.when: When = when
        self._closed = False
        self._touched = False  # a gradient was accumulated since the last clipping
        self._queued = -1  # the backward pass whose end will call us
        # The hooks hold this object and the model holds the hooks: only a weak reference back,
        # so that model and handle die without the garbage collector.
        self._model = weakref.ref(model)
        self._hooks: dict[str, tuple[weakref.ref[Tensor], Any]] = {}
        self._undo = ExitStack()
        try:
            if when != "step":
                # After each forward, because parameters may be unfrozen, replaced or (in lazy
                # modules) made until then.
                self._undo.callback(set_forward_hook(model, lambda *_: self.refresh()))
            elif optimizer is not None:
                handle = optimizer.register_step_pre_hook(lambda *_: self._clip_all())
                self._undo.callback(handle.remove)
            self.refresh()
        except BaseException:
            self.remove()
            raise

    @property
    def hooked(self) -> tuple[str, ...]:
        """Names of the parameters that carry a hook of this clipping now."""
        return tuple(self._hooks)

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of the parameters that are frozen now."""
        return tuple(name for name, p in self._parameters().items() if not p.requires_grad)

    def refresh(self) -> None:
        """Hooks the parameters that were unfrozen, replaced or initialised since."""
        if self._closed or self.when == "step":
            return
        present = self._parameters()
        for name in [n for n in self._hooks if self._hooks[n][0]() is not present.get(n)]:
            self._hooks.pop(name)[1].remove()
        for name, parameter in present.items():
            if name in self._hooks or is_lazy(parameter) or not parameter.requires_grad:
                continue
            if self.when == "gradient":
                handle = set_tensor_hook(parameter, partial(self.limit.clipped, name))
            else:
                tensor: Any = parameter  # torch's method carries no annotations
                handle = tensor.register_post_accumulate_grad_hook(self._note)
            self._hooks[name] = (weakref.ref(parameter), handle)

    def clip(self) -> float:
        """Clips ``.grad`` of all parameters now, also after ``remove()``.

        Returns:
            The norm before clipping: of all gradients as one vector, by the norm type asked for
            (2 where a value is the limit); 0.0 where there is no gradient.
        """
        pairs = self._with_gradient()
        total = self.limit.total_norm([gradient for _, gradient in pairs])
        if total.is_meta:
            raise CaptureError("The gradients are on the meta device and have no values to clip.")
        self.limit.clip_(pairs)
        return float(total)

    def remove(self) -> None:
        """Removes the hooks of this clipping and no other; again is harmless."""
        self._closed = True
        for _, handle in self._hooks.values():
            handle.remove()
        self._hooks.clear()
        self._undo.close()

    def __enter__(self) -> GradientClipping:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        return (
            f"GradientClipping({self.limit.kind}={self.limit.size:g}, when={self.when!r}, "
            f"{len(self._hooks)} parameters hooked, {len(self.skipped)} frozen)"
        )

    def _parameters(self) -> dict[str, nn.Parameter]:
        model = self._model()
        return {} if model is None else dict(model.named_parameters())

    def _note(self, _parameter: Tensor) -> None:
        """Asks autograd once per backward pass to call at its end."""
        self._touched = True
        # SLF001: torch offers no public way to learn which pass runs, or to be called at its end;
        # DistributedDataParallel uses the same. The call comes when the outermost pass is
        # complete, so that the nested passes of reentrant checkpointing are clipped together.
        task = torch._C._current_graph_task_id()  # noqa: SLF001
        if task != self._queued:
            self._queued = task
            Variable._execution_engine.queue_callback(self._clip_all)  # noqa: SLF001

    def _clip_all(self) -> None:
        if self._closed or (self.when == "backward" and not self._touched):
            return
        self._touched = False
        self.limit.clip_(self._with_gradient())

    def _with_gradient(self) -> list[tuple[str, Tensor]]:
        pairs = self._parameters().items()
        return [(name, p.grad) for name, p in pairs if p.requires_grad and p.grad is not None]
