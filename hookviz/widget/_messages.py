"""What a page asks, checked in whole before anything is taken over.

Nothing that a page sends is believed. A handler's annotations say what a message of its kind must
hold; it is called only where every field is there and right, so it never begins with a bad value.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from hookviz.errors import HookvizError

_LONGEST_TEXT = 100_000
_LARGEST = 2**53  # beyond it JavaScript's numbers are not exact


def arguments_of(
    handler: Callable[..., Any], content: Mapping[str, Any], buffers: Any
) -> dict[str, Any]:
    """The arguments that a handler gets for a message.

    Args:
        handler: A function. Its parameters are fields of the message by name, of type bool, int,
            float, str, list[str] or dict[str, Any]; one without a default must be there. A
            parameter ``buffers`` gets the message's buffers.
        content: The message.
        buffers: Its buffers.

    Returns:
        Arguments by name.

    Raises:
        HookvizError: A field is missing or not of its type.

    Examples:
        >>> def turn(key: str, page: int = 0): ...
        >>> arguments_of(turn, {"key": "conv#1", "page": 2, "evil": 1}, [])
        {'key': 'conv#1', 'page': 2}
        >>> arguments_of(turn, {"key": 5}, [])
        Traceback (most recent call last):
        hookviz.errors.HookvizError: The page sent key=5; it must be a text.
    """
    found: dict[str, Any] = {}
    for field in inspect.signature(handler, eval_str=True).parameters.values():
        if field.name == "buffers":
            found["buffers"] = [bytes(buffer) for buffer in buffers or []]
        elif field.name in content and field.annotation in _TYPES:
            value = content[field.name]
            is_right, words = _TYPES[field.annotation]
            if not is_right(value):
                raise HookvizError(
                    f"The page sent {field.name}={ascii(value)[:80]}; it must be {words}."
                )
            found[field.name] = int(value) if field.annotation is int else value
        elif field.default is field.empty and field.kind is not field.VAR_KEYWORD:
            raise HookvizError(f"The page sent a message without {field.name}.")
    return found


def _is_number(value: Any) -> bool:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and abs(value) <= _LARGEST and math.isfinite(value)


def _is_text(value: Any) -> bool:
    # Half of a surrogate pair could not be sent back.
    return (
        isinstance(value, str)
        and len(value) <= _LONGEST_TEXT
        and re.search("[\0\ud800-\udfff]", value) is None
    )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool) or _is_number(value) or _is_text(value)


_TYPES: dict[Any, tuple[Callable[[Any], bool], str]] = {
    bool: (lambda v: isinstance(v, bool), "true or false"),
    int: (lambda v: _is_number(v) and float(v).is_integer(), "a whole number"),
    float: (_is_number, "a number"),
    str: (_is_text, "a text"),
    list[str]: (lambda v: isinstance(v, list) and all(map(_is_text, v)), "a list of texts"),
    dict[str, Any]: (
        lambda v: isinstance(v, dict) and all(map(_is_text, v)) and all(map(_is_plain, v.values())),
        "names and values",
    ),
}
