"""One scale for a layer over many frames, so that a color stands for the same value in each."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal

from hookviz.render._draw import Subject
from hookviz.render._options import GridOptions, one_of

Hold = Literal["none", "running", "fixed"]


class HeldScales:
    """The scales of layers, held from frame to frame; the figures say so.

    Args:
        how: "running": from the lowest to the highest end that a layer's scale has had so far.
            "fixed": what a layer's scale was in the first frame that had one. "none": each frame
            has its own. A scale of each channel's own is not held.

    Examples:
        >>> import torch
        >>> held = HeldScales("running")
        >>> for level in (1.0, 3.0, 2.0):
        ...     subject = Subject(torch.tensor([[[[0.0, level]]]]), GridOptions(scale="full"))
        ...     held.options("layer", subject).vmax
        1.0
        3.0
        3.0
    """

    def __init__(self, how: Hold = "none") -> None:
        self.how = one_of("hold", how, ("none", "running", "fixed"))
        self._ends: dict[Hashable, tuple[float, float]] = {}

    def options(self, key: Hashable, subject: Subject) -> GridOptions:
        """How to draw a layer's next frame.

        Args:
            key: What the layer is called here.
            subject: The frame, with the options that it would have by itself.

        Returns:
            ``subject.options``, with the scale that is held where one is.
        """
        options = subject.options
        if self.how == "none" or options.vmin is not None or subject.arranged.rgb:
            return options
        now, before = subject.scaling.ends, self._ends.get(key)
        if now is not None and before is None:
            before = now
        elif now is not None and before is not None and self.how == "running":
            low, high = min(now[0], before[0]), max(now[1], before[1])
            # One that was symmetric about zero stays so.
            if subject.scaling.symmetric or before[0] == -before[1]:
                high = max(-low, high)
                low = -high
            before = low, high
        if before is None or not before[0] < before[1]:
            return options
        self._ends[key] = before
        scale = "running" if self.how == "running" else "fixed"
        return options.replace(scale=scale, vmin=before[0], vmax=before[1])
