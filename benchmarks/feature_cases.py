"""The models that `benchmarks.features` shows to each tool, and what would be right.

In: nothing but torchvision and a picture. Out: fresh models, tensors, pictures as numbers and
words. Must not know: any tool.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks.feature_probes import IMAGE, prepared

LAYER = "features.0"  # VGG16's first convolution; features.1 is an in-place ReLU


class Later(nn.Module):
    """Counts its calls, or raises, or changes what its convolution gives."""

    def __init__(self, conduct: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conduct, self.calls = conduct, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.conduct(x)


class ChangedConv(nn.Conv2d):
    change: Callable[[Tensor], Tensor] = staticmethod(lambda y: y)

    def forward(self, x: Tensor) -> Tensor:
        return self.change(super().forward(x))


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.cos(torch.sin(self.a(x))))


@functools.cache
def original(name: str) -> nn.Module:
    from torchvision.models import get_model

    torch.manual_seed(0)
    return Functional().eval() if name == "functional" else get_model(name, weights=None).eval()


def fresh(name: str = "vgg16", change: Callable[[Tensor], Tensor] | None = None) -> nn.Module:
    model = copy.deepcopy(original(name))
    if change is not None:
        conv = ChangedConv(3, 64, 3, padding=1)
        conv.load_state_dict(model.features[0].state_dict())
        conv.change = change
        model.features[0] = conv.eval()
    return model


def with_head(model: nn.Module) -> nn.Module:
    """ViT's classifier starts at 0, where no gradient is; the same numbers each time."""
    head = getattr(getattr(model, "heads", None), "head", None)
    if head is not None:
        torch.nn.init.normal_(head.weight, 0, 0.02, torch.Generator().manual_seed(0))
    return model


def x() -> Tensor:
    return prepared(IMAGE[0])


def truth() -> Tensor:
    with torch.no_grad():
        return original("vgg16").features[0](x())


def same(found: Any, wanted: Tensor) -> bool:
    """Equal; for maps of 0 to 255, equal once the wanted ones are scaled as those are."""
    if not isinstance(found, Tensor) or found.shape != wanted.shape:
        return False
    if found.dtype == torch.uint8:
        low, high = wanted.amin((-2, -1), keepdim=True), wanted.amax((-2, -1), keepdim=True)
        scaled = ((wanted - low) / (high - low) * 255).nan_to_num(0)
        return bool(((scaled.floor() - found.float()).abs() <= 1).float().mean() > 0.999)
    return torch.allclose(found.detach(), wanted, rtol=1e-4, atol=1e-6)


def zeroed() -> tuple[Tensor, Tensor]:
    model = fresh(change=torch.zeros_like)
    with torch.no_grad():
        return model(x()), original("vgg16")(x())


def left(model: nn.Module) -> tuple[int, frozenset[str]]:
    """Hooks on all modules, and the names of everything that hangs on them."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = sum(len(getattr(m, kind)) for m in model.modules() for kind in kinds)
    return hooks, frozenset(f"{n}:{key}" for n, m in model.named_modules() for key in vars(m))


def pixels(picture: Any) -> np.ndarray:
    if isinstance(picture, Image.Image):
        return np.asarray(picture.convert("RGB")).astype(int)
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(picture)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].astype(int)


def words(picture: Any) -> list[str]:
    from matplotlib.text import Text

    if isinstance(picture, Image.Image):
        return []
    pixels(picture)
    return [t.get_text() for t in picture.findobj(Text) if t.get_text()]


def flipped(channel: int) -> Callable[[Tensor], Tensor]:
    return lambda y: torch.cat([y[:, :channel], y[:, channel : channel + 1].flip(-1),
                                y[:, channel + 1 :]], 1)  # fmt: skip
