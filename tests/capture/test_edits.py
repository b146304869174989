"""Edits of a running model: what they change, what they leave alone, how they compose."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hookviz.activation import Activation
from hookviz.capture import (
    Capture,
    add_noise,
    change_leaves,
    clamp_gradients,
    edit,
    effect,
    patch,
    replace_gradient,
    replace_input,
    replace_output,
    scale_channels,
    zero_channels,
)
from hookviz.errors import CaptureError, LayerError


def small() -> nn.Sequential:
    """conv → in-place ReLU → conv, as the first layers of a VGG."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 3))
    return net.eval()


def hook_count(net: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    count = sum(len(getattr(m, kind)) for m in net.modules() for kind in kinds)
    return count + sum("_compiled_call_impl" in m.__dict__ for m in net.modules())


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


# Outputs ---------------------------------------------------------------------------------------


def test_zero_channels_equals_weights_set_to_zero():
    net, twin = small(), small()
    with torch.no_grad():
        twin[0].weight[[1, 3]] = 0
        twin[0].bias[[1, 3]] = 0
        with edit(net, zero_channels("0", [1, 3])) as editing:
            edited = net(X)
        assert torch.equal(edited, twin(X))
        assert editing.counts == [1]
        assert torch.equal(net(X), small()(X))  # and the edit is gone
    assert hook_count(net) == 0


def test_scale_channels_by_hand():
    net = nn.Sequential(nn.Identity(), nn.Identity())
    with edit(net, scale_channels("0", 1, 2.5)):
        out = net(X)
    assert torch.equal(out[:, 1], X[:, 1] * 2.5)
    assert torch.equal(out[:, [0, 2]], X[:, [0, 2]])


def test_zero_turns_nan_into_zero():
    net = nn.Sequential(nn.Identity())
    x = torch.full((1, 2, 1, 1), float("nan"))
    with edit(net, zero_channels("0", 0)):
        assert net(x)[0, 0, 0, 0] == 0


@pytest.mark.parametrize(
    "one",
    [
        zero_channels("0", 1),
        scale_channels("0", 1, 3.0),
        replace_output("0", lambda t: t.zero_()),
        replace_output("0", lambda t: t.mul_(2)),
        replace_input("0", lambda t: t.fill_(7)),
        patch(torch.zeros_like(X), "0"),
        add_noise("0", 1.0),
    ],
    ids=lambda one: one.text,
)
def test_tensors_of_the_user_are_never_changed(one):
    net = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True))
    x, before = X.clone(), X.clone()
    with edit(net, one):
        net(x)
    assert torch.equal(x, before)


def test_function_may_change_its_copy_in_place_and_return_nothing():
    net = nn.Sequential(nn.Identity())

    def erase(tensor):
        tensor[:, 0] = 0

    with edit(net, replace_output("0", erase)):
        out = net(X)
    assert float(out[:, 0].abs().max()) == 0
    assert torch.equal(out[:, 1:], X[:, 1:])


@pytest.mark.parametrize("how", ["patch", "tensor", "function"])
def test_a_later_in_place_layer_cannot_write_into_what_was_stored(how):
    net = small()
    stored = torch.randn(2, 4, 6, 6)
    before = stored.clone()
    one = {
        "patch": lambda: patch(stored, "0"),
        "tensor": lambda: replace_output("0", stored),
        "function": lambda: replace_output("0", lambda _: stored),
    }[how]()
    with edit(net, one), torch.no_grad():
        first, second = net(X), net(X)
    assert torch.equal(stored, before)
    assert torch.equal(first, second)
    assert torch.equal(first, net[2](before.relu()))


def test_edits_of_one_layer_act_in_order_and_blocks_nest():
    net = nn.Sequential(nn.Identity())
    x = torch.ones(1, 1)
    double = replace_output("0", lambda t: t * 2)
    plus = replace_output("0", lambda t: t + 3)
    with edit(net, double, plus):
        assert net(x).item() == 5
    with edit(net, plus, double):
        assert net(x).item() == 8
    with edit(net, plus), edit(net, double):
        assert net(x).item() == 8
    with edit(net, plus) as outer:
        with edit(net, double):
            net(x)
        assert net(x).item() == 4
        assert outer.counts == [2]
    assert net(x).item() == 1


def test_layers_by_every_selector():
    net = small()
    with edit(net, zero_channels(nn.Conv2d, 0)) as editing:
        net(X)
    assert editing.counts == [2]
    for selector in ("2", ["0", "2"], net[2], lambda name, module: name == "2", "[02]"):
        with edit(net, zero_channels(selector, 0)):
            assert float(net(X).detach()[:, 0].abs().max()) == 0


def test_unknown_layer_before_anything_is_hooked():
    net = nn.Sequential(OrderedDict(layer1=nn.Identity(), layer2=nn.Identity()))
    with pytest.raises(LayerError) as caught:
        edit(net, zero_channels("layr1", 0))
    assert "'layr1'" in str(caught.value)
    assert "'layer1'" in str(caught.value)
    assert hook_count(net) == 0


# Calls and leaves ------------------------------------------------------------------------------


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.Identity()

    def forward(self, x):
        return torch.stack([self.act(x), self.act(x)])


def test_one_call_of_several():
    net = Twice()
    x = torch.ones(1)
    for call, expected in ((1, [0.0, 1.0]), (2, [1.0, 0.0]), (None, [0.0, 0.0])):
        with edit(net, replace_output("act", torch.zeros(1), call=call)):
            for _ in range(2):  # counted anew in each forward
                assert net(x).flatten().tolist() == expected
    with edit(net, replace_output("act", torch.zeros(1), call=3)) as editing:
        assert net(x).flatten().tolist() == [1.0, 1.0]
    assert editing.counts == [0]


def test_calls_are_counted_anew_after_a_failed_forward():
    class Fails(Twice):
        fail = KeyboardInterrupt

        def forward(self, x):
            first = self.act(x)
            if self.fail:
                raise self.fail
            return torch.stack([first, self.act(x)])

    net = Fails()
    with edit(net, replace_output("act", torch.zeros(1), call=1)):
        with pytest.raises(KeyboardInterrupt):
            net(torch.ones(1))
        net.fail = None
        assert net(torch.ones(1)).flatten().tolist() == [0.0, 1.0]


Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Frozen:
    hidden: torch.Tensor
    note: str = "kept"


class Held:
    def __init__(self, tensor):
        self.tensor = tensor
        self.other = 3


class Gives(nn.Module):
    def __init__(self, make) -> None:
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x)


@pytest.mark.parametrize(
    ("make", "leaf", "read"),
    [
        (lambda x: (x, x + 1), "1", lambda o: o[1]),
        (lambda x: [x, {"deep": (x,)}], "1.deep.0", lambda o: o[1]["deep"][0]),
        (lambda x: OrderedDict(out=x, aux=x), "aux", lambda o: o["aux"]),
        (lambda x: Pair(x, x), "right", lambda o: o.right),
        (lambda x: Frozen(x), "hidden", lambda o: o.hidden),
        (lambda x: Held(x), "tensor", lambda o: o.tensor),
        (lambda x: torch.sort(x), "0", lambda o: o.values),
    ],
)
def test_one_leaf_of_a_nested_output(make, leaf, read):
    net = nn.Sequential(OrderedDict(give=Gives(make)))
    x = torch.ones(2, 2)
    before = net(x)
    with edit(net, replace_output("give", torch.full((2, 2), 9.0), leaf=leaf)):
        after = net(x)
    assert type(after) is type(before)
    assert read(after).tolist() == [[9.0, 9.0], [9.0, 9.0]]
    assert x.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    others = [9.0 in t.flatten().tolist() for t in _tensors(after)]
    assert sum(others) == 1


def _tensors(value):
    found = []
    change_leaves(value, lambda _, tensor: (found.append(tensor), tensor)[1])
    return found


def test_packed_sequence_is_edited_and_stays_one():
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    net = nn.Sequential(OrderedDict(give=Gives(lambda _: packed)))
    with edit(net, replace_output("give", lambda t: t * 5, leaf="data")):
        out = net(torch.zeros(1))
    assert isinstance(out, nn.utils.rnn.PackedSequence)
    assert out.data.unique().tolist() == [5.0]
    assert out.batch_sizes.tolist() == packed.batch_sizes.tolist()
    assert packed.data.unique().tolist() == [1.0]


def test_every_leaf_by_a_glob_and_none_chosen_of_several():
    net = nn.Sequential(OrderedDict(give=Gives(lambda x: {"a": x, "b": [x]})))
    with edit(net, replace_output("give", lambda t: t * 0, leaf="*")) as editing:
        out = net(torch.ones(1))
    assert out["a"].item() == out["b"][0].item() == 0
    assert editing.counts == [2]
    with (
        edit(net, replace_output("give", lambda t: t * 0)),
        pytest.raises(LayerError, match=r"holds 2 tensors: say which by leaf=, one of 'a', 'b\.0'"),
    ):
        net(torch.ones(1))
    with (
        edit(net, replace_output("give", lambda t: t * 0, leaf="c")),
        pytest.raises(LayerError, match=r"has no leaf 'c'; it has 'a', 'b\.0'"),
    ):
        net(torch.ones(1))
    assert hook_count(net) == 0


def test_output_without_tensors():
    net = nn.Sequential(OrderedDict(give=Gives(lambda x: None)))
    with (
        edit(net, replace_output("give", lambda t: t)),
        pytest.raises(CaptureError, match="output of 'give' holds no tensor"),
    ):
        net(torch.ones(1))


# Inputs ----------------------------------------------------------------------------------------


class Scaled(nn.Module):
    def forward(self, x, *, scale):
        return x * scale


class Outer(nn.Module):
    def __init__(self, by_keyword) -> None:
        super().__init__()
        self.inner = Scaled()
        self.by_keyword = by_keyword

    def forward(self, x):
        two = torch.full((1,), 2.0)
        return self.inner(x=x, scale=two) if self.by_keyword else self.inner(x, scale=two)


@pytest.mark.parametrize("by_keyword", [True, False])
def test_inputs_by_name_however_they_are_passed(by_keyword):
    net = Outer(by_keyword)
    x = torch.ones(1)
    with edit(net, replace_input("inner", torch.tensor([5.0]), leaf="x")):
        assert net(x).item() == 10
    with edit(net, replace_input("inner", torch.tensor([5.0]), leaf="scale")):
        assert net(x).item() == 5
    with edit(net, replace_input("inner", lambda t: t + 1, leaf="*")):
        assert net(x).item() == 6
    with (
        edit(net, replace_input("inner", x, leaf="factor")),
        pytest.raises(
            LayerError, match="input of 'inner' has no leaf 'factor'; it has 'x', 'scale'"
        ),
    ):
        net(x)


def test_first_positional_input_is_the_default():
    net = Outer(by_keyword=False)
    with edit(net, replace_input("inner", torch.tensor([5.0]))):
        assert net(torch.ones(1)).item() == 10
    with (
        edit(Outer(by_keyword=True), replace_input("", torch.tensor([5.0]))) as editing,
    ):
        assert editing.counts == [0]


def test_input_of_an_in_place_layer():
    net = small()
    with edit(net, replace_input("1", lambda t: -t)), torch.no_grad():
        out = net(X)
    assert torch.equal(out, net[2]((-net[0](X)).relu()))


# Patching between two pictures -----------------------------------------------------------------


def activation(layer, tensor, **kwargs):
    facts = {"call": 1, "calls": 1, "run": 1, "order": 1, "kind": "output", "leaf": ""}
    return Activation(layer=layer, module_type="?", tensor=tensor, **{**facts, **kwargs})


def test_patching_between_two_pictures():
    net = small()
    one, other = X[:1], X[1:]
    with torch.no_grad():
        stored = activation("0", net[0](one))
        with edit(net, patch(stored)):
            assert torch.equal(net(other), net(one))  # all of a layer: the other picture's output
        with edit(net, patch(stored, channels=[2])):
            mixed = net[0](other)
        wanted = small()[0](other)
        wanted[:, 2] = stored.tensor[:, 2]
        assert torch.equal(mixed, wanted)
        with edit(net, patch(stored)):  # one row serves every row of a batch
            out = net(X)
        assert torch.allclose(out[0], out[1])


def test_patch_knows_call_leaf_and_kind():
    net = Twice()
    with edit(net, patch(activation("act", torch.zeros(1), call=2, calls=2))):
        assert net(torch.ones(1)).flatten().tolist() == [1.0, 0.0]
    net = nn.Sequential(OrderedDict(give=Gives(lambda x: (x, x))))
    with edit(net, patch(activation("give", torch.zeros(1), leaf="1"))):
        assert [t.item() for t in net(torch.ones(1))] == [1.0, 0.0]
    with edit(net, patch(activation("give", torch.zeros(1), kind="input"))):
        assert [t.item() for t in net(torch.ones(1))] == [0.0, 0.0]


def test_patch_follows_dtype():
    net = nn.Sequential(nn.Identity()).to(torch.bfloat16)
    with edit(net, patch(torch.full((1, 2), 0.5, dtype=torch.float64), "0")):
        out = net(torch.zeros(1, 2, dtype=torch.bfloat16))
    assert out.dtype is torch.bfloat16
    assert out.tolist() == [[0.5, 0.5]]


def test_patch_that_does_not_fit():
    net = small()
    with (
        edit(net, patch(torch.zeros(2, 4, 5, 5), "0")),
        pytest.raises(CaptureError) as caught,
    ):
        net(X)
    assert "(2, 4, 5, 5)" in str(caught.value)
    assert "(2, 4, 6, 6)" in str(caught.value)
    assert "the output of '0'" in str(caught.value)
    with pytest.raises(CaptureError, match="does not say where it belongs"):
        patch(torch.zeros(1))


# Noise -----------------------------------------------------------------------------------------


def test_noise_is_repeatable_and_leaves_the_global_generator_alone():
    net = nn.Sequential(nn.Identity())
    state = torch.get_rng_state()
    outs = []
    for _ in range(2):
        with edit(net, add_noise("0", 0.5, generator=torch.Generator().manual_seed(3))):
            outs.append(net(X))
    assert torch.equal(*outs)
    assert torch.equal(torch.get_rng_state(), state)
    noise = outs[0] - X
    assert 0.3 < float(noise.std()) < 0.7
    torch.manual_seed(5)
    with edit(net, add_noise("0", 0.5)):
        first = net(X)
    torch.manual_seed(5)
    with edit(net, add_noise("0", 0.5)):
        assert torch.equal(net(X), first)


def test_noise_on_integers():
    net = nn.Sequential(nn.Identity())
    with (
        edit(net, add_noise("0", 0.5)),
        pytest.raises(CaptureError, match=r"torch\.int64"),
    ):
        net(torch.ones(1, dtype=torch.int64))


# Channels --------------------------------------------------------------------------------------


def test_channel_axis_of_each_kind_of_layer():
    cases = [
        (nn.Conv2d(3, 4, 1), torch.ones(3, 5, 5), 0),  # no batch
        (nn.Conv2d(3, 4, 1), torch.ones(1, 3, 5, 5), 1),
        (nn.Conv1d(3, 4, 1), torch.ones(3, 5), 0),
        (nn.Linear(3, 4), torch.ones(2, 7, 3), 2),
        (nn.LayerNorm(3), torch.ones(2, 7, 7, 3), 3),
        (nn.BatchNorm1d(3), torch.ones(2, 3, 7), 1),
        (nn.ReLU(), torch.ones(2, 3, 7, 7), 1),
    ]
    for layer, x, axis in cases:
        net = nn.Sequential(layer).eval()
        with edit(net, replace_output("0", torch.ones_like), zero_channels("0", 2)):
            out = net(x)
        assert out.select(axis, 2).abs().max() == 0, layer
        assert int((out == 0).sum()) == out.select(axis, 2).numel(), layer


def test_unclear_and_wrong_channels():
    net = nn.Sequential(nn.Identity())
    with (
        edit(net, zero_channels("0", 0)),
        pytest.raises(CaptureError, match=r"of shape \(2, 3, 4\), holds the channels is not known"),
    ):
        net(torch.ones(2, 3, 4))
    with edit(net, zero_channels("0", 3, axis=-1)):
        assert net(torch.ones(2, 3, 4))[..., 3].sum() == 0
    for channel in (4, -1):
        with (
            edit(net, zero_channels("0", channel, axis=2)),
            pytest.raises(CaptureError, match=rf"no channel {channel} .*0 to 3"),
        ):
            net(torch.ones(2, 3, 4))
    with (
        edit(net, zero_channels("0", 0, axis=3)),
        pytest.raises(CaptureError, match="no axis 3"),
    ):
        net(torch.ones(2, 3, 4))


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda x: x.to_sparse(), "not dense"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), "quantised"),
    ],
)
@pytest.mark.filterwarnings(
    "ignore:.*quantiz.*"
)  # torch's quantised tensors are to move to torchao
def test_channels_of_tensors_that_have_no_dense_array(make, found):
    net = nn.Sequential(OrderedDict(give=Gives(make)))
    with (
        edit(net, zero_channels("give", 0)),
        pytest.raises(CaptureError, match=f"output of 'give' cannot be edited: it is {found}"),
    ):
        net(torch.ones(1, 2))
    with edit(net, replace_output("give", lambda t: torch.zeros(3))):
        assert net(torch.ones(1, 2)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: zero_channels("0", []), "not none"),
        (lambda: zero_channels("0", [1.5]), "not 1.5"),
        (lambda: zero_channels("0", True), "not True"),
        (lambda: zero_channels("0", 1, call=0), "call must be a whole number from 1, not 0"),
        (lambda: add_noise("0", -1.0), "std must be a finite number >= 0, not -1.0"),
        (lambda: clamp_gradients("0", 0.0), "limit must be a number > 0, not 0.0"),
        (
            lambda: clamp_gradients("0", 1.0, of="weight"),
            "of must be 'output' or 'input', not 'weight'",
        ),
        (lambda: replace_output("0", 3.0), "a function, a tensor or an Activation, not float"),
        (lambda: patch([1.0], "0"), "not list"),
        (lambda: edit(small(), "0"), "edit takes edits, not str"),
    ],
)
def test_bad_edits(make, part):
    with pytest.raises(CaptureError) as caught:
        make()
    assert part in str(caught.value)


def test_function_that_returns_no_tensor():
    net = nn.Sequential(nn.Identity())
    with (
        edit(net, replace_output("0", lambda t: t.tolist())),
        pytest.raises(CaptureError, match="the output of '0' must return a tensor, not list"),
    ):
        net(X)
    assert hook_count(net) == 0


# Gradients -------------------------------------------------------------------------------------


def test_gradient_beside_an_in_place_layer():
    net, twin = small(), small()
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    with edit(net, replace_gradient("0", lambda g: g * 2)) as editing:
        net(x).sum().backward()
    assert editing.counts == [1]
    twin(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad * 2)
    torch.testing.assert_close(net[0].weight.grad, twin[0].weight.grad * 2)
    torch.testing.assert_close(net[2].weight.grad, twin[2].weight.grad)


def test_gradient_of_a_view_that_is_changed_in_place():
    # A hook on the view itself would be lost: autograd gives the view a new history.
    net = nn.Sequential(nn.Linear(2, 2), nn.Flatten(0), nn.ReLU(inplace=True))
    with edit(net, replace_gradient("1", torch.zeros(4))) as editing:
        net(torch.ones(2, 2)).sum().backward()
    assert editing.counts == [1]
    assert float(net[0].weight.grad.abs().max()) == 0


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Identity()

    def forward(self, x):
        return x + self.layer(x)


@pytest.mark.parametrize("of", ["input", "output"])
def test_only_the_layer_s_share_of_a_gradient_is_edited(of):
    x = torch.ones(1, requires_grad=True)
    net = Skip()
    with edit(net, replace_gradient("layer", lambda g: g * 10, of=of)):
        net(x).backward()
    assert x.grad.item() == 11  # 1 round the layer, 10 through it
    assert not x._backward_hooks  # and nothing is left on the user's tensor


def test_gradient_of_the_input_of_an_in_place_layer_leaves_values_alone():
    class Quirk(nn.Module):
        """The skip connection sees what the in-place layer wrote, as in pre-activation nets."""

        def __init__(self) -> None:
            super().__init__()
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            x = x * 1
            return self.relu(x) + x

    net = Quirk()
    x = torch.tensor([-1.0, 2.0], requires_grad=True)
    plain = net(x)
    with edit(net, replace_gradient("relu", lambda g: g * 0, of="input")) as editing:
        edited = net(x)
        edited.sum().backward()
    assert torch.equal(plain, edited)
    assert editing.counts == [1]
    assert x.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("make", [lambda y: {"x": y}, lambda y: [y, y], lambda y: (y, y)])
def test_gradients_of_container_outputs(make):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.give = Gives(make)

        def forward(self, x):
            out = self.give(self.linear(x))
            return sum(out.values() if isinstance(out, dict) else out).sum()

    net = Net()
    with edit(net, replace_gradient("give", lambda g: g * 0, leaf="*")):
        net(torch.ones(1, 2)).backward()
    assert float(net.linear.weight.grad.abs().max()) == 0


def test_clamped_gradients():
    net = nn.Sequential(nn.Linear(2, 2), nn.Identity())
    x = torch.ones(1, 2, requires_grad=True)
    with edit(net, clamp_gradients("1", 0.25)):
        (net(x) * torch.tensor([[100.0, -0.1]])).sum().backward()
    torch.testing.assert_close(net[0].bias.grad, torch.tensor([0.25, -0.1]))


def test_gradients_are_not_edited_after_the_block():
    net = Skip()
    x = torch.ones(1, requires_grad=True)
    with edit(net, replace_gradient("layer", lambda g: g * 10)):
        out = net(x)
    out.backward()
    assert x.grad.item() == 2


def test_no_gradient_is_no_error():
    net = small()
    with edit(net, clamp_gradients("0", 1.0)) as editing, torch.no_grad():
        net(X)
    assert editing.counts == [0]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_repeats_the_edit(use_reentrant):
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))

    class Net(nn.Module):
        def __init__(self, use) -> None:
            super().__init__()
            self.inner = inner
            self.use = use

        def forward(self, x):
            return checkpoint(inner, x, use_reentrant=use_reentrant) if self.use else inner(x)

    grads = []
    for use in (False, True):
        for call in (None, 1):
            x = torch.ones(2, 3, requires_grad=True)
            with edit(Net(use), scale_channels("inner.0", 1, 3.0, call=call)):
                Net(use)  # building another does not matter
                net = Net(use)
                with edit(net, zero_channels("inner.1", 0, call=call)):
                    net(x).square().sum().backward()
            grads.append(x.grad)
    for other in grads[1:]:
        torch.testing.assert_close(other, grads[0])


def test_checkpointing_with_a_generator_is_refused():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    net = Net()
    noisy = add_noise("inner.0", 0.1, generator=torch.Generator().manual_seed(0))
    with edit(net, noisy):
        out = net(torch.ones(2, 3, requires_grad=True))
        with pytest.raises(CaptureError, match=r"Checkpointing makes 'inner\.0' run again"):
            out.sum().backward()
    with edit(net, add_noise("inner.0", 0.1)):
        net(torch.ones(2, 3, requires_grad=True)).sum().backward()


# Beside a capture ------------------------------------------------------------------------------


def test_who_comes_first_acts_first():
    net = small()
    with torch.no_grad():
        plain = net[0](X)
        halve = scale_channels("0", [0, 1, 2, 3], 0.5)
        with Capture(net, "0") as cap, edit(net, halve):
            net(X)
        assert torch.equal(cap.output("0"), plain)  # what the layer itself gave
        with edit(net, halve), Capture(net, "0") as cap:
            net(X)
        assert torch.equal(cap.output("0"), plain * 0.5)  # what goes on
        with Capture(net, "1") as cap, edit(net, halve):
            net(X)
        assert torch.equal(cap.output("1"), (plain * 0.5).relu())  # a later layer sees the edit
    assert hook_count(net) == 0


def test_inputs_captured_before_and_after_an_edit():
    net = small()
    with torch.no_grad():
        plain = net[0](X)
        negate = replace_input("1", lambda t: -t)
        with Capture(net, "1", inputs=True) as cap, edit(net, negate):
            net(X)
        assert torch.equal(cap.input("1"), plain)
        assert torch.equal(cap.output("1"), (-plain).relu())
        with edit(net, negate), Capture(net, "1", inputs=True) as cap:
            net(X)
        assert torch.equal(cap.input("1"), -plain)


@pytest.mark.parametrize("layer", ["0", "1"])
@pytest.mark.parametrize("capture_first", [True, False])
def test_captured_gradients_are_those_that_the_edit_made(layer, capture_first):
    net, twin = small(), small()
    with Capture(twin, layer, gradients=True) as plain:
        twin(X).sum().backward()
    triple = replace_gradient(layer, lambda g: g * 3)
    capture = Capture(net, layer, gradients=True)
    first, second = (capture, edit(net, triple)) if capture_first else (edit(net, triple), capture)
    with first, second:
        net(X).sum().backward()
    torch.testing.assert_close(capture.gradient(layer), plain.gradient(layer) * 3)


def test_captured_activation_patched_into_another_picture():
    net = small()
    one, other = X[:1], X[1:]
    with torch.no_grad(), Capture(net, "1") as cap:
        wanted = net(one)
    before = cap.output("1").clone()
    found = effect(net, other, patch(cap.activations[0]))
    assert torch.equal(found.after, wanted)
    assert torch.equal(cap.output("1"), before)


def test_edit_and_early_stop():
    net = small()
    with torch.no_grad(), edit(net, zero_channels("0", 0)):
        with Capture(net, "0", stop_early=True) as cap:
            assert net(X) is None
        assert float(cap.output("0")[:, 0].abs().max()) == 0
        assert float(net(X).abs().max()) > 0
    with edit(net, replace_output("0", lambda t: t + 1, call=1)) as editing:
        with Capture(net, "0", stop_early=True) as cap:
            net(X)
        net(X)
    assert editing.counts == [2]  # a forward that was stopped has ended, too


# Lifetime --------------------------------------------------------------------------------------


def test_removed_on_every_way_out():
    net = small()
    mine = net[0].register_forward_hook(lambda *_: None)
    before = hook_count(net)

    def fail(_tensor):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), edit(net, replace_output("0", fail)):
        net(X)
    with pytest.raises(RuntimeError), edit(net, zero_channels("0", 0)):
        net(torch.ones(1, 5, 8, 8))
    assert hook_count(net) == before
    mine.remove()
    assert hook_count(net) == 0


def test_failure_while_entering_removes_what_was_set(monkeypatch):
    net = small()
    done = []
    real = nn.Module.register_forward_hook

    def register(self, *args, **kwargs):
        if len(done) == 2:
            raise RuntimeError("third")
        done.append(1)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "register_forward_hook", register)
    with pytest.raises(RuntimeError, match="third"):
        edit(net, zero_channels("*", 0)).__enter__()
    assert len(done) == 2
    assert hook_count(net) == 0


def test_entered_twice_and_reused():
    net = small()
    editing = edit(net, zero_channels("0", 0))
    with editing:
        with pytest.raises(CaptureError, match="in force already"):
            editing.__enter__()
        net(X)
        assert editing.counts == [1]
    with editing:
        assert editing.counts == [0]
        net(X)
        assert editing.counts == [1]
    editing.close()
    assert hook_count(net) == 0


def test_model_and_tensors_die_without_the_collector():
    gc.collect()
    gc.disable()
    try:
        net = small()
        ghost = weakref.ref(net)
        editing = edit(net, zero_channels("0", 0), clamp_gradients("0", 1.0))
        with editing:
            out = net(X.clone().requires_grad_())
            tensor = weakref.ref(out)
            out.sum().backward()
        del net, editing, out
        assert ghost() is None
        assert tensor() is None
    finally:
        gc.enable()


def test_modes_and_flags_are_left_alone():
    net = small().train()
    net[1].eval()
    flags = [m.training for m in net.modules()]
    with edit(net, zero_channels("0", 0)):
        net(X)
    assert [m.training for m in net.modules()] == flags
    assert torch.is_grad_enabled()


def test_compiled_model_is_edited():
    net = small()
    compiled = torch.compile(net, backend="eager")
    with torch.no_grad():
        plain = compiled(X)
        with edit(compiled, zero_channels("2", 0)):
            edited = compiled(X)
        assert float(edited[:, 0].abs().max()) == 0
        assert torch.equal(compiled(X), plain)


def test_torchscript_is_refused():
    with pytest.warns(FutureWarning, match="deprecated"):
        scripted = torch.jit.script(nn.Sequential(nn.ReLU()))
    with pytest.raises(CaptureError, match="TorchScript"):
        edit(scripted, zero_channels("0", 0))


# The effect on the output ----------------------------------------------------------------------


def test_effect_in_one_line():
    net = nn.Sequential(nn.Flatten(), nn.Identity())
    x = torch.tensor([[3.0, 4.0, 0.0]])
    found = effect(net, x, zero_channels("0", 1))
    assert found.before.tolist() == [[3.0, 4.0, 0.0]]
    assert found.after.tolist() == [[3.0, 0.0, 0.0]]
    assert found.norm == 4.0
    assert found.relative == pytest.approx(0.8)
    assert found.largest == 4.0
    assert [c.index for c in found.top] == [(0, 1)]
    assert found.top[0].difference == -4.0
    assert found.counts == (1,)
    assert "[0, 1] 4 → 0 (-4)" in str(found)


def test_effect_leaves_everything_as_it_was():
    net = nn.Sequential(nn.ReLU(inplace=True), nn.BatchNorm2d(3), nn.Dropout(0.5)).train()
    net[1].eval()
    x, before = X.clone(), X.clone()
    statistics = net[1].running_mean.clone()
    state = torch.get_rng_state()
    first = effect(net, x, zero_channels("1", 0))
    again = effect(net, x, zero_channels("1", 0))
    assert torch.equal(first.after, again.after)
    assert torch.equal(x, before)
    assert torch.equal(net[1].running_mean, statistics)
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in net.modules()] == [True, True, False, True]
    assert hook_count(net) == 0
    # In train mode both runs draw the same numbers: without an edit's doing nothing differs.
    same = effect(net, x, scale_channels("1", 0, 1.0), eval_mode=False)
    assert same.norm == 0
    assert same.relative == 0
    assert same.top == ()


def test_effect_on_nested_outputs_and_several_arguments():
    net = nn.Sequential(OrderedDict(give=Gives(lambda x: {"out": x, "aux": x})))
    edits = replace_input("give", torch.zeros(1))
    assert effect(net, torch.ones(1), edits, leaf="out").norm == 1
    assert effect(net, torch.ones(1), edits, read=lambda o: o["aux"] * 3).norm == 3
    with pytest.raises(LayerError, match="needs leaf= or read=; it has 'out', 'aux'"):
        effect(net, torch.ones(1), edits)
    with pytest.raises(LayerError, match="has no leaf 'main'"):
        effect(net, torch.ones(1), edits, leaf="main")
    inner = Scaled()
    by_name = effect(inner, {"x": torch.ones(1), "scale": 2.0}, replace_output("", torch.zeros(1)))
    assert by_name.norm == 2


def test_effect_of_nothing_is_an_error():
    net = Twice()
    with pytest.raises(LayerError, match="its layer, call 3, did not run"):
        effect(net, torch.ones(1), replace_output("act", torch.zeros(1), call=3))
    with pytest.raises(CaptureError, match="none was given"):
        effect(net, torch.ones(1))
    with pytest.raises(CaptureError, match="no effect on the output"):
        effect(net, torch.ones(1), clamp_gradients("act", 1.0))
    assert hook_count(net) == 0


def test_effect_when_the_edits_change_the_shape():
    net = nn.Sequential(nn.Identity())
    with pytest.raises(CaptureError, match=r"from \(1, 2\) to \(1, 1\)"):
        effect(net, torch.ones(1, 2), replace_output("0", lambda t: t[:, :1]))
