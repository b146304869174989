"""A tensor that cannot be kept is a reason for its layer; the forward and the others go on."""

import warnings

import pytest
import torch
from torch import nn

from hookviz import Capture, FeatureExtractor, VerboseExecution
from hookviz.capture import edit, replace_output
from hookviz.errors import LayerError


class Gives(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


class Refuses(torch.Tensor):
    """A tensor whose copy fails, as some wrappers of tensors do."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function.__name__ in ("clone", "to"):
            raise NotImplementedError("no copies of this kind")
        return super().__torch_function__(function, types, args, kwargs or {})


def freed(x, offset=0):
    made = x.clone()
    view = made[offset:]
    made.untyped_storage().resize_(0)
    return view


def fake(x):
    from torch._subclasses import FakeTensorMode

    return FakeTensorMode().from_tensor(x)


@pytest.fixture(autouse=True)
def beta():
    with warnings.catch_warnings():
        # torch announces that nested and sparse tensors are in beta.
        warnings.simplefilter("ignore", UserWarning)
        # torch.func.jvp itself calls what torch announces the end of.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


REFUSED = {
    "coo": (lambda x: x.to_sparse(), r"its {} is a sparse tensor \(torch.sparse_coo\) of shape"),
    "csr": (lambda x: x.to_sparse_csr(), r"its {} is a sparse tensor \(torch.sparse_csr\)"),
    "csc": (lambda x: x.to_sparse_csc(), r"its {} is a sparse tensor \(torch.sparse_csc\)"),
    "freed": (freed, r"its {} is a tensor of shape \(2, 2\) whose memory has been freed"),
    "freed view": (lambda x: freed(x, 1), r"its {} is a tensor of shape \(1, 2\) whose memory"),
    "fake": (fake, r"its {} is a stand-in without values \(FakeTensor\)"),
    "refuses": (
        lambda x: x.as_subclass(Refuses),
        r"its {} is a Refuses that torch cannot copy \(no copies",
    ),
}


@pytest.mark.parametrize("options", [{}, {"dtype": torch.float64}, {"memory_limit": 10_000}])
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_kept_is_a_reason_for_its_layer(kind, options):
    function, said = REFUSED[kind]
    net = nn.Sequential(nn.Identity(), Gives(function), Gives(lambda _: torch.ones(1)))
    with Capture(net, "*", inputs=True, eval_mode=False, **options) as capture:
        assert torch.equal(net(torch.eye(2)), torch.ones(1))
    assert set(capture.missing) == set()
    assert torch.equal(capture.output("0"), torch.eye(2))
    assert torch.equal(capture.output("2"), torch.ones(1))
    with pytest.raises(
        LayerError, match=r"No output of layer '1' was captured: " + said.format("output")
    ):
        capture.output("1")
    with pytest.raises(LayerError, match=said.format(r"input( \[args\.0\])?")):
        capture.input("2")
    with Capture(net, "1", eval_mode=False, **options) as capture:
        net(torch.eye(2))
    assert capture.missing["1"].startswith("its output is a")


def test_one_leaf_of_several_and_one_call_of_several():
    net = nn.Sequential(Gives(lambda x: (x, x.to_sparse())))
    with Capture(net, "0") as capture:
        net(torch.eye(2))
    assert torch.equal(capture.output("0", leaf="0"), torch.eye(2))
    with pytest.raises(LayerError, match=r"Not all could be kept: its output \[1\] is a sparse"):
        capture.output("0", leaf="1")
    turns = iter([lambda x: x, freed])
    twice = Gives(lambda x: next(turns)(x))
    with Capture(twice, "") as capture:
        twice(torch.eye(2))
        twice(torch.eye(2))
    with pytest.raises(LayerError, match="Not all could be kept: its output is a tensor of shape"):
        capture.output("", run=2)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("options", [{}, {"dtype": torch.float64}, {"device": "cpu"}])
def test_nested_tensors_are_padded_with_zeros(layout, options):
    rows = [torch.ones(3, 4), torch.full((2, 4), 2.0)]
    net = nn.Sequential(
        Gives(lambda x: torch.nested.nested_tensor(rows, layout=layout)),
        Gives(lambda x: {"nested": x}),
    )
    with Capture(net, "*", inputs=True, eval_mode=False, memory_limit=10_000, **options) as capture:
        out = net(torch.ones(1))["nested"]
    assert out.is_nested
    kept = capture.output("0")
    assert kept.shape == (2, 3, 4)
    assert kept[1].tolist() == [[2.0] * 4] * 2 + [[0.0] * 4]
    assert torch.equal(capture.input("1"), kept)
    assert capture.structure("1") == "{nested: nested([3, 4], [2, 4])}"


def test_opaque_tensors_are_kept_as_dense_ones():
    net = Gives(lambda x: x.to_mkldnn())
    with Capture(net, "") as capture:
        net(torch.eye(2))
    assert torch.equal(capture.output(""), torch.eye(2))


def test_a_transform_makes_sparse_tensors_dense_as_the_message_says():
    net = nn.Sequential(nn.Identity(), Gives(lambda x: x.to_sparse_csr()))
    with Capture(net, "*") as capture:
        net(torch.eye(2))
    assert "transform=lambda t: t.to_dense() keeps it" in capture.missing["1"]
    with Capture(net, "*", transform=lambda t: t.to_dense()) as capture:
        net(torch.eye(2))
    assert torch.equal(capture.output("0"), torch.eye(2))
    assert torch.equal(capture.output("1"), torch.eye(2))


def test_a_padding_mask_in_a_transformer():
    # pytorch/pytorch#97111: in eval mode the encoder calls its layers with nested tensors.
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 5, 8)
    mask = torch.tensor([[False] * 3 + [True] * 2, [False] * 5])
    with torch.no_grad():
        expected = net(x, src_key_padding_mask=mask)
        with Capture(net, "*", inputs=True) as capture:
            out = net(x, src_key_padding_mask=mask)
    assert torch.equal(out, expected)
    for name in ("layers.0", "layers.1", "layers.0.linear2", "layers.0.norm1"):
        assert capture.output(name).shape == (2, 5, 8)
        assert capture.output(name)[0, 3:].abs().max() == 0
    assert torch.equal(capture.output("layers.1"), expected)
    assert capture.output("layers.0.self_attn", leaf="0").shape == (2, 5, 8)
    assert capture.structure("layers.0.self_attn") == "(nested([3, 8], [5, 8]), None)"
    assert {name.rpartition(".")[2] for name in capture.missing} == {"layers", "out_proj"}
    rows = VerboseExecution(net, live=False, depth=None)
    with torch.no_grad():
        assert torch.equal(rows(x, src_key_padding_mask=mask), expected)
    assert "nested([3, 8], [5, 8])" in rows.table()


@pytest.mark.parametrize("transform", [
    torch.func.vmap,
    torch.func.jacrev,
    torch.func.jacfwd,
    torch.func.functionalize,
    lambda net: torch.func.grad(lambda x: net(x).sum()),
    lambda net: lambda x: torch.func.jvp(net, (x,), (x,))[0],
])  # fmt: skip
def test_transforms_of_functions_go_on_and_say_why_nothing_is_kept(transform):
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    x = torch.ones(2, 3)
    expected = transform(net)(x)
    with Capture(net, "*", inputs=True, gradients=True, input_gradients=True) as capture:
        result = transform(net)(x)
    torch.testing.assert_close(result, expected)
    assert not capture.activations
    assert "stand-in" in capture.missing["0"]
    with Capture(net, "*") as capture:  # the remedy: "call the model outside of the transform"
        net(x)
    assert not capture.missing


def test_a_model_that_calls_a_layer_through_vmap():
    outer = Gives(lambda x: torch.func.vmap(outer.inner)(x))
    outer.inner = nn.Linear(3, 3)
    net = nn.Sequential(nn.Identity(), outer)
    x = torch.ones(2, 3)
    expected = outer.inner(x)
    with Capture(net, "*", eval_mode=False) as capture:
        torch.testing.assert_close(net(x), expected)
    torch.testing.assert_close(capture.output("1"), expected)
    assert list(capture.missing) == ["1.inner"]
    assert "torch.func" in capture.missing["1.inner"]


def test_edits_of_the_other_layers_go_on_beside_odd_tensors():
    net = nn.Sequential(nn.Identity(), Gives(lambda x: x.to_sparse()))
    with edit(net, replace_output("0", lambda t: t * 2)), Capture(net, "*") as capture:
        net(torch.eye(2))
    assert torch.equal(capture.output("0"), torch.eye(2) * 2)


def test_a_gradient_that_cannot_be_kept():
    class Sparse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient.to_sparse()

    net = nn.Sequential(nn.Identity(), Gives(Sparse.apply))
    x = torch.eye(2, requires_grad=True)
    with Capture(net, "*", gradients=True, eval_mode=False) as capture:
        net(x).sum().backward()
    assert x.grad.to_dense().tolist() == [[1, 1], [1, 1]]
    assert torch.equal(capture.gradient("1"), torch.ones(2, 2))
    assert "its output gradient is a sparse tensor" in capture.missing["0"]


def test_a_feature_that_cannot_be_kept_is_a_sentence():
    net = nn.Sequential(Gives(lambda x: x.to_sparse()))
    with pytest.raises(LayerError, match=r"no features of layer '0': its output is a sparse"):
        FeatureExtractor(net, "0")(torch.eye(2))


def test_memory_that_runs_out_is_no_reason_of_a_layer():
    class Full(Refuses):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if function.__name__ == "clone":
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return super().__torch_function__(function, types, args, kwargs or {})

    net = Gives(lambda x: x.as_subclass(Full))
    with pytest.raises(RuntimeError, match="can't allocate memory"), Capture(net, ""):
        net(torch.eye(2))
