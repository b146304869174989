"""The app as its own parts see it, and what a part behind a tab is.

To add a panel: a subclass of `Panel` in a file of its own, a module ``js/panel_NAME.js`` that
renders its traits, and the class in ``PANELS`` of _explorer.py. The page makes a tab of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from hookviz.capture import Edit
from hookviz.run import Run
from hookviz.widget._image_input import ImageInput
from hookviz.widget._layer_tree import LayerTree
from hookviz.widget._map_gallery import MapGallery
from hookviz.widget._part import Part
from hookviz.widget._results import Results
from hookviz.widget._worker import Task, Worker


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
    exporting: Any
    what_if: Any
    lock: threading.RLock

    @property
    def tree(self) -> LayerTree: ...
    @property
    def image_input(self) -> ImageInput: ...
    @property
    def gallery(self) -> MapGallery: ...

    def start_run(self, *, anyway: bool = False) -> bool: ...
    def begin(self, state: str, text: str, task: Task, **shown: Any) -> bool: ...
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

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002 - for others
        """Waits until nothing of it is under way; False where that takes longer."""
        return True
