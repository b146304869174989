"""Hooks that belong to the module they were set on.

The rule: a hook of hookviz acts for its own module, and for the replicas that ``DataParallel``
makes of it for one forward; never for a copy, nor in a program that ``torch.export``,
``torch.jit.trace`` or ``torch.fx`` makes of it. What copies or saves the module leaves the hook
out, and nothing done with a copy takes it off the original.

torch keeps hooks in ordinary dicts that ``copy.deepcopy`` and ``pickle`` take along. So a dict
that holds one of ours carries, for as long as it does, its own ``__deepcopy__`` and
``__reduce_ex__``, which leave ours out. (Both protocols look these names up on the instance, and
an ``OrderedDict`` takes attributes.) ``copy.copy`` shares the dict itself, as it shares the
user's hooks: there the hook sees that it is called for another module.
"""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "Owner",
    "StaysHere",
    "is_tracing",
    "set_forward_hook",
    "set_pre_hook",
    "set_tensor_hook",
]

_fx_is_tracing: Callable[[], bool] = getattr(
    torch.fx._symbolic_trace,  # noqa: SLF001 - torch has no public sign of it
    "is_fx_symbolic_tracing",
    torch.fx._symbolic_trace.is_fx_tracing,  # noqa: SLF001 - its name in earlier releases
)


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


class Owner:
    """The module that a hook belongs to.

    Args:
        module: The module, which is held weakly, since it holds the hook.
        traced: ``is_tracing()`` if it is known already.

    Attributes:
        module: The weak reference.
    """

    __slots__ = ("_traced", "module")

    def __init__(self, module: nn.Module, *, traced: bool | None = None) -> None:
        self.module = weakref.ref(module)
        # What is traced may set hooks for its own forward, as FeatureExtractor does: these act.
        self._traced = is_tracing() if traced is None else traced

    def meets(self, module: nn.Module) -> bool:
        """Whether the hook acts for the module that torch calls it with."""
        return (
            module is self.module() or bool(module.__dict__.get("_is_replica"))
        ) and self._traced is is_tracing()


def set_forward_hook(
    module: nn.Module, act: Callable[[nn.Module, Any, Any], Any], owner: Owner | None = None
) -> Callable[[], None]:
    """Set a forward hook that belongs to its module.

    Args:
        module: The module.
        act: (module, args, output) → None or another output.
        owner: ``act`` asks this owner itself, where a second call would cost too much.

    Returns:
        A function that takes the hook off; again is harmless.
    """
    if owner is None:
        meets = Owner(module).meets

        def hook(called: nn.Module, args: Any, output: Any) -> Any:
            return act(called, args, output) if meets(called) else None

    handle = module.register_forward_hook(_Hook(act if owner else hook))
    return _leave_out(handle, module._forward_hooks)  # noqa: SLF001 - see the module docstring


def set_pre_hook(
    module: nn.Module, act: Callable[[nn.Module, Any, Any], Any]
) -> Callable[[], None]:
    """Set a forward pre-hook that belongs to its module.

    Args:
        module: The module.
        act: (module, args, kwargs) → None or other (args, kwargs). ``kwargs`` is None where torch
            did not say: it notes that a hook takes keyword arguments a moment after it has set the
            hook, and forgets it a moment before; a forward in another thread may come in between.

    Returns:
        A function that takes the hook off; again is harmless.
    """
    meets = Owner(module).meets

    def hook(called: nn.Module, args: Any, kwargs: Any = None) -> Any:
        return act(called, args, kwargs) if meets(called) else None

    handle = module.register_forward_pre_hook(_Hook(hook), with_kwargs=True)
    return _leave_out(handle, module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs)  # noqa: SLF001 - see the module docstring


def set_tensor_hook(tensor: Tensor, act: Callable[[Tensor], Any]) -> Any:
    """Set a tensor hook of which torch does not warn when the tensor is saved (without it).

    Returns:
        torch's handle.
    """
    return tensor.register_hook(_Hook(act))  # type: ignore[no-untyped-call]  # torch leaves it untyped


class _Filtered:
    """Makes a dict of hooks copy and pickle without those of hookviz."""

    __slots__ = ("_hooks", "_noted")

    def __init__(self, hooks: weakref.ref[Any], noted: weakref.ref[Any]) -> None:
        # Weak: the dict holds this object by its attributes.
        self._hooks = hooks
        self._noted = noted

    def others(self) -> OrderedDict[int, Any]:
        """The entries that are not hookviz's: of the hooks, or of what torch notes of them."""
        hooks, noted = self._hooks() or {}, self._noted() or {}
        return OrderedDict((k, v) for k, v in noted.items() if not isinstance(hooks.get(k), _Hook))

    def deepcopy(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.others(), memo)

    def reduce_ex(self, protocol: Any) -> Any:
        return self.others().__reduce_ex__(protocol)


def _leave_out(handle: Any, hooks: Any, noted: Any = None) -> Callable[[], None]:
    """Keep a hook that was just set out of copies of its dict, and of torch's notes beside it."""
    _filter(hooks, hooks)
    if noted is not None:
        _filter(hooks, noted)

    def remove() -> None:
        handle.remove()
        hooks = handle.hooks_dict_ref()
        if hooks is None or (hooks and any(isinstance(h, _Hook) for h in list(hooks.values()))):
            return
        _unfilter(hooks)
        for ref in handle.extra_dict_ref:
            _unfilter(ref())

    return remove


def _filter(hooks: Any, noted: Any) -> None:
    attributes = getattr(noted, "__dict__", None)
    # None: an ordinary dict that somebody put there, which takes no attributes.
    if attributes is not None and not attributes:
        filtered = _Filtered(weakref.ref(hooks), weakref.ref(noted))
        attributes["__deepcopy__"] = filtered.deepcopy
        attributes["__reduce_ex__"] = filtered.reduce_ex


def _unfilter(noted: Any) -> None:
    attributes = getattr(noted, "__dict__", None)
    if attributes:
        attributes.clear()
