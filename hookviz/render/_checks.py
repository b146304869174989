"""Whether a value that the user gave is legal, and what it means.

In: one value and its name. Out: the value in its proper type, or a RenderError that says what is
legal. Must not know: which options there are.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hookviz.errors import RenderError, did_you_mean

__all__ = ["first_line", "in_a_sentence", "number", "one_of", "pair", "parse_channels", "whole"]

_MAX_CHANNEL = 10_000_000


def parse_channels(channels: str | Sequence[int]) -> tuple[int, ...]:
    """The indices that a text like "0-15,42" names, each once, in the order written.

    Args:
        channels: Indices and inclusive ranges joined by commas, or a sequence of indices.

    Raises:
        RenderError: The text is not such a list.

    Examples:
        >>> parse_channels("0-3, 42,2")
        (0, 1, 2, 3, 42)
        >>> parse_channels("9-7")
        (9, 8, 7)
    """
    if not isinstance(channels, str):
        return tuple(dict.fromkeys(whole("channels", c, high=_MAX_CHANNEL) for c in channels))
    found: list[int] = []
    for part in channels.replace("–", "-").replace(";", ",").split(","):
        ends = [end.strip() for end in part.split("-")]
        if len(ends) > 2 or not all(end.isdecimal() for end in ends):
            raise RenderError(
                f"channels is {channels!r}, where {part.strip()!r} is neither an index nor a "
                "range; write for example '0-15,42'.",
                code="not-channels",
                details={"text": part.strip()},
            )
        first, last = int(ends[0]), int(ends[-1])
        if max(first, last) > _MAX_CHANNEL:
            raise RenderError(
                f"channels is {channels!r}; {max(first, last)} is too large.",
                code="not-channels",
                details={"text": part.strip()},
            )
        step = 1 if first <= last else -1
        found.extend(range(first, last + step, step))
    return tuple(dict.fromkeys(found))


def whole(name: str, value: Any, low: int = 0, high: int | None = None) -> int:
    """The value as an int from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise RenderError(f"{name} is {value!r}; it must be a whole number.")
    if int(value) < low or (high is not None and int(value) > high):
        end = f"at least {low}" if high is None else f"from {low} to {high}"
        raise RenderError(f"{name} is {value}; it must be {end}.")
    return int(value)


def number(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """The value as a finite float from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise RenderError(f"{name} is {value!r}; it must be a number.")
    if not math.isfinite(value) or not low <= float(value) <= high:
        legal = "finite" if math.isinf(low) else f"from {low:g} to {high:g}"
        raise RenderError(f"{name} is {value}; it must be {legal}.")
    return float(value)


def pair(name: str, value: Any) -> tuple[Any, Any]:
    """The two parts of the value."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise RenderError(f"{name} is {value!r}; it must be two numbers.")
    return value[0], value[1]


def one_of(name: str, value: Any, legal: tuple[str, ...]) -> None:
    """Raise RenderError where the value is none of ``legal``."""
    if value not in legal:
        raise RenderError(
            f"{name} is {value!r}; legal are {', '.join(map(repr, legal))}.",
            remedy=did_you_mean(str(value), legal) or None,
        )


def first_line(error: BaseException) -> str:
    """The first line of what another library says, or the error's name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def in_a_sentence(what: str) -> Iterator[None]:
    """Raise RenderError where torch, numpy or matplotlib fails: none of their errors passes."""
    try:
        yield
    except MemoryError as error:
        raise RenderError(f"There is not enough memory to draw {what}.") from error
    except (RuntimeError, TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise RenderError(f"Drawing {what} failed: {first_line(error)}") from error
