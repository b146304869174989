"""What a capture has kept: how one record of it is asked for, and why another is missing.

That a layer's hook did not run is certain; why, the model's own code says: it is read, never run.
"""

from __future__ import annotations

import inspect
import re
from typing import Literal, TypeAlias, overload

import torch
from torch import Tensor, nn

from hookviz._text import names_text
from hookviz.activation import Activation, CallChoice, Kind, choose
from hookviz.capture._store import Forward, Hooked, Store
from hookviz.capture._tree import ModuleTree, type_name
from hookviz.errors import LayerError, did_you_mean

_KINDS: dict[Kind, int] = {
    "input": 0, "output": 1, "attention": 2, "output_gradient": 3, "input_gradient": 4,
}  # fmt: skip

_One: TypeAlias = int | Literal["last"] | None
_All: TypeAlias = Literal["all"]
_Run: TypeAlias = int | None
_Leaf: TypeAlias = str | int | None
_Of: TypeAlias = Literal["output", "input"]
_Many: TypeAlias = tuple[Tensor, ...]


class CaptureResults:
    """The reading side of a capture.

    Args:
        tree: The model's layers.
        chosen: The selected ones.
        asked: The kinds that are kept.
        store: Where records are kept.
    """

    def __init__(
        self, tree: ModuleTree, chosen: list[Hooked], asked: frozenset[Kind], store: Store
    ) -> None:
        self._tree = tree
        self._chosen = chosen
        self._asked = asked
        self._store = store

    @property
    def layers(self) -> dict[str, str]:
        """Name that the user chose → layer name, of the selected layers."""
        return {h.name: h.layer for h in self._chosen}

    @property
    def activations(self) -> tuple[Activation, ...]:
        """Everything captured so far, ordered by run, order, kind, leaf; also during a forward.

        The tensors are those kept, not copies of them: changing one in place changes it here.
        """
        store, mark = self._store, self._store.mark
        if store.read[0] != mark:
            found: list[Activation] = []
            for run in store.runs:
                rows = store.records_of(run)
                calls = {row.layer: row.call for row in sorted(rows, key=lambda row: row.call)}
                rows.sort(key=lambda row: (row.order, _KINDS[row.kind]))
                found += [store.activation(run, row, calls[row.layer]) for row in rows]
            store.read = mark, tuple(found)
        return store.read[1]

    @property
    def bytes(self) -> int:
        """Bytes of the tensors kept."""
        return sum(a.tensor.nbytes for a in self.activations)

    @property
    def runs(self) -> int:
        """How many runs there were."""
        return len(self._store.runs)

    @property
    def missing(self) -> dict[str, str]:
        """Selected layer → why it has no activation, or not the gradient that was asked for."""
        store, gradients = self._store, "output_gradient" in self._asked
        runs = store.runs
        logs = store.logs_of(*runs)
        begun = {pending[0] for log in logs for pending in list(log.pending)}
        kept = {record[0] for log in logs for record in list(log.records)}
        graded = {key[0] for run in runs for key in list(run.gradients)}
        late = bool(graded) or not store.open
        latest = runs[-1] if runs else None
        reasons: dict[str, str] = {}
        attention = "attention" in self._asked and latest is not None and not latest.error
        # Where nothing else was asked for, no hook tells of a layer's calls.
        hooks = not attention or len(self._asked) > 1
        for hooked in self._chosen if hooks else ():
            i, name = hooked.index, hooked.name
            unkept = next((why for (index, _), why in store.unkept.items() if index == i), None)
            note = unkept or store.notes.get(i)
            if i in kept or i in graded or (note is None and any(log.counts[i] for log in logs)):
                if late and i not in graded and (gradients or i not in kept):
                    reasons[name] = store.ungraded.get(
                        i, "no gradient: no backward reached it before the capture was closed"
                    )
            elif note is not None:
                reasons[name] = note
            elif i in begun and latest is not None and latest.error:
                reasons[name] = f"its call did not end: {latest.error}"
            else:
                reasons[name] = _reason(self._tree, hooked.layer, latest, is_open=store.open)
        if attention:
            attending = {r[0] for log in logs for r in list(log.records) if r[4] == "attention"}
            for hooked in self._chosen:
                above = f"{hooked.layer}.".lstrip(".")
                inside = [h.index for h in store.hooked if f"{h.layer}.".startswith(above)]
                if attending.isdisjoint(inside):
                    failed = [
                        w for (i, k), w in store.unkept.items() if k == "attention" and i in inside
                    ]
                    why = failed[0] if failed else self._no_attention(hooked.layer)
                    reasons.setdefault(hooked.name, why)
        return {h.name: reasons[h.name] for h in self._chosen if h.name in reasons}

    def _no_attention(self, layer: str) -> str:
        kind = type_name(self._tree.modules[layer])
        if self._store.attending:
            there = names_text(self._store.attending, 12)
            return f"no attention: nothing in it ({kind}) attends; these layers do: {there}"
        return (
            f"no attention: nothing in {self._tree.type} attends in a way that can be seen, which "
            "is nn.MultiheadAttention, scaled_dot_product_attention, or a softmax over keys in a "
            "module called attention"
        )

    def structure(self, layer: str, call: int = 1, run: int = -1) -> str:
        """How a nested output was built, shapes for tensors and type names for the rest.

        Args:
            layer: Selected layer.
            call: From 1.
            run: From 1, or negative from the end.

        Returns:
            For example ``"([2, 5, 8], ([4, 2, 4], [4, 2, 4]))"``; "" for a bare tensor.

        Raises:
            LayerError: The layer is not selected.
        """
        _check_run(run)
        number = run if run > 0 else len(self._store.runs) + 1 + run
        return self._store.structure.get((self._hooked(layer).index, number, call), "")

    @overload
    def output(self, layer: str, call: _All, run: _Run = ..., leaf: _Leaf = ...) -> _Many: ...
    @overload
    def output(
        self, layer: str, call: _One = ..., run: _Run = ..., leaf: _Leaf = ...
    ) -> Tensor: ...
    def output(
        self, layer: str, call: CallChoice = None, run: _Run = None, leaf: _Leaf = None
    ) -> Tensor | _Many:
        """The output of one layer.

        Args:
            layer: Selected layer, under the name chosen for it, its name or an alias.
            call: Which call: from 1, "last", or "all" for a tuple; may be left out where the
                layer was called once.
            run: Which run: from 1, or negative from the end; the latest if left out.
            leaf: Which tensor of a nested output, by path or position; may be left out where
                there is one.

        Returns:
            The tensor kept, not a copy of it; with ``call="all"`` a tuple, one per call.

        Raises:
            LayerError: The layer is not selected or was not captured (the message says why), or
                there are several to choose from (the message lists them).
        """
        return self._get(layer, "output", call, run, leaf)

    @overload
    def input(self, layer: str, call: _All, run: _Run = ..., leaf: _Leaf = ...) -> _Many: ...
    @overload
    def input(self, layer: str, call: _One = ..., run: _Run = ..., leaf: _Leaf = ...) -> Tensor: ...
    def input(
        self, layer: str, call: CallChoice = None, run: _Run = None, leaf: _Leaf = None
    ) -> Tensor | _Many:
        """The input of one layer; arguments as for ``output``, ``leaf`` is a parameter's name."""
        return self._get(layer, "input", call, run, leaf)

    @overload
    def gradient(
        self, layer: str, call: _All, run: _Run = ..., leaf: _Leaf = ..., *, of: _Of = ...
    ) -> _Many: ...
    @overload
    def gradient(
        self, layer: str, call: _One = ..., run: _Run = ..., leaf: _Leaf = ..., *, of: _Of = ...
    ) -> Tensor: ...
    def gradient(
        self,
        layer: str,
        call: CallChoice = None,
        run: _Run = None,
        leaf: _Leaf = None,
        *,
        of: _Of = "output",
    ) -> Tensor | _Many:
        """The gradient of a layer's output or input; other arguments as for ``output``."""
        if of not in ("output", "input"):
            raise LayerError(f'A gradient is of "output" or "input", not of {of!r}.')
        return self._get(layer, f"{of}_gradient", call, run, leaf)  # type: ignore[arg-type]  # one of two kinds, by the test above

    @overload
    def attention(self, layer: str, call: _All, run: _Run = ..., leaf: _Leaf = ...) -> _Many: ...
    @overload
    def attention(
        self, layer: str, call: _One = ..., run: _Run = ..., leaf: _Leaf = ...
    ) -> Tensor: ...
    def attention(
        self, layer: str, call: CallChoice = None, run: _Run = None, leaf: _Leaf = None
    ) -> Tensor | _Many:
        """The attention probabilities of one layer; arguments as for ``output``.

        Returns:
            (N, heads, queries, keys), float32 or wider, the rows summing to 1, before dropout; N
            counts windows, image by image, where the layer attends within windows. ``leaf`` counts
            where one call attends several times.

        Examples:
            >>> from hookviz import Capture
            >>> layer = nn.MultiheadAttention(8, 2, batch_first=True)
            >>> x = torch.zeros(1, 4, 8)
            >>> with Capture(layer, "", attention=True) as cap:
            ...     y = layer(x, x, x, need_weights=False)
            >>> cap.attention("")[0, 0, 0]
            tensor([0.2500, 0.2500, 0.2500, 0.2500])
        """
        return self._get(layer, "attention", call, run, leaf)

    def _get(
        self, layer: str, kind: Kind, call: CallChoice, run: _Run, leaf: _Leaf
    ) -> Tensor | _Many:
        hooked = self._hooked(layer)
        if run is not None:
            _check_run(run)
        name = hooked.name
        unkept = self._store.unkept.get((hooked.index, kind))
        found = [a for a in self.activations if a.layer == name and a.kind == kind]
        what = kind.replace("_", " ")
        if not found:
            why = unkept or self.missing.get(name)
            if why is None and kind not in self._asked:
                option = kind if kind == "attention" else f"{kind}s".removeprefix("output_")
                why = f"it was not asked for; use Capture(..., {option}=True)"
            raise LayerError(f"No {what} of layer '{name}' was captured: {why or 'none came'}.")
        try:
            chosen = choose(found, name, what, call=call, leaf=leaf, run=run, several=True)
        except LayerError as error:
            if unkept is None:
                raise
            raise LayerError(f"{error} Not all could be kept: {unkept}.") from None
        return tuple(a.tensor for a in chosen) if call == "all" else chosen[0].tensor

    def _hooked(self, layer: str) -> Hooked:
        if not isinstance(layer, str):
            raise LayerError(f"A layer is asked for by its name, not by {type(layer).__name__}.")
        by_name = {h.name: h for h in self._store.hooked}
        if layer in by_name:
            return by_name[layer]
        name = self._tree.name_of(layer)
        for hooked in self._chosen:
            if hooked.layer == name:
                return hooked
        state = "is no layer of this model" if name is None else "was not selected"
        raise LayerError(f"'{layer}' {state}.", remedy=did_you_mean(layer, by_name) or None)


def _check_run(run: object) -> None:
    if isinstance(run, bool) or not isinstance(run, int):
        raise LayerError(f"run must be a number from 1, or negative from the end, not {run!r}.")


def _reason(tree: ModuleTree, name: str, run: Forward | None, *, is_open: bool) -> str:
    module = tree.modules[name]
    if run is None and is_open:
        return "not run yet: the model was not called"
    if run is None:
        return (
            "not run: the model was not called while the capture was open; a function that "
            "torch.compile made before calls it without hooks"
        )
    own_forward = type(module).forward is not nn.Module.forward or "forward" in vars(module)
    if not own_forward:
        kind = type_name(module)
        return f"{kind} is a container that is never called itself; choose the layers in it"
    if run.stopped:
        return "not called: the forward was ended early, before this layer"
    if run.error:
        return f"not called, or not to its end: the forward ended, by {run.error}"
    mode = "train mode" if run.training else "eval mode"
    missed = f"not called in this forward ({mode})"
    if not name:
        return f"{missed}: its layers were called without it, or its forward was called directly"
    return missed + _why(tree, name)


def _why(tree: ModuleTree, name: str) -> str:
    chain = name.split(".")
    for depth in range(len(chain) - 1, -1, -1):
        owner = tree.modules.get(".".join(chain[:depth]))
        attribute = chain[depth]
        if owner is None:
            continue
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


def _source(kind: type) -> str:
    if kind.__module__.startswith(torch.__name__ + ".nn.modules.container"):
        return ""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return ""
