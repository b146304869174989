"""Figures of a, b and their difference; what is exported; the command line."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from matplotlib.text import Text
from PIL import Image

import hookviz
from hookviz import Activation, compare
from hookviz.cli import cli
from hookviz.errors import LayerError, RenderError
from hookviz.render import (
    ActivationPair,
    Drawing,
    GridOptions,
    draw,
    draw_sides,
    shared_end,
)


def record(tensor: torch.Tensor, module_type: str = "Conv2d") -> Activation:
    return Activation("conv", 1, 1, 1, 1, "output", "", module_type, tensor)


def drawn(a: torch.Tensor, b: torch.Tensor, **options) -> Drawing:
    options = {"width": 700, "style": "light", "cmap": "RdBu_r"} | options
    found = compare(record(a), record(b))
    return found.drawing("conv", options=GridOptions.of(**options))


def colors(values: np.ndarray, size: float, cmap: str = "RdBu_r") -> np.ndarray:
    levels = np.round((values / size + 1) / 2 * 255).clip(0, 255).astype(int)
    table = mpl.colormaps[cmap](np.linspace(0, 1, 256))[:, :3]
    return np.round(table[levels] * 255)


def tile(drawing: Drawing, position: int, shape: tuple[int, int], back: int) -> np.ndarray:
    """The colors of one activation each, of the tile ``back`` places before the difference."""
    top, left, height, width = drawing.places[position]
    thirds = sorted({place[1] for place in drawing.places})
    pitch = (thirds[1] - thirds[0]) // 3 if back else 0  # one column of threes has no second
    rows = top + (np.arange(shape[0]) * 2 + 1) * height // (2 * shape[0])
    columns = left - back * pitch + (np.arange(shape[1]) * 2 + 1) * width // (2 * shape[1])
    return drawing.pixels()[np.ix_(rows, columns)][..., :3]


@pytest.mark.parametrize("style", ["light", "dark"])
def test_a_b_and_the_difference_share_one_symmetric_scale(style) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(1, 12, 6, 6, generator=generator) for _ in range(2))
    drawing = drawn(a, b, style=style, cmap="RdBu_r", scale="full")
    apart = (b - a).numpy()[0]
    size = float(max(np.abs(part).max() for part in (a.numpy(), b.numpy(), apart)))
    assert (drawing.vmin, drawing.vmax) == (pytest.approx(-size), pytest.approx(size))
    assert "one scale for a, b and b − a, symmetric about zero" in drawing.scale
    for position, channel in enumerate(drawing.channels[:5]):
        for back, values in enumerate((apart, b.numpy()[0], a.numpy()[0])):
            shown = tile(drawing, position, (6, 6), back).astype(int)
            wanted = colors(values[channel], size)
            assert np.abs(shown - wanted).max() <= 6, (channel, back)  # one level of 255


def test_a_small_difference_has_its_own_scale_and_says_so() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(1, 12, 6, 6, generator=generator)
    b = a + 1e-3 * torch.randn(1, 12, 6, 6, generator=generator)
    drawing = drawn(a, b, scale="full")
    largest = float((b - a).abs().max())
    assert drawing.vmax == pytest.approx(largest)
    assert drawing.vmin == -drawing.vmax
    assert "b − a on its own scale, symmetric about zero" in drawing.scale
    assert "times finer" in drawing.scale
    assert np.abs(tile(drawing, 3, (6, 6), 0) - colors((b - a).numpy()[0, 3], largest)).max() <= 6
    joint = drawn(a, a + 0.5 * (b - a) / largest, scale="full")
    assert "one scale for a, b" in joint.scale


def test_the_automatic_scale_spans_98_percent_and_counts_the_rest() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(1, 8, 20, 20, generator=generator).relu() ** 3 for _ in range(2))
    apart = (b - a).numpy()[0]

    def end(values: np.ndarray) -> float:
        ordered = np.sort(np.abs(values), axis=None)
        return float(ordered[round(0.98 * (ordered.size - 1))])

    one, other = a.numpy()[0], b.numpy()[0]
    size = max(end(one), end(other), end(apart))
    drawing = drawn(a, b)
    assert (drawing.vmin, drawing.vmax) == (-size, size)
    everything = np.concatenate([one, other, apart])
    assert drawing.above == (everything > size).sum() > 0
    assert drawing.below == (everything < -size).sum() > 0
    assert "one scale for 98 % of the values of a, b and b − a" in drawing.scale
    assert "clipped" in drawing.scale
    assert drawn(a, b, scale="full").vmax == np.abs(everything).max()
    # A small difference: its own 98 %.
    drawing = drawn(a, a + (b - a) * 1e-4)
    apart = (a + (b - a) * 1e-4 - a).numpy()[0]
    assert drawing.vmax == end(apart)
    assert drawing.above == (apart > end(apart)).sum()
    assert "on its own scale for 98 % of its values" in drawing.scale
    # Nothing is clipped for little.
    even = torch.linspace(-1, 1, 100).reshape(1, 1, 10, 10)
    assert drawn(even, -even).vmax == 2.0


def test_each_channel_of_a_difference_has_its_own_symmetric_ends() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([0.01, 1.0, 100.0])[None, :, None, None]
    a = torch.randn(1, 3, 6, 6, generator=generator) * sizes
    b = torch.randn(1, 3, 6, 6, generator=generator) * sizes
    drawing = drawn(a, b, scale="channel", ncols=6)
    ends = np.abs((b - a).numpy()[0]).max((1, 2))
    assert drawing.tile_ranges == tuple((-end, end) for end in ends.astype(float))
    assert drawing.vmin is drawing.vmax is None
    for position in range(3):
        wanted = colors((b - a).numpy()[0, position], float(ends[position]))
        assert np.abs(tile(drawing, position, (6, 6), 0) - wanted).max() <= 6
    written = {text.get_text() for text in drawing.figure.findobj(Text)}
    assert {f"±{end:.3g}" for end in ends} <= written
    assert {"−max", "min", "max"} <= written


@pytest.mark.parametrize("scale", ["auto", "full", "channel", "layer"])
def test_one_side_alone_has_the_colors_that_it_has_beside_the_others(scale) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(1, 5, 6, 6, generator=generator) ** 3 for _ in range(2))
    options = {"scale": scale, "order": "norm", "ncols": 6}
    together = drawn(a, b, **options)
    for back, side in enumerate(("difference", "b", "a")):
        for bare in (False, True):
            alone = drawn(a, b, side=side, bare=bare, **options)
            assert alone.channels == together.channels
            top, left, height, width = alone.places[2]
            rows = top + (np.arange(6) * 2 + 1) * height // 12
            columns = left + (np.arange(6) * 2 + 1) * width // 12
            shown = alone.pixels()[np.ix_(rows, columns)][..., :3]
            assert (shown == tile(together, 2, (6, 6), back)).all()
    assert alone.figure.canvas.get_width_height()[1] < 300  # no header
    with pytest.raises(RenderError, match="side is 'c'"):
        drawn(a, b, side="c")


def test_all_sides_at_once_are_those_drawn_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(1, 9, 6, 6, generator=generator) ** 3 for _ in range(2))
    pair = ActivationPair.of(record(a), record(b))
    options = GridOptions(width=500, order="norm", per_page=4, page=7, bare=True, style="light")
    sides = draw_sides(pair, options)
    assert list(sides) == ["a", "b", "difference", "relative"]
    for name in ("a", "b", "difference"):
        alone = draw(pair, options.replace(side=name, page=2))  # the last page
        assert sides[name].channels == alone.channels
        assert (sides[name].pixels() == alone.pixels()).all()
        assert (sides[name].scale, sides[name].above) == (alone.scale, alone.above)
    relative = options.replace(
        side="difference", relative=True, channels=alone.channels, order="index", page=0
    )
    alone = draw(pair, relative)
    assert sides["relative"].channels == sides["a"].channels
    assert (sides["relative"].pixels() == alone.pixels()).all()
    assert sides["relative"].places == sides["a"].places
    vectors = ActivationPair.of(record(torch.rand(1, 7)), record(torch.rand(1, 7)))
    assert list(draw_sides(vectors, options)) == ["all"]
    other = ActivationPair.of(record(a * 3), record(b))
    ends = [draw(one, options.replace(side="a", page=0)).vmax for one in (pair, other)]
    assert shared_end((pair, other), options) == max(ends) > min(ends)


def test_a_fixed_scale_about_zero_is_that_of_the_difference_too() -> None:
    a, b = torch.full((1, 2, 4, 4), 1.0), torch.full((1, 2, 4, 4), -2.0)
    drawing = drawn(a, b, vmin=-4.0, vmax=4.0)
    assert (drawing.vmin, drawing.vmax) == (-4.0, 4.0)
    assert "fixed scale for a, b and b − a: ±4" in drawing.scale
    assert drawn(a, b, vmin=-2.0, vmax=2.0).vmax == 3.0  # the difference does not fit


def test_the_same_tensors_say_so() -> None:
    a = torch.randn(1, 4, 5, 5)
    drawing = drawn(a, a.clone(), ncols=6, scale="full")
    assert drawing.dead == (0, 1, 2, 3)
    assert "one scale for a, b" in drawing.scale
    assert (tile(drawing, 0, (5, 5), 0) == colors(np.zeros((5, 5)), 1.0)).all()


def test_channels_that_differ_most_come_first() -> None:
    a = torch.zeros(1, 5, 4, 4)
    b = a + torch.tensor([0.1, -3.0, 0.0, 2.0, 1.0])[None, :, None, None]
    found = compare(record(a), record(b))
    assert found.drawing("conv", options=GridOptions(order="norm")).channels == (1, 3, 4, 0, 2)
    assert drawn(a, b, order="mean").channels == (3, 4, 0, 2, 1)  # the signed difference
    figure = found.figure("conv", sort=True, width=500)
    assert figure.canvas.get_width_height()[0] == 500


def test_the_relative_difference_is_a_share_of_the_larger_value() -> None:
    a = torch.tensor([1.0, 0.0, -2.0, 0.0])[None, :, None, None].expand(1, 4, 3, 3)
    b = torch.tensor([2.0, 5.0, 2.0, 0.0])[None, :, None, None].expand(1, 4, 3, 3)
    drawing = drawn(a, b, relative=True)
    assert drawing.vmax == pytest.approx(2.0)
    assert "relative difference (b − a) / max(|a|, |b|)" in drawing.scale
    ranges = [tile(drawing, position, (3, 3), 0)[0, 0] for position in range(4)]
    wanted = colors(np.array([0.5, 1.0, 2.0, 0.0]), 2.0)
    assert np.abs(np.array(ranges) - wanted).max() <= 6
    # Of an infinity and a number there is no share; two that are alike do not differ.
    a = a.clone()
    a[..., 0, 0] = torch.inf
    drawing = drawn(a, b, relative=True)
    assert (drawing.nan, drawing.posinf) == (4, 0)
    assert drawn(a, a.clone(), relative=True).nan == 0


def test_what_is_not_finite_is_counted() -> None:
    a = torch.ones(1, 3, 4, 4)
    b = a.clone()
    a[0, 0, 0, 0] = b[0, 0, 0, 0] = torch.inf  # alike: no difference
    b[0, 1, 1, 1] = torch.nan
    drawing = drawn(a, b)
    assert drawing.nan == 1
    assert drawing.posinf == 0


def test_maps_of_other_sizes_are_drawn_on_the_coarser_grid() -> None:
    drawing = drawn(torch.ones(1, 3, 8, 8), torch.zeros(1, 3, 4, 2))
    assert "compared on the coarser grid 4×2: a has 8×8, b has 4×2" in drawing.notes
    with pytest.raises(LayerError, match="was not compared"):
        compare(record(torch.ones(1, 3, 8, 8)), record(torch.ones(1, 4, 8, 8))).figure("other")
    with pytest.raises(RenderError, match="numbers of channels differ"):
        drawn(torch.ones(1, 3, 8, 8), torch.ones(1, 4, 8, 8))


def test_a_vector_is_drawn_as_bars_of_all_three() -> None:
    a, b = torch.zeros(1, 30), torch.zeros(1, 30)
    b[0, 7] = -2.0
    drawing = drawn(a, b, top=3)
    assert drawing.kind == "comparison-bars"
    assert drawing.pages == 1
    assert (drawing.vmin, drawing.vmax) == (-2.0, 2.0)


@pytest.mark.parametrize(
    "shape", [(1, 5, 16), (1, 2, 6, 6, 6), (7,), (1, 4, 1, 1), (3, 4, 5, 5), (1, 1, 9, 9)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.bool], ids=str)
def test_every_shape_and_dtype_is_drawn(shape, dtype) -> None:
    a, b = (torch.rand(shape).mul(3).to(dtype) for _ in range(2))
    drawing = drawn(a, b)
    assert drawing.figure.canvas.get_width_height()[0] == 700


def test_every_scale_and_option_is_followed() -> None:
    a, b = torch.randn(1, 70, 5, 5), torch.randn(1, 70, 5, 5)
    for scale in ("layer", "symmetric", "percentile"):
        assert drawn(a, b, scale=scale).vmax > 0
    assert drawn(a, b, vmin=-1.0, vmax=1.0).kind == "comparison"
    assert drawn(a, b, page=1).channels == tuple(range(64, 70))
    assert drawn(a, b, ncols=4, labels=False, colorbar=False, channels="3,5").channels == (3, 5)
    with pytest.raises(RenderError, match="overlay"):
        drawn(a, b, overlay=True)


# ── files


def test_an_export_holds_table_summary_figures_and_both_facts(
    model, run, cat, cup, tmp_path
) -> None:
    found = compare(run(model, cat), run(model, cup))
    result = found.export(tmp_path, layers=["conv", "head"])
    names = [path.name for path in result.files]
    assert names[:2] == ["000_comparison.csv", "000_comparison.txt"]
    assert [name.split("_")[1] for name in names[2:]] == ["conv", "head"]
    with (result.folder / names[0]).open(encoding="utf-8") as file:
        assert [row["label"] for row in csv.DictReader(file)] == [e.label for e in found]
    text = (result.folder / names[1]).read_text(encoding="utf-8")
    assert str(found) in text
    assert found.table() in text
    manifest = json.loads(result.manifest.read_text(encoding="utf-8"))
    assert manifest["image"]["name"] == "chelsea.png | coffee.png"
    assert manifest["model"]["name"] == "Net"
    (entry,) = [e for e in manifest["layers"] if e["layer"] == "conv"]
    apart = (found_tensor(found, "b") - found_tensor(found, "a"))[0]
    assert entry["kind"] == "comparison"
    assert entry["channels"]["max"] == pytest.approx(apart.amax((1, 2)).tolist())
    with Image.open(result.folder / names[2]) as image:
        image.load()
        assert image.text["layer"] == "conv"  # type: ignore[attr-defined]
        assert image.text["image"] == "chelsea.png | coffee.png"  # type: ignore[attr-defined]


def found_tensor(found, side: str) -> torch.Tensor:
    a, b = next(pair for pair in found._records if pair[0].layer == "conv")
    return (a if side == "a" else b).tensor


def test_pairs_are_exported_and_drawn_by_running_again(model, changed, cat, tmp_path) -> None:
    found = compare((model, cat), (changed(model, "down", 0.5), cat))
    result = found.export(tmp_path, layers="down", what=("grids", "channels", "svg"))
    assert any(path.suffix == ".svg" for path in result.files)
    assert all("_down_" in p.name for p in result.files if p.suffix in (".png", ".svg"))
    assert next(p.name[:4] for p in result.files if p.suffix == ".png") == "003_"
    assert found.figure("relu", 2, width=400) is not None


def test_the_pngs_of_a_comparison_are_drawn_again(tmp_path) -> None:
    model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
    half = hookviz.load_model("vgg16", weights="bundled", device="cpu").to("cpu", torch.bfloat16)
    cat, cup = (hookviz.sample_image(name) for name in ("chelsea.png", "coffee.png"))
    options = GridOptions(order="norm", per_page=6, width=500)
    for pair in (((model, cat), (model, cup)), ((model, cat), (half, cat))):
        found = compare(*pair, "features.[23]")
        for path in found.export(tmp_path, layers="features.2", options=options).files:
            if path.suffix == ".png":
                again = hookviz.reproduce(path)
                assert again.identical, again.differences
    other = hookviz.reproduce(path, model=(model, model))
    assert not other.identical


def test_a_comparison_of_own_models_is_drawn_again_with_them(model, changed, cat, tmp_path) -> None:
    other = changed(model, "down", 0.5)
    found = compare((model, cat), (other, cat))
    *_, path = found.export(tmp_path, layers="down").files
    assert hookviz.reproduce(path, model=(model, other)).identical
    assert not hookviz.reproduce(path, model=model).same_pixels
    with pytest.raises(hookviz.HookvizError, match="not at hand"):
        hookviz.reproduce(path)


def test_the_table_alone_is_exported_without_a_layer(model, run, cat, tmp_path) -> None:
    found = compare(run(model, cat), run(model, cat))
    result = found.export(tmp_path, layers=())
    assert [p.suffix for p in result.files] == [".csv", ".txt"]
    with pytest.raises(LayerError, match="'cnov' was not compared"):
        found.export(tmp_path, layers="cnov")
    assert len(list(tmp_path.iterdir())) == 1


# ── the command line


def command(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["compare", *arguments], prog_name="hookviz")


VGG = ("vgg16", "vgg16", "--weights", "bundled", "--device", "cpu", "-l", "features.[0-2]")


def test_the_same_run_exits_with_0() -> None:
    done = command(*VGG, "--image", "chelsea.png")
    assert done.exit_code == 0, done.output
    assert "No difference: every value is the same." in done.stderr
    assert done.stdout.splitlines()[1].startswith("features.0 ")
    assert done.stderr.count("No classifier") == 1


def test_a_difference_exits_with_1_unless_it_is_tolerated() -> None:
    photos = ("--image", "chelsea.png", "--image", "coffee.png")
    done = command(*VGG, *photos)
    assert done.exit_code == 1
    assert "First difference: features.0 (Conv2d)" in done.stderr
    assert command(*VGG, *photos, "--tol", "2").exit_code == 0


def test_dtypes_and_exports_are_compared(tmp_path: Path) -> None:
    half = ("--image", "chelsea.png", "--dtype", "float32", "--dtype", "bfloat16")
    done = command(*VGG, *half, "-o", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert "cpu bfloat16" in done.stderr
    folder = Path(done.stdout.strip().splitlines()[-1])
    assert (folder / "000_comparison.csv").exists()
    model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
    run = hookviz.feature_maps(model, hookviz.sample_image(), "features.0")
    saved = run.export(tmp_path / "saved", what="values").folder
    done = command(str(saved), "vgg16", "--weights", "bundled", "--image", "chelsea.png")
    assert done.exit_code == 0, done.output
    assert command(str(saved), str(saved)).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("vgg16", "vgg16"), "No image was named for the model 'vgg16'. Name one with --image."),
        ((*VGG, "--image", "a", "--image", "b", "--image", "c"), "--image was given 3 times"),
        ((*VGG, "--image", "no-such.png"), "no-such.png"),
        ((*VGG, "--image", "chelsea.png", "--tol", "-1"), "--tol"),
        ((*VGG, "--image", "chelsea.png", "--dtype", "int8"), "--dtype"),
        (("vgg16",), "B"),
        (("vgg61", "vgg16", "--image", "chelsea.png"), "vgg61"),
        ((*VGG, "--image", "chelsea.png", "-l", "featrues.0"), "featrues.0"),
    ],
)
def test_bad_input_exits_with_2_and_one_sentence(arguments, said) -> None:
    done = command(*arguments)
    assert done.exit_code == 2, done.output
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.output


def test_the_command_compares_checkpoints(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = hookviz.load_model("resnet18", weights=None, device="cpu")
    torch.save(net.module.state_dict(), tmp_path / "before.pth")
    net.module.layer2[0].conv1.weight.data[3, 4, 1, 1] += 1e-3
    torch.save(net.module.state_dict(), tmp_path / "after.pth")
    weights = ("--weights", str(tmp_path / "before.pth"), "--weights", str(tmp_path / "after.pth"))
    done = command("resnet18", "resnet18", *weights, "--image", "chelsea.png", "--device", "cpu")
    assert done.exit_code == 1, done.output
    assert "First difference: layer2.0.conv1 (Conv2d)" in done.stderr


def test_what_is_compared_twice_is_not_changed(model, run, cat) -> None:
    a = run(model, cat)
    before = [record.tensor.clone() for record in a.activations]
    found = compare(a, replace(a))
    found.figure("conv", width=400)
    assert all(torch.equal(one, r.tensor) for one, r in zip(before, a.activations, strict=True))
