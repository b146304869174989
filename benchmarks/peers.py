"""What hookviz is measured against: hooks by hand, and other libraries that capture activations.

In: a model, layers, an input. Out: something to time, once its shapes are known to be right.
Must not know: how time is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Contender:
    """Something to time."""

    name: str
    group: str  # what it is compared with: "4", "all" or "early"
    run: Callable[[], Any]
    before: Callable[[], Any] = lambda: None  # not timed
    after: Callable[[], Any] = lambda: None  # not timed
    note: str = ""


# By hand -----------------------------------------------------------------------------------------


def by_hand(model: nn.Module, layers: list[str], x: Tensor) -> dict[str, list[Tensor]]:
    kept: dict[str, list[Tensor]] = {name: [] for name in layers}
    handles = []
    try:
        for name in layers:

            def hook(module: nn.Module, args: Any, output: Tensor, name: str = name) -> None:
                kept[name].append(output.detach().clone())

            handles.append(model.get_submodule(name).register_forward_hook(hook))
        model(x)
    finally:
        for handle in handles:
            handle.remove()
    return kept


# Peers -------------------------------------------------------------------------------------------


def _fx(model: nn.Module, layers: list[str], x: Tensor) -> Contender:
    from torchvision.models.feature_extraction import create_feature_extractor

    extractor = create_feature_extractor(model, layers).eval()
    return _checked(
        "torchvision FX extractor", "4", lambda: extractor(x), lambda r: r, model, layers, x
    )


def _torchextractor(model: nn.Module, layers: list[str], x: Tensor) -> Contender:
    import copy

    import torchextractor

    # A copy, since the extractor leaves its hooks on the model for good.
    extractor = torchextractor.Extractor(copy.deepcopy(model), layers)
    return _checked("torchextractor", "4", lambda: extractor(x), lambda r: r[1], model, layers, x)


def _captum(model: nn.Module, layers: list[str], x: Tensor) -> Contender:
    from captum.attr import LayerActivation

    attribution = LayerActivation(model, [model.get_submodule(name) for name in layers])
    return _checked(
        "captum LayerActivation",
        "4",
        lambda: attribution.attribute(x),
        lambda r: dict(zip(layers, r, strict=True)),
        model,
        layers,
        x,
    )


def _nnsight(model: nn.Module, layers: list[str], x: Tensor) -> Contender:
    from nnsight import NNsight

    wrapped = NNsight(model)

    def envoy(name: str) -> Any:
        found: Any = wrapped
        for part in name.split("."):
            found = found[int(part)] if part.isdigit() else getattr(found, part)
        return found

    # nnsight compiles the block's own source, so the four layers stand there one by one.
    a, b, c, d = map(envoy, layers)

    def run() -> dict[str, Tensor]:
        with wrapped.trace(x):
            one = a.output.clone().save()
            two = b.output.clone().save()
            three = c.output.clone().save()
            four = d.output.clone().save()
        return dict(zip(layers, (one, two, three, four), strict=True))

    return _checked("nnsight", "4", run, lambda r: r, model, layers, x)


def _torchlens(model: nn.Module, layers: list[str], x: Tensor) -> Contender:
    import torchlens
    from torchlens.backends.torch.wrappers import unwrap_torch

    tiny, little = nn.Sequential(nn.ReLU()), torch.zeros(1)

    def wrap() -> None:
        # It replaces torch's functions at its first call and leaves them so, which would slow
        # everybody else: done and undone outside the time.
        torchlens.record(tiny, little, default_module=True)

    wrap()
    try:
        recording = torchlens.record(model, x, default_module=True)
        note = f"{len(recording)} records"
    finally:
        unwrap_torch()
    return Contender(
        "torchlens record(default_module=True)",
        "all",
        lambda: torchlens.record(model, x, default_module=True),
        wrap,
        unwrap_torch,
        note,
    )


PEERS: dict[str, Callable[[nn.Module, list[str], Tensor], Contender]] = {
    "torchvision": _fx,
    "torchextractor": _torchextractor,
    "captum": _captum,
    "nnsight": _nnsight,
    "torchlens": _torchlens,
}


def _checked(
    name: str,
    group: str,
    run: Callable[[], Any],
    read: Callable[[Any], dict[str, Tensor]],
    model: nn.Module,
    layers: list[str],
    x: Tensor,
) -> Contender:
    """The contender, once its shapes are right; told where its values are not the layers' own."""
    right = by_hand(model, layers, x)
    found = {
        key: value[0] if isinstance(value, tuple) else value for key, value in read(run()).items()
    }
    wrong = []
    for layer in layers:
        if found[layer].shape != right[layer][0].shape:
            raise RuntimeError(f"{layer}: {list(found[layer].shape)}")
        if not torch.allclose(found[layer], right[layer][0], rtol=1e-4, atol=1e-5):
            wrong.append(layer)
    note = f"wrong values of {', '.join(wrong)} (in-place ReLU)" if wrong else ""
    return Contender(name, group, run, note=note)
