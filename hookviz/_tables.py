"""Rows of plain values as CSV and as a data frame."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hookviz.errors import HookvizError


def csv_text(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    r"""CSV with a head.

    Args:
        names: Of the columns.
        rows: A value for each name.

    Examples:
        >>> csv_text(["rank", "channel"], [{"rank": 1, "channel": 17}])
        'rank,channel\n1,17\n'
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def data_frame(rows: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> Any:
    """A ``pandas.DataFrame``, one line a row.

    Args:
        rows: Values by the name of their column; or the columns by their names.

    Raises:
        HookvizError: pandas is not installed.
    """
    try:
        import pandas  # noqa: ICN001 - its usual short name would be longer than its use
    except ImportError as error:
        raise HookvizError(
            "pandas is not installed.", remedy="pip install pandas, or use table() or rows()."
        ) from error
    return pandas.DataFrame(rows)
