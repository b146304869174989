"""What one forward answered, and how it becomes figures and files.

In: a model, a picture, the activations of one forward. Out: a frozen Run with its figures and
exports. Must not know: how the forward was run, the widget, the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, get_args

from hookviz._text import names_text
from hookviz.activation import Activation, Kind
from hookviz.errors import LayerError, did_you_mean
from hookviz.images import NetworkInput, Picture
from hookviz.models import LoadedModel, Predictions

if TYPE_CHECKING:
    # Only drawing needs these; a run without a picture does not load matplotlib.
    from matplotlib.figure import Figure

    from hookviz.export import ExportChoices, ExportResult, RunFacts
    from hookviz.render import Drawing, GridOptions

__all__ = ["Run"]


@dataclass(frozen=True, eq=False)
class Run:
    """What one forward of a model answered to one image.

    Attributes:
        model: The model that ran.
        image: The picture as it was read: RGB, upright.
        input: What the network received: tensor (1, 3, H, W), and the picture of it.
        activations: Every captured tensor, in order of execution.
        missing: For each asked layer without an activation, the reason as one sentence.
        output: What the model returned, detached; None where the forward ended early.
        predictions: The five likeliest classes, or why there are none.
        started: When the forward began (UTC).
        seconds: How long the forward took, hooks included.
        error: What ended the forward before its end, or None.
    """

    model: LoadedModel
    image: Picture
    input: NetworkInput
    activations: tuple[Activation, ...]
    missing: Mapping[str, str]
    output: Any
    predictions: Predictions
    started: datetime
    seconds: float
    error: BaseException | None = field(default=None)

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that answered, each once, in order of their first call."""
        return tuple(dict.fromkeys(a.layer for a in self.activations))

    def select(
        self, layer: str, call: int | None = None, leaf: str | None = None, kind: str = "output"
    ) -> Activation:
        """One activation of a layer.

        Args:
            layer: The layer's name.
            call: Which call, from 1; may be left out where there was only one.
            leaf: Which tensor of a nested output; may be left out where there is only one.
            kind: "output", "input", "output_gradient" or "input_gradient".

        Returns:
            The activation itself, not a copy.

        Raises:
            LayerError: The layer was not captured, or there are several to choose from.
        """
        if not isinstance(layer, str):
            raise LayerError(f"A layer of a run is named by a str, not by {layer!r:.80}.")
        if kind not in get_args(Kind):
            raise LayerError(f"kind is {kind!r}; legal are {names_text(get_args(Kind))}.")
        of_layer = [a for a in self.activations if a.layer == layer and a.kind == kind]
        if not of_layer:
            if layer in self.missing:
                raise LayerError(f"Layer '{layer}' has no {kind}: {self.missing[layer]}.")
            if layer in self.layers:
                there = names_text(
                    dict.fromkeys(a.kind for a in self.activations if a.layer == layer)
                )
                raise LayerError(f"Layer '{layer}' has no {kind} in this run; it has {there}.")
            known = names_text(self.layers, 8) or "none"
            raise LayerError(
                f"Layer '{layer}' was not captured in this run; captured: {known}.",
                remedy=did_you_mean(layer, self.layers) or None,
            )
        found = [
            a
            for a in of_layer
            if (call is None or a.call == call) and (leaf is None or a.leaf == leaf)
        ]
        if len(found) == 1:
            return found[0]
        choices = "; ".join(f"call {a.call}, leaf '{a.leaf}' {list(a.shape)}" for a in of_layer)
        asked = ", ".join(
            [f"call {call}"] * (call is not None) + [f"leaf '{leaf}'"] * (leaf is not None)
        )
        what = f"no {kind} for {asked}" if not found else f"{len(found)} {kind}s"
        raise LayerError(f"Layer '{layer}' has {what}; choose one of: {choices}.")

    def drawing(
        self,
        layer: str,
        call: int | None = None,
        *,
        leaf: str | None = None,
        kind: str = "output",
        options: GridOptions | None = None,
    ) -> Drawing:
        """A layer drawn as a grid, with what the picture says about itself.

        Args:
            layer: The layer's name.
            call: Which call, from 1; may be left out where there was only one.
            leaf: Which tensor of a nested output.
            kind: "output", "input", "output_gradient" or "input_gradient".
            options: How to draw; the defaults where None.

        Returns:
            A drawing whose ``figure`` is new.

        Raises:
            LayerError: See `select`.
            RenderError: The activation cannot be drawn in that way.
        """
        from hookviz.export import draw_activation
        from hookviz.render import GridOptions

        activation = self.select(layer, call, leaf, kind)
        return draw_activation(self.facts, activation, options or GridOptions())

    def figure(
        self,
        layer: str,
        call: int | None = None,
        *,
        leaf: str | None = None,
        kind: str = "output",
        **options: Any,
    ) -> Figure:
        """A layer as a matplotlib figure.

        Args:
            layer: The layer's name.
            call: Which call, from 1; may be left out where there was only one.
            leaf: Which tensor of a nested output.
            kind: "output", "input", "output_gradient" or "input_gradient".
            **options: Fields of `hookviz.render.GridOptions`: ``page``, ``cmap``, ``scale`` …

        Returns:
            A new figure that is not registered with pyplot.

        Raises:
            LayerError: See `select`.
            RenderError: The activation cannot be drawn in that way, or an option is unknown.
        """
        from hookviz.render import GridOptions

        return self.drawing(
            layer, call, leaf=leaf, kind=kind, options=GridOptions.of(**options)
        ).figure

    @property
    def facts(self) -> RunFacts:
        """What files say about this run: plain values, no model."""
        from hookviz.export import RunFacts

        return RunFacts.of_run(
            model=self.model,
            picture=self.image,
            network_input=self.input,
            started=self.started,
            missing=self.missing,
        )

    def export(
        self,
        folder: str | Path = "hookviz_exports",
        *,
        name: str | None = None,
        what: str | Iterable[str] = ("grids", "input"),
        **choices: Unpack[ExportChoices],
    ) -> ExportResult:
        """Writes grids, the network's input and a manifest into a new folder.

        Args:
            folder: Where the new folder is made; created where missing.
            name: The new folder's name; time, model and image where None.
            what: One or more of "grids", "channels", "values", "contact" and "input".
            **choices: See `hookviz.export.write_export`: ``layers``, ``channels``, ``options``,
                ``overwrite``, ``progress``, ``cancelled`` …

        Returns:
            The folder, the files and the manifest's path.

        Raises:
            ExportError: Nothing can be written there, or the folder exists already.
        """
        from hookviz.export import write_export

        return write_export(self.facts, self.activations, folder, name=name, what=what, **choices)
