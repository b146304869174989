"""Filters: what a layer multiplies its input with, drawn, exported and reproduced."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from matplotlib.text import Text
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

import hookviz
from hookviz.cli import cli
from hookviz.errors import LayerError, RenderError
from hookviz.render import GridOptions, arrange, draw
from hookviz.run import layer_weights


def said(figure) -> str:
    return " · ".join(text.get_text() for text in figure.findobj(Text))


def weights_of(layer: nn.Module):
    return layer_weights(nn.Sequential(layer), "0")


def tile(drawing, position: int) -> np.ndarray:
    top, left, tall, wide = drawing.places[position]
    return drawing.pixels()[top : top + tall, left : left + wide, :3].astype(int)


def test_three_input_channels_are_colors_on_a_scale_whose_gray_is_zero():
    layer = nn.Conv2d(3, 2, 2)
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[0, 0, 0, 0] = 0.5  # red
        layer.weight[0, 2, 1, 1] = -0.5  # no blue
    drawing = draw(weights_of(layer), GridOptions(width=300))
    assert (drawing.kind, drawing.total, drawing.cmap) == ("filters", 2, "RGB")
    assert (drawing.vmin, drawing.vmax) == (-0.5, 0.5)
    assert tile(drawing, 0)[2, 2].tolist() == [255, 128, 128]
    assert tile(drawing, 0)[-3, -3].tolist() == [128, 128, 0]
    assert tile(drawing, 1)[2, 2].tolist() == [128, 128, 128]
    for part in ("±0.5", "gray is zero", "red, green and blue", "pixels per weight"):
        assert part in said(drawing.figure)


def test_values_that_are_not_finite_are_marked_in_color_tiles():
    layer = nn.Conv2d(3, 1, 2)
    with torch.no_grad():
        layer.weight[0, 1, 0, 0] = torch.nan
    drawing = draw(weights_of(layer), GridOptions(width=300))
    assert drawing.nan == 1
    assert "NaN: 1 value" in said(drawing.figure)


def test_other_layers_show_one_input_channel():
    layer = nn.Conv2d(8, 5, 3)
    record = weights_of(layer)
    assert arrange(record, GridOptions()).maps.equal(layer.weight[:, 0])
    chosen = arrange(record, GridOptions(input_channel=6))
    assert chosen.maps.equal(layer.weight[:, 6])
    assert "input channel 6 of 8" in chosen.notes
    with pytest.raises(RenderError, match=r"input_channel is 8.*0 to 7"):
        draw(record, GridOptions(input_channel=8))


def test_the_strongest_input_channels_of_an_output_come_first():
    layer = nn.Conv2d(8, 5, 3)
    drawing = draw(weights_of(layer), GridOptions(output_channel=2))
    norms = layer.weight[2].flatten(1).norm(dim=1)
    assert list(drawing.channels) == norms.argsort(descending=True).tolist()
    assert "by norm, largest first" in said(drawing.figure)
    plain = draw(weights_of(layer), GridOptions(output_channel=2, descending=False))
    assert plain.channels == tuple(range(8))
    with pytest.raises(RenderError, match=r"output_channel is 5.*0 to 4"):
        draw(weights_of(layer), GridOptions(output_channel=5))
    with pytest.raises(RenderError, match="give one"):
        draw(weights_of(layer), GridOptions(output_channel=1, input_channel=1))


def test_depthwise_layers_have_one_kernel_an_output():
    layer = nn.Conv2d(6, 6, 3, groups=6)
    arranged = arrange(weights_of(layer), GridOptions())
    assert arranged.maps.equal(layer.weight[:, 0])
    assert "one input channel for each output" in arranged.notes
    assert draw(weights_of(nn.Conv2d(3, 3, 3, groups=3))).cmap != "RGB"


def test_grouped_layers_show_the_outputs_that_see_an_input():
    layer = nn.Conv2d(8, 4, 3, groups=2)
    record = weights_of(layer)
    assert arrange(record, GridOptions()).maps.equal(layer.weight[:, 0])
    chosen = arrange(record, GridOptions(input_channel=6))
    assert chosen.maps.equal(layer.weight[2:, 2])
    assert "input channel 6 of 8, output channels counted from 2" in chosen.notes
    chosen = arrange(record, GridOptions(output_channel=3))
    assert chosen.maps.equal(layer.weight[3])
    assert any("counted from 4" in note for note in chosen.notes)


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_layers_are_turned_to_outputs_first(groups):
    layer = nn.ConvTranspose2d(4, 6, 3, groups=groups)
    record = weights_of(layer)
    assert record.shape == (6, 4 // groups, 3, 3)
    image = torch.zeros(1, 4, 1, 1)
    image[0, 1] = 1.0  # what one input channel writes is its kernel
    given = layer(image)[0] - layer.bias[:, None, None]
    seen = given.flatten(1).abs().sum(1) > 0
    chosen = arrange(record, GridOptions(input_channel=1))
    assert torch.allclose(chosen.maps, given[seen], atol=1e-6)


@pytest.mark.parametrize("layer", [nn.Linear(9, 5), nn.Conv2d(9, 5, 1), nn.Conv1d(9, 5, 1)])
def test_layers_without_kernels_are_strips(layer):
    arranged = arrange(weights_of(layer), GridOptions())
    assert arranged.maps.shape == (5, 1, 9)
    assert any("each strip holds the weights of one output" in note for note in arranged.notes)
    with pytest.raises(RenderError, match="without input_channel and output_channel"):
        draw(weights_of(layer), GridOptions(input_channel=0))
    draw(weights_of(layer), GridOptions())  # as the remedy says


def test_kernels_of_one_and_three_axes():
    line = nn.Conv1d(3, 4, 5)
    assert arrange(weights_of(line), GridOptions()).maps.equal(line.weight[:, 0, None])
    volume = nn.Conv3d(3, 4, (2, 5, 5))
    arranged = arrange(weights_of(volume), GridOptions(frame=0))
    assert arranged.maps.equal(volume.weight[:, :, 0])
    assert "frame 0 of 2" in arranged.notes
    with pytest.raises(RenderError, match="frame is 2"):
        draw(weights_of(volume), GridOptions(frame=2))


def test_patch_embeddings_are_colors():
    model = hookviz.load_model("vit_b_32", weights=None)
    drawing = draw(layer_weights(model.module, "conv_proj"), GridOptions(per_page=16))
    assert (drawing.total, drawing.pages, drawing.cmap) == (768, 48, "RGB")


def convolution() -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(4, 6, 3)


@pytest.mark.parametrize(
    "wrap",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        parametrizations.orthogonal,
        pytest.param(weight_norm, marks=pytest.mark.filterwarnings("ignore:.*weight_norm")),
        spectral_norm,
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_parametrized_weights_are_those_that_the_forward_uses(wrap, training):
    layer = wrap(convolution())
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(1.7)  # what a stale copy would miss
    layer.train(training)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    record = weights_of(layer)
    assert record.module_type == "Conv2d"
    assert [part.training for part in layer.modules()] == [training] * len([*layer.modules()])
    after = layer.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    layer.eval()
    image = torch.rand(1, 4, 3, 3)
    answer = (record.tensor * image).sum((1, 2, 3)) + layer.bias
    assert torch.allclose(layer(image)[0, :, 0, 0], answer, atol=1e-5)


def test_what_has_no_filters_is_answered_with_the_layers_that_have():
    model = hookviz.load_model("resnet18", weights=None)
    with pytest.raises(
        LayerError, match=r"'layer1' \(Sequential\) has no filters.*'layer1.0.conv1'"
    ):
        hookviz.filters(model, "layer1")
    with pytest.raises(LayerError, match=r"'bn1' \(BatchNorm2d\) has no filters.*'conv1'"):
        hookviz.filters(model, "bn1")
    with pytest.raises(LayerError, match="There is no layer 'conv9'"):
        hookviz.filters(model, "conv9")
    with pytest.raises(LayerError, match="has no filters; layers with filters: none"):
        layer_weights(nn.Sequential(nn.Embedding(4, 5)), "0")
    assert hookviz.filters(model, "layer1.0.conv1")  # as the sentence offers


def test_weights_that_cannot_be_read_are_a_sentence():
    with pytest.raises(RenderError, match="meta"):
        draw(weights_of(nn.Conv2d(3, 4, 3, device="meta")))


def test_the_record_is_a_copy_and_the_model_stays_as_it_is():
    layer = convolution()
    record = weights_of(layer)
    with torch.no_grad():
        layer.weight.zero_()
    assert float(record.tensor.abs().sum()) > 0
    assert not record.tensor.requires_grad
    assert draw(record, GridOptions(figure="statistics")).kind == "statistics"


def test_filters_of_a_run_are_drawn_exported_and_reproduced(tmp_path):
    model = hookviz.load_model("vgg16", weights="bundled")
    run = hookviz.feature_maps(model, hookviz.sample_image(), ["features.0", "features.1"])
    assert run.drawing("features.0", kind="weight").kind == "filters"
    result = run.export(tmp_path, name="both", filters=True, what=["grids", "channels"])
    names = sorted(path.name for path in result.files)
    filters = [name for name in names if "weight" in name]
    assert any("grid_p1of1" in name for name in filters)
    assert sum("_ch" in name for name in filters) == 64
    assert not any("features.1_weight" in name for name in filters)
    for name in (filters[0], next(n for n in filters if "grid" in n)):
        again = hookviz.reproduce(result.folder / name, model=model)
        assert again.identical, again.differences


def test_filters_without_an_image_are_written_by_the_command_line_and_reproduced(tmp_path):
    done = CliRunner().invoke(
        cli,
        ["filters", "vgg16", "--weights", "bundled", "-l", "features.[02]", "--out", str(tmp_path),
         "--order", "norm"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    files = sorted(tmp_path.rglob("*.png"))
    assert len(files) == 2
    for file in files:
        again = hookviz.reproduce(file)
        assert again.identical, again.differences
    done = CliRunner().invoke(cli, ["filters", "vgg16", "--weights", "bundled"])
    assert "No layer was named" in done.output


def test_pages_and_orders_are_those_of_any_kind():
    model = hookviz.load_model("vgg16", weights="bundled")
    record = layer_weights(model.module, "features.5")
    drawing = draw(record, GridOptions(per_page=50, page=2))
    assert (drawing.pages, drawing.channels[0], len(drawing.channels)) == (3, 100, 28)
    norms = record.tensor[:, 0].flatten(1).norm(dim=1)
    ordered = draw(record, GridOptions(order="norm", top=5))
    assert list(ordered.channels) == norms.argsort(descending=True)[:5].tolist()
