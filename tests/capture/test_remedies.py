"""Every remedy that a message names is tried here, and does what it says."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from hookviz import Capture, FeatureExtractor, clip_gradients
from hookviz.capture import (
    add_noise,
    edit,
    extract_features,
    patch,
    replace_output,
    scale_channels,
    select_layers,
    zero_channels,
)
from hookviz.errors import HookvizError

X = torch.ones(2, 3)


def refused(*parts):
    class Refused:
        def __enter__(self):
            self.raises = pytest.raises(HookvizError)
            self.info = self.raises.__enter__()

        def __exit__(self, *error):
            self.raises.__exit__(*error)
            for part in parts:
                assert part in str(self.info.value)
            return True

    return Refused()


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()
        self.lin = nn.Linear(3, 3)

    def forward(self, x):
        return self.act(self.lin(self.act(x)))


class Checkpointed(Twice):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


class Gives(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def test_several_calls():
    net = Twice()
    with Capture(net, "act") as capture:
        net(X)
    with refused('call=1, call=2, ..., call="last", or call="all"'):
        capture.output("act")
    both = capture.output("act", call="all")
    assert torch.equal(both[0], capture.output("act", call=1))
    assert torch.equal(both[1], capture.output("act", call="last"))
    with refused('Choose calls="first", "last" or "all".'):
        FeatureExtractor(net, "act")(X)
    for calls in ("first", "last", "all"):
        FeatureExtractor(net, "act", calls=calls)(X)


def test_several_leaves():
    net = nn.Sequential(Gives(lambda x: (x, x + 1)))
    with Capture(net, "0") as capture:
        net(X)
    with refused("Choose one with leaf=."):
        capture.output("0")
    assert torch.equal(capture.output("0", leaf=1), X + 1)
    with refused("say which by leaf=", "'*' for all"), edit(net, replace_output("0", lambda t: t)):
        net(X)
    with edit(net, replace_output("0", lambda t: t * 3, leaf="*")):
        assert torch.equal(net(X)[1], (X + 1) * 3)


def test_a_capture_that_is_not_open():
    net = Twice()
    capture = Capture(net, "lin")
    with refused("Use it in a with statement, or call open() first."):
        capture.run(X)
    with capture:
        capture.run(X)
    assert capture.output("lin").shape == (2, 3)
    capture.open()
    capture.run(X)
    capture.close()
    assert capture.output("lin").shape == (2, 3)


def test_stopping_early_with_gradients():
    net = Twice()
    with refused("Use keep_graph=True as well and run backward from a captured output."):
        Capture(net, "lin", stop_early=True, gradients=True)
    with Capture(net, "lin", stop_early=True, gradients=True, keep_graph=True) as capture:
        assert net(X) is None
        capture.output("lin").sum().backward()
    assert net.lin.weight.grad is not None


def test_beyond_the_memory_limit():
    net = nn.Sequential(nn.Identity(), nn.Identity())
    x = torch.ones(1000)
    with refused(
        "Select fewer layers, keep less with transform= or dtype=, or raise memory_limit."
    ):
        Capture(net, "*", memory_limit=5000).open().run(x)
    for layers, options in [
        ("0", {"memory_limit": 5000}),
        ("*", {"memory_limit": 5000, "transform": lambda t: t[:10]}),
        ("*", {"memory_limit": 5000, "dtype": torch.float16}),
        ("*", {"memory_limit": 8000}),
    ]:
        with Capture(net, layers, **options) as capture:
            capture.run(x)
        assert capture.bytes <= options["memory_limit"]


def test_a_tensor_without_gradient():
    net = nn.Identity()
    with Capture(net, "", gradients=True) as capture:
        with refused("or call requires_grad_() on it first."):
            capture.watch("x", torch.ones(1))
        x = capture.watch("x", torch.ones(1).requires_grad_())
        (net(x) * 3).sum().backward()
    assert capture.gradient("x").item() == 3


def test_a_model_in_train_mode():
    net = nn.Sequential(nn.Dropout()).train()
    with pytest.warns(UserWarning, match="eval_mode=True.*or eval_mode=False"), Capture(net, "0"):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Capture(net, "0", eval_mode=True) as capture:
            assert torch.equal(net(X), X)
        assert net.training
        with Capture(net, "0", eval_mode=False):
            assert net.training
    assert torch.equal(capture.output("0"), X)


def test_a_container_that_is_never_called():
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([nn.Identity()])

        def forward(self, x):
            return self.parts[0](x)

    net = Holds()
    with Capture(net, "parts") as capture:
        net(X)
    assert "choose the layers in it" in capture.missing["parts"]
    with Capture(net, "parts.*") as capture:
        net(X)
    assert torch.equal(capture.output("parts.0"), X)


def test_what_is_no_model():
    with refused("Build the model first and give the instance."):
        Capture(nn.ReLU, "")
    Capture(nn.ReLU(), "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_torchscript():
    net = nn.Sequential(nn.ReLU())
    script = torch.jit.trace(net, (X,))
    with refused("Use the Python model that it was scripted or traced from."):
        Capture(script, "0")
    with refused("Use the Python module that it was scripted or traced from."):
        Capture(nn.Sequential(script), "0.0")
    with refused("A TorchScript function has no layers: use the Python model."):
        Capture(torch.jit.script(lambda_free), "")
    with Capture(net, "0") as capture:
        capture.run(X)
    assert torch.equal(capture.output("0"), X)


def lambda_free(x: torch.Tensor) -> torch.Tensor:
    return x


def test_a_short_name_of_several_layers():
    twins = nn.ModuleDict({"x": nn.ModuleDict({"module": nn.ModuleDict({"a": nn.ReLU()})})})
    twins["module"] = nn.ModuleDict({"x": nn.ModuleDict({"a": nn.ReLU()})})
    with refused("write the full name"):
        select_layers(twins, "x.a")
    assert select_layers(twins, "x.module.a") == {"x.module.a": "x.module.a"}


def test_channels_that_are_not_known():
    net = nn.Sequential(nn.Identity())
    x = torch.ones(1, 4, 3)
    with refused("Give axis=, for example axis=-1 for tokens."), edit(net, zero_channels("0", 0)):
        net(x)
    with edit(net, zero_channels("0", 0, axis=-1)):
        assert net(x)[..., 0].abs().max() == 0
    with (
        refused("Use replace_output with a function that converts it."),
        edit(net, zero_channels("0", 0, axis=0)),
    ):
        net(x.to_sparse())
    with edit(net, replace_output("0", lambda t: t.to_dense() * 2)):
        assert torch.equal(net(x.to_sparse()), x * 2)


def test_a_tensor_in_place_of_a_sparse_one():
    net = nn.Sequential(nn.Identity())
    with (
        refused("Use a function that returns a tensor of that kind."),
        edit(net, patch(torch.zeros(2, 3), "0")),
    ):
        net(X.to_sparse())
    with edit(net, replace_output("0", lambda _: (X * 2).to_sparse())):
        assert torch.equal(net(X.to_sparse()).to_dense(), X * 2)


def test_a_patch_without_a_place():
    with refused("Give layers=."):
        patch(X)
    net = nn.Sequential(nn.Identity())
    with edit(net, patch(X, layers="0")):
        assert torch.equal(net(X * 0), X)


def test_edits_beside_checkpointing():
    net = Checkpointed()
    x = X.clone().requires_grad_()
    generator = torch.Generator().manual_seed(0)
    with (
        refused("Leave generator= out: checkpointing repeats torch's global generator."),
        edit(net, add_noise("lin", 1.0, generator=generator)),
    ):
        net(x).sum().backward()
    with edit(net, add_noise("lin", 1.0)):
        net(x).sum().backward()
    with (
        refused("Edit every call (call=None) or switch checkpointing off."),
        edit(net, scale_channels("act", 0, 2.0, call=2)),
    ):
        net(x).sum().backward()
    with edit(net, scale_channels("act", 0, 2.0)):
        net(x).sum().backward()
    plain = Twice()
    with edit(plain, scale_channels("act", 0, 2.0, call=2)):
        plain(x).sum().backward()


def test_a_norm_over_the_model_as_gradients_come():
    net = nn.Linear(3, 1)
    with refused('Use when="backward" or when="step".'):
        clip_gradients(net, norm=1, when="gradient", over="model")
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    for options in ({"when": "backward"}, {"when": "step", "optimizer": optimizer}):
        net.zero_grad()
        with clip_gradients(net, norm=1, over="model", **options):
            (net(X) * 9).sum().backward()
            optimizer.step()
        total = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in net.parameters()]))
        assert total <= 1


def test_batches_of_loaders():
    net, data = nn.Identity(), [(X[0], 0), (X[0] * 2, 1)]
    with refused("Build it with shuffle=False, or pass shuffled=True."):
        extract_features(net, "", DataLoader(data, shuffle=True))
    extract_features(net, "", DataLoader(data, shuffle=True), shuffled=True)
    assert extract_features(net, "", DataLoader(data))[""].tolist() == [[1.0] * 3, [2.0] * 3]
    with refused("Name the entry to feed with key=."):
        extract_features(net, "", [{"x": X}])
    extract_features(net, "", [{"x": X}], key="x")
    images = [torch.ones(3, 4, 4), torch.ones(3, 4, 4)]
    with refused("Pass key=0 for the first entry, or key=list to feed every entry."):
        extract_features(net, "", [images])
    assert extract_features(net, "", [images], key=0)[""].shape == (3, 4, 4)
    assert extract_features(net, "", [images], key=list)[""].shape == (2, 3, 4, 4)
    with refused("Pass key= with a function that returns the model's input."):
        extract_features(net, "", [X.numpy()])
    assert torch.equal(extract_features(net, "", [X.numpy()], key=torch.from_numpy)[""], X)
    whole = nn.Sequential(nn.Identity(), Gives(lambda x: x.sum()))
    with refused("Choose another layer, or a reduction= that makes one row of each sample."):
        extract_features(whole, "1", [X])
    assert extract_features(whole, "0", [X])["0"].shape == (2, 3)
    rows = extract_features(whole, "1", [X], reduction=lambda t: t.expand(2, 1))["1"]
    assert rows.shape == (2, 1)
