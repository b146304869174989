"""The parts that are figures: grids, contact sheet, input, each with what it says about itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_hex
from PIL import Image

from hookviz.activation import Activation
from hookviz.errors import ExportError, RenderError
from hookviz.export._facts import (
    FileRecord,
    Key,
    RunFacts,
    activation_texts,
    base_name,
    key_of,
    number_text,
    odd_texts,
    ranges_text,
    run_texts,
)
from hookviz.export._names import CONTACT_STEM, INPUT_NAME, page_ending
from hookviz.export._part import (
    UNREADABLE,
    Again,
    Export,
    ExportPart,
    Item,
    Pixels,
    PngContents,
    Task,
    encoding,
    reason,
)
from hookviz.render import (
    ActivationPair,
    Drawing,
    FigureFacts,
    GridOptions,
    draw,
    fitted,
    page_count,
    palette,
)

CONTACT_CELLS = 24
"""Layers on one page of a contact sheet."""

_CELL_WIDTH = 420
_COLUMNS = 4
_GAP = 12


def draw_activation(facts: RunFacts, activation: Activation, options: GridOptions) -> Drawing:
    """One page of a layer, as the screen and the files show it.

    Args:
        facts: The run; an untrained model is marked on the figure.
        activation: The record.
        options: How to draw, and which page.

    Raises:
        RenderError: The activation cannot be drawn in that way.
    """
    image = facts.input_image
    return draw(
        activation,
        options,
        facts=FigureFacts(
            model=facts.model,
            weights=facts.weights,
            trained=facts.trained,
            image=base_name(facts.image_name),
            input_size=facts.input_size,
            # A comparison says itself what each of its sides is.
            edits="" if isinstance(activation, ActivationPair) else facts.edits,
        ),
        background=None if image is None else np.asarray(image.convert("RGB")),
        categories=facts.categories,
    )


def opaque(pixels: Pixels) -> Pixels:
    """(H, W, 3) where every pixel is opaque, else (H, W, 4) unchanged."""
    if pixels.shape[2] == 4 and bool((pixels[..., 3] == 255).all()):
        return np.ascontiguousarray(pixels[..., :3])
    return pixels


def grid_page(facts: RunFacts, activation: Activation, options: GridOptions) -> PngContents:
    """One page of a grid.

    Returns:
        (H, W, 3) or, on a transparent page, (H, W, 4) uint8; and the texts of the file.

    Raises:
        RenderError: The activation cannot be drawn in that way.
    """
    drawing = draw_activation(facts, activation, options)
    return opaque(drawing.pixels()), grid_texts(facts, activation, options, drawing)


def grid_texts(
    facts: RunFacts, activation: Activation, options: GridOptions, drawing: Drawing
) -> dict[str, str]:
    """What a file with one page of a grid says about itself."""
    record = FileRecord("grid", (key_of(activation),), options.to_json(), page=options.page)
    texts = run_texts(facts) | activation_texts(activation) | view_texts(options)
    texts |= {
        "layout": " ".join((drawing.kind, drawing.axes, *drawing.notes)),
        "channels": ranges_text(drawing.channels),
        "page": f"{drawing.page + 1} of {drawing.pages}",
        "order": options.order,
        "scale": drawing.scale,
        "vmin": number_text(drawing.vmin),
        "vmax": number_text(drawing.vmax),
        "cmap": drawing.cmap,
    }
    texts |= _page_texts(options)
    if drawing.vmin is None:
        ends = [[number_text(low), number_text(high)] for low, high in drawing.tile_ranges]
        texts["ranges"] = json.dumps(ends)
    texts |= odd_texts(nan=drawing.nan, posinf=drawing.posinf, neginf=drawing.neginf)
    return texts | record.texts()


def view_texts(options: GridOptions) -> dict[str, str]:
    """Which sample and frame a file shows."""
    texts = {"sample": str(options.sample)}
    if options.frame is not None:
        texts["frame"] = str(options.frame)
    return texts


def _page_texts(options: GridOptions) -> dict[str, str]:
    """What decides how a page with letters looks, beside its options."""
    style: str | None = options.style
    if style is None:
        page = palette(None)
        colors = f"page {to_hex(page.face, True)}, text {to_hex(page.ink, True)}"
        style = f"matplotlib's: {colors}, font {', '.join(page.family)}"
    return {"style": style, "matplotlib_version": mpl.__version__}


def input_page(facts: RunFacts) -> PngContents:
    """What the network saw.

    Raises:
        ExportError: The run had no image.
    """
    if facts.input_image is None:
        raise ExportError("This run has no image of its input.")
    pixels = np.asarray(facts.input_image.convert("RGB"))
    return pixels, run_texts(facts) | FileRecord("input", options="").texts()


def _cell_options(options: GridOptions) -> GridOptions:
    """What a cell shows, whatever the layer: nothing that only some layers allow."""
    return options.replace(
        order="index" if options.order.startswith("similarity") else options.order,
        hide_dead=False,
        per_page=16,
        page=0,
        width=_CELL_WIDTH,
        dpi=80.0,
        ncols=4,
        show_input=False,
        overlay=False,
        summary="none",
        channels=None,
        first=None,
        top=None,
        title=None,
    )


def contact_page(
    facts: RunFacts,
    activations: Sequence[Activation],
    options: GridOptions,
    page: int,
    where: str,
    proceed: Callable[[], None] = lambda: None,
    refused: Callable[[str], object] | None = None,
) -> PngContents:
    """One page of a contact sheet: up to 24 layers, of each the first 16 channels.

    Args:
        facts: The run.
        activations: Those of this page, in order.
        options: Colors, scale, order and style of each cell.
        page: Which page, from 0.
        where: The same for people: "1 of 2".
        proceed: Called before each cell; raises to stop.
        refused: Called with a sentence for each activation that cannot be drawn and is left out.

    Raises:
        RenderError: None of the activations can be drawn.
    """
    chosen = _cell_options(options)
    cells: list[Image.Image] = []
    keys: list[Key] = []
    for activation in activations:
        proceed()
        try:
            pixels = draw_activation(facts, activation, chosen).pixels()
        except UNREADABLE as error:
            if refused is not None:
                refused(f"'{activation.label}' is not on the contact sheet: {reason(error)}")
            continue
        cells.append(Image.fromarray(pixels))
        keys.append(key_of(activation))
    if not cells:
        raise RenderError("None of the layers can be drawn on a contact sheet.")
    columns = min(_COLUMNS, len(cells))
    rows = [cells[at : at + columns] for at in range(0, len(cells), columns)]
    heights = [max(cell.height for cell in row) for row in rows]
    size = (
        columns * (_CELL_WIDTH + _GAP) + _GAP,
        sum(heights) + _GAP * (len(rows) + 1),
    )
    # The page goes on in the color of the cells' own page.
    sheet = Image.new("RGBA", size, cells[0].getpixel((0, 0)))
    top = _GAP
    for row, height in zip(rows, heights, strict=True):
        for column, cell in enumerate(row):
            sheet.paste(cell, (_GAP + column * (_CELL_WIDTH + _GAP), top))
        top += height + _GAP
    record = FileRecord("contact", tuple(keys), options.to_json(), page=page)
    texts = run_texts(facts) | view_texts(options) | {"page": where}
    texts |= {"order": options.order} | _page_texts(options) | record.texts()
    return opaque(np.asarray(sheet)), texts | _shared_texts(activations)


def _shared_texts(activations: Sequence[Activation]) -> dict[str, str]:
    """What some records say alike beside what every one says."""
    first, *others = (activation.texts for activation in activations)
    return {key: text for key, text in first.items() if all(o.get(key) == text for o in others)}


def fit(export: Export) -> None:
    """Finds for each layer how many pages it has, and which options it can follow.

    A file shows what the screen shows: a choice that some layers cannot follow is left out for
    them, with a note. One that no layer can follow, not even in part, is refused.
    """
    facts = FigureFacts(input_size=export.facts.input_size)
    refused: list[tuple[Item, RenderError]] = []
    for item in export.drawable:
        pages = partial(page_count, item.activation, facts=facts)
        options = export.options_of(item)
        if found := export.attempt(partial(fitted, options, pages), item, "no grid"):
            item.pages, item.options, refusal = found
            refused += [(item, refusal)] if refusal else []
    drawn = [item for item in export.drawable if item.options is not None]
    in_part = [item for item, _ in refused if item.options and item.options.channels is not None]
    for item, refusal in refused:
        if len(refused) == len(drawn) and not in_part:
            item.pages = 0
            export.leave_out(refusal, item, "no grid")
        else:
            item.notes.append(f"the grid does not follow every choice: {refusal.message}")


class Grids(ExportPart):
    """Each page of each layer, as the screen shows it."""

    name, record = "grids", "grid"
    ending = "png"

    def plan(self, export: Export) -> Iterator[Task]:
        """One task a page."""
        if not any(item.options for item in export.items):
            fit(export)
        for item in export.items:
            pages, first = range(item.pages), export.options.page
            if not export.all_pages and item.pages:
                if first >= item.pages:
                    item.notes.append(f"page {first + 1} was not written: there are {item.pages}")
                pages = pages[first : first + 1]
            for page in pages:
                ending = page_ending(page, item.pages, self.ending)
                yield Task(self, [export.book.take(item.stem, ending)], item, page)

    def write(self, task: Task, export: Export) -> None:
        """Draws here, encodes and writes on another thread."""
        if task.item is not None and task.item.options is not None:
            options = task.item.options.replace(page=task.data)
            draw = partial(self.page, export.facts, task.item.activation, options)
            if encode := export.made(draw, task):
                export.put(task, encode)

    def page(
        self, facts: RunFacts, activation: Activation, options: GridOptions
    ) -> Callable[[], bytes]:
        """One page, drawn; gives what gives the file's bytes."""
        return encoding(grid_page(facts, activation, options))

    def redraw(self, again: Again) -> PngContents:
        """The page that the record names."""
        return grid_page(again.facts, again.activations[0], again.options)


class Contact(ExportPart):
    """A sheet of all layers, of each the first 16 channels."""

    name, record, single = "contact", "contact", False

    def plan(self, export: Export) -> Iterator[Task]:
        """One task a page."""
        drawn = [item.activation for item in export.drawable]
        pages = -(-len(drawn) // CONTACT_CELLS)
        for page in range(pages):
            name = export.book.take(CONTACT_STEM, f"_p{page + 1}of{pages}.png")
            part = drawn[page * CONTACT_CELLS : (page + 1) * CONTACT_CELLS]
            yield Task(self, [name], data=(part, page, f"{page + 1} of {pages}"))

    def write(self, task: Task, export: Export) -> None:
        """Draws here, encodes and writes on another thread."""
        shown, page, where = task.data
        draw = partial(contact_page, export.facts, shown, export.options, page, where)
        draw = partial(draw, export.pipeline.proceed, export.notes.append)
        if picture := export.made(draw, task):
            export.put(task, encoding(picture))

    def redraw(self, again: Again) -> PngContents:
        """The page that the record names."""
        if not again.activations:
            raise ExportError("The contact sheet names no layers.")
        page, where = again.record.page, again.texts.get("page", "")
        options = again.options.replace(page=0)
        return contact_page(again.facts, again.activations, options, page, where)


class Input(ExportPart):
    """What the network saw."""

    name, record = "input", "input"
    draws = single = False

    def plan(self, export: Export) -> Iterator[Task]:
        """One task."""
        if export.facts.input_image is None:
            export.notes.append("the run has no image of its input, so none was written")
        else:
            yield Task(self, [INPUT_NAME])

    def write(self, task: Task, export: Export) -> None:
        """Encodes and writes on another thread."""
        export.put(task, encoding(input_page(export.facts)))

    def redraw(self, again: Again) -> PngContents:
        """The input of the new run."""
        return input_page(again.facts)
