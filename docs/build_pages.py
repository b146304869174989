"""What the site's build does beside rendering Markdown.

In: the pages of ``docs/pages``. Out: the same with what their code gives: each ``python`` block of
a page is run, one after the other as the cells of a notebook, and what it prints, its last value
and its figures stand below it. A block that fails ends the build.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

mpl.use("agg")
ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = re.compile(r"<!-- notebook: (\S+) -->")
BLOCK = re.compile(r"^```python\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """What pages quote lies in the checkout, from wherever the site is built."""
    config.mdx_configs["pymdownx.snippets"]["base_path"] = [str(ROOT)]
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Run a page's blocks, and put what they give below them."""
    markdown = NOTEBOOK.sub(lambda found: notebook(found[1]), markdown)
    markdown = markdown.replace("<!-- names -->", public_names())
    markdown = markdown.replace("<!-- commands -->", commands())
    if not BLOCK.search(markdown):
        return markdown
    shown: list[Any] = []
    names: dict[str, Any] = {"__name__": "__main__", "display": shown.append}
    count = 0

    def given(block: re.Match[str]) -> str:
        nonlocal count
        count += 1
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                value = run(block[1], f"{page.file.src_uri}, block {count}", names)
            except Exception as error:
                error.add_note(f"in block {count} of {page.file.src_uri}")
                raise
        below = [block[0].rstrip("\n")]
        text = printed.getvalue()
        for item in (*shown, value):
            png = picture(item)
            if png is None:
                text += "" if item is None else f"{item!r}\n"
                continue
            name = f"{Path(page.file.src_uri).stem}-{len(pictures)}.png"
            pictures.append(name)
            uri = (Path(page.file.src_uri).parent / name).as_posix()
            files.append(File.generated(config, uri, content=png))
            below.append(f"![{alt(block[1])}]({name})")
        shown.clear()
        if text.strip():
            below.insert(1, f"```text\n{text.rstrip()}\n```")
        return "\n\n".join(below) + "\n"

    pictures: list[str] = []
    with inside_an_empty_folder():
        return BLOCK.sub(given, markdown)


def notebook(name: str) -> str:
    """A notebook's cells as Markdown."""
    cells = json.loads((ROOT / "notebooks" / name).read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(
        "".join(cell["source"])
        if cell["cell_type"] == "markdown"
        else f"```python\n{''.join(cell['source'])}\n```"
        for cell in cells
    )


def public_names() -> str:
    """The names of ``hookviz`` itself, what each is, and where its page is."""
    import hookviz

    rows = ["| name | what it is |", "|---|---|"]
    for name in sorted(set(hookviz.__all__) - {"__version__"}, key=str.lower):
        thing = getattr(hookviz, name)
        first = (thing.__doc__ or "").strip().splitlines()[0]
        home = thing.__module__.removeprefix("hookviz.").split(".")[0]
        page = "" if home.startswith("_") else f"{home}.md"
        anchor = f"hookviz.{home}.{name}" if page else f"hookviz.{name}"
        rows.append(f"| [`{name}`]({page}#{anchor}) | {first} |")
    return "\n".join(rows)


def commands() -> str:
    """What ``--help`` says of each command."""
    from hookviz.cli import cli

    texts = []
    for name, command in sorted(cli.commands.items()):
        context = click.Context(command, info_name=f"hookviz {name}")
        texts.append(f"## {name}\n\n```text\n{command.get_help(context)}\n```")
    return "\n\n".join(texts)


def run(code: str, where: str, names: dict[str, Any]) -> Any:
    """Run a block; the value of its last line, where that is an expression."""
    tree = ast.parse(code, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, where, "exec"), names)  # noqa: S102 - our own pages
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), where, "eval"), names)  # noqa: S307


def picture(value: Any) -> bytes | None:
    """A value's PNG, where it has one: a figure, a drawing, an image."""
    if hasattr(value, "savefig"):
        stream = io.BytesIO()
        value.savefig(stream, format="png", dpi=value.dpi)
        return stream.getvalue()
    shows = getattr(value, "_repr_png_", None)
    png = shows() if shows else None
    return png if isinstance(png, bytes) else None


def alt(code: str) -> str:
    """What a reader who does not see the picture is told: the line that draws it."""
    return "What this draws: " + code.strip().splitlines()[-1].replace("[", "(").replace("]", ")")


@contextlib.contextmanager
def inside_an_empty_folder() -> Iterator[None]:
    """Pages write files; none of them stays."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
