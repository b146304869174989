"""What the page asks of the app.

In: messages {"type": …}. Out: calls of the app's own methods. Must not know: how anything is done.
"""

from __future__ import annotations

from typing import Any

from hookviz.widget._app_state import AppState

__all__ = ["Hearing"]


class Hearing(AppState):
    """The messages that the app understands; ``_hear_<type>`` is called by `Part`, guarded."""

    _views: set[str]

    def _hear_run(self, content: dict[str, Any], _buffers: Any) -> None:
        self.start_run(anyway=bool(content.get("anyway")))

    def _hear_cancel(self, _content: dict[str, Any], _buffers: Any) -> None:
        self.cancel()

    def _hear_auto(self, content: dict[str, Any], _buffers: Any) -> None:
        self.auto_run = bool(content.get("on"))
        self.running.soon()

    def _hear_models(self, _content: dict[str, Any], _buffers: Any) -> None:
        current = self.model.name if self.model is not None else ""
        self.send({"type": "models", "names": self.choosing.names(), "current": current})

    def _hear_weights(self, content: dict[str, Any], _buffers: Any) -> None:
        name = str(content.get("model", ""))
        choices = self.choosing.weights(name)
        self.send({"type": "weights", "model": name, "choices": choices})

    def _hear_load(self, content: dict[str, Any], _buffers: Any) -> None:
        self.choosing.load(
            str(content.get("model", "")),
            content.get("weights", "auto"),
            file=str(content.get("file", "")),
        )

    def _hear_device(self, content: dict[str, Any], _buffers: Any) -> None:
        self.choosing.move(str(content.get("device", "")))

    def _hear_action(self, content: dict[str, Any], _buffers: Any) -> None:
        self.clear_problem()
        if content.get("do") == "retry-cpu":
            self.choosing.move("cpu", then_run=True)
        elif content.get("do") == "untrained":
            self.choosing.load_untrained()

    def _hear_export(self, content: dict[str, Any], _buffers: Any) -> None:
        self.exporting.start(content)

    def _hear_zip(self, content: dict[str, Any], _buffers: Any) -> None:
        self.exporting.start(content, zipped=True)

    def _hear_zip_piece(self, content: dict[str, Any], _buffers: Any) -> None:
        self.exporting.send_piece(str(content.get("id", "")), int(content.get("offset", 0)))

    def _hear_view_open(self, content: dict[str, Any], _buffers: Any) -> None:
        # Views of a page that was loaded again never said goodbye: all that live answer anew.
        self._views = {str(content.get("view", ""))}
        self.send({"type": "roll-call"})

    def _hear_view_here(self, content: dict[str, Any], _buffers: Any) -> None:
        self._views.add(str(content.get("view", "")))

    def _hear_view_closed(self, content: dict[str, Any], _buffers: Any) -> None:
        self._views.discard(str(content.get("view", "")))
        if not self._views:
            self.close()
