"""Folders, lists, data sets, loaders and iterables give the same survey, or one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torchvision.datasets import ImageFolder

import hookviz
from hookviz.errors import RunCancelled, SurveyError

from .conftest import SIZE, Begin, digest


def paths_of(photos: Path) -> list[Path]:
    return sorted(photos.rglob("*.png"))


def inputs_of(photos: Path) -> list[torch.Tensor]:
    return [SIZE(hookviz.read_image(path)) for path in paths_of(photos)]


class Mappings(Dataset[dict[str, Any]]):
    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, at: int) -> dict[str, Any]:
        return {"label": 1, "image": hookviz.read_image(self.paths[at]).image}


class Streaming(IterableDataset[torch.Tensor]):
    def __init__(self, items: list[torch.Tensor]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.items)


def text_file(photos: Path, tmp_path: Path) -> Path:
    path = tmp_path / "list.txt"
    path.write_text("".join(f"{one}\n" for one in paths_of(photos)) + "\n")
    return path


SOURCES: dict[str, Callable[[Path, Path], Any]] = {
    "list of paths": lambda photos, tmp: paths_of(photos),
    "text file": text_file,
    "images": lambda photos, tmp: [hookviz.read_image(path) for path in paths_of(photos)],
    "ImageFolder": lambda photos, tmp: ImageFolder(str(photos)),
    "mappings": lambda photos, tmp: Mappings(paths_of(photos)),
    "inputs": lambda photos, tmp: inputs_of(photos),
    "TensorDataset": lambda photos, tmp: TensorDataset(torch.stack(inputs_of(photos))),
    "loader": lambda photos, tmp: DataLoader(TensorDataset(torch.stack(inputs_of(photos))), 4),
    "generator": lambda photos, tmp: iter(inputs_of(photos)),
    "IterableDataset": lambda photos, tmp: DataLoader(Streaming(inputs_of(photos)), 4),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same(
    source: str, begin: Begin, photos: Path, tmp_path: Path
) -> None:
    expected = begin(photos, tmp_path / "folder")
    found = begin(SOURCES[source](photos, tmp_path), tmp_path / "out")
    assert found.complete
    assert len(found.images) == 21
    for layer in found.layers:
        assert torch.equal(found.tensor(layer), expected.tensor(layer))
        mine, other = found.statistics(layer), expected.statistics(layer)
        for name in ("count", "mean", "std", "min", "min_image", "max", "max_image", "zeros"):
            assert (getattr(mine, name) == getattr(other, name)).all()
        assert [hit.image for hit in found.top(layer, 1)] == [
            hit.image for hit in expected.top(layer, 1)
        ]
    hit = found.top("conv", 0)[0]
    assert (hit.crop is None) == (source in ("generator", "IterableDataset"))
    assert found.images[3].label == ""
    assert expected.images[3].label in ("even", "odd")


def test_a_loader_that_shuffles_is_refused(begin: Begin, photos: Path, tmp_path: Path) -> None:
    data = TensorDataset(torch.stack(inputs_of(photos)))
    for loader in (
        DataLoader(data, 4, shuffle=True),
        DataLoader(data, sampler=torch.utils.data.SubsetRandomSampler([1, 2])),
        DataLoader(data, sampler=[3, 1]),
    ):
        with pytest.raises(SurveyError, match=r"shuffles or samples .*shuffle=False"):
            begin(loader, tmp_path)


def test_an_iterable_is_gone_on_with(begin: Begin, photos: Path, tmp_path: Path) -> None:
    inputs = inputs_of(photos)
    begin(iter(inputs), tmp_path / "whole")
    told: list[Any] = []
    with pytest.raises(RunCancelled):
        begin(iter(inputs), tmp_path / "out", progress=told.append, cancelled=lambda: bool(told))
    half = hookviz.open_survey(tmp_path / "out")
    assert not half.complete
    assert half.statistics("conv").images == len(half.images) == 6
    begin(iter(inputs), tmp_path / "out")
    for name in ("shards/000000.safetensors", "shards/000003.safetensors", "summary.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with pytest.raises(SurveyError, match="neither parts nor new images"):
        begin(iter(inputs), tmp_path / "new", part="1/2")


def test_an_iterable_that_ended_early_is_read_as_far_as_it_is_done(
    begin: Begin, photos: Path, tmp_path: Path
) -> None:
    inputs = inputs_of(photos)[:4]
    with pytest.raises(SurveyError, match="2 of 6 images cannot be read"):
        begin(iter([*inputs, "no file", "none"]), tmp_path, keep="whole")
    found = hookviz.open_survey(tmp_path)
    assert found.images_read() == [0, 1, 2, 3]
    assert found.tensor("conv").shape[0] == len(found.tensor("conv", [3, 0])) + 2
    assert found.notes == ("1 of 1 shards are done; the numbers are over these.",)


def test_what_was_known_of_an_iterable_is_not_taken_for_all_of_it(
    begin: Begin, photos: Path, tmp_path: Path
) -> None:
    inputs: list[Any] = inputs_of(photos)[:18]
    inputs[7] = "no file"
    told: list[Any] = []
    with pytest.raises(RunCancelled, match=r"cancelled; 1 shards are kept"):
        begin(iter(inputs), tmp_path, progress=told.append, cancelled=lambda: bool(told))
    begin(iter(inputs), tmp_path, progress=told.append, bad_limit=0.1)  # of the first six it is 1/6
    assert [(one.images_done, one.images, one.seconds_left) for one in told] == [
        (6, 0, None), (12, 0, None), (18, 0, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (3, "data is int; it must be a folder"),
        (b"bytes", "holds no image|None of the images|data is bytes"),
        ({"a": 1}, "data is dict"),
        ([{"picture": 1}], "A row has no image: it has 'picture'"),
        ([object()], "None of the images can be read"),
    ],
)
def test_what_is_no_data(data: Any, words: str, begin: Begin, tmp_path: Path) -> None:
    with pytest.raises(SurveyError, match=words):
        begin(data, tmp_path)


def test_a_single_image_is_no_data(begin: Begin, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(SurveyError, match="is a PNG image; a survey takes a folder"):
        begin(paths_of(photos)[0], tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"shard": 2.5}, "shard is 2.5"),
        ({"top": True}, "top is True"),
        ({"keep": "all"}, "keep is 'all'; legal are 'none', 'pooled', 'whole'"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"part": "4/3"}, "part is '4/3'"),
        ({"part": "0/3"}, "part is '0/3'"),
        ({"part": "x"}, "part is 'x'"),
        ({"bad_limit": 2}, "bad_limit is 2"),
        ({"engine": "spark"}, "engine is 'spark'; legal are 'here', 'ray'"),
        ({"layers": "cov"}, "'conv'"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    change: dict[str, Any], words: str, begin: Begin, photos: Path, tmp_path: Path
) -> None:
    with pytest.raises(hookviz.HookvizError, match=words):
        begin(photos, tmp_path / "out", **change)
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_place_of_the_folder(begin: Begin, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SurveyError, match="it is a file, not a folder"):
        begin(photos, tmp_path / "file")
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(SurveyError, match="is not the manifest of a survey"):
        begin(photos, tmp_path)


def test_nothing_is_left_on_the_model(begin: Begin, photos: Path, tmp_path: Path) -> None:
    from .conftest import small_net

    net = small_net().train()
    begin(photos, tmp_path, model=net, preprocess=SIZE)
    assert net.training
    assert not any(module._forward_hooks for module in net.modules())
    first = digest(tmp_path)
    assert digest(begin(photos, tmp_path / "b", model=net.eval(), preprocess=SIZE).folder) == first
