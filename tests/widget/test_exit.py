"""A program that ends while the app works: no abort, its own exit code, and soon."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

# One worker runs all programs.
pytestmark = pytest.mark.xdist_group("exit")

START = """
import sys, threading, time
import torch, hookviz
from torch import nn
from hookviz.images import Preprocessing
from hookviz.models import LoadedModel

entered = threading.Event()

class Layer(nn.Module):
    def forward(self, x):
        entered.set()
        self.work()
        return x

def app_of(work):
    layer = Layer()
    layer.work = work
    net = nn.Sequential(nn.Conv2d(3, 4, 3), layer)
    model = LoadedModel(net, "net", "as passed in", True, preprocess=Preprocessing.for_size(16))
    return hookviz.explore(model, hookviz.sample_image(), ["0", "1"])

def count():
    while True:
        pass

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index

def main():
    torch.set_num_threads(1)
    app = hookviz.explore()
{body}
    print(time.time(), flush=True)

if __name__ == "__main__":
    main()
{end}
"""

VGG = "app = hookviz.explore('vgg16', hookviz.sample_image(), ['features.*'])"

BODIES = {
    "at once": "",
    "half a second later": "time.sleep(0.5)",
    "in a layer that sleeps": "app = app_of(lambda: time.sleep(60)); entered.wait(60)",
    "in a layer that waits": "app = app_of(threading.Event().wait); entered.wait(60)",
    "in a layer that counts": "app = app_of(count); entered.wait(60)",
    "in torch": "app = app_of(lambda: [torch.rand(700, 700) @ torch.rand(700, 700) "
    "for _ in range(999)]); entered.wait(60)",
    "in a run": f"{VGG}; time.sleep(0.3)",
    "in a grid": f"{VGG}\n    app.gallery._take_look(1800); app.wait(); "
    "app.options = app.options.replace(cmap='magma'); time.sleep(0.05)",
    "in an export": f"{VGG}\n    app.wait(); app.exporting.start(['channels'], zipped=True); "
    "time.sleep(0.3)",
    "while a model is built": "app.choosing.load('resnet152', 'none'); time.sleep(0.3)",
    "with two forked workers": f"{VGG}\n    loader = torch.utils.data.DataLoader(Numbers(), "
    "num_workers=2, multiprocessing_context='fork')\n    assert len(list(loader)) == 8",
    "with two spawned workers": f"{VGG}\n    loader = torch.utils.data.DataLoader(Numbers(), "
    "num_workers=2, multiprocessing_context='spawn')\n    assert len(list(loader)) == 8",
}
# How the program ends, and its exit code.
ENDS = {"": 0, "sys.exit(3)": 3, "raise ValueError": 1}
CASES = [(name, "") for name in BODIES] + [
    ("at once", "sys.exit(3)"),
    ("in a layer that counts", "sys.exit(3)"),
    ("in torch", "raise ValueError"),
]


@pytest.mark.parametrize(("name", "end"), CASES)
def test_python_ends_as_its_program_says_whatever_the_app_is_doing(
    fresh_python: Any, tmp_path: Path, name: str, end: str
) -> None:
    body, at_end = f"    {BODIES[name]}\n", f"    {end}" if end else ""
    code = START.replace("{body}", body).replace("{end}", at_end)
    if "spawn" in body:  # which imports the program anew, from a file
        (tmp_path / "program.py").write_text(code, encoding="utf-8")
        code = "import program\nprogram.main()"
    done = fresh_python.run(code, cwd=tmp_path)
    ended = time.time()
    assert done.returncode == ENDS[end], done.stderr
    assert "terminate called" not in done.stderr
    assert ("Traceback" in done.stderr) == (end == "raise ValueError")
    # About a second on a free machine, the end of torch itself included; it must not hang.
    if lines := done.stdout.split():
        assert ended - float(lines[-1]) < 60


def test_a_test_that_leaves_an_app_open_does_not_break_pytest(tmp_path: Path) -> None:
    test = tmp_path / "test_app.py"
    test.write_text("import hookviz\n\n\ndef test_app():\n    hookviz.explore()\n", "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(test)],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process alone")
def test_a_group_of_tests_stays_on_one_worker(request: pytest.FixtureRequest) -> None:
    assert request.node.nodeid.endswith("@exit")
