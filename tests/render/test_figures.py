"""Dtypes, shapes, scaling, figures."""

from __future__ import annotations

import gc
import io
import threading
from functools import partial
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from hookviz.activation import Activation
from hookviz.errors import RenderError
from hookviz.render import (
    Curve,
    FigureFacts,
    GridOptions,
    SingleChannels,
    Subject,
    channel_statistics,
    draw,
    draw_curves,
    feature_grid,
    fitted,
    page_count,
    page_sentence,
    parse_channels,
    shared_range,
)
from hookviz.render._sheet import Sheet


def activation(tensor, layer="layer", kind="ReLU", **other):
    values = {"call": 1, "calls": 1, "run": 1, "order": 1, "kind": "output", "leaf": ""} | other
    return Activation(layer=layer, module_type=kind, tensor=tensor, **values)


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def said(figure: Figure) -> str:
    return " ".join(texts(figure))


FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
WHOLE = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE], ids=str)
def test_every_dtype_is_drawn(dtype):
    tensor = (torch.arange(32).reshape(1, 2, 4, 4) % 7).to(dtype)
    drawing = draw(tensor)
    assert (drawing.vmin, drawing.vmax) == (0.0, 1.0 if dtype is torch.bool else 6.0)
    assert str(dtype).removeprefix("torch.") in said(drawing.figure)
    reference = draw(tensor.double(), GridOptions(cmap="gray")).pixels()[60:]
    pixels = draw(tensor, GridOptions(cmap="gray")).pixels()[60:]
    assert np.abs(pixels.astype(int) - reference).max() <= 1
    channel_statistics(tensor)
    draw(tensor, GridOptions(figure="statistics"))


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"])
def test_rarer_dtypes_are_drawn(name):
    dtype = getattr(torch, name)
    tensor = (torch.arange(32).reshape(1, 2, 4, 4) % 7).to(dtype)
    drawing = draw(tensor)
    assert (drawing.vmin, drawing.vmax) == (0.0, 6.0)
    for options in (GridOptions(order="mean"), GridOptions(scale="percentile"), GridOptions(top=1)):
        draw(tensor, options)
    channel_statistics(tensor)


@pytest.mark.filterwarnings("ignore:.*[Qq]uantiz.*")  # torch deprecates what is tested here
def test_quantised_complex_and_sparse():
    quantised = torch.quantize_per_tensor(torch.rand(1, 2, 4, 4), 0.1, 3, torch.quint8)
    assert "dequantised" in draw(quantised).notes
    number = torch.complex(torch.full((1, 2, 4, 4), 3.0), torch.full((1, 2, 4, 4), 4.0))
    drawing = draw(number)
    assert "magnitude of complex values" in drawing.notes
    assert (drawing.vmin, drawing.vmax) == (5.0, 5.0)
    assert draw(number.conj()).vmax == 5.0
    assert draw(torch.eye(4).to_sparse().unsqueeze(0).unsqueeze(0)).total == 1
    huge = torch.complex(torch.tensor(3e38), torch.tensor(3e38)).expand(1, 1, 2, 2)
    assert draw(huge).posinf == 0


def test_values_beyond_the_next_dtype():
    half = torch.tensor([65504.0, -65504.0, torch.inf, 0.0], dtype=torch.float16)
    drawing = draw(half.reshape(1, 1, 2, 2))
    assert (drawing.vmin, drawing.vmax, drawing.posinf) == (-65504.0, 65504.0, 1)
    wide = torch.tensor([1e300, -1e300, 1.7e308, 0.0], dtype=torch.float64).reshape(1, 1, 2, 2)
    drawing = draw(wide, GridOptions(scale="layer"))
    assert (drawing.vmin, drawing.vmax) == (-1e300, 1.7e308)
    assert "1.7e308" in drawing.scale
    for options in ("mean", "variance", "max", "sparsity", "similarity:0"):
        draw(wide, GridOptions(order=options, summary="mean,max,pca"))
    draw(wide, GridOptions(figure="statistics"))
    tiny = torch.tensor([0.0, 5e-324], dtype=torch.float64).reshape(1, 1, 1, 2)
    assert draw(tiny).vmax == 5e-324
    draw(tiny, GridOptions(figure="statistics"))


def test_vectors_are_bars_with_the_largest_named():
    values = torch.zeros(1, 1000)
    values[0, 281], values[0, 7] = 9.5, 3.0
    names = [f"class {i}" for i in range(1000)]
    drawing = draw(activation(values, "fc", "Linear"), categories=names)
    assert (drawing.kind, drawing.pages, drawing.total) == ("bars", 1, 1000)
    found = texts(drawing.figure)
    assert found.index("281  class 281") < found.index("7  class 7")
    assert "9.5" in found
    unnamed = texts(draw(activation(values, "fc", "Linear"), categories=names[:10]).figure)
    assert "281" in unnamed


def test_one_by_one_maps_are_bars_not_blank_tiles():
    drawing = draw(activation(torch.rand(1, 512, 1, 1), "avgpool", "AdaptiveAvgPool2d"))
    assert drawing.kind == "bars"
    assert "1×1 maps as bars" in said(drawing.figure)
    last = draw(activation(torch.rand(1, 1, 1, 768), "norm", "LayerNorm"))
    assert (last.kind, last.total) == ("bars", 768)


def test_swin_blocks_are_maps_of_their_last_axis():
    drawing = draw(activation(torch.rand(1, 56, 56, 96), "features.1.0", "SwinTransformerBlock"))
    assert (drawing.kind, drawing.total) == ("maps", 96)
    assert "(N, H, W, C)" in said(drawing.figure)


def test_a_batch_says_which_sample():
    assert "sample 1 of 4" in said(draw(torch.rand(4, 3, 5, 5), GridOptions(sample=1)).figure)
    assert "sample 1 of 4" in said(draw(torch.rand(4, 30), GridOptions(sample=1)).figure)


def test_constant_and_dead_channels_say_so():
    tensor = torch.rand(1, 4, 6, 6)
    tensor[0, 1], tensor[0, 2], tensor[0, 3] = 0.0, 255.0, tensor[0, 3] * 1000
    for scale in ("channel", "layer", "symmetric", "percentile"):
        drawing = draw(tensor, GridOptions(scale=scale))
        found = texts(drawing.figure)
        assert "1 dead" in found
        assert "2 = 255" in found
        assert drawing.dead == (1,)
        assert drawing.scale in said(drawing.figure)


def test_one_loud_channel_hides_the_rest_only_on_a_shared_scale():
    tensor = torch.rand(1, 2, 6, 6)
    tensor[0, 1] *= 1000
    top, left, tall, wide = (drawing := draw(tensor, GridOptions(cmap="gray"))).places[0]
    quiet = drawing.pixels()[top : top + tall, left : left + wide, 0]
    assert quiet.max() <= 1
    drawing = draw(tensor, GridOptions(cmap="gray", scale="channel"))
    top, left, tall, wide = drawing.places[0]
    own = drawing.pixels()[top : top + tall, left : left + wide, 0]
    assert (own.min(), own.max()) == (0, 255)
    assert drawing.vmin is None
    ends = (float(tensor[0, 0].min()), float(tensor[0, 0].max()))
    assert drawing.tile_ranges[0] == pytest.approx(ends)
    assert any(" … " in text for text in texts(drawing.figure))


def test_negatives_choose_a_diverging_map_about_zero():
    tensor = torch.tensor([-1.0, 0.0, 3.0, 0.5]).reshape(1, 1, 2, 2)
    drawing = draw(tensor, GridOptions(style="light"))
    assert (drawing.vmin, drawing.vmax, drawing.cmap) == (-3.0, 3.0, "RdBu_r")
    assert "symmetric about zero: ±3" in said(drawing.figure)
    assert draw(tensor, GridOptions(style="dark")).cmap == "hookviz_dark"
    assert draw(tensor.abs()).cmap == "viridis"


def test_clipped_values_are_marked_and_counted():
    tensor = torch.arange(100.0).reshape(1, 1, 10, 10)
    drawing = draw(tensor, GridOptions(vmin=10.0, vmax=89.0, scale="fixed", cmap="gray"))
    assert (drawing.below, drawing.above) == (10, 10)
    assert "clipped 10 % below and 10 % above" in said(drawing.figure)
    assert "below the scale: 10 values" in said(drawing.figure)
    drawing = draw(tensor, GridOptions(scale="percentile", percentile=(5, 95)))
    assert (drawing.vmin, drawing.vmax, drawing.below, drawing.above) == (5.0, 94.0, 5, 5)
    top, left, tall, wide = drawing.places[0]
    pixels = drawing.pixels()
    inside = {tuple(c) for c in pixels[top + tall // 10 :: 7, left : left + wide : 7, :3][0]}
    assert tuple(pixels[top, left, :3]) not in inside


def test_nan_and_infinities_have_colors_of_their_own_and_are_counted():
    tensor = torch.linspace(0, 1, 64).reshape(1, 1, 8, 8)
    clean = draw(tensor, GridOptions(scale="full")).pixels()
    tensor[0, 0, 3, 3:6] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    drawing = draw(tensor, GridOptions(scale="full"))
    assert (drawing.nan, drawing.posinf, drawing.neginf) == (1, 1, 1)
    assert (drawing.vmin, drawing.vmax) == (0.0, 1.0)
    for text in ("NaN: 1 value", "+Inf: 1 value", "−Inf: 1 value"):
        assert text in texts(drawing.figure)
    top, left, tall, _ = drawing.places[0]
    step = tall // 8
    pixels = drawing.pixels()
    shown = [tuple(pixels[top + 3 * step, left + x * step, :3]) for x in (3, 4, 5)]
    assert len(set(shown)) == 3
    colors = {tuple(c) for c in mpl.colormaps["viridis"](np.arange(256), bytes=True)[:, :3]}
    assert not set(shown) & colors
    # All other pixels of the map are what they were; only the header grew by a line.
    grown = pixels.shape[0] - clean.shape[0]
    row = slice(top, top + step)
    assert np.array_equal(pixels[row], clean[row.start - grown : row.stop - grown])


def test_a_layer_without_any_finite_value_is_drawn():
    for fill in (torch.nan, torch.inf, -torch.inf):
        drawing = draw(torch.full((1, 3, 4, 4), fill))
        assert "no value is finite" in said(drawing.figure)
        assert drawing.nan + drawing.posinf + drawing.neginf == 48
        draw(torch.full((1, 3), fill))
        draw(torch.full((1, 3, 4, 4), fill), GridOptions(figure="statistics"))
        draw(torch.full((1, 3, 4, 4), fill), GridOptions(scale="channel", summary="mean,max,pca"))
        draw(torch.full((1, 3, 4, 4), fill), GridOptions(scale="percentile", order="mean"))


def test_a_large_layer_pages_and_says_so():
    tensor = torch.rand(1, 2048, 3, 3)
    assert page_count(tensor) == 32
    drawing = draw(tensor, GridOptions(page=1))
    assert drawing.channels == tuple(range(64, 128))
    assert "maps 65–128 of 2048" in said(drawing.figure)
    whole = draw(tensor, GridOptions(per_page=2048))
    assert len(whole.places) == 2048
    with pytest.raises(RenderError, match=r"page is 32.*0 to 31"):
        draw(tensor, GridOptions(page=32))


def test_pyplot_never_hears_of_a_figure_and_memory_stays_flat():
    import matplotlib.pyplot as plt

    def alive() -> int:
        return sum(type(o).__name__ == "GridFigure" for o in gc.get_objects())

    before = plt.get_fignums()
    tensor = torch.rand(1, 9, 5, 5)
    for _ in range(25):
        draw(tensor, GridOptions(width=300)).png_bytes()
    gc.collect()
    figures = alive()
    for _ in range(25):
        draw(tensor, GridOptions(width=300)).png_bytes()
    gc.collect()
    assert alive() <= figures
    assert plt.get_fignums() == before


@pytest.mark.parametrize(
    ("width", "dpi"), [(1200, 100), (600, 100), (999, 72), (333, 227), (200, 33.3)]
)
def test_the_png_is_as_wide_as_promised(width, dpi):
    for tensor in (torch.rand(1, 7, 5, 5), torch.rand(1, 50)):
        drawing = draw(tensor, GridOptions(width=width, dpi=dpi))
        image = Image.open(io.BytesIO(drawing.png_bytes()))
        assert image.width == width
        assert image.mode == "RGB"
        stream = io.BytesIO()
        drawing.figure.savefig(stream)
        assert Image.open(stream).size == image.size


def test_strange_layer_names_are_drawn_as_they_are():
    for name in ("a/b", "$x^2$", "_orig_mod.块", "a" * 300, "%s {}", ""):
        drawing = draw(activation(torch.rand(1, 2, 3, 3), name))
        drawing.png_bytes()
        title = texts(drawing.figure)
        assert any(t in (name or "(model)", "_orig_mod.□") or "…" in t for t in title), title


def test_pyplot_is_not_imported(fresh_python, tmp_path):
    code = (
        "import sys, torch; from hookviz.render import draw; "
        "draw(torch.rand(1, 3, 4, 4)).png_bytes(); print('matplotlib.pyplot' in sys.modules)"
    )
    assert fresh_python.run(code, cwd=tmp_path).stdout.strip() == "False"


def test_the_same_input_gives_the_same_bytes_also_on_other_threads():
    tensor = torch.rand(1, 20, 9, 9)
    options = GridOptions(scale="channel", summary="mean,pca", style="dark")
    first = draw(tensor, options).png_bytes()
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(draw(tensor, options).png_bytes()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [first] * 4
    assert Image.open(io.BytesIO(first)).info == {}


def test_text_keys_are_written():
    png = draw(torch.rand(1, 2, 3, 3)).png_bytes(metadata={"layer": "a·b", "vmin": "0.0"})
    assert Image.open(io.BytesIO(png)).text == {"layer": "a·b", "vmin": "0.0"}


def test_savefig_writes_png_pdf_and_svg_with_real_text():
    figure = feature_grid(torch.rand(1, 4, 5, 5), width=500)
    for kind, start in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")):
        stream = io.BytesIO()
        figure.savefig(stream, format=kind)
        assert stream.getvalue().startswith(start)
    stream = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none"}):
        figure.savefig(stream, format="svg")
    assert "4 maps" in stream.getvalue().decode()
    stream = io.BytesIO()
    figure.savefig(stream, dpi=200)
    assert Image.open(stream).width == 1000


def test_the_user_can_go_on_with_the_figure():
    figure = feature_grid(torch.rand(1, 4, 5, 5))
    before = (
        np.asarray(figure.canvas.buffer_rgba()).copy() if figure.canvas.draw() is None else None
    )
    maps = next(axes for axes in figure.axes if axes.get_label() == "maps")
    maps.plot([0, 100], [0, 100], color="red")
    for text in figure.findobj(Text):
        text.set_color("blue")
    figure.canvas.draw()
    assert not np.array_equal(before, np.asarray(figure.canvas.buffer_rgba()))
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_handed_out_texts_look_like_the_bitmaps():
    figure = feature_grid(torch.rand(1, 4, 5, 5), style="light")
    figure.canvas.draw()
    fast = np.asarray(figure.canvas.buffer_rgba()).astype(int)
    assert len(figure.findobj(Text)) > 8
    figure.canvas.draw()
    slow = np.asarray(figure.canvas.buffer_rgba()).astype(int)
    # The glyphs are the same; kerning and fractions of a pixel may shift some of them.
    assert abs((fast < 128).sum() - (slow < 128).sum()) < 0.1 * (255 - fast > 127).sum()


def test_styles_and_rcparams():
    tensor = torch.rand(1, 4, 5, 5)
    with mpl.rc_context({"figure.facecolor": "#204060", "text.color": "#ffeecc"}):
        assert draw(tensor).pixels()[2, 2].tolist() == [0x20, 0x40, 0x60, 255]
        assert draw(tensor, GridOptions(style="light")).pixels()[2, 2].tolist() == [255] * 4
    with mpl.rc_context({
        "font.family": "DejaVu Serif", "figure.constrained_layout.use": True, "axes.grid": True,
        "savefig.facecolor": "red", "axes.facecolor": "red", "image.interpolation": "bicubic",
        "image.origin": "lower", "figure.dpi": 55, "text.usetex": False,
    }):  # fmt: skip
        changed = draw(tensor)
        assert changed.figure.findobj(Text)[0].get_fontfamily() == ["DejaVu Serif"]
        pinned = draw(tensor, GridOptions(style="light")).png_bytes()
    assert pinned == draw(tensor, GridOptions(style="light")).png_bytes()
    with mpl.rc_context({"figure.facecolor": "none"}):
        assert draw(tensor).pixels()[2, 2, 3] == 0


def test_facts_and_calls_stand_on_the_figure():
    source = activation(torch.rand(1, 4, 5, 5), "layer1.0.relu", call=2, calls=3, leaf="out")
    facts = FigureFacts(model="resnet50", trained=False, image="chelsea.png")
    found = texts(draw(source, facts=facts).figure)
    assert "layer1.0.relu[out] call 2 of 3" in found
    assert "UNTRAINED" in found
    assert "resnet50  ·  chelsea.png" in found
    assert any("ReLU" in text and "1×4×5×5" in text for text in found)


@pytest.mark.parametrize("count", [1, 4, 64, 512, 2048])
@pytest.mark.parametrize("width", [320, 1200])
def test_labels_neither_overlap_nor_leave_the_page(count, width):
    tensor = torch.rand(1, count, 7, 7)
    facts = FigureFacts(model="a_model_with_a_long_name", image="a" * 80 + ".png", trained=False)
    source = activation(tensor, "backbone.body.layer4.2.conv3.with.a.very.long.name" * 2)
    options = GridOptions(per_page=count, width=width, scale="channel", style="light")
    drawing = draw(source, options, facts=facts)
    figure = drawing.figure
    renderer = figure.canvas.get_renderer()
    boxes = [t.get_window_extent(renderer) for t in figure.findobj(Text) if t.get_text()]
    edges = np.array([(b.x0, b.y0, b.x1, b.y1) for b in boxes])
    assert edges[:, :2].min() >= 0
    assert edges[:, 2].max() <= width
    assert edges[:, 3].max() <= figure.bbox.height
    # Glyph boxes may touch by the blank pixel that every character carries.
    x0, y0, x1, y1 = (edges + np.array([1, 2, -1, -2])).T
    crossing = (x0[:, None] < x1) & (x0 < x1[:, None]) & (y0[:, None] < y1) & (y0 < y1[:, None])
    np.fill_diagonal(crossing, val=False)
    assert not crossing.any()


def test_shared_scales():
    one, other = torch.rand(1, 2, 4, 4), torch.rand(1, 3, 6, 6) * 10
    low, high = shared_range([one, other])
    for tensor in (one, other):
        drawing = draw(tensor, GridOptions(scale="shared", vmin=low, vmax=high))
        assert (drawing.vmin, drawing.vmax) == (low, high)
        assert "shared scale" in said(drawing.figure)
    assert shared_range([one, -other]) == (-high, high)
    with pytest.raises(RenderError, match="shared_range"):
        GridOptions(scale="shared")
    with pytest.raises(RenderError, match="finite"):
        shared_range([torch.full((1, 1, 2, 2), torch.nan)])


def test_order_choice_and_pages():
    tensor = torch.zeros(1, 6, 2, 2)
    for channel, values in enumerate(([1, 1], [9, 0], [0, 0], [4, 4], [-5, 5], [2, 0])):
        tensor[0, channel, 0, 0], tensor[0, channel, 1, 1] = values

    def order(**options):
        return draw(tensor, GridOptions(**options)).channels

    assert order(order="mean") == (1, 3, 0, 5, 2, 4)
    assert order(order="max") == (1, 4, 3, 5, 0, 2)
    assert order(order="variance")[0] == 1 or order(order="variance")[0] == 4
    assert order(order="sparsity", descending=False)[-1] == 2
    assert order(order="similarity:3")[0] == 3
    assert order(order="similarity:3")[1] == 0
    assert order(descending=True) == (5, 4, 3, 2, 1, 0)
    assert order(hide_dead=True) == (0, 1, 3, 4, 5)
    assert order(channels="4-5,0") == (4, 5, 0)
    assert order(channels=[3, 1], order="max") == (1, 3)
    assert order(order="max", top=2) == (1, 4)
    assert order(per_page=4, page=1) == (4, 5)
    assert {"3", "1"} <= set(texts(draw(tensor, GridOptions(channels="3,1")).figure))
    with pytest.raises(RenderError, match=r"channels names 6.*0 to 5"):
        order(channels="2,6")
    with pytest.raises(RenderError, match="similarity:9"):
        order(order="similarity:9")
    with pytest.raises(RenderError, match="hide_dead"):
        draw(torch.zeros(1, 3, 2, 2), GridOptions(hide_dead=True))


def test_overlay_has_the_pictures_aspect_and_place():
    picture = np.zeros((60, 120, 3), np.uint8)
    picture[:, 60:] = 255
    maps = torch.zeros(1, 1, 3, 6)
    maps[0, 0, 0, 0] = 1.0
    options = GridOptions(overlay=0.5, cmap="gray", width=500)
    drawing = draw(maps, options, background=picture)
    top, left, tall, wide = drawing.places[0]
    assert abs(wide - 2 * tall) <= 1
    pixels = drawing.pixels()[..., 0].astype(int)
    assert abs(pixels[top + 2, left + 2] - 128) <= 1  # the map's one, over black
    assert pixels[top + tall - 3, left + 2] == 0
    assert abs(pixels[top + tall - 3, left + wide - 3] - 128) <= 1  # zero, over white
    assert "laid over the input at 50 %" in said(drawing.figure)
    with pytest.raises(RenderError, match="background"):
        draw(maps, options)
    with pytest.raises(RenderError, match="single values"):
        draw(torch.rand(1, 30), options, background=picture)
    with pytest.raises(RenderError, match="background has shape"):
        draw(maps, options, background=picture[..., 0])


def test_input_and_summary_tiles_stand_beside_the_grid():
    picture = np.full((40, 80, 3), (200, 30, 40), np.uint8)
    maps = torch.rand(1, 5, 4, 8)
    options = GridOptions(show_input=True, summary="mean,max,pca")
    drawing = draw(maps, options, background=picture)
    labels = [axes.get_label() for axes in drawing.figure.axes]
    assert labels[:1] == ["maps"]
    assert {"input", "mean of 5 maps", "max of 5 maps", "principal components"} <= set(labels)
    tile = next(a for a in drawing.figure.axes if a.get_label() == "input")
    array = tile.images[0].get_array()
    assert abs(array.shape[1] / array.shape[0] - 2) < 0.05
    assert array[5, 5].tolist() == [200, 30, 40, 255]


def test_mean_tile_is_the_mean_and_components_do_not_depend_on_the_solver():
    from hookviz.render._measure import max_map, mean_map, principal_components

    maps = torch.randn(7, 5, 6)
    assert torch.allclose(mean_map(maps).float(), maps.mean(0), atol=1e-6)
    assert torch.allclose(max_map(maps).float(), maps.amax(0))
    scores, explained = principal_components(maps)
    flat = (maps.double() - maps.double().mean((1, 2), keepdim=True)).flatten(1)
    singular = torch.linalg.svd(flat, full_matrices=False)
    share = (singular.S[:3] ** 2).sum() / (singular.S**2).sum()
    assert explained == pytest.approx(float(share))
    unit = maps.abs().max().double()
    expected = singular.S[:3, None] * singular.Vh[:3] / unit
    assert torch.allclose(scores.flatten(1).abs(), expected.abs(), atol=1e-9)
    assert (scores.flatten(1).pow(3).sum(1) >= 0).all()
    # More places than channels and fewer take different ways to the same result.
    wide = principal_components(maps.repeat(9, 1, 1))[0]
    assert torch.allclose(wide, scores * 3, atol=1e-9)
    constant, nothing = principal_components(torch.ones(2, 3, 3))
    assert (constant.abs().max(), nothing) == (0, 0.0)


def test_statistics_are_those_of_numpy():
    tensor = torch.randn(1, 5, 6, 7).relu()
    tensor[0, 2] = 0
    found = channel_statistics(tensor)
    values = tensor[0].double().numpy()
    assert np.allclose(found.mean, values.mean((1, 2)))
    assert np.allclose(found.variance, values.var((1, 2)))
    assert np.allclose(found.zeros, (values == 0).mean((1, 2)))
    assert found.low.tolist() == values.min((1, 2)).tolist()
    assert found.high.tolist() == values.max((1, 2)).tolist()
    assert found.dead.tolist() == [False, False, True, False, False]
    assert found.layer_mean == pytest.approx(values.mean())
    assert found.layer_std == pytest.approx(values.std())
    assert found.layer_zeros == pytest.approx((values == 0).mean())
    tensor[0, 0, 0, 0] = torch.nan
    tensor[0, 1, 0, 0] = torch.inf
    found = channel_statistics(tensor)
    assert found.nan.tolist() == [1, 0, 0, 0, 0]
    assert found.mean[0] == pytest.approx(values[0].ravel()[1:].mean())
    drawn = said(feature_grid(tensor, figure="statistics"))
    for part in ("minimum", "standard deviation", "1 of 5", "NaN", "1 in 1 channel"):
        assert part in drawn


def test_single_channels_of_a_layer_are_measured_once_and_alike():
    tensor = torch.randn(1, 5, 4, 6)
    options = GridOptions(cmap="viridis")
    layer = SingleChannels(tensor, options)
    found = list(layer.images([1, 3]))
    assert [image.channel for image in found] == [1, 3]
    for image in found:
        rgb = image.rgb(layer.table)
        (alone,) = SingleChannels(tensor, options).images([image.channel])
        assert np.array_equal(rgb, alone.rgb(layer.table))
        assert rgb.shape == (4, 6, 3)
    with pytest.raises(RenderError, match="0 to 4; channel 5 is not"):
        list(layer.images([5]))


def test_the_tensor_is_left_as_it_was():
    tensor = torch.randn(1, 4, 5, 5, requires_grad=True)
    copy = tensor.detach().clone()
    draw(tensor, GridOptions(summary="mean,pca", order="variance"))
    assert torch.equal(tensor.detach(), copy)
    assert tensor.requires_grad
    assert tensor.grad_fn is None


@pytest.mark.parametrize("width", [1600, 330])
def test_a_dead_channel_is_told_by_a_sign_at_every_width_not_by_color_alone(width, monkeypatch):
    written = []
    write = Sheet.write
    monkeypatch.setattr(Sheet, "write", lambda self, text, *at, **how: (
        written.append(text), write(self, text, *at, **how))[1])  # fmt: skip
    maps = torch.rand(1, 64, 8, 8)
    maps[0, [3, 41]] = 0
    draw(maps, GridOptions(width=width))
    sign = " dead" if width > 1000 else "†"
    assert {f"3{sign}", f"41{sign}"} <= set(written)
    assert "4" in written


@pytest.mark.parametrize(
    ("choice", "shown"),
    [
        ({"first": "4,1"}, (4, 1, 0, 2, 3, 5)),
        ({"first": (4, 1), "order": "mean"}, (4, 1, 5, 3, 2, 0)),
        ({"first": "4", "order": "mean", "descending": False}, (4, 0, 1, 2, 3, 5)),
        ({"first": "4", "channels": "0-1"}, (4, 0, 1)),
        ({"first": "0", "hide_dead": True}, (0, 1, 2, 3, 4, 5)),
        ({"first": "2,3", "top": 3}, (2, 3, 0)),
        ({"first": "5", "per_page": 2, "page": 1}, (1, 2)),
    ],
)
def test_channels_that_come_first_do_so_whatever_else_is_chosen(
    choice: dict[str, Any], shown: tuple[int, ...]
) -> None:
    maps = torch.arange(6.0)[None, :, None, None] * torch.ones(4, 4)  # channel 0 is dead
    drawing = draw(maps, GridOptions(**choice))
    assert drawing.channels == shown
    said = page_sentence(Subject(maps, GridOptions(**choice)))
    assert f"first {', '.join(map(str, parse_channels(choice['first'])))}" in said


def test_what_one_layer_cannot_follow_is_left_out_and_no_more() -> None:
    few = torch.rand(1, 3, 4, 4)
    options = GridOptions(channels="0-1,7", order="mean", hide_dead=True, per_page=1)
    pages, followed, refusal = fitted(options, partial(page_count, few))
    assert (pages, followed) == (2, options.replace(channels=(0, 1)))
    assert refusal is not None
    assert refusal.code == "no-such-channel"
    assert fitted(options.replace(channels="0"), partial(page_count, few))[2] is None
    options = GridOptions(first="2,9", channels="0-1")
    pages, followed, refusal = fitted(options, partial(page_count, few))
    assert followed == options.replace(first=(2,))
    assert refusal is not None
    assert "first names 9" in refusal.message
    with pytest.raises(RenderError, match="no values"):
        fitted(options, partial(page_count, torch.zeros(1, 0, 4, 4)))


@pytest.mark.parametrize(
    "choice",
    [{"overlay": True}, {"channels": "0,9"}, {"order": "similarity:1"}, {"hide_dead": True}],
)
def test_pages_are_counted_only_where_a_page_can_be_drawn(choice: dict[str, Any]) -> None:
    vector, options = torch.zeros(1, 4), GridOptions(**choice)
    with pytest.raises(RenderError) as drawn:
        draw(vector, options, background=np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(RenderError) as counted:
        page_count(vector, options)
    assert str(drawn.value) == str(counted.value)


@pytest.mark.parametrize("count", [1, 4, 10, 12])
@pytest.mark.parametrize("width", [300, 320, 440, 500])
def test_names_of_curves_and_words_of_marks_cover_nothing_at_any_width(
    count: int, width: int
) -> None:
    steps = np.arange(61.0)
    curves = [Curve(f"features.{at}", steps, steps / 60) for at in range(count)]
    marks = [(5.0, "loss"), (52.0, "dead"), (60.0, "NaN or Inf")]
    figure = draw_curves(curves, title="zeros", unit="share", marks=marks, width=width)
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # Agg's
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    box = legend.get_window_extent(renderer)
    drawn = axes.get_tightbbox(renderer, bbox_extra_artists=[axes.xaxis, axes.yaxis])
    assert box.x0 >= 0
    assert box.x1 <= width
    assert box.y0 >= 0
    assert box.y1 <= drawn.y0 + 1 or box.x0 >= axes.get_window_extent(renderer).x1
    words = [text.get_window_extent(renderer) for text in axes.texts]
    assert all(axes.get_window_extent(renderer).x0 <= one.x0 for one in words)
    assert all(one.x1 <= axes.get_window_extent(renderer).x1 for one in words)
    assert not any(one.overlaps(other) for one in words for other in words if one is not other)
