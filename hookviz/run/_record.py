"""What one forward answered, and how it becomes figures and files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, get_args

from hookviz._text import names_text
from hookviz.activation import Activation, CallChoice, Kind, choose, no_such_layer
from hookviz.capture import Edit
from hookviz.errors import LayerError
from hookviz.images import NetworkInput, Picture
from hookviz.models import LoadedModel, Predictions
from hookviz.run._channel import ChannelSummary, InputChannels, channel_summary, input_channels
from hookviz.run._edits import edits_to_json
from hookviz.run._filters import has_filters, layer_weights
from hookviz.run._point import ChannelVector, Pointed, ReceptiveField, RegionChannels, ValuesAround
from hookviz.run._torch_state import torch_as_it_starts, undisturbed

if TYPE_CHECKING:
    # Only drawing needs these; a run that is not drawn does not load matplotlib.
    from matplotlib.figure import Figure
    from torch import Tensor

    from hookviz.export import ExportChoices, ExportResult, RunFacts
    from hookviz.render import Drawing, DrawingOptions, GridOptions

    class RecordOptions(DrawingOptions, total=False):
        """Which of a layer's records is meant, and how its axes are read."""

        leaf: str | int | None
        kind: str


@dataclass(frozen=True, eq=False)
class Run:
    """What one forward of a model answered to one image.

    Attributes:
        model: The model that ran.
        image: The image as it was read: RGB, upright.
        input: What the network received: tensor (1, 3, H, W), and how to show it.
        activations: Every captured tensor, in order of execution.
        missing: For each asked layer without an activation, the reason as one sentence.
        output: What the model returned, detached; None where the forward ended early.
        predictions: The five likeliest classes, or why there are none.
        started: When the forward began (UTC).
        seconds: How long the forward took, hooks included.
        error: What ended the forward before its end, or None.
        edits: What was changed while the model ran, in order, with the layers named.
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
    error: BaseException | None = None
    edits: tuple[Edit, ...] = ()

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that answered, each once, in order of their first call."""
        return tuple(dict.fromkeys(a.layer for a in self.activations))

    def select(
        self,
        layer: str,
        call: CallChoice = None,
        leaf: str | int | None = None,
        kind: str = "output",
    ) -> Activation:
        """One activation of a layer.

        Args:
            layer: The layer's name.
            call: Which call, from 1, or "last"; may be left out where there was only one.
            leaf: Which tensor of a nested output, by its path or position; may be left out where
                there is only one.
            kind: "output", "input", "attention", "output_gradient", "input_gradient", or "weight"
                for the layer's filters.

        Returns:
            The activation itself, not a copy; weights are copied.

        Raises:
            LayerError: The layer was not captured, or there are several to choose from.
        """
        if not isinstance(layer, str):
            raise LayerError(f"A layer of a run is named by a str, not by {layer!r:.80}.")
        if kind not in get_args(Kind):
            raise LayerError(f"kind is {kind!r}; legal are {names_text(get_args(Kind))}.")
        if kind == "weight":
            return layer_weights(self.model.module, layer)
        of_layer = [a for a in self.activations if a.layer == layer and a.kind == kind]
        if not of_layer:
            if layer in self.missing:
                raise LayerError(f"Layer '{layer}' has no {kind}: {self.missing[layer]}.")
            if layer in self.layers:
                there = names_text(
                    dict.fromkeys(a.kind for a in self.activations if a.layer == layer)
                )
                raise LayerError(f"Layer '{layer}' has no {kind} in this run; it has {there}.")
            raise no_such_layer(layer, self.layers, "captured")
        return choose(of_layer, layer, kind.replace("_", " "), call=call, leaf=leaf)[0]

    def drawing(
        self,
        layer: str,
        call: CallChoice = None,
        *,
        leaf: str | int | None = None,
        kind: str = "output",
        options: GridOptions | None = None,
    ) -> Drawing:
        """A layer drawn as a grid, with what the figure says about itself.

        Args:
            layer: The layer's name.
            call: Which call, from 1, or "last"; may be left out where there was only one.
            leaf: Which tensor of a nested output, by its path or position.
            kind: "output", "input", "attention", "output_gradient", "input_gradient", or "weight"
                for the layer's filters.
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
        call: CallChoice = None,
        *,
        leaf: str | int | None = None,
        kind: str = "output",
        **options: Unpack[DrawingOptions],
    ) -> Figure:
        """A layer as a matplotlib figure.

        Args:
            layer: The layer's name.
            call: Which call, from 1, or "last"; may be left out where there was only one.
            leaf: Which tensor of a nested output, by its path or position.
            kind: "output", "input", "attention", "output_gradient", "input_gradient", or "weight"
                for the layer's filters.
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

    def value(
        self,
        layer: str,
        channel: int,
        y: int,
        x: int,
        call: CallChoice = None,
        **options: Unpack[RecordOptions],
    ) -> Any:
        """One value of a layer, exactly as the captured tensor holds it.

        Args:
            layer: The layer's name.
            channel: Number of the channel (map, feature, value, head), from 0.
            y: Row of the place in the maps that `figure` draws, from 0 at the top; 0 for a vector.
            x: Column, from 0 at the left; 0 for a vector.
            call: Which call, from 1, or "last"; may be left out where there was only one.
            **options: ``leaf`` and ``kind`` as in `select`; ``sample``, ``frame``, ``axes`` and
                ``grid`` as in `figure`.

        Returns:
            A Python number (int, float, complex or bool) in the activation's own units.

        Raises:
            LayerError: See `select`; or there is no such channel or place.
            RenderError: The activation cannot be drawn in that way.

        Examples:
            >>> import hookviz
            >>> model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
            >>> run = hookviz.feature_maps(model, hookviz.sample_image(), ["features.2"])
            >>> value = run.value("features.2", channel=7, y=100, x=50)
            >>> value == run.activations[0].tensor[0, 7, 100, 50].item()
            True
        """
        with self._pointed(layer, call, options) as at:
            return at.value(channel, y, x)

    def vector(
        self, layer: str, y: int, x: int, call: CallChoice = None, **options: Unpack[RecordOptions]
    ) -> ChannelVector:
        """The values of all channels at one place, with their order.

        Args:
            layer: The layer's name.
            y: Row of the place, see `value`.
            x: Column of the place.
            call: Which call, from 1, or "last"; may be left out where there was only one.
            **options: ``leaf`` and ``kind`` as in `select`; ``sample``, ``frame``, ``axes`` and
                ``grid`` as in `figure`.

        Returns:
            ``.values`` (C,) in the tensor's dtype, ``.order``, ``.rank(channel)``, ``.top(10)``.

        Raises:
            LayerError: See `value`.
            RenderError: The activation cannot be drawn in that way.
        """
        with self._pointed(layer, call, options) as at:
            return at.vector(y, x)

    def channel(
        self, layer: str, channel: int, call: CallChoice = None, **options: Unpack[RecordOptions]
    ) -> ChannelSummary:
        """One channel of a layer: its map, its numbers, its ranks, its strongest places.

        Args:
            layer: The layer's name.
            channel: Number of the channel (map, feature, value, head), from 0.
            call: Which call, from 1, or "last"; may be left out where there was only one.
            **options: ``leaf`` and ``kind`` as in `select`; ``sample``, ``frame``, ``axes`` and
                ``grid`` as in `figure`.

        Returns:
            ``.map`` (H, W), a copy in the tensor's dtype and on its device; ``.low``, ``.high``,
            ``.mean``, ``.std``, ``.zeros``; ``.ranks``; ``.histogram()``; ``.strongest()``.

        Raises:
            LayerError: See `select`; or there is no such channel.
            RenderError: The activation cannot be drawn in that way.

        Examples:
            >>> import hookviz
            >>> model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
            >>> run = hookviz.feature_maps(model, hookviz.sample_image(), ["features.28"])
            >>> channel = run.channel("features.28", 7)
            >>> channel.map.shape, channel.channels, channel.high == channel.map.max().item()
            (torch.Size([14, 14]), 512, True)
        """
        with self._pointed(layer, call, options) as at:
            return channel_summary(at, channel)

    def input_channels(self, layer: str, channel: int, call: int = 1) -> InputChannels:
        """The input channels that one output channel of a layer reads, by its weights.

        Of a grouped convolution these are the channels of its group, of a depthwise one the single
        channel that it reads.

        Args:
            layer: Name of a convolution or a linear layer.
            channel: Number of the output channel, from 0.
            call: Which call, from 1: another one may read another layer.

        Returns:
            ``.channels`` with ``.norms`` and ``.sums`` of the weights, ``.order``, ``.top(10)``;
            ``.sources``, the layers whose channels these are. Asking for a model's first layer
            follows one forward by shapes alone, which takes tens of milliseconds.

        Raises:
            LayerError: There is no such layer or channel, or the layer has no filters.
        """
        with undisturbed(self.model.device):
            return input_channels(self, layer, channel, call)

    def values_around(
        self,
        layer: str,
        channel: int,
        y: int,
        x: int,
        call: CallChoice = None,
        *,
        most: int = 131_072,
        **options: Unpack[RecordOptions],
    ) -> ValuesAround:
        """The values of one channel around a place, with the rank that each has at its place.

        Args:
            layer: The layer's name.
            channel: The channel.
            y: Row of the place, see `value`.
            x: Column of the place.
            call: Which call, from 1, or "last"; may be left out where there was only one.
            most: How many values are read, those of the other channels included: the square of
                places around the place has ``most // channels`` of them at most, and at least one.
            **options: ``leaf`` and ``kind`` as in `select`; ``sample``, ``frame``, ``axes`` and
                ``grid`` as in `figure`.

        Returns:
            ``.values`` and ``.ranks``, (h, w), of the places from row ``.top`` and column
            ``.left`` on.

        Raises:
            LayerError: See `value`.
            RenderError: The activation cannot be drawn in that way.

        Examples:
            >>> import hookviz
            >>> model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
            >>> run = hookviz.feature_maps(model, hookviz.sample_image(), ["features.28"])
            >>> around = run.values_around("features.28", 7, y=0, x=13, most=512 * 9)
            >>> (around.top, around.left), tuple(around.values.shape)
            ((0, 11), (3, 3))
            >>> around.values[0, 2].item() == run.value("features.28", 7, y=0, x=13)
            True
        """
        with self._pointed(layer, call, options) as at:
            return at.values_around(channel, y, x, most)

    def receptive_field(
        self,
        layer: str,
        y: int,
        x: int,
        call: CallChoice = None,
        *,
        channel: int | None = None,
        **options: Unpack[RecordOptions],
    ) -> ReceptiveField:
        """The pixels of the network's input and of the photo that a place of a layer depends on.

        The field is that of the model as it is built, whatever its weights and the image are: it
        is found from the operations of a forward, for any module. Where attention, a global mean
        or a normalisation over all places comes before, it is the whole image, and ``note`` names
        the layer that does it. The model itself does not run, and is not touched.

        Args:
            layer: The layer's name.
            y: Row of the place, see `value`.
            x: Column of the place.
            call: Which call, from 1, or "last"; may be left out where there was only one.
            channel: One channel; None: all together, which matters only where channels were joined
                that come by different ways.
            **options: ``leaf`` and ``kind`` ("output" or "input") as in `select`; ``sample``,
                ``frame``, ``axes`` and ``grid`` as in `figure`.

        Returns:
            The boxes. Asking for a layer the first time takes up to a second or two, each further
            place milliseconds.

        Raises:
            LayerError: See `value`.
            RenderError: The activation cannot be drawn in that way.
            HookvizError: The model's forward cannot be followed; the sentence says why.

        Examples:
            >>> import hookviz
            >>> model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
            >>> run = hookviz.feature_maps(model, hookviz.sample_image(), ["features.28"])
            >>> field = run.receptive_field("features.28", y=0, x=7)
            >>> field.size, field.box, field.beyond
            ((196, 196), (22, -90, 218, 106), (0, 90, 0, 0))
        """
        with self._pointed(layer, call, options) as at:
            return at.receptive_field(y, x, channel)

    def receptive_boxes(
        self, layer: str, call: CallChoice = None, **options: Unpack[RecordOptions]
    ) -> Tensor:
        """The receptive fields of all places of a layer at once.

        Args:
            layer: The layer's name.
            call: Which call, from 1, or "last"; may be left out where there was only one.
            **options: ``leaf`` and ``kind`` ("output" or "input") as in `select`; ``sample``,
                ``frame``, ``axes`` and ``grid`` as in `figure`.

        Returns:
            (H, W, 4) float64 on the CPU: left, top, right, bottom in pixels of the network's
            input, as ``receptive_field(…).box``, all channels together; the input's own box where
            a place sees all of it, NaN where it depends on no pixel.

        Raises:
            LayerError: See `value`.
            RenderError: The activation cannot be drawn in that way.
            HookvizError: The model's forward cannot be followed; the sentence says why.
        """
        with self._pointed(layer, call, options) as at:
            return at.receptive_boxes()

    def channels_in(
        self,
        layer: str,
        region: Sequence[float],
        call: CallChoice = None,
        *,
        of: str = "image",
        **options: Unpack[RecordOptions],
    ) -> RegionChannels:
        """The channels of a layer by how much more they answer in a region than elsewhere.

        Args:
            layer: The layer's name.
            region: Left, top, right, bottom in pixels, right and bottom past the last one.
            call: Which call, from 1, or "last"; may be left out where there was only one.
            of: What the pixels are those of: "image", the (upright) photo, or "input", the
                network's input.
            **options: ``leaf`` and ``kind`` as in `select`; ``sample``, ``frame``, ``axes`` and
                ``grid`` as in `figure`.

        Returns:
            ``.order``, and per channel the means ``.inside`` and ``.outside`` of the finite values
            and their ``.difference``.

        Raises:
            LayerError: See `select`; or the region is none.
            RenderError: The activation cannot be drawn in that way.
            HookvizError: Where the input lies in the photo is not known.
        """
        with self._pointed(layer, call, options) as at:
            return at.channels_in(region, of)

    def place_at(
        self,
        layer: str,
        x: int,
        y: int,
        call: CallChoice = None,
        *,
        of: str = "image",
        **options: Unpack[RecordOptions],
    ) -> tuple[int, int]:
        """The place of a layer that lies nearest to a pixel.

        A place lies in the middle of its receptive field; where that is the whole image, places lie
        evenly over the network's input.

        Args:
            layer: The layer's name.
            x: Column of the pixel.
            y: Row of the pixel.
            call: Which call, from 1, or "last"; may be left out where there was only one.
            of: What the pixel is one of: "image", the (upright) photo, or "input", the network's
                input.
            **options: ``leaf`` and ``kind`` as in `select`; ``sample``, ``frame``, ``axes`` and
                ``grid`` as in `figure`.

        Returns:
            (y, x), row and column of the place.

        Raises:
            LayerError: See `select`.
            RenderError: The activation cannot be drawn in that way.
            HookvizError: Where the input lies in the photo is not known.
        """
        with self._pointed(layer, call, options) as at:
            return at.place_at(x, y, of)

    def centers(
        self, layer: str, call: CallChoice = None, **options: Unpack[RecordOptions]
    ) -> tuple[Tensor, Tensor]:
        """Where the rows and columns of a layer's maps lie in the network's input.

        `place_at` takes the place whose center is nearest to the middle of the pixel.

        Args:
            layer: The layer's name.
            call: Which call, from 1, or "last"; may be left out where there was only one.
            **options: ``leaf`` and ``kind`` as in `select`; ``sample``, ``frame``, ``axes`` and
                ``grid`` as in `figure`.

        Returns:
            (H,) and (W,) float64, the centers of the rows and of the columns in pixels of the
            input, from 0 at its top and left edge: those of the receptive fields, or evenly over
            the input where a field is the whole image.

        Raises:
            LayerError: See `select`.
            RenderError: The activation cannot be drawn in that way.

        Examples:
            >>> import hookviz
            >>> model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
            >>> run = hookviz.feature_maps(model, hookviz.sample_image(), ["features.28"])
            >>> rows, columns = run.centers("features.28")
            >>> rows[:3].tolist()
            [8.0, 24.0, 40.0]
        """
        with self._pointed(layer, call, options) as at:
            return at.centers()

    @contextmanager
    def _pointed(self, layer: str, call: CallChoice, options: Any) -> Iterator[Pointed]:
        from hookviz.render import GridOptions

        leaf, kind = options.pop("leaf", None), options.pop("kind", "output")
        with torch_as_it_starts(self.model.device):
            record = self.select(layer, call, leaf, kind)
            yield Pointed(self, record, GridOptions.of(**options))

    @property
    def facts(self) -> RunFacts:
        """What files say about this run: plain values, no model."""
        from hookviz.export import RunFacts

        return RunFacts.of_run(
            model=self.model,
            image=self.image,
            network_input=self.input,
            started=self.started,
            missing=self.missing,
            edits="; ".join(map(str, self.edits)),
            edits_record=edits_to_json(self.edits),
        )

    def export(
        self,
        folder: str | Path = "hookviz_exports",
        *,
        name: str | None = None,
        what: str | Iterable[str] = ("grids", "input"),
        filters: bool = False,
        **choices: Unpack[ExportChoices],
    ) -> ExportResult:
        """Writes grids, the network's input and a manifest into a new folder.

        Args:
            folder: Where the new folder is made; created where missing.
            name: The new folder's name; time, model and image where None.
            what: One or more of "grids", "svg", "pdf", "channels", "values", "contact", "input"
                and "page", see `hookviz.export.write_export`.
            filters: Also export the filters of each captured layer that has some.
            **choices: See `hookviz.export.write_export`: ``layers``, ``channels``, ``options``,
                ``overwrite``, ``progress``, ``cancelled`` …

        Returns:
            The folder, the files and the manifest's path.

        Raises:
            ExportError: Nothing can be written there, or the folder exists already.
        """
        from hookviz.export import write_export

        records = self.activations
        if filters:
            parts = dict(self.model.module.named_modules())
            layers = [layer for layer in self.layers if has_filters(parts[layer])]
            records += tuple(layer_weights(self.model.module, layer) for layer in layers)
        return write_export(self.facts, records, folder, name=name, what=what, **choices)

    def page_size(
        self, layers: str | Iterable[str] | None = None, **options: Unpack[DrawingOptions]
    ) -> int:
        """How large the file of ``export(what="page")`` gets, told before it is written.

        Args:
            layers: Only these; None is all that were captured.
            **options: Fields of `hookviz.render.GridOptions`, as in `figure`.

        Returns:
            Bytes that the file has at most.

        Raises:
            ExportError: There is nothing to export.
            RenderError: None of the layers can be drawn, or an option is unknown.

        Examples:
            >>> import hookviz
            >>> model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
            >>> run = hookviz.feature_maps(model, hookviz.sample_image(), ["features.28"])
            >>> run.page_size() < 1_000_000
            True
        """
        from hookviz.export import page_size
        from hookviz.render import GridOptions

        chosen = GridOptions.of(**options)
        return page_size(self.facts, self.activations, options=chosen, layers=layers)
