"""The house's rules, read off the files themselves."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "hookviz"
MODULES = sorted(PACKAGE.rglob("*.py"))
SOURCES = [
    *MODULES,
    *sorted((ROOT / "tests").rglob("*.py")),
    *sorted((ROOT / "benchmarks").rglob("*.py")),
    *sorted((ROOT / "tools").rglob("*.py")),
]

ROOMS = sorted(folder.parent for folder in PACKAGE.glob("*/__init__.py"))


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=folder, capture_output=True, text=True
    )


def test_import_contracts_hold() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("capture/__init__.py", "import hookviz.render"),
        ("images/__init__.py", "import matplotlib"),
        ("errors.py", "import torch"),
    ],
)
def test_import_contracts_can_break(tmp_path: Path, module: str, line: str) -> None:
    shutil.copytree(PACKAGE, tmp_path / "hookviz", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    target = tmp_path / "hookviz" / module
    text = target.read_text(encoding="utf-8")
    target.write_text(
        text.replace(
            "from __future__ import annotations\n", f"from __future__ import annotations\n{line}\n"
        ),
        encoding="utf-8",
    )
    done = lint_imports(tmp_path)
    assert done.returncode != 0
    assert "broken" in done.stdout


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), "no module docstring"


@pytest.mark.parametrize("room", ROOMS, ids=lambda p: p.name)
def test_only_the_face_of_a_package_is_public(room: Path) -> None:
    assert not [p.name for p in room.glob("*.py") if not p.name.startswith("_")]
    assert not [p.name for p in room.glob("*/__init__.py")]


def imports_past_a_face(path: Path, text: str) -> list[str]:
    """The imports of another package's private module."""
    inside = path.relative_to(ROOT).parts
    own = inside[1] if inside[0] == "hookviz" else ""
    bad = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        else:
            continue
        for target in targets:
            match target.split("."):
                case ["hookviz", package, module, *_] if (
                    package != own and (PACKAGE / package / f"{module}.py").exists()
                ):
                    bad.append(target)
    return bad


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_reaches_past_the_face_of_a_package(path: Path) -> None:
    assert imports_past_a_face(path, path.read_text(encoding="utf-8")) == []


def test_reaching_past_a_face_is_seen() -> None:
    name = min(path.stem for path in (PACKAGE / "models").glob("_[a-z]*.py"))
    text = f"from hookviz.models import {name}\nfrom hookviz.models.{name} import x\n"
    text += "import hookviz.run"
    assert imports_past_a_face(PACKAGE / "capture" / "x.py", text) == [
        f"hookviz.models.{name}",
        f"hookviz.models.{name}.x",
    ]
    assert not imports_past_a_face(PACKAGE / "models" / "x.py", text)


def test_tests_take_public_names_from_the_face() -> None:
    faces = {
        room.name: set(
            re.findall(r'^    "(\w+)",$', (room / "__init__.py").read_text("utf-8"), re.MULTILINE)
        )
        for room in ROOMS
    }
    for path in SOURCES:
        for target in imports_past_a_face(path, path.read_text(encoding="utf-8")):
            match target.split("."):
                case [_, package, _, name]:
                    assert name not in faces[package], f"{path}: {target}"


def test_a_class_has_one_home() -> None:
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path.stem)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_is_unpickled_and_pyplot_is_not_touched(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] + [getattr(node, "module", "") or ""]
            assert not {"pickle", "dill", "cloudpickle", "joblib", "matplotlib.pyplot"} & set(names)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"torch.load", "np.load"}:
            keywords = {k.arg: ast.unparse(k.value) for k in node.keywords}
            safe = (
                {"weights_only": "True"}
                if "torch" in ast.unparse(node.func)
                else {"allow_pickle": "False"}
            )
            assert keywords | safe == keywords, ast.unparse(node)


def test_names_that_say_nothing_are_not_used() -> None:
    bad = {"utils", "util", "misc", "helpers", "helper", "manager", "common", "fmap", "mod"}
    for path in SOURCES:
        assert not bad & set(path.relative_to(ROOT).with_suffix("").parts), path


def test_no_machine_path_or_registry_host_in_the_texts() -> None:
    pattern = re.compile(
        r"(?<![\w.])/(?:root|work)/"
        r"|(?:registry|files|index)\.[a-z]*(?:npm|py)[a-z]*\.org"
        r"|(?<!\w)py[p]i\.org"
    )
    texts = [
        *SOURCES,
        *ROOT.glob("*.md"),
        *ROOT.glob("*.toml"),
        *ROOT.glob(".ci/*"),
        *ROOT.glob("assets/*.md"),
        *ROOT.glob("notebooks/*.ipynb"),
        *PACKAGE.glob("widget/static/*"),
        *PACKAGE.glob("widget/js/*"),
    ]
    for path in texts:
        if path == Path(__file__):
            continue
        found = pattern.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path}: {found and found.group()}"


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.name)
def test_notebooks_are_committed_without_output(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    assert "widgets" not in notebook["metadata"]
