"""Arguments checked before anything is done with them, in one sentence each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookviz.errors import CaptureError


def check_number(name: str, value: object, legal: str, holds: Callable[[Any], bool]) -> None:
    """Refuse what is not a number, or not one of the legal ones.

    Raises:
        CaptureError: It is not.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not holds(value):
        raise CaptureError(f"{name} must be {legal}, not {value!r}.")


def check_count(name: str, value: object, least: int) -> None:
    """Refuse what is not a whole number from ``least``.

    Raises:
        CaptureError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise CaptureError(f"{name} must be a whole number from {least}, not {value!r}.")


def check_function(name: str, value: object) -> None:
    """Refuse what is neither None nor can be called.

    Raises:
        CaptureError: It is not.
    """
    if value is not None and not callable(value):
        raise CaptureError(f"{name} must be a function or None, not {value!r:.80}.")


def check_choice(name: str, value: object, *legal: object) -> None:
    """Refuse what is not one of the legal values.

    Raises:
        CaptureError: It is not.
    """
    if not any(value is one or (isinstance(value, str) and value == one) for one in legal):
        *most, last = (repr(one) for one in legal)
        raise CaptureError(f"{name} must be {', '.join(most)} or {last}, not {value!r}.")
