"""Filters of a model: the weights of a layer as a record that is drawn and exported like any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from hookviz._axes import KnownAxes
from hookviz._text import names_text
from hookviz.activation import Activation
from hookviz.errors import LayerError
from hookviz.images import Preprocessing
from hookviz.models import LoadedModel, load_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hookviz.export import RunFacts
    from hookviz.render import DrawingOptions


def filters(
    model: LoadedModel | str | nn.Module,
    layer: str,
    *,
    weights: Any = "auto",
    device: str | torch.device | None = None,
    **options: Unpack[DrawingOptions],
) -> Figure:
    """Draws the filters of a layer: what a convolution multiplies its input with.

    Each filter is a tile: in color where the layer sees three channels, on a scale whose middle
    gray is zero; else its kernel for one input channel. Layers without kernels (linear ones and
    1×1 convolutions) are strips, one for each output. Depthwise, grouped, transposed and
    parametrized layers (``weight_norm``, ``spectral_norm``) show the weights that their forward
    uses.

    Args:
        model: What `load_model` gave, a name that it knows, or any ``nn.Module``.
        layer: Dotted ``named_modules()`` path of a convolution or a linear layer.
        weights: Which weights where ``model`` is a name, see `load_model`.
        device: Where the weights are read; None leaves a given model where it is.
        **options: Fields of `hookviz.render.GridOptions`. ``input_channel`` chooses the input
            channel whose kernels are drawn; ``output_channel`` draws all kernels of one output
            channel, those of the largest norm first; ``order``, ``page``, ``scale``, ``cmap`` …
            are as for activations.

    Returns:
        A new figure that is not registered with pyplot.

    Raises:
        LayerError: There is no such layer, or it has no filters.
        RenderError: An option is unknown or does not fit the layer.
        ModelError: The model cannot be loaded.

    Examples:
        >>> import hookviz
        >>> model = hookviz.load_model("vgg16", weights="bundled")
        >>> figure = hookviz.filters(model, "features.0", width=600)
        >>> figure.canvas.get_width_height()[0]
        600
    """
    from hookviz.export import draw_activation
    from hookviz.render import GridOptions

    loaded = loaded_model(model, weights, device)
    record = layer_weights(loaded.module, layer)
    return draw_activation(facts_of(loaded), record, GridOptions.of(**options)).figure


def loaded_model(
    model: LoadedModel | str | nn.Module,
    weights: Any,
    device: str | torch.device | None,
    preprocess: Preprocessing | Callable[..., Any] | None = None,
) -> LoadedModel:
    """The model as `load_model` gives it, on that device, perhaps with another preprocessing."""
    if isinstance(model, LoadedModel):
        loaded = model if device is None else model.to(device)
    elif isinstance(model, nn.Module):
        loaded = load_model(model) if device is None else load_model(model, device=device)
    else:
        loaded = load_model(model, weights=weights, device=device or "auto")
    return loaded if preprocess is None else replace(loaded, preprocess=preprocess)


def facts_of(model: LoadedModel) -> RunFacts:
    """What files say of figures that no image is needed for."""
    from hookviz.export import RunFacts

    return RunFacts.of_run(model=model, image=None, network_input=None, started=datetime.now(UTC))


def has_filters(module: nn.Module) -> bool:
    """Whether a layer has weights that are drawn as filters."""
    if isinstance(module, _ConvNd | nn.Linear):
        return True
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) or parametrize.is_parametrized(module):
        return False
    weight = getattr(module, "weight", None)
    dims = weight.dim() if isinstance(weight, Tensor) else 0
    return 3 <= dims <= 5 or (dims == 2 and hasattr(module, "in_features"))


def layer_weights(module: nn.Module, layer: str) -> Activation:
    """The weights of a layer as a record.

    Args:
        module: The model.
        layer: Dotted path of one of its layers.

    Returns:
        A record of kind "weight" whose tensor is a copy of the weights as the forward uses them,
        (outputs, inputs of a group, *kernel): transposed convolutions are turned to that order.
        ``axes.groups`` says how many groups there are.

    Raises:
        LayerError: There is no such layer, or it has no filters.
    """
    parts = dict(module.named_modules())
    part = parts.get(layer)
    if part is None or not has_filters(part):
        what = f"Layer {layer!r} ({type(part).__name__}) has no filters"
        if part is None:
            what = f"There is no layer {layer!r}"
        there = [name for name, other in parts.items() if has_filters(other)]
        inside = [name for name in there if name.startswith(f"{layer}.")] or there
        raise LayerError(
            f"{what}; layers with filters: {names_text(inside) or 'none'}.",
            code="no-filters",
            details={"layer": layer, "layers": inside},
        )
    groups = int(getattr(part, "groups", 1))
    with torch.no_grad():
        weight = _used_weight(part)
        if isinstance(part, _ConvTransposeNd):
            kernel = weight.shape[2:]
            weight = weight.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2)
            weight = weight.reshape(-1, weight.shape[2], *kernel)
        weight = weight.detach().clone()
    kind = type(part).__name__.removeprefix("Parametrized")
    return Activation(layer, 1, 1, 1, 0, "weight", "", kind, weight, KnownAxes(groups=groups))


def _used_weight(part: nn.Module) -> Tensor:
    """The weight that a forward would use now, without changing anything in the layer."""
    for hook in part._forward_pre_hooks.values():  # noqa: SLF001  # torch offers no other way
        if isinstance(hook, WeightNorm) and hook.name == "weight":
            weight: Tensor = hook.compute_weight(part)
            return weight
        if isinstance(hook, SpectralNorm) and hook.name == "weight":
            return hook.compute_weight(part, do_power_iteration=False)
    if not parametrize.is_parametrized(part, "weight"):
        return part.weight  # type: ignore[return-value]
    # In training mode, spectral_norm would take a step of its iteration at each look.
    steps = [step for step in part.parametrizations["weight"].modules() if step.training]  # type: ignore[index,union-attr]
    try:
        for step in steps:
            step.training = False
        return part.weight  # type: ignore[return-value]
    finally:
        for step in steps:
            step.training = True
