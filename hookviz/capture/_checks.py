"""Arguments checked before anything is done with them, in one sentence each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from hookviz.errors import CaptureError


def check(name: str, value: object, legal: str, *, holds: bool) -> None:
    """Refuse a value that is not what it must be.

    Raises:
        CaptureError: It does not hold.
    """
    if not holds:
        raise CaptureError(f"{name} must be {legal}, not {value!r:.80}.")


def check_number(name: str, value: object, legal: str, holds: Callable[[Any], bool]) -> None:
    """Refuse what is not a number, or not one of the legal ones.

    Raises:
        CaptureError: It is not.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    check(name, value, legal, holds=number and holds(value))


def check_count(name: str, value: object, least: int) -> None:
    """Refuse what is not a whole number from ``least``.

    Raises:
        CaptureError: It is not.
    """
    holds = isinstance(value, int) and not isinstance(value, bool) and value >= least
    check(name, value, f"a whole number from {least}", holds=holds)


def check_function(name: str, value: object) -> None:
    """Refuse what is neither None nor can be called.

    Raises:
        CaptureError: It is not.
    """
    check(name, value, "a function or None", holds=value is None or callable(value))


def check_choice(name: str, value: object, *legal: object) -> None:
    """Refuse what is not one of the legal values.

    Raises:
        CaptureError: It is not.
    """
    *most, last = (repr(one) for one in legal)
    same = any(value is one or (isinstance(value, str) and value == one) for one in legal)
    check(name, value, f"{', '.join(most)} or {last}", holds=same)


def check_returned(what: str, value: object) -> Tensor:
    """The tensor that a function of the user's returned.

    Raises:
        CaptureError: It is none.
    """
    if not isinstance(value, Tensor):
        raise CaptureError(f"{what} must return a tensor, not {type(value).__name__}.")
    return value
