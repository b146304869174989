"""Attention probabilities of every call, while the model computes what it always does.

PyTorch shows them nowhere: the fused kernels never make them. So they are taken where that changes
no bit of the model's output.

- ``scaled_dot_product_attention``, and softmax inside a module that is called attention, are seen
  by a function mode; the first is computed again from its queries and keys, the second is kept.
- Any function mode, even an empty one, turns the fast paths of ``nn.MultiheadAttention`` and
  ``nn.TransformerEncoderLayer`` off, and with them the last bits of the output change. So the mode
  is taken off while these run, and a dispatch mode looks at the fused operations instead. On the
  CPU the operation of ``nn.MultiheadAttention`` has the probabilities at hand and gives them away;
  elsewhere, and off the fast path, the module is called a second time for them.

Modules are watched by the guard of `watch_calls`, not by hooks: hooks turn the fast path of
``nn.TransformerEncoderLayer`` off.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from hookviz._axes import Windows
from hookviz._text import error_text
from hookviz.capture._hooks import OnActivation, not_kept
from hookviz.capture._module_hooks import EarlyStop, Watcher, watch_calls
from hookviz.capture._snapshot import Snapshot
from hookviz.capture._store import Hooked, RawRecord, Store, ThreadLog
from hookviz.capture._tree import ModuleTree
from hookviz.capture._windows import windows_of

_SOFTMAX = frozenset({F.softmax, torch.softmax, torch.special.softmax, Tensor.softmax})
_SEEN = _SOFTMAX | {F.scaled_dot_product_attention, F.multi_head_attention_forward}
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
_native = torch.ops.aten._native_multi_head_attention.default  # noqa: SLF001 - the operation's name
_encoder_layer = torch.ops.aten._transformer_encoder_layer_fwd.default  # noqa: SLF001 - the same
# No mode has a public way out from below others.
_push_mode: Callable[[TorchFunctionMode], None] = torch.overrides._push_mode  # noqa: SLF001 - see above
_pop_mode: Callable[[], TorchFunctionMode] = torch.overrides._pop_mode  # noqa: SLF001 - see above
_EACH_HEAD = {"need_weights": True, "average_attn_weights": False}


class _RunningCall:
    """One call of a module that is running."""

    def __init__(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.name, self.module, self.args, self.kwargs = name, module, args, kwargs
        self.maps: list[tuple[str, Tensor]] = []  # layer, probabilities
        self.attends = False  # whether attention was seen in it, kept or not
        self.numbered: tuple[int, int] | None = None  # call and order, where a hook gave them
        self.modes = ExitStack()


class _RunningCalls(threading.local):
    """Of the current thread: the calls that are running, and the mode while it is on."""

    def __init__(self) -> None:
        self.frames: list[_RunningCall] = []
        self.mode: _Functions | None = None
        self.looks = False  # whether fused operations are looked at


@dataclass(eq=False)
class AttentionWatch:
    """Takes the attention of some layers of a model, and notes which others have any.

    Attributes:
        tree: The model's layers.
        store: Where records go.
        wanted: The layers that are selected or lie in a selected one, by name in the model.
        keep: What makes a tensor, which nobody else holds, one of the capture's.
        copy: The same with a copy, for tensors that the model goes on using.
        on_activation: Called with each record.
    """

    tree: ModuleTree
    store: Store
    wanted: Mapping[str, Hooked]
    keep: Snapshot
    copy: Snapshot
    on_activation: OnActivation
    _here: _RunningCalls = field(default_factory=_RunningCalls)

    def start(self, undo: Callable[[Callable[[], None]], object]) -> None:
        """Watch every module; ``undo`` is given what ends it."""
        for name, module in self.tree.modules.items():
            if name not in self.tree.scripts:
                # The module holds the watcher, so the watcher holds its name alone.
                undo(watch_calls(module, Watcher(partial(self.begin, name), self.end)))

    def after(self, _log: ThreadLog, index: int, call: int, order: int) -> None:
        """A hook of the layer whose call is running has numbered that call."""
        frames = self._here.frames
        if frames and getattr(self.wanted.get(frames[-1].name), "index", None) == index:
            frames[-1].numbered = call, order

    def begin(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> _RunningCall | None:
        """A module is called."""
        here = self._here
        if not here.frames and self.store.ignores_this_thread():
            return None
        frame = _RunningCall(name, module, args, kwargs)
        fused = isinstance(module, _FUSED)
        if fused and here.mode is not None:
            self._hide()
            frame.modes.callback(self._show)
        elif not fused and here.mode is None:
            self._show()
            frame.modes.callback(self._hide)
        if fused and not module.training and not here.looks:
            here.looks = True
            frame.modes.callback(setattr, here, "looks", False)
            frame.modes.enter_context(_Operations(self))
        here.frames.append(frame)
        return frame

    def end(self, frame: _RunningCall, error: BaseException | None) -> None:
        """Its call has ended."""
        here = self._here
        done = error is None or isinstance(error, EarlyStop)
        try:
            if done and isinstance(frame.module, nn.MultiheadAttention) and not frame.attends:
                forward, args = type(frame.module).forward, (frame.module, *frame.args)
                again = partial(_second_call, forward, args, frame.kwargs)
                self.take(frame.name, again, self.keep)
            if done and frame.maps:
                self._record(frame)
        finally:
            here.frames.pop()
            frame.modes.close()

    def seen(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> None:
        """One of the functions that the mode looks for was called."""
        frames = [f for f in self._here.frames if not isinstance(f.module, nn.Softmax)]
        if not frames or self.store.ignores_this_thread():
            return
        name = frames[-1].name
        if func in _SOFTMAX:
            if _is_attention(frames[-1], out, args, kwargs):
                self.take(name, lambda: out.detach(), self.copy)
        elif func is F.scaled_dot_product_attention:
            self.take(name, lambda: probabilities(*args, **kwargs), self.keep)
        else:
            self.take(name, lambda: _second_call(func, args, kwargs), self.keep)

    def take(self, name: str, make: Callable[[], Tensor], keep: Snapshot) -> None:
        """Make and keep a layer's attention, where the layer is wanted."""
        frame = next(f for f in reversed(self._here.frames) if not isinstance(f.module, nn.Softmax))
        frame.attends = True
        self.store.attending.setdefault(name)
        hooked = self.wanted.get(name)
        if hooked is None:
            return
        try:
            found = _four_axes(make())
        except (RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            why = f"its attention could not be computed ({error_text(error)})"
            self.store.unkept[hooked.index, "attention"] = why
            return
        try:
            frame.maps.append((name, keep(found)))
        except Exception as error:  # noqa: BLE001 - sorted there
            not_kept(error, self.store, hooked, "attention", "")

    def taken_inside(self, make: Callable[[], Tensor]) -> None:
        """The same for the layer that a fused operation belongs to."""
        frame = self._here.frames[-1]
        inner = isinstance(frame.module, nn.TransformerEncoderLayer)
        name = f"{frame.name}.self_attn".lstrip(".") if inner else frame.name
        self.take(name, make, self.keep)

    def _record(self, frame: _RunningCall) -> None:
        """Write what was taken in a call."""
        store = self.store
        log = store.enter((frame.args, frame.kwargs), training=frame.module.training)
        if log is None:
            return
        names = [name for name, _ in frame.maps]
        for name in dict.fromkeys(names):
            hooked, found = self.wanted[name], [t for n, t in frame.maps if n == name]
            module = self.tree.modules.get(name, frame.module)
            if frame.numbered is not None and name == frame.name:
                call, order = frame.numbered
            else:
                call = log.counts[hooked.index] = log.counts[hooked.index] + 1
                order = next(log.counter)
            windows = self._windows(found[0])
            if windows is not None:
                store.windows[hooked.index, log.run.number, call] = windows
            for position, tensor in enumerate(found):
                leaf = str(position) if len(found) > 1 else ""
                kind = type(module).__name__
                record: RawRecord = hooked.index, kind, call, order, "attention", leaf, tensor
                log.records.append(record)
                if self.on_activation is not None:
                    self.on_activation(store.activation(log.run, record))

    def _windows(self, tensor: Tensor) -> Windows | None:
        """The windows that the attention's first axis counts."""
        for frame in reversed(self._here.frames):
            windows = windows_of(frame.module, frame.args, frame.kwargs)
            if windows is not None:
                count, tokens = windows.count, len(windows.rows[0]) * len(windows.columns[0])
                fits = tensor.shape[0] % count == 0 and tuple(tensor.shape[2:]) == (tokens, tokens)
                return windows if fits else None
        return None

    def _show(self) -> None:
        self._here.mode = _Functions(self)
        _push_mode(self._here.mode)

    def _hide(self) -> None:
        """Take the mode off, from below modes that the model left on."""
        mode, self._here.mode = self._here.mode, None
        above = []
        while (top := _pop_mode()) is not mode:
            above.append(top)
        for other in reversed(above):
            _push_mode(other)


class _Functions(TorchFunctionMode):
    """Sees the functions that compute attention."""

    def __init__(self, watch: AttentionWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func in _SEEN:
            self._watch.seen(func, args, kwargs, out)
        return out


class _Operations(TorchDispatchMode):
    """Sees the fused operations behind PyTorch's own attention modules."""

    def __init__(self, watch: AttentionWatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as torch has it
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _native:
            given = _complete(func, args, kwargs)
            if given["query"].is_cpu and not given["need_weights"] and _is_wide(given["query"]):
                # The same computation; on the CPU it only hands out what it has at hand.
                out, found = func(**{**given, **_EACH_HEAD})
                self._watch.taken_inside(lambda: _zeroed(found, _forbidden(given)))
                return out, None
            self._watch.taken_inside(lambda: _fused(given))
        elif func is _encoder_layer:
            given = _complete(func, args, kwargs)
            self._watch.taken_inside(lambda: _in_encoder_layer(given))
        return func(*args, **(kwargs or {}))


def _complete(func: Any, args: tuple[Any, ...], kwargs: Any) -> dict[str, Any]:
    """The arguments of an operation by name, those left out at their default."""
    names = func._schema.arguments  # noqa: SLF001 - there is no public way to them
    given = {a.name: a.default_value for a in names if a.has_default_value()}
    return given | dict(zip((a.name for a in names), args, strict=False)) | (kwargs or {})


def _is_wide(tensor: Tensor) -> bool:
    """Whether a softmax in its dtype has rows that sum to 1."""
    return tensor.dtype in (torch.float32, torch.float64)


def _fused(given: dict[str, Any]) -> Tensor:
    """The attention of the operation behind ``nn.MultiheadAttention``, computed beside it."""
    forbidden, x = _forbidden(given), given["query"]
    if _is_wide(x):
        return _zeroed(_native(**{**given, **_EACH_HEAD})[1], forbidden)
    both = 2 * given["embed_dim"]
    projected = F.linear(x, given["qkv_weight"][:both], given["qkv_bias"][:both])
    parts = projected.reshape(*x.shape[:2], 2, given["num_head"], -1).permute(2, 0, 3, 1, 4)
    allowed = None if forbidden is None else ~forbidden
    return probabilities(parts[0], parts[1], parts[1], allowed)


def _forbidden(given: dict[str, Any]) -> Tensor | None:
    """The operation's mask as one that goes with (N, heads, queries, keys)."""
    if given["mask"] is None:
        return None
    mask: Tensor = given["mask"].bool()  # -inf where it was forbidden
    return mask[:, None, None] if given["mask_type"] == 1 else mask


def _zeroed(found: Tensor, forbidden: Tensor | None) -> Tensor:
    """Zero for queries all of whose keys are masked, where softmax gives NaN."""
    if forbidden is None:
        return found
    return found.masked_fill(forbidden.expand(found.shape).all(-1, keepdim=True), 0.0)


def _in_encoder_layer(given: dict[str, Any]) -> Tensor:
    """The attention within the fused operation of ``nn.TransformerEncoderLayer``."""
    x: Tensor = given["src"]
    if given["norm_first"]:
        norm = given["norm_weight_1"], given["norm_bias_1"]
        x = F.layer_norm(x, x.shape[-1:], *norm, given["eps"])
    names = ("qkv_weight", "qkv_bias", "proj_weight", "proj_bias", "mask", "mask_type")
    heads = {"embed_dim": given["embed_dim"], "num_head": given["num_heads"]}
    return _fused({"query": x, "key": x, "value": x, **heads, **{n: given[n] for n in names}})


class _AtSoftmax(Exception):  # noqa: N818 - control flow: it ends a call that has shown enough
    """Carries the weights out."""


class _EndsAtSoftmax(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as torch has it
    """Ends a call of ``nn.MultiheadAttention`` at its softmax, whose input it computes in float."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._softmax.default, torch.ops.aten.softmax.int):  # noqa: SLF001 - names of operations
            raise _AtSoftmax(args[0].softmax(-1))
        if func in (torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default):
            with torch.autocast(args[0].device.type, enabled=False):
                return func(*(t if _is_wide(t) else t.float() for t in args), **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _called_again(call: Callable[[], Any], heads: int) -> Tensor:
    """(N, heads, queries, keys) of a call that asks for the weights of each head."""
    # Gradients stay on where they are on, since the fast path depends on them; but nothing is
    # saved for backward, which checkpointing would count.
    nothing = torch.empty(0)
    with torch.autograd.graph.saved_tensors_hooks(lambda _: nothing, lambda kept: kept):
        try:
            with _EndsAtSoftmax():  # type: ignore[no-untyped-call]  # as torch has it
                found: Tensor = call()[1].detach()
        except _AtSoftmax as early:
            weights: Tensor = early.args[0]
            return weights.reshape(-1, heads, *weights.shape[1:])
    return found


def _second_call(function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Tensor:
    """The weights of each head before dropout, by the same call once more.

    Args:
        function: ``F.multi_head_attention_forward``, or the ``forward`` of a class of
            ``nn.MultiheadAttention``, whose first argument is the module.
        args: Its arguments.
        kwargs: Its keyword arguments.
    """
    given = inspect.signature(function).bind(*args, **kwargs)
    given.apply_defaults()
    own = given.arguments
    own |= _EACH_HEAD
    first = given.args[0]
    fact: Callable[[str], Any] = (
        partial(getattr, first) if isinstance(first, nn.Module) else own.get
    )
    found = _called_again(lambda: function(*given.args, **given.kwargs), fact("num_heads"))
    heads, queries, keys = found.shape[-3:]
    padding, mask = own.get("key_padding_mask"), own.get("attn_mask")
    # Masks of the module, whose True means forbidden; extra keys are never masked.
    extra = fact("bias_k") is not None or fact("add_zero_attn")
    if extra or (padding is None and mask is None):
        return found
    forbidden = torch.zeros(found.shape, dtype=torch.bool, device=found.device)
    if padding is not None:
        forbidden |= _forbids(padding).reshape(-1, 1, 1, keys)
    if mask is not None:
        mask = _forbids(mask)
        forbidden |= mask if mask.dim() == 2 else mask.reshape(-1, heads, queries, keys)
    return _zeroed(found, forbidden)


def _forbids(mask: Tensor) -> Tensor:
    return mask if mask.dtype is torch.bool else mask == -torch.inf


@torch.no_grad()
def probabilities(
    query: Tensor,
    key: Tensor,
    value: Tensor,  # noqa: ARG001 - the function's own signature
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,  # noqa: ARG001 - the same
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What ``F.scaled_dot_product_attention`` weighs values with, in float32 or wider.

    The arguments are those of the function (a mask's True means *allowed*); before dropout. A
    query all of whose keys are masked has zeros.

    Returns:
        (..., queries, keys).
    """
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        # The kernel is given these.
        query, key = (t.to(torch.get_autocast_dtype(kind)) for t in (query, key))
    if query.dtype is not torch.float64:
        query, key = query.float(), key.float()
    with torch.autocast(kind, enabled=False):
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.mT
        if is_causal:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~allowed, -torch.inf)
        if attn_mask is None:
            return scores.softmax(-1)
        if attn_mask.dtype is torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        else:
            scores = scores + attn_mask
        masked = (scores == -torch.inf).all(-1, keepdim=True)
        return scores.softmax(-1).masked_fill(masked, 0.0)


def _is_attention(frame: _RunningCall, out: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a softmax gives attention: over the last of three or more axes, in such a module."""
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    called = f"{frame.name.rpartition('.')[2]} {type(frame.module).__name__}".lower()
    named = "attention" in called or "attn" in called
    return named and isinstance(out, Tensor) and out.dim() >= 3 and dim in (-1, out.dim() - 1)


def _four_axes(found: Tensor) -> Tensor:
    """(N, heads, queries, keys) in float32, or wider."""
    if found.dtype is not torch.float64:
        found = found.float()
    if found.dim() == 2:
        return found[None, None]
    return found[:, None] if found.dim() == 3 else found.flatten(0, -4)
