"""When every selected layer has given all that it will, and the forward may end.

In: the model's layers, the selected ones, calls as they end. Out: an EarlyStop out of the forward.
Must not know: tensors, records.

Nobody knows how often a model will call a layer, so the rule errs towards waiting. A layer that
lies in the model itself (``conv1`` of a ResNet, ``features.0`` of a VGG, also through
``Sequential`` containers) is done after its first call, or after as many calls as it has names.
One that lies in a block with a ``forward`` of its own (``layer1.0.relu``) is done when that block
returns. A layer without parameters directly in a model with a ``forward`` of its own, the ReLU
that many a model uses again and again, is done when the model is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from hookviz.capture._module_hooks import EarlyStop
from hookviz.capture._store import Store, ThreadLog
from hookviz.capture._tree import ModuleTree
from hookviz.errors import CaptureError


class Stopper:
    """Ends forwards early.

    Args:
        tree: The model's layers.
        store: The capture's store.
        counts: Layer (own name) → number of its calls to wait for, for those where the rule
            above is not what is wanted.

    Attributes:
        owners: Modules whose return settles a layer, with the hook to set on each.

    Raises:
        CaptureError: ``counts`` names a layer that is not selected, or a number below 1.
    """

    def __init__(self, tree: ModuleTree, store: Store, counts: Mapping[str, int]) -> None:
        self._store = store
        self._calls: dict[int, int] = {}
        self._owned: dict[int, list[int]] = {}
        self.owners: list[tuple[nn.Module, Callable[..., None]]] = []
        parents = _parents(tree)
        own_names = {h.name for h in store.hooked}
        for name, count in counts.items():
            whole = isinstance(count, int) and not isinstance(count, bool)
            if name not in own_names or not whole or count < 1:
                raise CaptureError(
                    "stop_early maps selected layers to numbers of calls from 1, "
                    f"but has {name!r}: {count!r}."
                )
        never = False
        owners: dict[int, nn.Module] = {}
        for hooked in store.hooked:
            layer = tree.modules[hooked.layer]
            names = (hooked.layer, *tree.aliases(hooked.layer))
            blocks = {id(b): b for b in (_block(tree, parents, n) for n in names)}
            if hooked.name in counts:
                self._calls[hooked.index] = counts[hooked.name]
            elif layer is tree.root:
                never = True
            elif set(blocks) != {id(tree.root)}:
                # Of several blocks that share the layer, the one named last is the last to run.
                owner = list(blocks.values())[-1]
                if owner is tree.root:
                    never = True
                owners[id(owner)] = owner
                self._owned.setdefault(id(owner), []).append(hooked.index)
            elif any(True for _ in layer.parameters()) or all(
                _in_sequence(parents, n) for n in names
            ):
                self._calls[hooked.index] = len(names)
            else:
                never = True
        self.possible = not never
        if self.possible:
            self.owners = [(m, self._owner_hook(key)) for key, m in owners.items()]

    def after(self, log: ThreadLog, index: int) -> None:
        """Note the end of a selected layer's call; ends the forward where it was the last."""
        if not self.possible or log.run.detached or not log.main:
            return
        left = self._left(log)
        if index in self._calls and log.counts[index] >= self._calls[index]:
            left.discard(index)
            self._stop_if_done(log)

    def _owner_hook(self, key: int) -> Callable[..., None]:
        indices = self._owned[key]
        store, settle = self._store, self._settle

        def hook(module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG001 - torch's
            log = store.log_here()
            if log is not None and not log.run.detached and log.main:
                settle(log, indices)

        return hook

    def _settle(self, log: ThreadLog, indices: list[int]) -> None:
        left = self._left(log)
        left.difference_update(i for i in indices if log.counts[i])
        self._stop_if_done(log)

    def _left(self, log: ThreadLog) -> set[int]:
        if log.run.stop is None:
            log.run.stop = set(range(len(log.counts)))
        left: set[int] = log.run.stop
        return left

    def _stop_if_done(self, log: ThreadLog) -> None:
        if not log.run.stop:
            raise EarlyStop(log.run)


def _parents(tree: ModuleTree) -> dict[str, nn.Module]:
    """Each name's parent module (``_orig_mod`` parts are left out of names)."""
    by_name = dict(tree.modules)
    for name in tree.modules:
        for alias in tree.aliases(name):
            by_name[alias] = tree.modules[name]
    return {name: by_name[name.rpartition(".")[0]] for name in by_name if name}


def _block(tree: ModuleTree, parents: dict[str, nn.Module], name: str) -> nn.Module:
    """The nearest module above with a forward of its own; ``Sequential`` is seen through."""
    while name:
        parent = parents[name]
        if parent is tree.root or not isinstance(
            parent, (nn.Sequential, nn.ModuleList, nn.ModuleDict)
        ):
            return parent
        name = name.rpartition(".")[0]
    return tree.root


def _in_sequence(parents: dict[str, nn.Module], name: str) -> bool:
    return bool(name) and type(parents[name]).forward is nn.Sequential.forward
