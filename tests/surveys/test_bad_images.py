"""What cannot be read is a reason, and every other value stays as it was."""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import hookviz
from hookviz.errors import SurveyError

from .conftest import Begin, digest, small_net


def test_an_unreadable_image_changes_no_other_value(
    begin: Begin, photos: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(photos, data)
    whole = begin(data, tmp_path / "whole", keep="whole")
    names = [row.name for row in whole.images]
    bad = [1, 7, 8, 20]
    (data / names[1]).write_bytes(b"")
    (data / names[7]).write_text("no image at all")
    (data / names[8]).write_bytes((data / names[8]).read_bytes()[:100])
    (data / names[20]).write_bytes(b"\xff\xd8\xff" + bytes(200))
    found = begin(data, tmp_path / "bad", keep="whole", bad_limit=0.5)
    assert [one.image for one in found.failures] == bad
    assert [one.name for one in found.failures] == [names[at] for at in bad]
    assert "an empty file" in found.failures[0].reason
    assert "a text" in found.failures[1].reason
    assert "cut short" in found.failures[2].reason
    good = [at for at in range(21) if at not in bad]
    assert found.images_read() == good
    for layer in found.layers:
        assert torch.equal(found.tensor(layer), whole.tensor(layer, good))
        assert found.statistics(layer).images == 17
        assert not {hit.image for hit in found.top(layer, 0)} & set(bad)
    with pytest.raises(SurveyError, match=r"Image 7 is not kept: .* a text"):
        found.tensor("conv", [7])


def test_all_kinds_of_files(begin: Begin, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "a b").mkdir(parents=True)
    random = np.random.default_rng(0)
    image = Image.fromarray(random.integers(0, 256, (30, 40, 3), dtype=np.uint8))
    image.save(data / "plain.png")
    shutil.copy(data / "plain.png", data / "a b" / "same.png")
    shutil.copy(data / "plain.png", data / "with\nnewline é.png")
    image.convert("CMYK").save(data / "cmyk.jpg")
    deep = random.integers(0, 65536, (30, 40), dtype=np.uint16)
    Image.fromarray(deep).save(data / "deep.png")
    image.save(data / "exif.jpg", exif=b"Exif\0\0" + b"MM\0*" + struct.pack(">I", 8) + b"\xff" * 40)
    image.convert("P").save(data / "palette.gif")
    odd = os.fsdecode(os.fsencode(data) + b"/\xff\xfe.png")
    shutil.copy(data / "plain.png", odd)
    (data / "notes.txt").write_text("left out")
    (data / "loop").symlink_to(data)
    (data / "nowhere.png").symlink_to(data / "gone")
    (data / ".hidden.png").write_bytes(b"")
    os.mkfifo(data / "pipe.png")
    found = begin(data, tmp_path / "out", bad_limit=0.5)
    names = [row.name for row in found.images]
    assert names == sorted(names)
    assert set(names) == {
        "plain.png", "a b/same.png", "with\nnewline é.png", "cmyk.jpg", "deep.png", "exif.jpg",
        "palette.gif", Path(odd).name, "nowhere.png",
    }  # fmt: skip
    assert [one.name for one in found.failures] == ["nowhere.png"]
    rows = {name: found.tensor("conv", [at])[0] for at, name in enumerate(names)
            if name != "nowhere.png"}  # fmt: skip
    torch.testing.assert_close(rows["plain.png"], rows["a b/same.png"])
    assert {row.name: row.label for row in found.images}["a b/same.png"] == "a b"
    assert "1 file was left out" in found.notes[0]
    hits = found.top("conv", 0, count=16)
    assert all(hit.crop is not None for hit in hits)
    assert Path(hits[0].path).exists()


def test_images_that_vanish_or_change_midway(begin: Begin, photos: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(photos, data)
    names = sorted(path.relative_to(data).as_posix() for path in data.rglob("*.png"))

    def meddle(_progress: Any) -> None:
        if (data / names[10]).exists():
            (data / names[10]).unlink()
            write = Image.new("RGB", (9, 9))
            write.save(data / names[15])

    found = begin(data, tmp_path / "out", bad_limit=0.5, progress=meddle)
    assert [one.name for one in found.failures] == [names[10], names[15]]
    assert "There is no file" in found.failures[0].reason
    assert "changed after the survey was begun" in found.failures[1].reason
    assert found.complete
    assert digest(tmp_path / "out") == digest(begin(data, tmp_path / "out", bad_limit=0.5).folder)


def test_too_many_bad_images_end_it(begin: Begin, photos: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(photos, data)
    paths = sorted(data.rglob("*.png"))
    for path in paths[8:11]:
        path.write_bytes(b"")
    with pytest.raises(SurveyError) as caught:
        begin(data, tmp_path / "out", bad_limit=0.1)
    assert "3 of 21 images cannot be read so far, more than bad_limit=0.1" in caught.value.message
    assert "1 of 4 shards are kept" in caught.value.message
    assert paths[8].name in caught.value.message
    found = begin(data, tmp_path / "out", bad_limit=0.2)
    assert found.complete
    assert len(found.failures) == 3


def test_nothing_to_survey(begin: Begin, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for data in (empty, []):
        with pytest.raises(SurveyError, match="holds no image"):
            begin(data, tmp_path / "out")
    (empty / "readme.txt").write_text("")
    with pytest.raises(SurveyError, match="1 file was left out"):
        begin(empty, tmp_path / "out")
    (empty / "bad.png").write_bytes(b"")
    with pytest.raises(SurveyError, match=r"None of the images can be read.*an empty file"):
        begin(empty, tmp_path / "out")
    with pytest.raises(SurveyError, match="No such file"):
        begin(tmp_path / "nowhere", tmp_path / "out")


class Fails(nn.Module):
    """A model that fails on some batches, for so many times."""

    def __init__(self, brightest: float, times: int) -> None:
        super().__init__()
        self.net, self.brightest, self.times = small_net(), brightest, times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.max() > self.brightest and self.times:
            self.times -= 1
            raise RuntimeError("too bright")
        return self.net(x)


def bright_at(*places: int) -> list[torch.Tensor]:
    images = [torch.rand(3, 24, 24, generator=torch.Generator().manual_seed(n)) for n in range(14)]
    for place in places:
        images[place] = images[place] + 5
    return images


def test_a_model_that_fails_once_is_tried_again(begin: Begin, tmp_path: Path) -> None:
    model = Fails(2.0, times=1)
    found = begin(bright_at(7), tmp_path, model=model, layers=["net.conv"])
    assert model.times == 0
    assert found.complete
    assert not found.failures


def test_a_shard_on_which_the_model_fails_is_listed_and_made_later(
    begin: Begin, tmp_path: Path
) -> None:
    found = begin(bright_at(7), tmp_path, model=Fails(2.0, times=2), layers=["net.conv"])
    assert not found.complete
    (failure,) = found.failures
    assert (failure.image, failure.name) == (None, "shard 1")
    assert "Images 6 to 8: the model failed" in failure.reason
    assert "RuntimeError: too bright" in failure.reason
    assert found.statistics("net.conv").images == 8
    assert found.top("net.conv", 0)[0].crop is not None
    again = begin(bright_at(7), tmp_path, model=Fails(2.0, times=0), layers=["net.conv"])
    assert again.complete
    assert not again.failures
    assert again.statistics("net.conv").images == 14
    assert again.top("net.conv", 0)[0].image == 7
    whole = begin(bright_at(7), tmp_path / "new", model=Fails(2.0, times=0), layers=["net.conv"])
    assert digest(whole.folder) == digest(again.folder)


def test_memory_that_is_too_small_names_the_batch_that_fits(begin: Begin, tmp_path: Path) -> None:
    class Hungry(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small_net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return self.net(x)

    with pytest.raises(SurveyError, match=r"with a batch of 6.*batch=3"):
        begin(bright_at(), tmp_path, model=Hungry(), layers=["net.conv"], batch=6)
    assert not list(tmp_path.rglob("*.part"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(begin: Begin, photos: Path, tmp_path: Path, small_disk: Path) -> None:
    if importlib.util.find_spec("zarr") is not None:
        out = small_disk / "zarr"
        with pytest.raises(SurveyError, match="the disk is full"):
            begin(photos, out, keep="whole", store="zarr")
        assert not list(out.rglob("*.part"))
        assert not hookviz.open_survey(out).complete
        shutil.rmtree(out)
    out = small_disk / "out"
    with pytest.raises(SurveyError, match="the disk is full"):
        begin(photos, out, keep="whole")
    assert not list(out.rglob("*.part"))
    kept = hookviz.open_survey(out)
    assert not kept.complete
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    begin(photos, out, keep="whole")
    assert digest(out) == digest(begin(photos, tmp_path / "whole", keep="whole").folder)


def test_a_damaged_shard_is_named(begin: Begin, photos: Path, tmp_path: Path) -> None:
    begin(photos, tmp_path)
    shard = tmp_path / "shards" / "000001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-8])
    (tmp_path / "summary.safetensors").unlink()
    with pytest.raises(SurveyError, match=r"000001\.safetensors"):
        hookviz.open_survey(tmp_path).statistics("conv")
    with pytest.raises(SurveyError, match="is damaged: cut short"):
        _ = hookviz.open_survey(tmp_path).failures
    shard.unlink()
    whole = begin(photos, tmp_path / "whole")
    assert digest(begin(photos, tmp_path).folder) == digest(whole.folder)


def test_other_sizes_than_the_first_are_refused_one_by_one(begin: Begin, tmp_path: Path) -> None:
    images = [torch.zeros(3, 24, 24), torch.zeros(3, 24, 25), torch.zeros(3, 24, 24)]
    found = begin(images, tmp_path, bad_limit=0.5)
    assert [one.image for one in found.failures] == [1]
    assert "would be 3×24×25" in found.failures[0].reason
