"""Attention of a run: found, laid out in the image, drawn, pointed at, exported and done again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision import models as tv

import hookviz
from hookviz.activation import Activation
from hookviz.capture import Capture
from hookviz.errors import LayerError, RenderError
from hookviz.render import GridOptions, arrange

ATTN = "encoder.layers.encoder_layer_1.self_attention"


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    torch.manual_seed(0)
    return tv.VisionTransformer(96, 16, 3, 4, 32, 64).eval()


@pytest.fixture(scope="module")
def run(vit: nn.Module) -> hookviz.Run:
    size = hookviz.Preprocessing(resize=(96, 96))
    return hookviz.feature_maps(
        vit, hookviz.sample_image(), ["encoder.layers.*", "conv_proj"], attention=True,
        preprocess=size,
    )  # fmt: skip


def test_it_is_one_more_kind_of_activation(run: hookviz.Run) -> None:
    found = run.select(ATTN, kind="attention")
    assert (found.kind, found.shape, found.label) == (
        "attention", (1, 4, 37, 37), f"{ATTN} attention",
    )  # fmt: skip
    assert found.axes is not None
    assert found.axes.places is not None
    assert (found.axes.places.grid, found.axes.places.apart) == ((6, 6), 1)
    assert run.select("conv_proj").kind == "output"
    with pytest.raises(LayerError, match=r"'conv_proj' has no attention: no attention: nothing in"):
        run.select("conv_proj", kind="attention")
    assert ATTN in str(run.missing["conv_proj"]) or "these layers do" in run.missing["conv_proj"]


@pytest.mark.parametrize(
    ("query", "token", "words", "mark"),
    [
        (None, 0, "class token", None),
        ("class", 0, "class token", None),
        (0, 0, "token 0 of 37", None),
        ((2, 5), 1 + 2 * 6 + 5, "patch (2, 5), outlined", (2, 5)),
        (36, 36, "patch (5, 5), outlined", (5, 5)),
    ],
)
@pytest.mark.parametrize("heads", ["each", "mean"])
def test_a_tile_is_the_row_of_the_tensor(
    run: hookviz.Run, query: Any, token: int, words: str, mark: Any, heads: Any
) -> None:
    record = run.select(ATTN, kind="attention")
    drawn = arrange(record, GridOptions(query=query, heads=heads))
    row = record.tensor[0, :, token]
    row = row.mean(0, keepdim=True) if heads == "mean" else row
    assert torch.equal(drawn.maps.reshape(len(row), 36), row[:, 1:])
    assert torch.equal(drawn.apart, row[:, :1])
    assert drawn.mark == mark
    assert f"query: {words}" in drawn.notes
    drawing = run.drawing(ATTN, kind="attention", options=GridOptions(query=query, heads=heads))
    assert (drawing.kind, drawing.total) == ("attention-map", len(row))


def test_colors_are_those_of_the_values(run: hookviz.Run) -> None:
    options = GridOptions(query=(1, 2), style="light", scale="layer", ncols=2)
    drawing = run.drawing(ATTN, kind="attention", options=options)
    row = run.select(ATTN, kind="attention").tensor[0, :, 1 + 8]
    low, high = float(row.min()), float(row.max())
    assert (drawing.vmin, drawing.vmax) == pytest.approx((low, high))
    from hookviz.render import color_table

    table, pixels = color_table("viridis").rgb.astype(int), drawing.pixels()
    for head, (top, left, height, width) in enumerate(drawing.places):
        for y, x in [(0, 0), (5, 5), (3, 1)]:
            at = pixels[top + (2 * y + 1) * height // 12, left + (2 * x + 1) * width // 12, :3]
            level = round(255 * (float(row[head, 1 + y * 6 + x]) - low) / (high - low))
            near = table[max(0, level - 1) : level + 2]
            assert (np.abs(near - at.astype(int)).sum(1) == 0).any()
    # The query's place is outlined, in black within white.
    top, left, height, width = drawing.places[0]
    y, x = top + height // 6, left + 2 * width // 6
    colors = {tuple(pixels[y - 2 + i, x + width // 12, :3]) for i in range(4)}
    assert {(0, 0, 0), (255, 255, 255)} <= colors


def test_all_queries_and_what_cannot_be_asked(run: hookviz.Run) -> None:
    record = run.select(ATTN, kind="attention")
    everything = arrange(record, GridOptions(query="all"))
    assert everything.kind == "attention"
    assert torch.equal(everything.maps, record.tensor[0])
    for query, sentence in [
        ((6, 0), "the patch grid has 6 rows and 6 columns"),
        (37, r"there are 37 queries \(0 to 36\)"),
    ]:
        with pytest.raises(RenderError, match=sentence):
            arrange(record, GridOptions(query=query))
    with pytest.raises(RenderError, match="sample is 1"):
        arrange(record, GridOptions(sample=1))
    for wrong in ("middle", -1, (1, 2, 3), 1.5):
        with pytest.raises(RenderError, match="query is"):
            GridOptions(query=wrong)
    with pytest.raises(RenderError, match="heads is 'max'; legal are 'each', 'mean'"):
        GridOptions(heads="max")
    assert GridOptions.from_json(GridOptions(query=(2, 3)).to_json()).query == (2, 3)


def test_without_a_known_grid_keys_are_a_strip() -> None:
    cross = Activation("a", 1, 1, 1, 1, "attention", "", "", torch.rand(2, 3, 5, 20).softmax(-1))
    assert arrange(cross, GridOptions()).kind == "attention"
    strip = arrange(cross, GridOptions(query=4, sample=1))
    assert (strip.kind, strip.maps.shape) == ("signal", (3, 1, 20))
    assert torch.equal(strip.maps[:, 0], cross.tensor[1, :, 4])
    given = arrange(cross, GridOptions(query=4, grid=(4, 4)))
    assert torch.equal(given.maps.flatten(1), cross.tensor[0, :, 4, 4:])
    with pytest.raises(RenderError, match=r"query is \(0, 0\), but the order of its tokens"):
        arrange(cross, GridOptions(query=(0, 0)))


def test_values_places_and_channels(run: hookviz.Run) -> None:
    tensor = run.select(ATTN, kind="attention").tensor
    value = run.value(ATTN, 3, 4, 5, kind="attention", query=(1, 2))
    assert value == tensor[0, 3, 1 + 8, 1 + 4 * 6 + 5].item()
    assert run.value(ATTN, 3, 4, 5, kind="attention") == tensor[0, 3, 0, 1 + 4 * 6 + 5].item()
    width, height = run.image.size
    assert run.place_at(ATTN, width - 1, 0, kind="attention") == (0, 5)
    assert run.place_at(ATTN, width // 2 - 3, height - 1, kind="attention") == (5, 2)
    summary = run.channel(ATTN, 1, kind="attention", query=7)
    assert torch.equal(summary.map.flatten(), tensor[0, 1, 7, 1:])
    with pytest.raises(LayerError, match="values are those of each head"):
        run.value(ATTN, 0, 0, 0, kind="attention", heads="mean")


def test_exports_and_reproduces(run: hookviz.Run, vit: nn.Module, tmp_path: Any) -> None:
    for query, more in [(None, {}), ((2, 3), {"heads": "mean", "overlay": True}), ("all", {})]:
        options = GridOptions(query=query, **more)
        result = run.export(tmp_path, what=["grids", "values"], options=options, layers=[ATTN])
        names = [file.name for file in result.files if file.suffix == ".png"]
        assert sum("attention" in name for name in names) >= 1
        for file in result.files:
            if file.suffix == ".png" and "_attention_" in file.name:
                again = hookviz.reproduce(file, model=run.model)
                assert again.identical, again.differences


# ── windows


def torchvision_block(v2: bool = False, shift: int = 2) -> nn.Module:
    kind = (
        tv.swin_transformer.SwinTransformerBlockV2
        if v2
        else tv.swin_transformer.SwinTransformerBlock
    )
    return kind(16, 2, [4, 4], [shift, shift])


def timm_block(v2: bool = False, size: tuple[int, int] = (10, 14)) -> nn.Module:
    pytest.importorskip("timm")
    from timm.models import swin_transformer, swin_transformer_v2

    kind = (
        swin_transformer_v2.SwinTransformerV2Block if v2 else swin_transformer.SwinTransformerBlock
    )
    return kind(16, size, num_heads=2, window_size=4, shift_size=2)


def maxvit_layer(kind: str) -> nn.Module:
    return tv.maxvit.PartitionAttentionLayer(
        16, 8, 4, kind, (8, 8), 2, nn.GELU, nn.LayerNorm, 0.0, 0.0, 0.0
    )


class HuggingFaceSwin(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        transformers = pytest.importorskip("transformers")
        config = getattr(transformers, f"{kind}Config")(window_size=4, num_heads=[2])
        module = __import__(f"transformers.models.{kind.lower()}", fromlist=["_"])
        layer = getattr(getattr(module, f"modeling_{kind.lower()}"), f"{kind}Layer")
        config._attn_implementation = "eager"
        self.layer = layer(config, 16, (10, 14), 2, shift_size=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1, 2), tuple(x.shape[1:3]))[0]


BLOCKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int]]] = {
    "torchvision": (torchvision_block, (10, 14)),
    "torchvision, no shift": (lambda: torchvision_block(shift=0), (10, 14)),
    "torchvision, one window high": (torchvision_block, (4, 11)),
    "torchvision v2": (lambda: torchvision_block(v2=True), (10, 14)),
    "timm": (timm_block, (10, 14)),
    "timm, whole windows": (lambda: timm_block(size=(8, 12)), (8, 12)),
    "timm v2": (lambda: timm_block(v2=True), (10, 14)),
    "MaxViT windows": (lambda: maxvit_layer("window"), (8, 8)),
    "MaxViT grid": (lambda: maxvit_layer("grid"), (8, 8)),
    "Hugging Face": (lambda: HuggingFaceSwin("Swin"), (10, 14)),
    "Hugging Face v2": (lambda: HuggingFaceSwin("Swinv2"), (10, 14)),
}


def attention_of(block: nn.Module, x: Tensor) -> Activation:
    with torch.no_grad(), Capture(block, "", outputs=False, attention=True) as cap:
        cap.run(x)
    (record,) = cap.activations
    return record


@pytest.mark.parametrize("name", BLOCKS)
def test_keys_of_windows_lie_where_they_stand_in_the_image(name: str) -> None:
    """A place is changed: of another place's row, that key alone changes against the others."""
    make, (height, width) = BLOCKS[name]
    torch.manual_seed(0)
    block = make().eval()
    for weight in block.parameters():  # so that attention differs from place to place
        if weight.dim() > 1:
            nn.init.normal_(weight, std=0.3)
    first = name.startswith("MaxViT")  # (N, C, H, W)
    x = torch.randn(2, 16, height, width) if first else torch.randn(2, height, width, 16)
    before = attention_of(block, x)
    assert before.axes is not None
    assert before.axes.windows is not None
    assert before.axes.windows.grid == (height, width)
    checked = 0
    for py, px in [(0, 0), (height - 1, width - 1), (3, 5), (height - 3, 1), (1, width - 4)]:
        changed = x.clone()
        if first:
            changed[1, :, py, px] = torch.randn(16) * 3
        else:
            changed[1, py, px] = torch.randn(16) * 3
        after = attention_of(block, changed)
        for qy in range(height):
            for qx in range(width):
                if (qy, qx) == (py, px) or (qy + qx) % 3:
                    continue
                options = GridOptions(query=(qy, qx), sample=1)
                one, other = (arrange(a, options).maps.double() for a in (before, after))
                assert one[:, qy, qx].isfinite().all()
                seen = (one > 1e-20).all(0) & (other > 1e-20).all(0)
                if not seen[py, px]:
                    assert torch.allclose(one, other, 0, 1e-30, equal_nan=True)
                    continue
                if seen.sum() < 3:
                    continue
                ratio = (other / one).log()[:, seen]
                deviates = (ratio - ratio.median(1, keepdim=True).values).abs().sum(0)
                place = seen.nonzero()[deviates.argmax()].tolist()
                assert place == [py, px]
                checked += 1
    assert checked > 5


def test_places_outside_the_window_have_no_value(tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = tv.SwinTransformer([4, 4], 24, [2], [2], [7, 7], stochastic_depth_prob=0.0).eval()
    size = hookviz.Preprocessing(resize=(76, 76))
    run = hookviz.feature_maps(
        model, hookviz.sample_image(), "features.1.1.attn", attention=True, preprocess=size
    )
    record = run.select("features.1.1.attn", kind="attention")
    assert record.shape == (9, 2, 49, 49)  # 19 places a side, padded to 21
    drawn = arrange(record, GridOptions(query=(3, 3)))
    assert drawn.maps.shape == (2, 19, 19)
    assert drawn.maps.isfinite().sum() == 2 * 49
    assert torch.allclose(drawn.maps.nansum((1, 2)), torch.ones(2), atol=1e-6)
    corner = arrange(record, GridOptions(query=(18, 18)))
    assert any("keys of the window are padding" in note for note in corner.notes)
    assert bool((corner.maps.nansum((1, 2)) < 1 - 1e-3).all())
    drawing = run.drawing(
        "features.1.1.attn", kind="attention",
        options=GridOptions(query=(3, 3), style="light", scale="layer"),
    )  # fmt: skip
    faint = (0xD9, 0xDD, 0xE2)
    top, left, height, width = drawing.places[0]
    assert tuple(drawing.pixels()[top + height - 3, left + width - 3, :3]) == faint
    assert drawing.vmin == pytest.approx(float(drawn.maps.nan_to_num(9).min()))
    value = run.value("features.1.1.attn", 1, 4, 6, kind="attention", query=(3, 3))
    assert value == drawn.maps[1, 4, 6].item()
    assert np.isnan(run.value("features.1.1.attn", 1, 18, 0, kind="attention", query=(3, 3)))
    with pytest.raises(RenderError, match="windows hold no such token"):
        arrange(record, GridOptions(query="class"))
    matrix = arrange(record, GridOptions(query="all", sample=8))
    assert torch.equal(matrix.maps, record.tensor[8])
    assert matrix.part == "window"
    file = next(
        f
        for f in run.export(tmp_path, what="grids", options=GridOptions(query=(3, 3))).files
        if "_attention_" in f.name
    )
    assert hookviz.reproduce(file, model=run.model).identical
    page = run.export(tmp_path, what="page", options=GridOptions(query=(3, 3))).files[0]
    assert "outside the window: 624 places" in page.read_text("utf-8")
