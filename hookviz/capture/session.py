"""Capture: hooks in for a while, everything that the ticked layers do kept, hooks out again.

In: a module, the layers, what to keep of them. Out: Activations. Must not know: images, pictures,
files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Self, overload

import torch
from torch import Tensor, nn

from hookviz.capture.activation import Activation, Kind
from hookviz.capture.early import Stopper
from hookviz.capture.gradients import GradientHooks, require_grad
from hookviz.capture.guard import EarlyStop, bypass_compiled, watch_calls
from hookviz.capture.hooks import cancel_hook, input_hook, output_hook, parameter_names
from hookviz.capture.layers import LayerSelector, LayerTree, select_layers, type_name
from hookviz.capture.limits import limited, warn_of_training
from hookviz.capture.reading import CallChoice, choose
from hookviz.capture.reasons import missing_layers
from hookviz.capture.replicas import records_of
from hookviz.capture.snapshot import Transform, make_snapshot
from hookviz.capture.store import Hooked, Run, Store, batch_of, collect, this_thread
from hookviz.errors import CaptureError, LayerError, did_you_mean

__all__ = ["Capture"]


class _RunWatcher:
    """Begins and ends runs in the store as the model's calls do."""

    def __init__(self, store: Store, gradients: GradientHooks | None) -> None:
        self._store, self._gradients = store, gradients

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> Run | None:
        if getattr(module, "_is_replica", False):
            return None  # a piece of somebody's DataParallel forward
        return self._store.begin(batch_of(args, kwargs), training=module.training)

    def end(self, token: Any, error: BaseException | None) -> None:
        if self._gradients is not None:
            self._gradients.settle(token)
        stopped = isinstance(error, EarlyStop)
        said = None
        if error is not None and not stopped:
            first = next(iter(str(error).splitlines()), "")
            said = f"{type(error).__name__}: {first}" if first else type(error).__name__
        self._store.end(token, said, stopped=stopped)


class Capture:
    """Keeps what layers of a model receive and give while it runs.

    The hooks are there between ``with`` and its end (or ``open()`` and ``close()``), for any
    number of forwards, and are removed on every way out; the user's own hooks stay. Everything
    kept is a copy made inside the hook, detached, in storage of its own, so nothing that the
    model does later can change it, and it may be deep-copied, pickled and used in autograd.

    Args:
        module: The model, or any part of one. It is called, never its ``forward``. A module made
            by ``torch.compile`` is captured through its original; while the capture is open,
            calls of compiled modules run the original code, since compiled code ignores hooks.
        layers: Which layers, see ``select_layers``; a mapping gives them names of one's own.
        outputs: Keep outputs.
        inputs: Keep inputs, copied before the layer can change them, under the names of the
            parameters of its ``forward``.
        gradients: Keep gradients of outputs: of each tensor that the layer handed out, summed
            over everything that used it, as ``retain_grad`` would. Backward must run while the
            capture is open; several backwards add up, as ``.grad`` does.
        input_gradients: Keep gradients of inputs: the layer's own contribution alone, as
            ``grad_input`` of a full backward hook; the layer is given views of its inputs.
        device: Where copies go; None leaves them where they are.
        dtype: Floating-point dtype of the copies; None keeps each one's own. Integers stay
            integers, quantised tensors are dequantised.
        transform: Applied to each tensor before it is copied, to keep less.
        memory_limit: Bytes in all beyond which the forward ends with CaptureError.
        keep_graph: Keep copies in autograd's graph instead of detaching them. They then hold the
            graph's memory and cannot be deep-copied.
        stop_early: End the forward after the last ticked layer. The model's call then returns
            None, in ``run()`` and as bare ``module(x)`` alike; nothing is raised. Nobody can know
            how often a model would call a layer, so a layer inside a block counts as done when
            the block returns, and one without parameters directly in the model when the model
            does; a layer with parameters directly in the model is done after its first call. A
            mapping layer → number of calls says otherwise.
        eval_mode: True puts the model in eval mode and each module's own mode back at the end;
            False leaves it; None leaves it too, and warns where Dropout or BatchNorm are in
            train mode.
        on_activation: Called in the hook after each record, in the thread that made it; ``calls``
            counts the calls so far. What it raises ends the forward.
        cancelled: Asked before every module's call; True ends the forward with RunCancelled.

    Raises:
        LayerError: A selector matches nothing; raised here, before any forward.
        CaptureError: An option cannot be, or the module or a ticked layer is TorchScript.
        DeviceError: The device is unknown or absent.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Flatten())
        >>> with Capture(net, ["0", nn.ReLU]) as cap:
        ...     y = net(torch.zeros(1, 3, 8, 8))
        >>> [(a.layer, a.module_type, a.shape) for a in cap.activations]
        [('0', 'Conv2d', (1, 8, 6, 6)), ('1', 'ReLU', (1, 8, 6, 6))]
        >>> cap.output("1").min() >= 0
        tensor(True)

        The forward may end after the last ticked layer:

        >>> with Capture(net, "0", stop_early=True) as cap:
        ...     print(net(torch.zeros(1, 3, 8, 8)))
        None
        >>> cap.output("0").shape
        torch.Size([1, 8, 6, 6])
    """

    def __init__(
        self,
        module: nn.Module,
        layers: LayerSelector | Iterable[LayerSelector] | Mapping[str, LayerSelector],
        *,
        outputs: bool = True,
        inputs: bool = False,
        gradients: bool = False,
        input_gradients: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        transform: Transform | None = None,
        memory_limit: int | None = None,
        keep_graph: bool = False,
        stop_early: bool | Mapping[str, int] = False,
        eval_mode: bool | None = None,
        on_activation: Callable[[Activation], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self._close_steps: list[Callable[[], None]] = []
        self._tree = LayerTree(module)
        self._given = module
        selected = select_layers(module, layers)
        self._chosen = [Hooked(i, own, name) for i, (own, name) in enumerate(selected.items())]
        for hooked in self._chosen:
            _refuse_script(self._tree, hooked)
        if not (outputs or inputs or gradients or input_gradients):
            raise CaptureError(
                "Nothing is to be kept: set outputs, inputs, gradients or input_gradients."
            )
        if stop_early and (gradients or input_gradients) and not keep_graph:
            raise CaptureError(
                "With stop_early the model returns nothing to run backward from, so there are no "
                "gradients.",
                remedy="Use keep_graph=True as well and run backward from a captured output.",
            )
        self._outputs, self._inputs = outputs, inputs
        self._gradients, self._input_gradients = gradients, input_gradients
        self._snapshot = make_snapshot(
            device=device, dtype=dtype, transform=transform, keep_graph=keep_graph
        )
        if memory_limit is not None:
            limited(self._snapshot, memory_limit)
        self._memory_limit = memory_limit
        self._stop_early = stop_early
        self._eval_mode = eval_mode
        self._on_activation, self._cancelled = on_activation, cancelled
        self._gradient_hooks: GradientHooks | None = None
        self._store = self._new_store()
        self._is_open = False
        self._stopper()
        self._cache: tuple[object, tuple[Activation, ...]] | None = None
        self._missing: dict[str, str] | None = None

    @property
    def module(self) -> nn.Module:
        """The captured module; of a compiled one, the original."""
        return self._tree.root

    @property
    def layers(self) -> dict[str, str]:
        """Own name → layer name of the ticked layers."""
        return {h.own: h.layer for h in self._chosen}

    def open(self) -> Self:
        """Set the hooks; earlier results of this capture are dropped.

        Returns:
            The capture itself.

        Raises:
            CaptureError: It is open already.
        """
        if self._is_open:
            raise CaptureError("This capture is open already; close it first.")
        if self._eval_mode is None:
            warn_of_training(self._tree.root, stacklevel=3)
        self._store = store = self._new_store()
        self._cache = self._missing = None
        self._is_open = True
        store.owner[0] += 1
        self._close_steps = [lambda: _closed(store.owner)]
        try:
            self._set_hooks(store)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Remove the hooks, put modes back; what was captured stays. Safe to call again."""
        if not self._is_open:
            return
        self._is_open = False
        store = self._store
        store.close()
        steps, self._close_steps = self._close_steps, []
        failed: BaseException | None = None
        for step in reversed(steps):
            try:
                step()
            except BaseException as error:  # noqa: BLE001 - the other hooks must go all the same
                failed = error
        for run in store.runs:
            for handle in run.handles:
                handle.remove()
            run.handles, run.views = [], []
        if failed is not None:
            try:
                raise failed
            finally:
                del failed

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Hooks hold the store, never the capture: a forgotten capture takes its hooks along.
        if self.__dict__.get("_is_open", False):
            self.close()

    def __repr__(self) -> str:
        state = "open" if self._is_open else "closed"
        return (
            f"<Capture of {self._tree.type}, {len(self._chosen)} layers, {state}, "
            f"{len(self.activations)} activations of {len(self._store.runs)} runs>"
        )

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model.

        Args:
            *args: Passed on.
            **kwargs: Passed on.

        Returns:
            What the model returns; None where ``stop_early`` ended the forward.

        Raises:
            CaptureError: The capture is not open.
            Exception: What the model raises, unchanged; what was captured before is kept.
        """
        if not self._is_open:
            raise CaptureError(
                "This capture is not open, so a run would keep nothing.",
                remedy="Use it in a with statement, or call open() first.",
            )
        return self._tree.root(*args, **kwargs)

    def watch(self, name: str, tensor: Tensor) -> Tensor:
        """Record the gradient of any tensor, as an output gradient of the layer ``name``.

        It does what ``tensor.register_hook`` and ``tensor.retain_grad()`` are for, and copies.

        Args:
            name: What the record is called; several tensors of one name are its calls.
            tensor: A tensor that requires a gradient; unchanged.

        Returns:
            The same tensor.

        Raises:
            CaptureError: The tensor requires no gradient, or the capture is not open.
            LayerError: ``name`` is that of a ticked layer.

        Examples:
            >>> x = torch.ones(2, requires_grad=True)
            >>> with Capture(nn.Identity(), "") as cap:
            ...     y = cap.watch("y", x * 3)
            ...     (y * y).sum().backward()
            >>> cap.gradient("y")
            tensor([6., 6.])
        """
        if not self._is_open or self._gradient_hooks is None:
            raise CaptureError("A tensor can be watched only while the capture is open.")
        require_grad(name, tensor)
        store = self._store
        if name in self.layers:
            raise LayerError(f"'{name}' is a ticked layer; watch the tensor under another name.")
        hooked = store.watch_as(name)
        run = store.run_here()
        done = run.watched[hooked.index] = run.watched.get(hooked.index, 0) + 1
        self._gradient_hooks.watch(run, hooked, tensor, next(run.counter), done)
        return tensor

    def clear(self) -> None:
        """Drop what was captured; run numbers start at 1 again."""
        self._store.clear()
        self._cache = self._missing = None

    @property
    def activations(self) -> tuple[Activation, ...]:
        """Everything captured so far, ordered by run, order, kind, leaf; also during a forward.

        The tensors are those kept, not copies of them: changing one in place changes it here.
        """
        store = self._store
        runs = list(store.runs)
        mark = (id(store), store.mark)
        if self._cache is None or self._cache[0] != mark:
            found = collect(store, ((r, records_of(store, r)) for r in runs))
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
        if self._is_open or self._missing is None:
            self._missing = missing_layers(self._store, self._tree, gradients=self._gradients)
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
        own = self._hooked(layer).own
        found = [a for a in self.activations if a.layer == own and a.kind == kind]
        what = kind.replace("_", " ")
        if not found:
            why = self.missing.get(own)
            if why is None and not self._asked(kind):
                why = f"it was not asked for; use Capture(..., {_OPTION[kind]}=True)"
            raise LayerError(f"No {what} of layer '{own}' was captured: {why or 'none came'}.")
        chosen = choose(found, own, what, call=call, run=run, leaf=leaf)
        return tuple(a.tensor for a in chosen) if call == "all" else chosen[0].tensor

    def _asked(self, kind: Kind) -> bool:
        return {
            "output": self._outputs,
            "input": self._inputs,
            "output_gradient": self._gradients,
            "input_gradient": self._input_gradients,
        }[kind]

    def _hooked(self, layer: str) -> Hooked:
        by_own = {h.own: h for h in self._store.hooked}
        if layer in by_own:
            return by_own[layer]
        name = self._tree.name_of(layer)
        for hooked in self._chosen:
            if name is not None and hooked.layer == name:
                return hooked
        state = "is no layer of this model" if name is None else "was not ticked"
        raise LayerError(f"'{layer}' {state}.", remedy=did_you_mean(layer, by_own) or None)

    def _new_store(self) -> Store:
        parallel = [m for m in self._tree.root.modules() if isinstance(m, nn.DataParallel)]
        order = list(getattr(parallel[0], "device_ids", [])) if parallel else None
        return Store(list(self._chosen), this_thread(), order)

    def _stopper(self) -> Stopper | None:
        if not self._stop_early:
            return None
        counts = {} if self._stop_early is True else self._stop_early
        return Stopper(self._tree, self._store, counts)

    def _set_hooks(self, store: Store) -> None:
        root, steps = self._tree.root, self._close_steps
        snapshot = self._snapshot
        if self._memory_limit is not None:
            snapshot = limited(snapshot, self._memory_limit)
        grads = self._gradient_hooks = GradientHooks(
            store,
            snapshot,
            outputs=self._gradients,
            inputs=self._input_gradients,
            on_activation=self._on_activation,
        )
        if self._eval_mode:
            modes = [(m, m.training) for m in root.modules()]
            steps.append(lambda: _put_back(modes))
            root.eval()
        if self._cancelled is not None:
            ask = cancel_hook(self._cancelled)
            for layer in root.modules():
                steps.append(layer.register_forward_pre_hook(ask).remove)
        stopper = self._stopper()
        any_gradient = self._gradients or self._input_gradients
        for hooked in self._chosen:
            layer = self._tree.modules[hooked.layer]
            if self._inputs or self._input_gradients:
                names = parameter_names(layer)
                if self._inputs:
                    see = input_hook(store, hooked, snapshot, names)
                    steps.append(layer.register_forward_pre_hook(see, with_kwargs=True).remove)
                if self._input_gradients:
                    part = grads.input_hook(hooked, names)
                    steps.append(layer.register_forward_pre_hook(part, with_kwargs=True).remove)
            hook = output_hook(
                store,
                hooked,
                snapshot,
                outputs=self._outputs,
                inputs=self._inputs,
                on_activation=self._on_activation,
                gradient=grads.output_hook(hooked) if any_gradient else None,
                after=stopper.after if stopper is not None else None,
            )
            steps.append(layer.register_forward_hook(hook).remove)
        if stopper is not None:
            for layer, owner_hook in stopper.owners:
                steps.append(layer.register_forward_hook(owner_hook).remove)
        watcher = _RunWatcher(store, grads)
        steps.append(watch_calls(root, watcher))
        steps.extend(bypass_compiled(self._given))


_OPTION: dict[Kind, str] = {
    "output": "outputs",
    "input": "inputs",
    "output_gradient": "gradients",
    "input_gradient": "input_gradients",
}


def _closed(owner: list[int]) -> None:
    owner[0] -= 1


def _put_back(modes: list[tuple[nn.Module, bool]]) -> None:
    for module, training in modes:
        module.training = training


def _refuse_script(tree: LayerTree, hooked: Hooked) -> None:
    parts = hooked.layer.split(".") if hooked.layer else []
    for depth in range(len(parts) + 1):
        name = ".".join(parts[:depth])
        module = tree.modules.get(name)
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(
                f"Layer '{hooked.layer}' is in '{name}', a TorchScript module "
                f"({type_name(module)}), where hooks do not work: they are not supported.",
                remedy="Use the Python module that it was scripted or traced from.",
            )
