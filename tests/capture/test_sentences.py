"""What hookviz itself does wrong or is asked wrongly is a sentence, never an error of torch."""

import io
import math

import pytest
import torch
from torch import nn

from hookviz import Capture, FeatureExtractor, VerboseExecution, clip_gradients
from hookviz.capture import (
    add_noise,
    clamp_gradients,
    edit,
    effect,
    extract_features,
    patch,
    replace_gradient,
    replace_input,
    replace_output,
    scale_channels,
    zero_channels,
)
from hookviz.errors import HookvizError

X = torch.randn(2, 3, 4, 4)


def make():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)).eval()


def captured(layers="0", **options):
    net = make()
    with Capture(net, layers, **options) as capture:
        net(X)
    return capture


def edited(*edits):
    net = make()
    with edit(net, *edits):
        net(X.clone().requires_grad_()).sum().backward()


def given(function, e=None):
    net = nn.Sequential(Gives(function))
    with edit(net, e or zero_channels("0", 0)):
        net(X)


class Gives(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def identity():
    return nn.Sequential(nn.Identity())


QUANTISED = "torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)"

CASES = {
    "on_activation": lambda: captured(on_activation=5),
    "cancelled": lambda: captured(cancelled=True),
    "transform": lambda: captured(transform=5),
    "stop_early": lambda: captured(stop_early=5),
    "stop_early list": lambda: captured(stop_early=["0"]),
    "eval_mode": lambda: captured(eval_mode="yes"),
    "memory_limit": lambda: captured(memory_limit="1 GB"),
    "device type": lambda: captured(device=3.5),
    "predicate": lambda: captured(lambda name: True),
    "predicate of C": lambda: captured(len),
    "layer by module": lambda: captured().output(nn.ReLU()),
    "layer by number": lambda: captured().output(0),
    "run by name": lambda: captured().output("0", run="last"),
    "structure": lambda: captured().structure("0", run="last"),
    "structure of": lambda: captured().structure(0),
    "sample name": lambda: captured().activations[0].sample("a"),
    "sample part": lambda: captured().activations[0].sample(1.5),
    "no loader": lambda: extract_features(make(), "0", None),
    "number as loader": lambda: extract_features(make(), "0", 5),
    "key that is no key": lambda: extract_features(make(), "0", [{"a": X}], key=["a"]),
    "max_batches": lambda: extract_features(make(), "0", [X], max_batches="2"),
    "max_batches part": lambda: extract_features(make(), "0", [X], max_batches=1.5),
    "loader device": lambda: extract_features(make(), "0", [X], device="banana"),
    "progress": lambda: extract_features(make(), "0", [X], progress=5),
    "calls": lambda: extract_features(make(), "0", [X], calls="all"),
    "extractor device": lambda: FeatureExtractor(make(), "0", device="banana"),
    "extractor calls": lambda: FeatureExtractor(make(), "0", calls=3),
    "edit's function": lambda: edited(replace_output("0", lambda t: t[:, :1])),
    "edit of an input": lambda: edited(replace_input("0", lambda t: t[:, :1])),
    "edit's leaf": lambda: edited(replace_output("0", lambda t: t, leaf=0)),
    "gradient's shape": lambda: edited(replace_gradient("0", lambda g: g[:1])),
    "gradient's dtype": lambda: edited(replace_gradient("0", lambda g: g.double())),
    "gradient's device": lambda: edited(replace_gradient("0", lambda g: g.to("meta"))),
    "patch meta": lambda: edited(patch(torch.zeros(2, 4, 2, 2, device="meta"), "0")),
    "patch complex": lambda: edited(patch(torch.zeros(2, 4, 2, 2) * 1j, "0")),
    "patch into sparse": lambda: given(lambda x: x.to_sparse(), patch(X, "0")),
    "patch axis": lambda: edited(patch(torch.zeros(2, 4, 2, 2), "0", channels=0, axis="c")),
    "zero of sparse": lambda: given(lambda x: x.to_sparse()),
    "zero of nested": lambda: given(lambda x: torch.nested.nested_tensor(list(x))),
    "noise": lambda: add_noise("0", "1"),
    "noise None": lambda: add_noise("0", None),
    "generator": lambda: add_noise("0", 1.0, generator=5),
    "clamp": lambda: clamp_gradients("0", "a"),
    "clamp nan": lambda: clamp_gradients("0", math.nan),
    "factor": lambda: scale_channels("0", 0, "a"),
    "factor None": lambda: scale_channels("0", 0, None),
    "channels None": lambda: scale_channels("0", None, 1.0),
    "axis": lambda: edited(scale_channels("0", 0, 1.0, axis=1.0)),
    "top": lambda: effect(make(), X, zero_channels("0", 0), top="5"),
    "read": lambda: effect(make(), X, zero_channels("0", 0), read=5),
    "effect meta": lambda: effect(
        identity(), torch.eye(2, device="meta"), replace_output("0", lambda t: t)
    ),
    "norm_type": lambda: clip_gradients(make(), norm=1, norm_type="x"),
    "norm_type None": lambda: clip_gradients(make(), norm=1, norm_type=None),
    "foreach": lambda: clip_gradients(make(), norm=1, foreach="x"),
    "optimizer": lambda: clip_gradients(make(), norm=1, when="step", optimizer=5),
    "depth": lambda: VerboseExecution(make(), depth="1"),
    "depth part": lambda: VerboseExecution(make(), depth=1.5),
    "stream": lambda: VerboseExecution(make(), stream=5),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:.*(prototype|beta|Sparse).*:UserWarning")
def test_a_sentence(case):
    with pytest.raises(HookvizError) as caught:
        CASES[case]()
    assert len(str(caught.value)) > 20
    assert "\n" not in str(caught.value)


def test_an_edit_that_makes_the_model_fail_is_named():
    net = make()
    with edit(net, replace_output("0", lambda t: t[:, :1])), pytest.raises(HookvizError) as caught:
        net(X)
    assert "an edit changed the output of '0' from [2, 4, 2, 2] to [2, 1, 2, 2]: mat1" in str(
        caught.value
    )
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert net(X).shape == (2, 2)


def test_a_model_s_own_error_stays_what_it_is():
    net = nn.Sequential(nn.Linear(3, 2))
    with edit(net, replace_output("0", lambda t: t * 2)), pytest.raises(RuntimeError) as caught:
        net(torch.ones(1, 4))
    assert not isinstance(caught.value, HookvizError)


@pytest.mark.filterwarnings("ignore:.*beta.*:UserWarning", "ignore:.*prototype.*:UserWarning")
def test_effects_on_sparse_and_nested_outputs():
    for output in (torch.eye(2).to_sparse(), torch.nested.nested_tensor([torch.ones(4)])):
        found = effect(identity(), output, replace_output("0", lambda t: t * 2))
        assert found.relative == pytest.approx(1)


def test_a_table_that_cannot_be_written_does_not_end_the_forward():
    closed = io.StringIO()
    closed.close()
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    net = nn.Sequential(nn.Identity(), Gives(lambda x: "äé"))
    for stream in (closed, plain):
        verbose = VerboseExecution(net, stream=stream)
        assert verbose(X) == "äé"
        assert len(verbose.rows) == 2
    plain.seek(0)
    assert "Gives" in plain.read()


def test_modules_that_have_no_shapes_yet():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.LazyConv2d(3, 3), nn.LazyLinear(2)

        def forward(self, x):
            return self.head(self.conv(x).flatten(1))

    with Capture(Lazy(), "*") as capture:
        capture.run(X)
    assert capture.output("conv").shape == (2, 3, 2, 2)
    assert FeatureExtractor(Lazy(), "conv")(X)["conv"].shape == (2, 3, 2, 2)
    assert extract_features(Lazy(), "head", [X])["head"].shape == (2, 2)
    net = Lazy()
    with clip_gradients(net, value=1e-4), edit(net, scale_channels("conv", 0, 2.0)):
        net(X).sum().backward()
        net(X).sum().backward()
    assert len(VerboseExecution(Lazy(), live=False)(X)) == 2
