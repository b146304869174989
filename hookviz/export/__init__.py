"""Files: names, PNG metadata, manifest, raw values, zip, and drawing a PNG again.

In: the facts of a run and its activations. Out: a folder of files; what a file says about itself.
Must not know: how a run is made, the widget, the command line.
"""

from __future__ import annotations

from hookviz.export.archive import zip_export
from hookviz.export.facts import RunFacts
from hookviz.export.metadata import read_png_facts
from hookviz.export.outcome import ExportCancelled, ExportResult, ExportStopped
from hookviz.export.pictures import draw_activation
from hookviz.export.reproduce import Reproduction, needs_inputs, reproduce_png
from hookviz.export.writer import write_export

__all__ = [
    "ExportCancelled",
    "ExportResult",
    "ExportStopped",
    "Reproduction",
    "RunFacts",
    "draw_activation",
    "needs_inputs",
    "read_png_facts",
    "reproduce_png",
    "write_export",
    "zip_export",
]
