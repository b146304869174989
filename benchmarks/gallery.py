"""Every kind of picture for real models, into a folder, to be looked at.

    python -m benchmarks.gallery [FOLDER] [--only TEXT]

VGG16 with the bundled weights; ResNet-50, ViT-B/16, Swin-T, ConvNeXt-T and a video ResNet
untrained. Needs no network.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

import hookviz
from hookviz.activation import Activation
from hookviz.render import FigureFacts, GridOptions, draw, shared_range

DARK = GridOptions(style="dark")
LIGHT = GridOptions(style="light")


class Gallery:
    def __init__(self, folder: Path, only: str) -> None:
        self.folder, self.only, self.count = folder, only, 0
        folder.mkdir(parents=True, exist_ok=True)

    def wants(self, name: str) -> bool:
        return self.only in name

    def hang(self, name: str, drawing) -> None:
        self.count += 1
        started = time.perf_counter()
        png = drawing.png_bytes()
        (self.folder / f"{name}.png").write_bytes(png)
        took = (time.perf_counter() - started) * 1e3
        print(f"{name:44} {drawing.kind:10} {len(png) / 1e3:7.0f} kB {took:6.0f} ms")

    def run(
        self, name: str, run, layer: str, options: GridOptions, call: int | None = None
    ) -> None:
        if self.wants(name):
            self.hang(name, run.drawing(layer, call, options=options))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="artefacts/gallery", type=Path)
    parser.add_argument("--only", default="", help="pictures whose name holds this")
    given = parser.parse_args()
    gallery = Gallery(given.folder, given.only)
    photo = hookviz.sample_image("chelsea.png")
    for draw_model in (vgg16, resnet50, vit, swin, convnext, video, odd):
        if given.only.split("_")[0] in draw_model.__name__:
            torch.manual_seed(0)
            draw_model(gallery, photo)
    print(f"{gallery.count} pictures in {given.folder}")


def vgg16(gallery: Gallery, photo) -> None:
    layers = ["features.0", "features.1", "features.9", "features.28", "features.30", "avgpool"]
    run = hookviz.feature_maps("vgg16", photo, layers)
    show = gallery.run
    show("vgg16_01_features0_light", run, "features.0", LIGHT)
    show("vgg16_02_features0_dark", run, "features.0", DARK)
    everything = {"show_input": True, "summary": "mean,max,pca"}
    show("vgg16_03_features0_summary", run, "features.0", LIGHT.replace(**everything))
    show("vgg16_04_features1_channel_scale", run, "features.1", DARK.replace(scale="channel"))
    show("vgg16_05_features9_overlay", run, "features.9",
         LIGHT.replace(overlay=True, per_page=12, order="max"))  # fmt: skip
    show("vgg16_06_features28_page2_percentile", run, "features.28",
         LIGHT.replace(page=1, scale="percentile"))  # fmt: skip
    show("vgg16_07_features30_sparsity", run, "features.30",
         DARK.replace(order="sparsity", descending=False, hide_dead=True))  # fmt: skip
    show("vgg16_08_features28_all_512", run, "features.28", LIGHT.replace(per_page=512))
    show("vgg16_09_features30_four", run, "features.30", LIGHT.replace(channels="3,17,42,99"))
    show("vgg16_10_features30_one", run, "features.30", DARK.replace(channels="42"))
    show("vgg16_11_features28_similar", run, "features.28",
         LIGHT.replace(order="similarity:17", top=24, show_input=True))  # fmt: skip
    show("vgg16_12_features9_fixed", run, "features.9",
         LIGHT.replace(scale="fixed", vmin=0.0, vmax=60.0, cmap="magma", per_page=36))  # fmt: skip
    show("vgg16_13_features28_narrow", run, "features.28", LIGHT.replace(width=480, per_page=24))
    if gallery.wants("vgg16_14"):
        facts = FigureFacts("vgg16", "bundled", True, "chelsea.png", (224, 224))
        gallery.hang("vgg16_14_features0_statistics",
                     draw(run.select("features.0"), LIGHT.replace(figure="statistics"),
                          facts=facts))  # fmt: skip
        gallery.hang("vgg16_15_features30_statistics_dark",
                     draw(run.select("features.30"), DARK.replace(figure="statistics"),
                          facts=facts))  # fmt: skip
        low, high = shared_range(run.activations[:2])
        shared = LIGHT.replace(scale="shared", vmin=low, vmax=high, per_page=16)
        gallery.hang("vgg16_16_shared_scale", draw(run.select("features.1"), shared, facts=facts))


def resnet50(gallery: Gallery, photo) -> None:
    model = hookviz.load_model("resnet50", weights=None)
    run = hookviz.feature_maps(model, photo, ["layer1.0.relu", "layer4.2", "avgpool", "fc"])
    gallery.run("resnet50_1_relu_call2", run, "layer1.0.relu", LIGHT, call=2)
    gallery.run("resnet50_2_layer4_all_2048", run, "layer4.2", DARK.replace(per_page=2048))
    gallery.run("resnet50_3_avgpool", run, "avgpool", LIGHT)
    gallery.run("resnet50_4_fc", run, "fc", DARK)
    gallery.run("resnet50_5_fc_light", run, "fc", LIGHT)


def vit(gallery: Gallery, photo) -> None:
    model = hookviz.load_model("vit_b_16", weights=None)
    names = ["conv_proj", "encoder.layers.encoder_layer_5", "encoder.ln", "heads"]
    run = hookviz.feature_maps(model, photo, names)
    gallery.run("vit_1_conv_proj", run, "conv_proj", LIGHT)
    gallery.run("vit_2_tokens", run, "encoder.layers.encoder_layer_5", LIGHT.replace(summary="pca"))
    gallery.run("vit_3_tokens_overlay", run, "encoder.ln", DARK.replace(overlay=0.6, per_page=8))
    gallery.run("vit_4_heads", run, "heads", LIGHT)
    block = model.module.encoder.layers.encoder_layer_5
    with torch.no_grad():
        tokens = run.select("encoder.ln").tensor
        weights = block.self_attention(tokens, tokens, tokens, average_attn_weights=False)[1]
    attention = Activation(
        "encoder.layers.encoder_layer_5.self_attention", 1, 1, 1, 1, "output", "1",
        "MultiheadAttention", weights,
    )  # fmt: skip
    if gallery.wants("vit_5"):
        gallery.hang("vit_5_attention", draw(attention, LIGHT))


def swin(gallery: Gallery, photo) -> None:
    model = hookviz.load_model("swin_t", weights=None)
    run = hookviz.feature_maps(model, photo, ["features.1.0", "features.5.3", "permute", "head"])
    gallery.run("swin_1_block", run, "features.1.0", LIGHT)
    gallery.run("swin_2_block_dark", run, "features.5.3", DARK.replace(summary="mean,pca"))
    gallery.run("swin_3_permute", run, "permute", LIGHT.replace(per_page=16))


def convnext(gallery: Gallery, photo) -> None:
    model = hookviz.load_model("convnext_tiny", weights=None)
    run = hookviz.feature_maps(model, photo, ["features.1.0.block.2", "features.1.0"])
    gallery.run("convnext_1_layernorm", run, "features.1.0.block.2", LIGHT)
    gallery.run("convnext_2_block", run, "features.1.0", DARK)


def video(gallery: Gallery, photo) -> None:
    import torchvision

    net = torchvision.models.video.r3d_18(weights=None).eval()
    with torch.no_grad():
        clip = torch.rand(1, 3, 8, 56, 56)
        maps = net.layer1(net.stem(clip))
    source = Activation("layer1", 1, 1, 1, 1, "output", "", "Sequential", maps)
    gallery.hang("video_1_volume", draw(source, LIGHT))


def odd(gallery: Gallery, photo) -> None:
    maps = torch.nn.functional.avg_pool2d(torch.randn(1, 24, 60, 90), 5, 2).relu()
    maps[0, 3], maps[0, 5] = 0.0, 255.0
    maps[0, 7, 5:9, 6:12] = torch.nan
    maps[0, 8, 20, 20:30], maps[0, 9, 3, :5] = torch.inf, -torch.inf
    for style in (LIGHT, DARK):
        name = f"odd_1_nan_inf_dead_constant_{style.style}"
        options = style.replace(scale="percentile", percentile=(0, 99))
        gallery.hang(name, draw(maps, options))
    gallery.hang("odd_2_channel_scale", draw(maps, LIGHT.replace(scale="channel")))
    gallery.hang("odd_3_signal", draw(torch.randn(1, 40, 300).cumsum(-1), LIGHT.replace(
        layout="signal", per_page=40)))  # fmt: skip
    names = Activation("backbone.body." * 9 + "conv3", 2, 3, 1, 1, "output_gradient", "out.0",
                       "Conv2d", torch.randn(2, 16, 12, 30))  # fmt: skip
    facts = FigureFacts("a_model_with_a_long_name", "none", False, "a" * 70 + ".jpg")
    gallery.hang("odd_4_long_names", draw(names, LIGHT.replace(sample=1), facts=facts))
    gallery.hang("odd_5_small_width", draw(names, DARK.replace(width=320), facts=facts))
    gallery.hang("odd_6_vector_few", draw(torch.tensor([[3.0, -1.0, torch.nan, 7.5]]), LIGHT))
    gallery.hang("odd_7_one_value_maps", draw(torch.rand(1, 9, 1, 1), DARK))


if __name__ == "__main__":
    main()
