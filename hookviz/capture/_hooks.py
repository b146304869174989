"""The hooks themselves: what runs inside the model's forward, and nothing more than it must."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn

from hookviz.activation import Activation, Kind
from hookviz.capture._leaves import Leaves, describe, leaves
from hookviz.capture._module_hooks import Act
from hookviz.capture._snapshot import CannotKeep, Snapshot
from hookviz.capture._store import Hooked, Store, ThreadLog, graph_task
from hookviz.errors import HookvizError, RunCancelled

Call: TypeAlias = tuple[ThreadLog, int, int]
"""The log of a call, its number and its order."""

Names: TypeAlias = Callable[[int], list[str]]
"""Number of positional arguments → their names."""

OnActivation: TypeAlias = Callable[[Activation], None] | None
OutputGradient: TypeAlias = Callable[[nn.Module, Any, Any, Call | None], Any]


def output_hook(
    store: Store,
    hooked: Hooked,
    own: Callable[[], nn.Module | None],
    acts_for: Callable[[nn.Module], bool],
    snapshot: Snapshot,
    asked: frozenset[Kind],
    on_activation: OnActivation,
    gradient: OutputGradient | None,
    after: Sequence[Callable[[ThreadLog, int, int, int], None]],
) -> Act:
    """A forward hook that ends a call: numbers it, copies its output, settles its inputs."""
    here, index = store.here, hooked.index
    outputs, inputs = "output" in asked, "input" in asked
    alone = on_activation is None and gradient is None and not after and not inputs

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        log, bare = here.log, type(output) is Tensor
        # In few steps for the commonest call, a tensor in a forward of the model.
        if log is None or not log.open or module is not own() or not bare or graph_task() != -1:
            if not acts_for(module):
                return None
            log = store.enter(args, training=module.training)
            if log is None:
                # A recomputation is no second call; it may carry the gradient of the first.
                return gradient and gradient(module, args, output, None)
        call = log.counts[index] = log.counts[index] + 1
        order = next(log.counter)
        records, kind = log.records, type(module).__name__
        if alone and bare:  # in fewer steps, since it is the commonest wish
            try:
                records.append((index, kind, call, order, "output", "", snapshot(output)))
            except Exception as error:  # noqa: BLE001 - sorted there
                not_kept(error, store, hooked, "output", "")
            return None
        first = len(records)
        if inputs:
            log.finished(index, call, order)
        if outputs:
            found = leaves(output)
            if not isinstance(output, Tensor):
                text = store.structure[index, log.run.number, call] = describe(output)
                if not found:
                    said = "None" if output is None else f"no tensor: {text}"
                    store.notes[index] = f"it was called, but returned {said}"
            for path, tensor in found:
                try:
                    records.append((index, kind, call, order, "output", path, snapshot(tensor)))
                except Exception as error:  # noqa: BLE001 - sorted there
                    not_kept(error, store, hooked, "output", path)
        if on_activation is not None:
            for record in records[first:]:
                on_activation(store.activation(log.run, record))
        changed = None
        if gradient is not None:
            changed = gradient(module, args, output, (log, call, order))
        for step in after:
            step(log, index, call, order)
        return changed

    return hook


def input_hook(store: Store, hooked: Hooked, snapshot: Snapshot, names: Names) -> Act:
    """A forward pre-hook that copies what the layer is given, before it can change it."""

    def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
        log = store.enter((args, kwargs), training=module.training)
        if log is None:
            return
        found: Leaves = []
        # Waiting from the start: where copying fails, what was copied so far is kept.
        log.pending.append((hooked.index, type(module).__name__, found))
        for path, tensor in named_inputs(args, kwargs, names):
            try:
                found.append((path, snapshot(tensor)))
            except Exception as error:  # noqa: BLE001 - sorted there
                not_kept(error, store, hooked, "input", path)

    return hook


def cancel_hook(cancelled: Callable[[], bool]) -> Act:
    """A forward pre-hook that ends the forward when asked to."""

    def hook(module: nn.Module, args: Any, kwargs: Any) -> None:  # noqa: ARG001 - torch's signature
        if cancelled():
            raise RunCancelled("The run was cancelled; what was captured before is kept.")

    return hook


def named_arguments(args: Any, kwargs: Any, names: Names) -> dict[str, Any]:
    """The arguments of a call under the names of its parameters, the positional ones first."""
    return {**dict(zip(names(len(args)), args, strict=True)), **(kwargs or {})}


def named_inputs(args: Any, kwargs: Any, names: Names) -> Leaves:
    """The tensors of a call's arguments under the names of its parameters."""
    found: Leaves = []
    for name, value in named_arguments(args, kwargs, names).items():
        found += leaves(value, name)
    return found


def parameter_names(module: nn.Module) -> Names:
    """The names of a module's positional parameters.

    Args:
        module: Its ``forward`` is inspected once.

    Returns:
        Number of positional arguments → their names; those of ``*args`` are ``args.0``,
        ``args.1``; where no signature is to be had, positions.

    Examples:
        >>> parameter_names(nn.Conv2d(3, 4, 1))(1)
        ['input']
        >>> parameter_names(nn.Bilinear(2, 2, 2))(2)
        ['input1', 'input2']
    """
    try:
        parameters = [*inspect.signature(module.forward).parameters.values()]
    except (TypeError, ValueError):
        parameters = []
    fixed = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)

    def names(count: int) -> list[str]:
        extra = range(count - len(fixed))
        return fixed[:count] + [f"{rest}.{i}" if rest else str(len(fixed) + i) for i in extra]

    return names


def not_kept(error: Exception, store: Store, hooked: Hooked, kind: Kind, path: str) -> None:
    """Note why a tensor could not be kept, and go on.

    Raises:
        CaptureError: The memory limit was reached.
        Exception: A transform of the user's failed, or memory ran out; the layer is named.
    """
    what = f"{kind.replace('_', ' ')}{f' [{path}]' if path else ''}"
    if isinstance(error, CannotKeep):
        store.unkept[hooked.index, kind] = f"its {what} is {error}"
        return
    where = f"{what} of layer '{hooked.name}'"
    if isinstance(error, HookvizError):
        raise type(error)(
            f"The {where} was not captured: {error.message}", remedy=error.remedy
        ) from None
    error.add_note(f"while hookviz copied the {where}")
    raise error
