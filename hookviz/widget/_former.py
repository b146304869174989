"""The choices that an earlier app of the same cell had, offered by one button after a restart.

The page keeps them in the browser's storage, by notebook and cell. Not in the notebook: its outputs
are gone before the cell runs again, the kernel cannot read it, and it is sent to others, whom the
paths of somebody's files are no business of. What the page gives back is checked as a session file
is, and nothing of it is used before the button is pressed.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hookviz.errors import HookvizError, ImageError
from hookviz.widget._app import App
from hookviz.widget._part import Handlers
from hookviz.widget._session import Session, choices_of, model_entry

_DELAY = 0.5
_LONGEST = 90_000  # of a message's texts, see _messages.py


class Former:
    """Has an app's choices remembered, and offers those of the app before.

    Args:
        app: The app. Its trait ``former`` is what is offered, as a sentence; {} for nothing.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._told: str | None = None
        self._session: Session | None = None
        self._heard = False

    def handlers(self) -> Handlers:
        """What the page asks."""
        return {"former": self.hear, "use-former": self.use, "no-former": self.forget}

    # ── what is remembered

    def soon(self, _change: Any = None) -> None:
        """Has the page remember the choices, once they have not changed for a while."""
        if self._app.cell:
            self._app.jobs.later("choices", self._tell, _DELAY)

    def _tell(self, _cancelled: Any) -> None:
        text = self._text()
        before, self._told = self._told, text
        # What the app began with is nobody's choice: it would replace what is still to be offered.
        if text is not None and before is not None and text != before and len(text) < _LONGEST:
            self._app.send({"type": "choices", "text": text})

    def _text(self) -> str | None:
        with self._app.lock:
            if self._app.model is None:
                return None
            with contextlib.suppress(HookvizError):
                return json.dumps(choices_of(self._app, photo=False), allow_nan=False)
        return None

    # ── what is offered

    def hear(self, text: str) -> None:
        """Offers choices that the page has kept, unless they are these, or cannot be taken."""
        if self._heard:
            return  # a second view of the app
        self._heard = True
        with contextlib.suppress(HookvizError), self._app.lock:
            session = Session("the former choices", text.encode("utf-8", "replace"))
            if text != self._text() and (not session.own_model or self._has_model(session)):
                self._session = session
                self._app.former = {"text": session.summary()}

    def _has_model(self, session: Session) -> bool:
        model = self._app.model
        return model is not None and session.has_model(model_entry(model, self._app.device))

    def forget(self) -> None:
        """Takes the offer away."""
        self._session = None
        self._app.former = {}

    def use(self) -> bool:
        """Makes the choices that are offered, as a job; nothing is run.

        Returns:
            Whether that was begun.
        """
        session = self._session
        if session is None or not self._app.begin(
            "loading", "Taking the former choices …", lambda _cancelled: self._take(session)
        ):
            return False
        self.forget()
        return True

    def _take(self, session: Session) -> None:
        app = self._app
        app.clear_problem()
        if not self._has_model(session):
            app.model = session.load_model("auto")
        try:
            if (picture := session.picture()) is not None:
                app.image = picture
        except ImageError as error:
            app.show_problem(error)
        session.restore(app)
        app.end("Ready.")
