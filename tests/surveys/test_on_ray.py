"""Ray makes the same survey, also where its processes are killed; skipped where it is missing."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import hookviz
from hookviz.errors import RunCancelled, SurveyError
from hookviz.surveys._facts import ModelText
from hookviz.surveys._on_ray import Actor, ShardJob

from .conftest import Begin, digest, small_net

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None or sys.platform != "linux", reason="no Ray here"
)

MODEL = """
import torch, hookviz
from torch import nn
def net():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 6, 5, stride=2), nn.ReLU(), nn.Conv2d(6, 5, 3))
    size = hookviz.Preprocessing(crop=(24, 24), fit="squash")
    return hookviz.load_model(layers.eval(), preprocess=size, device="cpu")
"""

RUN = """
import os, signal, sys, time, warnings
from pathlib import Path
import torch, hookviz
def descendants(root):
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            pass
    found, new = set(), {root}
    while new:
        found |= new
        new = {one for one, parent in parents.items() if parent in new} - found
    return found
def kill_an_actor(progress):
    for number in sorted(descendants(os.getpid())):
        try:
            name = Path(f"/proc/{number}/cmdline").read_text()
        except OSError:
            continue
        if name.startswith("ray::Actor") and not killed:
            killed.append(number)
            os.kill(number, signal.SIGKILL)
if __name__ == "__main__":
    data, out, how, *tar = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    killed = []
    options = {"batch": 3, "shard": 3, "top": 4, "keep": "pooled", "workers": 0}
    if how != "here":
        import ray
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        options |= {"engine": "ray", "progress": kill_an_actor if how == "kill" else None}
    for at in (data, *tar):
        found = hookviz.survey("own_net:net", at, ["0", "2"], out, **options)
        assert found.complete
        out += "-tar"
    print("killed", len(killed))
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "own_net.py").write_text(MODEL)
    (folder / "run.py").write_text(RUN)
    return folder


def start(scripts: Path, *arguments: object) -> subprocess.Popen[str]:
    path = os.pathsep.join((str(scripts), *filter(None, sys.path)))
    environment = {**os.environ, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, str(scripts / "run.py"), *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err[-3000:]
    return out


@needs_ray
# Ray's own processes give up where a busy machine starts them too slowly.
@pytest.mark.flaky(reruns=1)
def test_ray_with_a_killed_actor_and_a_killed_driver(
    scripts: Path, photos: Path, tmp_path: Path, fresh_python: Any
) -> None:
    with tarfile.open(tmp_path / "few.tar", "w") as tar:
        for at, path in enumerate(sorted(photos.rglob("*.png"))[:5]):
            tar.add(path, f"{at}.png")
    here = map(str, (photos, tmp_path / "here", "here", tmp_path / "few.tar"))
    assert fresh_python.run(RUN, *here, cwd=scripts).returncode == 0
    expected = digest(tmp_path / "here")
    driver = start(scripts, photos, tmp_path / "ray", "ray")
    while driver.poll() is None and not list((tmp_path / "ray").glob("shards/*.safetensors")):
        time.sleep(0.05)
    driver.send_signal(signal.SIGKILL)
    _, err = driver.communicate()
    assert driver.returncode == -signal.SIGKILL, err[-3000:]
    assert not hookviz.open_survey(tmp_path / "ray").complete
    again = start(scripts, photos, tmp_path / "ray", "kill", tmp_path / "few.tar")
    assert "killed 1" in finished(again)
    assert digest(tmp_path / "ray") == expected
    assert digest(tmp_path / "ray-tar") == digest(tmp_path / "here-tar")


def test_an_actor_reads_tar_files_by_the_plan_alone(
    scripts: Path, photos: Path, tmp_path: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(scripts)
    with tarfile.open(tmp_path / "few.tar", "w") as tar:
        for at, path in enumerate(sorted(photos.rglob("*.png"))[:5]):
            tar.add(path, f"{at}.png")
    options: Any = {"model": "own_net:net", "layers": ["0"], "shard": 3}
    begin(tmp_path / "few.tar", tmp_path / "here", **options)
    with pytest.raises(RunCancelled):
        begin(tmp_path / "few.tar", tmp_path / "out", cancelled=lambda: True, **options)
    text = ModelText("own_net:net", "auto", None, True, "cpu")
    job = ShardJob(str(tmp_path / "out"), "tar files", str(tmp_path), text, 0)
    actor = Actor(asdict(job))
    for number in range(2):
        assert actor.make(number)["failed"] == ""
    begin(tmp_path / "few.tar", tmp_path / "out", progress=pytest.fail, **options)
    assert digest(tmp_path / "out") == digest(tmp_path / "here")


@needs_ray
def test_a_cluster_has_to_be_named(begin: Begin, photos: Path, tmp_path: Path) -> None:
    model = hookviz.load_model("squeezenet1_1", weights=None, device="cpu", preprocess=None)
    with pytest.raises(SurveyError, match=r"joined none.*address='local'.*other machines"):
        begin(photos, tmp_path, model=model, layers=["features.1"], engine="ray")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": small_net()}, "a module cannot be sent"),
        (
            {"model": "squeezenet1_1", "weights": None, "preprocess": lambda image: image,
             "layers": "features.1"},
            "A preprocessing of your own cannot be sent",
        ),
        (
            {"model": "squeezenet1_1", "weights": None, "layers": "features.1",
             "data": [torch.zeros(3, 64, 64)]},
            "cannot read from a data set",
        ),
        ({"model": "no_such_package.net:make"}, "There is no function 'no_such_package.net:make'"),
        ({"model": "os:getcwd"}, "'os:getcwd' gave a str; it must give a model"),
    ],
)  # fmt: skip
def test_what_cannot_travel_is_refused(
    change: dict[str, Any], words: str, begin: Begin, photos: Path, tmp_path: Path
) -> None:
    data = change.pop("data", photos)
    with pytest.raises(SurveyError, match=words):
        begin(data, tmp_path / "out", engine="ray", **change)
    assert not (tmp_path / "out").exists()


def test_a_model_by_its_function(
    scripts: Path, photos: Path, tmp_path: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(scripts)
    found = begin(photos, tmp_path, model="own_net:net", layers=["0"])
    assert found.complete
