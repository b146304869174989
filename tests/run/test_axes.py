"""What a run finds out about the axes of its activations.

The networks have random weights: where tokens lie is a matter of their code, not of training.
"""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from PIL import Image
from timm.models.hiera import Hiera
from torch import nn

import hookviz
from hookviz.export import read_png_facts
from hookviz.render import GridOptions, arrange, draw


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def photo(changed: str = "", seed: int = 1) -> Image.Image:
    """Noise of 224 pixels; another one in the left or upper half where asked."""
    pixels = np.random.default_rng(seed).integers(0, 255, (224, 224, 3), np.uint8)
    other = np.random.default_rng(seed + 1).integers(0, 255, (224, 224, 3), np.uint8)
    if changed == "left":
        pixels[:, :112] = other[:, :112]
    if changed == "top":
        pixels[:112] = other[:112]
    return Image.fromarray(pixels)


def loaded(model):
    module = model if isinstance(model, nn.Module) else None
    if module is None:
        return hookviz.load_model(model, weights=None)
    return hookviz.load_model(module)


def maps_of(model, image, layer):
    run = hookviz.feature_maps(model, image, [layer])
    size = tuple(run.input.tensor.shape[-2:])
    return run, [arrange(a, GridOptions(), size) for a in run.activations]


MODELS = {
    "hiera": (
        "timm:hiera_tiny_224",
        ["unroll", "blocks.0", "blocks.4", "blocks.11", "patch_embed"],
    ),
    "vit": (
        "timm:vit_tiny_patch16_224",
        ["patch_embed", "blocks.0", "blocks.11"],
    ),
    "registers": ("timm:vit_small_patch16_dinov3", ["blocks.2", "blocks.2.attn.proj"]),
    "distilled": ("timm:deit_tiny_distilled_patch16_224", ["blocks.2"]),
    "mixer": ("timm:mixer_s32_224", ["stem", "blocks.0.norm1", "blocks.3"]),
    "xcit": ("timm:xcit_nano_12_p16_224", ["blocks.3", "blocks.3.attn"]),
    "swin": ("swin_t", ["features.1.0", "features.3.0.attn", "features.7.1"]),
    "timm swin": ("timm:swin_tiny_patch4_window7_224", ["layers.0.blocks.1.mlp", "layers.2"]),
    "pvt": ("timm:pvt_v2_b0", ["stages.1.blocks.0", "stages.1.blocks.0.attn.kv"]),
    "maxvit": ("maxvit_t", ["blocks.0.layers.0.layers.grid_attention.*"]),
    "convolutions": ("resnet18", ["layer1", "layer4"]),
    "channels last": ("timm:convnextv2_atto", ["stages.1.blocks.0.mlp.fc1", "stages.2"]),
}


@pytest.mark.parametrize(("name", "layers"), MODELS.values(), ids=MODELS)
def test_what_is_drawn_as_an_image_lies_as_the_image_does(name, layers):
    """Change one half of the image: what changes more must be that half of each map drawn."""
    model = loaded(name)
    drawn = {}
    for changed in ("", "left", "top"):
        run = hookviz.feature_maps(model, photo(changed), layers)
        size = tuple(run.input.tensor.shape[-2:])
        drawn[changed] = [(a, arrange(a, GridOptions(), size)) for a in run.activations]
    grids = 0
    for place, (activation, before) in enumerate(drawn[""]):
        rows, columns = before.maps.shape[1:]
        if before.kind not in ("maps", "tokens") or before.part:
            assert before.kind in ("signal", "bars", "attention") or before.part
            continue
        grids += 1
        change = (drawn["left"][place][1].maps - before.maps).square().sum(0)
        left, right = change[:, : columns // 2].sum(), change[:, -(columns // 2) :].sum()
        assert left > 1.05 * right, (activation.label, float(left), float(right))
        change = (drawn["top"][place][1].maps - before.maps).square().sum(0)
        top, bottom = change[: rows // 2].sum(), change[-(rows // 2) :].sum()
        assert top > 1.05 * bottom, (activation.label, float(top), float(bottom))
    assert grids, "every family has layers that are images"


def test_tokens_in_an_order_of_their_own_are_not_drawn_as_an_image():
    model = loaded("timm:hiera_tiny_224")
    run = hookviz.feature_maps(model, photo(), ["patch_embed", "blocks.1", "blocks.11"])
    kinds = {a.layer: draw(a).kind for a in run.activations}
    assert kinds == {"patch_embed": "tokens", "blocks.1": "signal", "blocks.11": "tokens"}
    notes = run.drawing("blocks.1").notes
    assert any("order of its tokens is not that of the image" in note for note in notes)


class Shuffled(nn.Module):
    """A patch embedding whose tokens stand in an order that ``order`` makes."""

    def __init__(self, order):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 16, 16)
        self.tokens = nn.LayerNorm(8)
        self.order = order

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return self.tokens(tokens[:, self.order(torch.arange(196).reshape(14, 14)).flatten()])


ORDERS = {
    "columns": lambda at: at.T,
    "right to left": lambda at: at.flip(1),
    "from below": lambda at: at.flip(0),
    "windows": lambda at: at.reshape(2, 7, 2, 7).transpose(1, 2),
    "interleaved": lambda at: at.reshape(7, 2, 7, 2).transpose(1, 2),
    "every other": lambda at: torch.cat([at.flatten()[::2], at.flatten()[1::2]]),
    "random": lambda at: at.flatten()[torch.randperm(196)],
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_no_other_order_passes_for_that_of_the_image(order):
    run, (found,) = maps_of(loaded(Shuffled(order)), photo(), "tokens")
    assert found.kind == "signal"
    assert run.activations[0].axes.places is None


def test_the_order_of_the_image_is_found_whatever_stands_before_it():
    class Tokens(Shuffled):
        def forward(self, x):
            return self.tokens(torch.cat([torch.zeros(1, 7, 8), super().forward(x)], 1))

    _, found = maps_of(loaded(Tokens(lambda at: at)), photo(), "tokens")
    assert found[1].maps.shape == (8, 14, 14)
    assert found[1].apart.shape == (8, 7)


def test_wide_images_have_wide_grids():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches, self.tokens = nn.Conv2d(3, 8, 16, 16), nn.LayerNorm(8)

        def forward(self, x):
            return self.tokens(self.patches(x).flatten(2).transpose(1, 2))

    preprocess = hookviz.Preprocessing(resize=None, crop=None)
    model = hookviz.load_model(Wide(), preprocess=preprocess)
    image = photo().resize((320, 192))
    _, (found,) = maps_of(model, image, "tokens")
    assert found.maps.shape == (8, 12, 20)


def test_attention_before_its_residual_sum_is_read_as_the_block_around_it():
    layers = ["blocks.9.attn", "blocks.9.attn.proj", "blocks.9"]
    run = hookviz.feature_maps(loaded("timm:vit_tiny_patch16_224"), photo(), layers)
    assert {run.drawing(layer).kind for layer in layers} == {"tokens"}
    run = hookviz.feature_maps(loaded("timm:hiera_tiny_224"), photo(), ["blocks.6.attn"])
    assert run.drawing("blocks.6.attn").kind == "signal"


def test_a_masked_autoencoder_has_no_grid_and_says_why():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTMAEConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96
    )
    run = hookviz.feature_maps(transformers.ViTMAEModel(config).eval(), photo(), ["layers.1"])
    drawing = run.drawing("layers.1")
    assert drawing.kind == "signal"
    said = " ".join(drawing.notes)
    assert "is not that of the image" in said
    assert "draws random numbers" in said


def test_windows_are_not_called_samples():
    model = loaded("timm:swin_tiny_patch4_window7_224")
    run = hookviz.feature_maps(model, photo(), ["layers.0.blocks.0.attn"])
    drawing = run.drawing("layers.0.blocks.0.attn")
    assert run.activations[0].shape == (64, 49, 96)
    assert "window 0 of 64" in drawing.notes
    assert not any("sample" in note for note in drawing.notes)
    assert drawing.kind == "signal"


def test_proposals_are_not_called_samples():
    model = loaded("fasterrcnn_mobilenet_v3_large_320_fpn")
    run = hookviz.feature_maps(model, photo(), ["roi_heads.box_roi_pool", "roi_heads.box_head"])
    for drawing in (run.drawing("roi_heads.box_roi_pool"), run.drawing("roi_heads.box_head")):
        assert any(note.startswith("proposal 0 of ") for note in drawing.notes)


def test_tokens_of_video_keep_their_frames():
    class Video(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches, self.tokens = nn.Conv3d(3, 6, (2, 16, 16), (2, 16, 16)), nn.LayerNorm(6)

        def forward(self, x):
            return self.tokens(self.patches(x).flatten(2).transpose(1, 2))

    run, (found,) = maps_of(loaded(Video()), photo(), "tokens")
    assert run.activations[0].shape == (1, 8 * 14 * 14, 6)
    assert found.maps.shape == (6, 14, 14)
    assert "frame 4 of 8" in found.notes


class Counting(Shuffled):
    def __init__(self):
        super().__init__(lambda at: at)
        self.forwards = 0

    def forward(self, x):
        self.forwards += 1
        return super().forward(x)


def test_the_trial_is_made_once_for_a_model_and_only_where_there_is_doubt():
    model = loaded(Counting())
    hookviz.feature_maps(model, photo(), ["patches"])
    assert model.module.forwards == 1
    hookviz.feature_maps(model, photo(), ["tokens"])
    assert model.module.forwards == 1 + 1 + 3
    hookviz.feature_maps(model, photo(seed=5), ["tokens", "patches"])
    assert model.module.forwards == 6
    model, module = None, weakref.ref(model.module)
    gc.collect()
    assert module() is None, "what was found out must not keep a model alive"


def test_each_activation_is_handed_on_once_with_what_is_known_of_its_axes():
    from hookviz.run import run_model

    handed = []
    model = loaded(Counting())
    image = hookviz.read_image(photo())
    run = run_model(model, image, ["patches", "tokens"], on_activation=handed.append)
    assert [a.layer for a in handed] == ["patches", "tokens"]
    assert [a.axes for a in handed] == [a.axes for a in run.activations]
    assert all(a.tensor is b.tensor for a, b in zip(handed, run.activations, strict=True))


def test_files_and_their_redrawing_know_the_axes_that_the_run_found_out(tmp_path):
    model = loaded(Hiera(embed_dim=32, stages=(1, 1, 2, 1), num_classes=10))
    run = hookviz.feature_maps(model, photo(), ["blocks.0", "blocks.4"])
    result = run.export(tmp_path, what={"grids", "channels", "contact"}, channels="0")
    layouts = {}
    for png in result.files:
        texts = read_png_facts(png)
        layouts.setdefault(texts.get("layer"), []).append(texts.get("layout"))
        again = hookviz.reproduce(png, model=model, image=photo())
        assert again.same_pixels
        assert not [d for d in again.differences if "layout" in d]
    for activation in run.activations:
        drawing = run.drawing(activation.layer)
        said = " ".join((drawing.kind, drawing.axes, *drawing.notes))
        assert said in layouts[activation.layer]


@pytest.mark.parametrize("noise", [False, True])
def test_the_trial_leaves_no_hook_and_no_random_number_behind(noise):
    class Noisy(Counting):
        def forward(self, x):
            return super().forward(x + torch.rand_like(x) * noise)

    model = loaded(Noisy())
    torch.manual_seed(3)
    hookviz.feature_maps(model, photo(), ["patches"])
    after_one = torch.get_rng_state()
    torch.manual_seed(3)
    run = hookviz.feature_maps(model, photo(), ["tokens"])
    assert torch.equal(torch.get_rng_state(), after_one)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.module.modules())
    assert run.activations[0].axes.random is noise


def test_a_model_that_refuses_the_changed_image_leaves_the_doubt_and_the_run():
    class Once(Counting):
        def forward(self, x):
            if self.forwards:
                raise RuntimeError("not twice")
            return super().forward(x)

    _, (found,) = maps_of(loaded(Once()), photo(), "tokens")
    assert found.kind == "signal"
    assert any("could not be found out" in note for note in found.notes)
