"""Files: names, PNG metadata, manifest, raw values, zip, and drawing a PNG again.

In: the facts of a run and its activations. Out: a folder of files; what a file says about itself.
Must not know: how a run is made, the widget, the command line.
"""

from __future__ import annotations

from hookviz.export._facts import RunFacts, base_name, read_png_facts
from hookviz.export._figures import draw_activation
from hookviz.export._folder import disk_error, lock_taken, whole_file, zip_export
from hookviz.export._frames import FrameExport, FrameForm
from hookviz.export._part import Export, ExportPart, Task, ValueFormat
from hookviz.export._parts import chosen_parts
from hookviz.export._reproduce import Reproduction, kinds_in, reproduce_png
from hookviz.export._saved import SavedExport
from hookviz.export._writer import (
    ExportCancelled,
    ExportChoices,
    ExportResult,
    ExportStopped,
    page_size,
    write_export,
)

__all__ = [
    "Export",
    "ExportCancelled",
    "ExportChoices",
    "ExportPart",
    "ExportResult",
    "ExportStopped",
    "FrameExport",
    "FrameForm",
    "Reproduction",
    "RunFacts",
    "SavedExport",
    "Task",
    "ValueFormat",
    "base_name",
    "chosen_parts",
    "disk_error",
    "draw_activation",
    "kinds_in",
    "lock_taken",
    "page_size",
    "read_png_facts",
    "reproduce_png",
    "whole_file",
    "write_export",
    "zip_export",
]
