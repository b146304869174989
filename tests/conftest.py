"""What every room's tests share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# CI tries the same examples every time, so that a change is judged by what it changed; at a desk
# every run tries new ones. No test asserts a time, and a busy machine is none of its business.
settings.register_profile(
    "hookviz",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("hookviz")

# Workers side by side (pytest-xdist) share the cores; torch, which is imported after this, would
# otherwise start a thread a core in each of them.
workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
if workers > 1:
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))

ROOT = Path(__file__).resolve().parent.parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The browser's journeys are one group: one worker drives them, one after the other.

    They alone have a second try, as in Playwright's own template for CI: four programs of other
    people (Chromium, JupyterLab, its kernel, ipywidgets) work together there on a machine that may
    be busy. What failed is printed even so, and what fails twice has failed.
    """
    for item in items:
        if item.get_closest_marker("browser") is not None:
            item.add_marker(pytest.mark.xdist_group("browser"))
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout's folder."""
    return ROOT


# The child leaves the loop with its program done and comes to the script's end: so the interpreter
# ends by itself, with the threads and the exit functions that there are then.
WAITING = """
import json, os, sys, time
import matplotlib.backends.backend_agg, torch, torchvision
import hookviz, hookviz.cli, hookviz.export, hookviz.models, hookviz.render, hookviz.widget
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child:
        until = time.monotonic() + 120
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > until:
                os.kill(child, 9)
            time.sleep(0.01)
        print(os.waitstatus_to_exitcode(ended[1]), flush=True)
        continue
    for number, name in enumerate((os.devnull, job["out"], job["err"])):
        os.dup2(os.open(name, os.O_WRONLY if number else os.O_RDONLY), number)
    os.chdir(job["cwd"])
    sys.path.insert(0, job["cwd"])
    sys.argv[1:] = job["arguments"]
    exec(compile(job["code"], "<program>", "exec"))
    break
"""


class FreshPython:
    """Runs each program in a process of its own, in which torch and hookviz are imported.

    Importing them takes longer than most programs that a test starts, so one process does it once
    and forks itself for each. Programs whose imports are the point are started as usual.
    """

    def __init__(self) -> None:
        self._waiting: subprocess.Popen[str] | None = None

    def run(self, code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """As ``python -W error -c code arguments`` in a folder; killed after two minutes."""
        if not sys.platform.startswith("linux"):
            command = [sys.executable, "-W", "error", "-c", code, *arguments]
            return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
        if self._waiting is None:
            self._waiting = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", WAITING],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._waiting.stdin
        assert self._waiting.stdout
        out, err = cwd / ".out", cwd / ".err"
        out.touch()
        err.touch()
        job = {"code": code, "arguments": arguments, "cwd": str(cwd)}
        job |= {"out": str(out), "err": str(err)}
        self._waiting.stdin.write(json.dumps(job) + "\n")
        self._waiting.stdin.flush()
        status = int(self._waiting.stdout.readline())
        done = subprocess.CompletedProcess(arguments, status, out.read_text(), err.read_text())
        out.unlink()
        err.unlink()
        return done

    def close(self) -> None:
        if self._waiting is not None:
            self._waiting.communicate()


@pytest.fixture(scope="session")
def fresh_python() -> Iterator[FreshPython]:
    """Runs programs in fresh processes."""
    fresh = FreshPython()
    yield fresh
    fresh.close()


@pytest.fixture(autouse=True)
def _cuda_only_where_there_is_one(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("cuda") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
