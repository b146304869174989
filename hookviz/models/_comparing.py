"""A checkpoint's tensors beside a model's: what fits, what does not, what is odd about them.

In: a Selection and a state dict. Out: a WeightsReport. Must not know: files, how modules are built.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hookviz.errors import WeightsError
from hookviz.models._report import Mismatch, WeightsReport
from hookviz.models._unwrapping import Selection

__all__ = ["BROKEN", "compare", "refusal"]

BROKEN = "NaN or infinite values"
"""How a note on such values begins."""

# Buffers that need not be in the file (old checkpoints lack them; the model computes its own), and
# leftovers of counting tools that may be.
_OWN = ("num_batches_tracked", "relative_position_index", "total_ops", "total_params")
# First parts of names under which classifiers are found in the wild.
_HEADS = frozenset(
    ["fc", "classifier", "head", "heads", "last_linear", "logits", "aux1", "aux2", "AuxLogits",
     "projector", "projection_head", "aux_classifier", "head_dist"]
)  # fmt: skip


def compare(
    selection: Selection, state: Mapping[str, Tensor], source: str, name: str, head: frozenset[str]
) -> WeightsReport:
    """Put a checkpoint beside a model.

    Args:
        selection: The checkpoint's tensors under the model's names.
        state: The model's own tensors; meta tensors will do.
        source: The file's name.
        name: The model's name.
        head: Names of the classifier's tensors.
    """
    given = selection.tensors
    mismatched = [
        Mismatch(n, _kind(given[n]), _kind(v))
        for n, v in state.items()
        if n in given and not _fits(given[n], v)
    ]
    bad = {item.name for item in mismatched}
    missing = tuple(n for n in state if n not in given and not n.endswith(_OWN))
    unexpected = tuple(n for n in given if n not in state and not n.endswith(_OWN))
    # The whole top-level classifier counts as head where the file has nothing of it that fits.
    fitting = {n.partition(".")[0] for n in state if n in given and n not in bad}
    absent = {n for n in missing if n.partition(".")[0] in _HEADS - fitting}
    foreign = {n for n in unexpected if n.partition(".")[0] in _HEADS}
    return WeightsReport(
        source=source,
        model=name,
        wrapping=selection.wrapping,
        prefix=selection.prefix,
        matched=tuple(n for n in state if n in given and n not in bad),
        missing=missing,
        unexpected=unexpected,
        mismatched=tuple(mismatched),
        ignored=selection.ignored,
        head=tuple(n for n in (*missing, *unexpected) if n in head | absent | foreign),
        notes=_notes(selection, state),
    )


def _fits(found: Tensor, own: Tensor) -> bool:
    if tuple(found.shape) != tuple(own.shape) or found.layout != torch.strided:
        return False
    if found.is_meta or found.is_quantized != own.is_quantized:
        return False
    # A view that repeats one number (strides of 0) may claim any size.
    if found.numel() * found.element_size() > found.untyped_storage().nbytes():
        return False
    return found.is_complex() == own.is_complex() and (
        found.is_floating_point() == own.is_floating_point()
        or (not own.is_floating_point() and found.dtype != torch.bool)
    )


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _notes(selection: Selection, state: Mapping[str, Tensor]) -> tuple[str, ...]:
    notes = []
    if selection.others:
        notes.append(f"the file also holds {', '.join(selection.others[:4])}")
    used = {
        n: v
        for n, v in selection.tensors.items()
        if n in state and v.is_floating_point() and _fits(v, state[n])
    }
    kinds = {
        str(v.dtype).removeprefix("torch.") for n, v in used.items() if v.dtype != state[n].dtype
    }
    if kinds:
        notes.append(f"{', '.join(sorted(kinds))} values converted to the model's dtype")
    broken = [n for n, v in used.items() if not v.is_quantized and not _finite(v)]
    if broken:
        more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
        notes.append(f"{BROKEN} in {', '.join(broken[:3])}{more}")
    return tuple(notes)


def _finite(tensor: Tensor) -> bool:
    # Types of 8 bits know no isfinite of their own.
    wide = tensor if tensor.element_size() > 1 else tensor.float()
    return bool(torch.isfinite(wide).all())


def refusal(report: WeightsReport, advice: str = "") -> WeightsError:
    """The error for a checkpoint that does not fit; its ``report`` has the whole table."""
    head = set(report.head)
    parts = []
    for word, names in (("missing", report.missing), ("unexpected", report.unexpected)):
        names = tuple(n for n in names if n not in head)
        if names:
            parts.append(f"{len(names)} {word} ({_some(names)})")
    if report.mismatched:
        first = report.mismatched[0]
        parts.append(
            f"{len(report.mismatched)} of another shape or type ({first.name} is {first.found}, "
            f"expected {first.expected})"
        )
    error = WeightsError(
        f"{report.source} does not fit '{report.model}': {len(report.matched)} tensors match, "
        f"{', '.join(parts) or 'and no others are known to the model'}.",
        remedy=advice
        or "Choose the architecture that it was trained with, or strict=False to load what fits.",
    )
    error.report = report  # type: ignore[attr-defined] # the table, for who wants all names
    return error


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
