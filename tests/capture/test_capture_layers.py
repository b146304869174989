"""Which layers a model has, which a user means, and where a forward may end early."""

from __future__ import annotations

import dataclasses
import re
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hookviz.capture import Capture, leaves, list_layers, resolve, select_layers
from hookviz.capture._leaves import describe
from hookviz.errors import CaptureError, LayerError


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.resnet18(weights=None).eval()


def test_layers_are_listed_in_named_modules_order(resnet: nn.Module) -> None:
    found = list_layers(resnet)
    assert [i.name for i in found] == [n for n, _ in resnet.named_modules()]
    assert found[0].parameters == 11_689_512
    assert found[0].own_parameters == 0
    facts = {i.name: i for i in found}
    assert facts["layer1"].type == "Sequential"
    assert not facts["layer1"].is_leaf
    assert facts["layer1.0.conv1"].depth == 3
    assert facts["fc"].own_parameters == facts["fc"].parameters == 513_000
    assert facts["conv1"].is_leaf


def test_shared_parameters_count_once() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    assert list_layers(net)[0].parameters == 15


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        ("conv1", ["conv1"]),
        ("", [""]),
        (["fc", "conv1"], ["fc", "conv1"]),
        ("layer1.?.relu", ["layer1.0.relu", "layer1.1.relu"]),
        ("layer[12]", ["layer1", "layer2"]),
        (
            re.compile(r"^layer3\.1\.(conv|bn)\d$"),
            [f"layer3.1.{n}{i}" for i in (1, 2) for n in ("conv", "bn")],
        ),
        (nn.AdaptiveAvgPool2d, ["avgpool"]),
        ((n for n in ["fc", "fc"]), ["fc"]),
        (
            lambda name, module: name.endswith("downsample.0"),
            [f"layer{i}.0.downsample.0" for i in (2, 3, 4)],
        ),
        ([nn.Linear, "conv1", re.compile("avg")], ["fc", "conv1", "avgpool"]),
        ("module._orig_mod.layer1", ["layer1"]),
    ],
)
def test_selectors(resnet: nn.Module, selectors: Any, expected: list[str]) -> None:
    assert select_layers(resnet, selectors) == {n: n for n in expected}


def test_modules_select_themselves(resnet: nn.Module) -> None:
    assert list(select_layers(resnet, resnet.layer2[0])) == ["layer2.0"]
    assert list(select_layers(resnet, [resnet, resnet.layer1])) == ["", "layer1"]
    with pytest.raises(LayerError, match="This Linear is not a module of ResNet"):
        select_layers(resnet, nn.Linear(1, 1))


def test_names_of_ones_own(resnet: nn.Module) -> None:
    chosen = select_layers(resnet, {"first": "conv1", "last": nn.Linear})
    assert chosen == {"first": "conv1", "last": "fc"}
    with pytest.raises(LayerError, match="'relus' must stand for one layer, but ReLU matches 9"):
        select_layers(resnet, {"relus": nn.ReLU})
    with torch.no_grad(), Capture(resnet, {"Conv2d1": "conv1"}) as cap:
        resnet(torch.zeros(1, 3, 32, 32))
    assert cap.activations[0].layer == "Conv2d1"
    assert cap.output("Conv2d1") is cap.output("conv1")


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        ("layr1", "no layer 'layr1'. Did you mean 'layer1'"),
        ("layer9*", "No layer of ResNet matches 'layer9*'"),
        (re.compile("zzz"), "No layer of ResNet matches /zzz/"),
        (nn.Conv3d, "no layer of type Conv3d; it has 'AdaptiveAvgPool2d', 'BasicBlock'"),
        (int, "must be a torch.nn.Module, not int"),
        (lambda n, m: False, "satisfies <lambda>"),
        (3, "not by int"),
        ([None], "not by NoneType"),
        (b"conv1", "not by int"),
    ],
)
def test_what_selects_nothing(resnet: nn.Module, selector: Any, said: str) -> None:
    with pytest.raises(LayerError) as caught:
        select_layers(resnet, selector)
    assert said in str(caught.value)


def test_an_ambiguous_short_name() -> None:
    inner = nn.Module()
    inner.module = nn.ReLU()
    net = nn.Module()
    net.a = inner
    net.module = nn.Module()
    net.module.a = nn.Tanh()
    assert list(select_layers(net, "a")) == ["a"]
    with pytest.raises(LayerError, match=r"may be any of 'a', 'a.module', 'module.a'"):
        select_layers(net, "_orig_mod.a")


def test_a_module_below_itself_is_not_followed_for_ever() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    net[0].register_module("parent", net)
    assert [i.name for i in list_layers(net)] == ["", "0"]


def test_resolve_sees_through_compiled_modules() -> None:
    net = nn.Linear(2, 2)
    assert resolve(torch.compile(net, backend="eager")) is net
    assert resolve(net) is net
    with pytest.raises(CaptureError, match="instance"):
        resolve(nn.Linear)  # type: ignore[arg-type]


# Early stop


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize(
    ("layers", "ran"),
    [
        (["conv1"], ["conv1"]),
        (["layer1"], ["conv1", "bn1", "relu", "maxpool", "layer1"]),
        (["layer1.0.conv1"], ["conv1", "bn1", "relu", "maxpool"]),
        (["layer2.0.relu", "bn1"], ["conv1", "bn1", "relu", "maxpool", "layer1"]),
        (
            ["fc", "conv1"],
            [
                "conv1",
                "bn1",
                "relu",
                "maxpool",
                "layer1",
                "layer2",
                "layer3",
                "layer4",
                "avgpool",
                "fc",
            ],
        ),
    ],
)
def test_the_forward_ends_after_the_last_ticked_layer(
    resnet: nn.Module, layers: list[str], ran: list[str], bare: bool
) -> None:
    top: list[str] = []
    handles = [
        m.register_forward_hook(lambda m, i, o, n=n: top.append(n))
        for n, m in resnet.named_children()
    ]
    x = torch.zeros(1, 3, 32, 32)
    try:
        with torch.no_grad(), Capture(resnet, layers) as full:
            resnet(x)
        top.clear()
        with torch.no_grad(), Capture(resnet, layers, stop_early=True) as cap:
            first = resnet(x) if bare else cap.run(x)
            again = resnet(x)  # the block goes on
    finally:
        for handle in handles:
            handle.remove()
    assert first is None
    assert again is None
    assert top == ran * 2
    assert len(cap.activations) == 2 * len(full.activations)
    for a, b in zip(full.activations, cap.activations, strict=False):
        assert (a.layer, a.call, a.calls, a.order) == (b.layer, b.call, b.calls, b.order)
        assert torch.equal(a.tensor, b.tensor)
    assert cap.missing == {}


def test_a_layer_that_may_be_called_again_is_waited_for() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.act = nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.b(self.act(self.a(x))))

    net = Net()
    x = torch.ones(1, 2)
    with Capture(net, "act", stop_early=True) as cap:
        assert net(x) is not None
    assert len(cap.activations) == 2
    with Capture(net, "act", stop_early={"act": 1}) as cap:
        assert net(x) is None
    assert len(cap.activations) == 1
    with Capture(net, "", stop_early=True) as cap:
        assert net(x) is not None
    shared = nn.Sequential(net.a, net.act, net.b, net.act, nn.Linear(2, 2))
    with Capture(shared, "1", stop_early=True) as cap:
        assert shared(x) is None
    assert [a.call for a in cap.activations] == [1, 2]
    with pytest.raises(CaptureError, match="stop_early has 'b', which is not a selected layer"):
        Capture(net, "act", stop_early={"b": 1})
    for bad in (0, True, "all"):
        said = re.escape(f"stop_early['act'] must be a whole number from 1, not {bad!r}")
        with pytest.raises(CaptureError, match=said):
            Capture(net, "act", stop_early={"act": bad})


def test_a_head_called_per_level_is_kept_whole() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

        def forward(self, xs: list[Tensor]) -> list[Tensor]:
            return [self.conv(x) for x in xs]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.rest = Head(), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.rest(sum(self.head([x, x + 1, x + 2])))

    net = Net()
    with Capture(net, ["head.conv.0"], stop_early=True) as cap:
        assert net(torch.ones(1, 2)) is None
    assert len(cap.output("head.conv.0", call="all")) == 3


def test_an_early_stop_passes_other_captures_and_hooks_that_must_run() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    seen: list[str] = []
    net.register_forward_hook(lambda m, i, o: seen.append("always"), always_call=True)
    with Capture(net, "2") as outer, Capture(net, "0", stop_early=True) as inner:
        assert net(torch.ones(1, 2)) is None
    assert seen == ["always"]
    assert len(inner.activations) == 1
    assert "ended early" in outer.missing["2"]
    with Capture(net, "0", stop_early=True) as outer:
        with Capture(net, "2") as inner:
            net(torch.ones(1, 2))
        assert inner.activations == ()
    assert len(outer.activations) == 1


# Leaves


class Box:
    __slots__ = ("kept", "name")

    def __init__(self, kept: Any) -> None:
        self.kept, self.name = kept, "box"


@dataclasses.dataclass
class Record:
    first: Any
    rest: Any = None


class ModelOutput(OrderedDict):  # as transformers' own: a mapping that is a data class too
    def __init__(self, **values: Any) -> None:
        super().__init__(values)
        self.__dict__.update(values)


Pair = namedtuple("Pair", "left right")


def test_leaves_of_every_kind_of_container() -> None:
    t = torch.zeros(2)
    for value, paths in (
        (t, [""]),
        ((t, [t]), ["0", "1.0"]),
        ({"a": t, 3: {"b": t}}, ["a", "3.b"]),
        (Pair(t, Pair(t, None)), ["left", "right.left"]),
        (Record(t, [Record(t)]), ["first", "rest.0.first"]),
        (ModelOutput(logits=t, hidden=(t, t)), ["logits", "hidden.0", "hidden.1"]),
        (Box({"x": t}), ["kept.x"]),
        ({0: t, "0": t}, ["0", "0#2"]),
        ([None, "text", 3, nn.Linear(2, 2), torch.Size([3]), len], []),
        (nn.Parameter(t), [""]),
    ):
        assert [path for path, _ in leaves(value)] == paths


def test_leaves_end_in_circles() -> None:
    circle: list[Any] = [torch.zeros(1)]
    circle.append(circle)
    assert [p for p, _ in leaves(circle)] == ["0"]
    assert describe(circle) == "[[1], list]"


def test_described_structures() -> None:
    t = torch.zeros(2, 3)
    assert describe((t,)) == "([2, 3],)"
    assert describe(Pair(t, 1)) == "Pair(left: [2, 3], right: int)"
    assert describe(ModelOutput(logits=t)) == "{logits: [2, 3]}"
    assert describe(Box([t])) == "Box(kept.0: [2, 3])"
    assert describe(nn.Linear(2, 2)) == "Linear"


nested = st.recursive(
    st.one_of(st.integers(1, 4).map(lambda n: torch.zeros(n)), st.none(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text("ab.0", max_size=3), inner, max_size=3),
        st.builds(Record, inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(Box, inner),
    ),
    max_leaves=12,
)


def count(value: Any) -> int:
    if isinstance(value, Tensor):
        return 1
    if isinstance(value, dict):
        return sum(map(count, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(count, value))
    if isinstance(value, Record):
        return count(value.first) + count(value.rest)
    return count(value.kept) if isinstance(value, Box) else 0


@given(nested)
def test_no_leaf_is_lost_and_every_path_is_its_own(value: Any) -> None:
    found = leaves(value)
    assert len({path for path, _ in found}) == len(found) == count(value)
    describe(value)
