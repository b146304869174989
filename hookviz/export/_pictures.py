"""The pictures of an export, with what each says about itself.

In: the facts of a run, activations, drawing options. Out: pixels and texts by key. Must not know:
folders, file names, how a PNG is laid out.

Writing a file and drawing it again (:mod:`hookviz.export._reproduce`) both come through here, so
that both do the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_hex
from numpy.typing import NDArray
from PIL import Image

from hookviz.activation import Activation
from hookviz.errors import ExportError, RenderError
from hookviz.export._channels import ChannelPainter
from hookviz.export._facts import (
    FileRecord,
    Key,
    RunFacts,
    activation_texts,
    base_name,
    key_of,
    number_text,
    ranges_text,
    run_texts,
)
from hookviz.export._part import UNREADABLE, reason
from hookviz.render import Drawing, GridOptions, PictureFacts, draw, palette

__all__ = [
    "CONTACT_CELLS",
    "channel_texts",
    "contact_picture",
    "draw_activation",
    "grid_picture",
    "grid_texts",
    "input_picture",
]

CONTACT_CELLS = 24
"""Layers on one page of a contact sheet."""

_CELL_WIDTH = 420
_COLUMNS = 4
_GAP = 12

Pixels = NDArray[np.uint8]


def draw_activation(facts: RunFacts, activation: Activation, options: GridOptions) -> Drawing:
    """One page of a layer, as the screen and the files show it.

    Args:
        facts: The run; an untrained model is marked on the figure.
        activation: The record.
        options: How to draw, and which page.

    Raises:
        RenderError: The activation cannot be drawn in that way.
    """
    background = None
    if facts.input_picture is not None and (options.show_input or options.overlay is not False):
        background = np.asarray(facts.input_picture.convert("RGB"))
    return draw(
        activation,
        options,
        facts=PictureFacts(
            model=facts.model,
            weights=facts.weights,
            trained=facts.trained,
            image=base_name(facts.image_name),
            input_size=facts.input_size,
        ),
        background=background,
        categories=facts.categories,
    )


def _opaque(pixels: Pixels) -> Pixels:
    """(H, W, 3) where every pixel is opaque, else (H, W, 4) unchanged."""
    if pixels.shape[2] == 4 and bool((pixels[..., 3] == 255).all()):
        return np.ascontiguousarray(pixels[..., :3])
    return pixels


def grid_picture(
    facts: RunFacts, activation: Activation, options: GridOptions
) -> tuple[Pixels, dict[str, str]]:
    """One page of a grid.

    Returns:
        (H, W, 3) or, on a transparent page, (H, W, 4) uint8; and the texts of the file.

    Raises:
        RenderError: The activation cannot be drawn in that way.
    """
    drawing = draw_activation(facts, activation, options)
    return _opaque(drawing.pixels()), grid_texts(facts, activation, options, drawing)


def grid_texts(
    facts: RunFacts, activation: Activation, options: GridOptions, drawing: Drawing
) -> dict[str, str]:
    """What a file with one page of a grid says about itself."""
    record = FileRecord("grid", (key_of(activation),), options.to_json(), page=options.page)
    texts = run_texts(facts) | activation_texts(activation) | _view_texts(options)
    texts |= {
        "layout": " ".join((drawing.kind, drawing.layout, *drawing.notes)),
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
    for key, count in (
        ("nan", drawing.nan),
        ("posinf", drawing.posinf),
        ("neginf", drawing.neginf),
    ):
        if count:
            texts[key] = str(count)
    return texts | record.texts()


def _view_texts(options: GridOptions) -> dict[str, str]:
    texts = {"sample": str(options.sample)}
    if options.frame is not None:
        texts["frame"] = str(options.frame)
    return texts


def _page_texts(options: GridOptions) -> dict[str, str]:
    """What decides how a page with letters looks, beside its options."""
    style = options.style
    if style is None:
        page = palette(None)
        colours = f"page {to_hex(page.face, True)}, text {to_hex(page.ink, True)}"
        style = f"matplotlib's: {colours}, font {', '.join(page.family)}"
    return {"style": style, "matplotlib_version": mpl.__version__}


def channel_texts(facts: RunFacts, painter: ChannelPainter, options: GridOptions) -> dict[str, str]:
    """What all single channels of one activation say; the channel's own texts come on top."""
    texts = run_texts(facts) | activation_texts(painter.activation) | _view_texts(options)
    return texts | painter.texts()


def input_picture(facts: RunFacts) -> tuple[Pixels, dict[str, str]]:
    """What the network saw.

    Raises:
        ExportError: The run had no picture.
    """
    if facts.input_picture is None:
        raise ExportError("This run has no picture of its input.")
    pixels = np.asarray(facts.input_picture.convert("RGB"))
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
        top=None,
        title=None,
    )


def contact_picture(
    facts: RunFacts,
    activations: Sequence[Activation],
    options: GridOptions,
    page: int,
    pages: int,
    proceed: Callable[[], None] = lambda: None,
    refused: Callable[[str], object] | None = None,
) -> tuple[Pixels, dict[str, str]]:
    """One page of a contact sheet: up to 24 layers, of each the first 16 channels.

    Args:
        facts: The run.
        activations: Those of this page, in order.
        options: Colours, scale, order and style of each cell.
        page: Which page, from 0.
        pages: How many there are.
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
    # The page goes on in the colour of the cells' own page.
    sheet = Image.new("RGBA", size, cells[0].getpixel((0, 0)))
    top = _GAP
    for row, height in zip(rows, heights, strict=True):
        for column, cell in enumerate(row):
            sheet.paste(cell, (_GAP + column * (_CELL_WIDTH + _GAP), top))
        top += height + _GAP
    record = FileRecord("contact", tuple(keys), options.to_json(), page=page)
    texts = run_texts(facts) | _view_texts(options) | {"page": f"{page + 1} of {pages}"}
    texts |= {"order": options.order} | _page_texts(options) | record.texts()
    return _opaque(np.asarray(sheet)), texts
