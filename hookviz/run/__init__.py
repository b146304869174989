"""One run: a model, an image and layers in; what the layers answered out.

In: a LoadedModel (or its name, or a module), an image and layer selectors. Out: a Run, from
which figures and exports are made. Must not know: the widget, the command line.

The command line, the widget and notebooks all come through here, so that all three show the
same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

import torch
from torch import nn

from hookviz.activation import Activation
from hookviz.capture import select_layers
from hookviz.errors import HookvizError
from hookviz.images import (
    Frames,
    Picture,
    Preprocessing,
    are_images,
    read_image,
    sample_image,
    sample_images,
)
from hookviz.models import LoadedModel, load_recorded
from hookviz.run._channel import ChannelSummary, InputChannels, InputSource
from hookviz.run._edits import ImageEdit, edits_from_json, edits_to_json, patch_from
from hookviz.run._filters import facts_of, filters, has_filters, layer_weights, loaded_model
from hookviz.run._forward import RunChoices, failing_layer, run_model
from hookviz.run._point import ChannelVector, ReceptiveField, RegionChannels, ValuesAround
from hookviz.run._record import Run
from hookviz.run._torch_state import undisturbed
from hookviz.run._trial import AxesTrial

if TYPE_CHECKING:
    from hookviz.export import Reproduction, RunFacts

__all__ = [
    "AxesTrial",
    "ChannelSummary",
    "ChannelVector",
    "ImageEdit",
    "InputChannels",
    "InputSource",
    "ReceptiveField",
    "RegionChannels",
    "Run",
    "RunChoices",
    "ValuesAround",
    "edits_from_json",
    "edits_to_json",
    "facts_of",
    "failing_layer",
    "feature_maps",
    "filters",
    "has_filters",
    "layer_weights",
    "loaded_model",
    "patch_from",
    "recorded_image",
    "recorded_model",
    "reproduce",
    "run_model",
    "run_recorded",
    "undisturbed",
]


@overload
def feature_maps(
    model: LoadedModel | str | nn.Module,
    image: list[Any] | Iterator[Any] | Frames,
    layers: str | Iterable[Any] | Mapping[str, Any],
    *,
    weights: Any = "auto",
    device: str | torch.device | None = None,
    preprocess: Preprocessing | Callable[..., Any] | None = None,
    **options: Unpack[RunChoices],
) -> Iterator[Run]: ...
@overload
def feature_maps(
    model: LoadedModel | str | nn.Module,
    image: Any,
    layers: str | Iterable[Any] | Mapping[str, Any],
    *,
    weights: Any = "auto",
    device: str | torch.device | None = None,
    preprocess: Preprocessing | Callable[..., Any] | None = None,
    **options: Unpack[RunChoices],
) -> Run: ...
def feature_maps(
    model: LoadedModel | str | nn.Module,
    image: Any,
    layers: str | Iterable[Any] | Mapping[str, Any],
    *,
    weights: Any = "auto",
    device: str | torch.device | None = None,
    preprocess: Preprocessing | Callable[..., Any] | None = None,
    **options: Unpack[RunChoices],
) -> Run | Iterator[Run]:
    """Runs a model on an image, or on images one by one, and keeps the selected layers' outputs.

    Args:
        model: What `load_model` gave, a name that it knows, or any ``nn.Module``.
        image: A path, bytes, PIL image, array, tensor or `Picture`, see `read_image`. Or several of
            these: a list, a tuple, what `hookviz.read_frames` gave, an iterator or any other
            iterable. An array or tensor is always one image (``iter(batch)`` goes through one).
        layers: Names, globs, compiled regular expressions, module types, module objects,
            predicates, or a mapping from names of one's own to any of these.
        weights: Which weights where ``model`` is a name, see `load_model`.
        device: Where to run; None leaves a given model where it is and chooses CUDA, MPS, CPU
            in that order for a name.
        preprocess: In place of the model's own preprocessing.
        **options: See `run_model`.

    Returns:
        A run: ``.activations``, ``.figure(layer)``, ``.export(folder)``. Of several images an
        iterator of runs: each image is read and run when its run is asked for, and no run is kept,
        so that memory stays flat. Between two runs the model has no hook and its own mode: it may
        be used, trained or left at any time.

    Raises:
        HookvizError: The model, image, layer or device is unknown or cannot be used; one
            sentence says what was found and what is legal. Of several images, model and layers are
            checked at once, each image in its turn.

    Examples:
        >>> import hookviz
        >>> model = hookviz.load_model("vgg16", weights="bundled")
        >>> run = hookviz.feature_maps(model, hookviz.sample_image(), ["features.0"])
        >>> run.activations[0].shape
        (1, 64, 224, 224)

        Where does the class token of a vision transformer look?

        >>> from torchvision.models import VisionTransformer
        >>> vit = VisionTransformer(224, 32, 2, 2, 16, 16)
        >>> run = hookviz.feature_maps(vit, hookviz.sample_image(), "encoder", attention=True)
        >>> layer = "encoder.layers.encoder_layer_1.self_attention"
        >>> run.select(layer, kind="attention").shape
        (1, 2, 50, 50)
        >>> figure = run.figure(layer, kind="attention", query="class", overlay=True)

        What if a channel were missing?

        >>> from hookviz.capture import zero
        >>> edits = [zero("features.0", channels=7)]
        >>> other = hookviz.feature_maps(model, hookviz.sample_image(), ["features.0"], edits=edits)
        >>> other.activations[0].tensor[:, 7].abs().max().item()
        0.0

        Frame by frame, of an animation, a video or a camera:

        >>> frames = (hookviz.sample_image(name) for name in ("chelsea", "coffee"))
        >>> for run in hookviz.feature_maps(model, frames, "features.0"):
        ...     print(run.image.name, run.activations[0].shape)
        chelsea.png (1, 64, 224, 224)
        coffee.png (1, 64, 224, 224)
    """
    loaded = loaded_model(model, weights, device, preprocess)
    if not are_images(image):
        return run_model(loaded, read_image(image), layers, **options)
    # Wrong layers are known now. Selectors and edits may be iterators, good for one run alone.
    chosen = select_layers(loaded.module, layers)
    options["edits"] = tuple(options.get("edits", ()))
    return (run_model(loaded, read_image(one), chosen, **options) for one in image)


def reproduce(
    png: str | Path | bytes,
    model: LoadedModel | str | nn.Module | None = None,
    image: Any = None,
    weights: Any = None,
) -> Reproduction:
    """Draws an exported PNG again and says whether it is the same.

    Args:
        png: The file, or its bytes.
        model: The model; None loads the one that the file names.
        image: The image; None uses a bundled sample where the file names one. A list where the file
            shows a run that was edited by the values for other images: these follow the first.
        weights: Of a model that is named, by the file or by ``model``; see `load_model`. None takes
            those that the file names.

    Returns:
        Whether the figure is pixel for pixel the same, else what differs.

    Raises:
        ExportError: The file is no PNG that hookviz wrote.
        HookvizError: The model or the image that the file names is not at hand.
    """
    from hookviz.export import reproduce_png

    def run(
        facts: Mapping[str, str], layers: Iterable[str]
    ) -> tuple[RunFacts, tuple[Activation, ...]]:
        return run_recorded(facts, layers, model, image, weights)

    return reproduce_png(png, run=run)


def run_recorded(
    facts: Mapping[str, str],
    layers: Iterable[str],
    model: LoadedModel | str | nn.Module | None = None,
    image: Any = None,
    weights: Any = None,
) -> tuple[RunFacts, tuple[Activation, ...]]:
    """Runs again what an exported file says.

    Args:
        facts: What the file says.
        layers: The layers that it shows.
        model: The model; None loads the one that the file names, in the dtype that it names.
        image: The image; None uses a bundled sample where the file names one. Of a list, those
            behind the first are the other images of edits.
        weights: As for `recorded_model`.

    Returns:
        The facts of the new run, and its records of the kinds that the file shows.

    Raises:
        HookvizError: The model or the image that the file names is not at hand.
    """
    from hookviz.export import kinds_in

    loaded = recorded_model(facts, model, weights)
    kinds, layers = kinds_in(facts), tuple(layers)
    shown: tuple[Activation, ...] = ()
    if "weight" in kinds:
        shown = tuple(layer_weights(loaded.module, layer) for layer in layers)
        if not facts.get("image_sha256"):
            return facts_of(loaded), shown
    first, *others = image if isinstance(image, list | tuple) else [image]
    source = recorded_image(facts, first)
    pictures = [source, *map(read_image, others), *map(sample_image, sample_images())]
    edits = edits_from_json(facts.get("edits_record", ""), pictures)
    # A file of the input shows no layer; the model itself stands for none.
    again = feature_maps(
        loaded,
        source,
        layers or [""],
        inputs="input" in kinds,
        attention="attention" in kinds,
        edits=edits,
    )
    return again.facts, again.activations + shown


def recorded_model(
    facts: Mapping[str, str],
    model: LoadedModel | str | nn.Module | None = None,
    weights: Any = None,
) -> LoadedModel:
    """The model given, or the one that an exported file names; a named one in the file's dtype.

    Args:
        facts: What the file says.
        model: The model; None loads the one that the file names.
        weights: Of a model that is named, by the file or by ``model``; see `load_model`. None takes
            those that the file names.

    Raises:
        HookvizError: The model that the file names is not at hand.
    """
    if model is not None and not isinstance(model, str):
        return loaded_model(model, "auto", None)
    name = model or facts["model"]
    if weights is None and name == facts["model"]:
        loaded = load_recorded(facts)
    else:
        loaded = loaded_model(name, "auto" if weights is None else weights, None)
    dtype = getattr(torch, facts.get("model_dtype", ""), None)
    if isinstance(dtype, torch.dtype) and dtype != loaded.dtype:
        return loaded.to(loaded.device, dtype)
    return loaded


def recorded_image(facts: Mapping[str, str], image: Any = None) -> Picture:
    """The image given, or the bundled sample that an exported file names, found by its hash.

    Args:
        facts: What the file says.
        image: The image; None for the sample.

    Raises:
        HookvizError: The image that the file names is not at hand.
    """
    if image is not None:
        return read_image(image)
    for name in sample_images():
        sample = sample_image(name)
        if sample.sha256 == facts.get("image_sha256"):
            return sample
    raise HookvizError(
        f"The image '{facts.get('image', '?')}' is not at hand.",
        remedy="Pass it: reproduce(png, image='path/to/it').",
        code="image-not-at-hand",
    )
