"""zarr keeps what safetensors keeps; tables hold what the survey says."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hookviz
from hookviz.errors import RunCancelled, SurveyError
from hookviz.surveys import _zarr_store

from .conftest import Begin, write_images
from .test_going_on import in_a_fork

needs_zarr = pytest.mark.skipif(importlib.util.find_spec("zarr") is None, reason="no zarr here")
needs_pyarrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="no pyarrow here"
)


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifteen images, two of them none."""
    folder = tmp_path_factory.mktemp("some")
    paths = write_images(folder, 15, seed=4)
    paths[4].write_bytes(b"")
    paths[9].write_text("no image")
    return folder


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "manifest.json" and ".lock" not in path.name
    }


@needs_zarr
@pytest.mark.parametrize("keep", ["whole", "pooled"])
@pytest.mark.parametrize("batch", [3, 40])
def test_both_stores_give_the_same(
    keep: Any, batch: int, begin: Begin, some: Path, tmp_path: Path
) -> None:
    options: Any = {"keep": keep, "batch": batch, "shard": 8, "bad_limit": 1, "dtype": "float16"}
    one = begin(some, tmp_path / "one", **options)
    other = begin(some, tmp_path / "other", store="zarr", **options)
    ids = one.images_read()
    assert ids == other.images_read()
    assert len(ids) == 13
    some_ids = [ids[-1], ids[2], ids[2], ids[0]]
    for layer in one.layers:
        for given in ({}, {"ids": some_ids}, {"ids": some_ids, "channel": 2}, {"channel": 0}):
            found = other.tensor(layer, **given)
            assert found.dtype == torch.float16
            assert torch.equal(found, one.tensor(layer, **given))
        assert other.tensor(layer, []).shape == one.tensor(layer, []).shape
    with pytest.raises(SurveyError, match=r"is not kept: .*an empty file"):
        other.tensor("conv", [next(n for n in range(15) if n not in ids)])
    assert not any(path.suffix == ".part" for path in (tmp_path / "other").rglob("*"))


@needs_zarr
def test_arrays_are_zarr_with_chunks_of_32_images_and_64_channels(
    begin: Begin, tmp_path: Path
) -> None:
    import zarr

    net = nn.Sequential(nn.Conv2d(3, 70, 3), nn.ReLU())
    images = [torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(n)) for n in range(50)]
    found = begin(images, tmp_path, model=net, layers=["1"], keep="whole", store="zarr", batch=40,
                  shard=40)  # fmt: skip
    array = zarr.open_array(tmp_path / "shards" / "000000.zarr" / "0", mode="r")
    assert array.metadata.zarr_format == 3
    assert array.chunks == (32, 64, 6, 6)
    assert "zstd" in str(array.metadata.codecs).lower()
    assert array.attrs["layer"] == "1"
    with torch.no_grad():
        expected = net(torch.stack(images[:40])).numpy()
    np.testing.assert_array_equal(array[:], expected)
    assert found.facts["store"] == "zarr"


@needs_zarr
def test_an_iterable_is_kept_in_arrays_too(begin: Begin, tmp_path: Path) -> None:
    images = [torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(n)) for n in range(8)]
    net = nn.Conv2d(3, 4, 3)
    plain, arrays = (
        begin(iter(images), tmp_path / store, model=net, layers=[""], keep="whole", store=store)
        for store in ("safetensors", "zarr")
    )
    assert torch.equal(arrays.tensor(arrays.layers[0]), plain.tensor(plain.layers[0]))


@needs_zarr
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_arrays_survive_a_kill_and_are_made_once(begin: Begin, some: Path, tmp_path: Path) -> None:
    options: Any = {"keep": "whole", "store": "zarr", "bad_limit": 1, "layers": ["conv"]}
    sync = _zarr_store.sync_folder

    def dying(step: int, out: Path) -> Callable[[], hookviz.Survey]:
        steps = iter(range(1000))

        def sync_or_die(folder: Path) -> None:
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            sync(folder)

        def work() -> hookviz.Survey:
            _zarr_store.sync_folder = sync_or_die
            return begin(some, out, **options)

        return work

    def made(out: Path) -> dict[str, bytes]:
        # In a fork too: the number of torch's threads has to stay as it was.
        assert in_a_fork(lambda: begin(some, out, **options)) == 0
        return files_in(out)

    whole = made(tmp_path / "whole")
    assert any(".zarr/" in name for name in whole)
    for step in (0, 6, 11):
        out = tmp_path / str(step)
        assert in_a_fork(dying(step, out)) == -signal.SIGKILL
        assert made(out) == whole
        assert not list(out.rglob("*.part"))
    # Arrays without the shard's own file count for nothing.
    (out / "shards" / "000001.safetensors").unlink()
    chunk = next((out / "shards" / "000001.zarr").rglob("c/*/*/*/*"))
    chunk.write_bytes(b"stale")
    assert made(out) == whole


@needs_zarr
def test_a_cancelled_shard_leaves_no_array(begin: Begin, some: Path, tmp_path: Path) -> None:
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) > 2

    with pytest.raises(RunCancelled):
        begin(some, tmp_path, keep="whole", store="zarr", bad_limit=1, cancelled=cancelled)
    assert not list(tmp_path.glob("shards/*"))


def test_a_store_that_cannot_be_used(
    begin: Begin, some: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SurveyError, match="store is 'hdf5'; legal are 'safetensors', 'zarr'"):
        begin(some, tmp_path / "out", store="hdf5")
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(SurveyError, match=r"needs the package zarr.*hookviz\[survey\]"):
        begin(some, tmp_path / "out", store="zarr")


@needs_zarr
def test_bfloat16_is_not_for_zarr(begin: Begin, tmp_path: Path) -> None:
    class Half(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).bfloat16()

    images = [torch.rand(3, 8, 8) for _ in range(3)]
    options: Any = {"model": nn.Sequential(Half(3, 4, 3)), "layers": ["0"], "keep": "whole"}
    with pytest.raises(SurveyError, match=r"gives bfloat16, which zarr does not have.*float32"):
        begin(images, tmp_path / "a", store="zarr", **options)
    found = begin(images, tmp_path / "b", store="zarr", dtype="float32", **options)
    plain = begin(images, tmp_path / "c", **options)
    assert torch.equal(found.tensor("0"), plain.tensor("0").float())


@needs_pyarrow
def test_tables_hold_what_the_survey_says(begin: Begin, some: Path, tmp_path: Path) -> None:
    import pyarrow.parquet

    found = begin(some, tmp_path / "out", bad_limit=1)
    paths = found.to_parquet(tmp_path / "tables")
    tables = {path.stem: pyarrow.parquet.read_table(path).to_pylist() for path in paths}
    assert [row["name"] for row in tables["images"]] == [row.name for row in found.images]
    assert [(row["image"], row["reason"]) for row in tables["failures"]] == [
        (one.image, one.reason) for one in found.failures
    ]
    assert len(tables["statistics"]) == 6 + 5 + 6 + 4
    for row in tables["statistics"]:
        numbers = found.statistics(row["layer"])
        for name in ("mean", "std", "max", "max_image", "zeros", "dead", "count"):
            assert row[name] == getattr(numbers, name)[row["channel"]]
        assert row["max_place"] == numbers.max_place[row["channel"]].tolist()
    (row,) = [
        row for row in tables["top"]
        if (row["layer"], row["channel"], row["rank"]) == ("conv", 3, 2)
    ]  # fmt: skip
    hit = found.top("conv", 3)[1]
    assert (row["image"], row["value"], tuple(row["place"]), tuple(row["box"]), row["shows"]) == (
        hit.image, hit.value, hit.place, hit.box, hit.shows,
    )  # fmt: skip
    assert len(found.to_parquet(tmp_path / "tables")) == 4  # again
