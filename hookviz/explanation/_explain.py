"""The way from a model, an image and a target to an explanation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Unpack

import torch
from torch import nn

from hookviz._text import names_text
from hookviz.capture import select_layers
from hookviz.errors import HookvizError
from hookviz.explanation._checks import check_call
from hookviz.explanation._explanation import Explanation
from hookviz.explanation._job import Job
from hookviz.explanation._methods import ExplainOptions, Method, method_called, methods
from hookviz.explanation._progress import Progress, Steps
from hookviz.explanation._target import TargetLike, wanted_targets
from hookviz.images import Preprocessing, network_input, read_image
from hookviz.models import LoadedModel, predictions
from hookviz.run import loaded_model, undisturbed


def explain(
    model: LoadedModel | str | nn.Module,
    image: Any,
    layers: str | Iterable[Any] | Mapping[str, Any] | None = None,
    *,
    target: TargetLike = None,
    method: str = "gradcam",
    call: int | str = "last",
    leaf: str | None = None,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    weights: Any = "auto",
    device: str | torch.device | None = None,
    preprocess: Preprocessing | Callable[..., Any] | None = None,
    **options: Unpack[ExplainOptions],
) -> Explanation:
    """Finds how much each place of an image counts for what a model answers to it.

    The model runs in eval mode, whatever mode it is in and whatever the caller has switched on
    (``no_grad``, autocast). Nothing runs ``backward``: no ``.grad`` is touched, and frozen networks
    are explained alike. Modes, hooks, ``requires_grad`` and the generators of random numbers are
    afterwards as they were, also after an error and after cancelling.

    Args:
        model: What `load_model` gave, a name that it knows, or any ``nn.Module``.
        image: A path, bytes, PIL image, array, tensor or `Picture`, see `read_image`.
        layers: The layers to be explained, as in `feature_maps`; all of them share one forward and
            one backward. None where the method explains the network's input.
        target: What is explained: None is the likeliest class; else a class by number or name,
            "channel 31 of features.28", "channel 31 of features.28 at 5, 7", "box 0", "mask of
            cat", the same as `ChannelTarget`, `BoxTarget` and `MaskTarget`, a function from the
            model's output to a tensor of one number, or a list of these, each by itself.
        method: Which method; `hookviz.explanation.methods` lists them with their papers.
        call: Which call of layers that ran several times: from 1, or "last".
        leaf: Which tensor of layers whose output holds several, by its path.
        progress: Called after each step of a method of many steps with the steps done, the steps
            in all, and the seconds that the rest will take.
        cancelled: Asked before every module's call and every step; True ends with RunCancelled.
        weights: Which weights where ``model`` is a name, see `load_model`.
        device: Where to run, as in `feature_maps`.
        preprocess: In place of the model's own preprocessing.
        **options: Options of the method, see `hookviz.explanation.ExplainOptions`.

    Returns:
        The explanation: ``.figure(layer)``, ``.map(layer)``, ``.activations``, ``.export(folder)``.

    Raises:
        HookvizError: The model, image, target, method or an option is unknown or cannot be used,
            or no gradient leads from the target to a layer; one sentence says what would do.
        LayerError: A layer is unknown, did not run, has no places, or comes after the target.
        RunCancelled: ``cancelled`` answered True.
        Exception: Whatever the model's own forward raised, unchanged.

    Examples:
        What in the photo drives channel 31 of a later layer:

        >>> import hookviz
        >>> model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
        >>> found = hookviz.explain(model, hookviz.sample_image(), ["features.16", "features.23"],
        ...                         target="channel 31 of features.28")
        >>> found.layers, found.activations[0].shape
        (('features.16', 'features.23'), (1, 1, 28, 28))
    """
    how = method_called(method)
    settings = how.settings(options)
    check_call(call)
    steps = Steps(progress, cancelled, how.title)
    loaded = loaded_model(model, weights, device, preprocess)
    chosen = _chosen_layers(how, loaded, layers)
    picture = read_image(image)
    wanted = wanted_targets(loaded, target)
    started, begin = datetime.now(UTC), time.perf_counter()
    with undisturbed(loaded.device):
        received = network_input(
            picture, loaded.preprocess, device=loaded.device, dtype=loaded.dtype
        )
        job = Job(loaded, received, chosen, wanted, how, settings, call, leaf, steps)
        steps.proceed()
        records = tuple(how.explain(job))
    answer = job.answer
    return Explanation(
        model=loaded,
        image=picture,
        input=received,
        method=how,
        targets=tuple(one.name for one in job.targets),
        scores=records[0].scores if records else (),
        activations=records,
        missing=MappingProxyType(job.missing),
        predictions=predictions(loaded, None if answer is None else answer.output),
        started=started,
        seconds=time.perf_counter() - begin,
        details=MappingProxyType(job.details),
    )


def _chosen_layers(how: Method, model: LoadedModel, layers: Any) -> tuple[str, ...]:
    if not how.of_layers:
        if layers is not None:
            raise HookvizError(
                f"{how.title} explains the network's input and takes no layers.",
                remedy=f"For layers use one of "
                f"{names_text([m.name for m in methods() if m.of_layers], 12)}.",
            )
        return ()
    if layers is None:
        raise HookvizError(
            f"{how.title} explains layers, and none was named.",
            remedy="Name at least one, for example the last with rows and columns.",
        )
    return tuple(dict.fromkeys(select_layers(model.module, layers).values()))
