"""Why a ticked layer has no activation, in one sentence.

In: the model's layers and what is known of its runs. Out: reasons. Must not know: hooks, tensors.

That a layer's hook did not run is certain; why, the model's own code tells: it is read, never run.
"""

from __future__ import annotations

import inspect
import re

import torch
from torch import nn

from hookviz.capture._store import Run, Store
from hookviz.capture._tree import LayerTree, type_name

__all__ = ["missing_layers"]


def missing_layers(store: Store, tree: LayerTree, *, gradients: bool) -> dict[str, str]:
    """The ticked layers without any record, and those without the gradient that was asked for.

    Args:
        store: The capture's store.
        tree: The model's layers.
        gradients: Whether gradients were asked for.

    Returns:
        Layer (own name) → reason. Before the first run, every layer "not run yet".
    """
    begun = {p[0] for run in store.runs for lane in store.lanes_of(run) for p in list(lane.pending)}
    seen = {r[0] for run in store.runs for lane in store.lanes_of(run) for r in list(lane.records)}
    counted = [0] * store.ticked
    for run in store.runs:
        for lane in store.lanes_of(run):
            for i, count in enumerate(lane.counts):
                counted[i] += count
    graded = {key[0] for run in store.runs for key in list(run.gradients)}
    late = bool(graded) or not store.open
    reasons: dict[str, str] = {}
    for hooked in store.hooked[: store.ticked]:
        i = hooked.index
        if i in seen or i in graded:
            if gradients and i not in graded and late:
                reasons[hooked.own] = store.ungraded.get(
                    i, "no gradient: no backward reached it before the capture was closed"
                )
        elif any(index == i for index, _ in store.unkept):
            reasons[hooked.own] = next(why for (j, _), why in store.unkept.items() if j == i)
        elif i in store.notes:
            reasons[hooked.own] = store.notes[i]
        elif counted[i]:
            if late:
                reasons[hooked.own] = store.ungraded.get(
                    i, "no gradient: no backward reached it before the capture was closed"
                )
        else:
            if i in begun and store.runs[-1].error:
                reasons[hooked.own] = f"its call did not end: {store.runs[-1].error}"
                continue
            latest = store.runs[-1] if store.runs else None
            reasons[hooked.own] = _reason(tree, hooked.layer, latest, is_open=store.open)
    return reasons


def _reason(tree: LayerTree, name: str, run: Run | None, *, is_open: bool) -> str:
    module = tree.modules[name]
    if run is None:
        if is_open:
            return "not run yet: the model was not called"
        return (
            "not run: the model was not called while the capture was open; a function that "
            "torch.compile made before calls it without hooks"
        )
    if not _has_forward(module):
        return (
            f"{type_name(module)} is a container that is never called itself; "
            "choose the layers in it"
        )
    if run.stopped:
        return "not called: the forward was ended early, before this layer"
    if run.error:
        return f"not called, or not to its end: the forward ended, by {run.error}"
    mode = "train mode" if run.training else "eval mode"
    missed = f"not called in this forward ({mode})"
    if not name:
        return f"{missed}: its layers were called without it, or its forward was called directly"
    return missed + _why(tree, name)


def _why(tree: LayerTree, name: str) -> str:
    chain = name.split(".")
    for depth in range(len(chain) - 1, -1, -1):
        owner = tree.modules.get(".".join(chain[:depth]))
        attribute = chain[depth]
        if owner is None:
            continue
        if isinstance(owner, nn.MultiheadAttention):
            return ": MultiheadAttention uses its weights without calling it"
        if isinstance(owner, (nn.TransformerEncoderLayer, nn.TransformerEncoder)):
            return (
                f": {type_name(owner)} may take a fast path in eval mode that calls none of its "
                "layers; torch.backends.mha.set_fastpath_enabled(False) turns it off"
            )
        code = _source(type(owner))
        item = rf"\b{re.escape(attribute)}\b(?:\[[^\]]*\])?"
        own_name = not attribute.isdigit() and bool(code)
        if own_name and re.search(rf"{item}\.forward\(", code):
            return f": {type_name(owner)} calls its forward directly, which runs no hooks"
        if own_name and re.search(rf"{item}\.(?:weight|bias|in_proj)\w*", code):
            return f": {type_name(owner)} uses its weights without calling it"
    if re.search(r"\.forward\(", _source(type(tree.root))):
        return f": {tree.type} calls forward of layers directly, which runs no hooks"
    return ": the model did not use it, or used it without calling it (its forward or its weights)"


def _has_forward(module: nn.Module) -> bool:
    forward = getattr(type(module), "forward", None)
    return forward is not nn.Module.forward or "forward" in module.__dict__


def _source(kind: type) -> str:
    if kind.__module__.startswith(torch.__name__ + ".nn.modules.container"):
        return ""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return ""
