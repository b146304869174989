"""What a page asks, checked in whole before anything is taken over.

In: a message's content and the method that answers it. Out: typed arguments, or one sentence.
Must not know: widgets.

Nothing that a page sends is believed. A handler's annotations say what a message of its kind must
hold; it is called only where every field is there and right, so it never begins with a bad value.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from hookviz.errors import HookvizError

__all__ = ["arguments_of"]

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
        elif field.name in content and field.annotation in _WORDS:
            found[field.name] = _checked(field.name, field.annotation, content[field.name])
        elif field.default is field.empty and field.kind is not field.VAR_KEYWORD:
            raise HookvizError(f"The page sent a message without {field.name}.")
    return found


_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list[str]: "a list of texts",
    dict[str, Any]: "names and values",
}


def _checked(name: str, kind: Any, value: Any) -> Any:
    if kind in (bool, str):
        right = _is_text(value) if kind is str else isinstance(value, bool)
    elif kind in (int, float):
        right = _is_number(value) and (kind is float or float(value).is_integer())
    elif kind == list[str]:
        right = isinstance(value, list) and all(map(_is_text, value))
    else:
        right = isinstance(value, dict) and all(
            _is_text(key) and _is_plain(inner) for key, inner in value.items()
        )
    if not right:
        raise HookvizError(f"The page sent {name}={ascii(value)[:80]}; it must be {_WORDS[kind]}.")
    return int(value) if kind is int else value


def _is_number(value: Any) -> bool:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and abs(value) <= _LARGEST and math.isfinite(value)


def _is_text(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair: it could not be sent back
        return False
    return True


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool) or _is_number(value) or _is_text(value)
