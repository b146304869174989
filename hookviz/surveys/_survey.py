"""Surveys a data set: plans it, makes the shards that are not there, folds them."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from hookviz._text import fault_text
from hookviz.capture import select_layers
from hookviz.errors import HookvizError, LayerError, RunCancelled, SurveyError
from hookviz.images import read_image
from hookviz.models import LoadedModel
from hookviz.run import Run, failing_layer, loaded_model, run_model
from hookviz.surveys._crops import CROPS, write_crops
from hookviz.surveys._facts import ModelText, facts_of, model_from
from hookviz.surveys._files import locked, read_facts, sync_folder, unwritable
from hookviz.surveys._find import find_source
from hookviz.surveys._fold import summary_of, write_summary
from hookviz.surveys._inputs import Batch, BatchMaker, Inputs, batches_of, digest_of, reason_of
from hookviz.surveys._layout import Layout
from hookviz.surveys._plan import (
    Plan,
    check_same,
    extended,
    new_plan,
    of_part,
    read_manifest,
    read_rows,
    with_sections,
)
from hookviz.surveys._reader import Survey
from hookviz.surveys._shards import ShardDone, ShardMaker, parts_of
from hookviz.surveys._sources import Row, Source, Stream, image_in, is_input
from hookviz.surveys._zarr_store import zarr_package
from hookviz.version import __version__

Keep = Literal["none", "pooled", "whole"]
_KEEPS = ("none", "pooled", "whole")
_DTYPES = (None, "float16", "float32")
_STORES = ("safetensors", "zarr")
_ENGINES = ("here", "ray")


@dataclass(frozen=True)
class SurveyProgress:
    """How far a survey is.

    Attributes:
        shards_done: Shards that are there, earlier ones included.
        shards: Shards in all (of this part); 0 where that is not known.
        images_done: Images in them.
        images: Images in all; 0 where that is not known.
        bad: Images so far that could not be read.
        images_per_second: Over this call; 0 before its first shard.
        seconds_left: By that speed; None where it cannot be said.
    """

    shards_done: int
    shards: int
    images_done: int
    images: int
    bad: int
    images_per_second: float
    seconds_left: float | None


def survey(
    model: LoadedModel | str | nn.Module,
    data: Any,
    layers: Any,
    out: str | os.PathLike[str],
    *,
    keep: Keep = "none",
    dtype: Literal["float16", "float32"] | None = None,
    store: Literal["safetensors", "zarr"] = "safetensors",
    top: int = 16,
    batch: int = 32,
    shard: int = 256,
    engine: Literal["here", "ray"] = "here",
    workers: int | None = None,
    address: str | None = None,
    shard_timeout: float = 3600.0,
    part: str | None = None,
    bad_limit: float = 0.05,
    extend: bool = False,
    column: str | None = None,
    weights: Any = "auto",
    device: str | torch.device | None = None,
    preprocess: Any = None,
    progress: Callable[[SurveyProgress], object] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Survey:
    """Runs a model over a data set, and keeps what each channel of some layers does.

    Everything is written while it runs, a shard of images at a time. The same call again goes on
    where the last one ended, however that was, and what results is the same to the last bit as if
    nothing had happened; so it is where several processes make a part each. Memory does not grow
    with the number of images.

    An image that cannot be read is a reason in ``failures``, and no number counts it. A batch on
    which the model fails twice makes a failure of its shard; the others go on.

    Args:
        model: What `load_model` gave, a name that it knows, any ``nn.Module``, or
            "package.module:function", a function of yours that gives one of these. Runs in eval
            mode.
        data: A folder (the folder that an image lies in is its class), a list or a text file of
            paths; .tar files as WebDataset lays them out (class: ".cls") or .parquet files (extra
            ``hookviz[survey]``): one, several, a folder of them, or a pattern such as
            "data/train-*.tar"; a data set of Hugging Face's package, or a folder that it saved; a
            torch ``Dataset`` or ``DataLoader`` that does not shuffle, or an iterable. What these
            give is an image (anything that `read_image` takes), or a float tensor (C, H, W), the
            network's input as it is; in tuples the first entry, in mappings "image". A loader's
            batches are not used. An iterable is gone through again when a survey goes on, and its
            images have no crops. Where a survey goes on, files are compared by size and time, and
            Hugging Face's data sets by their fingerprint or, in memory, by their images; of other
            data sets only the length and the first readable image are, of an iterable only the
            latter.
        layers: Names, globs, patterns, types or predicates, see `hookviz.capture.select_layers`.
        out: The survey's folder; made where it is missing.
        keep: Beside numbers and strongest images: "none"; "pooled", the mean of each channel over
            the places of each image; "whole", the tensors.
        dtype: Of what is kept: "float16", "float32", or None: as it is.
        store: Of what is kept: "safetensors", in the shards' files; or "zarr" (extra
            ``hookviz[survey]``), an array a shard and layer in zarr's format 3, compressed in
            chunks of 32 images and 64 channels: much smaller for maps after a ReLU, and slower.
        top: How many of the strongest images of each channel are kept.
        batch: Images in a forward.
        shard: Images in a file, and what an interruption loses at most.
        engine: "here", or "ray" (extra ``hookviz[ray]``): an actor a core or GPU of a Ray cluster
            makes shards, by their numbers; images and tensors do not pass through Ray. The folders
            of data and survey have the same paths on all its machines; the model is built there
            anew, by its name, its checkpoint or your function.
        workers: Processes that read images; None: 2, or none for small sets; 0: this one reads.
            With Ray: of each actor; None: none.
        address: Of the Ray cluster. "local" starts one on this machine and ends it afterwards: its
            processes accept connections from other machines, as Ray's do. None takes the one that
            this process has joined.
        shard_timeout: Seconds that a shard may take on Ray before it is given to another actor.
        part: "3/16": make the third of sixteen parts of the shards; others make the others, in the
            same folder, on any machine. Whoever ends last folds them.
        bad_limit: Largest share of images that cannot be read; beyond it the survey ends.
        extend: Whether images that are new in the data are added to a survey that exists.
        column: Of parquet files and Hugging Face's data sets: the column of images, where there
            are several.
        weights: Where ``model`` is a name, see `load_model`.
        device: Where to run; None leaves a given model where it is.
        preprocess: In place of the model's own.
        progress: Called after each shard.
        cancelled: Asked before each batch; True ends it with RunCancelled. Shards are kept.

    Returns:
        The survey, to be read; ``failures`` says what is not in it.

    Raises:
        SurveyError: The data, an argument or the folder cannot be used; the folder holds a survey
            that was begun otherwise, and the sentence names the first difference; another
            process writes to it; more images than ``bad_limit`` cannot be read; the memory is too
            small for a batch.
        LayerError: A layer is unknown, or does not run.
        RunCancelled: ``cancelled`` answered True.
        HookvizError: The model or the device cannot be used.

    Examples:
        >>> import hookviz, tempfile
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 5, stride=2), nn.ReLU())
        >>> images = [torch.rand(3, 32, 32) for _ in range(20)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = hookviz.survey(net, images, ["1"], folder, keep="pooled", workers=0)
        ...     found.statistics("1").count[0], len(found.top("1", 3)), found.tensor("1").shape
        (np.int64(3920), 16, torch.Size([20, 8]))
    """
    asked = _Asked(
        _count("batch", batch), _count("shard", shard), _count("top", top),
        _choice("keep", keep, _KEEPS), _choice("dtype", dtype, _DTYPES),
        _choice("store", store, _STORES),
        _part(part), _share(bad_limit), extend, progress, cancelled,
    )  # fmt: skip
    _choice("engine", engine, _ENGINES)
    if store == "zarr":
        zarr_package()
    own = model_from(model) if isinstance(model, str) else None
    function = str(model) if own is not None else None
    loaded = loaded_model(model if own is None else own, weights, device, preprocess)
    names = list(dict.fromkeys(select_layers(loaded.module, layers).values()))
    source = find_source(data, column)
    if engine == "ray":
        _check_on_ray(loaded, function, source)
    if isinstance(source, Stream) and (asked.part or extend):
        raise SurveyError("An iterable has neither parts nor new images; give a list or a Dataset.")
    folder = _made(out)
    with _writing(folder, asked.part):
        begun = _begin(folder, loaded, names, source, asked)
        if isinstance(source, Stream):
            plan = _stream(begun, asked)
        else:
            plan = begun.plan
            if workers is None:
                many = engine == "here" and len(plan.rows) > 64
                workers = 2 if many and (os.cpu_count() or 1) > 1 else 0
            todo = _todo(plan, asked.part)
            if todo and engine == "ray":
                from hookviz.surveys._on_ray import ShardJob, make_on_ray

                text = ModelText.of(loaded, function)
                job = ShardJob(str(folder.absolute()), source.kind, source.root, text, workers)

                make_on_ray(plan, job, todo, address, _Watch(plan, asked), shard_timeout)
            elif todo:
                _here(begun, todo, workers, asked)
        _finish(replace(begun, plan=plan), workers or 0, cancelled)
    return Survey(folder)


@dataclass(frozen=True)
class _Asked:
    """The arguments, once checked."""

    batch: int
    shard: int
    top: int
    keep: str
    dtype: str | None
    store: str
    part: tuple[int, int] | None
    bad_limit: float
    extend: bool
    progress: Callable[[SurveyProgress], object] | None
    cancelled: Callable[[], bool] | None


@dataclass(frozen=True)
class _Begun:
    """A survey under way.

    Attributes:
        plan: The plan.
        model: The model.
        source: The data.
        inputs: Makes the network's input.
        items: Of an iterable, its items from the first on.
    """

    plan: Plan
    model: LoadedModel
    source: Source
    inputs: Inputs
    items: Iterator[Any] | None = None

    @property
    def maker(self) -> BatchMaker:
        """Makes batches."""
        return BatchMaker(self.inputs, tuple(self.plan.facts["input_shape"]))


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SurveyError(f"{name} is {value!r:.40}; it must be a whole number from 1.")
    return value


def _choice(name: str, value: Any, legal: tuple[Any, ...]) -> Any:
    if value not in legal:
        raise SurveyError(f"{name} is {value!r:.40}; legal are {', '.join(map(repr, legal))}.")
    return value


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise SurveyError(f"bad_limit is {value!r:.40}; it must be a share, 0 to 1.")
    return float(value)


def _part(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, slash, last = str(text).partition("/")
    if slash and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last):
        return int(first), int(last)
    raise SurveyError(f"part is {text!r:.40}; it must be a number of a number, such as '3/16'.")


def _check_on_ray(model: LoadedModel, function: str | None, source: Source) -> None:
    ModelText.of(model, function)
    if not source.travels:
        raise SurveyError(
            f"Processes elsewhere cannot read from a {source.kind}.",
            remedy="Give a folder, tar or parquet files, or a list or text file of paths.",
        )


def _made(out: str | os.PathLike[str]) -> Path:
    if not isinstance(out, str | os.PathLike):
        raise SurveyError(f"out is {out!r:.80}; it must be a path: a str or a pathlib.Path.")
    folder = Path(os.fsdecode(out)).expanduser()
    try:
        for one in (folder, folder / "shards", folder / "failed"):
            one.mkdir(parents=True, exist_ok=True)
            sync_folder(one.parent)
    except (OSError, ValueError) as error:
        raise unwritable(error, folder) from error
    return folder


@contextmanager
def _writing(folder: Path, part: tuple[int, int] | None) -> Iterator[None]:
    """This process alone writes to the folder, or to its part of it."""
    with ExitStack() as stack:
        stack.enter_context(locked(folder / ".lock", shared=part is not None))
        if part is not None:
            stack.enter_context(locked(folder / f".lock-{part[0]}-of-{part[1]}"))
        else:
            # What a process left behind that was killed.
            for place in (folder, folder / "shards", folder / "failed"):
                for left in place.glob(".hookviz-*.part"):
                    if left.is_dir():
                        shutil.rmtree(left)
                    else:
                        left.unlink(missing_ok=True)
        yield


def _begin(
    folder: Path, model: LoadedModel, names: list[str], source: Source, asked: _Asked
) -> _Begun:
    """The plan in the folder, or a new one."""
    inputs = Inputs(model.preprocess, model.dtype)
    facts = facts_of(model, names, source.kind, inputs) | {
        "root": source.root,
        "column": source.column,
        "version": source.version,
        "batch": asked.batch,
        "shard": asked.shard,
        "keep": asked.keep,
        "dtype": asked.dtype,
        "store": asked.store,
        "top": asked.top,
    }
    items = iter(source) if isinstance(source, Stream) else None
    with locked(folder / ".lock-plan", wait=True):
        there = read_manifest(folder)
        if there is None:
            rows = source.rows()
            number, found, items = _first_readable(source, rows, items, inputs)
            run = _try_out(model, inputs, found, names)
            _check_stored(run, asked)
            size = run.input.tensor.shape[-2:]
            tensor = run.input.tensor[0].cpu()
            facts |= {
                "note": source.note,
                "input_image": number,
                "input_shape": list(tensor.shape),
                "input_sha256": digest_of(tensor),
                "layouts": [
                    Layout.of(a, (int(size[0]), int(size[1]))).to_json() for a in run.activations
                ],
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "hookviz": __version__,
            }
            if items is not None:
                facts["ended"] = False
            plan = new_plan(folder, facts, [source.stamped(row) for row in rows])
            return _Begun(plan, model, source, inputs, items)
        check_same(folder, there, facts)
        plan = Plan(folder, there, read_rows(folder, there))
        at = there["input_image"]
        if items is not None:
            _, found, items = _first_readable(source, [], items, inputs)
        else:
            plan = extended(plan, source, extend=asked.extend)
            if asked.part is None and there["root"] != source.root:  # the data were moved
                plan = with_sections(plan, plan.facts["sections"], root=source.root)
            found = _read_or_none(source, plan.rows, at)
        if found is not None:
            try:
                tensor = inputs.tensor(found)
            except Exception:  # noqa: BLE001 - the image is another one now; its shard says so
                return _Begun(plan, model, source, inputs, items)
            check_same(folder, there, {"input_sha256": digest_of(tensor)})
    return _Begun(plan, model, source, inputs, items)


def _check_stored(run: Run, asked: _Asked) -> None:
    if asked.store == "zarr" and asked.keep == "whole" and asked.dtype is None:
        for one in run.activations:
            if one.tensor.dtype == torch.bfloat16:
                raise SurveyError(
                    f"{one.label} gives bfloat16, which zarr does not have.",
                    remedy="Take dtype='float32', which holds the same values.",
                )


def _read_or_none(source: Source, rows: list[Row], number: int) -> Any:
    try:
        return source.read(number, rows[number])
    except Exception:  # noqa: BLE001 - whatever a data set raises; the image's shard says it
        return None


def _first_readable(
    source: Source, rows: list[Row], items: Iterator[Any] | None, inputs: Inputs
) -> tuple[int, Any, Iterator[Any] | None]:
    """The first image that can be read: its number and itself; and an iterable anew."""
    reason = ""
    seen: list[Any] = []
    numbers: Iterable[int] = itertools.count() if items is not None else range(len(rows))
    for number in numbers:
        try:
            if items is None:
                found = source.read(number, rows[number])
            else:
                item = next(items, _END)
                if item is _END:
                    break
                seen.append(item)
                found = image_in(item)
            inputs.tensor(found)
        except Exception as error:  # noqa: BLE001 - whatever a data set of the user's raises
            reason = reason or reason_of(error)
            continue
        return number, found, None if items is None else itertools.chain(seen, items)
    if not reason:
        raise SurveyError("The iterable gave no image.")
    raise SurveyError(f"None of the images can be read. The first: {reason}")


_END = object()


def _try_out(model: LoadedModel, inputs: Inputs, found: Any, names: list[str]) -> Run:
    """A run on one image, which says what the layers' tensors are."""
    if is_input(found):
        tensor = inputs.tensor(found)
        picture, _ = inputs.picture(found)
        how: Any = lambda image: tensor  # noqa: E731, ARG005 - the input is there already
    else:
        picture, how = read_image(found), None
    try:
        run = run_model(model, picture, names, preprocess=how)
    except HookvizError:
        raise
    except Exception as error:
        layer = failing_layer(model.module, error)
        place = "" if layer is None else f" in layer '{layer}'"
        raise SurveyError(
            f"The forward of {model.name} failed{place}: {fault_text(error)}"
        ) from error
    for layer, reason in run.missing.items():
        raise LayerError(f"{layer} cannot be surveyed: {reason}.")
    return run


def _todo(plan: Plan, part: tuple[int, int] | None) -> list[int]:
    there = set(plan.shards_there())
    return [at for at in of_part(range(len(plan.shards)), part) if at not in there]


class _Watch:
    """Counts what is done, tells it, and ends the survey where it has to end."""

    def __init__(self, plan: Plan, asked: _Asked) -> None:
        self._asked, self._plan = asked, plan
        shards = plan.shards
        mine = of_part(range(len(shards)), asked.part)
        there = [at for at in plan.shards_there() if at in set(mine)]
        self._shards = self._images = 0
        if plan.facts.get("ended", True):  # else it is not known how many there are
            self._shards, self._images = len(mine), sum(len(shards[at]) for at in mine)
        self._done, self._images_done = len(there), sum(len(shards[at]) for at in there)
        bad = [read_facts(plan.shard_file(at))["bad"] for at in there]
        self.bad = sum(map(len, bad))
        self._first = next((one[0][1] for one in bad if one), "")
        self._now, self._began = 0, time.perf_counter()

    def batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches, as long as it may go on; see `proceed`."""
        while True:
            self.proceed([])
            batch = next(batches, None)
            if batch is None:
                return
            self.proceed(batch.bad)
            yield batch

    def proceed(self, bad: list[tuple[int, str]]) -> None:
        """Counts images that could not be read.

        Raises:
            RunCancelled: It was cancelled.
            SurveyError: Too many images cannot be read.
        """
        if self._asked.cancelled is not None and self._asked.cancelled():
            raise RunCancelled(f"The survey was cancelled; {self._kept()}.")
        if not bad:
            return
        self.bad += len(bad)
        self._first = self._first or bad[0][1]
        limit = self._asked.bad_limit
        if self._images and self.bad > limit * self._images:
            raise SurveyError(
                f"{self.bad} of {self._images} images cannot be read so far, more than "
                f"bad_limit={limit:g} allows; {self._kept()}. The first: {self._first}",
                remedy="Mend or remove them and take another folder, or allow more.",
                code="too-many-unreadable",
                details={"bad": self.bad, "images": self._images, "first": self._first},
            )

    def _kept(self) -> str:
        of = f" of {self._shards}" if self._shards else ""
        return f"{self._done}{of} shards are kept in {str(self._plan.folder)!r}"

    def shard(self, done: ShardDone) -> None:
        """Counts a shard."""
        if not done.failed:
            self._done += 1
            self._images_done += done.images
        self._now += done.images
        if self._asked.progress is None:
            return
        speed = self._now / max(time.perf_counter() - self._began, 1e-9)
        left = (self._images - self._images_done) / speed if self._images else None
        self._asked.progress(
            SurveyProgress(
                self._done, self._shards, self._images_done, self._images, self.bad, speed, left
            )
        )


def _here(begun: _Begun, todo: list[int], workers: int, asked: _Asked) -> None:
    """Makes shards in this process."""
    plan = begun.plan
    shards = plan.shards
    parts = [one for at in todo for one in parts_of(shards[at], asked.batch)]
    watch = _Watch(plan, asked)
    batches = watch.batches(batches_of(begun.maker, begun.source, plan.rows, parts, workers))
    with ShardMaker(begun.model, plan) as maker:
        for number in todo:
            watch.shard(maker.make(number, shards[number], batches))


def _stream(begun: _Begun, asked: _Asked) -> Plan:
    """Makes the shards of an iterable; one shard's items are in memory at a time."""
    plan, items = begun.plan, begun.items or iter(())
    watch, batch_maker = _Watch(plan, asked), begun.maker
    there, start = set(plan.shards_there()), 0
    with ShardMaker(begun.model, plan) as maker:
        for number in itertools.count():
            got = list(itertools.islice(items, asked.shard))
            if not got:
                break
            images = range(start, start + len(got))
            start = images.stop
            if number not in there:

                def batches(images: range = images, got: list[Any] = got) -> Iterator[Batch]:
                    for part in parts_of(images, asked.batch):
                        yield batch_maker.batch(part, lambda n: image_in(got[n - images.start]))

                done = maker.make(number, images, watch.batches(batches()))
                if start > sum(plan.facts["sections"]):
                    plan = with_sections(plan, [start])
                if watch.bad > asked.bad_limit * start:
                    raise SurveyError(
                        f"{watch.bad} of {start} images cannot be read so far, more than "
                        f"bad_limit={asked.bad_limit:g} allows."
                    )
                watch.shard(done)
    return with_sections(plan, [start], ended=True)


def _finish(begun: _Begun, workers: int, cancelled: Callable[[], bool] | None) -> None:
    """Folds the shards and makes the crops, where all were made that can be."""
    plan = begun.plan
    numbers = plan.shards_there()
    missing = set(range(len(plan.shards))) - set(numbers)
    if not numbers or any(not plan.failed_file(at).exists() for at in missing):
        return
    with locked(plan.folder / ".lock-fold", wait=True):
        tallies = summary_of(plan, numbers) or write_summary(plan, numbers)
        path = plan.folder / CROPS
        if isinstance(begun.source, Stream) or (
            path.exists() and read_facts(path)["shards"] == numbers
        ):
            return
        found = _read_or_none(begun.source, plan.rows, plan.facts["input_image"])
        if found is None:
            _, found, _ = _first_readable(begun.source, plan.rows, None, begun.inputs)
        run = _try_out(begun.model, begun.inputs, found, plan.facts["layers"])
        write_crops(plan, tallies, run, begun.inputs, begun.source, workers, cancelled)
