"""One export: a folder with figures, values and a manifest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict, get_args

from hookviz.activation import Activation
from hookviz.errors import ExportError, HookvizError, RenderError, RunCancelled, did_you_mean
from hookviz.export._channels import MAX_FACTOR
from hookviz.export._facts import RunFacts
from hookviz.export._folder import ExportFolder, listed_files
from hookviz.export._manifest import layer_entry, manifest_of
from hookviz.export._names import MANIFEST_NAME, checked_name, folder_name
from hookviz.export._part import (
    Cancelled,
    Export,
    ExportPart,
    Pipeline,
    Task,
    TensorError,
    ValueFormat,
)
from hookviz.export._parts import chosen_parts, listed
from hookviz.render import GridOptions, parse_channels

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class ExportResult:
    """What an export wrote.

    Attributes:
        folder: The export's own folder, absolute.
        files: Every file in it but the manifest, in the order in which they were written.
        manifest: The manifest's path.
        notes: Sentences about what was asked for and left out.
    """

    folder: Path
    files: tuple[Path, ...]
    manifest: Path
    notes: tuple[str, ...] = ()


class ExportStopped(ExportError):  # noqa: N818 - stopping on request is no error
    """An export ended before its end. What was finished is whole and stays.

    Attributes:
        folder: The export's folder; None where nothing was finished and it was removed again.
        files: What was finished.
    """

    def __init__(
        self,
        message: str,
        *,
        remedy: str | None = None,
        folder: Path | None = None,
        files: tuple[Path, ...] = (),
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.folder, self.files = folder, files


class ExportCancelled(ExportStopped, RunCancelled):
    """An export was ended on request. What was finished is whole and stays."""


class ExportChoices(TypedDict, total=False):
    """The keywords of `write_export` that concern neither the folder nor what is in it."""

    options: GridOptions | None
    own_options: Mapping[str, GridOptions] | None
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
    own_options: Mapping[str, GridOptions] | None = None,
    what: str | Iterable[str] = frozenset({"grids"}),
    layers: str | Iterable[str] | None = None,
    channels: str | int | Sequence[int] | None = None,
    factor: int = 1,
    values: ValueFormat = "npz",
    all_pages: bool = True,
    overwrite: bool = False,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    further: Sequence[ExportPart] = (),
) -> ExportResult:
    """Writes figures, values and a manifest into one new folder.

    Each file appears whole or not at all; nothing that exists is changed.

    Args:
        facts: The run.
        activations: What it captured.
        folder: Where the export's own folder is made; it is made too where it is missing.
        name: The folder's name; by default ``<UTC time>_<model>_<image>``, with a number behind
            it where that exists.
        options: How grids are drawn; its colors and scale are used for single channels too.
        own_options: How the grids of single activations are drawn in place of ``options``, by
            ``Activation.label``; what says which values are meant (``sample``, ``frame``,
            ``axes``, ``grid``) may not differ.
        what: One or more of "grids" (every page of every layer as PNG), "svg" and "pdf" (the same
            pages in those forms), "channels" (single channels, 1 pixel per activation), "values"
            (the tensors), "contact" (a sheet of all layers), "input" (what the network saw) and
            "page" (one HTML file with the maps of all layers and their values in 16 bits, to be
            opened in any browser; `page_size` tells how large it gets).
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
        further: Parts beside those of ``what``, made by the caller; ``what`` may then be empty.

    Returns:
        The folder, the files and the manifest.

    Raises:
        ExportError: A choice is not legal, or the folder cannot be made.
        ExportStopped: Writing failed midway (a full disk, ...); says what was finished.
        ExportCancelled: ``cancelled`` answered True; likewise.
        RenderError: None of the activations can be drawn in the way asked.
    """
    parts = [*(chosen_parts(what) if what or not further else ()), *further]
    options = GridOptions() if options is None else options
    if not isinstance(options, GridOptions):
        raise ExportError(f"options is {options!r:.80}; it must be a hookviz.render.GridOptions.")
    if isinstance(factor, bool) or not isinstance(factor, int) or not 1 <= factor <= MAX_FACTOR:
        raise ExportError(
            f"factor is {factor!r}; it is the number of pixels per activation, 1 to {MAX_FACTOR}."
        )
    if values not in get_args(ValueFormat):
        raise ExportError(
            f"values={values!r} is no form for values; legal are 'npz' and 'safetensors'."
        )
    for role, call in (("progress", progress), ("cancelled", cancelled)):
        if call is not None and not callable(call):
            raise ExportError(f"{role} is {call!r:.80}; it must be a function or None.")
    wanted, chosen = _checked_channels(channels), _chosen_activations(activations, layers)
    if name is not None:
        checked_name(name)
    elif overwrite:
        raise ExportError("overwrite=True needs the name of the folder to overwrite.")
    with closing(Pipeline(progress, cancelled)) as pipeline:
        export = Export(facts, options, wanted, all_pages, factor, values, pipeline, parts)
        export.own_options = own_options or {}
        try:
            export.plan(chosen)
        except Cancelled:
            raise ExportCancelled("The export was cancelled before its first file.") from None
        if name is None:
            name = folder_name(datetime.now(UTC), facts.model, facts.image_name)
            export.folder = ExportFolder.new(folder, name)
        else:
            export.folder = ExportFolder.named(folder, name, overwrite=overwrite)
        return _written(export)


def page_size(
    facts: RunFacts,
    activations: Iterable[Activation],
    *,
    options: GridOptions | None = None,
    own_options: Mapping[str, GridOptions] | None = None,
    layers: str | Iterable[str] | None = None,
    all_pages: bool = True,
) -> int:
    """How large the file of ``what="page"`` gets, told before it is written.

    Args:
        facts: The run.
        activations: What it captured.
        options: As for `write_export`.
        own_options: Likewise.
        layers: Likewise.
        all_pages: Likewise.

    Returns:
        Bytes that the file has at most.

    Raises:
        ExportError: There is nothing to export.
        RenderError: None of the activations can be drawn in the way asked.
    """
    options = GridOptions() if options is None else options
    with closing(Pipeline(None, None)) as pipeline:
        export = Export(facts, options, None, all_pages, 1, "npz", pipeline, chosen_parts("page"))
        export.own_options = own_options or {}
        export.plan(_chosen_activations(activations, layers))
    return sum(task.most for task in export.tasks)


def _checked_channels(channels: str | int | Sequence[int] | None) -> tuple[int, ...] | None:
    if channels is None:
        return None
    found = parse_channels([channels] if isinstance(channels, int) else channels)
    if not found:
        raise ExportError("channels is empty; name at least one, for example '0-15'.")
    return found


def _chosen_activations(
    activations: Iterable[Activation], layers: str | Iterable[str] | None
) -> tuple[Activation, ...]:
    """Those of the layers asked for, in the order given."""
    everything = tuple(activations)
    if layers is None:
        return everything
    wanted = listed("layers", layers)
    there = dict.fromkeys(activation.layer for activation in everything)
    for layer in wanted:
        if layer not in there:
            raise ExportError(
                f"Layer {layer!r} has no activation in this run.",
                remedy=did_you_mean(layer, there) or None,
            )
    return tuple(activation for activation in everything if activation.layer in set(wanted))


def _written(export: Export) -> ExportResult:
    """Writes everything.

    Raises:
        ExportStopped: Writing failed, or was cancelled (ExportCancelled).
    """
    folder, pipeline = export.folder, export.pipeline
    old = frozenset() if folder.made else listed_files(folder.path, MANIFEST_NAME)
    try:
        _do_tasks(export)
        if export.trouble is not None and not pipeline.done:
            raise export.trouble
        manifest = folder.write(MANIFEST_NAME, manifest_of(export))
        pipeline.wrote(MANIFEST_NAME)
    except Cancelled:
        raise _stopped(export, ExportCancelled, "The export was cancelled") from None
    except (RenderError, TensorError):  # the choice is at fault, not the writing
        folder.remove_if_empty()
        raise
    except HookvizError as error:
        raise _stopped(export, ExportStopped, error.message, error.remedy) from error
    except BaseException as error:  # KeyboardInterrupt, a fault of the caller's progress ...
        _stopped(export, ExportStopped, f"The export was ended by {type(error).__name__}")
        raise
    for name in old - set(pipeline.done):
        with suppress(OSError):
            (folder.path / name).unlink()
    notes = [f"{item.activation.label}: {note}" for item in export.items for note in item.notes]
    files = tuple(folder.path / name for name in pipeline.done if name != MANIFEST_NAME)
    return ExportResult(folder.path, files, manifest, (*export.notes, *notes))


def _do_tasks(export: Export) -> None:
    """First what concerns all layers, then layer by layer."""

    def do(tasks: Iterable[Task]) -> None:
        for task in tasks:
            export.pipeline.proceed()
            task.part.write(task, export)

    do(export.tasks)
    for item in export.items:
        do(item.tasks)
        export.entries.append(layer_entry(item, export.measured(item)))
    export.pipeline.drain()


def _stopped(
    export: Export, kind: type[ExportStopped], message: str, remedy: str | None = None
) -> ExportStopped:
    """What to raise, after the threads have ended and the rest is put in order."""
    folder, message = export.folder, message.rstrip(".")
    export.pipeline.close()
    finished = tuple(sorted(folder.finished))
    if not finished:
        place = None if folder.remove_if_empty() else folder.path
        return kind(f"{message}; no file was finished.", remedy=remedy, folder=place)
    with suppress(ExportError):
        folder.write(MANIFEST_NAME, manifest_of(export, stopped=message))
    return kind(
        f"{message}; {len(finished)} of {export.pipeline.total - 1} files were finished and stay "
        f"in {str(folder.path)!r}.",
        remedy=remedy,
        folder=folder.path,
        files=finished,
    )
