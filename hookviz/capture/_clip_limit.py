"""A limit on gradients, and gradients brought under it.

In: gradients with the names of their parameters. Out: the same, clipped.
Must not know: hooks, models, when clipping acts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hookviz.capture._checks import check_choice, check_number
from hookviz.errors import CaptureError

__all__ = ["Limit", "NonFinite", "Over"]

Over = Literal["parameter", "model"]
NonFinite = Literal["keep", "zero", "error"]

_EPSILON = 1e-6  # what torch.nn.utils.clip_grad_norm_ adds to a norm before it divides by it


@dataclass(frozen=True)
class Limit:
    """What gradients are limited to; :func:`clip_gradients` documents the fields.

    Raises:
        CaptureError: A field is no legal value.
    """

    kind: Literal["value", "norm"]
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
        if self.over == "parameter":
            for name, gradient in pairs:
                gradient.copy_(self.clipped(name, gradient))
            return
        for name, gradient in pairs:
            cleaned = self._cleaned(name, gradient)
            if cleaned is not gradient:
                gradient.copy_(cleaned)
        if pairs:
            total = self.total_norm([gradient for _, gradient in pairs])
            scale = torch.clamp(self.size / (total + _EPSILON), max=1.0)
            for _, gradient in pairs:
                gradient.mul_(scale.to(gradient.device))

    def clipped(self, name: str, gradient: Tensor) -> Tensor:
        """One gradient brought under the limit by itself, as a new tensor of the same shape."""
        if gradient.is_sparse:
            whole = gradient.coalesce()
            inner = self.clipped(name, whole.values())
            return torch.sparse_coo_tensor(
                whole.indices(), inner, whole.shape, is_coalesced=True, check_invariants=False
            )
        gradient = self._cleaned(name, gradient)
        if self.kind == "value":
            if gradient.is_complex():
                parts = torch.view_as_real(gradient).clamp(-self.size, self.size)
                return torch.view_as_complex(parts)
            return gradient.clamp(-self.size, self.size)
        total = torch.linalg.vector_norm(gradient, self.norm_type)
        return gradient * torch.clamp(self.size / (total + _EPSILON), max=1.0)

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
            whole = gradient.coalesce()
            inner = self._cleaned(name, whole.values())
            return torch.sparse_coo_tensor(
                whole.indices(), inner, whole.shape, is_coalesced=True, check_invariants=False
            )
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
