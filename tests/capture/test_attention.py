"""Attention probabilities: exact, of every call, while the model computes what it always does."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torchvision import models as tv

from hookviz.capture import Capture
from hookviz.errors import LayerError

Traces = Callable[[nn.Module], int]


def timm_model(name: str, **options: Any) -> nn.Module:
    timm = pytest.importorskip("timm")
    return timm.create_model(name, **options)


def hugging_face(attention: str = "sdpa") -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        image_size=64, attn_implementation=attention,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


class OwnViT(nn.Module):
    """As many tutorials build it."""

    def __init__(self, *, norm_first: bool = False) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 16, 16)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(self.patches(x).flatten(2).mT)


VIT = {"image_size": 64, "patch_size": 16, "num_layers": 3, "num_heads": 4, "mlp_dim": 64}
SWIN = {"embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4]}
MODELS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "torchvision ViT": (lambda: tv.VisionTransformer(hidden_dim=48, **VIT), 64, 3),
    "torchvision ViT, odd heads": (
        lambda: tv.VisionTransformer(hidden_dim=48, **{**VIT, "num_heads": 3}), 64, 3,
    ),
    "torchvision Swin": (
        lambda: tv.SwinTransformer([4, 4], window_size=[7, 7], stochastic_depth_prob=0.0, **SWIN),
        100, 4,
    ),
    "torchvision Swin v2": (
        lambda: tv.SwinTransformer(
            [4, 4], window_size=[8, 8], block=tv.swin_transformer.SwinTransformerBlockV2,
            downsample_layer=tv.swin_transformer.PatchMergingV2, **SWIN,
        ),
        64, 4,
    ),
    "torchvision MaxViT": (
        lambda: tv.MaxVit((64, 64), 16, 2, [16, 32], [1, 1], 16, 0.0), 64, 4,
    ),
    "timm ViT": (lambda: timm_model("vit_tiny_patch16_224", img_size=64, depth=3), 64, 3),
    "timm Swin": (
        lambda: timm_model("swin_tiny_patch4_window7_224", img_size=112, depths=(2, 2, 2, 2)),
        112, 8,
    ),
    "timm Swin v2": (
        lambda: timm_model("swinv2_tiny_window8_256", img_size=128, depths=(2, 2, 2, 2)), 128, 8,
    ),
    "Hugging Face ViT": (hugging_face, 64, 2),
    "nn.TransformerEncoder": (OwnViT, 64, 2),
    "nn.TransformerEncoder, norm first": (lambda: OwnViT(norm_first=True), 64, 2),
}  # fmt: skip


def built(name: str) -> tuple[nn.Module, Tensor, int]:
    make, size, count = MODELS[name]
    torch.manual_seed(0)
    return make().eval(), torch.randn(2, 3, size, size), count


def tensor_of(output: Any) -> Tensor:
    return getattr(output, "logits", output)


@pytest.mark.parametrize("mode", ["no grad", "grad", "inference"])
@pytest.mark.parametrize("name", MODELS)
def test_the_output_keeps_every_bit_and_rows_sum_to_one(name: str, mode: str) -> None:
    model, x, count = built(name)
    with torch.inference_mode(mode == "inference"), torch.set_grad_enabled(mode == "grad"):
        before = tensor_of(model(x))
        with Capture(model, "", outputs=False, attention=True) as cap:
            after = tensor_of(cap.run(x))
    assert torch.equal(after, before)
    assert after.requires_grad == before.requires_grad
    assert len(cap.activations) == count
    for record in cap.activations:
        assert record.kind == "attention"
        assert record.tensor.dtype is torch.float32
        assert record.tensor.dim() == 4
        assert not record.tensor.requires_grad
        assert not record.tensor.is_inference()
        assert (record.tensor.sum(-1) - 1).abs().max() < 3e-7 * 2
        assert record.tensor.min() >= 0
    assert not cap.missing


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("asks", [{}, {"need_weights": False}, {"average_attn_weights": False}])
def test_multihead_attention_is_what_it_says_itself(
    batch_first: bool, grad: bool, asks: dict[str, bool]
) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(32, 4, batch_first=batch_first).eval()
    x = torch.randn(3, 7, 32)
    with torch.set_grad_enabled(grad):
        before, weights = layer(x, x, x, **asks)
        exact = layer(x, x, x, need_weights=True, average_attn_weights=False)[1]
        with Capture(layer, "", outputs=False, attention=True) as cap:
            after, given = cap.run(x, x, x, **asks)
    assert torch.equal(before, after)
    assert (weights is None) == (given is None)
    assert weights is None or torch.equal(weights, given)
    assert torch.equal(cap.attention(""), exact)


def masks(layer: nn.MultiheadAttention) -> dict[str, dict[str, Any]]:
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    return {
        "padding": {"key_padding_mask": torch.tensor([[False, False, True, True, False]] * 2)},
        "causal": {"attn_mask": causal, "is_causal": True},
        "bool": {"attn_mask": torch.ones(5, 5).triu(1).bool()},
        "per head": {"attn_mask": torch.rand(2 * layer.num_heads, 5, 5)},
        "both": {
            "attn_mask": torch.ones(5, 5).triu(1).bool(),
            "key_padding_mask": torch.tensor([[False, False, True, True, False]] * 2),
        },
    }


@pytest.mark.parametrize("kind", ["padding", "causal", "bool", "per head", "both"])
@pytest.mark.parametrize("extra", [{}, {"add_zero_attn": True}, {"add_bias_kv": True}])
def test_masks_and_extra_keys_of_multihead_attention(kind: str, extra: dict[str, bool]) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(32, 4, batch_first=True, **extra).eval()
    x, given = torch.randn(2, 5, 32), masks(layer)[kind]
    with torch.no_grad():
        before = layer(x, x, x, need_weights=False, **given)[0]
        exact = layer(x, x, x, average_attn_weights=False, **given)[1]
        with Capture(layer, "", outputs=False, attention=True) as cap:
            after = cap.run(x, x, x, need_weights=False, **given)[0]
    assert torch.equal(before, after)
    assert torch.equal(cap.attention(""), exact)


def test_cross_attention_with_other_widths_unbatched_and_by_position() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(32, 4, kdim=12, vdim=20, batch_first=True).eval()
    query, key, value = torch.randn(2, 3, 32), torch.randn(2, 6, 12), torch.randn(2, 6, 20)
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    exact = layer(query, key, value, padding, average_attn_weights=False)[1]
    with Capture(layer, "", outputs=False, attention=True) as cap:
        cap.run(query, key, value, padding, False)
        cap.run(query[0], key[0], value[0])
    assert torch.equal(cap.attention("", run=1), exact)
    assert exact[1, ..., 4:].max() == 0
    assert cap.attention("", run=2).shape == (1, 4, 3, 6)
    assert torch.allclose(cap.attention("", run=2)[0], exact[0], atol=1e-6)


@pytest.mark.parametrize("grad", [False, True])
def test_a_query_without_any_key_has_zeros_and_nan_stays_nan(grad: bool) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 32)
    forbidden = torch.zeros(5, 5, dtype=torch.bool)
    forbidden[2] = True
    with torch.set_grad_enabled(grad), Capture(layer, "", outputs=False, attention=True) as cap:
        cap.run(x, x, x, attn_mask=forbidden)
        cap.run(x.where(torch.arange(2)[:, None, None] == 0, torch.nan), x, x, attn_mask=forbidden)
    found = cap.attention("", run=1)
    assert (found[:, :, 2] == 0).all()
    assert torch.allclose(found.sum(-1)[:, :, [0, 1, 3, 4]], torch.ones(()))
    assert cap.attention("", run=2)[1, :, 0].isnan().all()
    assert not cap.attention("", run=2)[0].isnan().any()


class Attends(nn.Module):
    """Calls the function itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, **self.options)


def naive(q: Tensor, k: Tensor, allowed: Tensor, scale: float) -> Tensor:
    """In float64, query by query."""
    q, k = q.double(), k.double()
    out = torch.zeros(*q.shape[:-1], k.shape[-2], dtype=torch.float64)
    for n in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                keys = allowed[i].nonzero()[:, 0]
                if len(keys):
                    scores = (k[n, h * k.shape[1] // q.shape[1], keys] @ q[n, h, i]) * scale
                    out[n, h, i, keys] = (scores - scores.max()).exp() / (
                        (scores - scores.max()).exp().sum()
                    )
    return out


ALLOWED = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]]).bool()


@pytest.mark.parametrize(
    ("options", "allowed", "scale"),
    [
        ({}, torch.ones(3, 6).bool(), 0.25),
        ({"attn_mask": ALLOWED}, ALLOWED, 0.25),
        ({"attn_mask": torch.zeros(3, 6).masked_fill(~ALLOWED, -math.inf)}, ALLOWED, 0.25),
        ({"is_causal": True}, torch.ones(3, 6).bool().tril(), 0.25),
        ({"scale": 3.0}, torch.ones(3, 6).bool(), 3.0),
        ({"enable_gqa": True, "dropout_p": 0.5}, torch.ones(3, 6).bool(), 0.25),
    ],
    ids=["plain", "bool mask", "float mask", "causal", "scale", "grouped, dropout"],
)
def test_scaled_dot_product_attention(
    options: dict[str, Any], allowed: Tensor, scale: float
) -> None:
    torch.manual_seed(0)
    heads = 2 if "enable_gqa" in options else 4
    q, k, v = torch.randn(2, 4, 3, 16), torch.randn(2, heads, 6, 16), torch.randn(2, heads, 6, 16)
    layer = Attends(**options)
    torch.manual_seed(1)
    before = layer(q, k, v)
    torch.manual_seed(1)
    with Capture(layer, "", outputs=False, attention=True) as cap:
        after = cap.run(q, k, v)
    assert torch.equal(before, after)
    found = cap.attention("")
    assert torch.allclose(found.double(), naive(q, k, allowed, scale), atol=3e-7)
    if not options.get("dropout_p"):
        wide = v.repeat_interleave(4 // heads, 1)
        assert torch.allclose(found @ wide, after, atol=2.4e-7 * 8)


def test_autocast_is_computed_in_float32() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"own": Attends(), "torch": nn.MultiheadAttention(32, 4)})
    x = torch.randn(9, 2, 32)
    heads = x.reshape(9, 2, 4, 8).permute(1, 2, 0, 3)
    cast = torch.autocast("cpu", torch.bfloat16)
    with Capture(model, "*", outputs=False, attention=True, eval_mode=True) as cap, cast:
        model["own"](heads, heads, heads)
        model["torch"](x, x, x)
    for name in ("own", "torch"):
        found = cap.attention(name)
        assert found.dtype is torch.float32
        assert (found.sum(-1) - 1).abs().max() < 6e-7
    rounded = heads.bfloat16()
    exact = naive(rounded, rounded, torch.ones(9, 9).bool(), 8**-0.5)
    assert torch.allclose(cap.attention("own").double(), exact, atol=1e-6)


def test_a_model_in_half_precision_has_rows_that_sum_to_one() -> None:
    model, x, _ = built("torchvision ViT")
    own, y, _ = built("nn.TransformerEncoder")
    for net, fed, grad in [(model, x, False), (model, x, True), (own, y, False)]:
        net, fed = net.bfloat16(), fed.bfloat16()
        with torch.set_grad_enabled(grad):
            before = net(fed)
            with Capture(net, "", outputs=False, attention=True) as cap:
                assert torch.equal(cap.run(fed), before)
        for record in cap.activations:
            assert record.tensor.dtype is torch.float32
            assert (record.tensor.sum(-1) - 1).abs().max() < 6e-7


def test_in_training_it_is_before_dropout_and_random_numbers_stay() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(32, 4, dropout=0.5, batch_first=True).train()
    x = torch.randn(2, 5, 32)
    torch.manual_seed(1)
    before, state = layer(x, x, x)[0], torch.get_rng_state()
    torch.manual_seed(1)
    with Capture(layer, "", outputs=False, attention=True, eval_mode=False) as cap:
        after = cap.run(x, x, x)[0]
    assert torch.equal(before, after)
    assert torch.equal(state, torch.get_rng_state())
    assert layer.dropout == 0.5
    assert torch.equal(cap.attention(""), layer.eval()(x, x, x, average_attn_weights=False)[1])


@pytest.mark.parametrize("name", ["timm", "Hugging Face"])
def test_fused_attention_is_that_of_the_unfused_model(name: str) -> None:
    make = {
        "timm": lambda: timm_model("vit_tiny_patch16_224", img_size=64, depth=3),
        "Hugging Face": hugging_face,
    }[name]
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(1, 3, 64, 64)
    if name == "timm":
        unfused = copy.deepcopy(model)
        for block in unfused.blocks:
            block.attn.fused_attn = False
    else:
        unfused = hugging_face("eager").eval()
        unfused.load_state_dict(model.state_dict())
    maps = []
    for each in (model, unfused):
        with torch.no_grad(), Capture(each, "", outputs=False, attention=True) as cap:
            cap.run(x)
        maps.append(cap.activations)
    if name == "Hugging Face":
        with torch.no_grad():
            own = unfused(x, output_attentions=True).attentions
        assert all(torch.equal(a.tensor, b) for a, b in zip(maps[1], own, strict=True))
    assert [a.layer for a in maps[0]] == [a.layer for a in maps[1]]
    for one, other in zip(*maps, strict=True):
        assert (one.tensor - other.tensor).abs().max() < 5e-6


def test_swin_gives_the_very_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, _ = built("torchvision Swin")
    used: list[Tensor] = []
    original = F.softmax

    def softmax(*args: Any, **kwargs: Any) -> Tensor:
        used.append(original(*args, **kwargs))
        return used[-1]

    with torch.no_grad():
        with Capture(model, "*.attn", outputs=False, attention=True) as cap:
            cap.run(x)
        monkeypatch.setattr(F, "softmax", softmax)
        model(x)
    assert all(torch.equal(a.tensor, b) for a, b in zip(cap.activations, used, strict=True))


def test_timm_swin_v2_is_named_by_the_attention_not_by_its_softmax() -> None:
    model, x, _ = built("timm Swin v2")
    with torch.no_grad(), Capture(model, "layers.1", attention=True) as cap:
        cap.run(x)
    assert [a.layer for a in cap.activations if a.kind == "attention"] == [
        "layers.1.blocks.0.attn", "layers.1.blocks.1.attn",
    ]  # fmt: skip


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.softmax(-1)


def test_a_softmax_elsewhere_is_not_taken_and_a_layer_without_says_so() -> None:
    net = nn.Sequential(Gate(), nn.Flatten(2), nn.MultiheadAttention(16, 2, batch_first=True))
    net[2].forward = None  # never called: the model is run by hand
    del net[2].forward
    x = torch.randn(2, 5, 4, 4)
    with Capture(net, ["0", "2"], attention=True, eval_mode=True) as cap:
        y = net[1](net[0](x))
        net[2](y, y, y)
    assert cap.missing["0"] == ("no attention: nothing in it (Gate) attends; these layers do: '2'")
    with pytest.raises(LayerError, match=r"No attention of layer '0' was captured: no attention"):
        cap.attention("0")
    assert cap.output("0").shape == x.shape
    assert cap.attention("2").shape == (2, 2, 5, 5)
    with Capture(net[:2], "", attention=True) as alone:
        alone.run(x)
    assert "nothing in Sequential attends" in alone.missing[""]
    with Capture(net[:2], "") as without:
        without.run(x)
    with pytest.raises(LayerError, match=r"not asked for; use Capture\(..., attention=True\)"):
        without.attention("")


class Twice(nn.Module):
    """One layer called twice, and one call that attends twice."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.MultiheadAttention(16, 2, batch_first=True)
        self.both = TwoInOne()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = x + self.shared(x, x, x, need_weights=False)[0]
        return self.both(x)


class TwoInOne(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = F.scaled_dot_product_attention(x, x, x)
        return F.scaled_dot_product_attention(x, x[:, :2], x[:, :2])


def test_calls_leaves_and_order_are_those_of_the_outputs() -> None:
    net, x = Twice().eval(), torch.randn(3, 5, 16)
    with torch.no_grad(), Capture(net, ["shared", "both"], attention=True) as cap:
        cap.run(x)
    of = {(a.layer, a.call, a.kind, a.leaf): a for a in cap.activations}
    for call in (1, 2):
        assert of["shared", call, "attention", ""].order == of["shared", call, "output", "0"].order
        assert of["shared", call, "attention", ""].calls == 2
    assert of["both", 1, "attention", "0"].shape == (3, 1, 5, 5)
    assert of["both", 1, "attention", "1"].shape == (3, 1, 5, 2)
    assert torch.equal(
        cap.attention("shared", call=2),
        net.shared(*[x + net.shared(x, x, x)[0]] * 3, average_attn_weights=False)[1],
    )


def test_other_options_hold_for_attention_too() -> None:
    model, x, _ = built("torchvision ViT")
    seen: list[tuple[str, str]] = []
    layer = "encoder.layers.encoder_layer_1.self_attention"
    with torch.no_grad(), Capture(
        model, {"mine": layer}, outputs=False, attention=True, dtype=torch.float16,
        transform=lambda t: t[:1], stop_early=True, on_activation=lambda a: seen.append(a.kind),
    ) as cap:  # fmt: skip
        assert cap.run(x) is None
    assert cap.attention("mine").shape == (1, 4, 17, 17)
    assert cap.attention("mine").dtype is torch.float16
    assert seen == ["attention"]


class Breaks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["inside", "after", "bad arguments"])
def test_nothing_is_left_behind(where: str, traces: Traces) -> None:
    breaks = {"activation": Breaks()} if where == "inside" else {}
    layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True, **breaks)
    net = nn.Sequential(layer, Breaks() if where == "after" else nn.Identity()).eval()
    x = torch.randn(2, 5, 7 if where == "bad arguments" else 16)
    before = [sorted(m.__dict__) for m in net.modules()]
    cap = Capture(net, "", attention=True)
    with pytest.raises((KeyboardInterrupt, RuntimeError, AssertionError)), cap:
        cap.run(x)
    assert traces(net) == 0
    assert [sorted(m.__dict__) for m in net.modules()] == before
    assert not _get_current_function_mode_stack()
    assert not _get_current_dispatch_mode_stack()
    if where == "after":
        assert cap.attention("0.self_attn").shape == (2, 2, 5, 5)


class LeavesAMode(nn.Module):
    """Changes the default device within its forward."""

    def forward(self, x: Tensor) -> Tensor:
        torch.set_default_device("cpu")
        return F.scaled_dot_product_attention(x, x, x)


def test_a_mode_that_the_model_leaves_on_stays_and_ours_goes() -> None:
    net = LeavesAMode()
    try:
        with Capture(net, "", attention=True) as cap:
            cap.run(torch.randn(1, 3, 4))
        assert len(_get_current_function_mode_stack()) == 1
        assert cap.attention("").shape == (1, 1, 3, 3)
    finally:
        torch.set_default_device(None)
    assert not _get_current_function_mode_stack()


def test_copies_of_an_open_model_are_free_of_it(traces: Traces) -> None:
    model, x, _ = built("nn.TransformerEncoder")
    with torch.no_grad(), Capture(model, "", outputs=False, attention=True) as cap:
        twin = copy.deepcopy(model)
        pickled = pickle.loads(pickle.dumps(model.encoder))  # noqa: S301 - our own
        assert traces(twin) == traces(pickled) == 0
        twin(x)
        assert not cap.activations
        assert torch.equal(cap.run(x), twin(x))
        assert len(cap.activations) == 2
    assert copy.deepcopy(cap.activations[0]).shape == (2, 4, 16, 16)


def test_checkpointing_is_no_second_call_and_compiled_models_run_uncompiled() -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(lambda y: self.attn(y, y, y)[0], x, use_reentrant=False)

    net, x = Checkpointed().eval(), torch.randn(2, 5, 16, requires_grad=True)
    with Capture(net, "attn", attention=True) as cap:
        cap.run(x).sum().backward()
    assert [(a.kind, a.call) for a in cap.activations if a.kind == "attention"] == [
        ("attention", 1)
    ]
    compiled = torch.compile(net, backend="eager")
    with torch.no_grad(), Capture(compiled, "attn", attention=True) as again:
        compiled(x)
    assert torch.equal(again.attention("attn"), net.attn(x, x, x, average_attn_weights=False)[1])


class OldStyle(nn.Module):
    """Calls F.multi_head_attention_forward, as CLIP's attention pooling does."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.MultiheadAttention(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        w = self.weights
        return F.multi_head_attention_forward(
            x[:1], x, x, 16, 2, w.in_proj_weight, w.in_proj_bias, None, None, False, 0.3,
            w.out_proj.weight, w.out_proj.bias, training=self.training, need_weights=False,
        )[0]  # fmt: skip


def test_the_function_behind_multihead_attention_called_by_hand() -> None:
    torch.manual_seed(0)
    net, x = OldStyle().eval(), torch.randn(5, 3, 16)
    before = net(x)
    with Capture(net, "", attention=True) as cap:
        assert torch.equal(cap.run(x), before)
    exact = net.weights(x[:1], x, x, average_attn_weights=False)[1]
    assert torch.equal(cap.attention(""), exact)
