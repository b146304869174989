"""The wheel holds everything that it needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout, unpacked outside it."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    assert wheel.stat().st_size < 60e6
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_wheel_has_assets_notebook_front_end_and_licence(unpacked: Path) -> None:
    package = unpacked / "hookviz"
    for name in [
        "assets/vgg16_features.safetensors",
        "assets/chelsea.png",
        "assets/README.md",
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
    assert (info / "licenses" / "LICENSE").is_file()
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
        env={**os.environ, "PYTHONPATH": str(unpacked), "TORCH_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip().splitlines()[-1])
    assert (folder / "manifest.json").is_file()
    assert list(folder.glob("*features.0_Conv2d_grid_p1of1.png"))
