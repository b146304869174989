"""How numbers and long names are written on a figure."""

from __future__ import annotations

import math
from collections.abc import Callable


def value(number: float, digits: int = 3) -> str:
    """A number as it is written on a figure, with a true minus sign.

    Examples:
        >>> value(-344.06), value(0.00012345), value(12.0), value(1.5e9)
        ('−344', '0.000123', '12', '1.5e9')
        >>> value(65504.0), value(float("nan")), value(float("-inf"))
        ('65504', 'NaN', '−Inf')
    """
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "−Inf"
    if float(number).is_integer() and abs(number) < 1e6:
        text = str(int(number))
    elif 10**digits <= abs(number) < 1e6:
        text = str(round(number))
    else:
        text = f"{number:.{digits}g}"
    if "e" in text:
        mantissa, exponent = text.split("e")
        text = f"{mantissa}e{int(exponent)}"
    return text.replace("-", "−")


def share(part: int, whole: int) -> str:
    """A share as a percentage that never rounds something to nothing.

    Examples:
        >>> share(1, 1000000), share(0, 7), share(3, 200)
        ('< 0.01 %', '0 %', '1.5 %')
    """
    if whole == 0 or part == 0:
        return "0 %"
    percent = 100.0 * part / whole
    return "< 0.01 %" if percent < 0.01 else f"{percent:.2g} %" if percent < 99.5 else "100 %"


def counted(number: int, noun: str) -> str:
    """A count with its noun in the right number.

    Examples:
        >>> counted(1, "map"), counted(1000, "class")
        ('1 map', '1000 classes')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def middle_ellipsis(text: str, room: float, width: Callable[[str], float]) -> str:
    """The text, or its beginning and end where it is too wide.

    Args:
        text: For example a layer's long dotted name.
        room: Width that it may take.
        width: Measures a text.

    Examples:
        >>> middle_ellipsis("backbone.body.layer4.2.conv3", 15, len)
        'backbon…2.conv3'
    """
    if width(text) <= room:
        return text
    low, high = 0, len(text)
    while low < high:  # the most characters that still fit
        middle = (low + high + 1) // 2
        if width(_cut(text, middle)) <= room:
            low = middle
        else:
            high = middle - 1
    return _cut(text, low)


def _cut(text: str, keep: int) -> str:
    if keep >= len(text):
        return text
    head = keep // 2
    return text[:head] + "…" + text[len(text) - (keep - head) :]
