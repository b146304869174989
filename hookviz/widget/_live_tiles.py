"""What the page shows of a live frame: each layer's maps as levels, one byte each, and a table.

The page colors and places them by itself: that is less to compute and to send than a figure.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hookviz.activation import Activation
from hookviz.errors import RenderError
from hookviz.render import (
    FigureFacts,
    GridOptions,
    HeldScales,
    Subject,
    fitted,
    tile_levels,
    value,
)
from hookviz.run import Run
from hookviz.widget._cards import card_key

_MOSAIC = 640  # values along a side of all maps of a layer together
_NOT_MAPS = "Single values and colors are drawn once the frame is frozen."


class _Levels(NamedTuple):
    subject: Subject
    levels: Any
    flags: Any


class LiveTiles:
    """Makes the cards of frames.

    Args:
        hold: How the scale is held over frames, see `HeldScales`.

    Attributes:
        held: That.
        options: How each layer of the last frame was drawn, by label.

    Raises:
        RenderError: ``hold`` is not legal.
    """

    def __init__(self, hold: str = "none") -> None:
        self.held = HeldScales(hold)  # type: ignore[arg-type]  # refuses another word
        self.options: dict[str, GridOptions] = {}

    def cards(
        self, run: Run, shown: Iterable[Activation], view: GridOptions
    ) -> tuple[list[dict[str, Any]], list[bytes]]:
        """The cards of a frame.

        Args:
            run: The frame's run.
            shown: Those of its activations that are shown.
            view: How they are drawn.

        Returns:
            What the page shows of each layer, and the bytes that these point to by their place:
            ``levels`` (n, h, w) uint8; ``flagged`` and ``flags``, the places (uint32) and the
            kinds (uint8) of what has no level; ``colors``, the table of 256 colors and of those
            of flags, (262, 3) uint8. A layer without maps says so in ``text``.
        """
        height, width = run.input.tensor.shape[-2:]
        facts = FigureFacts(input_size=(int(height), int(width)))
        view = view.replace(overlay=False, show_input=False, summary="none", page=0)
        cards: list[dict[str, Any]] = []
        buffers: list[bytes] = []
        self.options = {}

        def put(data: bytes) -> int:
            buffers.append(data)
            return len(buffers) - 1

        for activation in shown:
            card: dict[str, Any] = {
                "key": card_key(activation.layer, activation.call) + activation.leaf,
                "label": activation.label,
                "kind": activation.module_type,
                "shape": " × ".join(map(str, activation.shape)),
            }
            cards.append(card)
            try:
                (subject, levels, flags), _, _ = fitted(
                    view, partial(self._levels, activation, facts)
                )
            except (RenderError, RuntimeError, ValueError) as error:
                card["text"] = _NOT_MAPS if isinstance(error, RenderError) else str(error)
                continue
            scale, channels = subject.scaling, list(subject.channels)
            self.options[activation.label] = subject.options
            card |= {
                "tiles": list(levels.shape),
                "channels": channels,
                "total": len(subject.chosen),
                "scale": scale.sentence,
                "ends": [value(end) for end in scale.ends or ()],
                "dead": int(subject.extents.dead.sum()),
                # A map of one value has no place on a scale of its own.
                "constant": [
                    place
                    for place, channel in enumerate(channels)
                    if scale.per_channel and scale.low[channel] == scale.high[channel]
                ],
                "levels": put(levels.tobytes()),
                "colors": put(subject.table.rgb.tobytes() + subject.table.flags.tobytes()),
            }
            # Few values have no level: their places are less than a second byte of each.
            if flags is not None and (places := np.flatnonzero(flags)).size:
                card["flagged"] = put(places.astype("<u4").tobytes())
                card["flags"] = put(flags.ravel()[places].tobytes())
        return cards, buffers

    def _levels(self, activation: Activation, facts: FigureFacts, options: GridOptions) -> _Levels:
        subject = Subject(activation, options, facts)
        held = self.held.options(activation.label, subject)
        if held is not options:
            subject = Subject(activation, held, facts)
        rows = max(1.0, len(subject.channels) ** 0.5)
        return _Levels(subject, *tile_levels(subject, max(16, int(_MOSAIC / rows))))
