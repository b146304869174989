"""What a channel looks for: a picture is changed until a part of a layer answers strongly to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from hookviz._text import error_text
from hookviz.activation import Activation, Kind
from hookviz.capture import Capture, select_layers
from hookviz.errors import HookvizError, LayerError, RunCancelled
from hookviz.explanation._checks import check_call
from hookviz.explanation._forward import Answer
from hookviz.explanation._paint import Moves, Spectrum
from hookviz.explanation._places import by_place, reading_of
from hookviz.explanation._target import ChannelTarget, SettledTarget, channel_scores, wanted_targets
from hookviz.images import network_input, read_image
from hookviz.models import LoadedModel, expected_input, feed, out_of_memory
from hookviz.render import Visualization
from hookviz.run import AxesTrial, loaded_model, undisturbed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hookviz.export import ExportChoices, ExportResult, RunFacts
    from hookviz.render import DrawingOptions, GridOptions

Place = tuple[int, int]
Progress = Callable[[int, float, Image.Image], object]
"""Called with the steps done, the value reached and the picture so far."""

_RECTIFIED = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh)
_FRESH = 8  # transformations that the robust value is the mean of
_MOST = 2048  # pixels of a side


@dataclass(frozen=True, eq=False)
class FeatureVisualization:
    """Pictures to which a part of a layer answers strongly, and how they came to be.

    Attributes:
        model: The model that looked at them.
        objective: What was made large, in words: "channel 7 of features.28".
        pixels: (N, 3, H, W), of a network that takes gray (N, 1, H, W): float32 from 0 to 1, on the
            CPU. N is ``count``.
        activations: For each picture the objective's value for it as it is, in the layer's units.
        robust: The mean of its value under 8 fresh random transformations.
        history: The mean of the objective over the pictures, as seen at each step.
        parameters: All that the pictures depend on beside the model, as plain values.
        steps: How many steps were made.
        cancelled: Whether it was ended before its end; what there was is kept.
        started: When it began (UTC).
        seconds: How long it took.
    """

    model: LoadedModel
    objective: str
    pixels: Tensor
    activations: tuple[float, ...]
    robust: tuple[float, ...]
    history: tuple[float, ...]
    parameters: Mapping[str, Any]
    steps: int
    cancelled: bool
    started: datetime
    seconds: float
    _layer: tuple[str, int, int, str] = field(repr=False, default=("", 1, 1, ""))

    @property
    def images(self) -> tuple[Image.Image, ...]:
        """The pictures as RGB images, one pixel each, new ones."""
        return tuple(_image(one) for one in self.pixels)

    @property
    def image(self) -> Image.Image:
        """The first picture, or the only one."""
        return self.images[0]

    @property
    def array(self) -> NDArray[np.uint8]:
        """(H, W, 3) uint8 of the first picture, or the only one."""
        return np.asarray(self.image)

    @property
    def activation(self) -> float:
        """The value of the first picture as it is."""
        return self.activations[0]

    def __repr__(self) -> str:
        size = f"{self.pixels.shape[3]}×{self.pixels.shape[2]}"
        ended = " (cancelled)" if self.cancelled else ""
        return (
            f"<Picture of {self.objective}, {self.model.name}: {size}, {self.steps} steps{ended}, "
            f"value {self.activation:.4g}, under fresh transformations {self.robust[0]:.4g}>"
        )

    @property
    def record(self) -> Visualization:
        """The pictures as a record that is drawn and exported like any."""
        layer, call, calls, kind = self._layer
        return Visualization(
            layer, call, calls, 1, 1, "visualization", "", kind, self.pixels,
            objective=self.objective, clean=self.activations, robust=self.robust, steps=self.steps,
            recipe=dict(self.parameters),
        )  # fmt: skip

    @property
    def facts(self) -> RunFacts:
        """What files say beside the record: plain values, no model."""
        from hookviz.export import RunFacts

        return RunFacts.of_run(
            model=self.model, image=None, network_input=None, started=self.started
        )

    def figure(self, **options: Unpack[DrawingOptions]) -> Figure:
        """The pictures with what was made large, the values reached and the seed.

        Args:
            **options: Fields of `hookviz.render.GridOptions`: ``width``, ``style``, ``bare`` …

        Returns:
            A new figure that is not registered with pyplot.

        Raises:
            RenderError: An option is unknown.
        """
        from hookviz.export import draw_activation

        return draw_activation(self.facts, self.record, self.options(**options)).figure

    def export(
        self,
        folder: str | Path = "hookviz_exports",
        *,
        name: str | None = None,
        what: str | Iterable[str] = ("grids", "channels"),
        **choices: Unpack[ExportChoices],
    ) -> ExportResult:
        """Writes the figure, each picture pixel for pixel and a manifest into a new folder.

        Every PNG carries all parameters; `hookviz.reproduce` makes its pictures again and says
        whether they are the same.

        Args:
            folder: Where the new folder is made; created where missing.
            name: The new folder's name; time and model where None.
            what: Parts of an export as in `Run.export`: "grids" (the figure), "channels" (each
                picture, one pixel each), "svg", "pdf", "values".
            **choices: See `hookviz.export.write_export`.

        Returns:
            The folder, the files and the manifest's path.

        Raises:
            ExportError: Nothing can be written there, or the folder exists already.
        """
        from hookviz.export import write_export

        if choices.get("options") is None:
            choices["options"] = self.options()
        return write_export(self.facts, [self.record], folder, name=name, what=what, **choices)

    def options(self, **options: Unpack[DrawingOptions]) -> GridOptions:
        """The pictures in their own colors, unless told else."""
        from hookviz.render import GridOptions

        own: DrawingOptions = {"scale": "fixed", "vmin": 0.0, "vmax": 1.0}
        own.update(options)
        return GridOptions.of(**own)


def feature_visualization(
    model: LoadedModel | str | nn.Module,
    layer: str | None = None,
    channel: int | str | Sequence[int] | Mapping[int, float] = 0,
    *,
    place: Place | str | None = None,
    size: int | Place | None = None,
    steps: int = 128,
    learning_rate: float = 0.05,
    decay: float = 1.0,
    jitter: float = 12.0,
    scale: float = 0.1,
    rotate: float = 10.0,
    count: int = 1,
    diversity: float = 100.0,
    before_relu: bool = True,
    call: int | str = "last",
    seed: int = 0,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    weights: Any = "auto",
    device: str | torch.device | None = None,
) -> FeatureVisualization:
    """Makes a picture to which a channel answers as strongly as it can (Olah et al. 2017).

    The picture is kept by its frequencies with decorrelated colors, seen at each step under a small
    random shift, turn and change of size, and changed by Adam along the gradient of the objective
    (https://distill.pub/2017/feature-visualization/). The forward ends at the layer. The model
    runs in eval mode; no ``.grad``, mode or generator of random numbers moves, also after an error.
    On one machine the same parameters give the same pixels.

    Args:
        model: What `load_model` gave, a name that it knows, or any ``nn.Module``.
        layer: The layer's name; None for the model's output, whose channels are the classes.
        channel: A channel, from 0; several, whose mean is made large; or a mapping from channels to
            weights (a negative one: away from it). Without a layer the number or name of a class.
        place: (row, column): the neuron there; "center": the one in the middle; None: the mean over
            all places.
        size: Pixels of the picture's sides, or (height, width); None is the model's own where it
            takes one size alone, else 128.
        steps: How many steps are made; from 64 on forms can be seen.
        learning_rate: Of Adam; much smaller gives faint pictures, larger ones saturated.
        decay: Weight of a frequency f is 1/f^decay: 1 as in photos, 1.5 larger and smoother forms.
        jitter: Largest shift of the picture, in pixels; what it uncovers is gray.
        scale: Largest change of its size, as a share.
        rotate: Largest turn, in degrees. With all three 0 the pictures become specks.
        count: How many pictures are made at once, each different from the others.
        diversity: Weight of that difference: the mean cosine similarity of the layer's Gram
            matrices is held against the objective so many times.
        before_relu: Of a ReLU its input is made large, since a channel that is 0 everywhere has no
            gradient behind it. Of a layer that is none, its own output is: choose the convolution,
            not the ReLU after it.
        call: Which call of a layer that runs several times: from 1, or "last".
        seed: Of the first picture and of all moves.
        progress: Called after each step with the steps done, the value reached (the mean over the
            pictures, as seen) and the picture so far (several side by side).
        cancelled: Asked before every module's call and every step; True ends it, and what there is
            then is the result.
        weights: Which weights where ``model`` is a name, see `load_model`.
        device: Where to run; None leaves a given model where it is.

    Returns:
        ``.image``, ``.activation``, ``.robust``, ``.history``, ``.figure()``, ``.export(folder)``.

    Raises:
        LayerError: There is no such layer, channel, place or call, or it did not run.
        HookvizError: A parameter is not legal, the model cannot look at such a picture, or no
            gradient leads from the layer to it (quantised models, ``no_grad`` inside).
        RunCancelled: ``cancelled`` answered True before the first step was made.

    Examples:
        >>> import hookviz
        >>> model = hookviz.load_model("vgg16", weights="bundled", device="cpu")
        >>> found = hookviz.feature_visualization(model, "features.5", 3, size=32, steps=4)
        >>> found.image.size, found.history[-1] > found.history[0]
        ((32, 32), True)
    """
    given = {
        "layer": layer, "channel": channel, "place": place, "size": size, "steps": steps,
        "learning_rate": learning_rate, "decay": decay, "jitter": jitter, "scale": scale,
        "rotate": rotate, "count": count, "diversity": diversity, "before_relu": before_relu,
        "call": call, "seed": seed,
    }  # fmt: skip
    _check(given, progress, cancelled)
    loaded = loaded_model(model, weights, device)
    given["size"] = sides = _sides(size, loaded)
    started, begin = datetime.now(UTC), time.perf_counter()
    with undisturbed(loaded.device):
        work = _Work(loaded, given, sides, cancelled)
        history, ended = work.paint(progress)
        clean, robust = work.values()
        pixels = work.pictures().detach().float().cpu()
    given |= {"place": work.place, "channel": _plain(channel)}
    return FeatureVisualization(
        loaded, work.words, pixels, clean, robust, tuple(history), given, len(history), ended,
        started, time.perf_counter() - begin, work.layer_facts,
    )  # fmt: skip


def visualize_again(recipe: Mapping[str, Any], model: LoadedModel) -> FeatureVisualization:
    """The pictures that a file's parameters say.

    Args:
        recipe: What a file says under "visualization".
        model: The model.

    Raises:
        HookvizError: They are not what `feature_visualization` takes.
    """
    options = dict(recipe)
    channel = options.get("channel")
    if isinstance(channel, list) and all(isinstance(c, list) and len(c) == 2 for c in channel):
        options["channel"] = {c if isinstance(c, int) else str(c): w for c, w in channel}
    for name in ("place", "size"):
        if isinstance(options.get(name), list):
            options[name] = tuple(options[name])
    try:
        return feature_visualization(model, **options)
    except TypeError as error:
        raise HookvizError(f"The file's parameters are damaged: {error_text(error)}") from error


def _plain(channel: Any) -> Any:
    """Channels as values that JSON knows."""
    if isinstance(channel, Mapping):
        return [[c, float(w)] for c, w in channel.items()]  # JSON's objects have no order
    return (
        list(channel) if isinstance(channel, Sequence) and not isinstance(channel, str) else channel
    )


def _check(given: Mapping[str, Any], progress: Any, cancelled: Any) -> None:
    for name, least, most in (("steps", 1, 100_000), ("count", 1, 64), ("seed", 0, 2**63 - 1)):
        found = given[name]
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= most:
            legal = f"a whole number from {least}" + f" to {most:,}" * (name != "seed")
            raise HookvizError(f"{name} is {found!r:.80}; it must be {legal}.")
    for name, low, high in (
        ("learning_rate", 1e-6, 10.0), ("decay", 0.0, 4.0), ("jitter", 0.0, 1024.0),
        ("scale", 0.0, 0.9), ("rotate", 0.0, 180.0), ("diversity", 0.0, 1e6),
    ):  # fmt: skip
        found = given[name]
        number = isinstance(found, int | float) and not isinstance(found, bool)
        if not number or not low <= found <= high:
            raise HookvizError(
                f"{name} is {found!r:.80}; it must be a number from {low:g} to {high:g}."
            )
    check_call(given["call"])
    for name, function in (("progress", progress), ("cancelled", cancelled)):
        if function is not None and not callable(function):
            raise HookvizError(f"{name} must be a function or None, not {function!r:.80}.")


def _sides(size: Any, model: LoadedModel) -> Place:
    if size is None:
        hints = expected_input(model)
        return hints.fixed_size or (max(128, hints.min_size[0]), max(128, hints.min_size[1]))
    sides = (size, size) if isinstance(size, int) else tuple(size) if size else ()
    whole = all(isinstance(n, int) and not isinstance(n, bool) and 8 <= n <= _MOST for n in sides)
    if len(sides) != 2 or not whole:
        raise HookvizError(
            f"size is {size!r:.80}; it must be a number of pixels, or (height, width), each from 8 "
            f"to {_MOST}."
        )
    return sides


def _image(pixels: Tensor) -> Image.Image:
    levels = (pixels.detach().float().cpu() * 255).round().clamp(0, 255).to(torch.uint8)
    return Image.fromarray(levels.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())


class _Work:
    """One visualization under way.

    Args:
        model: The model.
        given: The parameters.
        sides: (height, width) of the pictures.
        cancelled: Asked before every module's call and every step.

    Attributes:
        words: What is made large.
        place: The place, as numbers; None for all.
        layer_facts: The layer, which of how many calls, and its type.
    """

    def __init__(
        self,
        model: LoadedModel,
        given: Mapping[str, Any],
        sides: Place,
        cancelled: Callable[[], bool] | None,
    ) -> None:
        self._model, self._given, self._cancelled = model, given, cancelled
        seed = int(given["seed"])
        self._generator = torch.Generator("cpu").manual_seed(seed)
        self._fresh = seed
        noise = np.random.default_rng(0).integers(0, 256, (*sides, 3), dtype=np.uint8)
        probe = network_input(read_image(Image.fromarray(noise)), model.preprocess)
        colors = 1 if probe.tensor.shape[1] == 1 or expected_input(model).channels == 1 else 3
        mean, std = probe.preprocessing.mean, probe.preprocessing.std
        if len(mean) != colors:
            mean, std = (sum(mean) / len(mean),) * colors, (sum(std) / len(std),) * colors
        self._mean, self._std = (
            torch.tensor(v, device=model.device, dtype=torch.float32).view(-1, 1, 1)
            for v in (mean, std)
        )
        self._moves = Moves(float(given["jitter"]), float(given["scale"]), float(given["rotate"]))
        shape = (int(given["count"]), colors, *sides)
        self._spectrum = Spectrum(shape, given["decay"], self._generator, model.device)
        self.place: Place | None = None
        self._class: SettledTarget | None = None
        self._settle()

    def pictures(self) -> Tensor:
        """(N, C, H, W) from 0 to 1."""
        return self._spectrum.pictures()

    # What is made large

    def _settle(self) -> None:
        """Finds out, by one forward, which tensor is meant, and whether it can be had."""
        given, layer = self._given, self._given["layer"]
        module = self._model.module
        self._layer = ""
        if layer is not None:
            found = list(select_layers(module, [layer]).values())
            if len(found) != 1:
                raise LayerError(f"'{layer}' names {len(found)} layers; a picture is made for one.")
            self._layer = found[0]
        part = dict(module.named_modules()).get(self._layer, module)
        rectified = isinstance(part, _RECTIFIED) and bool(given["before_relu"])
        self._kind: Kind = "input" if rectified else "output"
        seen = self._scaled(self.pictures().detach())
        with torch.no_grad():
            records = self._probed(seen)
        mine = [a for a in records if a.layer == self._layer and a.kind == self._kind]
        if not mine:
            raise LayerError(f"Layer '{layer}' gave no {self._kind}: it did not run.")
        calls = max(a.call for a in mine)
        call = calls if given["call"] == "last" else int(given["call"])
        if not 1 <= call <= calls:
            raise LayerError(f"'{layer}' has no call {call}; it ran {calls} times, from 1.")
        self._call, self._calls = call, calls
        record = next(a for a in mine if a.call == call)
        self.layer_facts = (self._layer, call, calls, record.module_type)
        self._leaf = record.leaf
        if layer is None:
            (wanted,) = wanted_targets(self._model, given["channel"])
            settled = wanted.settle(Answer(self._output, int(given["count"])))
            self.words, self._class = settled.name, settled
            self._axes = None
            self._channels: dict[int, float] = {}
            return
        if not record.tensor.is_floating_point() or record.tensor.is_quantized:
            raise self._no_gradient()
        trial = AxesTrial(self._model, seen, {"eval_mode": True, "inputs": rectified})
        self._axes = trial.settle([record])[0].axes
        self._channels = _weights(given["channel"])
        self._set_place(replace(record, axes=self._axes))
        self._objective(replace(record, axes=self._axes))  # channels and place are there
        self.words = self._in_words(rectified)

    def _probed(self, seen: Tensor) -> tuple[Activation, ...]:
        """The layer's records of a whole forward, or of one that ends at the layer."""
        try:
            return self._forward(seen, stop=False)[1]
        except RunCancelled:
            raise
        except Exception:  # noqa: BLE001 - what follows the layer may not take this size
            return self._forward(seen, stop=True)[1]

    def _in_words(self, rectified: bool) -> str:
        each = [
            str(c) if w == 1 else f"{c} (times {w:g})" for c, w in list(self._channels.items())[:8]
        ]
        more = ", …" * (len(self._channels) > 8)
        words = f"channel{'s' * (len(each) > 1)} {', '.join(each)}{more} of {self._layer}"
        if self._calls > 1:
            words += f" call {self._call} of {self._calls}"
        if self.place is not None:
            words += " at {}, {}".format(*self.place)
        return words + ", before the ReLU" * rectified

    def _set_place(self, record: Activation) -> None:
        place = self._given["place"]
        if place == "center":
            first = replace(record, tensor=record.tensor[:1])
            rows, columns = by_place(first, self._sides).maps.shape[-2:]
            place = (rows // 2, columns // 2)
        if place is None:
            return
        whole = isinstance(place, Sequence) and not isinstance(place, str) and len(place) == 2
        if not whole or not all(type(n) is int and n >= 0 for n in place):
            raise HookvizError(
                f'place is {self._given["place"]!r:.80}; it must be (row, column), "center" or '
                "None."
            )
        self.place = (place[0], place[1])

    @property
    def _sides(self) -> Place:
        return self._given["size"]  # type: ignore[no-any-return]

    def _objective(self, record: Activation) -> Tensor:
        """(N,) what is made large, for each picture."""
        count = int(self._given["count"])
        each = [
            channel_scores(record, ChannelTarget(self._layer, channel, self.place), count) * weight
            for channel, weight in self._channels.items()
        ]
        return torch.stack(each).mean(0)

    # Forwards

    def _scaled(self, pictures: Tensor) -> Tensor:
        """What the network is fed for pictures from 0 to 1."""
        return (pictures - self._mean) / self._std

    def _forward(self, tensor: Tensor, *, stop: bool) -> tuple[Any, tuple[Activation, ...]]:
        """The model's output, and the layer's records in autograd's graph."""
        rectified = self._kind == "input"
        early: Any = stop and self._layer != ""
        if early and hasattr(self, "_calls"):
            early = {self._layer: self._call}
        capture = Capture(
            self._model.module,
            [self._layer],
            outputs=not rectified,
            inputs=rectified,
            keep_graph=True,
            stop_early=early,
            eval_mode=True,
            cancelled=self._cancelled,
        )
        args, kwargs = feed(self._model, tensor)
        with out_of_memory(f"running {self._model.name}", self._model.device), capture:
            self._output = capture.run(*args, **kwargs)
        return self._output, capture.activations

    def _values(self, seen: Tensor) -> tuple[Tensor, Tensor | None]:
        """(N,) the objective for pictures, and the layer's tensor."""
        count = int(self._given["count"])
        output, records = self._forward(self._scaled(seen), stop=True)
        if self._class is not None:
            return self._class.score(Answer(output, count)), None
        for record in records:
            if (record.call, record.leaf, record.kind) == (self._call, self._leaf, self._kind):
                record = replace(record, axes=self._axes)
                reading = reading_of(record, count)
                axis = 1 if reading is None else reading[1]
                return self._objective(record), record.tensor.movedim(axis, 1)
        raise LayerError(f"'{self._layer}' did not run as it did before.")

    # Steps

    def paint(self, progress: Progress | None) -> tuple[list[float], bool]:
        """Makes the steps.

        Returns:
            The value at each, and whether it was cancelled.
        """
        values = self._spectrum.values
        optimiser = torch.optim.Adam([values], lr=float(self._given["learning_rate"]))
        history: list[float] = []
        try:
            for step in range(1, int(self._given["steps"]) + 1):
                if self._cancelled is not None and self._cancelled():
                    raise RunCancelled("The picture was cancelled.")
                with torch.enable_grad():
                    pictures = self.pictures()
                    found, tensor = self._values(self._moves.seen(pictures, self._generator))
                    goal = found.float().mean()
                    if not goal.requires_grad:
                        raise self._no_gradient()
                    if tensor is not None and len(pictures) > 1:
                        goal = goal - float(self._given["diversity"]) * _likeness(tensor)
                    try:
                        (gradient,) = torch.autograd.grad(goal, [values], allow_unused=True)
                    except (RuntimeError, NotImplementedError) as error:
                        raise self._no_gradient(error_text(error)) from error
                reached = float(found.detach().float().mean())
                if gradient is None:
                    raise self._no_gradient()
                if not math.isfinite(reached) or not bool(gradient.isfinite().all()):
                    raise HookvizError(
                        f"At step {step} the value or its gradient is not finite ({reached:g}).",
                        remedy="Use a smaller learning_rate, or the model in float32.",
                    )
                values.grad = -gradient
                optimiser.step()
                values.grad = None
                history.append(reached)
                if progress is not None:
                    with torch.no_grad():
                        progress(step, reached, _image(torch.cat(list(self.pictures()), 2)))
        except RunCancelled:
            if not history:
                raise
            return history, True
        return history, False

    def values(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """For each picture its value as it is, and the mean under fresh transformations."""
        asked, self._cancelled = self._cancelled, None  # what there is is measured to its end
        with torch.no_grad():
            pictures = self.pictures()
            clean = self._values(pictures)[0]
            generator = torch.Generator("cpu").manual_seed((self._fresh + 1) * 7919 % 2**63)
            fresh = [self._values(Moves().seen(pictures, generator))[0] for _ in range(_FRESH)]
        self._cancelled = asked
        return tuple(clean.tolist()), tuple(torch.stack(fresh).mean(0).tolist())

    def _no_gradient(self, why: str = "") -> HookvizError:
        where = f"layer '{self._layer}'" if self._layer else "the model's output"
        cause = why or (
            "something before it is quantised or of whole numbers, or cuts it off (no_grad, detach)"
        )
        return HookvizError(
            f"No gradient leads from {where} to the picture: {cause}.",
            remedy="Use the model in floating point, or a layer before.",
            code="no-gradient",
            details={"layer": self._layer},
        )


def _weights(channel: Any) -> dict[int, float]:
    """The weight of each channel that was asked for."""
    legal = "a channel, several, or a mapping from channels to weights"
    if isinstance(channel, Mapping):
        pairs = list(channel.items())
    elif isinstance(channel, Sequence) and not isinstance(channel, str):
        pairs = [(one, 1.0) for one in channel]
    else:
        pairs = [(channel, 1.0)]
    for one, weight in pairs:
        if isinstance(one, bool) or not isinstance(one, int) or one < 0:
            raise HookvizError(f"channel is {channel!r:.80}; it must be {legal}, from 0.")
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise HookvizError(f"The weight of channel {one} is {weight!r:.80}, no number.")
    if not pairs:
        raise HookvizError(f"channel is {channel!r:.80}; it must be {legal}, at least one.")
    return {int(one): float(weight) for one, weight in pairs}


def _likeness(tensor: Tensor) -> Tensor:
    """The mean cosine similarity of the Gram matrices of different samples, (N, C, …)."""
    flat = tensor.float().flatten(2) if tensor.dim() > 2 else tensor.float()[..., None]
    gram = (flat @ flat.transpose(1, 2)).flatten(1)
    gram = gram / gram.norm(dim=1, keepdim=True).clamp(min=1e-12)
    alike = gram @ gram.t()
    count = len(tensor)
    apart: Tensor = (alike.sum() - alike.diagonal().sum()) / (count * (count - 1))
    return apart
