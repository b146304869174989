"""Capture: hooks in for a while, everything that the selected layers do kept, hooks out again."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import compress
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from hookviz._meta import without_values
from hookviz._text import error_text
from hookviz.activation import Activation, Kind
from hookviz.capture._attention import AttentionWatch
from hookviz.capture._checks import check, check_choice, check_function
from hookviz.capture._early_stop import Stopper
from hookviz.capture._gradients import GradientHooks
from hookviz.capture._hooks import cancel_hook, input_hook, output_hook, parameter_names
from hookviz.capture._leaves import change_leaves
from hookviz.capture._module_hooks import (
    StaysHere,
    Watcher,
    belongs_to,
    bypass_compiled,
    is_tracing,
    set_forward_hook,
    set_pre_hook,
    watch_calls,
)
from hookviz.capture._results import CaptureResults
from hookviz.capture._snapshot import Copying, Transform, of_fresh
from hookviz.capture._store import Hooked, Store
from hookviz.capture._tree import LayerSelectors, ModuleTree, select_from, type_name
from hookviz.errors import CaptureError, HookvizError, LayerError


def warn_of_training(modules: Iterable[nn.Module], stacklevel: int) -> None:
    """Warn where a forward in train mode would be random or change the model.

    Dropout makes two forwards differ; BatchNorm takes its statistics from the batch and moves its
    running ones, under ``torch.no_grad()`` too.
    """
    training = [m for m in modules if m.training]
    found = []
    if any(isinstance(m, _DropoutNd) and m.p > 0 for m in training):
        found.append("Dropout makes results differ from run to run")
    if any(isinstance(m, _BatchNorm) and m.track_running_stats for m in training):
        found.append("BatchNorm changes its running statistics")
    if found:
        warnings.warn(
            f"The model is in train mode: {' and '.join(found)}. Use eval_mode=True to capture in "
            "eval mode and have the mode put back, or eval_mode=False if train mode is meant.",
            UserWarning,
            stacklevel=stacklevel,
        )


def set_eval(module: nn.Module, undo: Callable[[Callable[[], None]], object]) -> None:
    """Put a model in eval mode.

    Args:
        module: The model.
        undo: Is given a function that gives each of its modules its own mode back.
    """
    modes = [(m, m.training) for m in module.modules()]

    def put_back() -> None:
        for one, training in modes:
            one.training = training

    undo(put_back)
    try:
        module.eval()
    except NotImplementedError:  # a program of torch.export: its mode was settled in making it
        for one, _ in modes:
            one.training = False


class Capture(StaysHere, CaptureResults):
    """Keeps what layers of a model receive and give while it runs.

    The hooks are there between ``with`` and its end (or ``open()`` and ``close()``), for any
    number of forwards, and are removed on every way out; the user's own hooks stay. Everything
    kept is a copy made inside the hook, detached, in storage of its own, so nothing that the
    model does later can change it, and it may be deep-copied, pickled and used in autograd.

    Each forward of the module is a run; layers called outside of one form a run of their own.
    Forwards that other threads start are runs too, unless such a thread has captures of its own
    open: then they belong to these alone. Where threads work on one forward together, as those of
    ``DataParallel`` do, their pieces of a batch are joined in input order. Recomputation by
    activation checkpointing does not count as a call.

    Copies of the model, saved or exported ones included, have no hooks of the capture; a copy of
    the capture itself is None. A tensor that cannot be kept (sparse, freed, a stand-in of
    ``torch.func`` or of tracing) is a reason in ``missing``, and the forward goes on; nested
    tensors are padded with zeros.

    Args:
        module: The model, or any part of one. It is called, never its ``forward``. A module made
            by ``torch.compile`` is captured through its original; while the capture is open,
            calls of compiled modules run the original code, since compiled code ignores hooks.
        layers: Which layers, see ``select_layers``; a mapping gives them other names.
        outputs: Keep outputs.
        attention: Keep the attention probabilities of the selected layers and of all in them, as
            records of the layer that attends: (N, heads, queries, keys), before dropout. The
            model's output stays the same to the bit. They come from ``nn.MultiheadAttention``,
            ``scaled_dot_product_attention``, and softmax over keys in modules called attention.
        inputs: Keep inputs, copied before the layer can change them, under the names of the
            parameters of its ``forward``.
        gradients: Keep gradients of outputs: of each tensor that the layer handed out, summed
            over everything that used it, as ``retain_grad`` would. Backward must run while the
            capture is open; several backwards add up, as ``.grad`` does.
        input_gradients: Keep gradients of inputs: the layer's own contribution alone, as
            ``grad_input`` of a full backward hook; the layer is given views of its inputs.
        device: Where copies go; None leaves them where they are.
        dtype: Floating-point dtype of the copies; None keeps each tensor's own. Integers stay
            integers, quantised tensors are dequantised.
        transform: Applied to each tensor before it is copied, to keep less.
        memory_limit: Bytes in all beyond which the forward ends with CaptureError.
        keep_graph: Keep copies in autograd's graph instead of detaching them. They then hold the
            graph's memory and cannot be deep-copied.
        stop_early: End the forward after the last selected layer. The model's call then returns
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
        CaptureError: An option is invalid, or the module or a selected layer is TorchScript.
        DeviceError: The device is unknown or absent.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Flatten())
        >>> with Capture(net, ["0", nn.ReLU]) as cap:
        ...     y = net(torch.zeros(1, 3, 8, 8))
        >>> [(a.layer, a.module_type, a.shape) for a in cap.activations]
        [('0', 'Conv2d', (1, 8, 6, 6)), ('1', 'ReLU', (1, 8, 6, 6))]
        >>> cap.output("1").min() >= 0
        tensor(True)

        The forward may end after the last selected layer:

        >>> with Capture(net, "0", stop_early=True) as cap:
        ...     print(net(torch.zeros(1, 3, 8, 8)))
        None
        >>> cap.output("0").shape
        torch.Size([1, 8, 6, 6])
    """

    def __init__(
        self,
        module: nn.Module,
        layers: LayerSelectors,
        *,
        outputs: bool = True,
        inputs: bool = False,
        gradients: bool = False,
        input_gradients: bool = False,
        attention: bool = False,
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
        self._is_open = False
        self._undo = ExitStack()
        tree = ModuleTree(module)
        selected = select_from(tree, layers)
        chosen = [Hooked(i, name, layer) for i, (name, layer) in enumerate(selected.items())]
        for script in tree.scripts:
            inside = [h.layer for h in chosen if f"{h.layer}.".startswith(f"{script}.")]
            if inside:
                raise CaptureError(
                    f"Layer '{inside[0]}' is in '{script}', a TorchScript module "
                    f"({type_name(tree.modules[script])}), where hooks are not supported.",
                    remedy="Use the Python module that it was scripted or traced from.",
                )
        kinds: tuple[Kind, ...] = (
            "output", "input", "output_gradient", "input_gradient", "attention"
        )  # fmt: skip
        wishes = (outputs, inputs, gradients, input_gradients, attention)
        asked = frozenset(compress(kinds, wishes))
        if not asked:
            raise CaptureError(
                "Nothing is to be kept: set outputs, inputs, gradients, input_gradients or "
                "attention."
            )
        if stop_early and (gradients or input_gradients) and not keep_graph:
            raise CaptureError(
                "With stop_early the model returns nothing to run backward from: no gradients.",
                remedy="Use keep_graph=True as well and run backward from a captured output.",
            )
        check_function("on_activation", on_activation)
        check_function("cancelled", cancelled)
        legal = "True, False or a mapping from layers to numbers of calls"
        check("stop_early", stop_early, legal, holds=isinstance(stop_early, bool | Mapping))
        check_choice("eval_mode", eval_mode, True, False, None)
        self._copying = Copying(device, dtype, transform, keep_graph, memory_limit)
        self._stopper: Stopper | None = None
        if stop_early:
            self._stopper = Stopper(tree, chosen, {} if stop_early is True else stop_early)
        self._eval_mode = eval_mode
        self._on_activation, self._cancelled = on_activation, cancelled
        self._gradient_hooks: GradientHooks | None = None
        parallel = [m for m in tree.modules.values() if isinstance(m, nn.DataParallel)]
        self._parallel = list(getattr(parallel[0], "device_ids", [])) if parallel else None
        self._inside = _inside(tree, chosen) if attention else []
        store = Store([*chosen, *self._inside], self._parallel)
        super().__init__(tree, chosen, asked, store)

    @property
    def module(self) -> nn.Module:
        """The captured module; of a compiled one, the original."""
        return self._tree.root

    def open(self, *, _stacklevel: int = 3) -> Self:
        """Set the hooks; earlier results of this capture are dropped.

        Returns:
            The capture itself.

        Raises:
            CaptureError: It is open already.
        """
        if self._is_open:
            raise CaptureError("This capture is open already; close it first.")
        if self._eval_mode is None:
            warn_of_training(self._tree.modules.values(), stacklevel=_stacklevel)
        self._store = store = Store([*self._chosen, *self._inside], self._parallel)
        self._is_open = True
        store.thread.append(None)
        self._undo.callback(store.thread.pop)
        try:
            self._set_hooks(store)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Remove the hooks, put modes back; what was captured stays. Safe to call again."""
        if self._is_open:
            self._is_open = False
            self._store.close()
            self._undo.close()  # whatever fails in it, the other hooks go

    def __enter__(self) -> Self:
        return self.open(_stacklevel=4)

    def __exit__(self, *error: object) -> None:
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
            LayerError: ``name`` is that of a selected layer.

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
        given: object = tensor
        if not isinstance(given, Tensor):
            raise CaptureError(f"'{name}' must be a tensor, not {type(given).__name__}.")
        if not tensor.requires_grad:
            raise CaptureError(
                f"'{name}' {tuple(tensor.shape)} does not require a gradient, so none will come.",
                remedy="Compute it with gradients on, or call requires_grad_() on it first.",
            )
        if name in self.layers:
            raise LayerError(f"'{name}' is a selected layer; watch the tensor under another name.")
        self._gradient_hooks.watch(name, tensor)
        return tensor

    def clear(self) -> None:
        """Drop what was captured; run numbers start at 1 again."""
        self._store.clear()

    def _set_hooks(self, store: Store) -> None:
        tree, asked, undo = self._tree, self._asked, self._undo.callback
        snapshot, each = self._copying.snapshot(), self._on_activation
        grads = GradientHooks(store, snapshot, each, outputs="output_gradient" in asked)
        self._gradient_hooks = grads
        if self._eval_mode:
            set_eval(tree.root, undo)
        if self._cancelled is not None:
            ask = cancel_hook(self._cancelled)
            for name, layer in tree.modules.items():
                if name not in tree.scripts:
                    undo(set_pre_hook(layer, ask))
        watch = None
        if "attention" in asked:
            wanted = {h.layer: h for h in (*self._chosen, *self._inside)}
            fresh = of_fresh(snapshot)
            watch = AttentionWatch(tree, store, wanted, fresh, snapshot, each)
        after = [one.after for one in (watch, self._stopper) if one is not None]
        graded = not asked.isdisjoint({"output_gradient", "input_gradient"})
        traced = is_tracing()
        # Hooks turn fast paths of PyTorch's own transformer layers off: none without need.
        hooks = asked != {"attention"} or self._stopper is not None
        for hooked in self._chosen if hooks else ():
            layer = tree.modules[hooked.layer]
            if not asked.isdisjoint({"input", "input_gradient"}):
                names = parameter_names(layer)
                if "input" in asked:
                    undo(set_pre_hook(layer, input_hook(store, hooked, snapshot, names)))
                if "input_gradient" in asked:
                    undo(set_pre_hook(layer, grads.input_hook(hooked, names)))
            gradient = partial(grads.after_call, hooked) if graded else None
            acts_for, own = belongs_to(layer, traced=traced), weakref.ref(layer)
            hook = output_hook(store, hooked, own, acts_for, snapshot, asked, each, gradient, after)
            undo(set_forward_hook(layer, hook, asks=True))
        if self._stopper is not None:
            for block, hook in self._stopper.block_hooks(store):
                undo(set_forward_hook(block, hook))
        undo(watch_calls(tree.root, Watcher(store.begin, store.end)))
        if watch is not None:
            watch.start(undo)
        bypass_compiled([*tree.wrappers, *tree.modules.values()], undo)


def _inside(tree: ModuleTree, chosen: list[Hooked]) -> list[Hooked]:
    """The layers within the selected ones that are not selected themselves."""
    above = tuple(f"{h.layer}.".lstrip(".") for h in chosen)
    own = {h.layer for h in chosen}
    inside = [
        name
        for name in tree.modules
        if name not in own and any(f"{n}.".startswith(above) for n in tree.names(name))
    ]
    return [Hooked(i, name, name) for i, name in enumerate(inside, len(chosen))]


def layer_shapes(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    *,
    cancelled: Callable[[], bool] | None = None,
) -> tuple[Activation, ...]:
    """The outputs of every layer as tensors that have a shape and a dtype, but no values.

    A copy without values runs in eval mode; a model that looks at values, as detection models do,
    cannot go that way.

    Args:
        module: The model, left as it is.
        args: What it would be called with. Of tensors the shapes and dtypes alone count.
        kwargs: The keyword arguments.
        cancelled: Asked before every module's call; True ends it with RunCancelled.

    Returns:
        One record per output tensor and call, in order of execution (of completion), the model
        itself ("") among the layers; each ``tensor`` is on the meta device.

    Raises:
        CaptureError: Without values the forward fails.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten())
        >>> [(a.layer, a.shape) for a in layer_shapes(net, [torch.zeros(1, 3, 5, 5)])]
        [('0', (1, 8, 3, 3)), ('1', (1, 72)), ('', (1, 72))]
    """
    try:
        args, kwargs = change_leaves(
            (tuple(args), dict(kwargs)), lambda _, tensor: tensor.to("meta")
        )
        with (
            torch.inference_mode(mode=False),
            torch.no_grad(),
            Capture(
                without_values(module), lambda *_: True, eval_mode=True, cancelled=cancelled
            ) as capture,
        ):
            capture.run(*args, **kwargs)
    except HookvizError:
        raise
    except Exception as error:
        raise CaptureError(
            f"The shapes of {type(module).__name__} are not known before it runs: "
            f"{error_text(error)}"
        ) from error
    return capture.activations
