"""Which files an export will hold, before the first is written.

In: activations and what was asked for. Out: one item per activation with the names of its files.
Must not know: how a file is drawn or written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from hookviz.activation import Activation
from hookviz.errors import ExportError, RenderError, did_you_mean
from hookviz.export._channels import MAX_FACTOR
from hookviz.export._names import (
    CONTACT_STEM,
    INPUT_NAME,
    MANIFEST_NAME,
    NameBook,
    activation_stem,
    channel_ending,
    page_ending,
)
from hookviz.export._outcome import UNREADABLE, reason
from hookviz.export._values import VALUE_FORMATS
from hookviz.render import GridOptions, PictureFacts, arrange, page_count, parse_channels

__all__ = ["PARTS", "Item", "Plan", "chosen_activations", "chosen_parts", "make_plan"]

PARTS = ("grids", "channels", "values", "contact", "input")
"""What an export may hold."""


@dataclass(eq=False)
class Item:
    """The files of one activation.

    Attributes:
        activation: The record.
        stem: The beginning of their names.
        drawable: Whether the tensor can be drawn at all.
        pages: Pages to write as grids, each with its file's name.
        pages_in_all: How many pages the layer has.
        channels: Single channels to write, each with its file's name.
        values: Name of the file of raw values; "" for none.
        notes: Sentences about what is left out.
    """

    activation: Activation
    stem: str
    drawable: bool = True
    pages: list[tuple[int, str]] = field(default_factory=list)
    pages_in_all: int = 0
    channels: list[tuple[int, str]] = field(default_factory=list)
    values: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Plan:
    """All files of an export.

    Attributes:
        items: One per activation, in the order given.
        contact: Names of the contact sheet's pages.
        input: Whether the input picture is written.
        notes: Sentences about what is left out of the export as a whole.
    """

    items: list[Item]
    contact: list[str]
    input: bool
    notes: list[str]

    @property
    def total(self) -> int:
        """How many files, the manifest included."""
        per_item = sum(len(i.pages) + len(i.channels) + bool(i.values) for i in self.items)
        return per_item + len(self.contact) + self.input + 1


def chosen_parts(what: str | Iterable[str]) -> frozenset[str]:
    """The parts asked for, checked.

    Raises:
        ExportError: None is asked for, or an unknown one.
    """
    parts = frozenset(_listed("what", what))
    legal = ", ".join(repr(part) for part in PARTS)
    for part in sorted(parts):
        if part not in PARTS:
            raise ExportError(
                f"what={part!r} is no part of an export; legal are {legal}.",
                remedy=did_you_mean(part, PARTS) or None,
            )
    if not parts:
        raise ExportError(f"what is empty, so nothing would be exported; legal are {legal}.")
    return parts


def _listed(name: str, value: str | Iterable[str]) -> list[str]:
    """One text, or several, as a list."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Iterable):
        return [str(item) for item in value]
    raise ExportError(f"{name} is {value!r:.80}; it must be a str or a list of them.")


def chosen_activations(
    activations: Iterable[Activation], layers: str | Iterable[str] | None
) -> tuple[Activation, ...]:
    """Those of the layers asked for, in the order given.

    Raises:
        ExportError: A layer has no activation.
    """
    everything = tuple(activations)
    if layers is None:
        return everything
    wanted = _listed("layers", layers)
    there = dict.fromkeys(activation.layer for activation in everything)
    for layer in wanted:
        if layer not in there:
            raise ExportError(
                f"Layer {layer!r} has no activation in this run.",
                remedy=did_you_mean(layer, there) or None,
            )
    return tuple(activation for activation in everything if activation.layer in set(wanted))


def check_choices(factor: int, values: str) -> None:
    """Raise ExportError where a number or a form is not legal."""
    if isinstance(factor, bool) or not isinstance(factor, int) or not 1 <= factor <= MAX_FACTOR:
        raise ExportError(
            f"factor is {factor!r}; it is the number of pixels per activation, 1 to {MAX_FACTOR}."
        )
    if values not in VALUE_FORMATS:
        raise ExportError(
            f"values={values!r} is no form for values; legal are 'npz' and 'safetensors'."
        )


def make_plan(
    activations: Sequence[Activation],
    what: frozenset[str],
    options: GridOptions,
    *,
    channels: str | int | Sequence[int] | None,
    all_pages: bool,
    values: str,
    input_size: tuple[int, int] | None,
    has_input: bool,
    proceed: Callable[[], None],
) -> Plan:
    """Names every file.

    Raises:
        ExportError: No activation has any of the channels asked for, or nothing would be written.
        RenderError: None of the activations can be drawn in the way asked.
    """
    book = NameBook([MANIFEST_NAME, INPUT_NAME])
    stems = NameBook()
    several = len({activation.run for activation in activations}) > 1
    width = max(3, *(len(str(a.order)) for a in activations), 3)
    view = "-".join(
        [f"sample{options.sample}"] * bool(options.sample)
        + [f"frame{options.frame}"] * (options.frame is not None)
    )
    wanted = None
    if channels is not None:
        wanted = parse_channels([channels] if isinstance(channels, int) else channels)
        if not wanted:
            raise ExportError("channels is empty; name at least one, for example '0-15'.")
    items: list[Item] = []
    trouble: Exception | None = None
    for activation in activations:
        proceed()
        stem = activation_stem(activation, width=width, several_runs=several, view=view)
        item = Item(activation, stems.take_stem(stem))
        try:
            shape = arrange(activation, options, input_size).maps.shape
        except UNREADABLE as error:
            item.drawable = False
            item.notes.append(f"not drawn: {reason(error)}")
            trouble = trouble or error
        if item.drawable and "grids" in what:
            try:
                _plan_pages(item, options, input_size, all_pages, book)
            except UNREADABLE as error:
                item.notes.append(f"no grid: {reason(error)}")
                trouble = trouble or error
        if item.drawable and "channels" in what:
            _plan_channels(item, int(shape[0]), tuple(shape[1:]), wanted, options, book)
        if "values" in what:
            item.values = book.take(item.stem, f"_values.{values}")
        items.append(item)
    drawn = [item for item in items if item.drawable]
    pictures = drawn if "contact" in what else [i for i in items if i.pages or i.channels]
    if trouble is not None and not pictures and what & {"grids", "channels", "contact"}:
        raise (
            trouble
            if isinstance(trouble, RenderError)
            else RenderError(f"Nothing can be drawn: {reason(trouble)}")
        ) from trouble
    if wanted is not None and "channels" in what and drawn and not any(i.channels for i in items):
        raise ExportError(
            f"None of the layers has a picture of channel {wanted[0] if wanted else '?'}: "
            + "; ".join(note for item in drawn for note in item.notes[:1])
        )
    contact: list[str] = []
    if "contact" in what and drawn:
        from hookviz.export._pictures import contact_pages

        pages = contact_pages(len(drawn))
        contact = [book.take(CONTACT_STEM, f"_p{p + 1}of{pages}.png") for p in range(pages)]
    plan = Plan(items, contact, "input" in what and has_input, [])
    if "input" in what and not has_input:
        plan.notes.append("the run has no picture of its input, so none was written")
    if plan.total == 1:
        raise ExportError(
            "There is nothing to export: the run has no activation.",
            remedy="Run the model with at least one layer first.",
        )
    return plan


def _plan_pages(
    item: Item,
    options: GridOptions,
    input_size: tuple[int, int] | None,
    all_pages: bool,
    book: NameBook,
) -> None:
    pages = page_count(item.activation, options, facts=PictureFacts(input_size=input_size))
    item.pages_in_all = pages
    if not all_pages and options.page >= pages:
        item.notes.append(f"page {options.page + 1} was not written: there are {pages}")
        return
    for page in range(pages) if all_pages else [options.page]:
        item.pages.append((page, book.take(item.stem, page_ending(page, pages))))


def _plan_channels(
    item: Item,
    count: int,
    size: tuple[int, ...],
    wanted: Sequence[int] | None,
    options: GridOptions,
    book: NameBook,
) -> None:
    if size == (1, 1):
        item.notes.append(
            "single channels were not written: each is one number, which the grid shows as a bar"
        )
        return
    asked = wanted
    if asked is None and options.channels is not None:
        asked = parse_channels(options.channels)
    if asked is None:
        asked = range(count)
    there = [channel for channel in asked if channel < count]
    if len(there) < len(asked):
        missing = next(channel for channel in asked if channel >= count)
        item.notes.append(
            f"channel {missing} was not written: the layer has channels 0 to {count - 1}"
        )
    for channel in there:
        item.channels.append((channel, book.take(item.stem, channel_ending(channel, count))))
