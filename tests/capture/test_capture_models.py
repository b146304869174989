"""Odd models: what they give is kept, or refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from hookviz.capture import Capture, list_layers
from hookviz.errors import CaptureError, DeviceError

Traces = Callable[[nn.Module], int]


class Gives(nn.Module):
    """Applies a function."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.half,
        torch.bfloat16,
        torch.float64,
        torch.complex64,
        torch.int64,
        torch.bool,
        torch.uint8,
    ],
    ids=str,
)
def test_every_dtype_is_kept_as_it_is(dtype: torch.dtype) -> None:
    net = Gives(lambda x: x.to(dtype))
    x = torch.tensor([[0.0, 1.0, 2.5]])
    with Capture(net, "", inputs=True) as cap:
        expected = net(x)
    assert cap.output("").dtype == dtype
    assert torch.equal(cap.output(""), expected)
    with Capture(net, "", dtype=torch.float32) as cap:
        net(x)
    wanted = {torch.complex64: torch.complex64}.get(dtype, torch.float32)
    if not (dtype.is_floating_point or dtype.is_complex):
        wanted = dtype
    assert cap.output("").dtype == wanted


def test_lazily_conjugated_and_negated_tensors_hold_their_values() -> None:
    net = Gives(lambda x: (torch.complex(x, x).conj(), torch.complex(x, x).conj().imag))
    with Capture(net, "") as cap:
        net(torch.ones(2))
    assert not cap.output("", leaf=0).is_conj()
    assert not cap.output("", leaf=1).is_neg()
    assert cap.output("", leaf=1).numpy().tolist() == [-1.0, -1.0]


def test_quantised_outputs() -> None:
    with warnings.catch_warnings():
        # torch announces the end of quantised tensors; models made of them are still about.
        warnings.simplefilter("ignore", UserWarning)
        made = torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.5, 0, torch.quint8)
    net = Gives(lambda x: made)
    with Capture(net, "") as cap:
        net(torch.tensor([1.0, 2.0]))
    assert cap.output("").is_quantized
    assert cap.output("").dequantize().tolist() == [1.0, 2.0]
    with Capture(net, "", dtype=torch.float32) as cap:
        net(torch.tensor([1.0, 2.0]))
    assert cap.output("").tolist() == [1.0, 2.0]


def test_a_transform_makes_sparse_tensors_dense() -> None:
    net = Gives(lambda x: x.to_sparse())
    with Capture(net, "", transform=lambda t: t.to_dense()) as cap:
        net(torch.eye(2))
    assert torch.equal(cap.output(""), torch.eye(2))


def test_the_meta_device() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True)).to("meta")
    with Capture(net, "*", inputs=True, device="cpu", dtype=torch.float64) as cap:
        net(torch.empty(1, 3, 8, 8, device="meta"))
    assert cap.output("0").is_meta
    assert cap.output("1").shape == (1, 4, 6, 6)
    assert cap.output("1").dtype == torch.float64


def test_a_layer_that_gives_no_tensor() -> None:
    net = nn.ModuleDict({"none": Gives(lambda x: None), "text": Gives(lambda x: ["a", 3])})
    with Capture(net, ["none", "text"]) as cap:
        for layer in net.values():
            layer(torch.ones(1))
    assert cap.missing == {
        "none": "it was called, but returned None",
        "text": "it was called, but returned no tensor: [str, int]",
    }


def test_lazy_layers() -> None:
    net = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    assert [i.parameters for i in list_layers(net)] == [0, 0, 0, 0, 0]
    with Capture(net, "*", inputs=True, gradients=True) as cap:
        net(torch.ones(1, 3, 5, 5)).sum().backward()
    outputs = [(a.layer, a.module_type) for a in cap.activations if a.kind == "output"]
    assert outputs == [("0", "Conv2d"), ("1", "ReLU"), ("2", "Flatten"), ("3", "Linear")]
    assert [i.parameters for i in list_layers(net)][1] == 112


def test_a_packed_sequence() -> None:
    net = nn.Sequential(nn.GRU(3, 4, batch_first=True))
    packed = pack_padded_sequence(torch.randn(2, 5, 3), [5, 3], batch_first=True)
    with Capture(net, "0", inputs=True) as cap:
        net(packed)
    assert [(a.kind, a.leaf) for a in cap.activations] == [
        ("input", "input.data"),
        ("input", "input.batch_sizes"),
        ("output", "0.data"),
        ("output", "0.batch_sizes"),
        ("output", "1"),
    ]
    assert cap.structure("0").startswith("(PackedSequence(data: [8, 4], batch_sizes: [5]")


def test_functional_call_is_an_ordinary_forward() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with Capture(net, "0") as cap:
        torch.func.functional_call(net, dict(net.named_parameters()), torch.ones(2, 3))
    assert len(cap.activations) == 1


@torch.no_grad()
def test_compiled_functions_around_a_model() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    x = torch.ones(2, 3)
    expected = net(x).sum()
    early = torch.compile(lambda x: net(x).sum(), backend="eager")
    early(x)
    with Capture(net, "*") as cap:
        early(x)
    # Code that was made before knows nothing of hooks: that is said, not passed over.
    assert cap.activations or "torch.compile" in cap.missing["0"]
    late = torch.compile(lambda x: net(x).sum() * 1, backend="eager")
    with Capture(net, "*") as cap:
        late(x)
    assert len(cap.activations) == 2
    assert torch.equal(late(x), expected)


def test_torchscript_beside_the_ticked_layer() -> None:
    with warnings.catch_warnings():
        # torch announces the end of TorchScript; models made with it are still about.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 3)))
    net = nn.Sequential(nn.Linear(3, 3), scripted).train()
    with Capture(net, "0", cancelled=lambda: False, eval_mode=True) as cap:
        net(torch.ones(1, 3))
        assert not scripted.training
    assert scripted.training
    assert len(cap.activations) == 1


def test_channels_last_strides_are_kept() -> None:
    net = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    with Capture(net, "", inputs=True, input_gradients=True, gradients=True) as cap:
        y = net(x.requires_grad_())
        y.sum().backward()
    assert cap.output("").stride() == y.stride()
    assert torch.equal(cap.output(""), y)


def test_attention_given_one_tensor_three_times_stays_self_attention() -> None:
    torch.manual_seed(0)
    net = nn.Sequential()
    net.add_module("attention", nn.MultiheadAttention(4, 2, batch_first=True))
    x = torch.randn(2, 3, 4, requires_grad=True)
    expected, weights = net.attention(x, x, x)
    expected.sum().backward()
    total, x.grad = x.grad, None
    with Capture(net, "attention", inputs=True, gradients=True, input_gradients=True) as cap:
        got, _ = net.attention(x, x, x)
        got.sum().backward()
    assert torch.equal(got, expected)
    assert torch.equal(cap.output("attention", leaf="1"), weights)
    assert [a.leaf for a in cap.activations if a.kind == "input"] == ["query", "key", "value"]
    assert torch.equal(cap.gradient("attention", of="input", leaf="query"), total)


def test_the_fast_path_of_a_transformer_is_not_taken_while_its_layers_are_captured() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
    net = nn.Sequential(layer)
    x = torch.randn(1, 3, 4)
    with torch.no_grad(), Capture(net, ["0.linear1", "0.self_attn.out_proj"]) as cap:
        net(x)
    assert cap.output("0.linear1").shape == (1, 3, 8)
    assert "without calling it" in cap.missing["0.self_attn.out_proj"]


def test_an_unknown_device_and_a_wrong_dtype() -> None:
    net = nn.Linear(3, 3)
    with pytest.raises(DeviceError, match="'fpga'"):
        Capture(net, "", device="fpga")
    with pytest.raises(CaptureError, match="floating-point"):
        Capture(net, "", dtype=torch.int32)
    with pytest.raises(CaptureError, match="floating-point"):
        Capture(net, "", dtype="float32")  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [3, nn.Linear, None, "resnet18"])
def test_what_is_no_module_is_refused(given: Any) -> None:
    with pytest.raises(CaptureError, match=r"torch\.nn\.Module is needed"):
        Capture(given, "")


def test_a_transform_that_fails_keeps_its_error_and_names_the_layer() -> None:
    net = nn.Sequential(nn.Linear(3, 3))

    def broken(t: Tensor) -> Tensor:
        raise ZeroDivisionError("mine")

    with (
        pytest.raises(ZeroDivisionError, match="mine") as caught,
        Capture(net, "0", transform=broken),
    ):
        net(torch.ones(1, 3))
    assert "output of layer '0'" in caught.value.__notes__[0]
    with (
        pytest.raises(CaptureError, match=r"output of layer '0'.*must return a tensor.*float"),
        Capture(net, "0", transform=lambda t: float(t.mean())),
    ):
        net(torch.ones(1, 3))


def test_a_transform_reduces_and_the_result_is_its_own() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True))
    x = torch.randn(2, 3, 8, 8)
    with Capture(net, "0", transform=lambda t: t.amax(dim=(2, 3))) as cap:
        net(x)
    assert torch.equal(cap.output("0"), net[0](x).amax(dim=(2, 3)))
    for same in (lambda t: t, lambda t: t.view(-1), lambda t: t[0]):
        with Capture(net, "0", transform=same) as cap:
            net(x)
        assert cap.output("0").min() < 0
        assert cap.output("0").untyped_storage().nbytes() == cap.output("0").nbytes


def test_the_memory_limit_names_layer_and_sizes() -> None:
    net = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    x = torch.randn(1, 256)
    cap = Capture(net, "*", memory_limit=2500)
    with pytest.raises(CaptureError) as caught, cap:
        net(x)
    text = str(caught.value)
    assert "output of layer '2'" in text
    assert "1.0 KiB" in text
    assert "2.0 KiB already kept" in text
    assert "memory limit of 2.4 KiB" in text
    assert cap.bytes == 2048
    assert [a.layer for a in cap.activations] == ["0", "1"]
    with cap, pytest.raises(CaptureError):
        net(x)
    for bad in (0, -1, 1.5, True):
        with pytest.raises(CaptureError, match="memory_limit"):
            Capture(net, "*", memory_limit=bad)  # type: ignore[arg-type]


def test_watch_records_gradients_of_any_tensor() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    x = torch.randn(2, 3, requires_grad=True)
    with Capture(net, "0", gradients=True) as cap:
        cap.watch("x", x)
        y = cap.watch("y", net(x) * 2)
        y.sum().backward()
        assert y.grad_fn is not None
    assert torch.equal(cap.gradient("x"), x.grad)
    assert torch.equal(cap.gradient("y"), torch.ones(2, 3))
    assert x._backward_hooks is None or len(x._backward_hooks) == 0
    assert cap.missing == {}
    with Capture(net, "0") as cap, pytest.raises(CaptureError, match=r"'z'.*does not require"):
        cap.watch("z", torch.ones(1))
    with pytest.raises(CaptureError, match="open"):
        cap.watch("x", x)


def test_several_backwards_add_up_as_grad_does() -> None:
    net = nn.Sequential(nn.Linear(3, 3))
    with Capture(net, "0", gradients=True) as cap:
        y = net(torch.ones(1, 3))
        y.sum().backward(retain_graph=True)
        (2 * y).sum().backward()
        assert torch.equal(cap.gradient("0"), torch.full((1, 3), 3.0))
        (net(torch.ones(1, 3)) * 5).sum().backward()
    assert torch.equal(cap.gradient("0"), torch.full((1, 3), 5.0))
    assert torch.equal(cap.gradient("0", run=1), torch.full((1, 3), 3.0))


def test_why_a_gradient_did_not_come() -> None:
    net = nn.Sequential(nn.Linear(3, 3), Gives(lambda x: x.argmax(1)))
    with torch.no_grad(), Capture(net, "0", gradients=True) as cap:
        net(torch.ones(1, 3))
    assert "gradients switched off" in cap.missing["0"]
    with Capture(net, "*", gradients=True) as cap:
        net(torch.ones(1, 3))
    assert "before the capture was closed" in cap.missing["0"]
    assert "torch.int64" in cap.missing["1"]


@pytest.mark.cuda
def test_on_a_gpu_copies_go_where_they_are_wished() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True)).cuda()
    x = torch.randn(2, 3, 16, 16, device="cuda")
    with torch.no_grad(), Capture(net, "*") as stay, Capture(net, "*", device="cpu") as cap:
        net(x)
    assert stay.output("0").is_cuda
    assert cap.output("0").device.type == "cpu"
    assert torch.equal(stay.output("0").cpu(), cap.output("0"))
