"""When every selected layer has given all that it will, and the forward may end.

Nobody knows how often a model will call a layer, so the rule errs towards waiting. A layer that
lies in the model itself (``conv1`` of a ResNet, ``features.0`` of a VGG, also through
``Sequential`` containers) is done after its first call, or after as many calls as it has names.
One that lies in a block with a ``forward`` of its own (``layer1.0.relu``) is done when that block
returns. A layer without parameters directly in a model with a ``forward`` of its own, the ReLU
that many a model uses again and again, is done when the model is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from torch import nn

from hookviz.capture._checks import check_count
from hookviz.capture._module_hooks import EarlyStop
from hookviz.capture._store import Hooked, Store, ThreadLog
from hookviz.capture._tree import ModuleTree
from hookviz.errors import CaptureError

_SEEN_THROUGH = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class Stopper:
    """Ends forwards early.

    Args:
        tree: The model's layers.
        hooked: The selected ones.
        counts: Layer → number of its calls to wait for, for those where the rule above is not
            what is wanted.

    Raises:
        CaptureError: ``counts`` names a layer that is not selected, or a number below 1.
    """

    def __init__(self, tree: ModuleTree, hooked: list[Hooked], counts: Mapping[str, int]) -> None:
        self._calls: dict[int, int] = {}
        # Modules whose return settles layers, with the indices of these.
        self._blocks: dict[nn.Module, list[int]] = {}
        self.possible = True
        names = {h.name for h in hooked}
        self._all = {h.index for h in hooked}
        for name, count in counts.items():
            if name not in names:
                raise CaptureError(f"stop_early has {name!r}, which is not a selected layer.")
            check_count(f"stop_early[{name!r}]", count, 1)
        for h in hooked:
            layer = tree.modules[h.layer]
            # The modules above the layer, nearest first, under each of its names.
            above = [list(tree.above(path)) for path in tree.names(h.layer)]
            # The nearest that is called with a forward of its own.
            blocks = [
                next((m for m in one if not isinstance(m, _SEEN_THROUGH)), tree.root)
                for one in above
            ]
            if h.name in counts:
                self._calls[h.index] = counts[h.name]
            elif layer is tree.root:
                self.possible = False
            elif set(blocks) != {tree.root}:
                # Of several blocks that share the layer, the one named last is the last to run.
                block = list(dict.fromkeys(blocks))[-1]
                self.possible &= block is not tree.root
                self._blocks.setdefault(block, []).append(h.index)
            elif any(True for _ in layer.parameters()) or all(
                type(parent).forward is nn.Sequential.forward for parent, *_ in above
            ):
                self._calls[h.index] = len(above)
            else:
                self.possible = False

    def after(self, log: ThreadLog, index: int, *_: int) -> None:
        """Note the end of a selected layer's call; ends the forward where it was the last."""
        if index in self._calls and log.counts[index] >= self._calls[index]:
            self._settle(log, [index])

    def block_hooks(self, store: Store) -> Iterator[tuple[nn.Module, Callable[..., None]]]:
        """The blocks, with the forward hook to set on each."""
        if self.possible:
            for block, indices in self._blocks.items():
                yield block, partial(self._block_ended, store, indices)

    def _block_ended(self, store: Store, indices: list[int], *_: object) -> None:
        log = store.log_here()
        if log is not None:
            self._settle(log, [i for i in indices if log.counts[i]])

    def _settle(self, log: ThreadLog, indices: list[int]) -> None:
        run = log.run
        if not self.possible or run.detached or not log.main:
            return
        if run.stop is None:
            run.stop = set(self._all)
        run.stop.difference_update(indices)
        if not run.stop:
            raise EarlyStop(run)
