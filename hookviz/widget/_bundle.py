"""One ES module per widget, put together from the modules in static/.

In: the name of an entry module. Out: its text with all that it imports, and a style sheet's text.
Must not know: what the modules do.

anywidget sends a widget's JavaScript as one text and loads it from a blob address, where a
relative import leads nowhere. The files in static/ are ordinary modules (tests and type checks use
them as they are); here their imports are resolved by putting each imported module once before
what needs it. All share one scope then, so a name may be declared at the top of one module only:
a test sees to it. Whole-line comments are left out, as the text travels to each page.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

__all__ = ["STATIC", "module_text", "style_text"]

STATIC = Path(__file__).parent / "static"

_IMPORT = re.compile(r'^import\s*\{[^}]*\}\s*from\s*"\./(\w+\.js)";\s*$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)
_COMMENTS = re.compile(
    r"^[ \t]*(?://[^\n]*|/\*(?:(?!\*/).)*\*/)[ \t]*$\n?", re.MULTILINE | re.DOTALL
)


@cache
def module_text(entry: str) -> str:
    """The text of a module together with all that it imports.

    Args:
        entry: File name in static/, for example "tree.js".

    Returns:
        One module without imports whose default export is the entry's.

    Examples:
        >>> text = module_text("tree.js")
        >>> "import {" in text, text.count("export default")
        (False, 1)
    """
    parts: list[str] = []
    _collect(entry, parts, set())
    return "\n".join(parts)


def _collect(name: str, parts: list[str], seen: set[str]) -> None:
    if name in seen:
        return
    seen.add(name)
    text = (STATIC / name).read_text(encoding="utf-8")
    for needed in _IMPORT.findall(text):
        _collect(needed, parts, seen)
    plain = _EXPORT.sub("", _IMPORT.sub("", _COMMENTS.sub("", text)))
    parts.append("\n".join(line.strip() for line in plain.splitlines() if line.strip()))


@cache
def style_text(*names: str) -> str:
    """Style sheets of static/, one after the other, without comments.

    Args:
        *names: File names, for example "base.css".

    Returns:
        The text of a style sheet.
    """
    text = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in names)
    bare = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return "\n".join(line.strip() for line in bare.splitlines() if line.strip())
