"""One forward of a model over one image."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from traceback import walk_tb
from types import MappingProxyType
from typing import Any, TypedDict

from torch import Tensor, nn

from hookviz.activation import Activation
from hookviz.capture import Capture, Edit, edit
from hookviz.errors import HookvizError
from hookviz.images import Picture, Preprocessing, network_input
from hookviz.models import LoadedModel, feed, out_of_memory, predictions
from hookviz.run._edits import named, resolved
from hookviz.run._record import Run
from hookviz.run._torch_state import undisturbed
from hookviz.run._trial import AxesTrial


class RunChoices(TypedDict, total=False):
    """The keywords of `run_model`."""

    edits: Iterable[Edit]
    inputs: bool
    attention: bool
    stop_early: bool
    transform: Callable[[Tensor], Tensor] | None
    on_activation: Callable[[Activation], None] | None
    cancelled: Callable[[], bool] | None
    keep_partial: bool
    find_axes: bool


def failing_layer(module: nn.Module, error: BaseException) -> str | None:
    """The innermost layer whose code was running when a forward failed.

    Args:
        module: The model that was called.
        error: What its forward raised, with its traceback.

    Returns:
        The layer's name; None where no frame of the traceback belongs to a layer.
    """
    names = {id(m): n for n, m in module.named_modules()}
    owners = (frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__))
    found = [names[id(o)] for o in owners if isinstance(o, nn.Module) and id(o) in names]
    return found[-1] if found else None


def run_model(
    model: LoadedModel,
    image: Picture,
    layers: Any,
    *,
    preprocess: Preprocessing | Callable[..., Any] | None = None,
    edits: Iterable[Edit] = (),
    inputs: bool = False,
    attention: bool = False,
    stop_early: bool = False,
    transform: Callable[[Tensor], Tensor] | None = None,
    on_activation: Callable[[Activation], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    keep_partial: bool = False,
    find_axes: bool = True,
) -> Run:
    """Runs an image through a model once and keeps what the asked layers answered.

    The model runs in eval mode without gradients, autocast and inference mode, whatever the caller
    has switched on; each module's train flag and the BatchNorm statistics are left as they were.
    So are the generators of random numbers (torch's on the CPU and on the model's device, NumPy's
    and Python's): a model that draws from them draws the same when it is run again. Off the main
    thread they are left as the model leaves them, since other threads may draw at the same time.

    Args:
        model: The model.
        image: The image.
        layers: Layer selectors, see `hookviz.capture.select_layers`.
        preprocess: In place of the model's own preprocessing.
        edits: What is changed while the model runs, in this order: `hookviz.capture.zero`,
            ``scale``, ``replace_by_mean``, ``replace_by_noise``, `patch_from` another image, or any
            other edit of outputs and inputs. What a layer answers is kept as the edits left it.
            The run, its figures and files say that it was edited.
        inputs: Also keep what the layers received.
        attention: Also keep the attention probabilities of the layers and of all in them, see
            `hookviz.Capture`; ``run.figure(layer, kind="attention")`` draws where a query looks.
        stop_early: End the forward after the last asked layer; there are no predictions then.
        transform: Applied to each tensor inside the hook, see `hookviz.Capture`.
        on_activation: Called with each activation as soon as it is there and its axes are known:
            within the forward, or after it where a trial has to find them out.
        cancelled: Asked before every module; True ends the forward.
        keep_partial: Give a Run with ``error`` set where the forward fails or is cancelled,
            instead of raising.
        find_axes: Find out what the axes of each tensor are, by further forwards where type and
            shape leave a doubt. False leaves the doubt: for values that are not drawn.

    Returns:
        The run.

    Raises:
        LayerError: A selector matches nothing; found out before the model runs. Or an edit changed
            nothing, since its layer did not run.
        CaptureError: An edit has no such channel, place or head.
        ModelError: The model cannot be fed an image.
        RunCancelled: ``cancelled`` answered True.
        DeviceError: The device ran out of memory.
        Exception: Whatever the model's own forward raised, unchanged.
    """
    if on_activation is not None and not callable(on_activation):
        raise HookvizError(f"on_activation must be a function or None, not {on_activation!r:.80}.")
    shown: set[int] = set()

    def arrived(activation: Activation) -> None:
        # What needs the trial is handed on after it.
        known = trial.with_axes(activation) if find_axes else activation
        if known is not None and on_activation is not None:
            shown.add(id(known.tensor))
            on_activation(known)

    settings: dict[str, Any] = {
        "inputs": inputs,
        "transform": transform,
        "cancelled": cancelled,
        "eval_mode": True,
    }
    # Whatever is wrong with the arguments is found out here, before anything is done.
    changes = named(model.module, edits)

    def other(picture: Picture, keeping: Iterable[Edit]) -> None:
        run_model(
            model, picture, [name for one in keeping for name in one.layers],  # type: ignore[union-attr]
            preprocess=preprocess, edits=keeping, stop_early=True, cancelled=cancelled,
            transform=lambda tensor: tensor.to("meta"), find_axes=False,
        )  # fmt: skip

    capture = Capture(
        model.module,
        layers,
        stop_early=bool(stop_early),
        on_activation=None if on_activation is None else arrived,
        attention=attention,
        **settings,
    )
    with undisturbed(model.device):
        received = network_input(
            image, preprocess or model.preprocess, device=model.device, dtype=model.dtype
        )
        args, kwargs = feed(model, received.tensor)
        editing = edit(model.module, *resolved(changes, other))
        started = datetime.now(UTC)
        begin = time.perf_counter()
        output: Any = None
        error: Exception | None = None
        trial = AxesTrial(model, received.tensor, settings, editing)
        try:
            with out_of_memory(f"running {model.name}", model.device), editing, capture:
                output = capture.run(*args, **kwargs)
                editing.check_used()
        except Exception as failure:
            error = failure
            if not keep_partial:
                raise
        seconds = time.perf_counter() - begin
        activations = capture.activations
        if error is None and find_axes:
            activations = trial.settle(activations)
        if on_activation is not None:
            for a in activations:
                if id(a.tensor) not in shown:
                    on_activation(a)
        return Run(
            model=model,
            image=image,
            input=received,
            activations=activations,
            missing=MappingProxyType(dict(capture.missing)),
            output=output,
            predictions=predictions(model, output),
            started=started,
            seconds=seconds,
            error=error,
            edits=changes,
        )
