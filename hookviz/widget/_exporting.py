"""Exports of the app: files on the kernel's machine, or a zip for the browser.

In: what the user chose to export. Out: files, or pieces of a zip. Must not know: how the page
looks, how files are written.
"""

from __future__ import annotations

import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hookviz.capture import Activation
from hookviz.errors import ExportError, RunCancelled
from hookviz.export import write_export, zip_export
from hookviz.widget._pacing import Throttle

if TYPE_CHECKING:
    from hookviz.widget._explorer import Explorer

__all__ = ["Exporting"]

_PIECE = 2_000_000
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

    def __init__(self, app: Explorer) -> None:
        self._app = app
        self._zips: dict[str, _Zip] = {}

    def why_not(self) -> str:
        """Why nothing can be exported now; "" where something can."""
        return "" if self._app.gallery.shown_cards else "Run the model first: there is nothing yet."

    def start(self, order: dict[str, Any], *, zipped: bool = False) -> bool:
        """Starts an export.

        Args:
            order: ``scope`` ("grid", "ticked", "channels", "all"), ``key`` (the card),
                ``channels``, ``what`` (list of "grids", "channels", "values"), ``values``
                ("npz" or "safetensors"), ``folder``.
            zipped: Make a zip for the browser instead of files in ``folder``.

        Returns:
            Whether it was started.

        Raises:
            ExportError: There is nothing to export, or the order makes no sense.
        """
        app = self._app
        if self.why_not():
            raise ExportError("There is nothing to export.", remedy="Run the model first.")
        run, activations, options = self._chosen(order)
        if not app.jobs.start(
            "export",
            lambda cancelled: self._export(run, activations, options, order, zipped, cancelled),
        ):
            return False
        app.export_result = {}
        app.say("Exporting …", "exporting")
        return True

    def _chosen(self, order: dict[str, Any]) -> tuple[Any, list[Activation], dict[str, Any]]:
        """The run, its activations and the options of write_export for an order."""
        app, scope = self._app, order.get("scope", "ticked")
        card = app.gallery.card(str(order.get("key", ""))) or app.gallery.current
        what = {str(w) for w in order.get("what", ["grids"])} & {"grids", "channels", "values"}
        if scope == "channels":
            what.discard("grids")
            what.add("channels")
        if not what:
            raise ExportError(
                "No kind of file is chosen.", remedy="Choose grids, channels or values."
            )
        options: dict[str, Any] = {"what": what | {"input"}, "values": order.get("values", "npz")}
        look = app.gallery.options
        if scope in ("grid", "channels"):
            if card is None or card.activation is None:
                raise ExportError(
                    "The chosen card has nothing to export.", remedy="Choose another."
                )
            found = app.results.get(card.layer)
            activations = [card.activation]
            look = app.gallery.options_of(card)
            options["all_pages"] = False
            if scope == "channels":
                wanted = str(order.get("channels", "")).strip()
                if not wanted:
                    raise ExportError("No channels are chosen.", remedy="For example 0-15,42.")
                options["channels"] = wanted
            run = None if found is None else found.run
        else:
            fresh = app.results.all_fresh()
            if scope == "ticked":
                ticked = set(app.tree.selected)
                shown = {id(a) for c in app.gallery.shown_cards for a in c.leaves.values()}
                activations = [
                    a
                    for found in fresh
                    for a in found.activations
                    if a.layer in ticked and id(a) in shown
                ]
            else:
                activations = [a for found in fresh for a in found.activations]
                options["what"] = options["what"] | {"contact"}
            first = app.gallery.current or card
            if first is not None:
                look = app.gallery.options_of(first).replace(page=0)
            run = next((found.run for found in fresh if found.run is not None), None)
        if run is None or not activations:
            raise ExportError(
                "What is shown belongs to an earlier image or model.", remedy="Run again first."
            )
        options["options"] = look
        return run, activations, options

    def _export(
        self,
        run: Any,
        activations: list[Activation],
        options: dict[str, Any],
        order: dict[str, Any],
        zipped: bool,
        cancelled: Any,
    ) -> None:
        app = self._app
        app.clear_problem()
        told = Throttle()

        def progress(done: int, total: int, file: str) -> None:
            if told.ready():
                app.say(f"Exporting: {file}", None, done, total)

        options = {**options, "progress": progress, "cancelled": cancelled}
        try:
            if zipped:
                with tempfile.TemporaryDirectory(prefix="hookviz-") as folder:
                    result = write_export(run.facts, activations, folder, **options)
                    self._offer_zip(result.folder, cancelled)
            else:
                target = Path(str(order.get("folder") or "hookviz_exports")).expanduser()
                result = write_export(run.facts, activations, target, **options)
                files = len(result.files)
                app.export_result = {"path": str(result.folder.resolve()), "files": files}
                app.say(f"Exported {files} files.", "idle")
        except RunCancelled:
            app.say("The export was cancelled.", "idle")

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
        self._app.say(f"Zipped {size / 1e6:.1f} MB.", "idle")
        self._app.send(
            {"type": "zip-ready", "id": name, "size": size, "name": f"{folder.name}.zip"}
        )

    def send_piece(self, name: str, offset: int) -> None:
        """Sends a piece of a zip; the zip is let go of with its last piece.

        Raises:
            ExportError: There is no such zip any more.
        """
        found = self._zips.get(name)
        if found is None or not 0 <= offset <= found.size:
            raise ExportError("The zip is not there any more.", remedy="Make it again.")
        found.file.seek(offset)
        piece = found.file.read(_PIECE)
        self._app.send({"type": "zip-piece", "id": name, "offset": offset}, buffers=[piece])
        if offset + len(piece) >= found.size:
            self._drop(name)

    def close(self) -> None:
        """Lets go of the zips that nobody fetched."""
        for name in list(self._zips):
            self._drop(name)

    def _drop(self, name: str) -> None:
        found = self._zips.pop(name, None)
        if found is not None:
            found.file.close()
