"""What is built from the JavaScript is current, stands alone, and fetches nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hookviz.widget._bundle import STATIC, built
from hookviz.widget._still import _STYLE

ROOT = Path(__file__).resolve().parents[2]
SOURCES = STATIC.parent / "js"
BUILT = sorted(STATIC.iterdir())
SCRIPTS = [path for path in BUILT if path.suffix == ".js"]


def test_what_is_committed_is_what_the_sources_give(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None or not (ROOT / "node_modules" / "esbuild").exists():
        pytest.skip("esbuild is not here: npm install")
    command = [npm, "run", "--silent", "build", "--", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [p.name for p in BUILT]
    for path in BUILT:
        assert (tmp_path / path.name).read_text() == path.read_text(), "run: npm run build"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_a_bundle_is_one_module_that_imports_nothing(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"^import\b|\bimport\(", text, re.MULTILINE)
    assert len(re.findall(r"^export \{", text, re.MULTILINE)) == 1


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_node_parses_the_bundle(path: Path, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on this machine")
    module = shutil.copy(path, tmp_path / "bundle.mjs")
    done = subprocess.run([node, "--check", str(module)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nothing_is_fetched_from_elsewhere() -> None:
    for path in (*BUILT, *SOURCES.iterdir()):
        text = path.read_text(encoding="utf-8")
        assert "http://" not in text.replace("http://www.w3.org", ""), path.name
        assert "https://" not in text, path.name
        assert text.count("innerHTML") == text.count("holder.innerHTML"), path.name


def test_no_rule_looks_for_what_is_not_there() -> None:
    # For a :not or :empty within :has, a browser computes the styles of what is around again with
    # each element and attribute that comes or goes: many times for every live frame.
    styles = {path.name: path.read_text() for path in BUILT if path.suffix == ".css"}
    for name, text in {**styles, "_still.py": _STYLE}.items():
        for at in re.finditer(r":has\(", text):
            depth, end = 1, at.end()
            while depth:
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                end += 1
            within = text[at.end() : end]
            assert not re.search(":not|:empty", within), (name, within)


def test_the_style_names_colors_of_the_theme() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in BUILT if path.suffix == ".css")
    assert "--jp-layout-color1" in text
    # Colors of our own appear only as what is left without a theme, as a figure's page, as marks
    # that must stand out on any picture, and as bars that mean what the colormap means.
    bare = re.sub(r"var\(--jp-[^()]*(?:\([^()]*\)[^()]*)*\)", "", text)
    assert set(re.findall(r"#[0-9a-f]{3,6}\b", bare)) <= {
        "#14161a", "#ff7a00", "#ffb000", "#000", "#fff", "#2166ac", "#b2182b",
    }  # fmt: skip


def test_the_texts_are_small() -> None:
    # They travel with each widget, and into a notebook that is saved with its widgets' state.
    sizes = {path.name: path.stat().st_size for path in SCRIPTS}
    assert sizes.pop("training.min.js") < 20_000  # a widget of its own, which no app brings
    assert sum(sizes.values()) < 350_000


def test_while_developing_the_files_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert built.__wrapped__("app.min.js") == (STATIC / "app.min.js").read_text(encoding="utf-8")
    monkeypatch.setenv("ANYWIDGET_HMR", "1")
    assert built.__wrapped__("app.min.js") == STATIC / "app.min.js"
