"""The record of one tensor that a layer received or gave, and the choice among several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from hookviz._axes import KnownAxes
from hookviz._text import names_text
from hookviz.errors import LayerError, did_you_mean

__all__ = ["Activation", "CallChoice", "Kind", "choose", "no_such_layer"]

Kind = Literal[
    "output", "input", "attention", "output_gradient", "input_gradient", "weight", "attribution",
    "visualization", "strip",
]  # fmt: skip
"""What a record is: a layer's output or input, its attention probabilities (N, heads, queries,
keys), the gradient of output or input, the layer's weights, how much its places count for a
target, a picture that was made for it, or one channel at several steps of a training."""


@dataclass(frozen=True, eq=False, repr=False)
class Activation:
    """One tensor that a layer received or gave in one call.

    Attributes:
        layer: Dotted ``named_modules()`` path; "" is the model itself.
        call: Which call of the layer within its run, from 1.
        calls: How many times the layer was called in that run.
        run: Which forward of the whole model, from 1.
        order: Position of the call among all captured calls of the run, in order of execution
            (of completion), from 1. Records of one call share it.
        kind: "output", "input", "attention", "output_gradient", "input_gradient", "weight" or
            "attribution".
        leaf: Path of the tensor inside a nested value: "" for a bare tensor, else for example
            "0", "out", "1.0" or "logits"; inputs are named by position or keyword.
        module_type: Class name of the module, for example "Conv2d".
        tensor: A detached copy of what the layer received or gave, axis order as the layer gave
            it (a conv layer: (N, C, H, W)), in the activation's own units; on the layer's device
            and in its dtype unless the capture was asked otherwise.
        axes: What a run found out about the tensor's axes; None where none did.
    """

    layer: str
    call: int
    calls: int
    run: int
    order: int
    kind: Kind
    leaf: str
    module_type: str
    tensor: Tensor
    axes: KnownAxes | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape as a plain tuple."""
        return tuple(self.tensor.shape)

    @property
    def texts(self) -> dict[str, str]:
        """What files say of this record beside what they say of every one; by key."""
        return {}

    def sample(self, index: int) -> Activation:
        """The same record holding one sample of the batch, in storage of its own.

        A slice of a tensor saves and pickles the whole batch; this holds its own values alone.

        Args:
            index: Position along the first dimension; negative from the end.

        Returns:
            A record whose tensor has the shape (1, ...).

        Raises:
            LayerError: There is no such sample.

        Examples:
            >>> import torch
            >>> maps = torch.zeros(8, 3, 4, 4)
            >>> whole = Activation("conv", 1, 1, 1, 1, "output", "", "Conv2d", maps)
            >>> whole.sample(0).shape
            (1, 3, 4, 4)
        """
        count = self.tensor.shape[0] if self.tensor.dim() else 0
        if not isinstance(index, int) or not -count <= index < count:
            raise LayerError(
                f"'{self.layer}' {list(self.tensor.shape)} has no sample {index!r}; it has {count}."
            )
        start = index % count
        return replace(self, tensor=self.tensor[start : start + 1].clone())

    def __repr__(self) -> str:
        tensor = self.tensor
        facts = f"{str(tensor.dtype).removeprefix('torch.')}, {tensor.device}"
        return f"<{self.label}: {self.module_type} {list(tensor.shape)}, {facts}, run {self.run}>"

    @property
    def label(self) -> str:
        """The layer with its call and leaf where there are several, as people read it."""
        parts = [self.layer or "(model)"]
        if self.leaf:
            parts.append(f"[{self.leaf}]")
        if self.calls > 1:
            parts.append(f" call {self.call} of {self.calls}")
        if self.kind != "output":
            parts.append(f" {self.kind.replace('_', ' ')}")
        return "".join(parts)


def no_such_layer(layer: object, there: Iterable[str], done: str) -> LayerError:
    """The sentence for a layer without a record.

    Args:
        layer: What was asked for.
        there: The layers that have records.
        done: What was done with these, for example "captured".

    Examples:
        >>> print(no_such_layer("cnov1", ["conv1", "fc"], "captured"))
        Layer 'cnov1' was not captured; captured: 'conv1', 'fc'. Did you mean 'conv1'?
    """
    names = list(there)
    return LayerError(
        f"Layer {layer!r:.80} was not {done}; {done}: {names_text(names, 8) or 'none'}.",
        remedy=did_you_mean(str(layer), names) or None,
    )


CallChoice = int | Literal["last", "all"] | None


def choose(
    found: Sequence[Activation],
    layer: str,
    what: str,
    *,
    call: CallChoice,
    leaf: str | int | None,
    run: int | None = None,
    several: bool = False,
) -> tuple[Activation, ...]:
    """The records meant by a call, a run and a leaf.

    Args:
        found: All records of one layer and kind, in order; not empty.
        layer: The layer, for messages.
        what: The kind in words, for messages.
        call: 1-based number, "last", "all", or None for the only one.
        leaf: Path or position of the leaf, or None for the only one.
        run: 1-based number, negative from the end, or None for the latest run with a record.
        several: Whether "all" is legal.

    Returns:
        One record, or with "all" one per call.

    Raises:
        LayerError: Several are there and none was chosen, or the one chosen is not there.
    """
    runs = sorted({a.run for a in found})
    run = -1 if run is None else run
    wanted = runs[run] if -len(runs) <= run < 0 else run
    here = [a for a in found if a.run == wanted]
    if not here:
        raise _not_there(layer, what, "run", run, runs)
    calls = sorted({a.call for a in here})
    if call is None and len(calls) > 1:
        listed = "; ".join(f"call {c}: {_shapes([a for a in here if a.call == c])}" for c in calls)
        raise LayerError(
            f"Layer '{layer}' was called {len(calls)} times in run {wanted} ({listed}).",
            remedy="Choose one with call=1, call=2, ..., "
            + ('call="last", or call="all".' if several else 'or call="last".'),
        )
    if call is None or (call == "all" and several):
        picked = calls
    elif call == "last":
        picked = calls[-1:]
    elif isinstance(call, int) and not isinstance(call, bool):
        if call not in calls:
            raise _not_there(layer, what, "call", f"{call} in run {wanted}", calls)
        picked = [call]
    else:
        legal = 'a number from 1, "last", "all" or None' if several else 'a number from 1 or "last"'
        raise LayerError(f"call is {legal}, not {call!r}.")
    return tuple(_leaf([a for a in here if a.call == c], layer, what, leaf) for c in picked)


def _not_there(layer: str, what: str, noun: str, which: object, there: list[int]) -> LayerError:
    those = f"{noun}{'s' if len(there) > 1 else ''} {', '.join(map(str, there))}"
    return LayerError(f"Layer '{layer}' has no {what} of {noun} {which}; it has those of {those}.")


def _leaf(found: list[Activation], layer: str, what: str, leaf: str | int | None) -> Activation:
    paths = [a.leaf for a in found]
    if leaf is None:
        if len(found) == 1:
            return found[0]
        raise LayerError(
            f"The {what} of layer '{layer}' holds {len(found)} tensors ({_shapes(found)}).",
            remedy="Choose one with leaf=.",
        )
    for a in found:
        if a.leaf == leaf:
            return a
    if isinstance(leaf, int) and not isinstance(leaf, bool) and -len(found) <= leaf < len(found):
        return found[leaf]
    listed = ", ".join(f"'{p}'" for p in paths)
    raise LayerError(
        f"The {what} of layer '{layer}' has no leaf {leaf!r}; it has {listed}.",
        remedy=did_you_mean(str(leaf), paths) or None,
    )


def _shapes(found: Sequence[Activation]) -> str:
    return ", ".join(f"{f'{a.leaf}: ' if a.leaf else ''}{list(a.shape)}" for a in found)
