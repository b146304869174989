"""What a capture has kept, and how one record of it is asked for.

In: a store of records and the model's layers. Out: Activations and tensors. Must not know: hooks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

from torch import Tensor

from hookviz.activation import Activation, Kind
from hookviz.capture._reading import CallChoice, choose
from hookviz.capture._reasons import missing_layers
from hookviz.capture._replicas import records_of
from hookviz.capture._store import Hooked, Record, Run, Store
from hookviz.capture._tree import LayerTree
from hookviz.errors import LayerError, did_you_mean

__all__ = ["Results"]

_OPTION: dict[Kind, str] = {
    "output": "outputs",
    "input": "inputs",
    "output_gradient": "gradients",
    "input_gradient": "input_gradients",
}


_KINDS: dict[str, int] = {"input": 0, "output": 1, "output_gradient": 2, "input_gradient": 3}


class Results:
    """The reading side of a capture.

    Args:
        tree: The model's layers.
        chosen: The ticked ones.
        asked: The kinds that are kept.
        store: Where records are kept.
    """

    def __init__(
        self, tree: LayerTree, chosen: list[Hooked], asked: frozenset[Kind], store: Store
    ) -> None:
        self._tree = tree
        self._chosen = chosen
        self._asked = asked
        self._store = store
        self._cache: tuple[object, tuple[Activation, ...]] | None = None
        self._missing: dict[str, str] | None = None

    @property
    def layers(self) -> dict[str, str]:
        """Own name → layer name of the ticked layers."""
        return {h.own: h.layer for h in self._chosen}

    @property
    def activations(self) -> tuple[Activation, ...]:
        """Everything captured so far, ordered by run, order, kind, leaf; also during a forward.

        The tensors are those kept, not copies of them: changing one in place changes it here.
        """
        store = self._store
        runs = list(store.runs)
        mark = (id(store), store.mark)
        if self._cache is None or self._cache[0] != mark:
            found = _collect(store, ((r, records_of(store, r)) for r in runs))
            self._cache = (mark, found)
        return self._cache[1]

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
        """Ticked layer → why it has no activation, or not the gradient that was asked for."""
        if self._store.open or self._missing is None:
            asked = "output_gradient" in self._asked
            self._missing = missing_layers(self._store, self._tree, gradients=asked)
        return dict(self._missing)

    def structure(self, layer: str, call: int = 1, run: int = -1) -> str:
        """How a nested output was built, shapes for tensors and type names for the rest.

        Args:
            layer: Ticked layer.
            call: From 1.
            run: From 1, or negative from the end.

        Returns:
            For example ``"([2, 5, 8], ([4, 2, 4], [4, 2, 4]))"``; "" for a bare tensor.

        Raises:
            LayerError: The layer is not ticked.
        """
        _check_run(run)
        number = run if run > 0 else len(self._store.runs) + 1 + run
        return self._store.structure.get((self._hooked(layer).index, number, call), "")

    @overload
    def output(
        self,
        layer: str,
        call: Literal["all"],
        run: int | None = None,
        leaf: str | int | None = None,
    ) -> tuple[Tensor, ...]: ...
    @overload
    def output(
        self,
        layer: str,
        call: int | Literal["last"] | None = None,
        run: int | None = None,
        leaf: str | int | None = None,
    ) -> Tensor: ...
    def output(
        self,
        layer: str,
        call: CallChoice = None,
        run: int | None = None,
        leaf: str | int | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        """The output of one layer.

        Args:
            layer: Ticked layer, under its own name, its name or an alias.
            call: Which call: from 1, "last", or "all" for a tuple; may be left out where the
                layer was called once.
            run: Which run: from 1, or negative from the end; the latest if left out.
            leaf: Which tensor of a nested output, by path or position; may be left out where
                there is one.

        Returns:
            The tensor kept, not a copy of it; with ``call="all"`` a tuple, one per call.

        Raises:
            LayerError: The layer is not ticked or was not captured (the message says why), or
                there are several to choose from (the message lists them).
        """
        return self._get(layer, "output", call, run, leaf)

    @overload
    def input(
        self,
        layer: str,
        call: Literal["all"],
        run: int | None = None,
        leaf: str | int | None = None,
    ) -> tuple[Tensor, ...]: ...
    @overload
    def input(
        self,
        layer: str,
        call: int | Literal["last"] | None = None,
        run: int | None = None,
        leaf: str | int | None = None,
    ) -> Tensor: ...
    def input(
        self,
        layer: str,
        call: CallChoice = None,
        run: int | None = None,
        leaf: str | int | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        """The input of one layer; arguments as for ``output``, ``leaf`` is a parameter's name."""
        return self._get(layer, "input", call, run, leaf)

    @overload
    def gradient(
        self,
        layer: str,
        call: Literal["all"],
        run: int | None = None,
        leaf: str | int | None = None,
        *,
        of: Literal["output", "input"] = "output",
    ) -> tuple[Tensor, ...]: ...
    @overload
    def gradient(
        self,
        layer: str,
        call: int | Literal["last"] | None = None,
        run: int | None = None,
        leaf: str | int | None = None,
        *,
        of: Literal["output", "input"] = "output",
    ) -> Tensor: ...
    def gradient(
        self,
        layer: str,
        call: CallChoice = None,
        run: int | None = None,
        leaf: str | int | None = None,
        *,
        of: Literal["output", "input"] = "output",
    ) -> Tensor | tuple[Tensor, ...]:
        """The gradient of a layer's output or input; other arguments as for ``output``."""
        if of not in ("output", "input"):
            raise LayerError(f'A gradient is of "output" or "input", not of {of!r}.')
        return self._get(layer, f"{of}_gradient", call, run, leaf)  # type: ignore[arg-type]  # one of two kinds, by the test above

    def _get(
        self, layer: str, kind: Kind, call: CallChoice, run: int | None, leaf: str | int | None
    ) -> Tensor | tuple[Tensor, ...]:
        hooked = self._hooked(layer)
        if run is not None:
            _check_run(run)
        own = hooked.own
        unkept = self._store.unkept.get((hooked.index, kind))
        found = [a for a in self.activations if a.layer == own and a.kind == kind]
        what = kind.replace("_", " ")
        if not found:
            why = unkept or self.missing.get(own)
            if why is None and kind not in self._asked:
                why = f"it was not asked for; use Capture(..., {_OPTION[kind]}=True)"
            raise LayerError(f"No {what} of layer '{own}' was captured: {why or 'none came'}.")
        try:
            chosen = choose(found, own, what, call=call, run=run, leaf=leaf)
        except LayerError as error:
            if unkept is None:
                raise
            raise LayerError(f"{error} Not all could be kept: {unkept}.") from None
        return tuple(a.tensor for a in chosen) if call == "all" else chosen[0].tensor

    def _hooked(self, layer: str) -> Hooked:
        if not isinstance(layer, str):
            raise LayerError(f"A layer is asked for by its name, not by {type(layer).__name__}.")
        by_own = {h.own: h for h in self._store.hooked}
        if layer in by_own:
            return by_own[layer]
        name = self._tree.name_of(layer)
        for hooked in self._chosen:
            if name is not None and hooked.layer == name:
                return hooked
        state = "is no layer of this model" if name is None else "was not ticked"
        raise LayerError(f"'{layer}' {state}.", remedy=did_you_mean(layer, by_own) or None)


def _check_run(run: object) -> None:
    if isinstance(run, bool) or not isinstance(run, int):
        raise LayerError(f"run must be a number from 1, or negative from the end, not {run!r}.")


def _collect(store: Store, records: Iterator[tuple[Run, list[Record]]]) -> tuple[Activation, ...]:
    """Activations of every run, ordered by run, order and kind."""
    found: list[Activation] = []
    for run, rows in records:
        calls: dict[int, int] = {}
        for row in rows:
            calls[row[0]] = max(calls.get(row[0], 0), row[2])
        rows.sort(key=lambda row: (row[3], _KINDS[row[4]]))
        found += [
            Activation(
                store.hooked[i].own,
                call,
                calls[i],
                run.number,
                order,
                kind,
                leaf,
                kind_of_module,
                tensor,
            )
            for i, kind_of_module, call, order, kind, leaf, tensor in rows
        ]
    return tuple(found)
