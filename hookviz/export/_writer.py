"""One export: a folder with pictures, values and a manifest.

In: the facts of a run, its activations, what was asked for. Out: files in one new folder. Must not
know: how the run was made, where the progress is shown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TypedDict

from hookviz.activation import Activation
from hookviz.errors import ExportError
from hookviz.export._execution import Export
from hookviz.export._facts import RunFacts
from hookviz.export._files import ExportFolder
from hookviz.export._names import checked_name, folder_name
from hookviz.export._outcome import ExportCancelled, ExportResult
from hookviz.export._pictures import (
    input_size,
)
from hookviz.export._pipeline import Cancelled, Pipeline
from hookviz.export._plan import (
    check_choices,
    chosen_activations,
    chosen_parts,
    make_plan,
)
from hookviz.export._values import ValueFormat
from hookviz.render import GridOptions

__all__ = ["ExportChoices", "write_export"]

Progress = Callable[[int, int, str], None]


class ExportChoices(TypedDict, total=False):
    """The keywords of `write_export` that concern neither the folder nor what is in it."""

    options: GridOptions | None
    layers: str | Iterable[str] | None
    channels: str | int | Sequence[int] | None
    factor: int
    values: ValueFormat
    all_pages: bool
    overwrite: bool
    progress: Progress | None
    cancelled: Callable[[], bool] | None


def write_export(
    facts: RunFacts,
    activations: Iterable[Activation],
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    options: GridOptions | None = None,
    what: str | Iterable[str] = frozenset({"grids"}),
    layers: str | Iterable[str] | None = None,
    channels: str | int | Sequence[int] | None = None,
    factor: int = 1,
    values: ValueFormat = "npz",
    all_pages: bool = True,
    overwrite: bool = False,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> ExportResult:
    """Writes pictures, values and a manifest into one new folder.

    Each file appears whole or not at all; nothing that exists is changed.

    Args:
        facts: The run.
        activations: What it captured.
        folder: Where the export's own folder is made; it is made too where it is missing.
        name: The folder's name; by default ``<UTC time>_<model>_<image>``, with a number behind
            it where that exists.
        options: How grids are drawn; its colours and scale are used for single channels too.
        what: One or more of "grids" (every page of every layer), "channels" (single channels, 1
            pixel per activation), "values" (the tensors), "contact" (a sheet of all layers) and
            "input" (what the network saw).
        layers: Only these layers; None is all that were captured.
        channels: The single channels, "0-15,42", an index or indices; None is those of
            ``options``, else all. A layer without one of them is noted in the manifest.
        factor: Pixels per activation in single channels, 1 to 64.
        values: "npz" or "safetensors".
        all_pages: Every page of a grid; False is ``options.page`` alone.
        overwrite: Take over the folder ``name`` where it exists: files of the same name are
            replaced, and files that its old manifest lists and the new one does not are removed.
        progress: Called after each file: files done, files in all, the file's name.
        cancelled: Asked before each file and each cell of a contact sheet; True ends the export.

    Returns:
        The folder, the files and the manifest.

    Raises:
        ExportError: A choice is not legal, or the folder cannot be made.
        ExportStopped: Writing failed midway (a full disk, ...); tells what was finished.
        ExportCancelled: ``cancelled`` answered True; likewise.
        RenderError: None of the activations can be drawn in the way asked.
    """
    parts = chosen_parts(what)
    check_choices(factor, values)
    if options is None:
        options = GridOptions()
    elif not isinstance(options, GridOptions):
        raise ExportError(f"options is {options!r:.80}; it must be a hookviz.render.GridOptions.")
    for role, call in (("progress", progress), ("cancelled", cancelled)):
        if call is not None and not callable(call):
            raise ExportError(f"{role} is {call!r:.80}; it must be a function or None.")
    chosen = chosen_activations(activations, layers)
    if name is not None:
        checked_name(name)
    elif overwrite:
        raise ExportError("overwrite=True needs the name of the folder to overwrite.")
    with Pipeline(1, progress, cancelled) as pipeline:
        try:
            plan = make_plan(
                chosen,
                parts,
                options,
                channels=channels,
                all_pages=all_pages,
                values=values,
                input_size=input_size(facts),
                has_input=facts.input_picture is not None,
                proceed=pipeline.proceed,
            )
        except Cancelled:
            raise ExportCancelled(
                "The export was cancelled before its first file.",
                remedy=None,
                folder=None,
                files=(),
            ) from None
        pipeline.total = plan.total
        if name is None:
            made = folder_name(datetime.now(UTC), facts.model, facts.image_name)
            target = ExportFolder.new(folder, made)
        else:
            target = ExportFolder.named(folder, name, overwrite=overwrite)
        export = Export(facts, plan, target, pipeline, options, parts, factor, values)
        return export.run()
