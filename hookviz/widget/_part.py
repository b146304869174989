"""What all widgets of the app have in common: messages, and a place where errors are shown.

In: custom messages {"type": …} of a page. Out: calls of ``_hear_<type>``. Must not know: layers,
images, runs.

ipywidgets swallows what a handler raises (a small counter in the status bar is all that a user
sees), so every handler goes through `guarded`.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import anywidget
import traitlets

from hookviz.errors import HookvizError

__all__ = ["Part", "guarded", "problem"]

P = ParamSpec("P")
W = TypeVar("W", bound="Part")

_LONGEST = 20_000


def problem(error: BaseException, *, action: dict[str, str] | None = None) -> dict[str, Any]:
    """An error as the page shows it.

    Args:
        error: What was raised.
        action: Label and name of something that the user can do: {"label": …, "do": …}.

    Returns:
        ``message`` (one sentence), ``remedy``, ``traceback`` and, where given, ``action``.

    Examples:
        >>> problem(ValueError("no"))["message"]
        'ValueError: no.'
    """
    if isinstance(error, HookvizError):
        message, remedy = error.message, error.remedy or ""
    elif isinstance(error, KeyboardInterrupt):
        message, remedy = "The kernel was interrupted.", "The app goes on: try again."
    else:
        line = (str(error).strip().splitlines() or ["no message"])[0]
        message = f"{type(error).__name__}: {line}".rstrip(".") + "."
        remedy = "The app goes on. The details say where it happened."
    details = "".join(traceback.format_exception(error))[-_LONGEST:]
    shown: dict[str, Any] = {"message": message, "remedy": remedy, "traceback": details}
    if action:
        shown["action"] = action
    return shown


def guarded(handler: Callable[Concatenate[W, P], Any]) -> Callable[Concatenate[W, P], None]:
    """Shows what a handler raises instead of losing it.

    Args:
        handler: A method of a Part.

    Returns:
        The method, which never raises.
    """

    @functools.wraps(handler)
    def guard(self: W, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            handler(self, *args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - shown to the user
            self.show_problem(error)

    return cast("Callable[Concatenate[W, P], None]", guard)


class Part(anywidget.AnyWidget):
    """A widget that hears messages and shows what goes wrong.

    Attributes:
        alert: What is shown: ``message``, ``remedy``, ``traceback``, ``action``; {} for nothing.
    """

    alert = traitlets.Dict().tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        self._teller: Callable[[dict[str, Any]], None] | None = None
        super().__init__(**traits)
        self.on_msg(self._on_message)

    def tell_problems_to(self, teller: Callable[[dict[str, Any]], None] | None) -> None:
        """Has problems shown elsewhere, so that an app of several parts has one place for them.

        Args:
            teller: Gets what `problem` gives, or {} where the alert was dismissed.
        """
        self._teller = teller

    def show_problem(self, error: BaseException, *, action: dict[str, str] | None = None) -> None:
        """Shows an error.

        Args:
            error: What was raised.
            action: Something that the user can do, see `problem`.
        """
        self._show_alert(problem(error, action=action))

    def _show_alert(self, alert: dict[str, Any]) -> None:
        if self._teller is not None:
            self._teller(alert)
        else:
            self.alert = alert

    def clear_problem(self) -> None:
        """Takes the shown error away."""
        if self._teller is not None:
            self._teller({})
        elif self.alert:
            self.alert = {}

    @guarded
    def _on_message(self, _widget: Any, content: Any, buffers: Any) -> None:
        if not isinstance(content, dict):
            return
        kind = str(content.get("type", "")).replace("-", "_")
        hear = getattr(self, f"_hear_{kind}", None)
        if hear is not None:
            hear(content, buffers)

    def _hear_dismiss(self, _content: dict[str, Any], _buffers: Any) -> None:
        self.clear_problem()

    def _hear_problem(self, content: dict[str, Any], _buffers: Any) -> None:
        # Found by the page itself, for example a file that is too large to be sent.
        self._show_alert(
            {
                "message": str(content.get("message", ""))[:1000],
                "remedy": str(content.get("remedy", ""))[:1000],
                "traceback": str(content.get("details", ""))[:_LONGEST],
            }
        )
