"""How the suite itself is run: journeys on one worker, with a second try."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TESTS = """import os
from pathlib import Path
import pytest

def tries(name):
    path = Path(__file__).with_name(name)
    path.write_text((path.read_text() if path.exists() else "") + os.environ["PYTEST_XDIST_WORKER"])
    return path.read_text().count("gw")

@pytest.fixture(scope="session")
def server():
    tries("servers")

@pytest.mark.browser
def test_the_second_try_passes(server):
    assert tries("once") == 2, "the first try"

@pytest.mark.browser
def test_both_tries_fail(server):
    tries("always")
    raise AssertionError("each time")

@pytest.mark.browser
@pytest.mark.parametrize("n", range(6))
def test_on_one_worker(server, n):
    tries("journeys")

@pytest.mark.browser
@pytest.mark.timeout(0.5)
def test_that_never_ends(server):
    tries("endless")
    while True:
        pass

@pytest.mark.parametrize("n", range(6))
def test_without_a_browser(n):
    assert tries(f"plain {n}") == 2
"""


def test_journeys_stay_on_one_worker_and_they_alone_have_a_second_try(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "test_made_up.py").write_text(TESTS)
    clean = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST")}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n2", "-p", "no:cacheprovider", "test_made_up.py"],
        cwd=tmp_path,
        env=clean | {"PYTEST_ADDOPTS": "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    said = run.stdout.replace("@browser", "")
    assert run.returncode == 1, said
    assert re.search(r"^8 failed, 7 passed, 2 rerun", said, re.MULTILINE), said
    assert "RERUN test_made_up.py::test_the_second_try_passes" in said
    assert "the first try" in said
    assert "FAILED test_made_up.py::test_both_tries_fail" in said
    assert "FAILED test_made_up.py::test_that_never_ends" in said
    tries = {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()}
    assert len(tries["once"]) == len(tries["always"]) == 2 * len("gw0")
    assert len(tries["endless"]) == len("gw0")
    assert tries["servers"] in ("gw0", "gw1")  # one server, second tries or not
    assert set(re.findall("gw.", tries["journeys"])) == {tries["servers"]}
    assert {len(tries[f"plain {n}"]) for n in range(6)} == {len("gw0")}
