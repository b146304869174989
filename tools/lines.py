"""Count the code lines of hookviz/, room by room: no blank lines, comments or docstrings.

    python tools/lines.py            # a table: one row a room
    python tools/lines.py capture    # a table: one row a file of this room

A line counts if a token of code stands on it. JavaScript and CSS count by the same rule, without
the built bundles (`hookviz/widget/static/*.min.js`).
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "hookviz"
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def docstring_lines(tree: ast.Module) -> set[int]:
    """The lines of each docstring."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str())) as first, *_]:
                    lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def python_lines(path: Path) -> int:
    """The code lines of a Python file."""
    lines: set[int] = set()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type not in NO_CODE:
                lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(ast.parse(path.read_bytes())))


def script_lines(path: Path) -> int:
    """The code lines of a JavaScript or CSS file."""
    text = re.sub(r"/\*.*?\*/", "", path.read_text("utf-8"), flags=re.DOTALL)
    return sum(
        bool(line.strip()) and not line.strip().startswith("//") for line in text.split("\n")
    )


def main() -> None:
    """Print the table."""
    rooms: Counter[str] = Counter()
    files: Counter[str] = Counter()
    only = sys.argv[1] if len(sys.argv) > 1 else None
    for path in sorted(ROOT.rglob("*")):
        script = path.suffix in {".js", ".css"} and ".min." not in path.name
        if path.suffix != ".py" and not script:
            continue
        inside = path.relative_to(ROOT)
        room = inside.parts[0] if len(inside.parts) > 1 else "."
        if only in (None, room):
            kind = "scripts" if script else "Python"
            row = str(inside) if only else f"{room} {kind}"
            rooms[row] += script_lines(path) if script else python_lines(path)
            files[row] += 1
    for row, count in rooms.items():
        print(f"{row:40}{files[row]:5} files{count:8,}")
    print(f"{'all':40}{sum(files.values()):5} files{sum(rooms.values()):8,}")


if __name__ == "__main__":
    main()
