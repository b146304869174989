"""Numbers, shapes, lists of names and other errors as they stand in sentences.

Stands on nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def bytes_text(count: float, *, binary: bool = False) -> str:
    """A number of bytes.

    Args:
        count: How many.
        binary: KiB, MiB and GiB (memory) instead of kB, MB and GB (files).

    Examples:
        >>> bytes_text(900), bytes_text(1_250_000), bytes_text(50_000_000)
        ('900 bytes', '1.2 MB', '50 MB')
        >>> bytes_text(3 * 1024**2, binary=True)
        '3.0 MiB'
    """
    step = 1024 if binary else 1000
    if count < (step if binary else 10_000):
        return f"{count:,.0f} bytes"
    units = ("KiB", "MiB", "GiB") if binary else ("kB", "MB", "GB")
    value = float(count)
    for unit in units:
        value /= step
        if value < step or unit == units[-1]:
            break
    return f"{value:,.1f} {unit}" if binary or value < 10 else f"{value:,.0f} {unit}"


def shape_text(shape: Sequence[int], empty: str = "scalar") -> str:
    """A shape.

    Args:
        shape: Sizes of the axes.
        empty: What a shape without axes is called.

    Examples:
        >>> shape_text((1, 64, 56, 56)), shape_text(())
        ('1×64×56×56', 'scalar')
    """
    return "×".join(map(str, shape)) or empty


def names_text(names: Iterable[object], count: int = 6) -> str:
    """The first few names, quoted, and how many more there are.

    Args:
        names: In the order in which they are shown.
        count: At most this many are shown.

    Examples:
        >>> names_text(["conv1", "bn1", "relu"], 2)
        "'conv1', 'bn1' and 1 more"
    """
    known = [f"'{name}'" for name in names]
    more = f" and {len(known) - count} more" if len(known) > count else ""
    return ", ".join(known[:count]) + more


def columns(rows: list[tuple[str, ...]]) -> str:
    """Rows of text as aligned columns, the first row being the heads.

    Examples:
        >>> print(columns([("layer", "type"), ("conv1", "Conv2d")]))
        layer  type
        conv1  Conv2d
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def error_text(error: BaseException) -> str:
    r"""The first line of an error's message; its type where it has none.

    Examples:
        >>> error_text(ValueError("too long\nby two")), error_text(KeyError())
        ('too long', 'KeyError')
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def fault_text(error: BaseException) -> str:
    r"""The type of an error and the first line of its message.

    Examples:
        >>> fault_text(ValueError("too long\nby two")), fault_text(KeyError())
        ('ValueError: too long', 'KeyError: no message')
    """
    return f"{type(error).__name__}: {error_text(error) if str(error).strip() else 'no message'}"
