"""The grids of many frames: numbered files in one folder, and one manifest, written as they come.

An animation instead of the numbered files is Pillow's; PNG and WebP show every pixel as it was
drawn, a GIF has 256 colors a frame.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self, get_args

from PIL import Image

from hookviz.activation import Activation
from hookviz.errors import ExportError, HookvizError
from hookviz.export._facts import RunFacts
from hookviz.export._figures import grid_page
from hookviz.export._folder import ExportFolder
from hookviz.export._manifest import json_bytes, run_entries
from hookviz.export._names import (
    MANIFEST_NAME,
    NameBook,
    activation_stem,
    folder_name,
    page_ending,
)
from hookviz.export._part import UNREADABLE, reason
from hookviz.export._png import encoded_png
from hookviz.export._writer import ExportResult, ExportStopped
from hookviz.render import FigureFacts, GridOptions, HeldScales, Hold, Subject, fitted, page_count

FrameForm = Literal["files", "apng", "webp", "gif"]

_PILLOW: dict[str, tuple[str, dict[str, Any]]] = {
    "apng": ("PNG", {"compress_level": 6}),
    "webp": ("WEBP", {"lossless": True}),
    "gif": ("GIF", {}),
}
_LASTS = 0.1  # seconds of a frame that has no time, and of the last one


class FrameExport:
    """Writes the grids of runs over frames, one run after another; keeps none of them.

    In a ``with`` statement what was written stays, with a manifest that says so, where it is ended
    by an error.

    Args:
        folder: Where the export's own folder is made.
        options: How grids are drawn.
        form: "files": PNGs, numbered by frame, each as `write_export` writes it. "apng", "webp" or
            "gif": one animation for each layer instead.
        hold: See `HeldScales`.
        all_pages: Every page of a grid; False is ``options.page`` alone.

    Raises:
        ExportError: A choice is not legal.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        options: GridOptions | None = None,
        form: FrameForm = "files",
        hold: Hold = "none",
        all_pages: bool = True,
    ) -> None:
        if form not in get_args(FrameForm):
            raise ExportError(f"form={form!r}; legal are {', '.join(get_args(FrameForm))}.")
        self._where, self._form, self._all_pages = folder, form, all_pages
        self._options = options or GridOptions()
        self._held = HeldScales(hold)
        self._book = NameBook([MANIFEST_NAME])
        self._folder: ExportFolder | None = None
        self._facts: RunFacts | None = None
        self._apart: tempfile.TemporaryDirectory[str] | None = None
        self._animated: dict[str, list[tuple[Path, float]]] = {}
        self._frames: list[dict[str, Any]] = []
        self._notes: dict[str, None] = {}
        self._finished = False

    @property
    def count(self) -> int:
        """How many frames were taken."""
        return len(self._frames)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is not None and not self._finished:
            with suppress(ExportError, OSError):
                self.finish(f"Ended by {kind.__name__}.")

    def add(
        self,
        facts: RunFacts,
        activations: Iterable[Activation],
        *,
        number: int | None = None,
        seconds: float | None = None,
        own_options: dict[str, GridOptions] | None = None,
    ) -> list[str]:
        """Writes the grids of one frame.

        Args:
            facts: Its run.
            activations: What the run captured.
            number: Its number; None counts from 0.
            seconds: When it is shown.
            own_options: How single activations are drawn, by label, in place of ``options``.

        Returns:
            The names of the files.

        Raises:
            ExportStopped: It cannot be written; what was finished stays, with a manifest.
        """
        number = len(self._frames) if number is None else number
        entry: dict[str, Any] = {
            "number": number,
            "seconds": seconds,
            "image": {"name": facts.image_name, "sha256": facts.image_sha256},
            "layers": [],
        }
        try:
            if self._folder is None:
                name = folder_name(datetime.now(UTC), facts.model, facts.image_name)
                self._folder, self._facts = ExportFolder.new(self._where, name), facts
                if self._form != "files":
                    self._apart = tempfile.TemporaryDirectory(prefix="hookviz-")
            self._frames.append(entry)
            for activation in activations:
                options = (own_options or {}).get(activation.label, self._options)
                for drawn in self._pages(facts, activation, options, number):
                    entry["layers"].append(drawn)
        except HookvizError as error:
            raise self._stopped(error) from error
        return [drawn["file"] for drawn in entry["layers"]]

    def finish(self, stopped: str = "") -> ExportResult:
        """Writes the manifest, and the animations where these were asked for.

        Args:
            stopped: Why it ends before its end; "" where it is complete.

        Returns:
            The folder, its files and the manifest.

        Raises:
            ExportError: There was no frame, or it cannot be written.
        """
        folder, facts = self._folder, self._facts
        self._finished = True
        try:
            if folder is None or facts is None:
                raise ExportError("There is nothing to export: there was no frame.")
            for name, pages in self._animated.items():
                self._animate(folder, name, pages)
            manifest = run_entries(facts, stopped) | {
                "what": ["frames"],
                "options": json.loads(self._options.to_json()),
                "hold": self._held.how,
                "missing": {layer: str(why) for layer, why in facts.missing.items()},
                "files": sorted(path.name for path in folder.finished),
                "layers": [],
                "frames": self._frames,
                "notes": list(self._notes),
            }
            files = tuple(folder.finished)
            written = folder.write(MANIFEST_NAME, json_bytes(manifest))
            return ExportResult(folder.path, files, written, tuple(self._notes))
        finally:
            self._animated = {}
            if self._apart is not None:
                self._apart.cleanup()

    def _stopped(self, error: HookvizError) -> ExportStopped:
        with suppress(ExportError):
            self.finish(error.message)
        finished = tuple(self._folder.finished) if self._folder else ()
        where = f"; {len(finished)} files were finished and stay" if finished else ""
        return ExportStopped(
            f"{error.message.rstrip('.')}{where}.",
            remedy=error.remedy,
            folder=self._folder.path if self._folder else None,
            files=finished,
        )

    def _pages(
        self, facts: RunFacts, activation: Activation, options: GridOptions, number: int
    ) -> Iterator[dict[str, Any]]:
        size = FigureFacts(input_size=facts.input_size)
        label = activation.label
        try:
            count, options, refusal = fitted(options, partial(page_count, activation, facts=size))
            options = self._held.options(label, Subject(activation, options, size))
        except UNREADABLE as error:
            self._notes[f"{label}: no grid: {reason(error)}"] = None
            return
        if refusal:
            note = f"{label}: the grid does not follow every choice: {refusal.message}"
            self._notes[note] = None
        first = min(options.page, count - 1)
        if not self._all_pages and count > 1:
            self._notes[f"{label}: page {first + 1} of {count} alone"] = None
        stem = activation_stem(activation)
        for page in range(count) if self._all_pages else (first,):
            paged, ending = options.replace(page=page), page_ending(page, count)
            try:
                pixels, texts = grid_page(facts, activation, paged)
            except UNREADABLE as error:
                self._notes[f"{label}: no grid: {reason(error)}"] = None
                return
            yield {
                "layer": activation.layer,
                "call": activation.call,
                "file": self._write(number, stem, ending, encoded_png(pixels, texts)),
                **{name: texts[name] for name in ("scale", "vmin", "vmax")},
            }

    def _write(self, number: int, stem: str, ending: str, png: bytes) -> str:
        assert self._folder is not None  # noqa: S101 - `add` made it
        if self._apart is None:
            name = self._book.take(f"{number:06d}_{stem}", ending)
            self._folder.write(name, png)
            return name
        name = f"{stem}{ending.removesuffix('png')}{'png' if self._form == 'apng' else self._form}"
        pages = self._animated.setdefault(name, [])
        page = Path(self._apart.name) / f"{len(pages)}_{name}.png"
        page.write_bytes(png)
        seconds = self._frames[-1]["seconds"]
        pages.append((page, len(pages) * _LASTS if seconds is None else float(seconds)))
        return name

    def _animate(
        self, folder: ExportFolder, name: str, pages: Sequence[tuple[Path, float]]
    ) -> None:
        form, options = _PILLOW[self._form]
        begins = [seconds for _, seconds in pages]
        lasts = [max(0.01, later - now) for now, later in pairwise(begins)]
        lasts.append(lasts[-1] if lasts else _LASTS)
        with folder.open(name) as file:
            _Reel([page for page, _ in pages]).save(
                file,
                form,
                save_all=True,
                duration=[round(1000 * each) for each in lasts],
                loop=0,
                **options,
            )


class _Reel(Image.Image):
    """Pages as one image of several frames, each read when it is sought.

    Pillow's writers go through ``append_images`` twice, or make a list of it: all would be in
    memory. A figure is as high as its sentences are long, so lower ones are padded.
    """

    def __init__(self, pages: Sequence[Path]) -> None:
        super().__init__()
        self._pages = pages
        sizes = [_size(page) for page in pages]
        self._mode, self._size = "RGB", (max(w for w, _ in sizes), max(h for _, h in sizes))
        self.n_frames, self.is_animated = len(pages), len(pages) > 1
        self.seek(0)

    def seek(self, frame: int) -> None:
        if frame >= self.n_frames:
            raise EOFError
        with Image.open(self._pages[frame]) as file:
            page = file.convert("RGB")
        if page.size != self.size:
            padded = Image.new("RGB", self.size, page.getpixel((0, 0)))
            padded.paste(page)
            page = padded
        self._im, self._at = page.im, frame

    def tell(self) -> int:
        return self._at


def _size(page: Path) -> tuple[int, int]:
    with Image.open(page) as image:
        return image.size
