"""Whole exports: names, texts, manifest, pixels."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch
from PIL import Image

from hookviz.activation import Activation
from hookviz.errors import ExportError, RenderError
from hookviz.export import RunFacts, draw_activation, read_png_facts, write_export
from hookviz.render import GridOptions, SingleChannels

Make = Callable[..., Activation]
EVERYTHING = {"grids", "channels", "values", "contact", "input"}
DESIGN_KEYS = {
    "hookviz_version",
    "model",
    "weights",
    "layer",
    "type",
    "call",
    "shape",
    "dtype",
    "channels",
    "page",
    "order",
    "scale",
    "vmin",
    "vmax",
    "cmap",
    "image",
    "image_sha256",
    "preprocessing",
    "device",
    "torch_version",
    "time",
}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def manifest_of(folder: Path) -> dict:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no strict JSON")

    return json.loads((folder / "manifest.json").read_text("ascii"), parse_constant=refuse)


def test_the_names_of_an_export(tmp_path: Path, facts: RunFacts, record: Make) -> None:
    activations = [
        record("features.2", torch.rand(1, 20, 4, 4)),
        record("layer1.0.relu", order=27, call=2, calls=2, module_type="ReLU"),
    ]
    before = datetime.now(UTC)
    result = write_export(
        facts, activations, tmp_path, what={"grids", "channels", "input"}, channels="17"
    )
    stamp, rest = result.folder.name.split("_", 1)
    assert rest == "vgg16_dog"
    made = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    assert abs((made - before).total_seconds()) < 60
    assert names(result.folder) == [
        "000_input.png",
        "003_features.2_Conv2d_ch017.png",
        "003_features.2_Conv2d_grid_p1of1.png",
        "027_layer1.0.relu_call2of2_ReLU_grid_p1of1.png",
        "manifest.json",
    ]
    assert result.manifest == result.folder / "manifest.json"
    assert sorted(p.name for p in result.files) == names(result.folder)[:-1]
    assert result.notes == (
        "layer1.0.relu call 2 of 2: channel 17 was not written: the layer has channels 0 to 1",
    )


def test_a_second_export_in_the_same_second_gets_a_folder_of_its_own(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    folders = {write_export(facts, [record()], tmp_path, what="input").folder for _ in range(5)}
    assert len(folders) == 5


def test_every_text_of_the_design_is_in_a_grid(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    options = GridOptions(order="mean", per_page=2, style="light")
    activation = record("layer1.relu", torch.rand(1, 3, 4, 5), call=2, calls=3, leaf="out")
    result = write_export(facts, [activation], tmp_path, options=options)
    texts = read_png_facts(result.files[0])
    assert set(texts) >= DESIGN_KEYS | {"leaf", "Software", "options", "record"}
    assert texts["Software"] == "hookviz 0.1.0"
    assert texts["layer"] == "layer1.relu"
    assert texts["call"] == "2 of 3"
    assert texts["leaf"] == "out"
    assert texts["shape"] == "1, 3, 4, 5"
    assert texts["dtype"] == "float32"
    assert texts["page"] == "1 of 2"
    assert texts["order"] == "mean"
    assert texts["image"] == "dog.jpg"
    assert texts["time"] == "2026-11-04T14:22:33Z"
    assert GridOptions.from_json(texts["options"]) == options
    assert float(texts["vmax"]) == activation.tensor.max().item()
    image = Image.open(result.files[0])
    image.load()
    assert {k: str(v) for k, v in image.text.items()} == texts  # type: ignore[attr-defined]
    assert not image.getexif()


def test_no_file_tells_where_things_lie(
    tmp_path: Path, make_facts: Callable[..., RunFacts], record: Make
) -> None:
    facts = make_facts(
        image_name="/home/someone/secret/dog.jpg",
        weights="file /home/someone/secret/my.pth",
        preprocessing="resized, saved in /home/someone/secret/x.json",
    )
    result = write_export(facts, [record()], tmp_path, what=EVERYTHING)
    assert result.folder.name.endswith("_vgg16_dog")
    for path in [*result.files, result.manifest]:
        data = path.read_bytes()
        assert b"someone" not in data
        assert str(tmp_path).encode() not in data
    assert read_png_facts(result.files[0])["weights"] == "file my.pth"


def test_an_untrained_model_is_marked_in_every_file(
    tmp_path: Path, make_facts: Callable[..., RunFacts], record: Make
) -> None:
    facts = make_facts(trained=False, weights="none")
    result = write_export(facts, [record()], tmp_path, what=EVERYTHING)
    pngs = [path for path in result.files if path.suffix == ".png"]
    assert len(pngs) == 5
    assert all("UNTRAINED" in read_png_facts(path)["trained"] for path in pngs)
    assert "UNTRAINED" in manifest_of(result.folder)["model"]["state"]
    grid = draw_activation(facts, record(), GridOptions(style="light"))
    trained = draw_activation(make_facts(), record(), GridOptions(style="light"))
    assert not np.array_equal(grid.pixels(), trained.pixels())


def test_the_manifest_has_the_figures_that_torch_has(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    torch.manual_seed(0)
    tensors = [
        torch.randn(1, 7, 5, 6) * 100,
        torch.randn(1, 3, 4, 4).to(torch.bfloat16),
        torch.randint(-5, 9, (1, 2, 3, 3)),
        torch.randn(1, 6, 2, 2, dtype=torch.float64) * 1e300,
        torch.randn(1, 10),
    ]
    activations = [record(f"layer{n}", tensor, order=n + 1) for n, tensor in enumerate(tensors)]
    result = write_export(facts, activations, tmp_path, what="channels", channels="0")
    entries = manifest_of(result.folder)["layers"]
    assert len(entries) == len(tensors)
    for entry, tensor in zip(entries, tensors, strict=True):
        wide = tensor.double().reshape(tensor.shape[1], -1)
        assert entry["shape"] == list(tensor.shape)
        assert entry["dtype"] == str(tensor.dtype).removeprefix("torch.")
        assert entry["channels"]["count"] == tensor.shape[1]
        assert entry["channels"]["min"] == wide.amin(1).tolist()
        assert entry["channels"]["max"] == wide.amax(1).tolist()
        assert entry["channels"]["mean"] == pytest.approx(wide.mean(1).tolist(), rel=1e-9)
        assert entry["min"] == wide.min().item()
        assert entry["max"] == wide.max().item()
        assert entry["mean"] == pytest.approx(wide.mean().item(), rel=1e-9)


def test_the_manifest_knows_calls_order_files_and_the_run(
    tmp_path: Path, make_facts: Callable[..., RunFacts], record: Make
) -> None:
    facts = make_facts(missing={"aux1": "not called in this forward (eval mode)"})
    activations = [
        record("relu", call=1, calls=2, order=2),
        record("relu", call=2, calls=2, order=5, leaf="a.b", kind="input"),
    ]
    result = write_export(facts, activations, tmp_path, what=EVERYTHING)
    manifest = manifest_of(result.folder)
    assert manifest["schema"] == 1
    assert manifest["complete"] is True
    assert manifest["image"]["sha256"] == "ab" * 32
    assert manifest["image"]["seen"] == [40, 30]
    assert manifest["model"]["weights_hash"] == "0123456789abcdef"
    assert manifest["missing"] == {"aux1": "not called in this forward (eval mode)"}
    assert manifest["what"] == sorted(EVERYTHING)
    assert GridOptions.of(**manifest["options"]) == GridOptions()
    first, second = manifest["layers"]
    assert [e["call"] for e in (first, second)] == [1, 2]
    assert [e["calls"] for e in (first, second)] == [2, 2]
    assert [e["order"] for e in (first, second)] == [2, 5]
    assert (second["leaf"], second["kind"]) == ("a.b", "input")
    listed = {*first["files"], *second["files"], "000_input.png", "000_contact_p1of1.png"}
    assert listed == set(manifest["files"]) == set(names(result.folder)) - {"manifest.json"}


def test_the_manifest_is_strict_json_also_for_nan_and_infinities(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    tensor = torch.zeros(1, 3, 2, 2)
    tensor[0, 0, 0] = torch.tensor([float("nan"), 4.0])
    tensor[0, 1, 0] = torch.tensor([float("inf"), float("-inf")])
    tensor[0, 2] = float("nan")
    result = write_export(facts, [record(tensor=tensor)], tmp_path)
    entry = manifest_of(result.folder)["layers"][0]
    assert entry["channels"]["min"] == [0.0, 0.0, "NaN"]
    assert entry["channels"]["max"] == [4.0, 0.0, "NaN"]
    assert entry["channels"]["mean"] == [pytest.approx(4 / 3), 0.0, "NaN"]
    assert (entry["nan"], entry["posinf"], entry["neginf"]) == (5, 1, 1)
    assert entry["mean"] == pytest.approx(4 / 5)


def test_one_pixel_is_one_activation_in_the_color_of_its_level(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    values = torch.tensor([[0.0, 51.0, 255.0], [102.0, 204.0, 153.0]])
    tensor = torch.stack((values, values / 2))[None]
    options = GridOptions(cmap="viridis", scale="layer", style="light")
    result = write_export(
        facts, [record(tensor=tensor)], tmp_path, what="channels", options=options
    )
    table = mpl.colormaps["viridis"](range(256), bytes=True)[:, :3]
    for path, expected in zip(sorted(result.files), tensor[0], strict=True):
        image = Image.open(path)
        assert image.mode == "P"
        levels = np.round(expected.numpy()).astype(int)
        assert np.array_equal(np.asarray(image), levels)
        # Matplotlib cuts where it turns a color into bytes, and the table here may round.
        colors = np.asarray(image.convert("RGB")).astype(int)
        assert np.abs(colors - table[levels]).max() <= 1
        texts = read_png_facts(path)
        assert (texts["vmin"], texts["vmax"]) == ("0.0", "255.0")


@pytest.mark.parametrize(
    "options",
    [
        GridOptions(style="light"),
        GridOptions(scale="channel", cmap="magma", style="light"),
        GridOptions(scale="percentile", percentile=(10, 90), style="light"),
        GridOptions(scale="fixed", vmin=-1, vmax=0.5, cmap="gray", style="light"),
    ],
    ids=lambda o: o.scale,
)
@pytest.mark.parametrize("holes", [False, True])
def test_single_channels_have_the_colors_of_the_grids_tiles(
    tmp_path: Path, facts: RunFacts, record: Make, options: GridOptions, holes: bool
) -> None:
    torch.manual_seed(1)
    tensor = torch.randn(1, 5, 6, 7)
    if holes:
        tensor[0, 2, 0, :3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    activation = record(tensor=tensor)
    result = write_export(facts, [activation], tmp_path, what="channels", options=options)
    drawing = draw_activation(facts, activation, options)
    page = drawing.pixels()[..., :3]
    for path, place in zip(sorted(result.files), drawing.places, strict=True):
        channel = int(read_png_facts(path)["channels"])
        picture = np.asarray(Image.open(path).convert("RGB"))
        layer = SingleChannels(activation, options)
        theirs = next(layer.images([channel])).rgb(layer.table)
        assert np.array_equal(picture, theirs)
        top, left, height, width = place
        factor = height // 6
        assert factor == width // 7
        tile = page[top : top + height, left : left + width]
        assert np.array_equal(tile[::factor, ::factor], picture)
        ends = drawing.tile_ranges[drawing.channels.index(channel)]
        texts = read_png_facts(path)
        assert (float(texts["vmin"]), float(texts["vmax"])) == ends


def test_an_integer_factor_enlarges_by_repeating(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    small, large = (
        write_export(facts, [record()], tmp_path, what="channels", factor=factor).files[0]
        for factor in (1, 3)
    )
    one, three = (np.asarray(Image.open(path)) for path in (small, large))
    assert np.array_equal(one.repeat(3, 0).repeat(3, 1), three)


def test_pages_all_or_one(tmp_path: Path, facts: RunFacts, record: Make) -> None:
    activations = [
        record("big", torch.rand(1, 2048, 2, 2), order=1),
        record("small", torch.rand(1, 8, 2, 2), order=2),
    ]
    every = write_export(facts, activations, tmp_path, options=GridOptions(per_page=512))
    assert len(every.files) == 5
    assert every.folder / "001_big_Conv2d_grid_p4of4.png" in every.files
    assert read_png_facts(every.files[3])["channels"] == "1536-2047"
    options = GridOptions(page=1)
    one = write_export(facts, activations, tmp_path, options=options, all_pages=False)
    assert [p.name for p in one.files] == ["001_big_Conv2d_grid_p2of32.png"]
    assert one.notes == ("small: page 2 was not written: there are 1",)
    assert read_png_facts(one.files[0])["channels"] == "64-127"


def test_a_grid_is_as_wide_as_promised_and_leaves_pyplot_alone(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    for width in (600, 1200):
        result = write_export(facts, [record("a/b")], tmp_path, options=GridOptions(width=width))
        with Image.open(result.files[0]) as image:
            assert image.width == width
        assert result.files[0].parent.parent == tmp_path
        assert result.files[0].name == "003_a-b_Conv2d_grid_p1of1.png"
    assert plt.get_fignums() == before


def test_a_layer_named_as_a_path_stays_in_the_folder(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    inside = tmp_path / "inside"
    hostile = ["../../x", "/etc/passwd", "..\\..\\x", "C:\\x", "a\0b", "con", "\ud800", "." * 300]
    activations = [
        record(name, order=n + 1, leaf=name, module_type=name) for n, name in enumerate(hostile)
    ]
    result = write_export(facts, activations, inside, what=EVERYTHING)
    assert names(tmp_path) == ["inside"]
    assert names(inside) == [result.folder.name]
    assert {p.parent for p in result.files} == {result.folder}
    assert [e["layer"] for e in manifest_of(result.folder)["layers"]] == hostile


def test_leaves_that_are_equal_after_cleaning_get_files_of_their_own(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    activations = [
        record(leaf=leaf, tensor=torch.rand(1, 1, 2, 2)) for leaf in ("a/b", "a b", "A?B")
    ]
    result = write_export(facts, activations, tmp_path, what={"grids", "values"})
    folded = {path.name.casefold() for path in result.files}
    assert len(folded) == 6
    found = [read_png_facts(p)["leaf"] for p in sorted(result.files) if p.suffix == ".png"]
    assert sorted(found) == ["A?B", "a b", "a/b"]


def test_samples_frames_and_runs_are_in_the_names(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    batch = record("a", torch.rand(4, 2, 3, 3))
    result = write_export(facts, [batch], tmp_path, options=GridOptions(sample=3))
    assert result.files[0].name == "003_a_sample3_Conv2d_grid_p1of1.png"
    assert manifest_of(result.folder)["layers"][0]["samples"] == 4
    both = [record("a", run=run) for run in (1, 2)]
    result = write_export(facts, both, tmp_path)
    assert [p.name for p in sorted(result.files)] == [
        "003_a_run1_Conv2d_grid_p1of1.png",
        "003_a_run2_Conv2d_grid_p1of1.png",
    ]


def test_single_numbers_have_no_pictures_of_their_own(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    activations = [record("fc", torch.rand(1, 10)), record("conv", torch.rand(1, 2, 3, 3))]
    result = write_export(facts, activations, tmp_path, what="channels")
    assert len(result.files) == 2
    assert "single channels were not written" in result.notes[0]
    with pytest.raises(ExportError, match="nothing to export"):
        write_export(facts, activations[:1], tmp_path, what="channels")


def test_what_cannot_be_drawn_is_noted_and_its_values_are_kept(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    activations = [record("scalar", torch.tensor(3.0)), record("conv")]
    result = write_export(facts, activations, tmp_path, what=EVERYTHING)
    assert "scalar" in result.notes[0]
    assert (result.folder / "003_scalar_Conv2d_values.npz").exists()
    assert (result.folder / "003_conv_Conv2d_grid_p1of1.png").exists()
    with pytest.raises(RenderError, match="single number"):
        write_export(facts, activations[:1], tmp_path)
    assert len(names(tmp_path)) == 1


def test_drawing_that_fails_for_every_page_is_an_error(
    tmp_path: Path, make_facts: Callable[..., RunFacts], record: Make
) -> None:
    facts = make_facts(input_image=None)
    options = GridOptions(overlay=True)
    with pytest.raises(RenderError, match="image that the network saw"):
        write_export(facts, [record()], tmp_path, options=options)
    assert names(tmp_path) == []
    seen = []
    result = write_export(
        facts,
        [record()],
        tmp_path,
        what={"grids", "channels"},
        options=options,
        progress=lambda *step: seen.append(step),
    )
    assert len(result.files) == 2
    assert "grid_p1of1.png was not written" in result.notes[0]
    assert seen[-1][0] == seen[-1][1] == 3


@pytest.mark.parametrize("form", ["npz", "safetensors"])
def test_values_are_files_of_their_own(
    tmp_path: Path, facts: RunFacts, record: Make, form: str
) -> None:
    result = write_export(facts, [record()], tmp_path, what="values", values=form)  # type: ignore[arg-type]
    assert [p.name for p in result.files] == [f"003_features.2_Conv2d_values.{form}"]


@pytest.mark.parametrize(
    ("choice", "part"),
    [
        ({"what": "grid"}, "Did you mean 'grids'"),
        ({"what": ()}, "what is empty"),
        ({"what": {"grids", "moon"}}, "'moon'"),
        ({"layers": ["features.3"]}, "Did you mean 'features.2'"),
        ({"factor": 0}, "factor is 0"),
        ({"factor": 65}, "1 to 64"),
        ({"factor": 1.5}, "factor is 1.5"),
        (
            {"values": "pickle"},
            "values='pickle' is no form for values; legal are 'npz' and 'safetensors'",
        ),
        ({"name": "../up"}, "is a path"),
        ({"overwrite": True}, "needs the name"),
        ({"what": "channels", "channels": "7"}, "channel 7"),
    ],
)
def test_choices_that_are_not_legal_are_refused_before_anything_is_made(
    tmp_path: Path, facts: RunFacts, record: Make, choice: dict, part: str
) -> None:
    with pytest.raises(ExportError) as caught:
        write_export(facts, [record()], tmp_path / "out", **choice)
    assert part in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_nothing_to_export_is_one_sentence(tmp_path: Path, facts: RunFacts) -> None:
    with pytest.raises(ExportError, match="nothing to export"):
        write_export(facts, [], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_only_the_layers_asked_for(tmp_path: Path, facts: RunFacts, record: Make) -> None:
    activations = [
        record("a", order=1),
        record("b", order=2),
        record("a", order=3, call=2, calls=2),
    ]
    result = write_export(facts, activations, tmp_path, layers=["a"])
    assert len(result.files) == 2
    assert all("_a" in path.name for path in result.files)


def test_a_run_without_a_picture_notes_it(
    tmp_path: Path, make_facts: Callable[..., RunFacts], record: Make
) -> None:
    facts = make_facts(input_image=None)
    result = write_export(facts, [record()], tmp_path, what={"grids", "input"})
    assert result.notes == ("the run has no image of its input, so none was written",)
    assert manifest_of(result.folder)["notes"] == list(result.notes)


def test_overwriting_replaces_and_removes_what_the_old_manifest_lists(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    write_export(facts, [record("a"), record("b")], tmp_path, name="mine")
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    result = write_export(facts, [record("a")], tmp_path, name="mine", overwrite=True)
    assert names(result.folder) == [
        "003_a_Conv2d_grid_p1of1.png",
        "manifest.json",
        "notes.txt",
    ]
    with pytest.raises(ExportError, match="exists already"):
        write_export(facts, [record("a")], tmp_path, name="mine")


def test_a_hostile_old_manifest_removes_nothing_else(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    (tmp_path / "mine" / "sub").mkdir(parents=True)
    (tmp_path / "precious").write_text("x")
    (tmp_path / "mine" / "link").symlink_to(tmp_path / "precious")
    listed = ["../precious", str(tmp_path / "precious"), "sub", "link", "..", "", 7, None, "no"]
    (tmp_path / "mine" / "manifest.json").write_text(json.dumps({"files": listed}))
    write_export(facts, [record()], tmp_path, name="mine", overwrite=True)
    assert (tmp_path / "precious").read_text() == "x"
    assert (tmp_path / "mine" / "sub").is_dir()
    assert (tmp_path / "mine" / "link").is_symlink()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": 3}', '{"files": [[]]}', "[" * 100_000])
def test_an_unreadable_old_manifest_is_no_hindrance(
    tmp_path: Path, facts: RunFacts, record: Make, text: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "manifest.json").write_text(text)
    result = write_export(facts, [record()], tmp_path, name="mine", overwrite=True)
    assert manifest_of(result.folder)["complete"] is True


def test_progress_counts_every_file_once(tmp_path: Path, facts: RunFacts, record: Make) -> None:
    seen: list[tuple[int, int, str]] = []
    threads = set()

    def progress(done: int, total: int, name: str) -> None:
        seen.append((done, total, name))
        threads.add(threading.current_thread())

    activations = [record(f"l{n}", torch.rand(1, 70, 3, 3), order=n) for n in (1, 2)]
    result = write_export(facts, activations, tmp_path, what=EVERYTHING, progress=progress)
    assert [step[0] for step in seen] == list(range(1, len(seen) + 1))
    assert {step[1] for step in seen} == {len(seen)}
    assert sorted(step[2] for step in seen) == names(result.folder)
    assert threads == {threading.current_thread()}
    assert not [t for t in threading.enumerate() if t.name.startswith("hookviz-export")]


def test_a_diverging_color_table_is_symmetric_also_in_single_channels(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    tensor = torch.tensor([[-3.0, 0.0], [1.0, 3.0]])[None, None]
    result = write_export(facts, [record(tensor=tensor)], tmp_path, what="channels")
    texts = read_png_facts(result.files[0])
    assert math.isclose(float(texts["vmin"]), -3.0)
    assert math.isclose(float(texts["vmax"]), 3.0)
    assert np.asarray(Image.open(result.files[0])).ravel()[[0, 3]].tolist() == [0, 255]


def test_many_channels_in_bundles_are_all_written_in_their_own_files(
    tmp_path: Path, facts: RunFacts, record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookviz.export._channels._BUNDLE_FILES", 3)
    monkeypatch.setattr("hookviz.render._channels._BATCH", 40)
    tensor = torch.arange(23.0)[None, :, None, None].expand(1, 23, 2, 3).contiguous()
    options = GridOptions(scale="fixed", vmin=0, vmax=255, cmap="gray", style="light")
    result = write_export(
        facts, [record(tensor=tensor)], tmp_path, what="channels", options=options
    )
    assert len(result.files) == 23
    for path in result.files:
        channel = int(path.stem.rpartition("ch")[2])
        assert np.all(np.asarray(Image.open(path)) == channel)
