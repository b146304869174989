"""The app as its own parts see it, and what a part behind a tab is.

To add a panel: a subclass of `Panel` in a file of its own, a module ``js/panel_NAME.js`` that
renders its traits, and the class in ``PANELS`` of _explorer.py. The page makes a tab of it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from hookviz.capture import Edit
from hookviz.errors import HookvizError, RunCancelled
from hookviz.explanation import Progress
from hookviz.run import Run
from hookviz.widget._image_input import ImageInput
from hookviz.widget._layer_tree import LayerTree
from hookviz.widget._map_gallery import MapGallery
from hookviz.widget._part import Part
from hookviz.widget._results import Results
from hookviz.widget._worker import Cancelled, Task, Worker


class App(Protocol):
    """What `Explorer` offers to its parts; its docstrings say what each does."""

    model: Any
    image: Any
    run: Any
    edits: tuple[Edit, ...]
    device: str
    why_not: str
    auto_run: bool
    export_result: Any
    pin: Any
    channel: Any
    cell: str
    former: Any
    region: Any
    centers: Any
    photo: Any
    pointing: Any
    results: Results
    jobs: Worker
    running: Any
    exporting: Any
    what_if: Any
    explaining: Any
    lock: threading.RLock

    @property
    def tree(self) -> LayerTree: ...
    @property
    def image_input(self) -> ImageInput: ...
    @property
    def gallery(self) -> MapGallery: ...

    def cancel(self) -> bool: ...
    def start_run(self, *, anyway: bool = False) -> bool: ...
    def begin(self, state: str, text: str, task: Task, **shown: Any) -> bool: ...
    def ask(self, state: str, text: str, task: Task) -> bool: ...
    def set_status(self, text: str, state: str | None = None, **shown: Any) -> None: ...
    def end(self, text: str, outcome: str = "ok") -> None: ...
    def progress(self, verb: str, unit: str) -> Callable[[int, int, str], None]: ...
    def return_memory_soon(self) -> None: ...
    def show_results(self) -> None: ...
    def refresh_panels(self, change: Any = None) -> None: ...
    def take_run(self, run: Run) -> None: ...
    def show_predictions(self, run: Run | None) -> None: ...
    def ask_large(self, question: str) -> None: ...
    def swap_model(self, model: Any) -> None: ...
    def compare(self, *runs: Run, titles: Sequence[str] = ()) -> None: ...
    def send(self, content: Any, buffers: Any = None) -> None: ...
    def show_problem(
        self, error: BaseException, *, action: dict[str, str] | None = None, field: str = ""
    ) -> None: ...
    def clear_problem(self) -> None: ...


Work = Callable[[Progress, Cancelled], str]
"""A long computation of a panel, see `Panel.compute`."""


class Panel(Part):
    """A part of the app behind a tab beside the gallery: a widget with a page side of its own.

    Args:
        app: The app.

    Attributes:
        title: The tab's text.
        beside: Whether it stands beside the gallery, not in its place.
    """

    title: ClassVar[str]
    beside: ClassVar[bool] = False

    def __init__(self, app: App, **traits: Any) -> None:
        self.app = app
        super().__init__(**traits)

    def refresh(self) -> None:
        """Publishes what the page shows; called when model, results or the card in use changed."""
        raise NotImplementedError

    def compute(self, title: str, unit: str, work: Work, *, field: str) -> bool:
        """Starts a long computation as a job that says how far it is and how long the rest takes.

        Args:
            title: What is computed: "Grad-CAM".
            unit: What its steps are: "channels".
            work: Called on the app's thread with what is told of each step, and with what says
                whether to end; gives the sentence that the job ends with. A `HookvizError` of it
                is shown at a control.
            field: That control, see `show_problem`.

        Returns:
            Whether it was started; False for a double press.

        Raises:
            HookvizError: Another job is going.
        """
        app = self.app
        told = app.progress(title, unit)

        def progress(done: int, total: int, seconds: float) -> None:
            told(done, total, f"({time_text(seconds)} left)" if math.isfinite(seconds) else "")

        def task(cancelled: Cancelled) -> None:
            try:
                said = work(progress, cancelled)
            except RunCancelled:
                raise  # the app says so
            except HookvizError as error:
                self.show_problem(error, field=field)
                app.end(f"{title} failed.", "failed")
            else:
                app.end(said, "cancelled" if said.startswith("Cancelled") else "ok")

        self.clear_problem()
        return app.ask("running", f"{title} …", task)

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002 - for others
        """Waits until nothing of it is under way; False where that takes longer."""
        return True


def time_text(seconds: float) -> str:
    """How long something takes, in words.

    Examples:
        >>> time_text(42.4), time_text(150)
        ('42 s', '2 min')
    """
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
