"""Which axes are what."""

from __future__ import annotations

import pytest
import torch

from hookviz._axes import Hints, KnownAxes, Places, candidates, read_axes, token_grid
from hookviz.activation import Activation
from hookviz.errors import RenderError
from hookviz.render import GridOptions, arrange, draw, feature_grid


def activation(shape, kind="", layer="layer", leaf="", tensor=None, axes=None):
    tensor = torch.rand(shape) if tensor is None else tensor
    return Activation(layer, 1, 1, 1, 1, "output", leaf, kind, tensor, axes)


def patches(rows, columns, apart=0, frames=1):
    """What a run knows of tokens that a trial has found to lie as in the image."""
    return KnownAxes(places=Places("NTD", (rows, columns), apart, frames), tried="confirmed")


@pytest.mark.parametrize(
    ("shape", "kind", "axes"),
    [
        ((1, 64, 56, 56), "Conv2d", "NCHW"),
        ((1, 64, 56, 56), "", "NCHW"),
        ((1, 56, 56, 96), "SwinTransformerBlock", "NHWC"),
        ((1, 56, 56, 96), "", "NHWC"),
        ((1, 56, 56, 56), "LayerNorm", "NHWC"),
        ((1, 14, 14, 1536), "GELU", "NHWC"),
        ((1, 56, 40, 96), "Linear", "NHWC"),
        ((1, 96, 56, 40), "LayerNorm2d", "NCHW"),
        ((1, 3, 224, 224), "", "NCHW"),
        ((2, 197, 768), "EncoderBlock", "NTD"),
        ((1, 197, 768), "", "NTD"),
        ((64, 56, 56), "", "CHW"),
        ((64, 56, 40), "Conv2d", "CHW"),
        ((3, 224, 224), "", "CHW"),
        ((1, 64, 100), "Conv1d", "NCL"),
        ((1, 1000), "Linear", "NC"),
        ((1000,), "", "C"),
        ((1, 64, 8, 56, 56), "Conv3d", "NCTHW"),
        ((64, 8, 56, 56), "Conv3d", "CTHW"),
        ((1, 8, 28, 28, 192), "PatchEmbed3d", "NTHWC"),
    ],
)
def test_axes(shape, kind, axes):
    assert read_axes(shape, hints=Hints(module_type=kind)).axes == axes


def test_the_inputs_aspect_settles_maps_that_are_not_square():
    hints = Hints(input_size=(480, 640))
    assert read_axes((1, 64, 15, 20), hints=hints).axes == "NCHW"
    assert read_axes((1, 15, 20, 64), hints=hints).axes == "NHWC"
    assert not read_axes((1, 64, 15, 20), hints=hints).doubt


def test_what_stays_ambiguous_is_stated_with_the_other_reading():
    for shape in ((1, 64, 48, 64), (1, 32, 32, 32)):
        reading = read_axes(shape)
        assert "possibly (N, H, W, C)" in reading.statement
    drawing = draw(torch.rand(1, 32, 32, 32))
    assert "possibly (N, H, W, C)" in drawing.axes
    assert draw(torch.rand(1, 8, 9, 10), GridOptions(axes="channels-last")).total == 10


def test_a_layout_that_does_not_fit_names_those_that_do():
    with pytest.raises(RenderError) as caught:
        feature_grid(torch.rand(1, 4, 5, 6), axes="tokens")
    text = str(caught.value)
    assert "'tokens'" in text
    assert "(1, 4, 5, 6)" in text
    assert "'channels-last'" in text


@pytest.mark.parametrize(
    ("tensor", "part"),
    [
        (torch.zeros(1, 2, 2, 2, 2, 2), "(1, 2, 2, 2, 2, 2)"),
        (torch.zeros(1, 0, 4, 4), "(1, 0, 4, 4)"),
        (torch.tensor(3.0), "single number"),
        (torch.zeros(1, 4, 4, 4, device="meta"), "meta"),
        ([1, 2, 3], "list"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name(tensor, part):
    with pytest.raises(RenderError, match=part.replace("(", r"\(").replace(")", r"\)")):
        draw(tensor)


def test_channels_last_is_drawn_like_channels_first():
    maps = torch.rand(1, 6, 10, 10)
    first = draw(maps)
    last = draw(maps.permute(0, 2, 3, 1).contiguous(), GridOptions(axes="channels-last"))
    (top, left, tall, wide), (top2, left2, _, _) = first.places[4], last.places[4]
    one = first.pixels()[top : top + tall, left : left + wide]
    other = last.pixels()[top2 : top2 + tall, left2 : left2 + wide]
    assert (one == other).all()


def test_a_batch_says_which_sample_and_an_absent_one_is_refused():
    tensor = torch.rand(3, 4, 5, 5)
    assert "sample 0 of 3" in draw(tensor).notes
    assert "sample 2 of 3" in draw(tensor, GridOptions(sample=2)).notes
    assert arrange(tensor, GridOptions(sample=2)).maps.equal(tensor[2])
    with pytest.raises(RenderError, match=r"sample is 3.*0 to 2"):
        draw(tensor, GridOptions(sample=3))
    with pytest.raises(RenderError, match="no batch axis"):
        draw(torch.rand(4, 5, 5), GridOptions(sample=1))


def test_volumes_have_frames():
    tensor = torch.rand(1, 4, 8, 5, 5)
    drawing = draw(tensor)
    assert drawing.kind == "volume"
    assert "frame 4 of 8" in drawing.notes
    assert arrange(tensor, GridOptions(frame=7)).maps.equal(tensor[0, :, 7])
    with pytest.raises(RenderError, match="frame is 8"):
        draw(tensor, GridOptions(frame=8))
    with pytest.raises(RenderError, match="not read as a volume"):
        draw(torch.rand(1, 4, 5, 5), GridOptions(frame=0))
    last = tensor.permute(0, 2, 3, 4, 1)
    assert arrange(last, GridOptions(axes="volume-channels-last", frame=2)).maps.equal(
        tensor[0, :, 2]
    )


def test_tokens_become_the_patch_grid_with_the_class_token_apart():
    tokens = torch.rand(1, 197, 6)
    source = activation(None, "EncoderBlock", tensor=tokens, axes=patches(14, 14, 1))
    arranged = arrange(source, GridOptions())
    assert arranged.kind == "tokens"
    assert arranged.maps.shape == (6, 14, 14)
    assert arranged.maps[2, 3, 4] == tokens[0, 1 + 3 * 14 + 4, 2]
    assert arranged.apart is not None
    assert arranged.apart[2, 0] == tokens[0, 0, 2]
    assert any("patch grid 14×14 found by trial" in note for note in arranged.notes)


def test_the_class_token_is_drawn_above_the_grid():
    tokens = torch.zeros(1, 5, 2)
    tokens[0, 0] = 1.0
    source = activation(None, "EncoderBlock", tensor=tokens, axes=patches(2, 2, 1))
    drawing = draw(source, GridOptions(cmap="gray", width=300))
    top, left, tall, wide = drawing.places[0]
    pixels = drawing.pixels()
    assert (pixels[top : top + tall, left : left + wide, 0] == 0).all()
    column = pixels[:top, left + 1, 0]
    assert column[-3:].tolist() == [255, 255, 255]  # the gap
    assert column[-5] == 255  # the token, white


@pytest.mark.parametrize(
    ("shape", "input_size", "places"),
    [
        ((1, 1 + 24 * 32, 8), (384, 512), Places("NTD", (24, 32), 1)),
        ((1, 5 + 256, 8), (224, 224), Places("NTD", (16, 16), 5)),
        ((1, 198, 8), (224, 224), Places("NTD", (14, 14), 2)),
        ((1, 196, 8), (224, 224), Places("NTD", (14, 14), 0)),
        ((1, 512, 196), (224, 224), Places("NDT", (14, 14), 0)),
        ((196, 64), (224, 224), Places("TD", (14, 14), 0)),
        ((1, 1 + 8 * 14 * 14, 9), (224, 224), Places("NTD", (14, 14), 1, 8)),
        ((1, 56, 56, 96), (224, 224), Places("NHWC")),
        ((1, 8, 28, 28, 96), (224, 224), Places("NTHWC")),
        ((64, 56, 56), (224, 224), Places("CHW")),
    ],
)
def test_the_right_reading_is_among_those_that_a_trial_compares(shape, input_size, places):
    assert places in list(candidates(shape, input_size, frames=16 if places.frames > 1 else 1))


def test_a_grid_that_the_user_gives_is_taken_or_refused():
    assert token_grid(10, grid=(3, 3)) == Places("NTD", (3, 3), 1)
    with pytest.raises(RenderError, match=r"grid=3×4.*10 tokens"):
        token_grid(10, grid=(3, 4))
    tokens = activation((1, 1 + 4 * 8, 5), "EncoderBlock")
    drawing = draw(tokens, GridOptions(grid=(4, 8)))
    assert drawing.kind == "tokens"
    assert any("4×8 as given" in note for note in drawing.notes)
    assert drawing.places[0][3] == 2 * drawing.places[0][2]


@pytest.mark.parametrize("count", [77, 49, 196, 197, 3136])
def test_tokens_of_no_known_order_are_strips_and_say_so(count):
    drawing = draw(activation((1, count, 16), "EncoderBlock"))
    assert drawing.kind == "signal"
    assert "the order of its tokens is not known: each feature is a strip" in drawing.notes


def test_a_trial_that_failed_leaves_strips_of_any_shape():
    wrong = KnownAxes(tried="other order", random=True)
    drawing = draw(activation((1, 196, 8), "Block", axes=wrong))
    assert (drawing.kind, drawing.total) == ("signal", 8)
    notes = " ".join(drawing.notes)
    assert "is not that of the image" in notes
    assert "draws random numbers" in notes
    for shape in ((1, 12, 197, 64), (1, 4, 9, 14, 13)):
        drawing = draw(activation(shape, "Identity", axes=KnownAxes(tried="open")))
        assert (drawing.kind, drawing.total) == ("signal", shape[1])
        assert "could not be found out" in drawing.axes


def test_frames_of_tokens_are_chosen_like_those_of_volumes():
    tokens = torch.rand(1, 1 + 3 * 4 * 5, 2)
    source = activation(None, "Block", tensor=tokens, axes=patches(4, 5, 1, 3))
    arranged = arrange(source, GridOptions(frame=2))
    assert arranged.maps.equal(tokens[0, 1 + 40 :].t().reshape(2, 4, 5))
    assert "frame 2 of 3" in arranged.notes
    with pytest.raises(RenderError, match="frame is 3"):
        arrange(source, GridOptions(frame=3))


@pytest.mark.parametrize("noun", ["window", "proposal", "frame", "part"])
def test_the_first_axis_counts_samples_only_where_so_many_images_went_in(noun):
    source = activation((64, 49, 6), "Linear", axes=KnownAxes(leading=noun))
    assert f"{noun} 0 of 64" in draw(source).notes
    with pytest.raises(RenderError, match=f"{noun} is 64.*0 to 63"):
        draw(source, GridOptions(sample=64))
    batch = activation((4, 3, 5, 5), "Conv2d", axes=KnownAxes(batch=4, leading=noun))
    assert "sample 0 of 4" in draw(batch).notes


def test_a_part_of_the_image_is_not_laid_over_all_of_it():
    picture = torch.zeros(8, 8, 3, dtype=torch.uint8).numpy()
    source = activation((9, 4, 7, 7), "RoIAlign", axes=KnownAxes(leading="proposal"))
    with pytest.raises(RenderError, match="holds one a proposal"):
        draw(source, GridOptions(overlay=True), background=picture)
    draw(source, GridOptions())  # as the remedy says


def test_attention_weights_are_heads_of_queries_by_keys():
    weights = torch.rand(1, 4, 9, 9).softmax(-1)
    drawing = draw(activation(None, "Softmax", "blocks.0.attn.softmax", tensor=weights))
    assert (drawing.kind, drawing.total) == ("attention", 4)
    assert "heads, queries, keys" in drawing.axes
    averaged = torch.rand(1, 9, 9).softmax(-1)
    drawing = draw(activation(None, "MultiheadAttention", leaf="1", tensor=averaged))
    assert (drawing.kind, drawing.total) == ("attention", 1)


def test_three_channels_are_three_maps():
    drawing = draw(torch.rand(1, 3, 8, 8))
    assert drawing.channels == (0, 1, 2)
    assert len(drawing.places) == 3
