"""Where a forward of the captured model begins and ends, whoever calls it.

In: a module and who wants to know. Out: begin and end, on every way out. Must not know: records,
tensors.

A forward hook is told neither of KeyboardInterrupt nor of the exception that ended a forward, and
cannot end one. So while somebody watches a module, its calls pass through a guard in the slot
``_compiled_call_impl``, which ``nn.Module.compile`` uses for the same purpose: torch calls what
lies there instead of ``_call_impl`` and leaves it out of copies and pickles. The guard also takes
calls around ``torch.compile``, whose code ignores hooks that were added after it was made.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import nn

from hookviz.capture._module_hooks import StaysHere, is_tracing
from hookviz.capture._tree import is_compiled_wrapper, resolve

__all__ = ["EarlyStop", "Watcher", "bypass_compiled", "watch_calls"]

_SLOT = "_compiled_call_impl"
_ENTRY = nn.Module._wrapped_call_impl.__code__  # noqa: SLF001 - see _called()
_lock = threading.Lock()


class EarlyStop(Exception):  # noqa: N818 - it is control flow, not an error
    """Ends a forward whose layers have all been captured; never leaves the model's call.

    An ``Exception``, so that torch runs the hooks that others registered with ``always_call``.
    """

    def __init__(self, run: object) -> None:
        super().__init__("the forward was ended after the last ticked layer")
        self.run = run


class Watcher(Protocol):
    """Who wants to know of a module's calls."""

    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> object | None:
        """Called before; what it returns comes back in ``end``, None stands for "not mine"."""

    def end(self, token: Any, error: BaseException | None) -> Exception | None:
        """Called after, with what ended the call, if any; may give an error in its place."""


class _Guard:
    def __init__(self, module: nn.Module) -> None:
        # The module holds the guard, so the guard must not hold the module: no cycles.
        self.module = weakref.ref(module)
        self.watchers: tuple[tuple[Watcher, bool], ...] = ()
        self.holders = 0
        self.was_empty = _SLOT not in module.__dict__
        self.before = module.__dict__.get(_SLOT)

    def guarded(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module's code, telling the watchers."""
        module = self._called(sys._getframe(1))  # noqa: SLF001 - see _called()
        if module is not self.module() and not module.__dict__.get("_is_replica"):
            # Somebody copied the module's attributes one by one, the slot included.
            module.__dict__.pop(_SLOT, None)
            return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]  # noqa: SLF001 - as below
        original = resolve(module)
        call: Callable[..., Any] = original
        if original is module:
            call = module._call_impl  # noqa: SLF001 - what torch calls where the slot is empty
        begun: list[tuple[Watcher, object | None]] = []
        error: BaseException | None = None
        said: Exception | None = None
        try:
            tracing = is_tracing()
            for watcher, set_while_tracing in self.watchers:
                if tracing is set_while_tracing:
                    begun.append((watcher, watcher.begin(module, args, kwargs)))
            return call(*args, **kwargs)
        except EarlyStop as stop:
            error = stop
            if any(token is stop.run for _, token in begun):
                return None
            raise
        except BaseException as raised:
            error = raised
            raise
        finally:
            for watcher, token in reversed(begun):
                if token is not None:
                    said = watcher.end(token, error) or said
            try:
                if said is not None:
                    raise said from error
            finally:
                # An exception holds this frame; keeping it here would close a circle.
                del error, said

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


class _Slot(StaysHere):
    """What lies in the module's slot; a copy of the slot is empty."""

    def __init__(self, guard: _Guard) -> None:
        self.guard = guard
        self._call = guard.guarded
        if "torch._dynamo" in sys.modules:
            # Code that torch.compile makes meanwhile leaves the guard, and all under it, alone.
            self._call = torch.compiler.disable(guard.guarded)  # type: ignore[no-untyped-call]  # as torch has it

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_tracing() and not any(inside for _, inside in self.guard.watchers):
            # What is traced is what the module does without us.
            module: Any = self.guard.module()
            return module._call_impl(*args, **kwargs)  # noqa: SLF001 - as in guarded()
        return self._call(*args, **kwargs)


def _guard_in(module: nn.Module) -> _Guard | None:
    slot = module.__dict__.get(_SLOT)
    return slot.guard if isinstance(slot, _Slot) and slot.guard.module() is module else None


def watch_calls(module: nn.Module, watcher: Watcher | None) -> Callable[[], None]:
    """Let a watcher know of a module's calls.

    Args:
        module: The module; its calls pass around ``torch.compile`` while it is watched.
        watcher: Who is told; None to pass around ``torch.compile`` alone.

    Returns:
        A function that undoes it, once; in any order with others. It holds no module.
    """
    with _lock:
        guard = _guard_in(module)
        if guard is None:
            guard = _Guard(module)
            module.__dict__[_SLOT] = _Slot(guard)
        guard.holders += 1
        if watcher is not None:
            guard.watchers = (*guard.watchers, (watcher, is_tracing()))
    done = False

    def undo() -> None:
        nonlocal done
        with _lock:
            if done:
                return
            done = True
            guard.holders -= 1
            guard.watchers = tuple(w for w in guard.watchers if w[0] is not watcher)
            held = guard.module()
            if guard.holders or held is None or _guard_in(held) is not guard:
                return
            if guard.was_empty:
                del held.__dict__[_SLOT]
            else:
                held.__dict__[_SLOT] = guard.before

    return undo


def bypass_compiled(modules: nn.Module | Iterable[nn.Module]) -> list[Callable[[], None]]:
    """Make calls of the compiled ones among some modules run the original code.

    Args:
        modules: Wrappers made by ``torch.compile``, modules compiled in place, and any others; a
            module stands for itself and all below.

    Returns:
        Functions that undo it.
    """
    undo: list[Callable[[], None]] = []
    try:
        for module in modules.modules() if isinstance(modules, nn.Module) else modules:
            there = module.__dict__.get(_SLOT)
            in_place = there is not None and not isinstance(there, _Slot)
            if is_compiled_wrapper(module) or in_place:
                undo.append(watch_calls(module, None))
    except BaseException:
        for step in undo:
            step()
        raise
    return undo
