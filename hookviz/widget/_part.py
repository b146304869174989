"""What all widgets of the app have in common: messages, and a place where errors are shown.

A page sends custom messages {"type": …}; each is answered by a handler in the widget's table.

The rule that keeps page and Python in one state:

- A page asks by a message. It is checked in whole before its handler begins (`arguments_of`); a
  handler checks what only it can know, then changes the state, then publishes it.
- The traits named in ``page_writes`` are the only ones that a page may set, and the widget's own
  validators check them. Whatever else arrives is refused.
- Whatever is refused is answered by the state that stands, and by a sentence in ``alert``.
- ipywidgets swallows what a handler raises, so nothing is called but within `showing_problems`.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import anywidget
import traitlets

from hookviz._text import fault_text
from hookviz.errors import HookvizError
from hookviz.widget._messages import arguments_of

Handlers = Mapping[str, Callable[..., Any]]

_LONGEST = 20_000
_NUMBERS = itertools.count(1)


def problem(
    error: BaseException, *, action: dict[str, str] | None = None, field: str = ""
) -> dict[str, Any]:
    """An error as the page shows it.

    Args:
        error: What was raised.
        action: Label and name of something that the user can do: {"label": …, "do": …}.
        field: Name of the control that the sentence belongs to; "" for none.

    Returns:
        ``message`` (one sentence), ``remedy``, ``traceback``, ``code`` and ``details`` of a
        `HookvizError`, ``number`` (no two are alike, so that a page hears of the same error
        twice), ``action`` and ``field``.

    Examples:
        >>> problem(ValueError("no"))["message"]
        'ValueError: no.'
    """
    shown: dict[str, Any] = {}
    if isinstance(error, HookvizError):
        shown["message"], shown["remedy"], shown["code"] = error.message, error.remedy, error.code
        shown["details"] = {name: str(value) for name, value in error.details.items()}
    elif isinstance(error, KeyboardInterrupt):
        shown["message"] = "The kernel was interrupted."
        shown["remedy"] = "The app goes on: try again."
    else:
        shown["message"] = fault_text(error).rstrip(".") + "."
        shown["remedy"] = "The app goes on. The details say where it happened."
    trace = "".join(traceback.format_exception(error))[-_LONGEST:]
    number = next(_NUMBERS)
    return {**shown, "traceback": trace, "number": number, "action": action, "field": field}


class Part(anywidget.AnyWidget):
    """A widget that answers messages and shows what goes wrong.

    Attributes:
        alert: What is shown: see `problem`; {} for nothing.
        page_writes: The traits that a page may set.
        lock: Held while the state changes, as messages, cells and the app's threads all change it.
            The parts of an app share one. Nothing waits for a thread while it holds it.
        shows_alert: Gets the alerts that belong to no field (see `problem`; {} where one was
            dismissed), so that an app of several parts has one place for them; None shows them
            here.
    """

    alert = traitlets.Dict().tag(sync=True)

    page_writes: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, **traits: Any) -> None:
        self.lock = threading.RLock()
        self.shows_alert: Callable[[dict[str, Any]], None] | None = None
        self._page_context: contextvars.Context | None = None
        super().__init__(**traits)

    def open(self) -> None:
        """Brings the widget up, also after `close`."""
        if self.layout.comm is None:
            self.layout.open()
        super().open()
        self._leave_shell()
        self.on_msg(self._on_message)

    def close(self) -> None:
        """Takes the widget away: no page shows it, nobody observes it, nothing answers."""
        opened = self.comm is not None
        super().close()
        if opened:
            self.unobserve_all()
            self.on_msg(self._on_message, remove=True)
            self.layout.close()

    # ── problems

    def show_problem(
        self, error: BaseException, *, action: dict[str, str] | None = None, field: str = ""
    ) -> None:
        """Shows an error.

        Args:
            error: What was raised.
            action: Something that the user can do, see `problem`.
            field: The control of this widget that was refused a value; the sentence stands there.
        """
        self._show_alert(problem(error, action=action, field=field))

    def _show_alert(self, alert: dict[str, Any]) -> None:
        if self.shows_alert is not None and not alert.get("field"):
            self.shows_alert(alert)
        else:
            self.alert = alert

    def clear_problem(self) -> None:
        """Takes the shown error away."""
        if self.shows_alert is not None:
            self.shows_alert({})
        self.alert = {}

    @contextlib.contextmanager
    def showing_problems(self) -> Iterator[None]:
        """Shows what is raised within instead of losing it."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - shown to the user
            self.show_problem(error)

    # ── messages

    def _handle_msg(self, msg: Any) -> None:
        self._page_context = contextvars.copy_context()
        super()._handle_msg(msg)

    # ipykernel 7.4 hands the page's next message on a comm to the shell that sent on it last, and a
    # thread counts as the shell that was asked last, which may be that of a cell: the page would
    # then wait for the cell's end. Whatever is sent stays with the shell that the page asked.

    def _send(self, msg: Any, buffers: Any = None) -> None:
        if self._page_context is None:
            super()._send(msg, buffers)
            self._leave_shell()
        else:
            self._page_context.copy().run(super()._send, msg, buffers)

    def _leave_shell(self) -> None:
        """Until the page has asked, no shell is the one that its messages go to."""
        getattr(self.comm, "__dict__", {}).pop("_reply_subshell_id", None)

    def handlers(self) -> Handlers:
        """The method that answers each kind of message; see `arguments_of`."""
        return {
            "dismiss": self.clear_problem,
            "ping": self._answer,
            "problem": self._show_page_problem,
        }

    def _on_message(self, _widget: Any, content: Any, buffers: Any) -> None:
        kind = content.get("type") if isinstance(content, dict) else None
        handler = self.handlers().get(kind) if isinstance(kind, str) else None
        if handler is None:
            return
        with self.showing_problems():
            handler(**arguments_of(handler, content, buffers))

    def page_value(self, _name: str, value: Any) -> Any:
        """What is taken of a value that a page sets; the value itself where not overridden."""
        return value

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Takes what a page set: traits of ``page_writes`` alone; whatever differs is sent back.

        Args:
            sync_data: Values by name of trait.
        """
        with self.showing_problems():
            names = self.page_writes & sync_data.keys()
            super().set_state({name: self.page_value(name, sync_data[name]) for name in names})
        known = [name for name in sync_data if name in self.keys]
        if differing := [name for name in known if getattr(self, name) != sync_data[name]]:
            self.send_state(differing)

    def _answer(self) -> None:
        self.send({"type": "pong"})

    def _show_page_problem(self, message: str, remedy: str = "", details: str = "") -> None:
        # Found by the page itself, for example a file that is too large to be sent.
        shown = problem(HookvizError(message[:1000], remedy=remedy[:1000]))
        self._show_alert({**shown, "traceback": details[:_LONGEST]})
