"""Shards made by the actors of a Ray cluster; the only module that imports ray.

Ray schedules numbers of shards, nothing else: an actor reads the images, builds the model and
commits its shards by itself, as a process on its own would. Ray's own readers are not used, since
they lose the good images of a block with a bad one; rows have no order that could be lost; an actor
that died or does not answer is replaced, and its shard given to another.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter, deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from hookviz.errors import HookvizError, SurveyError
from hookviz.surveys._facts import ModelText, facts_of
from hookviz.surveys._files import write_json
from hookviz.surveys._find import source_elsewhere
from hookviz.surveys._inputs import BatchMaker, Inputs, batches_of, digest_of
from hookviz.surveys._plan import Plan, check_same, read_manifest, read_rows
from hookviz.surveys._shards import ShardDone, ShardMaker, parts_of
from hookviz.surveys._sources import Source

TRIES = 3
"""How often a shard is given out whose actor died or did not answer."""


@dataclass(frozen=True)
class ShardJob:
    """What an actor has to know; texts and numbers alone.

    Attributes:
        folder: The survey's folder.
        kind: Of the data, see `Source`.
        root: The folder that names of images are below.
        model: The model.
        workers: Processes of each actor that read images.
    """

    folder: str
    kind: str
    root: str
    model: ModelText
    workers: int


class Watch(Protocol):
    """Is told of each shard, and asked whether to go on."""

    def shard(self, done: ShardDone) -> None:
        """A shard is done."""

    def proceed(self, bad: list[tuple[int, str]]) -> None:
        """Counts images that could not be read; raises where the survey has to end."""


class Actor:
    """Makes shards in a process of Ray's.

    Args:
        job: A `ShardJob` as a mapping.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        self._ready: tuple[Plan, ShardMaker, BatchMaker, Source, int] | None = None
        self._job = job

    def make(self, number: int) -> dict[str, Any]:
        """Makes a shard; what goes wrong is a text in "error"."""
        try:
            if self._ready is None:
                self._ready = self._begin(self._job)
            plan, maker, batches, source, workers = self._ready
            images = plan.shards[number]
            parts = parts_of(images, plan.facts["batch"])
            given = batches_of(batches, source, plan.rows, parts, workers)
            return asdict(maker.make(number, images, given))
        except HookvizError as error:
            return {"error": str(error)}

    def _begin(self, job: dict[str, Any]) -> tuple[Plan, ShardMaker, BatchMaker, Source, int]:
        folder = Path(job["folder"])
        facts = read_manifest(folder)
        if facts is None:
            raise SurveyError(f"A machine of the cluster does not see the survey in {folder}.")
        torch.set_num_threads(facts["threads"])  # as where the survey was begun
        model = ModelText(**job["model"]).build()
        inputs = Inputs(model.preprocess, model.dtype)
        source = source_elsewhere(job["kind"], job["root"], facts["column"])
        check_same(folder, facts, facts_of(model, facts["layers"], source.kind, inputs))
        plan = Plan(folder, facts, read_rows(folder, facts))
        at = facts["input_image"]
        try:
            tensor = inputs.tensor(source.read(at, plan.rows[at]))
        except HookvizError:
            pass  # it is gone or another one; its shard says so
        else:
            check_same(folder, facts, {"input_sha256": digest_of(tensor)})
        maker = ShardMaker(model, plan)
        maker.__enter__()  # the hooks stay for the life of this process
        return plan, maker, BatchMaker(inputs, tuple(facts["input_shape"])), source, job["workers"]


def make_on_ray(
    plan: Plan, job: ShardJob, todo: list[int], address: str | None, watch: Watch, timeout: float
) -> None:
    """Makes shards on a cluster.

    Args:
        plan: The plan.
        job: What the actors have to know.
        todo: Numbers of the shards.
        address: Of the cluster; "local" starts one here; None takes the one that is joined.
        watch: Is told of each shard.
        timeout: Seconds that a shard may take.

    Raises:
        SurveyError: Ray is missing or not reached, or an actor cannot work.
    """
    ray, mine = _joined(address)
    try:
        _schedule(ray, plan, job, todo, watch, timeout)
    finally:
        if mine:
            ray.shutdown()


def _joined(address: str | None) -> tuple[Any, bool]:
    """Ray, and whether it was joined here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise SurveyError(
            "engine='ray' needs Ray, which is not installed.", remedy="pip install 'hookviz[ray]'"
        ) from None
    if ray.is_initialized():
        return ray, False
    if address is None:
        raise SurveyError(
            "engine='ray' works on a cluster, and this process has joined none.",
            remedy="Name it with address=. Ray on this machine alone is started by "
            "address='local'; its processes then accept connections from other machines.",
        )
    if address == "local":
        warnings.warn(
            "Ray is started on this machine: its processes accept connections from other machines.",
            UserWarning,
            stacklevel=5,
        )
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address == "local":
        options |= {"include_dashboard": False}
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise SurveyError(f"The Ray cluster at {address!r} is not reached: {error}") from error
    return ray, True


def _schedule(
    ray: Any, plan: Plan, job: ShardJob, todo: list[int], watch: Watch, timeout: float
) -> None:
    cuda = job.model.device == "cuda"
    threads = plan.facts["threads"]
    needs = {"num_cpus": 1 if cuda else threads, "num_gpus": 1 if cuda else 0}
    there = ray.cluster_resources()
    most = int(there.get("GPU", 0) if cuda else there.get("CPU", 0) // threads)
    if most < 1:
        what = "GPU" if cuda else f"machine with {threads} cores"
        raise SurveyError(f"The Ray cluster has no {what}, which an actor needs.")
    remote = ray.remote(Actor)
    text = {**asdict(job)}
    waiting, tries = deque(todo), Counter[int]()
    busy: dict[Any, tuple[Any, int, float]] = {}
    actors: list[Any] = []
    try:
        idle = [remote.options(**needs).remote(text) for _ in range(min(most, len(todo)))]
        actors += idle
        while waiting or busy:
            watch.proceed([])
            while waiting and idle:
                actor, number = idle.pop(), waiting.popleft()
                busy[actor.make.remote(number)] = (actor, number, time.monotonic())
            ready, _ = ray.wait(list(busy), num_returns=1, timeout=0.5)
            late = [one for one, (_, _, began) in busy.items() if _since(began) > timeout]
            for one in dict.fromkeys([*ready, *late]):
                actor, number, _ = busy.pop(one)
                try:
                    if one not in ready:
                        raise TimeoutError(f"it took longer than {timeout:g} seconds")
                    found = ray.get(one)
                except (ray.exceptions.RayError, TimeoutError) as error:
                    ray.kill(actor)
                    actors.append(remote.options(**needs).remote(text))
                    idle.append(actors[-1])
                    tries[number] += 1
                    if tries[number] < TRIES:
                        waiting.append(number)
                        continue
                    reason = f"The process that made it ended {TRIES} times: {_first_line(error)}"
                    images = plan.shards[number]
                    note = {"images": [images.start, images.stop], "reason": reason}
                    write_json(plan.failed_file(number), note)
                    watch.shard(ShardDone(number, len(images), [], reason))
                    continue
                if "error" in found:
                    raise SurveyError(found["error"])
                idle.append(actor)
                done = ShardDone(**found)
                watch.shard(done)
                watch.proceed(done.bad)
    finally:
        for actor in actors:
            ray.kill(actor)


def _since(moment: float) -> float:
    return time.monotonic() - moment


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
