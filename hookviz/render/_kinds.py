"""Figure kinds: the ways in which a record becomes a figure.

A kind is one object: what it is called, what its tiles and channels are called, whether it
takes pages and lies over the image, and how it is drawn. Which kind a record gets follows from
what the record is and how its axes are read (`arrange`); ``GridOptions.figure`` asks for another
one by name, so that every figure can be shown, exported and reproduced alike.

To add a kind, touch at most three files: a module of its own with a function that takes a
`Subject` and ends in ``subject.drawing(...)``, and with ``register(FigureKind(...))`` below it;
an import of that module in the ``__init__`` of `hookviz.render`; and, where it has options of its
own, fields of `GridOptions`. Paging, export, `reproduce` and the app need no change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookviz.activation import Activation
    from hookviz.render._arrange import Arranged
    from hookviz.render._draw import Drawing, Subject
    from hookviz.render._options import GridOptions


@dataclass(frozen=True, eq=False)
class FigureKind:
    """One way of drawing.

    Attributes:
        name: Of the kind, for example "maps".
        draw: Draws one page of a subject.
        noun: What one tile is called, for example "map".
        channel_noun: What its index counts, for example "channel".
        value_noun: What one value is called, for example "activation".
        dead_word: What a tile is called that is zero everywhere.
        paged: Whether many tiles are spread over pages; else everything stands on one.
        on_image: Whether its tiles may be laid over the image.
        bare: Whether its tiles may stand alone, without title, sentences and colorbar.
        by_name: Whether ``GridOptions.figure`` may ask for it, whatever the record is.
        record: The kind of records that are always drawn so, for example "weight"; "" for none.
        arrange: How such a record is turned to (C, H, W).
    """

    name: str
    draw: Callable[[Subject], Drawing]
    noun: str = "map"
    channel_noun: str = "channel"
    value_noun: str = "activation"
    dead_word: str = "dead"
    paged: bool = True
    on_image: bool = False
    bare: bool = False
    by_name: bool = False
    record: str = ""
    arrange: Callable[[Activation, GridOptions], Arranged] | None = None


KINDS: dict[str, FigureKind] = {}


def register(kind: FigureKind) -> None:
    """Make a kind known under its name."""
    KINDS[kind.name] = kind


def figure_kinds() -> tuple[FigureKind, ...]:
    """All kinds, in the order in which they were registered."""
    return tuple(KINDS.values())
