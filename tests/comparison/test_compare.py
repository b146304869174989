"""Two runs side by side: what is matched, where they part first, and which sides there can be."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn

import hookviz
from hookviz import Activation, Capture, HookvizError, compare
from hookviz.capture import edit, scale_channels
from hookviz.errors import ExportError, LayerError


def test_two_runs_of_the_same_model_have_no_difference(model, run, cat) -> None:
    found = compare(run(model, cat), run(model, cat))
    assert found.first_difference() is None
    assert found.first_difference(0) is None
    assert {entry.max_abs for entry in found} == {0.0}
    assert {entry.verdict() for entry in found} == {"same"}
    assert "No difference: every value is the same." in str(found)


@pytest.mark.parametrize("layer", ["conv", "down", "head"])
def test_the_layer_whose_weight_changed_is_the_first_that_differs(
    model, run, changed, cat, layer
) -> None:
    found = compare(run(model, cat), run(changed(model, layer), cat))
    first = found.first_difference()
    assert first.layer == layer
    assert f"First difference: {layer} (" in str(found)
    before = [entry for entry in found if entry.order < first.order]
    assert all(entry.same for entry in before)
    assert found.first_difference(tol=3.0) is None
    assert "No difference beyond the tolerance" in found.summary(3.0)


@pytest.mark.slow
def test_one_weight_in_resnet152_is_found_among_all_layers(cat) -> None:
    model = hookviz.load_model("resnet152", weights=None, device="cpu")
    base = hookviz.feature_maps(model, cat, "*")
    assert compare(base, (model, cat)).first_difference() is None
    for layer in ("conv1", "layer2.5.conv2", "layer3.21.conv3", "layer4.2.conv1", "fc"):
        weight = model.module.get_submodule(layer).weight.data.view(-1)
        weight[77] += 1e-3
        assert compare(base, (model, cat)).first_difference().layer == layer
        weight[77] -= 1e-3


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # torch's own, of Intel's GPUs
def test_rounding_is_no_difference_and_the_first_bit_is_named(model, run, cat) -> None:
    a = run(model, cat)
    with torch.backends.mkldnn.flags(enabled=False):
        b = run(model, cat)
    found = compare(a, b)
    assert found.first_difference() is None
    if first := found.first_difference(0):
        assert first.verdict() == "rounding"
        assert f"not the same to the last bit is {first.label}" in str(found)


EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float16, torch.bfloat16, torch.float32)}


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float64, 64 * 2.0**-23),  # beside float32, which is the coarser
        (torch.float16, 8 * 2.0**-10),
        (torch.bfloat16, 8 * 2.0**-7),
    ],
    ids=str,
)
def test_the_tolerance_is_that_of_the_coarser_dtype(model, run, cat, dtype, tolerance) -> None:
    other = replace(model, module=copy.deepcopy(model.module)).to("cpu", dtype)
    found = compare(run(model, cat), run(other, cat))
    # While nothing differs, nothing can have added up.
    assert [entry.tolerance for entry in found] == [tolerance / 4] + [tolerance] * (len(found) - 1)
    assert found.first_difference() is None
    assert found.first_difference(0).layer == "conv"


def test_what_was_rounded_once_stays_rounded(cat) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Identity(), nn.Identity()
            self.three, self.many = nn.Identity(), nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.three(self.two(self.one(x).bfloat16()).float())
            return self.many(x.argmax(1))

    run = hookviz.feature_maps(Mixed(), cat, "*")
    tolerances = {entry.layer: entry.tolerance for entry in compare(run, run)}
    assert tolerances == {
        "one": 16 * 2.0**-23, "two": 2 * 2.0**-7, "three": 2 * 2.0**-7, "many": 0.0
    }  # fmt: skip


@pytest.mark.parametrize("tol", [-1, float("nan"), float("inf"), "1e-3", True])
def test_a_tolerance_is_a_number_from_0_up(model, run, cat, tol) -> None:
    found = compare(run(model, cat), run(model, cat))
    for use in (found.first_difference, found.summary, found.table):
        with pytest.raises(HookvizError, match=r"tol is .* a number from 0 up"):
            use(tol)


# ── which records belong together


def test_every_call_and_leaf_is_compared_with_its_own(model, run, cat, cup) -> None:
    a, b = run(model, cat), run(model, cup)
    found = compare(a, b)
    assert [entry.label for entry in found] == [record.label for record in a.activations]
    for call in (1, 2):
        mine = found.select("relu", call)
        one, other = a.select("relu", call).tensor, b.select("relu", call).tensor
        assert mine.max_abs == (other.double() - one.double()).abs().max()
    for leaf in ("maps", "logits"):
        assert found.select("", leaf=leaf).shape == a.select("", leaf=leaf).shape
    with pytest.raises(LayerError, match="was called 2 times"):
        found.select("relu")
    with pytest.raises(LayerError, match="holds 2 tensors"):
        found.select("")


def test_two_calls_of_one_layer_are_compared_with_each_other(model, run, cat) -> None:
    made = run(replace(model, module=nn.Sequential(nn.Conv2d(3, 3, 3, padding=1))), cat)
    net = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1))
    with Capture(net, "0", eval_mode=True) as capture, torch.no_grad():
        net(net(made.input.tensor))
    one, other = capture.output("0", run=1), capture.output("0", run=2)
    records = capture.activations
    (entry,) = compare(records[0], records[1])
    assert entry.max_abs == (other.double() - one.double()).abs().max()


def test_other_layers_are_listed_not_dropped(model, run, cat) -> None:
    class More(type(model.module)):
        def forward(self, x: torch.Tensor) -> object:
            self.idle(torch.zeros(2))
            return {**super().forward(x), "more": x}

    torch.manual_seed(0)
    other = replace(model, module=More())
    found = compare(run(model, cat), run(other, cat))
    assert found.matched_by == "name"
    assert found.only_a == ()
    assert found.only_b == ("idle", "(model)[more]")
    assert "only in b: 'idle', '(model)[more]'" in str(found)
    assert compare(run(other, cat), run(model, cat)).only_a == ("idle", "(model)[more]")
    for pair in ((run(model, cat), (other, cat)), ((other, cat), run(model, cat))):
        found = compare(*pair, layers=lambda *_: True)
        assert ("idle", "(model)[more]") in (found.only_a, found.only_b)


def test_layers_of_other_names_are_matched_by_order(model, run, cat, changed) -> None:
    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> object:
            return self.inner(x)

    other = replace(model, module=Wrapped(changed(model, "down").module))
    a = hookviz.feature_maps(model, cat, "*")
    found = compare(a, hookviz.feature_maps(other, cat, "*"))
    assert found.matched_by == "order"
    assert [(e.layer, e.other) for e in found][:2] == [
        ("conv", "inner.conv"),
        ("relu",) * 1 + ("inner.relu",),
    ]
    assert found.first_difference().layer == "down"
    assert found.only_b == ("inner[maps]", "inner[logits]")
    assert found.first_difference().label == "down | inner.down"
    again = compare(a, (other, cat))
    assert [e.other for e in again] == [e.other for e in found]


def test_a_model_is_compared_with_its_export(model, run, cat) -> None:
    a = run(model, cat)
    program = torch.export.export(model.module, (a.input.tensor,)).module()
    found = compare(a, (replace(model, module=program), cat))
    assert [entry.label for entry in found] == ["(model)[maps]", "(model)[logits]"]
    assert found.first_difference() is None
    found = compare(hookviz.feature_maps(model, cat, "*"), (model, cat))
    assert found.only_b == ()  # "*" of a run has no output of the model itself


def test_layers_are_matched_by_a_mapping(model, run, cat) -> None:
    a = run(model, cat)
    found = compare(a, a, match={"conv": "down", "head": "head"})
    assert found.matched_by == "mapping"
    assert [(entry.layer, entry.other) for entry in found] == [("conv", "down"), ("head", "head")]
    for side, mapping in (("a", {"cnov": "conv"}), ("b", {"conv": "cnov"})):
        with pytest.raises(LayerError, match=f"'cnov', which {side} does not have.*'conv'"):
            compare(a, a, match=mapping)
    # One layer of b may stand beside several of a.
    found = compare(a, (model, cat), match={"conv": "conv", "down": "conv"})
    assert [(entry.layer, entry.other) for entry in found] == [("conv", "conv"), ("down", "conv")]


def test_what_cannot_be_matched_is_one_sentence(model, run, cat) -> None:
    a = run(model, cat)
    other = hookviz.feature_maps(nn.Sequential(nn.ReLU(), nn.Tanh()), cat, "*")
    with pytest.raises(HookvizError, match="no layer of the same name"):
        compare(a, other, match="name")
    with pytest.raises(HookvizError, match="no layer in common"):
        compare(hookviz.feature_maps(model, cat, "head"), other)
    with pytest.raises(HookvizError, match="match is 'nmae'"):
        compare(a, a, match="nmae")
    with pytest.raises(HookvizError, match="match is empty"):
        compare(a, a, match={})


def test_selected_layers_alone_are_compared(model, run, cat) -> None:
    a = run(model, cat)
    for layers in ("conv", ["conv"], "con?", nn.Conv2d):
        named = {entry.layer for entry in compare(a, a, layers)}
        assert named in ({"conv"}, {"conv", "down"})
        assert named == {entry.layer for entry in compare(a, (model, cat), layers)}
    with pytest.raises(LayerError, match=r"'cnov'.*'conv'"):
        compare(a, a, "cnov")
    with pytest.raises(LayerError, match="come without one"):
        compare(a.activations, a.activations, nn.Conv2d)


def test_forwards_of_a_capture_are_matched_one_by_one() -> None:
    net = nn.Linear(3, 3)

    def captured(factor: float) -> Capture:
        with Capture(net, lambda *_: True, eval_mode=True) as capture, torch.no_grad():
            net(torch.ones(1, 3))
            net(factor * torch.ones(1, 3))
        return capture

    found = compare(captured(1.0), captured(2.0))
    assert [entry.same for entry in found] == [True, False]


# ── what differs in size


def test_photos_of_different_size_are_compared_on_the_coarser_grid(cat) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    sizes = [
        hookviz.Preprocessing(resize=(size, size), crop=(size, size), fit="crop")
        for size in (32, 16)
    ]
    a, b = (hookviz.feature_maps(net, cat, "*", preprocess=size) for size in sizes)
    found = compare(a, b)
    first = found.select("0")
    assert first.note == "compared on the coarser grid 16×16: a has 32×32, b has 16×16"
    one = nn.functional.avg_pool2d(a.select("0").tensor.double(), 2)
    apart = (b.select("0").tensor.double() - one).abs()
    assert first.max_abs == pytest.approx(apart.max().item())
    assert first.mean_abs == pytest.approx(apart.mean().item())
    assert first.place == tuple(int(i) for i in torch.unravel_index(apart.argmax(), apart.shape))
    assert found.select("2").note == ""
    assert "coarser grid 16×16" in found.table()


def test_every_sample_of_a_batch_is_compared_on_the_coarser_grid() -> None:
    net = nn.Conv2d(3, 4, 3, padding=1)
    captures = []
    for size in (8, 4):
        with Capture(net, "", eval_mode=True) as capture, torch.no_grad():
            net(torch.ones(2, 3, size, size) * torch.tensor([0.0, 1.0])[:, None, None, None])
        captures.append(capture)
    (entry,) = compare(*captures)
    assert entry.place[0] in (0, 1)
    assert entry.max_abs > 0
    one, other = (capture.output("").double() for capture in captures)
    pooled = nn.functional.avg_pool2d(one, 2)
    assert entry.max_abs == pytest.approx((other - pooled).abs().max().item())


@pytest.mark.parametrize(
    ("shapes", "module_type"),
    [
        (((1, 17, 8), (1, 5, 8)), "Linear"),  # tokens, whose order is not known
        (((1, 8, 17), (1, 8, 5)), "Conv1d"),
        (((1, 2, 9, 9), (1, 2, 4, 4)), "Softmax"),
        (((1, 8), (1, 4)), "Linear"),
        (((2, 4, 6, 6), (3, 4, 6, 6)), "Conv2d"),
        (((1, 4, 6, 6), (1, 4)), "Conv2d"),
    ],
    ids=str,
)
def test_what_has_no_coarser_grid_differs_with_a_reason(shapes, module_type) -> None:
    records = [
        Activation("x", 1, 1, 1, 1, "output", "", module_type, torch.rand(shape).softmax(-1))
        for shape in shapes
    ]
    (entry,) = compare(*records)
    assert entry.shape_mismatch
    assert entry.beyond(1e9)
    text = "×".join(map(str, shapes[0]))
    assert text in entry.reason


def test_other_numbers_of_channels_are_where_models_part(cat) -> None:
    a, b = (
        hookviz.feature_maps(nn.Sequential(nn.Conv2d(3, n, 3), nn.ReLU()), cat, "*") for n in (4, 6)
    )
    found = compare(a, b)
    first = found.first_difference(1e9)
    assert first.layer == "0"
    assert first.shape_mismatch
    assert "numbers of channels differ: a has shape 1×4×" in first.reason
    assert first.verdict() == "differs"
    assert "numbers of channels differ" in str(found)


# ── the sides


def test_a_pair_runs_here_and_keeps_nothing(model, run, changed, cat) -> None:
    other = changed(model, "down")
    a, b = run(model, cat), run(other, cat)
    expected = [entry.max_abs for entry in compare(a, b)]
    held = {id(record.tensor) for record in (*a.activations, *b.activations)}
    for pair in ((a, (other, cat)), ((model, cat), (other, cat)), ((model, cat), b)):
        found = compare(*pair, lambda *_: True)
        assert [entry.max_abs for entry in found] == expected
        assert [entry.label for entry in found] == [record.label for record in a.activations]
        assert found.first_difference().layer == "down"
        gc.collect()
        kept = [
            thing
            for thing in gc.get_objects()
            if type(thing) is torch.Tensor and thing.shape == (1, 8, 32, 32)
            and id(thing) not in held and not thing.is_meta
        ]  # fmt: skip
        assert not kept
    assert a.select("conv").tensor.abs().sum() > 0  # what the caller holds is left alone


def test_of_a_pair_never_more_than_one_tensor_is_held(model, cat, cup) -> None:
    sizes = []

    def alive(_layer: str) -> None:
        sizes.append(sum(1 for ref in refs if ref() is not None and ref().numel() > 0))

    refs: list[weakref.ref] = []
    original = hookviz.comparison._comparing.measure

    def watched(a, b, *more):
        refs.append(weakref.ref(b.tensor))
        return original(a, b, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hookviz.comparison._comparing, "measure", watched)
        compare((model, cat), (model, cup), progress=alive)
    assert len(sizes) == 7  # conv, down, head, relu twice, and the model's two outputs
    assert max(sizes) == 1


def test_a_model_made_by_a_function_is_let_go(cat) -> None:
    made: list[weakref.ref] = []

    def model() -> nn.Module:
        gc.collect()
        assert not [ref for ref in made if ref() is not None], "the former model is still there"
        net = nn.Sequential(nn.Conv2d(3, 2, 3))
        nn.init.constant_(net[0].weight, 0.5)
        nn.init.zeros_(net[0].bias)
        made.append(weakref.ref(net))
        return net

    found = compare((model, cat), (model, cat))
    assert found.first_difference() is None
    assert len(made) == 2
    found.figure("0", width=400)
    assert len(made) == 4


def test_the_models_own_error_ends_it_and_leaves_no_hook(model, run, cat) -> None:
    class Broken(type(model.module)):
        def forward(self, x: torch.Tensor) -> object:
            self.conv(x)
            raise ZeroDivisionError("mine")

    other = replace(model, module=Broken())
    with pytest.raises(ZeroDivisionError, match="mine"):
        compare(run(model, cat), (other, cat))
    assert not any(part._forward_hooks for part in other.module.modules())


@pytest.mark.parametrize("form", ["npz", "safetensors"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_export_with_raw_values_is_a_side(
    model, run, changed, cat, tmp_path, form, dtype
) -> None:
    model = replace(model, module=copy.deepcopy(model.module)).to("cpu", dtype)
    a, other = run(model, cat), changed(model, "down", 0.5)
    folder = a.export(tmp_path, what="values", values=form).folder
    found = (
        compare(folder, (other, cat), lambda *_: True)
        if False
        else compare(folder, run(other, cat))
    )
    assert [entry.dtype for entry in found] == [str(dtype).removeprefix("torch.")] * len(found)
    assert found.first_difference().layer == "down"
    assert found.first_difference(0).layer == "down"
    expected = compare(a, run(other, cat))
    assert [e.max_abs for e in found] == [e.max_abs for e in expected]
    assert [e.tolerance for e in found] == [e.tolerance for e in expected]
    assert compare(str(folder), folder).first_difference(0) is None
    assert compare((other, cat), folder).first_difference().layer == "down"
    assert "Net, chelsea.png, cpu" in found.a
    figure = found.drawing("conv")
    assert figure.kind == "comparison"


def test_folders_that_are_no_side_are_one_sentence(model, run, cat, tmp_path) -> None:
    a = run(model, cat)
    with pytest.raises(ExportError, match="not a folder of an export"):
        compare(a, tmp_path)
    folder = a.export(tmp_path / "grids", layers="conv").folder
    with pytest.raises(ExportError, match=r"no raw values.*what="):
        compare(a, folder)
    folder = a.export(tmp_path / "values", what="values", layers="conv").folder
    (values,) = folder.glob("*.npz")
    values.write_bytes(values.read_bytes()[:100])
    with pytest.raises(ExportError, match=r"values in .* cannot be read"):
        compare(a, folder)
    for text in ("{}", "[]", '{"layers": [{}]}', "nonsense", '{"layers": 3, "files": 4}'):
        (folder / "manifest.json").write_text(text, encoding="utf-8")
        with pytest.raises(ExportError):
            compare(a, folder)


def test_a_manifest_names_no_file_outside_its_folder(model, run, cat, tmp_path) -> None:
    folder = run(model, cat).export(tmp_path, what="values", layers="conv").folder
    (values,) = folder.glob("*.npz")
    values.rename(tmp_path / "outside_values.npz")
    manifest = folder / "manifest.json"
    text = manifest.read_text(encoding="utf-8").replace(values.name, "../outside_values.npz")
    manifest.write_text(text, encoding="utf-8")
    with pytest.raises(ExportError, match="no raw values"):
        compare(folder, folder)


def test_edits_are_compared(model, run, cat) -> None:
    plain = run(model, cat)
    with edit(model.module, scale_channels("relu", 2, 3.0)):
        edited = run(model, cat)
    first = compare(plain, edited).first_difference()
    assert first.layer == "relu"
    assert first.place[1] == 2


@pytest.mark.parametrize(
    ("side", "message"),
    [
        (3, "a is int; it must be a Run"),
        ("vgg16", r"a is 'vgg16', which is no folder.*\('vgg16', image\)"),
        ([], "no activations"),
        ([1, 2], "a is list; it must be a Run"),
        (nn.ReLU(), "a is ReLU; it must be a Run"),
    ],
    ids=repr,
)
def test_what_is_no_side_is_one_sentence(model, run, cat, side, message) -> None:
    with pytest.raises(HookvizError, match=message):
        compare(side, run(model, cat))


# ── tables


def test_the_table_has_a_line_for_each_tensor(model, run, cat, cup) -> None:
    found = compare(run(model, cat), run(model, cup))
    lines = found.table().splitlines()
    assert len(lines) == len(found) + 1
    assert lines[0].split()[:3] == ["layer", "type", "shape"]
    assert lines[1].startswith("conv ")
    assert lines[1].rstrip().endswith("differs")
    assert f"{found.layers[0].max_abs:.3g}" in lines[1]
    assert "within" in found.table(tol=5)


def test_csv_and_rows_hold_every_attribute(model, run, cat, cup) -> None:
    import csv

    found = compare(run(model, cat), run(model, cup))
    rows = list(csv.DictReader(found.to_csv().splitlines()))
    assert [float(row["max_abs"]) for row in rows] == [entry.max_abs for entry in found]
    assert rows[0]["shape"] == "1×8×32×32"
    assert [row["label"] for row in found.rows()] == [entry.label for entry in found]


def test_a_table_of_pandas_where_it_is_installed(model, run, cat) -> None:
    pandas = pytest.importorskip("pandas")
    found = compare(run(model, cat), run(model, cat))
    frame = found.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["layer"]) == [entry.layer for entry in found]


def test_without_pandas_there_is_one_sentence(model, run, cat, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(HookvizError, match=r"pandas is not installed. pip install pandas"):
        compare(run(model, cat), run(model, cat)).to_pandas()
