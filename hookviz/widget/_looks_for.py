"""What a channel looks for, on its page: pictures that are made there and stay with the model.

A picture hangs on the model alone, not on a run: another photo or a run that goes away leaves it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from PIL import Image

from hookviz.errors import HookvizError
from hookviz.explanation import FeatureVisualization, Progress, feature_visualization
from hookviz.widget._app import Panel
from hookviz.widget._pictures import png_bytes
from hookviz.widget._pointing import Shown
from hookviz.widget._worker import Cancelled

_KEPT = 24  # pictures; one of 512 × 512 takes 3 MB
_INTERVAL = 0.25  # seconds between two pictures of a work under way
_LARGEST = 512

_Key = tuple[str, int, int]


class LooksFor:
    """Makes and keeps the pictures of a channel's page.

    Args:
        page: The panel. Its trait ``looks_for`` says what there is of the channel in view:
            ``state`` ("none", "working", "busy" with another channel, "done"), ``why_not``,
            ``edited`` (whether the map is of a model with edits; the picture is of one without),
            ``step`` and ``steps``, ``title``, ``clean`` and ``robust`` (values as texts), ``note``.
            Pictures go by the message "looks-for".
    """

    def __init__(self, page: Panel) -> None:
        self._page = page
        self._module: Any = None
        self._found: OrderedDict[_Key, FeatureVisualization] = OrderedDict()
        self._work: tuple[_Key, int] | None = None
        self._open: tuple[_Key, Shown] | None = None

    def clear(self) -> None:
        """Lets go of all pictures."""
        self._found.clear()
        self._module = self._work = self._open = None

    def show(self, own: Shown | None, channel: int) -> None:
        """Says and sends what there is of a channel; None for no channel."""
        if own is None:
            self._open = None
            self._page.set_trait("looks_for", {})
            return
        if self._module is not own.run.model.module:
            self.clear()
            self._module = own.run.model.module
        key = (own.card.layer, own.card.call, channel)
        self._open = key, own
        found = self._found.get(key)
        self._publish()
        if found is not None:
            self._send(key, found.image)

    def _publish(self, **more: Any) -> None:
        if self._open is None:
            return
        key, own = self._open
        edited = bool(own.card.origin.facts.edits)
        shown: dict[str, Any] = {"state": "none", "why_not": "", "edited": edited}
        if len(own.card.leaves) > 1 and own.card.leaf != next(iter(own.card.leaves)):
            shown["why_not"] = "The layer gives several tensors; pictures are made for the first."
        if found := self._found.get(key):
            shown |= {"state": "done", **_facts(found)}
        if self._work is not None:
            mine = self._work[0] == key
            shown |= {"state": "working" if mine else "busy", "step": 0, "steps": self._work[1]}
            shown |= more if mine else {}
        self._page.set_trait("looks_for", shown)

    def _send(self, key: _Key, picture: Image.Image) -> None:
        if self._open is None or self._open[0] != key:
            return
        message = {"type": "looks-for", "key": self._open[1].card.key, "channel": key[2]}
        self._page.send(message, buffers=[png_bytes(picture)])

    def start(self, size: int = 0, steps: int = 128, seed: int = 0) -> None:
        """Begins the picture of the channel in view; 0 for ``size`` is the default."""
        page, app = self._page, self._page.app
        if self._open is None:
            raise HookvizError("There is no channel to make a picture for.")
        key, own = self._open
        if size > _LARGEST:
            error = HookvizError(f"The size is {size}; here it is at most {_LARGEST} pixels.")
            page.show_problem(error, field="looks-for")
            return
        model = replace(own.run.model, preprocess=app.image_input.preprocessing)
        sent_at = 0.0

        def work(progress: Progress, cancelled: Cancelled) -> str:
            began = time.monotonic()

            def grow(step: int, value: float, picture: Image.Image) -> None:
                nonlocal sent_at
                now = time.monotonic()
                progress(step, steps, (now - began) / step * (steps - step))
                if now - sent_at >= _INTERVAL:
                    sent_at = now
                    with app.lock:
                        self._publish(step=step, value=f"{value:.4g}")
                        self._send(key, picture)

            try:
                found = feature_visualization(
                    model, key[0], key[2], call=key[1], size=size or None, steps=steps, seed=seed,
                    progress=grow, cancelled=cancelled,
                )  # fmt: skip
                with app.lock:
                    if self._module is model.module:
                        self._found[key] = found
                        while len(self._found) > _KEPT:
                            self._found.popitem(last=False)
            finally:
                with app.lock:
                    self._work = None
                    self._publish()
                    if key in self._found:
                        self._send(key, self._found[key].image)
            if found.cancelled:
                return f"Cancelled after {found.steps} of {steps} steps: the picture so far stays."
            return f"The picture took {found.seconds:.0f} s."

        with app.lock:
            if page.compute("The picture", "steps", work, field="looks-for"):
                self._work = key, steps
                self._publish()

    def export(self) -> None:
        """Exports the picture in view as a zip for the browser."""
        found = None if self._open is None else self._found.get(self._open[0])
        if found is None:
            raise HookvizError("There is no picture to export.")
        options = {"options": found.options(style="light"), "what": ("grids", "channels")}
        self._page.app.exporting.start_with(found, [found.record], options, None)


def _facts(found: FeatureVisualization) -> Mapping[str, Any]:
    """A picture as the page describes it."""
    height, width = found.pixels.shape[-2:]
    made = f"{found.steps} steps" + " (cancelled)" * found.cancelled
    seed = found.parameters["seed"]
    return {
        "title": found.objective,
        "clean": f"{found.activation:.4g}".replace("-", "−"),
        "robust": f"{found.robust[0]:.4g}".replace("-", "−"),
        "note": f"{made}, {width} × {height} pixels, seed {seed}, {found.seconds:.0f} s",
    }
