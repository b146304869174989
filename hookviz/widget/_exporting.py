"""Exports of the app: files on the kernel's machine, or a zip for the browser.

In: what the user chose to export. Out: files, or pieces of a zip. Must not know: how the page
looks, how files are written.
"""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from hookviz._text import bytes_text
from hookviz.activation import Activation
from hookviz.errors import ExportError, RenderError, RunCancelled
from hookviz.export import write_export, zip_export
from hookviz.render import fitted, page_count
from hookviz.run import Run
from hookviz.widget._app import App

__all__ = ["Exporting"]

_PIECE = 2_000_000
_SCOPES = ("grid", "ticked", "channels", "all")
_ZIPS_KEPT = 2


@dataclass
class _Zip:
    """A zip that waits to be fetched: a file without a name, gone once it is closed."""

    file: IO[bytes]
    size: int


class Exporting:
    """Writes exports on the app's thread.

    Args:
        app: The app.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._zips: dict[str, _Zip] = {}

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
            what: Kinds of file: "grids", "channels", "values".
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
        app = self._app
        if self.why_not():
            raise ExportError("There is nothing to export.", remedy="Run the model first.")
        if scope not in _SCOPES or values not in ("npz", "safetensors"):
            raise ExportError(
                f"The export asks for scope={scope!r} and values={values!r}; legal are "
                f"{', '.join(_SCOPES)}, and npz or safetensors."
            )
        kinds = set(what) & {"grids", "channels", "values"}
        if scope == "channels":
            kinds = kinds - {"grids"} | {"channels"}
        if not kinds:
            raise ExportError(
                "No kind of file is chosen.", remedy="Choose grids, channels or values."
            )
        options: dict[str, Any] = {"what": kinds | {"input"}, "values": values}
        if scope in ("grid", "channels"):
            run, activations = self._of_card(key, options)
            if scope == "channels":
                if not channels.strip():
                    raise ExportError("No channels are chosen.", remedy="For example 0-15,42.")
                options["channels"] = channels.strip()
        else:
            run, activations = self._of_layers(scope, options)
        if run is None or not activations:
            raise ExportError(
                "What is shown belongs to an earlier image or model.", remedy="Run again first."
            )
        target = None if zipped else Path(folder.strip() or "hookviz_exports").expanduser()
        task = partial(self._export, run, activations, options, target)
        if not app.begin("exporting", "Exporting …", task):
            return False
        app.export_result = {}
        return True

    def _of_card(self, key: str, options: dict[str, Any]) -> tuple[Run | None, list[Activation]]:
        app = self._app
        card = app.gallery.card(key) or app.gallery.current
        if card is None or card.activation is None:
            raise ExportError("The chosen card has nothing to export.", remedy="Choose another.")
        found = app.results.get(card.layer)
        record = app.gallery.record_of(card) or card.activation
        look = app.gallery.options_of(card)
        if card.statistics:
            look = look.replace(figure="statistics")
        # One card may follow less than the others, see `fitted`; the file is what it shows.
        with contextlib.suppress(RenderError):
            _, look, _ = fitted(look, partial(page_count, record))
        options |= {"options": look, "all_pages": False}
        return None if found is None else found.run, [record]

    def _of_layers(
        self, scope: str, options: dict[str, Any]
    ) -> tuple[Run | None, list[Activation]]:
        app = self._app
        fresh = app.results.all_fresh()
        activations = [a for found in fresh for a in found.activations]
        if scope == "ticked":
            shown = {id(a) for c in app.gallery.shown_cards for a in c.leaves.values()}
            activations = [a for a in activations if id(a) in shown]
        else:
            options["what"] = options["what"] | {"contact"}
        options["options"] = app.gallery.options_of(None)
        return next((found.run for found in fresh if found.run is not None), None), activations

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

        def progress(done: int, total: int, file: str) -> None:
            app.progress(f"Exporting {file} …", done, total, "files")

        options = {**options, "progress": progress, "cancelled": cancelled}
        try:
            if target is None:
                with tempfile.TemporaryDirectory(prefix="hookviz-") as folder:
                    result = write_export(run.facts, activations, folder, **options)
                    self._offer_zip(result.folder, cancelled)
            else:
                result = write_export(run.facts, activations, target, **options)
                files = len(result.files)
                app.export_result = {"path": str(result.folder.resolve()), "files": files}
                app.set_status(f"Exported {files} files.", "idle", outcome="ok")
        except RunCancelled:
            app.set_status("The export was cancelled.", "idle", outcome="cancelled")

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
        self._zips[name] = _Zip(file, size)
        self._app.set_status(f"Zipped {bytes_text(size)}.", "idle", outcome="ok")
        self._app.send(
            {"type": "zip-ready", "id": name, "size": size, "name": f"{folder.name}.zip"}
        )

    def send_piece(self, id: str, offset: int) -> None:  # noqa: A002 - as in the message
        """Sends a piece of a zip; the zip is let go of with its last piece.

        Raises:
            ExportError: There is no such zip any more.
        """
        found = self._zips.get(id)
        if found is None or not 0 <= offset <= found.size:
            raise ExportError("The zip is not there any more.", remedy="Make it again.")
        found.file.seek(offset)
        piece = found.file.read(_PIECE)
        self._app.send({"type": "zip-piece", "id": id, "offset": offset}, buffers=[piece])
        if offset + len(piece) >= found.size:
            self._drop(id)

    def close(self) -> None:
        """Lets go of the zips that nobody fetched."""
        for name in list(self._zips):
            self._drop(name)

    def _drop(self, name: str) -> None:
        found = self._zips.pop(name, None)
        if found is not None:
            found.file.close()
