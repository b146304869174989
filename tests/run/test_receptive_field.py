"""Receptive fields, against known figures and against changing each pixel."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import hookviz
from hookviz import HookvizError, Preprocessing
from hookviz.run import ReceptiveField

PHOTO = hookviz.sample_image("chelsea.png")


def fields(
    net: nn.Module, layer: str, size: tuple[int, int] = (224, 224), **choices: Any
) -> Callable[..., ReceptiveField]:
    """The fields of one layer, for an input of that size."""
    how = Preprocessing(crop=size, fit="squash")
    run = hookviz.feature_maps(net, PHOTO, [layer], preprocess=how, **choices)
    return lambda y, x, **more: run.receptive_field(layer, y, x, **more)


def built(name: str, **arguments: Any) -> nn.Module:
    """A network of torchvision's: of the largest only what is asked about."""
    if name == "vgg16":
        vgg = torchvision.models.vgg
        return nn.Sequential(OrderedDict(features=vgg.make_layers(vgg.cfgs["D"])))
    if name == "vit_b_16":
        return torchvision.models.VisionTransformer(224, 16, 1, 12, 768, 3072)
    return torchvision.models.get_model(name, weights=None, **arguments)


def middle(name: str, layer: str, **arguments: Any) -> ReceptiveField:
    net = built(name, **arguments)
    at = fields(net, layer)
    return at(3, 3)


@pytest.mark.parametrize(
    ("name", "layer", "side"),
    [
        ("vgg16", "features.28", 196),
        ("vgg16", "features.30", 212),
        ("resnet50", "layer1", 35),
        ("resnet50", "layer4", 427),
        ("mobilenet_v2", "features.18", 491),
        ("alexnet", "features.12", 195),
        ("densenet121", "features.norm5", 2071),
        ("convnext_tiny", "features.7", 1688),
        ("regnet_x_400mf", "trunk_output", 975),
        ("shufflenet_v2_x1_0", "conv5", 527),
        ("squeezenet1_0", "features.12", 155),
    ],
)
def test_the_side_of_a_field_is_that_of_the_formula(name: str, layer: str, side: int) -> None:
    assert middle(name, layer).size == (side, side)


@pytest.mark.parametrize(("name", "side"), [("googlenet", 379), ("inception_v3", 1311)])
def test_branches_of_several_sizes_are_joined(name: str, side: int) -> None:
    layer = "inception5b" if name == "googlenet" else "Mixed_7c"
    assert middle(name, layer, init_weights=False).size == (side, side)


def test_dilation_takes_the_place_of_strides() -> None:
    net = torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None)
    assert fields(net, "backbone.layer4")(14, 14).size == (427, 427)


@pytest.mark.parametrize(
    ("name", "layer", "culprit", "words"),
    [
        ("efficientnet_b0", "features.8", "features.1.0.block.1.avgpool", "one value of all"),
        ("vit_b_16", "encoder.layers.encoder_layer_0", "self_attention", "attention"),
    ],
)
def test_what_reads_every_place_is_named(name: str, layer: str, culprit: str, words: str) -> None:
    field = fields(built(name), layer)(0, 0 if name != "vit_b_16" else 3)
    assert field.whole
    assert field.box == field.seen == (0, 0, 224, 224)
    assert field.beyond == (0, 0, 0, 0)
    assert culprit in field.note
    assert words in field.note


def test_the_box_says_how_much_lies_beyond_each_edge() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 5, padding=2), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1)
    )
    at = fields(net, "2", (20, 30))
    assert at(0, 0).box == (-4, -4, 6, 6)
    assert at(0, 0).beyond == (4, 4, 0, 0)
    assert at(0, 0).seen == (0, 0, 6, 6)
    assert at(9, 14).beyond == (0, 0, 4, 4)
    assert at(5, 7).beyond == (0, 0, 0, 0)
    assert {at(y, x).size for y in range(10) for x in range(15)} == {(10, 10)}


# ── Changing each pixel


def moved(net: nn.Module, size: tuple[int, int], trials: int = 4) -> Tensor:
    """(H, W, C, h, w): whether a change of a pixel ever changes a value, for random weights."""
    generator = torch.Generator().manual_seed(0)
    height, width = size
    found: Tensor | None = None
    with torch.no_grad():
        for trial in range(trials):
            for weight in net.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
            plain = torch.randn(1, 3, *size, generator=generator, dtype=torch.float64)
            images = plain.repeat(height * width, 1, 1, 1)
            noise = torch.randn(height * width, 3, generator=generator, dtype=torch.float64)
            at = torch.arange(height * width)
            images[at, :, at // width, at % width] = noise * (3 if trial % 2 else 30)
            # One by one: products of many images are summed in another order than those of one.
            before = net(plain)
            after = torch.cat([net(image[None]) for image in images])
            change = (after != before).unflatten(0, size)
            found = change if found is None else found | change
    assert found is not None
    return found


def box_of(pixels: Tensor) -> tuple[int, int, int, int] | None:
    """Left, top, right, bottom of what is True in (H, W)."""
    if not pixels.any():
        return None
    rows, columns = pixels.any(1).nonzero(), pixels.any(0).nonzero()
    return (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)


def assert_seen_is_what_moves(net: nn.Module, size: tuple[int, int]) -> None:
    net = net.double().eval()
    moving = moved(net, size)
    at = fields(net, "", size)
    for y in range(moving.shape[-2]):
        for x in range(moving.shape[-1]):
            field = at(y, x, axes="maps")
            assert field.seen == box_of(moving[..., y, x].any(2)), (y, x, field)
            for channel in range(moving.shape[2]):
                one = at(y, x, channel=channel, axes="maps")
                assert one.seen == box_of(moving[:, :, channel, y, x]), (channel, y, x, one)


class Fn(nn.Module):
    """A function as a layer that nobody knows."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class UNet(nn.Module):
    """A stride undone by ``up``, and a connection past it."""

    def __init__(self, up: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.down = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.up = up
        self.last = nn.Conv2d(7, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        fine = F.relu(self.first(x))
        coarse = self.up(F.relu_(self.down(fine)))
        return self.last(torch.cat((coarse, fine), 1))


class Interlaced(nn.Module):
    """Writes through views of a tensor that was filled before."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        y[:, :, ::2] = x[:, :, ::2]
        y[:, :, 1::2, 1:].add_(x[:, :, 1::2, :-1])
        return y


class Masked(nn.Conv2d):
    """A causal convolution: it sees what is above and at its left."""

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.ones_like(self.weight)
        seen[:, :, 1, 1:] = 0
        seen[:, :, 2:] = 0
        with torch.no_grad():
            self.weight.mul_(seen)
        return super().forward(x)


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.mean((2, 3), keepdim=True).sigmoid()


def shuffled(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def conv(*arguments: Any, **more: Any) -> nn.Conv2d:
    return nn.Conv2d(*arguments, **more)


NETS: dict[str, Callable[[], nn.Module]] = {
    "stride and dilation": lambda: nn.Sequential(
        conv(3, 3, 3, stride=2, padding=1), nn.ReLU(), conv(3, 3, 3, dilation=2, padding=2)
    ),
    "padding around a kernel of one": lambda: nn.Sequential(
        conv(3, 3, 1, padding=1), conv(3, 2, 3)
    ),
    "corners that read padding alone": lambda: nn.Sequential(
        conv(3, 3, 3, padding=1, padding_mode="circular"), nn.AvgPool2d((7, 1)),
        nn.ZeroPad2d((1, 0, 2, 0)), conv(3, 3, 2, padding=1),
    ),
    "even kernels": lambda: nn.Sequential(conv(3, 3, 2, padding=1), conv(3, 3, 4, 3, 2)),
    "depthwise and grouped": lambda: nn.Sequential(
        conv(3, 6, 3, groups=3), conv(6, 6, (1, 3), groups=6), conv(6, 4, 1, groups=2)
    ),
    "pools": lambda: nn.Sequential(
        nn.MaxPool2d(2, ceil_mode=True), conv(3, 3, 3, padding=1), nn.AvgPool2d(3, 2, 1)
    ),
    "adaptive pool": lambda: nn.Sequential(conv(3, 3, 3), nn.AdaptiveAvgPool2d((5, 3))),
    "dropout, batch norm, gates in place": lambda: nn.Sequential(
        conv(3, 3, 3), nn.BatchNorm2d(3), nn.Hardswish(inplace=True), nn.Dropout(), nn.SiLU(True),
        conv(3, 3, 3), nn.GELU(), nn.Softplus(),
    ),
    "transposed": lambda: nn.Sequential(
        conv(3, 4, 3, 2, 1), nn.ConvTranspose2d(4, 4, 4, 2, 1, groups=2), conv(4, 3, 3, padding=1)
    ),
    "transposed, dilated": lambda: nn.Sequential(
        conv(3, 3, 2, 2), nn.ConvTranspose2d(3, 3, 3, 3, 2, output_padding=1, dilation=2)
    ),
    "nearest": lambda: nn.Sequential(
        conv(3, 3, 3, 2), nn.Upsample(scale_factor=2), conv(3, 3, 3, padding=1)
    ),
    "bilinear": lambda: nn.Sequential(
        conv(3, 3, 3, 2, 1), nn.Upsample(scale_factor=1.5, mode="bilinear"), conv(3, 3, 3)
    ),
    "bilinear, corners aligned": lambda: nn.Sequential(
        conv(3, 3, 3, 2, 1), nn.Upsample(size=(9, 7), mode="bilinear", align_corners=True)
    ),
    "antialiased": lambda: nn.Sequential(
        Fn(lambda x: F.interpolate(x, size=(5, 4), mode="bilinear", antialias=True)), conv(3, 3, 2)
    ),
    "reflected": lambda: conv(3, 3, 5, 2, 2, padding_mode="reflect"),
    "replicated": lambda: nn.Sequential(
        conv(3, 3, 3, padding=2, padding_mode="replicate"), conv(3, 3, 3)
    ),
    "circular": lambda: conv(3, 3, 3, padding=1, padding_mode="circular"),
    "cropped": lambda: nn.Sequential(nn.ZeroPad2d((1, -2, 0, 2)), conv(3, 3, 3, padding="same")),
    "group norm": lambda: nn.Sequential(conv(3, 4, 3), nn.GroupNorm(2, 4)),
    "instance norm": lambda: nn.Sequential(conv(3, 3, 3), nn.InstanceNorm2d(3)),
    "squeeze and excitation": lambda: nn.Sequential(conv(3, 3, 3), Gate(), conv(3, 3, 3)),
    "channel shuffle": lambda: nn.Sequential(
        conv(3, 4, (3, 1)), Fn(shuffled), conv(4, 4, 3, groups=2), Fn(shuffled)
    ),
    "views written": lambda: nn.Sequential(conv(3, 3, 3), Interlaced(), conv(3, 3, 2)),
    "causal": lambda: nn.Sequential(Masked(3, 3, 3, padding=1), Masked(3, 3, 3, padding=1)),
    "positive and negative parts": lambda: nn.Sequential(
        conv(3, 3, 3), Fn(lambda x: torch.cat((F.relu(x), F.relu(-x)), 1)), conv(6, 3, 3)
    ),
    "channels last": lambda: nn.Sequential(
        conv(3, 4, 3), Fn(lambda x: x.permute(0, 2, 3, 1)), nn.LayerNorm(4), nn.Linear(4, 5),
        Fn(lambda x: x.permute(0, 3, 1, 2)), conv(5, 3, 3, padding=1),
    ),
    "gated": lambda: nn.Sequential(conv(3, 6, 3), nn.GLU(1), conv(3, 3, 3)),
    "pixels shuffled": lambda: nn.Sequential(
        nn.ZeroPad2d((0, 1, 0, 0)), nn.PixelUnshuffle(2), conv(12, 8, 3, padding=1),
        nn.PixelShuffle(2),
    ),
    "flipped and rolled": lambda: nn.Sequential(
        conv(3, 3, 3), Fn(lambda x: x.flip(3).roll(1, 2)), conv(3, 3, 2)
    ),
    "windows as columns": lambda: nn.Sequential(
        Fn(lambda x: F.unfold(x, 3, padding=1).unflatten(2, x.shape[2:])), conv(27, 3, 2)
    ),
    "columns folded back": lambda: Fn(lambda x: F.fold(F.unfold(x, 2), x.shape[2:], 2)),
    "picked by index": lambda: Fn(lambda x: x[:, :, [0, 2, 1]][..., 1:]),
    "sampled on a grid": lambda: Fn(
        lambda x: F.grid_sample(
            x, F.affine_grid(torch.tensor([[[0.5, 0, 0.1], [0, 0.7, 0]]], dtype=x.dtype),
                             [len(x), 3, 4, 4], align_corners=False), align_corners=False,
        )
    ),
    "summed up": lambda: Fn(lambda x: x.cumsum(2)),
    "softmax over channels": lambda: nn.Sequential(conv(3, 3, 3), nn.Softmax(1)),
    "one row for all": lambda: nn.Sequential(
        nn.AdaptiveAvgPool2d((None, 1)), Fn(lambda x: x.expand(-1, -1, -1, 4)), conv(3, 3, 3)
    ),
    "differences": lambda: Fn(lambda x: x[:, :, 1:] - x[:, :, :-1]),
    "a product of sums": lambda: Fn(lambda x: torch.einsum("nchw,cd->ndhw", x, x[0, :, :2, 0])),
    "U-Net, transposed": lambda: UNet(nn.ConvTranspose2d(4, 4, 2, 2)),
    "U-Net, bilinear": lambda: UNet(nn.Upsample(scale_factor=2, mode="bilinear")),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_a_place_sees_exactly_the_pixels_that_move_it(name: str) -> None:
    torch.manual_seed(0)
    assert_seen_is_what_moves(NETS[name](), (8, 6) if name.startswith("U-Net") else (8, 7))


@st.composite
def chains(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, int]]:
    """Small nets of layers that keep at least one place, and an input for them."""
    size = (draw(st.integers(5, 9)), draw(st.integers(5, 9)))
    layers: list[nn.Module] = []
    channels = 3
    now = torch.zeros(1, 3, *size)
    for _ in range(draw(st.integers(1, 4))):
        kernel = (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
        stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        padding = draw(st.integers(0, 2))
        mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
        groups = draw(st.sampled_from([1, channels]))
        pad = min(padding, *(k // 2 for k in kernel))
        layer = draw(
            st.sampled_from([
                nn.Conv2d(channels, channels, kernel, stride, padding, dilation, groups,
                          padding_mode=mode),
                nn.ConvTranspose2d(channels, channels, kernel, stride, pad, dilation=dilation),
                nn.MaxPool2d(kernel, stride, pad, ceil_mode=draw(st.booleans())),
                nn.AvgPool2d(kernel, stride, pad, ceil_mode=draw(st.booleans())),
                nn.Upsample(scale_factor=2, mode=draw(st.sampled_from(["nearest", "bilinear"]))),
                nn.ReLU(inplace=True),
                nn.BatchNorm2d(channels),
            ])
        )  # fmt: skip
        try:
            after = layer.eval()(now)
        except RuntimeError:  # no place is left
            continue
        if 0 < after[0, 0].numel() <= 200:
            layers.append(layer)
            now = after.detach()
    layers.append(nn.Conv2d(channels, 2, 1))
    return nn.Sequential(*layers), size


@settings(max_examples=12)
@given(chains())
def test_what_moves_is_seen_in_any_chain_of_layers(made: tuple[nn.Module, tuple[int, int]]) -> None:
    net, size = made
    net = net.double().eval()
    moving = moved(net, size, trials=6)
    at = fields(net, "", size)
    exact = not any(isinstance(layer, nn.MaxPool2d) for layer in net.modules())
    for y in range(moving.shape[-2]):
        for x in range(moving.shape[-1]):
            seen, found = at(y, x, axes="maps").seen, box_of(moving[..., y, x].any(2))
            if exact or found is None or seen is None:
                assert seen == found
                continue
            # The largest of many values is seldom moved by one of them: a part is proof enough.
            assert seen[:2] <= found[:2]
            assert seen[2:] >= found[2:]


def test_boxes_go_on_beyond_the_edge_as_in_a_larger_input() -> None:
    net = nn.Sequential(
        conv(3, 3, 3, stride=2, padding=1), nn.MaxPool2d(3, 2, 1), conv(3, 3, 3, padding=1),
        nn.ConvTranspose2d(3, 3, 4, 2, 1), nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(3, 3, 3, padding=2, dilation=2),
    )  # fmt: skip
    small, large = fields(net, "5", (16, 20)), fields(net, "5", (16 + 96, 20 + 96))
    for y in range(16):
        for x in range(20):
            box = large(y + 48, x + 48).seen
            assert box is not None
            assert small(y, x).box == tuple(edge - 48 for edge in box)


def test_the_largest_map_may_have_one_place() -> None:
    net = torchvision.models.resnet50(weights=None)
    field = fields(net, "layer4", (32, 32))(0, 0)
    assert field.size == (427, 427)
    assert field.seen == (0, 0, 32, 32)
    assert field.whole


# ── The model stays as it was


class Twice(nn.Module):
    """One convolution called twice, in half precision or not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(F.relu(self.conv(x), inplace=True)))


def test_each_call_of_a_layer_has_its_own_field() -> None:
    at = fields(Twice(), "conv", (12, 12))
    assert at(6, 6, call=1).size == (3, 3)
    assert at(6, 6, call=2).size == (5, 5)
    assert at(6, 6, call=2, kind="output").size == (5, 5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_precision_plays_no_part(dtype: torch.dtype) -> None:
    net = built("vgg16").features[:10].to(dtype)
    assert fields(net, "9", (64, 64))(8, 8).size == (16, 16)


def test_the_model_is_not_touched() -> None:
    net = Twice().train()
    net.norm.eval()
    net.conv.weight.grad = torch.ones_like(net.conv.weight)
    net.conv.bias.requires_grad_(False)
    calls: list[str] = []
    net.conv.register_forward_hook(lambda *_: calls.append("hook"))
    run = hookviz.feature_maps(net, PHOTO, ["conv"])
    calls.clear()
    state = {k: v.clone() for k, v in net.state_dict().items()}
    before = [dict(vars(m)) for m in net.modules()]
    hooks = [{k: list(v) for k, v in vars(m).items() if "hooks" in k} for m in net.modules()]
    torch.manual_seed(5)
    seed = torch.get_rng_state()
    run.receptive_field("conv", 3, 3, call=2)
    assert calls == []
    assert torch.equal(torch.get_rng_state(), seed)
    assert [dict(vars(m)) for m in net.modules()] == before
    assert hooks == [
        {k: list(v) for k, v in vars(m).items() if "hooks" in k} for m in net.modules()
    ]
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert torch.equal(net.conv.weight.grad, torch.ones_like(net.conv.weight))
    assert not net.conv.bias.requires_grad


class Looking(nn.Module):
    """A forward that depends on values, so that shapes alone do not do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        y = self.conv(x)
        return y if float(y.mean()) > 1e9 else y[:, :, y.abs().argmax() % 2 :]


def test_a_forward_that_looks_at_values_is_followed_on_a_copy() -> None:
    net = Looking()
    run = hookviz.feature_maps(net, PHOTO, ["conv"], preprocess=Preprocessing.for_size(16))
    seen = net.seen.clone()
    assert run.receptive_field("conv", 5, 5).box == (4, 4, 7, 7)
    assert torch.equal(net.seen, seen)


def test_what_leaves_torch_is_not_said_to_depend_on_nothing() -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 3), Fn(lambda x: torch.from_numpy(x.numpy() * 2)))
    with pytest.raises(HookvizError, match=r"in '1' its values leave torch \(numpy\)"):
        fields(net, "1", (12, 12))(3, 3)
    net = nn.Sequential(nn.Conv2d(3, 3, 3), Fn(lambda x: x / x.max().item()))
    field = fields(net, "1", (12, 12))(3, 3)
    assert field.size == (3, 3)
    assert "'1' computes from single numbers in Python is not counted" in field.note


@torch.library.custom_op("hookviz_tests::blurred", mutates_args=())
def blurred(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, 1, 1)


def test_an_operation_that_nobody_described_is_tried() -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 3), Fn(torch.ops.hookviz_tests.blurred))
    assert fields(net, "1", (16, 16))(5, 5).box == (4, 4, 9, 9)


def test_constants_depend_on_no_pixel() -> None:
    field = fields(nn.Sequential(Fn(torch.ones_like), nn.Conv2d(3, 3, 3)), "1", (12, 12))(3, 3)
    assert (field.box, field.seen, field.image_box, field.size) == (None, None, None, (0, 0))
    assert "depends on no pixel" in field.note


def test_a_field_is_asked_of_the_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    at = fields(net, "1", (32, 32))
    at(0, 0)
    monkeypatch.setattr(nn.Conv2d, "forward", None)
    assert at(5, 5).size == (5, 5)


def test_a_changed_stride_is_another_field() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    run = hookviz.feature_maps(net, PHOTO, ["1"], preprocess=Preprocessing.for_size(32))
    assert run.receptive_field("1", 5, 5).size == (5, 5)
    net[0].dilation = (2, 2)
    run = hookviz.feature_maps(net, PHOTO, ["1"], preprocess=Preprocessing.for_size(32))
    assert run.receptive_field("1", 5, 5).size == (7, 7)


def test_what_cannot_be_computed_is_one_sentence() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    run = hookviz.feature_maps(net, PHOTO, ["1"], transform=lambda t: t[:, :2])
    with pytest.raises(HookvizError, match=r"1.*\(1, 4, .*was kept"):
        run.receptive_field("1", 5, 5)
    run = hookviz.feature_maps(net, PHOTO, ["1"])
    broken = replace(run, model=replace(run.model, module=nn.Sequential(nn.Identity())))
    with pytest.raises(HookvizError, match="has no layer '1'"):
        broken.receptive_field("1", 5, 5)


def test_all_boxes_at_once_are_those_of_each_place() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 5, stride=2, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1),
        nn.Conv2d(4, 2, 3), nn.AdaptiveAvgPool2d(2),
    )  # fmt: skip
    model = hookviz.load_model(net, preprocess=Preprocessing(crop=(26, 22), fit="squash"))
    layers = ["0", "2", "3", "4"]
    run = hookviz.feature_maps(model, PHOTO, layers)
    for layer in layers:
        boxes = run.receptive_boxes(layer)
        height, width = run.select(layer).shape[-2:]
        assert boxes.shape == (height, width, 4)
        for y in range(height):
            for x in range(width):
                field = run.receptive_field(layer, y, x)
                expected = (0, 0, 22, 26) if field.whole else field.box
                assert tuple(boxes[y, x].tolist()) == expected
    blind = nn.Sequential(nn.Conv2d(3, 1, 1, padding=1))
    run = hookviz.feature_maps(blind, PHOTO, ["0"], preprocess=model.preprocess)
    assert run.receptive_field("0", 0, 0).box is None
    assert run.receptive_boxes("0")[0, 0].isnan().all()
