"""The two sides of a comparison: what each is, what it holds, and how its values are had.

The rule: a side that holds its values (a run, records) or can read them one by one (an export) is
asked for each when it is needed. A side that still has to run hands its values over one by one
while it runs, and keeps none; so of two that have to run, one keeps its values for the time of the
measuring.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hookviz._text import names_text
from hookviz.activation import Activation
from hookviz.capture import Capture, list_layers, select_layers
from hookviz.errors import HookvizError, LayerError, did_you_mean
from hookviz.images import network_input, read_image
from hookviz.models import LoadedModel
from hookviz.run import Run, loaded_model, run_model

if TYPE_CHECKING:
    from hookviz.export import RunFacts, SavedExport

Take = Callable[[Activation], None]


class Side(ABC):
    """One side of a comparison.

    Attributes:
        words: What it is, in words: model, image, device, dtype.
        input_size: (height, width) of what the network saw; None where that is unknown.
        device: Where it ran, for example "cuda:0"; "" where its tensors say so.
        holds: Whether `read` gives values; else the side has to be kept or streamed.
    """

    words = ""
    input_size: tuple[int, int] | None = None
    device = ""
    holds = True

    def size(self) -> tuple[int, int] | None:
        """``input_size``, found out where it is not known yet."""
        return self.input_size

    @abstractmethod
    def records(self, layers: Any) -> tuple[Activation, ...]:
        """The records of the selected layers in order of execution, perhaps without values.

        Raises:
            LayerError: A selector matches nothing.
        """

    @abstractmethod
    def facts(self) -> RunFacts:
        """What files say of it.

        Raises:
            HookvizError: Nothing is known of where the records come from.
        """

    def read(self, record: Activation) -> Activation:
        """The record with its values."""
        return record

    def stream(self, layers: Any, take: Take) -> None:
        """Hands over each selected record with its values, in order of execution."""
        for record in self.records(layers):
            take(self.read(record))

    def kept(self, layers: Any, *, find_axes: bool = True) -> Side:  # noqa: ARG002 - for others
        """A side that holds the values of these layers."""
        return self

    def layer_names(self) -> frozenset[str]:
        """The layers that it may have records of."""
        return frozenset(record.layer for record in self.records("*"))


class HeldSide(Side):
    """Records in memory: a run's, a capture's or any others.

    Args:
        records: In order of execution.
        run: Where they come from; None where that is not known.
    """

    def __init__(self, records: Sequence[Activation], run: Run | None = None) -> None:
        if not records:
            raise HookvizError("One side of the comparison has no activations.")
        self._records, self._run = tuple(records), run
        if run is not None:
            self.words, self.input_size = _words(run), _input_size(run.input.tensor)
        else:
            tensor = self._records[0].tensor
            self.words = f"{tensor.device} {str(tensor.dtype).removeprefix('torch.')}"
            if len(records) == 1:
                self.words = f"{self._records[0].label}, {self.words}"

    def records(self, layers: Any) -> tuple[Activation, ...]:
        return chosen(self._records, layers, None if self._run is None else self._run.model.module)

    def facts(self) -> RunFacts:
        return _facts_of_none(self._records[0]) if self._run is None else self._run.facts


class KeptSide(HeldSide):
    """Records that outlive the model that gave them, with what is to be said of them.

    Args:
        records: In order of execution; not copied. All of them are compared.
        words: What they are, for people: model, image, device, dtype.
        input_size: (height, width) of what the network saw, in pixels; None where that is unknown.
        facts: What files say of them; None where no file will be written.
        device: Where the model ran, where that is not the device of the tensors.
    """

    def __init__(
        self,
        records: Sequence[Activation],
        words: str,
        input_size: tuple[int, int] | None,
        facts: RunFacts | None,
        device: str = "",
    ) -> None:
        super().__init__(records)
        self.words, self.input_size, self.device = words, input_size, device
        self._facts = facts

    def records(self, layers: Any) -> tuple[Activation, ...]:  # noqa: ARG002 - as the others
        return self._records

    def facts(self) -> RunFacts:
        return self._facts or super().facts()


def words_of(facts: RunFacts) -> str:
    """What a side is, in words."""
    place = f"{facts.device} {facts.dtype}"
    return _sentence(facts.model, facts.trained, facts.image_name, place, facts.edits)


def _words(run: Run) -> str:
    """The same, without a hash of the weights."""
    place = f"{run.input.tensor.device} {str(run.model.dtype).removeprefix('torch.')}"
    edits = "; ".join(map(str, run.edits))
    return _sentence(run.model.name, run.model.trained, run.image.name, place, edits)


def _sentence(model: str, trained: bool, image: str, place: str, edits: str) -> str:
    untrained = "" if trained else " UNTRAINED"
    return f"{model}{untrained}, {image}, {place}" + f", edited: {edits}" * bool(edits)


def _input_size(tensor: Tensor) -> tuple[int, int]:
    return tensor.shape[-2], tensor.shape[-1]


class SavedSide(Side):
    """An export with raw values; each is read when it is needed."""

    def __init__(self, export: SavedExport) -> None:
        self._export = export
        self.input_size, self.device = export.input_size, export.facts.device
        self.words = words_of(export.facts)

    def records(self, layers: Any) -> tuple[Activation, ...]:
        return chosen(self._export.activations, layers, None)

    def facts(self) -> RunFacts:
        return self._export.facts

    def read(self, record: Activation) -> Activation:
        return self._export.read(record)


class PlannedSide(Side):
    """A model and an image, which run whenever values are needed.

    Args:
        model: A module, a `LoadedModel`, a name that `load_model` takes, or a function that gives
            one of these. What is loaded by name or made by a function is let go after each run.
        image: Anything that `read_image` takes.
    """

    holds = False

    def __init__(self, model: Any, image: Any) -> None:
        self._given, self._picture = model, read_image(image)
        self._loaded: LoadedModel | None = None
        self.words = self._picture.name

    def size(self) -> tuple[int, int]:
        return _input_size(network_input(self._picture, self._model().preprocess).tensor)

    def _model(self) -> LoadedModel:
        if self._loaded is None:
            given = self._given
            if callable(given) and not isinstance(given, LoadedModel | nn.Module):
                given = given()
            self._loaded = loaded_model(given, "auto", None)
        return self._loaded

    def _run(self, layers: Any, *, last: bool = True, **options: Any) -> Run:
        try:
            # A glob leaves out the model itself, whose output is what counts in the end.
            wanted = (lambda *_: True) if layers == "*" else layers
            run = run_model(self._model(), self._picture, wanted, **options)
        finally:
            self._loaded = None if last else self._loaded
        self.words = _words(run)
        return run

    def records(self, layers: Any) -> tuple[Activation, ...]:
        return self._run(
            layers, transform=lambda tensor: tensor.to("meta"), find_axes=False, last=False
        ).activations

    def facts(self) -> RunFacts:
        raise NotImplementedError("ask the side that `kept` gives")

    def kept(self, layers: Any, *, find_axes: bool = True) -> Side:
        run = self._run(layers, find_axes=find_axes)
        if not run.activations:
            reasons = "; ".join(f"'{name}': {reason}" for name, reason in run.missing.items())
            raise LayerError(f"No layer of {run.model.name} gave an activation ({reasons:.300}).")
        facts = run.facts if find_axes else None  # which takes a hash of the weights
        return KeptSide(run.activations, _words(run), _input_size(run.input.tensor), facts)

    def stream(self, layers: Any, take: Take) -> None:
        def take_and_free(record: Activation) -> None:
            take(record)
            # The run keeps every record; without its values that costs next to nothing.
            record.tensor.data = record.tensor.new_empty(0)

        self._run(layers, find_axes=False, on_activation=take_and_free)

    def layer_names(self) -> frozenset[str]:
        return frozenset(layer.name for layer in list_layers(self._model().module))


def _facts_of_none(record: Activation) -> RunFacts:
    """The facts of records that come from no run of hookviz's."""
    from hookviz.export import RunFacts

    dtype = str(record.tensor.dtype).removeprefix("torch.")
    return RunFacts(device=str(record.tensor.device), dtype=dtype)


def side_of(given: Any, name: str) -> Side:
    """What a caller of `compare` gave, as a side.

    Args:
        given: See `compare`.
        name: "a" or "b", for messages.

    Raises:
        HookvizError: It is nothing that can be compared.
    """
    if isinstance(given, Side):
        return given
    if isinstance(given, Run):
        return HeldSide(given.activations, given)
    if isinstance(given, Activation):
        return HeldSide((given,))
    if isinstance(given, Capture):
        return HeldSide(given.activations)
    if isinstance(given, str | Path):
        from hookviz.export import SavedExport

        if isinstance(given, str) and not Path(given).is_dir():
            raise HookvizError(
                f"{name} is {given!r:.80}, which is no folder of an export.",
                remedy=f"A model needs an image: ({given!r:.80}, image).",
            )
        return SavedSide(SavedExport.of(given))
    if isinstance(given, tuple) and len(given) == 2 and not isinstance(given[1], Activation):
        return PlannedSide(*given)
    if isinstance(given, Iterable) and not isinstance(given, nn.Module):
        records = tuple(given)
        if all(isinstance(record, Activation) for record in records):
            return HeldSide(records)
    raise HookvizError(
        f"{name} is {type(given).__name__}; it must be a Run, activations, a Capture, the folder "
        "of an export with raw values, or a pair (model, image)."
    )


def chosen(
    records: tuple[Activation, ...], layers: Any, module: nn.Module | None
) -> tuple[Activation, ...]:
    """The records of the selected layers.

    Args:
        records: All there are.
        layers: "*" for all; names, globs and compiled expressions; with a module any selectors.
        module: The model that ran; None where it is not at hand.

    Raises:
        LayerError: A selector matches nothing that was captured.
    """
    if isinstance(layers, str) and layers == "*":
        return records
    names = list(dict.fromkeys(record.layer for record in records))
    found: set[str] = set()
    several = isinstance(layers, Iterable) and not isinstance(layers, str)
    for selector in layers if several else [layers]:
        if isinstance(selector, str):
            matching = [n for n in names if n == selector] or [
                n for n in names if fnmatchcase(n, selector)
            ]
        elif isinstance(selector, re.Pattern):
            matching = [n for n in names if selector.search(n)]
        elif module is not None:
            matching = [n for n in select_layers(module, selector).values() if n in names]
        else:
            raise LayerError(
                f"{selector!r:.80} needs a model, and these activations come without one.",
                remedy="Choose layers by name, glob or compiled regular expression.",
            )
        if not matching:
            text = selector if isinstance(selector, str) else getattr(selector, "pattern", selector)
            raise LayerError(
                f"No activation is of a layer '{text}'; captured: {names_text(names, 8)}.",
                remedy=did_you_mean(str(text), names) or None,
            )
        found |= set(matching)
    return tuple(record for record in records if record.layer in found)
