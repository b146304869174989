"""What an explanation found, and how it becomes figures and files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from torch import Tensor

from hookviz._text import names_text
from hookviz.activation import CallChoice, choose, no_such_layer
from hookviz.errors import HookvizError, LayerError
from hookviz.images import NetworkInput, Picture
from hookviz.models import LoadedModel, Predictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hookviz.explanation._methods import Method
    from hookviz.export import ExportChoices, ExportResult, RunFacts
    from hookviz.render import Attribution, Drawing, DrawingOptions, GridOptions


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why a model gives what it gives to one image: how much each place counts for a target.

    Attributes:
        model: The model that ran.
        image: The image as it was read: RGB, upright.
        input: What the network received: tensor (1, 3, H, W), and how to show it.
        method: The method: its name, title, paper and whether it is drawn with its sign.
        targets: The targets in words, for example "class 281 (tabby)"; () where the method has
            none.
        scores: The score of each target for this image.
        activations: One record for each layer in order of execution, or one for the network's
            input. ``tensor`` is (T, C, H, W): T targets; C is 1 for a layer, the color channels
            for the input; as computed, with its sign, on the model's device.
        missing: For each asked layer without a record, the reason as one sentence.
        predictions: The five likeliest classes, or why there are none.
        started: When it began (UTC).
        seconds: How long it took.
        details: What else the method found, by name, one entry for each target: "completeness",
            "baseline" (1, C, H, W), "relus" (how many) and "sigma", each of its methods alone.
    """

    model: LoadedModel
    image: Picture
    input: NetworkInput
    method: Method
    targets: tuple[str, ...]
    scores: tuple[float, ...]
    activations: tuple[Attribution, ...]
    missing: Mapping[str, str]
    predictions: Predictions
    started: datetime
    seconds: float
    details: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        of = f" of {'; '.join(self.targets)}" if self.targets else ""
        where = names_text(self.layers) if self.layers != ("",) else "the input"
        return f"<{self.method.title}{of} for {where}, {self.model.name} over {self.image.name}>"

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the explained layers in order of execution; ("",) for the network's input."""
        return tuple(dict.fromkeys(a.layer for a in self.activations))

    def select(self, layer: str | None = None, call: CallChoice = None) -> Attribution:
        """The record of a layer.

        Args:
            layer: The layer's name; None for the only one, or the input.
            call: Which call, from 1, or "last"; may be left out where there is only one.

        Returns:
            The record itself, not a copy.

        Raises:
            LayerError: The layer was not explained, or there are several to choose from.
        """
        if layer is None:
            if len(self.layers) == 1:
                layer = self.layers[0]
            else:
                raise LayerError(
                    f"{len(self.layers)} layers were explained; name one of "
                    f"{names_text(self.layers, 8)}."
                )
        found = [a for a in self.activations if a.layer == layer]
        if not found:
            if layer in self.missing:
                raise LayerError(f"Layer '{layer}' was not explained: {self.missing[layer]}.")
            raise no_such_layer(layer, self.layers, "explained")
        chosen = choose(found, layer, "attribution", call=call, leaf=None)[0]
        return next(a for a in found if a is chosen)

    def map(
        self,
        layer: str | None = None,
        target: int = 0,
        *,
        signed: bool | None = None,
        normalized: bool = False,
    ) -> Tensor:
        """One map as numbers.

        Args:
            layer: The layer's name; None for the only one, or the input.
            target: Which of the targets, from 0.
            signed: True: with its sign; False: cut at zero (ReLU); None: as the method's paper.
            normalized: Divide by the range, after subtracting the minimum; 0 everywhere where the
                range is 0.

        Returns:
            (H, W) at the layer's own resolution (of the input: the sum over its color channels), a
            new tensor.

        Raises:
            LayerError: The layer was not explained.
            HookvizError: There is no such target.
        """
        record = self.select(layer)
        count = record.tensor.shape[0]
        if not isinstance(target, int) or not 0 <= target < count:
            raise HookvizError(f"target is {target!r}; this explanation has {count}, from 0.")
        found = record.tensor[target].sum(0)
        if not (record.signed if signed is None else signed):
            found = found.clamp(min=0)
        if normalized:
            low, high = found.min(), found.max()
            found = (found - low) / (high - low) if bool(high > low) else found * 0
        return found

    def options(self, **options: Unpack[DrawingOptions]) -> GridOptions:
        """How its figures are drawn: laid over the input, on the whole range, unless told else."""
        from hookviz.render import GridOptions

        chosen = self.method.drawing.copy()
        chosen.update(options)
        return GridOptions.of(**chosen)

    def drawing(
        self,
        layer: str | None = None,
        call: CallChoice = None,
        *,
        options: GridOptions | None = None,
    ) -> Drawing:
        """A layer's maps over the input, with what the figure says about itself.

        Args:
            layer: The layer's name; None for the only one, or the input.
            call: Which call.
            options: How to draw; those of `options` where None.

        Returns:
            A drawing whose ``figure`` is new.

        Raises:
            LayerError: See `select`.
            RenderError: It cannot be drawn in that way.
        """
        from hookviz.export import draw_activation

        record = self.select(layer, call)
        return draw_activation(self.facts, record, options or self.options())

    def figure(
        self,
        layer: str | None = None,
        call: CallChoice = None,
        **options: Unpack[DrawingOptions],
    ) -> Figure:
        """A layer's maps over the input, one for each target, as a matplotlib figure.

        Args:
            layer: The layer's name; None for the only one, or the input.
            call: Which call.
            **options: Fields of `hookviz.render.GridOptions`: ``signed``, ``overlay`` (False: the
                map alone; 0 to 1: its opacity), ``cmap``, ``scale`` …

        Returns:
            A new figure that is not registered with pyplot.

        Raises:
            LayerError: See `select`.
            RenderError: It cannot be drawn in that way, or an option is unknown.
        """
        return self.drawing(layer, call, options=self.options(**options)).figure

    @property
    def facts(self) -> RunFacts:
        """What files say about this explanation beside its records: plain values, no model."""
        from hookviz.export import RunFacts

        return RunFacts.of_run(
            model=self.model,
            image=self.image,
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
        """Writes the figures, the network's input and a manifest into a new folder.

        Args:
            folder: Where the new folder is made; created where missing.
            name: The new folder's name; time, model and image where None.
            what: One or more of "grids", "svg", "pdf", "channels", "values", "contact", "input"
                and "page", see `hookviz.export.write_export`.
            **choices: See `hookviz.export.write_export`: ``layers``, ``options``, ``progress`` …

        Returns:
            The folder, the files and the manifest's path. `hookviz.reproduce` draws a PNG of it
            again, and says whether it is the same.

        Raises:
            ExportError: Nothing can be written there, or the folder exists already.
        """
        from hookviz.export import write_export

        if choices.get("options") is None:
            choices["options"] = self.options()
        return write_export(self.facts, self.activations, folder, name=name, what=what, **choices)
