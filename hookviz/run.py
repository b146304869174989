"""One run: a model, an image and layers in; what the layers answered out.

In: a LoadedModel (or its name, or a module), an image and layer selectors. Out: a Run, from
which figures and exports are made. Must not know: the widget, the command line.

The command line, the widget and notebooks all come through here, so that all three show the
same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hookviz.capture import Activation, Capture, select_layers
from hookviz.errors import HookvizError, LayerError, RunCancelled, did_you_mean
from hookviz.images import NetworkInput, Picture, Preprocessing, network_input, read_image
from hookviz.models import LoadedModel, Predictions, feed, load_model, out_of_memory, predictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hookviz.export import ExportResult, Reproduction, RunFacts
    from hookviz.render import Drawing, GridOptions

__all__ = ["Run", "failing_layer", "feature_maps", "reproduce", "run_model"]


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
        of_layer = [a for a in self.activations if a.layer == layer and a.kind == kind]
        if not of_layer:
            if layer in self.missing:
                raise LayerError(f"Layer '{layer}' has no {kind}: {self.missing[layer]}.")
            known = ", ".join(f"'{n}'" for n in self.layers[:8]) or "none"
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
        )

    def export(
        self, folder: str | Path = "hookviz_exports", *, name: str | None = None, **options: Any
    ) -> ExportResult:
        """Writes grids, the network's input and a manifest into a new folder.

        Args:
            folder: Where the new folder is made; created where missing.
            name: The new folder's name; time, model and image where None.
            **options: See `hookviz.export.write_export`: ``what``, ``layers``, ``channels``,
                ``options``, ``overwrite``, ``progress``, ``cancelled`` …

        Returns:
            The folder, the files and the manifest's path.

        Raises:
            ExportError: Nothing can be written there, or the folder exists already.
        """
        from hookviz.export import write_export

        return write_export(self.facts, self.activations, folder, name=name, **options)


def failing_layer(module: nn.Module, error: BaseException) -> str | None:
    """The innermost layer whose code was running when a forward failed.

    Args:
        module: The model that was called.
        error: What its forward raised, with its traceback.

    Returns:
        The layer's name; None where no frame of the traceback belongs to a layer.
    """
    names = {id(m): n for n, m in module.named_modules()}
    found: str | None = None
    trace = error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and id(owner) in names:
            found = names[id(owner)]
        trace = trace.tb_next
    return found


def run_model(
    model: LoadedModel,
    picture: Picture,
    layers: Any,
    *,
    preprocess: Preprocessing | Callable[..., Any] | None = None,
    inputs: bool = False,
    stop_early: bool = False,
    on_activation: Callable[[Activation], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    keep_partial: bool = False,
) -> Run:
    """Runs an image through a model once and keeps what the asked layers answered.

    The model runs in eval mode without gradients; each module's train flag, the BatchNorm
    statistics and the random state are left as they were.

    Args:
        model: The model.
        picture: The image.
        layers: Layer selectors, see `hookviz.capture.select_layers`.
        preprocess: In place of the model's own preprocessing.
        inputs: Also keep what the layers received.
        stop_early: End the forward after the last asked layer; there are no predictions then.
        on_activation: Called with each activation as soon as it is there, within the forward.
        cancelled: Asked before every module; True ends the forward.
        keep_partial: Give a Run with ``error`` set where the forward fails or is cancelled,
            instead of raising.

    Returns:
        The run.

    Raises:
        LayerError: A selector matches nothing; found out before the model runs.
        ModelError: The model cannot be fed an image.
        RunCancelled: ``cancelled`` answered True.
        DeviceError: The device ran out of memory.
        Exception: Whatever the model's own forward raised, unchanged.
    """
    select_layers(model.module, layers)
    received = network_input(
        picture, preprocess or model.preprocess, device=model.device, dtype=model.dtype
    )
    args, kwargs = feed(model, received.tensor)
    started = datetime.now(UTC)
    begin = time.perf_counter()
    output: Any = None
    error: BaseException | None = None
    capture = Capture(
        model.module,
        layers,
        inputs=inputs,
        stop_early=stop_early,
        eval_mode=True,
        on_activation=on_activation,
        cancelled=cancelled,
    )
    try:
        # no_grad and not inference_mode: an inference tensor cannot be used with autograd later.
        with torch.no_grad(), capture:
            output = capture.run(*args, **kwargs)
    except torch.OutOfMemoryError as failure:
        error = out_of_memory(model, failure)
        if not keep_partial:
            raise error from failure
    except (Exception, RunCancelled) as failure:
        error = failure
        if not keep_partial:
            raise
    seconds = time.perf_counter() - begin
    return Run(
        model=model,
        image=picture,
        input=received,
        activations=capture.activations,
        missing=MappingProxyType(dict(capture.missing)),
        output=output,
        predictions=predictions(model, output),
        started=started,
        seconds=seconds,
        error=error,
    )


def feature_maps(
    model: LoadedModel | str | nn.Module,
    image: Any,
    layers: str | Iterable[Any] | Mapping[str, Any],
    *,
    weights: Any = "auto",
    device: str | torch.device | None = None,
    preprocess: Preprocessing | Callable[..., Any] | None = None,
    **options: Any,
) -> Run:
    """Shows an image to a model and keeps what the asked layers answer.

    Args:
        model: What `load_model` gave, a name that it knows, or any ``nn.Module``.
        image: A path, bytes, PIL image, array, tensor or `Picture`, see `read_image`.
        layers: Names, globs, compiled regular expressions, module types, module objects,
            predicates, or a mapping from names of one's own to any of these.
        weights: Which weights where ``model`` is a name, see `load_model`.
        device: Where to run; None leaves a given model where it is and chooses CUDA, MPS, CPU
            in that order for a name.
        preprocess: In place of the model's own preprocessing.
        **options: See `run_model`.

    Returns:
        A run: ``.activations``, ``.figure(layer)``, ``.export(folder)``.

    Raises:
        HookvizError: The model, image, layer or device is unknown or cannot be used; one
            sentence says what was found and what is legal.

    Examples:
        >>> import hookviz
        >>> model = hookviz.load_model("vgg16", weights="bundled")
        >>> run = hookviz.feature_maps(model, hookviz.sample_image(), ["features.0"])
        >>> run.activations[0].shape
        (1, 64, 224, 224)
    """
    if isinstance(model, LoadedModel):
        loaded = model if device is None else model.to(device)
    elif isinstance(model, nn.Module):
        loaded = load_model(model) if device is None else load_model(model, device=device)
    else:
        loaded = load_model(model, weights=weights, device=device or "auto")
    if preprocess is not None:
        loaded = replace(loaded, preprocess=preprocess)
    select_layers(loaded.module, layers)
    return run_model(loaded, read_image(image), layers, **options)


def reproduce(
    png: str | Path | bytes, model: LoadedModel | str | nn.Module | None = None, image: Any = None
) -> Reproduction:
    """Draws an exported PNG again and says whether it is the same.

    Args:
        png: The file, or its bytes.
        model: The model; None loads the one that the file names.
        image: The image; None uses a bundled sample where the file names one.

    Returns:
        Whether the picture is pixel for pixel the same, else what differs.

    Raises:
        ExportError: The file is no PNG that hookviz wrote.
        HookvizError: The model or the image that the file names is not at hand.
    """
    from hookviz.export import reproduce_png

    def run(facts: Mapping[str, str], layers: Any) -> tuple[RunFacts, tuple[Activation, ...]]:
        loaded = model if model is not None else facts["model"]
        source = image if image is not None else _sample_named(facts)
        again = feature_maps(loaded, source, layers)
        return again.facts, again.activations

    return reproduce_png(png, run=run)


def _sample_named(facts: Mapping[str, str]) -> Picture:
    """The bundled sample that a PNG's facts name, found by its hash."""
    from hookviz.images import sample_image, sample_images

    for name in sample_images():
        picture = sample_image(name)
        if picture.sha256 == facts.get("image_sha256"):
            return picture
    raise HookvizError(
        f"The image '{facts.get('image', '?')}' is not at hand.",
        remedy="Pass it: reproduce(png, image='path/to/it').",
    )
