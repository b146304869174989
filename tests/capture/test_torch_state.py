"""No global state of torch changes what capturing gives, and capturing moves none of it."""

import contextlib
import random

import numpy as np
import pytest
import torch
from torch import nn

from hookviz import Capture, FeatureExtractor, VerboseExecution, clip_gradients
from hookviz.capture import (
    add_noise,
    edit,
    effect,
    extract_features,
    patch,
    replace_gradient,
    scale_channels,
    zero_channels,
)


@contextlib.contextmanager
def default(setter, getter, value):
    before = getter()
    setter(value)
    try:
        yield
    finally:
        setter(before)


def default_device(value):
    return default(torch.set_default_device, torch.get_default_device, value)


STATES = {
    "nothing": contextlib.nullcontext,
    "with device meta": lambda: torch.device("meta"),
    "default device meta": lambda: default_device("meta"),
    "float64": lambda: default(torch.set_default_dtype, torch.get_default_dtype, torch.float64),
    "float16": lambda: default(torch.set_default_dtype, torch.get_default_dtype, torch.float16),
    "deterministic": lambda: default(
        torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled, True
    ),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "anomaly": torch.autograd.detect_anomaly,
    "two threads": lambda: default(torch.set_num_threads, torch.get_num_threads, 2),
}


def state():
    numpy = np.random.get_state()
    return (
        torch.get_default_device(), torch.get_default_dtype(), torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"), torch.is_anomaly_enabled(),
        torch.get_rng_state().tolist(), random.getstate(), numpy[1].tolist(), numpy[2],
    )  # fmt: skip


def make():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 2))
    return net.eval(), torch.rand(2, 3, 4, 4)


def everything(net, x):
    """What each way in gives: all values but those that the model itself computes otherwise."""
    autocast = torch.is_autocast_enabled("cpu")
    with Capture(net, "*", inputs=True, gradients=True, input_gradients=True) as capture:
        y = net(x)
        y.float().sum().backward()
    kept = capture.output("0").clone()
    found = {f"{a.label} {a.kind}": a.tensor for a in capture.activations}
    found["feature"] = FeatureExtractor(net, "1")(x)["1"]
    found["early"] = FeatureExtractor(net, "1", stop_early=True)(x)["1"]
    found["rows"] = extract_features(net, "0", [x], reduction="mean")["0"]
    edits = (zero_channels("0", 1), scale_channels("3", 0, 2.0), patch(kept, "0"))
    for one in edits:
        with edit(net, one):
            found[one.text] = net(x)
    with edit(net, replace_gradient("0", lambda g: g * 2)):
        net(x).float().sum().backward()
    if not autocast:
        moved = effect(net, x, zero_channels("0", [0, 1]))
        found["norm"], found["top"] = moved.norm, [c.index for c in moved.top]
    net.zero_grad()
    clipping = clip_gradients(net, norm=0.1)
    found["no gradients"] = clipping.clip()
    with clipping:
        net(x).float().sum().backward()
    found["clipped"] = net[3].weight.grad.clone()
    verbose = VerboseExecution(net, live=False)
    verbose(x)
    found["rows of the table"] = [row.output for row in verbose.rows]
    return found


@pytest.mark.parametrize("name", STATES)
@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
def test_capturing_works_the_same_and_moves_nothing(name):
    net, x = make()
    expected = everything(net, x)
    with STATES[name]():
        before = state()
        found = everything(net, x)
        assert state() == before
    again = everything(net, x)
    assert found.keys() | {"norm", "top"} == expected.keys()
    for key, value in found.items():
        if isinstance(value, torch.Tensor) and name != "autocast":
            torch.testing.assert_close(value, expected[key], rtol=0, atol=0)
        elif isinstance(value, torch.Tensor):
            assert value.shape == expected[key].shape
            assert value.device.type == "cpu"
        else:
            assert value == expected[key]
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(again[key], expected[key], rtol=0, atol=0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_under_every_gradient_mode(mode):
    net, x = make()
    expected = net(x).detach()
    with mode():
        before = state()
        with Capture(net, "*", inputs=True) as capture, edit(net, scale_channels("3", 0, 1.0)):
            net(x)
        rows = extract_features(net, "3", [x])
        moved = effect(net, x, zero_channels("0", 0))
        assert state() == before
    for one in (capture.output("3"), rows["3"]):
        torch.testing.assert_close(one, expected)
        assert not one.is_inference()
        assert not one.requires_grad
    assert moved.norm > 0


def test_noise_draws_from_the_generator_that_is_named_and_from_no_other():
    net, x = make()
    generator = torch.Generator().manual_seed(1)
    before = state()
    with torch.device("meta"), edit(net, add_noise("0", 1.0, generator=generator)):
        noisy = net(x)
    assert not torch.equal(noisy, net(x))
    assert state() == before
    effect(net, x, add_noise("0", 1.0))
    assert state() == before


def test_no_tensor_is_kept_by_a_module_of_ours():
    import sys

    net, x = make()
    with torch.device("meta"):
        everything(net, x)
    ours = [m for name, m in sys.modules.items() if name.startswith("hookviz.capture")]
    assert ours
    assert not [v for m in ours for v in vars(m).values() if isinstance(v, torch.Tensor)]
