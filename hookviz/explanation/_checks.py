"""Arguments that several ways of explaining take."""

from __future__ import annotations

from hookviz.errors import HookvizError


def check_whole(name: str, value: object, least: int) -> None:
    """Refuses what is no whole number, or too small a one.

    Raises:
        HookvizError: Names the argument, what was given and what is legal.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise HookvizError(f"{name} is {value!r:.80}; it must be a whole number from {least}.")


def check_call(call: object) -> None:
    """Refuses what names no call of a layer.

    Raises:
        HookvizError: It is neither a number nor "last".
    """
    if call != "last" and (isinstance(call, bool) or not isinstance(call, int)):
        raise HookvizError(f'call is {call!r:.80}; it must be a number from 1, or "last".')
