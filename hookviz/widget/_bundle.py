"""The built page side of the widgets: one ES module and one style sheet each.

The sources are ordinary modules in ``js/``; ``npm run build`` puts each widget's together into
``static/`` (anywidget loads one text from a blob address, where a relative import leads nowhere).
What is built is committed, so that installing hookviz needs no Node; CI checks that it is current.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"


@cache
def built(name: str) -> str | Path:
    """A built file, as anywidget takes it.

    Args:
        name: For example "app.min.js".

    Returns:
        Its text. With ``ANYWIDGET_HMR=1`` in the environment its path: anywidget then watches the
        file and renews what is on the page. (Not always: anywidget keeps each widget that it
        watches a file for.)

    Examples:
        >>> "export" in str(built("tree.min.js"))
        True
    """
    path = STATIC / name
    watched = os.environ.get("ANYWIDGET_HMR", "") not in ("", "0")
    return path if watched else path.read_text(encoding="utf-8")
