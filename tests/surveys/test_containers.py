"""Tar files, parquet files and Hugging Face's data sets give what the folder of images gives."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hookviz
from hookviz.errors import ImageError, RunCancelled, SurveyError

from .conftest import LAYERS, Begin, digest

needs_tables = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("pyarrow", "datasets")),
    reason="no pyarrow or datasets here",
)


def paths_of(photos: Path) -> list[Path]:
    return sorted(photos.rglob("*.png"))


def add(tar: tarfile.TarFile, name: str, data: bytes, **more: Any) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for key, value in more.items():
        setattr(member, key, value)
    tar.addfile(member, io.BytesIO(data))


def write_tars(photos: Path, folder: Path, each: int = 8) -> Path:
    """Samples of an image, a class and a text, in files of a few."""
    folder.mkdir(exist_ok=True)
    paths = paths_of(photos)
    for start in range(0, len(paths), each):
        with tarfile.open(folder / f"train-{start:03d}.tar", "w") as tar:
            for path in paths[start : start + each]:
                add(tar, f"./{path.stem}.json", b"{}")
                add(tar, f"./{path.stem}.png", path.read_bytes())
                add(tar, f"./{path.stem}.cls", path.parent.name.encode())
    return folder


def features() -> Any:
    import datasets

    classes = datasets.ClassLabel(names=["even", "odd"])
    return datasets.Features({"label": classes, "image": datasets.Image()})


def data_set(photos: Path) -> Any:
    import datasets

    rows = [
        {"image": {"bytes": path.read_bytes(), "path": path.name}, "label": path.parent.name}
        for path in paths_of(photos)
    ]
    return datasets.Dataset.from_list(rows, features=features())


def write_parquet(photos: Path, folder: Path) -> Path:
    """Two files, several groups of rows each."""
    folder.mkdir(exist_ok=True)
    data = data_set(photos)
    for number, rows in enumerate((range(13), range(13, 21))):
        table = data.select(rows).with_format("arrow")[:]
        import pyarrow.parquet

        table = table.replace_schema_metadata(data.data.schema.metadata)
        pyarrow.parquet.write_table(table, folder / f"part-{number}.parquet", row_group_size=5)
    return folder


def saved(photos: Path, folder: Path) -> Path:
    data_set(photos).save_to_disk(str(folder))
    return folder


CONTAINERS: dict[str, Callable[[Path, Path], Any]] = {
    "tar folder": write_tars,
    "tar pattern": lambda photos, at: str(write_tars(photos, at) / "train-*.tar"),
    "tar list": lambda photos, at: sorted(write_tars(photos, at).glob("*.tar")),
    "parquet": write_parquet,
    "data set": lambda photos, at: data_set(photos),
    "saved data set": saved,
    "streamed": lambda photos, at: data_set(photos).to_iterable_dataset(),
}
NEEDS_TABLES = ("parquet", "data set", "saved data set", "streamed")


@pytest.fixture(scope="module")
def expected(
    net: hookviz.LoadedModel, photos: Path, tmp_path_factory: pytest.TempPathFactory
) -> hookviz.Survey:
    out = tmp_path_factory.mktemp("expected")
    options: Any = {"batch": 3, "shard": 6, "top": 4, "workers": 0, "keep": "pooled"}
    return hookviz.survey(net, photos, LAYERS, out, **options)


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[needs_tables] * (k in NEEDS_TABLES)) for k in CONTAINERS]
)
def test_what_holds_images_gives_what_the_folder_gives(
    kind: str, begin: Begin, photos: Path, expected: hookviz.Survey, tmp_path: Path
) -> None:
    data = CONTAINERS[kind](photos, tmp_path / "data")
    found = begin(data, tmp_path / "out", workers=2 if kind in ("tar folder", "parquet") else 0)
    assert found.complete
    assert not found.failures
    assert len(found.images) == 21
    for layer in found.layers:
        assert torch.equal(found.tensor(layer), expected.tensor(layer))
        mine, other = found.top(layer, 1), expected.top(layer, 1)
        assert [(hit.image, hit.value) for hit in mine] == [(hit.image, hit.value) for hit in other]
        if kind != "streamed":
            assert [hit.label for hit in mine] == [hit.label for hit in other]
            assert [hit.crop.tobytes() for hit in mine if hit.crop] == [
                hit.crop.tobytes() for hit in other if hit.crop
            ]
        assert {hit.path for hit in mine} == {""}
    if kind.startswith(("tar", "parquet")):
        picture = found.picture(20)
        assert picture.image.tobytes() == expected.picture(20).image.tobytes()
        assert begin(data, tmp_path / "out").complete  # the same again
        with pytest.raises(SurveyError, match="Image 21 is not in the survey: the survey has"):
            found.picture(21)
    else:
        with pytest.raises(ImageError, match=r"came from a .*, without a file"):
            found.picture(0)


def test_rows_of_tar_files_are_called_by_file_and_name(
    begin: Begin, photos: Path, tmp_path: Path
) -> None:
    found = begin(write_tars(photos, tmp_path / "data"), tmp_path / "out")
    names = [path.stem for path in paths_of(photos)]
    assert [row.name for row in found.images] == [
        f"train-{at // 8 * 8:03d}.tar/./{name}.png" for at, name in enumerate(names)
    ]


def test_a_survey_of_tar_files_is_gone_on_with_and_extended(
    begin: Begin, photos: Path, tmp_path: Path
) -> None:
    data = write_tars(photos, tmp_path / "data")
    begin(data, tmp_path / "whole")
    told: list[Any] = []
    with pytest.raises(RunCancelled):
        begin(data, tmp_path / "out", progress=told.append, cancelled=lambda: bool(told))
    begin(data, tmp_path / "out")
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")
    shutil.copy(data / "train-000.tar", data / "a.tar")
    with pytest.raises(SurveyError, match=r"8 images .* lacks: 'a\.tar/.*extend=True"):
        begin(data, tmp_path / "out")
    found = begin(data, tmp_path / "out", extend=True)
    assert [row.file for row in found.images[20:]] == ["train-016.tar"] + ["a.tar"] * 8
    assert torch.equal(found.tensor("conv", [21]), found.tensor("conv", [0]))
    assert len(begin(data, tmp_path / "out").images) == 29
    with (data / "train-008.tar").open("ab") as file:
        file.write(bytes(512))
    with pytest.raises(SurveyError, match=r"'train-008\.tar' was changed after the survey"):
        begin(data, tmp_path / "out")
    with pytest.raises(ImageError, match=r"'train-008\.tar' was changed"):
        found.picture(8)


def test_names_in_a_tar_file_open_nothing_and_bad_members_are_reasons(
    begin: Begin, photos: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    good = paths_of(photos)[0].read_bytes()
    with tarfile.open(data / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        add(tar, "../../up.png", good)
        add(tar, "/etc/absolute.png", good)
        add(tar, "link.png", b"", type=tarfile.SYMTYPE, linkname=str(paths_of(photos)[0]))
        add(tar, "pipe.png", b"", type=tarfile.FIFOTYPE)
        add(tar, "text.png", b"no image")
        add(tar, "empty.png", b"")
        add(tar, "folder.png", b"", type=tarfile.DIRTYPE)
        add(tar, "k/" + "long" * 60 + "é.PNG", good)
        add(tar, "two.mask.png", b"a mask")
        add(tar, "two.png", good)
        add(tar, "only.cls", b"3")
    whole = (data / "a.tar").read_bytes()
    (data / "cut.tar").write_bytes(whole[:2000])
    (data / "none.tar").write_bytes(b"no tar file at all, but long enough for one" * 50)
    second = 512 + -(-len(good) // 512) * 512  # where its header begins
    (data / "torn.tar").write_bytes(whole[:second] + b"\7" * 512 + whole[second + 512 :])
    (data / "void.tar").write_bytes(b"")
    (tmp_path / "up.png").write_bytes(b"what the name would lead to")
    found = begin(data, tmp_path / "out", bad_limit=1)
    torch.testing.assert_close(*found.tensor("conv", [0, 1]))
    reasons = {one.name: one.reason for one in found.failures}
    assert set(reasons) == {
        "a.tar/link.png", "a.tar/pipe.png", "a.tar/text.png", "a.tar/empty.png",
        *(name for name in reasons if not name.startswith("a.tar")),
    }  # fmt: skip
    assert "a link or something else" in reasons["a.tar/link.png"]
    assert "a text" in reasons["a.tar/text.png"]
    assert "cut.tar" in str([name for name in reasons if "byte" in name])
    assert reasons["none.tar, byte 0"].startswith("'none.tar' is damaged from byte 0 on")
    assert any(name == f"torn.tar, byte {second}" for name in reasons)
    assert "1 image was left out of 'a.tar'" in found.notes[0]
    rows = {row.name: row for row in found.images}
    assert rows["a.tar/k/" + "long" * 60 + "é.PNG"].label == "k"
    assert "a.tar/two.png" in rows
    assert len([name for name in rows if name.startswith("a.tar/")]) == 8
    assert not any(hit.path for hit in found.top("conv", 0))


def test_a_header_that_claims_much_takes_no_memory(tmp_path: Path, begin: Begin) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        member = tarfile.TarInfo("././@LongLink")
        member.type, member.size = tarfile.GNUTYPE_LONGNAME, 7 << 30
        tar.fileobj.write(member.tobuf(tarfile.GNU_FORMAT))  # type: ignore[union-attr]
    with pytest.raises(SurveyError, match="a header of it would take too much memory"):
        begin(tmp_path / "a.tar", tmp_path / "out")


@needs_tables
def test_rows_of_tables_that_hold_no_image_are_reasons(
    begin: Begin, photos: Path, tmp_path: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    path = paths_of(photos)[0]
    cells = [path.read_bytes(), b"no image", None, path.read_bytes()[:90], path.read_bytes()]
    table = pa.table({"text": ["x"] * 5, "jpg": pa.array(cells, pa.binary()), "cls": range(5)})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    found = begin(tmp_path / "a.parquet", tmp_path / "out", bad_limit=1)
    reasons = {one.image: one.reason for one in found.failures}
    assert sorted(reasons) == [1, 2, 3]
    assert "a text" in reasons[1]
    assert reasons[2] == "The row holds no image."
    assert "cut short" in reasons[3]
    assert [row.label for row in found.images] == ["0", "1", "2", "3", "4"]
    torch.testing.assert_close(*found.tensor("fc", [0, 4]))
    # A path in a table is opened by nobody.
    rows = {"image": pa.array([{"bytes": None, "path": str(path)}])}
    pa.parquet.write_table(pa.table(rows), tmp_path / "b.parquet")
    with pytest.raises(SurveyError, match="holds the path of an image, and not the image itself"):
        begin(tmp_path / "b.parquet", tmp_path / "b")


@needs_tables
def test_what_is_no_table_of_images(
    begin: Begin, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet

    binary = pa.array([b"x"], pa.binary())
    for name, columns in {
        "none": {"text": ["x"]},
        "two": {"left": binary, "right": binary},
    }.items():
        pa.parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 no more")
    splits = datasets.DatasetDict({"train": data_set(photos), "test": data_set(photos)})
    splits.save_to_disk(str(tmp_path / "splits"))
    for data, more, words in (
        ("none.parquet", {}, "has no column of images; it has 'text'"),
        ("two.parquet", {}, r"several columns .* 'left', 'right'.*column='left'"),
        ("two.parquet", {"column": "rigth"}, "no column 'rigth'.*Did you mean 'right'"),
        ("torn.parquet", {}, "cannot be read as parquet"),
        ("splits", {}, "several splits: 'test', 'train'"),
    ):
        with pytest.raises(SurveyError, match=words):
            begin(tmp_path / data, tmp_path / "out", **more)
    with pytest.raises(SurveyError, match="several splits: 'train', 'test'"):
        begin(splits, tmp_path / "out")
    with pytest.raises(SurveyError, match="column='image' is for tables"):
        begin(photos, tmp_path / "out", column="image")
    assert begin(tmp_path / "splits" / "train", tmp_path / "train", top=1).complete
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(SurveyError, match=r"need the package pyarrow.*hookviz\[survey\]"):
        begin(tmp_path / "two.parquet", tmp_path / "out")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SurveyError, match=r"needs the package datasets.*hookviz\[survey\]"):
        begin(tmp_path / "splits" / "train", tmp_path / "out")


@needs_tables
def test_another_version_of_a_data_set_is_noticed(
    begin: Begin, photos: Path, tmp_path: Path
) -> None:
    import datasets

    data = datasets.load_from_disk(str(saved(photos, tmp_path / "data")))
    begin(data.select(range(15)), tmp_path / "out")
    with pytest.raises(SurveyError, match="another version of the data set: its fingerprint"):
        begin(data.select(range(1, 16)), tmp_path / "out")
    with pytest.raises(SurveyError, match=r"6 images .* lacks"):
        begin(data, tmp_path / "out")
    assert begin(data, tmp_path / "out", extend=True).statistics("conv").images == 21
    assert begin(data, tmp_path / "out").complete
    with pytest.raises(SurveyError, match="has 15 rows, and the survey was begun with 21"):
        begin(data.select(range(15)), tmp_path / "out")


@needs_tables
def test_an_image_of_a_data_set_in_memory_that_changed_is_noticed(
    begin: Begin, photos: Path, tmp_path: Path
) -> None:
    import datasets

    begin(data_set(photos).select(range(9)), tmp_path / "out")
    assert begin(data_set(photos).select(range(9)), tmp_path / "out", progress=pytest.fail).complete
    rows = list(data_set(photos).cast_column("image", datasets.Image(decode=False)))[:9]
    assert begin(datasets.Dataset.from_list(rows, features=features()), tmp_path / "out").complete
    # Not the first, whose pixels are compared in any case.
    rows[7]["image"]["bytes"] = rows[8]["image"]["bytes"]
    changed = datasets.Dataset.from_list(rows, features=features())
    assert not changed.cache_files
    with pytest.raises(SurveyError, match="another version of the data set: its fingerprint"):
        begin(changed, tmp_path / "out")


@needs_tables
@pytest.mark.parametrize("before", [1, 3])
def test_parquet_files_are_gone_on_with_and_extended_midway(
    before: int, begin: Begin, photos: Path, tmp_path: Path
) -> None:
    first, second = sorted(write_parquet(photos, tmp_path / "all").glob("*.parquet"))
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy2(first, data)  # thirteen images: three shards, of which some are made
    told: list[Any] = []
    for out in ("out", "once"):
        told.clear()
        with pytest.raises(RunCancelled):
            begin(data, tmp_path / out, progress=told.append, cancelled=lambda: len(told) >= before)
        assert len(list((tmp_path / out / "shards").iterdir())) == before
    begin(data, tmp_path / "once")  # gone on with, and extended when it was complete
    untouched = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("shards/*")}
    shutil.copy2(second, data)
    with pytest.raises(SurveyError, match=r"8 images .* lacks: 'part-1\.parquet/0'.*extend=True"):
        begin(data, tmp_path / "out")
    found = begin(data, tmp_path / "out", extend=True)
    begin(data, tmp_path / "once", extend=True)
    assert found.complete
    assert found.statistics("conv").images == 21
    assert {path: path.stat().st_mtime_ns for path in untouched} == untouched
    assert digest(tmp_path / "out") == digest(tmp_path / "once")
    whole = begin(photos, tmp_path / "whole")
    for layer in whole.layers:
        assert [(hit.image, hit.value, hit.place) for hit in found.top(layer, 2)] == [
            (hit.image, hit.value, hit.place) for hit in whole.top(layer, 2)
        ]


@pytest.mark.parametrize("name", ["packed.tar.gz", "packed.tgz"])
def test_a_packed_tar_file_is_refused(
    name: str, begin: Begin, photos: Path, tmp_path: Path
) -> None:
    with tarfile.open(tmp_path / name, "w:gz") as tar:
        tar.add(paths_of(photos)[0], "a.png")
    with pytest.raises(SurveyError, match=r"is a gzip archive; .*Unpack it first"):
        begin(tmp_path / name, tmp_path / "out")


def test_plans_of_files_alone_have_short_lines(begin: Begin, photos: Path, tmp_path: Path) -> None:
    begin(photos, tmp_path)
    lines = (tmp_path / "images-00000.jsonl").read_text().splitlines()
    assert [len(json.loads(line)) for line in lines] == [4] * 21
    assert os.fspath(hookviz.open_survey(tmp_path).images[3].file) == ""
