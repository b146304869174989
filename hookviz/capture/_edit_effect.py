"""How far an edit moves a model's output (activation patching, causal tracing)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hookviz._tensors import dense
from hookviz._text import names_text
from hookviz.capture._checks import check_count, check_function, check_returned
from hookviz.capture._editing import Edit, Editing
from hookviz.capture._leaves import change_leaves, describe, leaves
from hookviz.capture._session import set_eval
from hookviz.capture._tree import resolve
from hookviz.errors import CaptureError, LayerError


@dataclass(frozen=True)
class Change:
    """One element of the output.

    Attributes:
        index: Its position, one number per axis of the output; (0, 281) is class 281 of the
            first row.
        before: Its value without the edits.
        after: Its value with them.
    """

    index: tuple[int, ...]
    before: float
    after: float

    @property
    def difference(self) -> float:
        """``after - before``."""
        return self.after - self.before


@dataclass(frozen=True, eq=False)
class Effect:
    """A model's output with and without edits.

    Attributes:
        before: The output without the edits, detached; shape, dtype and device as the model gave
            it.
        after: The output with them.
        norm: Euclidean norm of ``after - before``.
        relative: ``norm`` divided by the norm of ``before``; inf where only ``before`` is zero, 0
            where nothing changed.
        largest: Largest absolute difference of one element.
        top: The elements that changed most, most first; unchanged ones are left out.
        counts: How many tensors each edit changed in this forward, in order of the edits.
    """

    before: Tensor
    after: Tensor
    norm: float
    relative: float
    largest: float
    top: tuple[Change, ...]
    counts: tuple[int, ...]

    def __str__(self) -> str:
        lines = [f"output moved by {self.norm:.4g} ({self.relative:.2%} of its norm)"]
        for one in self.top:
            place = ", ".join(map(str, one.index))
            lines.append(f"  [{place}] {one.before:.4g} → {one.after:.4g} ({one.difference:+.4g})")
        return "\n".join(lines)


def effect(
    model: nn.Module,
    inputs: Any,
    *edits: Edit,
    top: int = 5,
    leaf: str | None = None,
    read: Callable[[Any], Tensor] | None = None,
    eval_mode: bool = True,
) -> Effect:
    """Runs a model without and with edits and compares its outputs.

    With `patch` this is activation patching (causal tracing, Meng et al. 2022,
    arXiv:2202.05262).

    Both runs get copies of the same inputs and the same random numbers, without gradients. Train
    flags, random number state and, in eval mode, BatchNorm statistics are left as they were.

    Args:
        model: The model.
        inputs: What it is called with: one tensor (or other value), a tuple of positional
            arguments, or a mapping of keyword arguments.
        edits: Edits of outputs and inputs.
        top: How many of the most changed elements to list.
        leaf: Which tensor of a nested output is compared, by its path; needed where there are
            several.
        read: Instead: a function from the model's output to the tensor to compare, such as
            ``lambda out: out["out"].mean(dim=(2, 3))``.
        eval_mode: Forward in eval mode; False runs in the mode that the model is in.

    Returns:
        The comparison.

    Raises:
        LayerError: A layer is unknown; an edit changed nothing because its layer (or that call
            of it) did not run; the output has several tensors and none is chosen.
        CaptureError: No edits, or an edit of a gradient, which no forward shows.

    Examples:
        >>> from hookviz.capture import zero_channels
        >>> net = nn.Sequential(nn.Flatten(), nn.Identity())
        >>> found = effect(net, torch.tensor([[3.0, 4.0]]), zero_channels("0", 1))
        >>> found.norm, found.after.tolist(), found.top
        (4.0, [[3.0, 0.0]], (Change(index=(0, 1), before=4.0, after=0.0),))
    """
    editing = Editing(model, edits)
    check_count("top", top, 0)
    check_function("read", read)
    if not edits:
        raise CaptureError("effect compares a forward with edits, but none was given.")
    for one in edits:
        if one.kind.endswith("gradient"):
            raise CaptureError(f"An edit of a gradient ({one.text}) has no effect on the output.")

    def run() -> Tensor:
        args, kwargs = _arguments(change_leaves(inputs, lambda _, tensor: tensor.clone()))
        with torch.random.fork_rng(devices=accelerators):
            output = root(*args, **kwargs)
        return _read(output, leaf, read)

    root = resolve(model)
    accelerators = {p.device.index for p in root.parameters() if p.device.type == "cuda"}
    with ExitStack() as stack, torch.no_grad():
        if eval_mode:
            set_eval(root, stack.callback)
        before = run()
        with editing:
            after = run()
    editing.check_used()
    return _compared(before, after, top, tuple(editing.counts))


def _compared(before: Tensor, after: Tensor, top: int, counts: tuple[int, ...]) -> Effect:
    kept, before, after = (before, after), dense(before), dense(after)
    if before.shape != after.shape:
        raise CaptureError(
            f"The edits changed the output's shape from {tuple(before.shape)} to "
            f"{tuple(after.shape)}, so there is no difference to measure."
        )
    exact = torch.complex128 if before.is_complex() else torch.float64
    exact = torch.float32 if before.device.type == "mps" else exact  # MPS has no float64
    old, new = before.to(exact), after.to(exact)
    # The same infinity twice is no change, and its difference would be NaN.
    gap = torch.where(old == new, torch.zeros_like(old), new - old).abs().flatten()
    norm, base = float(gap.norm()), float(old.norm())
    order = torch.argsort(gap, descending=True, stable=True)[:top]
    changes = []
    for flat in order.tolist():
        if float(gap[flat]) == 0:
            break
        place = torch.tensor(flat, device="cpu")  # and not on the default device
        index = tuple(int(i) for i in torch.unravel_index(place, before.shape))
        changes.append(Change(index, _number(old[index]), _number(new[index])))
    return Effect(
        before=kept[0],
        after=kept[1],
        norm=norm,
        relative=norm / base if base else (0.0 if norm == 0 else float("inf")),
        largest=float(gap.max()) if gap.numel() else 0.0,
        top=tuple(changes),
        counts=counts,
    )


def _read(output: Any, leaf: str | None, read: Callable[[Any], Tensor] | None) -> Tensor:
    if read is not None:
        return check_returned("read=", read(output)).detach().clone()
    found = dict(leaves(output))
    if leaf is None and len(found) == 1:
        leaf = next(iter(found))
    if leaf not in found:
        has = f"it has {names_text(found, 8)}" if found else "it has no tensor"
        wanted = "needs leaf= or read=" if leaf is None else f"has no leaf '{leaf}'"
        raise LayerError(f"The output {describe(output)} {wanted}; {has}.")
    return found[leaf].detach().clone()


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if type(inputs) is tuple else (inputs,)), {}


def _number(tensor: Tensor) -> float:
    return float(tensor.abs() if tensor.is_complex() else tensor)
