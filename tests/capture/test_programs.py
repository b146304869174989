"""Models that torch.export, torch.fx, torch.compile and TorchScript made of others."""

import re

import pytest
import torch
from torch import nn

from hookviz import Capture, FeatureExtractor, VerboseExecution, clip_gradients, list_layers
from hookviz.capture import edit, effect, extract_features, replace_output, select_layers
from hookviz.errors import CaptureError, LayerError

X = torch.ones(1, 3, 8, 8)


def make():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Sequential(nn.Conv2d(4, 2, 1))
    ).eval()


def exported(net):
    return torch.export.export(net, (X,)).module()


def test_an_exported_program_is_captured_as_a_whole():
    # pytorch/pytorch#151726: its eval() and train() raise NotImplementedError.
    net = make()
    program = exported(net)
    assert [layer.name for layer in list_layers(program)] == [""]
    for eval_mode in (True, False, None):
        with Capture(program, "", inputs=True, eval_mode=eval_mode) as capture:
            out = program(X)
        assert torch.equal(out, net(X))
        assert torch.equal(capture.output(""), out)
    assert program.training is False or program.training is True
    assert torch.equal(FeatureExtractor(program, "")(X)[""], out)
    assert VerboseExecution(program, live=False, depth=0)(X).shape == out.shape
    rows = extract_features(program, "", [X, X])
    assert torch.equal(rows[""][1], out[0])
    with edit(program, replace_output("", lambda t: t * 2)):
        assert torch.equal(program(X), out * 2)
    assert effect(program, X, replace_output("", lambda t: t * 2)).relative == pytest.approx(1)


@pytest.mark.parametrize("layers", ["0", "3.0", "*", "3.*", ["", "1"], re.compile("3")])
@pytest.mark.parametrize("use", [
    Capture,
    FeatureExtractor,
    select_layers,
    lambda net, layers: edit(net, replace_output(layers, lambda t: t)),
    lambda net, layers: VerboseExecution(net, layers=layers),
    lambda net, layers: extract_features(net, layers, [X]),
])  # fmt: skip
def test_layers_of_an_exported_program_are_refused_in_a_sentence(use, layers):
    program = exported(make())
    with pytest.raises(CaptureError, match="Hooks do not work on") as caught:
        use(program, layers)
    assert "'3.0'" in str(caught.value)
    assert "Use the Python model that it was made from" in str(caught.value)
    assert program(X).shape == (1, 2, 6, 6)


def test_what_is_no_layer_at_all_is_still_unknown():
    with pytest.raises(LayerError, match="no layer 'nothing'"):
        select_layers(exported(make()), "nothing")


def test_a_part_that_was_exported():
    net = nn.Sequential(nn.Identity(), exported(make()))
    net[0].training = True
    names = [layer.name for layer in list_layers(net)]
    assert names == ["", "0", "1"]
    modes = [m.training for m in net.modules()]
    with Capture(net, "*", eval_mode=True) as capture:
        net(X)
    assert not capture.missing
    assert [m.training for m in net.modules()] == modes
    with pytest.raises(CaptureError, match="Hooks do not work on"):
        select_layers(net, "1.0")


def test_an_unflattened_program_has_layers_again():
    net = make()
    again = torch.export.unflatten(torch.export.export(net, (X,)))
    with Capture(again, "*", eval_mode=True) as capture:
        again(X)
    assert not capture.missing
    torch.testing.assert_close(capture.output("1"), net[:2](X))


def test_of_a_traced_graph_the_layers_that_it_calls():
    net = make()
    graph = torch.fx.symbolic_trace(net)
    assert [layer.name for layer in list_layers(graph)] == ["", "0", "1", "2", "3.0"]
    with Capture(graph, "*", eval_mode=True) as capture:
        graph(X)
    assert not capture.missing
    torch.testing.assert_close(capture.output("3.0"), net(X))
    with pytest.raises(CaptureError, match="Hooks do not work on '3':"):
        select_layers(graph, "3")


def test_a_program_that_is_no_module_yet():
    with pytest.raises(CaptureError, match=r"ExportedProgram was given. Give its module\(\)"):
        Capture(torch.export.export(make(), (X,)), "")


def test_gradients_of_an_exported_program_are_clipped():
    program = exported(make())
    with clip_gradients(program, value=1e-3):
        program(X).sum().backward()
    assert all(p.grad.abs().max() <= 1e-3 for p in program.parameters())


def test_a_traced_graph_ends_early_too():
    net = make()
    graph = torch.fx.symbolic_trace(net)
    for layer in ("1", "3.0"):
        with Capture(graph, layer, stop_early=True, eval_mode=True) as capture:
            assert graph(X) is None
        torch.testing.assert_close(capture.output(layer), net[: int(layer[0]) + 1](X))
