"""Exports of the app: files on the kernel's machine, or one file for the browser."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

from hookviz._text import bytes_text
from hookviz.activation import Activation
from hookviz.errors import ExportError, HookvizError, RenderError
from hookviz.explanation import Explanation, FeatureVisualization
from hookviz.export import page_size, write_export, zip_export
from hookviz.render import fitted, page_count
from hookviz.run import Run
from hookviz.widget._app import App

_PIECE = 2_000_000
_SCOPES = ("grid", "ticked", "channels", "all")
_GRIDS = {"grids", "svg", "pdf", "page"}
_FILES_KEPT = 2


class Exporting:
    """Writes exports on the app's thread.

    Args:
        app: The app.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        # Files without a name, gone once they are closed.
        self._files: dict[str, IO[bytes]] = {}

    def why_not(self) -> str:
        """Why nothing can be exported now; "" where something can."""
        return "" if self._app.gallery.shown_cards else "Run the model first: there is nothing yet."

    def start(
        self,
        what: list[str],
        scope: str = "ticked",
        key: str = "",
        channels: str = "",
        values: str = "npz",
        folder: str = "",
        zipped: bool = False,
    ) -> bool:
        """Starts an export.

        Args:
            what: Kinds of file: "grids", "svg", "pdf", "page", "channels", "values".
            scope: "grid" (the card), "channels" (of the card), "ticked" or "all".
            key: The card; the current one where there is no such card.
            channels: Which, for the scope "channels".
            values: "npz" or "safetensors".
            folder: Where the new folder is made.
            zipped: Make a zip for the browser instead; of a page alone, the page itself.

        Returns:
            Whether it was started.

        Raises:
            ExportError: There is nothing to export, or the order makes no sense.
        """
        run, activations, options = self._ordered(scope, key)
        kinds = set(what) & {*_GRIDS, "channels", "values"}
        if scope == "channels":
            kinds = kinds - _GRIDS | {"channels"}
        if not kinds:
            raise ExportError(
                "No kind of file is chosen.", remedy="Choose grids, channels or values."
            )
        if zipped and kinds == {"page"}:
            return self._app.begin(
                "exporting",
                "Making the page …",
                partial(self._make_page, run, activations, options),
            )
        if scope == "channels":
            options["channels"] = channels.strip()
            if not options["channels"]:
                raise ExportError("No channels are chosen.", remedy="For example 0-15,42.")
        options |= {"values": values, "what": kinds | {"input"}}
        if scope == "all":
            options["what"] |= {"contact"}
        target = None if zipped else Path(folder.strip() or "hookviz_exports").expanduser()
        return self.start_with(run, activations, options, target)

    def start_with(
        self,
        run: Run | Explanation | FeatureVisualization,
        activations: list[Activation],
        options: dict[str, Any],
        target: Path | None,
    ) -> bool:
        """Starts an export of what is already settled.

        Args:
            run: What the values are of.
            activations: What is exported.
            options: Keywords of `hookviz.export.write_export`.
            target: Where the new folder is made; None makes a zip for the browser.

        Returns:
            Whether it was started.
        """
        task = partial(self._export, run, activations, options, target)
        return self._app.begin("exporting", "Exporting …", task)

    def tell_page_size(self, scope: str = "ticked", key: str = "") -> None:
        """Has the page told how large the file of ``what="page"`` gets at most; 0 for none."""

        def tell(size: int) -> None:
            self._app.send({"type": "page-size", "scope": scope, "key": key, "size": size})

        def task(_cancelled: Any = None) -> None:
            size = 0
            with contextlib.suppress(HookvizError):
                run, activations, options = self._ordered(scope, key)
                size = page_size(run.facts, activations, **options)
            tell(size)

        if scope == "channels" or self.why_not():
            tell(0)
        else:
            self._app.jobs.later("page-size", task)

    def _ordered(self, scope: str, key: str) -> tuple[Run, list[Activation], dict[str, Any]]:
        """What is exported: the run, its tensors and how they are drawn.

        Raises:
            ExportError: There is nothing to export, or it is of an earlier image or model.
        """
        app, gallery = self._app, self._app.gallery
        card = gallery.card(key) or gallery.current
        if self.why_not() or card is None:
            raise ExportError("There is nothing to export.", remedy="Run the model first.")
        if scope not in _SCOPES:
            legal = ", ".join(_SCOPES)
            raise ExportError(f"The export asks for scope={scope!r}; legal are {legal}.")
        if scope in ("ticked", "all"):
            captured = app.results.all_fresh()
            activations = [a for found in captured for a in found.activations]
            options: dict[str, Any] = {"options": gallery.page_options}
            options["own_options"] = {
                a.label: own
                for card in gallery.shown_cards
                if (own := card.own(gallery.page_options)) != gallery.page_options
                for a in card.leaves.values()
            }
            if scope == "ticked":
                shown = {id(a) for c in gallery.shown_cards for a in c.leaves.values()}
                activations = [a for a in activations if id(a) in shown]
        else:
            record, found = gallery.record_of(card), app.results.get(card.layer)
            if record is None:
                raise ExportError(
                    "The chosen card has nothing to export.", remedy="Choose another."
                )
            captured, activations = [found] if found else [], [record]
            look = gallery.options_of(card)
            # One card may follow less than the others, see `fitted`; the file is what it shows.
            with contextlib.suppress(RenderError):
                _, look, _ = fitted(look, partial(page_count, record))
            options = {"options": look, "all_pages": False}
        run = next((found.run for found in captured if found.run is not None), None)
        if run is None or not activations:
            raise ExportError(
                "What is shown belongs to an earlier image or model.", remedy="Run again first."
            )
        return run, activations, options

    def _export(
        self,
        run: Run | Explanation | FeatureVisualization,
        activations: list[Activation],
        options: dict[str, Any],
        target: Path | None,
        cancelled: Any,
    ) -> None:
        app = self._app
        app.clear_problem()
        app.export_result = {}
        options |= {"progress": app.progress("Exporting", "files"), "cancelled": cancelled}
        if target is None:
            with tempfile.TemporaryDirectory(prefix="hookviz-") as folder:
                result = write_export(run.facts, activations, folder, **options)
                write = partial(zip_export, result.folder, cancelled=cancelled)
                self.offer(f"{result.folder.name}.zip", "Zipped {}.", write)
        else:
            result = write_export(run.facts, activations, target, **options)
            files = len(result.files)
            app.export_result = {"path": str(result.folder.resolve()), "files": files}
            app.end(f"Exported {files} files.")

    def _make_page(
        self, run: Run, activations: list[Activation], options: dict[str, Any], cancelled: Any
    ) -> None:
        self._app.clear_problem()
        with tempfile.TemporaryDirectory(prefix="hookviz-") as folder:
            result = write_export(
                run.facts, activations, folder, what="page", cancelled=cancelled, **options
            )
            page = next(file for file in result.files if file.suffix == ".html").read_bytes()
            self.offer(f"{result.folder.name}.html", "Made a page of {}.", lambda f: f.write(page))

    def offer(self, name: str, said: str, write: Callable[[IO[bytes]], object]) -> None:
        """Ends a job by offering the browser a file.

        The file lives until it is fetched or replaced by later ones.

        Args:
            name: Its name there.
            said: The status, with {} for its size.
            write: Writes it.
        """
        file = tempfile.TemporaryFile(prefix="hookviz-")  # noqa: SIM115 - lives until it is fetched
        try:
            write(file)
            size = file.seek(0, 2)
        except BaseException:
            file.close()
            raise
        number = uuid.uuid4().hex
        while len(self._files) >= _FILES_KEPT:
            self._drop(next(iter(self._files)))
        self._files[number] = file
        self._app.end(said.format(bytes_text(size)))
        self._app.send({"type": "file-ready", "id": number, "size": size, "name": name})

    def send_piece(self, id: str, offset: int) -> None:  # noqa: A002 - as in the message
        """Sends a piece of a file; the file is let go of with its last piece.

        Raises:
            ExportError: There is no such file any more.
        """
        file = self._files.get(id)
        if file is None or not 0 <= offset <= (size := file.seek(0, 2)):
            raise ExportError("The file is not there any more.", remedy="Make it again.")
        file.seek(offset)
        piece = file.read(_PIECE)
        self._app.send({"type": "file-piece", "id": id, "offset": offset}, buffers=[piece])
        if offset + len(piece) >= size:
            self._drop(id)

    def close(self) -> None:
        """Lets go of the files that nobody fetched."""
        for name in list(self._files):
            self._drop(name)

    def _drop(self, name: str) -> None:
        if file := self._files.pop(name, None):
            file.close()
