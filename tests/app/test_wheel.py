"""The wheel holds everything that it needs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

from hookviz import version

ROOT = Path(__file__).resolve().parents[2]
# One worker builds the archives, once.
pytestmark = pytest.mark.xdist_group("wheel")
IMPORTED = re.compile(r"""(?m)^(?:import|export)\b[^;]*?\bfrom\s+["']([^"']+)["']""")


def build(root: Path, out: Path) -> list[Path]:
    """The source archive and the wheel of a folder, by name."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(out)],
        cwd=root,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1767225600"},
        check=True,
        capture_output=True,
    )
    return sorted(out.iterdir(), reverse=True)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The source archive and the wheel of this checkout."""
    return build(ROOT, tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def unpacked(archives: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked outside this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(archives[1]) as archive:
        archive.extractall(folder / "site")  # noqa: S202 - our own
    return folder / "site"


def test_the_source_archive_alone_builds_the_same_bytes(
    archives: list[Path], tmp_path: Path
) -> None:
    source, wheel = archives
    assert source.name.endswith(".tar.gz")
    assert wheel.name.endswith("-py3-none-any.whl")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    for number, path in enumerate(sorted(root.rglob("*"))):  # other times, another order
        os.utime(path, (1e9 + number, 1e9 + number))
    again = build(root, tmp_path / "again")
    for one, other in zip(archives, again, strict=True):
        assert one.name == other.name
        assert one.read_bytes() == other.read_bytes()


def test_the_archives_pass_the_checks_of_the_index(archives: list[Path]) -> None:
    for module, arguments in (
        ("twine", ["check", "--strict", *map(str, archives)]),
        ("check_wheel_contents", [str(archives[1])]),
    ):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"no {module} here (extra dev)")
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_source_archive_says_how_to_cite_report_and_behave(archives: list[Path]) -> None:
    with tarfile.open(archives[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CITATION.cff", "SECURITY.md", "CODE_OF_CONDUCT.md", "LICENSE", "CHANGELOG.md"} <= names
    cited = (ROOT / "CITATION.cff").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for line in (
        f"version: {version.__version__}",
        f"license: {project['license']}",
        f"repository-code: {project['urls']['Source']}",
    ):
        assert line in cited.splitlines()


def test_nothing_in_the_wheel_is_compiled_or_of_an_unnamed_author(unpacked: Path) -> None:
    (info,) = unpacked.glob("*.dist-info")
    assert "Root-Is-Purelib: true" in (info / "WHEEL").read_text()
    credits_ = (info / "licenses" / "assets" / "README.md").read_text("utf-8")
    own = {".py", ".js", ".css", ".html", ".ipynb", ".typed"}
    others = [p for p in (unpacked / "hookviz").rglob("*") if p.is_file() and p.suffix not in own]
    assert {path.parent.name for path in others} == {"assets"}
    assert all(f"`{path.name}`" in credits_ for path in others)
    # The page's bundles are made of our own modules: none is imported by a package's name.
    assert "dependencies" not in json.loads((ROOT / "package.json").read_text("utf-8"))
    scripts = [*(ROOT / "hookviz/widget/js").glob("*.js"), ROOT / "hookviz/export/page/page.js"]
    sources = [one for path in scripts for one in IMPORTED.findall(path.read_text("utf-8"))]
    assert len(sources) > 20
    assert all(one.startswith("./") for one in sources), sources


def test_the_lower_bounds_are_those_of_what_is_used() -> None:
    done = subprocess.run(
        [sys.executable, "tools/lower_bounds.py"], cwd=ROOT, capture_output=True, text=True
    )
    found = dict(line.split("==") for line in done.stdout.splitlines())
    of_use = {"torch", "torchvision", "matplotlib", "ipywidgets", "anywidget", "jupyterlab", "zarr"}
    assert of_use <= set(found)
    assert not {"pytest", "hatchling"} & set(found)
    for name, bound in found.items():
        assert Version(metadata.version(name)) >= Version(bound)


def test_wheel_has_assets_notebook_front_end_and_licence(unpacked: Path) -> None:
    package = unpacked / "hookviz"
    for name in [
        "assets/vgg16_features.safetensors",
        "assets/chelsea.png",
        *(f"notebooks/{p.name}" for p in (ROOT / "notebooks").glob("*.ipynb")),
        "py.typed",
        *(f"export/page/page.{ending}" for ending in ("html", "css", "js")),
    ]:
        assert (package / name).is_file(), name
    sources = {p.name for p in (ROOT / "hookviz" / "widget" / "static").iterdir() if p.is_file()}
    assert {p.name for p in (package / "widget" / "static").iterdir()} == sources
    assert any(name.endswith(".js") for name in sources)
    assert any(name.endswith(".css") for name in sources)
    (info,) = unpacked.glob("*.dist-info")
    for name in ("LICENSE", "assets/README.md"):
        assert (info / "licenses" / name).is_file()
    assert not (unpacked / "tests").exists()


def test_wheel_alone_makes_maps_with_the_network_closed(unpacked: Path, tmp_path: Path) -> None:
    command = [
        sys.executable, "-c",
        "import hookviz, sys; assert 'wheel' in hookviz.__file__, hookviz.__file__;"
        "from hookviz.cli import main; sys.argv = ['hookviz', *sys.argv[1:]]; main()",
        "maps", "chelsea.png", "-l", "features.0", "--out", str(tmp_path), "--device", "cpu",
    ]  # fmt: skip
    unshare = shutil.which("unshare")
    # A network namespace of its own has no way out; where the system forbids that, the same
    # command still shows that the wheel is whole.
    if unshare and subprocess.run([unshare, "-rn", "true"], capture_output=True).returncode == 0:
        command = [unshare, "-rn", *command]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        # No compiler and no Node is found there.
        env={
            **os.environ,
            "PATH": str(tmp_path / "nothing"),
            "PYTHONPATH": str(unpacked),
            "TORCH_HOME": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip().splitlines()[-1])
    assert (folder / "manifest.json").is_file()
    assert list(folder.glob("*features.0_Conv2d_grid_p1of1.png"))
