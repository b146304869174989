"""What capturing gives where hooks written by hand are known to go wrong."""

from __future__ import annotations

import copy
import gc
import io
import threading
import warnings
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookviz.capture import Capture, list_layers
from hookviz.errors import CaptureError, LayerError

Traces = Callable[[nn.Module], int]


@pytest.fixture(scope="module")
def resnet18() -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.resnet18(weights=None).eval()


def image(size: int = 64, batch: int = 1) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


def test_conv_output_survives_the_in_place_relu() -> None:
    torch.manual_seed(0)
    net = torchvision.models.vgg16(weights=None).eval()
    x = image(32)
    with torch.no_grad(), Capture(net, "features.0") as cap:
        net(x)
    with torch.no_grad():
        alone = net.features[0](x)
    assert torch.equal(cap.output("features.0"), alone)
    assert cap.output("features.0").min() < 0


def test_every_call_of_a_module_is_kept(resnet18: nn.Module) -> None:
    x = image()
    with torch.no_grad(), Capture(resnet18, nn.ReLU) as cap:
        resnet18(x)
    assert len(cap.layers) == 9
    assert len(cap.activations) == 17
    assert [a.order for a in cap.activations] == list(range(1, 18))
    both = cap.output("layer2.0.relu", call="all")
    assert [tuple(t.shape) for t in both] == [(1, 128, 8, 8)] * 2
    assert not torch.equal(*both)
    assert cap.output("layer2.0.relu", call="last") is both[1]
    assert cap.output("layer2.0.relu", call=1) is both[0]
    with pytest.raises(
        LayerError, match=r"called 2 times.*call 1: \[1, 128, 8, 8\].*call=\"last\""
    ):
        cap.output("layer2.0.relu")
    with pytest.raises(LayerError, match=r"no output of call 3"):
        cap.output("layer2.0.relu", call=3)
    assert [(a.call, a.calls) for a in cap.activations if a.layer == "layer2.0.relu"] == [
        (1, 2),
        (2, 2),
    ]


def test_bottleneck_relu_three_calls() -> None:
    net = torchvision.models.resnet50(weights=None).eval()
    with torch.no_grad(), Capture(net, "layer1.0.relu") as cap:
        net(image(32))
    assert [a.shape[1] for a in cap.activations] == [64, 64, 256]
    assert cap.activations[2].label == "layer1.0.relu call 3 of 3"


def test_input_of_an_in_place_layer() -> None:
    net = nn.Sequential(nn.ReLU(inplace=True))
    with Capture(net, "0", inputs=True) as cap:
        net(torch.tensor([1.23, -4.56]))
    assert torch.equal(cap.input("0"), torch.tensor([1.23, -4.56]))
    assert torch.equal(cap.output("0"), torch.tensor([1.23, 0.0]))


@pytest.mark.parametrize("layers", ["0", "1", ["0", "1"], ["", "0", "1"]])
def test_gradient_beside_an_in_place_layer(layers: Any) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True))
    twin = copy.deepcopy(net)
    twin[1].inplace = False
    x = image(8)
    found = []
    for model in (net, twin):
        with Capture(model, layers, gradients=True) as cap:
            (model(x) ** 2).sum().backward()
        found.append(cap)
    for name in found[0].layers:
        assert torch.equal(found[0].gradient(name), found[1].gradient(name))
    y = twin[0](x).detach().requires_grad_()
    (F.relu(y) ** 2).sum().backward()
    if "0" in found[0].layers:
        assert torch.equal(found[0].gradient("0"), y.grad)


@pytest.mark.parametrize(
    ("build", "paths"),
    [
        (lambda y: {"x": y}, ["x"]),
        (lambda y: [y, y * 2], ["0", "1"]),
        (lambda y: (y, y * 2), ["0", "1"]),
        (lambda y: OrderedDict(out=y, n=3), ["out"]),
        (lambda y: namedtuple("Pair", "a b")(y, None), ["a"]),
    ],
)
def test_gradients_of_container_outputs(build: Any, paths: list[str]) -> None:
    class Boxed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Any:
            return build(self.linear(x))

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Boxed()

        def forward(self, x: Tensor) -> Tensor:
            found = self.inner(x)
            values = found.values() if isinstance(found, dict) else found
            return sum(v.sum() for v in values if isinstance(v, Tensor))

    net = Outer()
    with Capture(net, "inner", gradients=True) as cap:
        net(torch.ones(2, 3)).backward()
    got = [a.leaf for a in cap.activations if a.kind == "output_gradient"]
    assert got == paths
    last = cap.gradient("inner", leaf=paths[-1])
    assert torch.equal(last, torch.ones(2, 3))
    # y is used twice where the second leaf is made of it
    if len(paths) == 2:
        assert torch.equal(cap.gradient("inner", leaf="0"), torch.full((2, 3), 3.0))


def test_first_layer_without_input_gradient() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with Capture(net, nn.Linear, gradients=True, input_gradients=True) as cap:
        net(torch.randn(2, 4)).sum().backward()
    kinds = {(a.layer, a.kind) for a in cap.activations if "gradient" in a.kind}
    assert kinds == {
        ("0", "output_gradient"),
        ("2", "output_gradient"),
        ("2", "input_gradient"),
    }
    assert cap.gradient("0").shape == (2, 5)
    assert cap.gradient("2", of="input").shape == (2, 5)
    with pytest.raises(LayerError, match="No input gradient of layer '0'"):
        cap.gradient("0", of="input")


def test_input_gradient_of_a_block_has_the_inputs_shape() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    net = nn.Sequential(block)
    x = image(8, batch=2).requires_grad_()
    with Capture(net, "0", input_gradients=True, eval_mode=False) as cap:
        (net(x) ** 2).sum().backward()
    assert cap.gradient("0", of="input").shape == (2, 3, 8, 8)
    assert torch.equal(cap.gradient("0", of="input"), x.grad)


def test_leaves_of_an_lstm() -> None:
    lstm = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    net = nn.ModuleDict({"lstm": lstm})
    with Capture(net, "lstm") as cap:
        net["lstm"](torch.randn(2, 5, 3))
    assert [(a.leaf, a.shape) for a in cap.activations] == [
        ("0", (2, 5, 8)),
        ("1.0", (4, 2, 4)),
        ("1.1", (4, 2, 4)),
    ]
    assert cap.structure("lstm") == "([2, 5, 8], ([4, 2, 4], [4, 2, 4]))"
    assert cap.output("lstm", leaf=2).shape == (4, 2, 4)
    with pytest.raises(LayerError, match=r"holds 3 tensors \(0: \[2, 5, 8\]"):
        cap.output("lstm")
    with pytest.raises(LayerError, match=r"no leaf 'h'; it has '0', '1.0', '1.1'"):
        cap.output("lstm", leaf="h")


def test_dict_dataclass_and_object_outputs() -> None:
    net = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None
    ).eval()
    with torch.no_grad(), Capture(net, "") as cap:
        out = net(image())
    assert [(a.leaf, a.shape) for a in cap.activations] == [("out", (1, 21, 64, 64))]
    assert cap.output("").data_ptr() != out["out"].data_ptr()
    assert cap.structure("") == "{out: [1, 21, 64, 64]}"

    @dataclass
    class Found:
        logits: Tensor
        name: str
        hidden: tuple[Tensor, ...]

    class Plain:
        def __init__(self, t: Tensor) -> None:
            self.scores, self.count, self._cache = t, 3, [t + 1]

    for made, paths, said in (
        (
            lambda x: Found(x, "n", (x, x)),
            ["logits", "hidden.0", "hidden.1"],
            "Found(logits: [2], name: str, hidden: ([2], [2]))",
        ),
        (Plain, ["scores", "_cache.0"], "Plain(scores: [2], _cache.0: [2])"),
    ):

        class Net(nn.Module):
            build = staticmethod(made)

            def forward(self, x: Tensor) -> Any:
                return self.build(x)

        small = Net()
        with Capture(small, "") as cap:
            small(torch.ones(2))
        assert [a.leaf for a in cap.activations] == paths
        assert cap.structure("") == said


def test_keyword_arguments_are_recorded_by_name() -> None:
    class Scale(nn.Module):
        def forward(self, x: Tensor, *more: Tensor, scale: Any, mask: Any = None) -> Tensor:
            return x * scale

    net = Scale()
    with Capture(net, "", inputs=True) as cap:
        net(x=torch.ones(2), scale=2.0)
        net(torch.ones(2), torch.zeros(1), scale=torch.tensor(3.0), mask={"a": [torch.zeros(4)]})
    first, second = (
        [a for a in cap.activations if a.run == r and a.kind == "input"] for r in (1, 2)
    )
    assert [a.leaf for a in first] == ["x"]
    assert [a.leaf for a in second] == ["x", "more.0", "scale", "mask.a.0"]
    assert cap.input("", leaf="scale").item() == 3.0
    assert torch.equal(cap.input("", run=1), torch.ones(2))


def test_a_selected_layer_that_never_runs() -> None:
    net = torchvision.models.googlenet(weights=None, aux_logits=True, init_weights=False).eval()
    with torch.no_grad(), Capture(net, ["aux1.conv", "inception3a"]) as cap:
        net(image())
    assert [a.layer for a in cap.activations] == ["inception3a"]
    assert set(cap.missing) == {"aux1.conv"}
    assert "not called in this forward (eval mode)" in cap.missing["aux1.conv"]
    with pytest.raises(LayerError, match=r"'aux1.conv' was captured: not called.*eval mode"):
        cap.output("aux1.conv")
    net.train()
    with torch.no_grad(), Capture(net, ["", "aux1.conv"], eval_mode=False) as cap:
        net(image(96, batch=2))
    assert [a.leaf for a in cap.activations if a.layer == ""] == [
        "logits",
        "aux_logits2",
        "aux_logits1",
    ]
    assert cap.missing == {}


def test_functional_operations_have_no_layer(traces: Traces) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 2, 1)
            self.rel = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.conv(x))

    net = Net()
    with pytest.raises(LayerError) as caught:
        Capture(net, "relu")
    text = str(caught.value)
    assert "Net has no layer 'relu'" in text
    assert "cannot be hooked" in text
    assert "Did you mean 'rel'?" in text
    assert traces(net) == 0
    with Capture(net, "conv") as cap:
        net(image(4))
    assert cap.output("conv").min() < 0


def test_mistyped_and_prefixed_names(resnet18: nn.Module, traces: Traces) -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = resnet18

        def forward(self, x: Tensor) -> Any:
            raise AssertionError("no forward before the names are checked")

    net = Wrapper()
    with pytest.raises(LayerError, match=r"'layer4.1.relu'.*Did you mean 'model.layer4.1.relu'"):
        Capture(net, "layer4.1.relu")
    with pytest.raises(LayerError, match=r"'layr1'.*Did you mean 'layer1'"):
        Capture(resnet18, ["conv1", "layr1"])
    assert traces(net) == 0


def test_old_captures_do_not_pile_up(traces: Traces) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    own: list[Tensor] = []
    net[0].register_forward_hook(lambda m, i, o: own.append(o))
    before = traces(net)
    cap: Capture | None = None
    for _ in range(3):
        cap = Capture(net, "*").open()  # the cell is run again: the old one is forgotten
    assert cap is not None
    net(torch.ones(1, 3))
    assert [a.layer for a in cap.activations] == ["0", "1"]
    cap.close()
    cap.close()
    assert traces(net) == before
    net(torch.ones(1, 3))
    assert len(own) == 2
    cap = Capture(net, "*").open()
    del cap
    assert traces(net) == before


class Failing(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error: BaseException | None = error

    def forward(self, x: Tensor) -> Tensor:
        if self.error is not None:
            raise self.error
        return x * 2


@pytest.mark.parametrize(
    "error", [ValueError("boom"), KeyboardInterrupt()], ids=["error", "interrupt"]
)
@pytest.mark.parametrize("through_run", [True, False])
def test_an_error_in_the_forward(error: BaseException, through_run: bool, traces: Traces) -> None:
    bad = Failing(error)
    net = nn.Sequential(nn.Linear(3, 3), bad, nn.Linear(3, 3))
    cap = Capture(net, "*", inputs=True)
    with pytest.raises(type(error)) as caught, cap:
        (cap.run if through_run else net)(torch.ones(2, 3))
    assert caught.value is error
    assert any("forward" in str(entry.name) for entry in caught.traceback)
    assert traces(net) == 0
    assert [(a.layer, a.kind) for a in cap.activations] == [
        ("0", "input"),
        ("0", "output"),
        ("1", "input"),
    ]
    assert type(error).__name__ in cap.missing["2"]
    assert "did not end" in cap.missing["1"]
    bad.error = None
    with cap:
        net(torch.ones(2, 3))
    assert [a.layer for a in cap.activations if a.kind == "output"] == ["0", "1", "2"]
    assert cap.missing == {}


def test_a_failed_forward_and_a_good_one_in_one_block() -> None:
    bad = Failing(KeyboardInterrupt())
    net = nn.Sequential(nn.Linear(3, 3), bad)
    with Capture(net, "*", inputs=True) as cap:
        with pytest.raises(KeyboardInterrupt):
            net(torch.ones(2, 3))
        bad.error = None
        net(torch.ones(2, 3))
    assert [(a.layer, a.run, a.call) for a in cap.activations if a.kind == "output"] == [
        ("0", 1, 1),
        ("0", 2, 1),
        ("1", 2, 1),
    ]


def test_wrong_channels(traces: Traces) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3))
    with pytest.raises(RuntimeError, match="channels"), Capture(net, "*") as cap:
        net(image(8))
    assert traces(net) == 0
    assert [a.layer for a in cap.activations] == ["0", "1"]
    assert "RuntimeError" in cap.missing["2"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_failure_while_registering(error: type[BaseException], traces: Traces) -> None:
    class Refusing(nn.Linear):
        def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
            raise error("no")

    net = nn.Sequential(
        nn.Linear(3, 3), nn.ReLU(), Refusing(3, 3), nn.ReLU(), nn.Linear(3, 3)
    ).train()
    cap = Capture(
        net, "*", inputs=True, gradients=True, input_gradients=True, eval_mode=True, cancelled=bool
    )
    with pytest.raises(error):
        cap.open()
    assert traces(net) == 0
    assert all(m.training for m in net.modules())


def test_results_hold_no_graph() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    x = torch.randn(2, 3)
    sizes = []
    for _ in range(50):
        with Capture(net, "*", inputs=True) as cap:
            net(x)
        saved = io.BytesIO()
        torch.save([a.tensor for a in cap.activations], saved)
        sizes.append(saved.tell())
        copied = copy.deepcopy(cap.activations)
        assert all(
            torch.equal(a.tensor, b.tensor) for a, b in zip(cap.activations, copied, strict=True)
        )
        assert not any(a.tensor.requires_grad for a in cap.activations)
        cap.output("0").numpy()
    assert len(set(sizes)) == 1
    with Capture(net, "0", keep_graph=True) as cap:
        net(x)
    kept = cap.output("0")
    assert kept.requires_grad
    kept.sum().backward()
    assert net[0].weight.grad is not None


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"inputs": True},
        {"gradients": True, "input_gradients": True},
        {"keep_graph": True, "gradients": True},
        {"stop_early": True},
        {"eval_mode": True, "cancelled": bool},
    ],
    ids=lambda o: "-".join(o),
)
@pytest.mark.parametrize("closed", [True, False])
def test_nothing_lives_on(options: dict[str, Any], closed: bool) -> None:
    def use() -> list[weakref.ref[Any]]:
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.ReLU(inplace=True))
        attributes = set(net.__dict__)
        cap = Capture(net, ["0", "1", "2"], **options).open()
        y = net(torch.randn(2, 3, 5, 5))
        if options.get("gradients"):
            y.sum().backward()
        if closed:
            cap.close()
            assert set(net.__dict__) == attributes
        assert cap.activations
        assert cap.missing == {}
        return [
            weakref.ref(net),
            weakref.ref(cap),
            *(weakref.ref(a.tensor) for a in cap.activations),
        ]

    gc.collect()
    gc.disable()
    try:
        alive = [ref() is not None for ref in use()]
    finally:
        gc.enable()
    assert not any(alive)


def test_nothing_lives_on_after_an_error() -> None:
    net = nn.Sequential(nn.Linear(3, 3), Failing(ValueError("boom")))

    def use() -> weakref.ref[Capture]:
        with Capture(net, "*", inputs=True) as cap:
            try:
                net(torch.ones(1, 3))
            except ValueError as error:
                error.__traceback__ = None
        return weakref.ref(cap)

    gc.disable()
    try:
        assert use()() is None
    finally:
        gc.enable()


def test_one_module_under_two_names(traces: Traces) -> None:
    act = nn.ReLU()
    net = nn.Sequential(nn.Conv2d(3, 3, 1), act, nn.Conv2d(3, 3, 1), act)
    assert {i.name: i.aliases for i in list_layers(net)}["1"] == ("3",)
    with Capture(net, ["1", "3"]) as cap:
        assert traces(net) == 2  # one hook, one guard
        net(image(4))
    assert [(a.layer, a.call, a.calls) for a in cap.activations] == [("1", 1, 2), ("1", 2, 2)]
    assert torch.equal(cap.output("3", call=2), cap.output("1", call="last"))


@torch.no_grad()
@pytest.mark.parametrize("way", ["wrapper", "wrapped", "in place", "child"])
def test_compiled_models(way: str) -> None:
    torch.manual_seed(0)
    net: Any = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 3)))
    x = torch.randn(2, 3)
    expected = net(x)
    hidden = net[0](x)
    model: Any = net
    if way == "in place":
        net.compile(backend="eager")
    elif way == "child":
        net[1] = torch.compile(net[1], backend="eager")
    else:
        model = torch.compile(net, backend="eager")
    model(x)
    before = dict(model.__dict__)
    assert [i.name for i in list_layers(model)] == ["", "0", "1", "1.0", "1.1"]
    given = net if way == "wrapped" else model
    with Capture(given, ["0", "1.0", "_orig_mod.1.1"]) as cap:
        bare = given(x)
        ran = cap.run(x)
    assert [a.layer for a in cap.activations] == ["0", "1.0", "1.1"] * 2
    assert torch.equal(cap.output("0"), hidden)
    assert torch.equal(bare, expected)
    assert torch.equal(ran, expected)
    assert model.__dict__.keys() == before.keys()
    assert torch.equal(model(x), expected)


def test_torchscript_is_refused(traces: Traces) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval()
    with warnings.catch_warnings():
        # torch announces the end of TorchScript; models made with it are still about.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(net)
        traced = torch.jit.trace(net, torch.ones(1, 3))
        function = torch.jit.script(_double)
    for module in (scripted, traced, traced.get_submodule("0")):
        with pytest.raises(CaptureError, match=r"TorchScript.*not supported.*Python model"):
            Capture(module, "")
    with pytest.raises(CaptureError, match="TorchScript function"):
        Capture(function, "")
    mixed = nn.Sequential(nn.Linear(3, 3), traced)
    for inside in ("1", "1.0"):
        with pytest.raises(CaptureError, match=r"TorchScript.*not supported"):
            Capture(mixed, inside)
    with Capture(mixed, "0") as cap:
        mixed(torch.ones(1, 3))
    assert len(cap.activations) == 1
    assert traces(mixed) == 0
    assert [i.type for i in list_layers(mixed)][:3] == ["Sequential", "Linear", "Sequential"]


def _double(x: Tensor) -> Tensor:
    return x * 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_no_second_call(reentrant: bool) -> None:
    torch.manual_seed(0)
    act = nn.ReLU()
    part = nn.Sequential(nn.Linear(3, 3), act, nn.Linear(3, 3), act)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = part

        def forward(self, x: Tensor) -> Tensor:
            x = checkpoint(self.part[:2], x, use_reentrant=reentrant)
            return checkpoint(self.part[2:], x, use_reentrant=reentrant)

    class Plain(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.part(x)

    x = torch.randn(2, 3)
    found = []
    for net in (Net(), Plain()):
        fed = x.clone().requires_grad_()
        with Capture(net, "part.*", inputs=True, gradients=True, input_gradients=True) as cap:
            y = net(fed)
            assert len([a for a in cap.activations if a.kind == "output"]) == 4
            (y**2).sum().backward()
            assert len([a for a in cap.activations if a.kind == "output"]) == 4
        found.append(cap.activations)
    assert len(found[0]) == 16
    for ours, plain in zip(*found, strict=True):
        assert (ours.layer, ours.call, ours.calls, ours.order, ours.kind) == (
            plain.layer,
            plain.call,
            plain.calls,
            plain.order,
            plain.kind,
        )
        assert torch.equal(ours.tensor, plain.tensor)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_whole_checkpointed_model(reentrant: bool) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU())
    x = torch.randn(2, 3, requires_grad=True)
    with Capture(net, "*") as cap:
        checkpoint(net, x, use_reentrant=reentrant).sum().backward()
    assert len(cap.activations) == 4
    assert cap.runs == 1


def test_forward_called_directly() -> None:
    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = nn.Linear(3, 3)
            self.weights_only = nn.Linear(3, 3)
            self.unused = nn.Linear(3, 3)
            self.many = nn.ModuleList([nn.Linear(3, 3)])
            self.attention = nn.MultiheadAttention(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.child.forward(x)
            z = x[:, :1].repeat(1, 4)
            self.attention(z, z, z)
            return self.many[0](F.linear(y, self.weights_only.weight))

    net = Parent()
    names = ["child", "weights_only", "unused", "many", "attention.out_proj"]
    cap = Capture(net, names)
    assert cap.missing == dict.fromkeys(names, "not run yet: the model was not called")
    with cap:
        net(torch.ones(1, 3))
    reasons = cap.missing
    assert set(reasons) == set(names)
    assert "calls its forward directly" in reasons["child"]
    assert "uses its weights without calling it" in reasons["weights_only"]
    assert "not called in this forward (train mode)" in reasons["unused"]
    assert "container" in reasons["many"]
    assert "MultiheadAttention uses its weights" in reasons["attention.out_proj"]


def test_capture_calls_the_model(traces: Traces) -> None:
    seen: list[int] = []
    net = nn.Linear(3, 3)
    net.register_forward_hook(lambda m, i, o: seen.append(1))
    with Capture(net, "") as cap:
        cap.run(torch.ones(1, 3))
    assert seen == [1]
    with pytest.raises(CaptureError, match="not open"):
        cap.run(torch.ones(1, 3))


def test_dataparallel_names() -> None:
    net = nn.DataParallel(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    for name in ("module.0", "0", "_orig_mod.module.0"):
        with Capture(net, name) as cap:
            net(torch.ones(2, 3))
        assert [a.layer for a in cap.activations] == ["module.0"]
        assert cap.output("0") is cap.output("module.0")
    with Capture(net, "*") as cap:
        net(torch.ones(2, 3))
    assert list(cap.layers) == ["module", "module.0", "module.1"]
    with Capture(net.module, "module.1") as cap:
        net(torch.ones(2, 3))
    assert [a.layer for a in cap.activations] == ["1"]


class Halves(nn.Module):
    """Calls its layer from two threads, the second half first."""

    def __init__(self, *, whole: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        halves = (x, x) if self.whole else x.split(3)
        out: list[Tensor] = [x] * len(halves)
        done = [threading.Event() for _ in range(len(halves) + 1)]
        done[-1].set()

        def work(i: int) -> None:
            done[i + 1].wait()
            out[i] = self.layer(halves[i])
            done[i].set()

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(halves))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return torch.cat(out)


@pytest.mark.parametrize("gradients", [True, False])
def test_pieces_are_joined_in_input_order(gradients: bool) -> None:
    net = Halves()
    x = torch.randn(8, 3)
    with Capture(net, ["layer", ""], inputs=True, gradients=gradients) as cap:
        y = net(x)
        if gradients:
            (y**2).sum().backward()
    assert torch.equal(cap.output("layer"), y)
    assert torch.equal(cap.input("layer"), x)
    assert [(a.layer, a.order) for a in cap.activations if a.kind == "output"] == [
        ("layer", 1),
        ("", 2),
    ]
    if gradients:
        assert torch.equal(cap.gradient("layer"), cap.gradient(""))


def test_whole_batches_in_threads_stay_calls() -> None:
    net = Halves(whole=True)
    with Capture(net, "layer") as cap:
        net(torch.randn(8, 3))
    assert [(a.call, a.calls, a.shape) for a in cap.activations] == [
        (1, 2, (8, 4)),
        (2, 2, (8, 4)),
    ]


def test_real_replicas_write_into_one_capture() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    replicas = []
    for _ in range(2):
        replica = net._replicate_for_data_parallel()
        for name, child in net._modules.items():
            copied = child._replicate_for_data_parallel()
            for key, parameter in child._parameters.items():
                setattr(copied, key, parameter)
            replica._modules[name] = copied
        replicas.append(replica)
    del replicas
    x = torch.randn(6, 3)
    out: list[Any] = [None, None]
    with Capture(net, "*") as cap:
        taken = [net._replicate_for_data_parallel() for _ in range(2)]
        for replica in taken:
            replica._modules = dict(net._modules)
            replica._is_replica = True

        def work(i: int) -> None:
            out[i] = taken[i](x.chunk(2)[i])

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert torch.equal(cap.output("1"), torch.cat(out))


def test_a_slice_does_not_save_the_batch() -> None:
    net = nn.Sequential(nn.Conv2d(1, 64, 1))
    x = torch.randn(8, 1, 28, 28)
    with torch.no_grad(), Capture(net, "0", transform=lambda t: t[:1]) as cap:
        net(x)
    with torch.no_grad(), Capture(net, "0") as whole:
        net(x)
    for tensor in (cap.output("0"), whole.activations[0].sample(0).tensor):
        assert tensor.shape == (1, 64, 28, 28)
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
        saved = io.BytesIO()
        torch.save(tensor, saved)
        assert saved.tell() < 210_000
    saved = io.BytesIO()
    torch.save(whole.output("0"), saved)
    assert saved.tell() > 1_600_000


def test_outputs_that_are_slices_own_their_values() -> None:
    class Slicing(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x[0], x[:, :1], x[:1].expand(100, -1, -1, -1), x.permute(0, 2, 3, 1)

    net = Slicing()
    with Capture(net, "", inputs=True) as cap:
        net(torch.randn(8, 3, 5, 5))
    for a in cap.activations:
        assert a.tensor.untyped_storage().nbytes() == a.tensor.nbytes
        assert a.tensor.storage_offset() == 0


def test_train_mode_is_warned_of_or_left() -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)).train()

    x = image(8)
    net = build()
    net[2].eval()
    before = copy.deepcopy(net.state_dict())
    with torch.no_grad(), Capture(net, "*", eval_mode=True) as cap:
        net(x)
        net(x)
    assert torch.equal(cap.output("2", run=1), cap.output("2", run=2))
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert [m.training for m in net] == [True, True, False]
    assert net.training
    with pytest.warns(UserWarning, match=r"train mode.*eval_mode=True"), Capture(build(), "0"):
        pass
    with Capture(build(), "0", eval_mode=False):
        pass
    with Capture(build().eval(), "0"):
        pass
