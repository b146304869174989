"""Grids as SVG and PDF: letters stay letters, maps stay pixels, and equal grids give equal bytes.

The maps are in the file as they are in the PNG, pixel for pixel; a viewer may smooth them where it
enlarges them. No date and no random name is written. The texts of the PNGs are in the metadata.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from typing import Any

import matplotlib as mpl

from hookviz.activation import Activation
from hookviz.export._facts import RunFacts
from hookviz.export._figures import Grids, draw_activation, grid_texts
from hookviz.export._png import plain_text
from hookviz.render import GridOptions

_LOCK = threading.Lock()
# Letters as text, not as outlines; ids from a fixed salt instead of random ones.
_SETTINGS: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "hookviz", "pdf.fonttype": 42}


class VectorGrids(Grids):
    """The same pages as SVG or PDF; they are not drawn again.

    Args:
        ending: "svg" or "pdf".
    """

    record = ""

    def __init__(self, ending: str) -> None:
        self.name = self.ending = ending

    def page(
        self, facts: RunFacts, activation: Activation, options: GridOptions
    ) -> Callable[[], bytes]:
        """One page, drawn and encoded."""
        data = vector_page(facts, activation, options, self.ending)
        return lambda: data


def vector_page(facts: RunFacts, activation: Activation, options: GridOptions, form: str) -> bytes:
    """One page of a grid as SVG or PDF.

    Args:
        facts: The run.
        activation: The record.
        options: How to draw, and which page.
        form: "svg" or "pdf".

    Returns:
        The file's bytes.

    Raises:
        RenderError: The activation cannot be drawn in that way.
    """
    drawing = draw_activation(facts, activation, options)
    texts = json.dumps(grid_texts(facts, activation, options, drawing))
    title = plain_text(f"{facts.model} {activation.label}")
    software = f"hookviz {facts.hookviz_version}"
    about = {
        "svg": {"Date": None, "Title": title, "Creator": software, "Description": texts},
        "pdf": {"CreationDate": None, "Title": title, "Creator": software, "Keywords": texts},
    }
    file = io.BytesIO()
    # Matplotlib reads these from its rcParams alone; no other setting is touched meanwhile.
    with _LOCK:
        before = {name: mpl.rcParams[name] for name in _SETTINGS}
        mpl.rcParams.update(_SETTINGS)
        try:
            drawing.figure.savefig(file, format=form, metadata=about[form])
        finally:
            mpl.rcParams.update(before)
    return file.getvalue()
