"""Exports of the app: files on the kernel's machine, or a zip for the browser."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from functools import partial
from pathlib import Path
from typing import IO, Any

from hookviz._text import bytes_text
from hookviz.activation import Activation
from hookviz.errors import ExportError, RenderError
from hookviz.export import write_export, zip_export
from hookviz.render import fitted, page_count
from hookviz.run import Run
from hookviz.widget._app import App

_PIECE = 2_000_000
_SCOPES = ("grid", "ticked", "channels", "all")
_GRIDS = {"grids", "svg", "pdf"}
_ZIPS_KEPT = 2


class Exporting:
    """Writes exports on the app's thread.

    Args:
        app: The app.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        # Files without a name, gone once they are closed.
        self._zips: dict[str, IO[bytes]] = {}

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
            what: Kinds of file: "grids", "svg", "pdf", "channels", "values".
            scope: "grid" (the card), "channels" (of the card), "ticked" or "all".
            key: The card; the current one where there is no such card.
            channels: Which, for the scope "channels".
            values: "npz" or "safetensors".
            folder: Where the new folder is made.
            zipped: Make a zip for the browser instead.

        Returns:
            Whether it was started.

        Raises:
            ExportError: There is nothing to export, or the order makes no sense.
        """
        app, gallery = self._app, self._app.gallery
        card = gallery.card(key) or gallery.current
        if self.why_not() or card is None:
            raise ExportError("There is nothing to export.", remedy="Run the model first.")
        if scope not in _SCOPES:
            legal = ", ".join(_SCOPES)
            raise ExportError(f"The export asks for scope={scope!r}; legal are {legal}.")
        kinds = set(what) & {*_GRIDS, "channels", "values"}
        if scope == "channels":
            kinds = kinds - _GRIDS | {"channels"}
        if not kinds:
            raise ExportError(
                "No kind of file is chosen.", remedy="Choose grids, channels or values."
            )
        options: dict[str, Any] = {"values": values}
        if scope in ("ticked", "all"):
            captured = app.results.all_fresh()
            activations = [a for found in captured for a in found.activations]
            options["options"] = gallery.page_options
            if scope == "ticked":
                shown = {id(a) for c in gallery.shown_cards for a in c.leaves.values()}
                activations = [a for a in activations if id(a) in shown]
            else:
                kinds.add("contact")
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
            options |= {"options": look, "all_pages": False}
            if scope == "channels":
                options["channels"] = channels.strip()
                if not options["channels"]:
                    raise ExportError("No channels are chosen.", remedy="For example 0-15,42.")
        run = next((found.run for found in captured if found.run is not None), None)
        if run is None or not activations:
            raise ExportError(
                "What is shown belongs to an earlier image or model.", remedy="Run again first."
            )
        options["what"] = kinds | {"input"}
        target = None if zipped else Path(folder.strip() or "hookviz_exports").expanduser()
        task = partial(self._export, run, activations, options, target)
        return app.begin("exporting", "Exporting …", task)

    def _export(
        self,
        run: Run,
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
                self._offer_zip(result.folder, cancelled)
        else:
            result = write_export(run.facts, activations, target, **options)
            files = len(result.files)
            app.export_result = {"path": str(result.folder.resolve()), "files": files}
            app.end(f"Exported {files} files.")

    def _offer_zip(self, folder: Path, cancelled: Any) -> None:
        file = tempfile.TemporaryFile(prefix="hookviz-")  # noqa: SIM115 - lives until it is fetched
        try:
            zip_export(folder, file, cancelled=cancelled)
            size = file.seek(0, 2)
        except BaseException:
            file.close()
            raise
        name = uuid.uuid4().hex
        while len(self._zips) >= _ZIPS_KEPT:
            self._drop(next(iter(self._zips)))
        self._zips[name] = file
        self._app.end(f"Zipped {bytes_text(size)}.")
        self._app.send(
            {"type": "zip-ready", "id": name, "size": size, "name": f"{folder.name}.zip"}
        )

    def send_piece(self, id: str, offset: int) -> None:  # noqa: A002 - as in the message
        """Sends a piece of a zip; the zip is let go of with its last piece.

        Raises:
            ExportError: There is no such zip any more.
        """
        file = self._zips.get(id)
        if file is None or not 0 <= offset <= (size := file.seek(0, 2)):
            raise ExportError("The zip is not there any more.", remedy="Make it again.")
        file.seek(offset)
        piece = file.read(_PIECE)
        self._app.send({"type": "zip-piece", "id": id, "offset": offset}, buffers=[piece])
        if offset + len(piece) >= size:
            self._drop(id)

    def close(self) -> None:
        """Lets go of the zips that nobody fetched."""
        for name in list(self._zips):
            self._drop(name)

    def _drop(self, name: str) -> None:
        if file := self._zips.pop(name, None):
            file.close()
