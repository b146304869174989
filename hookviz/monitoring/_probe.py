"""The probe image's maps, and filters, as figures, while the model trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import nn

from hookviz.activation import Activation
from hookviz.export import RunFacts, base_name, draw_activation
from hookviz.images import Preprocessing, read_image
from hookviz.monitoring._over_time import KeptMaps
from hookviz.render import FigureFacts, GridOptions
from hookviz.run import facts_of, has_filters, layer_weights, loaded_model, run_model


class Drawn(NamedTuple):
    """A figure as a PNG, what it shows, and the ends of its scale."""

    layer: str
    call: int
    leaf: str
    kind: str
    png: bytes
    kept: KeptMaps
    ends: tuple[float | None, float | None]


class Probe:
    """Draws what layers do with one image.

    The image runs as in `hookviz.feature_maps`: in eval mode without gradients and autocast; train
    flags, BatchNorm statistics and generators are put back.

    Args:
        model: The model.
        image: Anything that `read_image` takes; None draws filters alone.
        layers: The layers drawn, by name.
        preprocess: In place of the preprocessing found for the model.
        options: How the figures are drawn.
    """

    def __init__(
        self,
        model: nn.Module,
        image: Any,
        layers: Mapping[str, nn.Module],
        preprocess: Preprocessing | Callable[..., Any] | None,
        options: Mapping[str, Any],
    ) -> None:
        self._picture = None if image is None else read_image(image)
        self._layers = dict(layers)
        chosen: dict[str, Any] = {"width": 700, "style": "light", **options}
        self._options = GridOptions.of(**chosen)
        self._loaded = loaded_model(model, "auto", None)
        if preprocess is not None:
            self._loaded = replace(self._loaded, preprocess=preprocess)

    @property
    def name(self) -> str:
        """Of the model."""
        return self._loaded.name

    def draw(self) -> Iterator[Drawn]:
        """Runs the probe, and draws layer by layer.

        Raises:
            HookvizError: A layer or the image cannot be drawn.
            Exception: Whatever the model's own forward raised, unchanged.
        """
        if self._picture is not None and self._layers:
            run = run_model(self._loaded, self._picture, list(self._layers))
            for activation in run.activations:
                yield self._drawn(run.facts, activation, "maps")
        facts = facts_of(self._loaded)
        for name, layer in self._layers.items():
            if _is_convolution(layer):
                yield self._drawn(facts, layer_weights(self._loaded.module, name), "filters")

    def _drawn(self, facts: RunFacts, activation: Activation, kind: str) -> Drawn:
        drawing = draw_activation(facts, activation, self._options)
        call = activation.call if kind == "maps" else 0
        of_figure = FigureFacts(
            model=facts.model,
            image=base_name(facts.image_name) if kind == "maps" else "",
            input_size=facts.input_size,
        )
        there = replace(activation, tensor=activation.tensor.detach().to("cpu", copy=True))
        return Drawn(
            activation.layer, call, activation.leaf, kind, drawing.png_bytes(6),
            KeptMaps(there, of_figure), (drawing.vmin, drawing.vmax),
        )  # fmt: skip


def _is_convolution(layer: nn.Module) -> bool:
    weight = getattr(layer, "weight", None)
    return has_filters(layer) and getattr(weight, "ndim", 0) >= 3


def chosen_to_draw(layers: Mapping[str, nn.Module], most: int = 8) -> Sequence[str]:
    """Which of many layers are drawn where nobody chose: convolutions, spread evenly."""
    names = [name for name, layer in layers.items() if _is_convolution(layer)]
    if len(names) <= most:
        return names
    return [names[round(at * (len(names) - 1) / (most - 1))] for at in range(most)]
