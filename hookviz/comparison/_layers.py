"""How far one layer is apart in two runs, and how much of that rounding explains.

The rule of the default tolerance: two computations of the same layer differ by rounding. It is
measured as the largest difference in the layer over the layer's largest magnitude, and allowed up
to a multiple of the spacing ε of the coarsest floating-point dtype met so far in the run, since
what was rounded once stays rounded. The multiple is 64 for float32 and float64: a sum of n products
errs by about √n·ε/2 (Higham and Mary 2019, https://doi.org/10.1137/18M1226312), which is 34 ε for
the 4,608 products of a 3×3 convolution of 512 channels. It is 8 for narrower dtypes, whose sums are
kept in float32, so that results alone are rounded. While every tensor so far is the same to the
last bit, nothing can have added up, and a quarter is allowed: 16 ε and 2 ε. ``python -m
benchmarks.compare`` measures all of it: at most 14 ε and 2.5 ε in nine architectures, and 11 ε and
0.7 ε in their first layers. Integers and booleans are not rounded: any difference
counts. Where one run was on a CUDA device that may use TF32 and the other was not, ε is TF32's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hookviz._tensors import dense
from hookviz._text import error_text, shape_text
from hookviz.activation import Activation
from hookviz.comparison._numbers import Numbers, compare_tensors
from hookviz.errors import HookvizError

Size = tuple[int, int] | None
_TF32 = 2.0**-10  # spacing of its 10 bits


@dataclass(frozen=True)
class LayerDifference:
    """One tensor of one call of a layer, in both runs.

    Attributes:
        layer: The layer in a; dotted path.
        other: The layer in b; another name where layers were matched by order or a mapping.
        call: Which call in a, from 1.
        leaf: Path of the tensor inside a nested output; "" for a bare one.
        kind: "output", "input", …
        order: Position of the call in order of execution of a, from 1.
        type: Class name of the module in a.
        shape: Of the tensor in a.
        other_shape: Of the tensor in b.
        dtype: Of the tensor in a, without "torch.".
        other_dtype: Of the tensor in b.
        max_abs: Largest absolute difference, in the activation's units; NaN where nothing could
            be compared.
        mean_abs: Mean absolute difference; likewise.
        relative: ``max_abs`` over the largest magnitude of either tensor, 0 to 2; likewise.
        cosine: Cosine similarity, −1 to 1; NaN where a tensor is zero everywhere.
        correlation: Pearson's correlation, −1 to 1; NaN where a tensor is constant.
        mismatched: Values that are NaN or infinite in one of the two and not alike in the other.
        place: Index of the first mismatched value, else of the largest difference, one number per
            axis of the tensor (of (sample, channel, row, column) on a coarser grid); None where
            nothing differs.
        tolerance: The default bound of ``relative``: what rounding explains.
        note: How the two were made comparable; "" where nothing was done.
        reason: Why they cannot be compared; "" where they were.
        shape_mismatch: They cannot be compared because their shapes do not allow it.
        label: The layer with its call and leaf where there are several, as people read it; both
            where a and b differ in it.
    """

    layer: str
    other: str
    call: int
    leaf: str
    kind: str
    order: int
    type: str
    shape: tuple[int, ...]
    other_shape: tuple[int, ...]
    dtype: str
    other_dtype: str
    max_abs: float
    mean_abs: float
    relative: float
    cosine: float
    correlation: float
    mismatched: int
    place: tuple[int, ...] | None
    tolerance: float
    note: str
    reason: str
    shape_mismatch: bool
    label: str = ""

    def beyond(self, tol: float | None = None) -> bool:
        """Whether the difference is larger than a tolerance.

        Args:
            tol: Bound of ``relative``; None is ``tolerance``. Mismatched values and shapes that do
                not match are beyond any.
        """
        bound = self.tolerance if tol is None else tol
        return self.mismatched > 0 or self.shape_mismatch or self.relative > bound

    @property
    def same(self) -> bool:
        """Whether every value is the same in both."""
        return not self.reason and self.mismatched == 0 and not self.max_abs > 0

    def verdict(self, tol: float | None = None) -> str:
        """In a word: "same", "rounding" (or "within" ``tol``), "differs" or "not compared"."""
        if self.beyond(tol):
            return "differs"
        if self.reason:
            return "not compared"
        return "same" if self.same else "rounding" if tol is None else "within"


class Tolerances:
    """The default tolerance of each layer in turn; see the module's text."""

    def __init__(self) -> None:
        self._spacing = 0.0
        self._same = True

    def next(self, layer: LayerDifference, devices: tuple[str, str]) -> float:
        """The tolerance of the layer that ran next.

        Args:
            layer: Its entry.
            devices: Where it ran in a and in b.
        """
        dtypes = [getattr(torch, name) for name in (layer.dtype, layer.other_dtype)]
        rounded = [d for d in dtypes if d.is_floating_point or d.is_complex]
        if not rounded:
            return 0.0
        spacing = max(torch.finfo(dtype).eps for dtype in rounded)
        on_cuda = [device.startswith("cuda") for device in devices]
        if any(on_cuda) and not all(on_cuda) and torch.backends.cudnn.allow_tf32:
            spacing = max(spacing, _TF32)
        self._spacing = max(self._spacing, spacing)
        spacings = 64 if self._spacing <= torch.finfo(torch.float32).eps else 8
        tolerance = self._spacing * (spacings / 4 if self._same else spacings)
        self._same = self._same and layer.same
        return tolerance


def measure(a: Activation, b: Activation, sizes: tuple[Size, Size]) -> LayerDifference:
    """Compares two records.

    Args:
        a: With its values.
        b: With its values.
        sizes: (height, width) of what each of the two networks saw.

    Returns:
        The numbers, or the reason why there are none; nothing is raised for a tensor that cannot
        be read. Its tolerance is not known yet.
    """
    found = Numbers(0, 0, math.nan, math.nan, 0.0, math.nan, math.nan, None)
    note, reason, shape_mismatch = "", "", False
    try:
        one, other = dense(a.tensor), dense(b.tensor)
        if one.shape != other.shape:
            shape_mismatch = True
            one, other, note = _on_one_grid(a, b, sizes)
            shape_mismatch = False
        found = compare_tensors(one, other)
        note = note or ("no values" if found.count == 0 and not found.mismatched else "")
    except HookvizError as error:
        reason = error.message
    except (RuntimeError, TypeError, ValueError) as error:
        reason = f"A {a.tensor.dtype} tensor cannot be compared: {error_text(error)}"
    return LayerDifference(
        layer=a.layer, other=b.layer, call=a.call, leaf=a.leaf, kind=a.kind, order=a.order,
        type=a.module_type, shape=shape_of(a), other_shape=shape_of(b),
        dtype=str(a.tensor.dtype).removeprefix("torch."),
        other_dtype=str(b.tensor.dtype).removeprefix("torch."),
        max_abs=found.max_abs, mean_abs=found.mean_abs, relative=found.relative,
        cosine=found.cosine, correlation=found.correlation, mismatched=found.mismatched,
        place=found.place, tolerance=0.0, note=note, reason=reason, shape_mismatch=shape_mismatch,
        label=both_labels(a, b),
    )  # fmt: skip


def both_labels(a: Activation, b: Activation) -> str:
    """The label of a; that of b too where it is another layer or call."""
    alike = (a.layer, a.call, a.leaf, a.kind) == (b.layer, b.call, b.leaf, b.kind)
    return a.label if alike else f"{a.label} | {b.label}"


def shape_of(record: Activation) -> tuple[int, ...]:
    """The shape; () for a nested tensor, which has none."""
    return () if record.tensor.is_nested else record.shape


def _on_one_grid(
    a: Activation, b: Activation, sizes: tuple[Size, Size]
) -> tuple[Tensor, Tensor, str]:
    """(sample, channel, row, column) of both on the coarser grid, and a sentence that says so.

    Raises:
        RenderError: The shapes do not allow it.
    """
    from hookviz.render import GridOptions, arrange, on_one_grid

    parts: list[tuple[Tensor, Tensor, str]] = []
    sample, samples = 0, 1
    while sample < samples:
        options = GridOptions(sample=sample)
        one, other = (
            arrange(record, options, size) for record, size in zip((a, b), sizes, strict=True)
        )
        if one.samples != other.samples:
            raise HookvizError(
                f"a has {one.samples} samples and b {other.samples}: shapes "
                f"{shape_text(one.shape)} and {shape_text(other.shape)}."
            )
        parts.append(on_one_grid(one, other))
        left_out = one.apart is not None or other.apart is not None
        sample, samples = sample + 1, one.samples
    note = parts[0][2] + (", class tokens left out" if left_out else "")
    return torch.stack([p[0] for p in parts]), torch.stack([p[1] for p in parts]), note
