"""Hooks that belong to the module they were set on.

The rule: a hook of hookviz acts for its own module, and for the replicas that ``DataParallel``
makes of it for one forward; never for a copy, nor in a program that ``torch.export``,
``torch.jit.trace`` or ``torch.fx`` makes of it. What copies or saves the module leaves the hook
out, and nothing done with a copy takes it off the original.

torch keeps hooks in ordinary dicts that ``copy.deepcopy`` and ``pickle`` take along. So a dict
that holds one of ours carries, for as long as it does, a ``__reduce_ex__`` of its own, which
leaves ours out. (Both look that name up on the instance, and an ``OrderedDict`` takes
attributes.) ``copy.copy`` shares the dict itself, as it shares the
user's hooks: there the hook sees that it is called for another module.

Where a forward of the captured model begins and ends, no forward hook can tell: none is called on
KeyboardInterrupt or when a forward raises, and none can end one. So while somebody watches a
module, its calls pass through a guard in the slot ``_compiled_call_impl``, which
``nn.Module.compile`` uses for the same purpose: torch calls what lies there instead of
``_call_impl`` and leaves it out of copies and pickles. The guard also takes calls around
``torch.compile``, whose code ignores hooks that were added after it was made.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from hookviz.capture._tree import is_compiled_wrapper, resolve

_fx_is_tracing: Callable[[], bool] = getattr(
    torch.fx._symbolic_trace,  # noqa: SLF001 - torch has no public sign of it
    "is_fx_symbolic_tracing",
    torch.fx._symbolic_trace.is_fx_tracing,  # noqa: SLF001 - its name in earlier releases
)


Act: TypeAlias = Callable[[nn.Module, Any, Any], Any]
"""What a hook does: (module, args, output or keyword arguments) → None or others."""


class _Hook(partial[Any]):
    """A function as torch calls it. A copy, should one be made, does nothing.

    What it becomes is importable without hookviz: a method of the standard library that takes any
    arguments and returns None. A ``partial`` costs half of what a class with ``__call__`` does.
    """

    __torch_unserializable__ = True  # torch warns of any other hook on a tensor that is saved

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return nullcontext().__exit__

    def __reduce__(self) -> Any:
        return getattr, (nullcontext(), "__exit__")


class StaysHere:
    """Something that belongs to one model in one process: a copy of what holds it holds None."""

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> Any:
        return type(None), ()


def is_tracing() -> bool:
    """Whether ``torch.export``, ``torch.jit.trace`` or ``torch.fx`` is making a program."""
    return bool(
        getattr(torch.compiler, "_is_exporting_flag", False)  # its public reader costs thrice this
        or torch._C._is_tracing()  # noqa: SLF001 - the same
        or _fx_is_tracing()
    )


def belongs_to(module: nn.Module, *, traced: bool | None = None) -> Callable[[nn.Module], bool]:
    """Whether a hook that was set on a module acts for the one that torch calls it with.

    Args:
        module: The module, which is held weakly, since it holds the hook.
        traced: ``is_tracing()`` if it is known already.
    """
    own = weakref.ref(module)
    # What is traced may set hooks for its own forward, as FeatureExtractor does: these act.
    inside = is_tracing() if traced is None else traced

    def acts_for(called: nn.Module) -> bool:
        mine = called is own() or called.__dict__.get("_is_replica", False)
        return bool(mine and inside is is_tracing())

    return acts_for


def _for_its_own(module: nn.Module, act: Act) -> Act:
    acts_for = belongs_to(module)

    def hook(called: nn.Module, args: Any, other: Any = None) -> Any:
        return act(called, args, other) if acts_for(called) else None

    return hook


def set_forward_hook(module: nn.Module, act: Act, *, asks: bool = False) -> Callable[[], None]:
    """Set a forward hook that belongs to its module.

    Args:
        module: The module.
        act: (module, args, output) → None or another output.
        asks: ``act`` asks `belongs_to` itself, where a second call would cost too much.

    Returns:
        A function that takes the hook off; again is harmless.
    """
    handle = module.register_forward_hook(_Hook(act if asks else _for_its_own(module, act)))
    return _placed(handle)


def set_pre_hook(module: nn.Module, act: Act) -> Callable[[], None]:
    """Set a forward pre-hook that belongs to its module.

    Args:
        module: The module.
        act: (module, args, kwargs) → None or other (args, kwargs). ``kwargs`` is None where torch
            did not say: it notes that a hook takes keyword arguments a moment after it has set the
            hook, and forgets it a moment before; a forward in another thread may come in between.

    Returns:
        A function that takes the hook off; again is harmless.
    """
    handle = module.register_forward_pre_hook(_Hook(_for_its_own(module, act)), with_kwargs=True)
    return _placed(handle)


def set_tensor_hook(tensor: Tensor, act: Callable[[Tensor], Any]) -> Any:
    """Set a tensor hook of which torch does not warn when the tensor is saved (without it).

    Returns:
        torch's handle.
    """
    return tensor.register_hook(_Hook(act))  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _placed(handle: Any) -> Callable[[], None]:
    """Let the dicts that a hook of ours was put into leave all of ours out of what copies them.

    Args:
        handle: torch's handle; it refers weakly to the dict of hooks and to the notes beside it.

    Returns:
        A function that takes the hook off; again is harmless.
    """
    refs = (handle.hooks_dict_ref, *handle.extra_dict_ref)
    for ref in refs:
        entries = ref()
        if entries and not entries.__dict__:
            entries.__dict__["__reduce_ex__"] = partial(_reduced, ref, refs[0])
    return partial(_take_off, handle, refs)


def _take_off(handle: Any, refs: tuple[Callable[[], Any], ...]) -> None:
    handle.remove()
    if not _ours(refs[0]):
        for entries in [ref() for ref in refs]:
            if entries is not None:
                entries.__dict__.clear()


def _ours(hooks: Callable[[], Any]) -> list[int]:
    return [key for key, hook in list((hooks() or {}).items()) if isinstance(hook, _Hook)]


def _reduced(entries: Callable[[], Any], hooks: Callable[[], Any], protocol: Any) -> Any:
    ours = _ours(hooks)
    others = OrderedDict((k, v) for k, v in (entries() or {}).items() if k not in ours)
    return others.__reduce_ex__(protocol)


_SLOT = "_compiled_call_impl"
_ENTRY = nn.Module._wrapped_call_impl.__code__  # noqa: SLF001 - see _called()
_lock = threading.Lock()


class EarlyStop(Exception):  # noqa: N818 - it is control flow, not an error
    """Ends a forward whose layers have all been captured; never leaves the model's call.

    An ``Exception``, so that torch runs the hooks that others registered with ``always_call``.
    """

    def __init__(self, run: object) -> None:
        super().__init__("the forward was ended after the last selected layer")
        self.run = run


class Watcher(NamedTuple):
    """Who wants to know of a module's calls.

    Attributes:
        begin: Called before; what it returns is given to ``end``, None stands for "not mine".
        end: Called after, with what ended the call, if any; may give an error in its place.
    """

    begin: Callable[[nn.Module, Any, Any], Any]
    end: Callable[[Any, BaseException | None], Exception | None]


class _Guard(StaysHere):
    """What lies in the slot of a module that is watched; a copy of the slot is empty."""

    def __init__(self, module: nn.Module) -> None:
        # The module holds the guard, so the guard must not hold the module: no cycles.
        self.module = weakref.ref(module)
        # Who watches (None: passes around compiled code alone), and whether it was set in a trace.
        self.entries: list[tuple[Watcher | None, bool]] = []
        self.before = {key: value for key, value in module.__dict__.items() if key == _SLOT}
        self._guarded: Callable[..., Any] = _Guard._call
        if "torch._dynamo" in sys.modules:
            # Code that torch.compile makes meanwhile leaves the guard, and all under it, alone.
            self._guarded = torch.compiler.disable(_Guard._call)  # type: ignore[no-untyped-call]  # as torch has it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_tracing() and not any(inside for watcher, inside in self.entries if watcher):
            # What is traced is what the module does without us.
            module: Any = self.module()
            return module._call_impl(*args, **kwargs)  # noqa: SLF001 - as in _call()
        return self._guarded(self, *args, **kwargs)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module's code, and let the watchers know."""
        module = self._called(sys._getframe(1))  # noqa: SLF001 - see _called()
        if module is not self.module() and not module.__dict__.get("_is_replica"):
            # Somebody copied the module's attributes one by one, the slot included.
            module.__dict__.pop(_SLOT, None)
            return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]  # noqa: SLF001 - as below
        original = resolve(module)
        call: Callable[..., Any] = original
        if original is module:
            call = module._call_impl  # noqa: SLF001 - what torch calls where the slot is empty
        begun: list[tuple[Watcher, object]] = []
        error: BaseException | None = None
        instead: Exception | None = None
        try:
            tracing = is_tracing()
            for watcher, inside in tuple(self.entries):
                if watcher is not None and inside is tracing:
                    token = watcher.begin(module, args, kwargs)
                    if token is not None:
                        begun.append((watcher, token))
            return call(*args, **kwargs)
        except BaseException as raised:
            error = raised
            if isinstance(raised, EarlyStop) and any(token is raised.run for _, token in begun):
                return None
            raise
        finally:
            for watcher, token in reversed(begun):
                instead = watcher.end(token, error) or instead
            try:
                if instead is not None:
                    raise instead from error
            finally:
                # An exception holds this frame; keeping it here would close a circle.
                del error, instead

    def _called(self, frame: Any) -> nn.Module:
        """The module that is being called: this one, or a replica or copy that took its slot."""
        # torch's wrapper may lie between, hence the few steps.
        for _ in range(6):
            if frame is not None and frame.f_code is _ENTRY:
                found: nn.Module = frame.f_locals["self"]
                return found
            frame = frame and frame.f_back
        module = self.module()
        if module is None:
            raise ReferenceError("the captured module is gone")
        return module


def _guard_in(module: nn.Module) -> _Guard | None:
    there = module.__dict__.get(_SLOT)
    return there if isinstance(there, _Guard) and there.module() is module else None


def watch_calls(module: nn.Module, watcher: Watcher | None) -> Callable[[], None]:
    """Let a watcher know of a module's calls.

    Args:
        module: The module; its calls pass around ``torch.compile`` while it is watched.
        watcher: Whom to call; None to pass around ``torch.compile`` alone.

    Returns:
        A function that undoes it, once; in any order with others. It holds no module.
    """
    entry = watcher, is_tracing()
    with _lock:
        guard = _guard_in(module)
        if guard is None:
            guard = module.__dict__[_SLOT] = _Guard(module)
        guard.entries.append(entry)

    def undo() -> None:
        with _lock:
            guard.entries = [one for one in guard.entries if one is not entry]
            held = guard.module()
            if not guard.entries and held is not None and _guard_in(held) is guard:
                del held.__dict__[_SLOT]
                held.__dict__.update(guard.before)

    return undo


def bypass_compiled(
    modules: nn.Module | Iterable[nn.Module], undo: Callable[[Callable[[], None]], object]
) -> None:
    """Make calls of the compiled ones among some modules run the original code.

    Args:
        modules: Wrappers made by ``torch.compile``, modules compiled in place, and any others; a
            module stands for itself and all below.
        undo: Is given, for each of them, a function that undoes it: the ``callback`` of an
            ``ExitStack``.
    """
    for module in modules.modules() if isinstance(modules, nn.Module) else modules:
        there = module.__dict__.get(_SLOT)
        in_place = there is not None and not isinstance(there, _Guard)
        if is_compiled_wrapper(module) or in_place:
            undo(watch_calls(module, None))
