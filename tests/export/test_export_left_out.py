"""What cannot be exported: a reason for that layer, or one sentence, and the rest is exported."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode

from hookviz.activation import Activation
from hookviz.errors import ExportError, HookvizError, RenderError
from hookviz.export import (
    ExportStopped,
    RunFacts,
    read_png_facts,
    reproduce_png,
    write_export,
    zip_export,
)
from hookviz.render import GridOptions

Make = Callable[..., Activation]
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
]


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.rand(1, 3, 4, 4)


def freed() -> torch.Tensor:
    tensor = torch.rand(1, 3, 4, 4)
    tensor.untyped_storage().resize_(0)
    return tensor


def maps() -> torch.Tensor:
    return torch.arange(48.0).reshape(1, 3, 4, 4) / 10


# Kinds of tensor that a layer may give, and whether each part can be written of it.
TENSORS: dict[str, tuple[Callable[[], torch.Tensor], set[str]]] = {
    "float16": (lambda: maps().half(), {"grids", "channels", "npz", "safetensors"}),
    "bfloat16": (lambda: maps().bfloat16(), {"grids", "channels", "npz", "safetensors"}),
    "int64": (lambda: maps().long(), {"grids", "channels", "npz", "safetensors"}),
    "bool": (lambda: maps() > 2, {"grids", "channels", "npz", "safetensors"}),
    "complex": (lambda: torch.complex(maps(), maps()).conj(), {"npz", "safetensors"}),
    "sparse": (lambda: maps().to_sparse(), {"npz", "safetensors"}),
    "sparse-csr": (lambda: maps()[0, 0].to_sparse_csr(), {"npz", "safetensors"}),
    "quantised": (
        lambda: torch.quantize_per_tensor(maps(), 0.1, 0, torch.quint8),
        {"grids", "channels", "npz", "safetensors"},
    ),
    "negated view": (lambda: torch._neg_view(maps()), {"grids", "npz", "safetensors"}),
    "on meta": (lambda: maps().to("meta"), set()),
    "fake": (fake, set()),
    "freed": (freed, set()),
    "four bits": (
        lambda: torch.zeros(1, 3, 4, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        {"safetensors"},
    ),
    "empty": (lambda: torch.zeros(1, 0, 4, 4), {"npz", "safetensors"}),
    "six axes": (lambda: torch.zeros(1, 2, 3, 4, 5, 6), {"npz", "safetensors"}),
}


@pytest.mark.parametrize("part", ["grids", "channels", "contact", "npz", "safetensors"])
@pytest.mark.parametrize("kind", TENSORS)
def test_a_tensor_of_any_kind_is_written_or_a_reason_and_the_other_layer_is_written(
    tmp_path: Path, facts: RunFacts, record: Make, kind: str, part: str
) -> None:
    make, fit = TENSORS[kind]
    choice: dict[str, Any] = {"what": part}
    if part in {"npz", "safetensors"}:
        choice = {"what": "values", "values": part}
    activations = [record("odd", make(), order=1), record("good", maps(), order=2)]
    seen: list[tuple[int, int]] = []
    result = write_export(
        facts,
        activations,
        tmp_path,
        progress=lambda done, total, name: seen.append((done, total)),
        **choice,
    )
    odd, good = json.loads(result.manifest.read_text())["layers"]
    assert part == "contact" or good["files"]
    assert good["channels"]["max"] == [pytest.approx(n) for n in (1.5, 3.1, 4.7)]
    if part in fit:
        assert odd["files"]
    if not odd["files"] and part != "contact":
        assert odd["notes"]
        assert any(note.startswith("odd: ") for note in result.notes)
    assert {p.name for p in result.files} == {p.name for p in result.folder.iterdir()} - {
        "manifest.json"
    }
    assert seen[-1] == (len(seen), len(seen))


@pytest.mark.parametrize("kind", ["on meta", "fake", "four bits"])
def test_where_nothing_can_be_drawn_one_sentence_says_why_and_no_folder_stays(
    tmp_path: Path, facts: RunFacts, record: Make, kind: str
) -> None:
    for what in ("grids", "channels", "contact"):
        with pytest.raises(RenderError) as caught:
            write_export(facts, [record("odd", TENSORS[kind][0]())], tmp_path, what=what)
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_values_that_fail_are_noted_in_the_manifest_with_what_to_use_instead(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    activations = [record("wide", torch.zeros(2, 2, dtype=torch.complex128)), record("good")]
    result = write_export(facts, activations, tmp_path, what="values", values="safetensors")
    *_, note = json.loads(result.manifest.read_text())["layers"][0]["notes"]
    assert "torch.complex128" in note
    assert "values='npz'" in note
    again = write_export(facts, activations, tmp_path, what="values", values="npz")
    assert len(again.files) == 2


@pytest.mark.parametrize("form", ["npz", "safetensors"])
def test_values_on_a_full_disk_are_one_sentence(
    small_disk: Path, facts: RunFacts, record: Make, form: str
) -> None:
    with pytest.raises(ExportStopped, match="the disk is full"):
        write_export(
            facts, [record("big", torch.rand(1, 64, 32, 32))], small_disk, what="values",
            values=form,
        )  # fmt: skip
    assert list(small_disk.iterdir()) == []


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"folder": 3}, "folder is 3"),
    ({"folder": None}, "folder is None"),
    ({"folder": b"x"}, "folder is b'x'"),
    ({"name": 3}, "name is 3"),
    ({"options": {"cmap": "gray"}}, "GridOptions"),
    ({"options": 3}, "GridOptions"),
    ({"what": 3}, "what is 3"),
    ({"what": None}, "what is None"),
    ({"what": [3]}, "'3'"),
    ({"layers": 3}, "layers is 3"),
    ({"layers": [3]}, "Layer '3'"),
    ({"layers": []}, "nothing to export"),
    ({"what": "channels", "channels": "abc"}, "abc"),
    ({"what": "channels", "channels": [1.5]}, "1.5"),
    ({"what": "channels", "channels": [-1]}, "-1"),
    ({"what": "channels", "channels": []}, "channels is empty"),
    ({"values": None}, "None"),
    ({"progress": 3}, "progress is 3"),
    ({"cancelled": 3}, "cancelled is 3"),
]


@pytest.mark.parametrize(("choice", "part"), WRONG, ids=lambda v: str(v)[:40])
def test_an_argument_of_a_wrong_kind_is_one_sentence(
    tmp_path: Path, facts: RunFacts, record: Make, choice: dict[str, Any], part: str
) -> None:
    arguments = {"folder": tmp_path / "out"} | choice
    with pytest.raises(HookvizError) as caught:
        write_export(facts, [record()], **arguments)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_one_channel_may_be_a_plain_number(tmp_path: Path, facts: RunFacts, record: Make) -> None:
    result = write_export(facts, [record()], tmp_path, what="channels", channels=1)
    assert [path.name[-9:] for path in result.files] == ["ch001.png"]


@pytest.mark.parametrize("png", [3, None, object(), [b""]])
def test_what_is_no_path_is_no_png(png: Any) -> None:
    with pytest.raises(ExportError, match="it must be a path"):
        read_png_facts(png)


NAMES = [
    "猫.png",
    "🐈‍⬛.png",
    "\u202egnp.exe",
    "قطة.png",
    "a\tb\nc.png",
    "x" * 300 + ".png",
    "con.png",
    "LPT1",
    "\udcff.png",
    "..png",
    "a/b\\c:d.png",
    "",
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_an_image_of_any_name_gives_portable_names_and_its_own_name_back(
    tmp_path: Path, make_facts: Callable[..., RunFacts], record: Make, name: str
) -> None:
    facts = make_facts(image_name=name)
    result = write_export(facts, [record()], tmp_path, what={"channels", "values", "input"})
    folder = result.folder.name
    assert folder.isprintable()
    assert not set(folder) & set('<>:"/\\|?*')
    assert len(folder.encode()) < 144
    png = min(path for path in result.files if "_ch" in path.name)
    texts = read_png_facts(png)
    manifest = json.loads(result.manifest.read_text("ascii"))
    plain = name.rpartition("/")[2].rpartition("\\")[2]
    assert manifest["image"]["name"] == plain
    if plain.isprintable() and plain:
        assert texts["image"] == plain
    with Image.open(png) as image:
        image.load()
        assert {k: str(v) for k, v in image.text.items()} == texts  # type: ignore[attr-defined]
    assert zip_export(result.folder) is not None


def test_files_that_a_zip_cannot_name_are_renamed_in_it(tmp_path: Path) -> None:
    import zipfile

    folder = tmp_path / "odd\udcff\\name"
    folder.mkdir()
    for name in ("a\udcff.png", "a:.png", "b\n.txt", ".hidden"):
        (folder / name).write_bytes(b"1")
    path = zip_export(folder, tmp_path / "out.zip")
    assert path is not None
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == [
            "odd--name/a-.png", "odd--name/a-~2.png", "odd--name/b-.txt",
        ]  # fmt: skip
    listed = subprocess.run(
        ["python3", "-m", "zipfile", "-l", str(path)], capture_output=True, text=True, check=True
    )
    assert "a-~2.png" in listed.stdout


@pytest.mark.parametrize("choice", [{"folder": 3}, {"target": 3}])
def test_a_zip_of_no_path_is_one_sentence(tmp_path: Path, choice: dict[str, Any]) -> None:
    (tmp_path / "a").write_bytes(b"1")
    with pytest.raises(ExportError, match="it must be a path"):
        zip_export(**({"folder": tmp_path} | choice))


FEW = torch.rand(1, 3, 4, 4)
MANY = torch.rand(1, 9, 4, 4)


@pytest.mark.parametrize(
    ("choice", "odd", "good", "shown"),
    [
        ({"channels": "1,7"}, FEW, MANY, "1"),
        ({"channels": (7, 8)}, FEW, MANY, "0-2"),
        ({"order": "similarity:8"}, FEW, MANY, "0-2"),
        ({"hide_dead": True}, torch.zeros(1, 3, 4, 4), MANY, "0-2"),
        ({"overlay": True}, torch.rand(1, 3), MANY, "0-2"),
        ({"channels": "1,7", "overlay": True}, torch.rand(1, 3), MANY, "1"),
    ],
)
@pytest.mark.parametrize("form", ["grids", "svg"])
def test_a_choice_that_one_layer_cannot_follow_is_left_out_for_it_and_noted(
    tmp_path: Path, facts: RunFacts, record: Make, choice: dict[str, Any], odd: torch.Tensor,
    good: torch.Tensor, shown: str, form: str,
) -> None:  # fmt: skip
    options = GridOptions(**choice)
    activations = [record("odd", odd, order=1), record("good", good, order=2)]
    result = write_export(facts, activations, tmp_path, what=form, options=options)
    few, many = json.loads(result.manifest.read_text())["layers"]
    assert len(few["files"]) == len(many["files"]) == 1
    assert [note for note in few["notes"] if "does not follow every choice" in note]
    assert not [note for note in many["notes"] if "follow" in note]
    assert any(note.startswith("odd: the grid does not follow") for note in result.notes)
    if form == "grids":
        path = result.folder / few["files"][0]
        assert read_png_facts(path)["channels"] == shown
        assert reproduce_png(path, lambda _facts, _layers: (facts, activations)).identical


def test_pages_are_those_of_the_channels_that_a_layer_has(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    options = GridOptions(channels="0-8", per_page=2)
    activations = [record("few", FEW, order=1), record("many", MANY, order=2)]
    result = write_export(facts, activations, tmp_path, options=options)
    assert [path.name.rpartition("_")[2] for path in result.files] == [
        "p1of2.png", "p2of2.png", "p1of5.png", "p2of5.png", "p3of5.png", "p4of5.png", "p5of5.png",
    ]  # fmt: skip


def test_a_layer_may_have_options_of_its_own(tmp_path: Path, facts: RunFacts, record: Make) -> None:
    activations = [record("few", FEW, order=1), record("many", MANY, order=2)]
    own = {"many": GridOptions(cmap="magma", first="8,3", channels="0-1")}
    result = write_export(
        facts, activations, tmp_path, what={"grids", "channels"},
        options=GridOptions(cmap="magma"), own_options=own,
    )  # fmt: skip
    grids = {name: next(result.folder.glob(f"*_{name}_*grid*.png")) for name in ("few", "many")}
    assert read_png_facts(grids["few"])["channels"] == "0-2"
    assert read_png_facts(grids["many"])["channels"] == "8, 3, 0-1"
    for path in grids.values():
        assert reproduce_png(path, lambda _facts, _layers: (facts, activations)).identical
    single = sorted(path.name.rpartition("_")[2] for path in result.folder.glob("*many*_ch*.png"))
    assert single == ["ch000.png", "ch001.png"]
    kept = json.loads(result.manifest.read_text())["own_options"]
    assert list(kept) == ["many"]
    assert GridOptions.from_json(json.dumps(kept["many"])) == own["many"]


@pytest.mark.parametrize(
    ("choice", "part"),
    [
        ({"channels": "9-12"}, "channels names 9"),
        ({"order": "similarity:64"}, "similarity:64"),
    ],
)
def test_a_choice_that_no_layer_can_follow_is_refused(
    tmp_path: Path, facts: RunFacts, record: Make, choice: dict[str, Any], part: str
) -> None:
    activations = [record("few", FEW, order=1), record("many", MANY, order=2)]
    options = GridOptions(**choice)
    with pytest.raises(RenderError, match=part):
        write_export(facts, activations, tmp_path, options=options)
    assert list(tmp_path.iterdir()) == []
    result = write_export(facts, activations, tmp_path, what={"grids", "contact"}, options=options)
    assert [path.name for path in result.files] == ["000_contact_p1of1.png"]
    assert [note for note in result.notes if "no grid: " in note and part in note]
