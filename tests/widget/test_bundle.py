from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hookviz.widget._bundle import STATIC, module_text, style_text

ENTRIES = ("app.js", "tree.js", "image.js", "gallery.js")


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_bundle_is_one_module_that_imports_nothing(entry: str) -> None:
    text = module_text(entry)
    assert not re.search(r"^import\b", text, re.MULTILINE)
    assert re.findall(r"^export .*", text, re.MULTILINE) == [
        line for line in text.splitlines() if line.startswith("export default {")
    ]
    assert text.count("export default") == 1


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_name_is_declared_twice_in_a_bundle(entry: str) -> None:
    # The modules of a bundle share one scope. Comments and indentation are gone, so the names are
    # taken from the files themselves, where a declaration of a module begins its line.
    files = sorted(STATIC.glob("*.js"))
    names: dict[str, list[str]] = {}
    for path in files:
        for name in re.findall(
            r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)",
            path.read_text(encoding="utf-8"),
            re.MULTILINE,
        ):
            names.setdefault(name, []).append(path.name)
    assert {n: where for n, where in names.items() if len(where) > 1} == {}
    assert module_text(entry)


@pytest.mark.parametrize("entry", ENTRIES)
def test_node_parses_the_bundle(entry: str, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on this machine")
    path = tmp_path / "bundle.mjs"
    path.write_text(module_text(entry), encoding="utf-8")
    done = subprocess.run([node, "--check", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_text_spans_lines_that_are_trimmed() -> None:
    # Indentation is cut, which only a template literal over several lines would notice.
    for path in STATIC.glob("*.js"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert line.count("`") % 2 == 0, f"{path.name}:{number}"


def test_nothing_is_fetched_from_elsewhere() -> None:
    for path in STATIC.iterdir():
        text = path.read_text(encoding="utf-8")
        assert "http://" not in text.replace("http://www.w3.org", ""), path.name
        assert "https://" not in text, path.name
        assert "innerHTML" not in text or path.name == "kit.js", path.name


def test_the_style_names_colours_of_the_theme() -> None:
    text = style_text("base.css", "tree.css", "image.css", "gallery.css", "app.css")
    assert "/*" not in text
    assert "--jp-layout-color1" in text
    # Colours of our own appear only as what is left without a theme, or as a figure's page.
    bare = re.sub(r"var\(--jp-[^()]*(?:\([^()]*\)[^()]*)*\)", "", text)
    assert set(re.findall(r"#[0-9a-f]{3,6}\b", bare)) <= {"#14161a"}


def test_the_texts_are_small() -> None:
    # They travel with each widget, and into a notebook that is saved with its widgets' state.
    assert sum(len(module_text(e)) for e in ENTRIES) < 100_000
