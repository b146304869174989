"""A channel over the steps of a training: its map at each of them, side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hookviz.activation import Activation
from hookviz.errors import RenderError
from hookviz.render._arrange import Arranged, plain_tensor
from hookviz.render._draw import Drawing, Subject
from hookviz.render._kinds import FigureKind, register
from hookviz.render._maps import draw_maps
from hookviz.render._options import GridOptions

_IN_A_ROW = 10


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ChannelStrip(Activation):
    """One channel at several steps. ``tensor`` is (S, H, W) in the activation's own units.

    Attributes:
        steps: (S,) after how many steps each map was taken.
        channel: Index of the channel.
    """

    steps: tuple[int, ...]
    channel: int

    @property
    def label(self) -> str:
        """Layer and channel, as the figure's title."""
        call = f" call {self.call} of {self.calls}" if self.calls > 1 else ""
        leaf = f"[{self.leaf}]" if self.leaf else ""
        return f"{self.layer or '(model)'}{leaf}{call} channel {self.channel}"


def _arrange(record: Activation, options: GridOptions) -> Arranged:
    if not isinstance(record, ChannelStrip):
        raise RenderError("A figure of this kind is what a watched training gives.")
    if options.sample or options.frame is not None:
        name = "sample" if options.sample else "frame"
        raise RenderError(f"{name} is given, but a channel over the steps has none.")
    tensor, notes = plain_tensor(record.tensor)
    return Arranged(
        kind="strip",
        maps=tensor,
        statement="(steps, H, W)",
        notes=(*notes, f"one scale for all {len(record.steps)} steps"),
        shape=tuple(tensor.shape),
        dtype=str(record.tensor.dtype).removeprefix("torch."),
        labels=tuple(f"step {step}" for step in record.steps),
    )


def draw_strip(subject: Subject) -> Drawing:
    """The maps in the order of the steps, on one scale."""
    options = subject.options.replace(order="index", descending=None)
    if options.ncols is None and len(subject.arranged.maps) <= _IN_A_ROW:
        options = options.replace(ncols=len(subject.arranged.maps))
    subject = replace(subject, options=options)
    ends = subject.scaling.ends
    if ends is not None and ends[0] < ends[1] and options.vmin is None:
        options = options.replace(scale="shared", vmin=ends[0], vmax=ends[1])
        subject = replace(subject, options=options)
    return draw_maps(subject)


register(
    FigureKind("strip", draw_strip, "step", "step", bare=True, record="strip", arrange=_arrange)
)
