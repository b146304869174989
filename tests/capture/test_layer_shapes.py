"""Shapes of layers without a run."""

import pytest
import torch
from torch import nn

from hookviz.capture import Capture, layer_shapes
from hookviz.errors import CaptureError


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout()
        self.unused = nn.Linear(1, 1)

    def forward(self, x, *, twice=False):
        x = self.act(self.conv(x))
        return {"out": self.drop(self.act(x) if twice else x), "aux": (x, 1)}


def shapes(found):
    return [(a.layer, a.call, a.calls, a.leaf, a.shape, a.tensor.dtype) for a in found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_they_are_those_of_a_run(dtype):
    net, x = Net().to(dtype).train(), torch.ones(2, 3, 8, 8, dtype=dtype)
    seen = []
    net.conv.register_forward_hook(lambda *_: seen.append(1))
    found = layer_shapes(net, [x], {"twice": True})
    assert not seen
    assert net.training
    assert all(a.tensor.is_meta for a in found)
    with Capture(net, lambda *_: True, eval_mode=True) as capture:
        net(x, twice=True)
    assert shapes(found) == shapes(capture.activations)
    assert found[0].tensor.nbytes == 2 * 4 * 6 * 6 * dtype.itemsize
    assert next(net.parameters()).device.type == "cpu"


def test_a_model_that_looks_at_values_is_a_sentence():
    class Looks(nn.Module):
        def forward(self, x):
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(CaptureError, match="shapes of Looks are not known before it runs"):
        layer_shapes(Looks(), [torch.ones(2)])


def test_with_a_capture_open_and_under_other_modes():
    net, x = Net().eval(), torch.ones(1, 3, 8, 8)
    expected = shapes(layer_shapes(net, [x]))
    with Capture(net, "*") as capture, torch.inference_mode(), torch.device("meta"):
        assert shapes(layer_shapes(net, [x])) == expected
    assert capture.runs == 0
