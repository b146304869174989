"""Attention over the photo: where each head of the ticked layers looks from one query."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Unpack

from hookviz.activation import Activation
from hookviz.errors import HookvizError
from hookviz.render import Drawing, DrawingOptions, GridOptions
from hookviz.run import Run

NAME = "attention"
TITLE = "Attention"
PAPER = "Vaswani et al. 2017, arXiv:1706.03762"

Place = tuple[float, float]
"""Down and across, each as a share of the photo that the network sees."""


@dataclass(eq=False)
class Attends:
    """The attention of one run, and from where it is looked at.

    Args:
        run: A run with attention.

    Attributes:
        place: The place on the photo whose patch is the query; None for the class token, or the
            patch in the middle where there is none.
        heads: "each", their "mean", or the number of one.
    """

    run: Run
    place: Place | None = None
    heads: Literal["each", "mean"] | int = "each"
    _grids: dict[str, tuple[int, int] | None] = field(default_factory=dict)
    _class: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.records:
            why = next(iter(self.run.missing.values()), "")
            raise HookvizError(
                f"No ticked layer has attention{f' ({why})' if why else ''}.",
                remedy="Tick attention layers, or blocks that hold some.",
            )
        for record in self.records:
            drawing = self._drawn(record, GridOptions.of())
            self._grids[record.label] = drawing.size if drawing.kind == "attention-map" else None
            self._class[record.label] = any("token" in n for n in drawing.notes if "query:" in n)

    @property
    def records(self) -> list[Activation]:
        """The attention of each call, in order of execution."""
        return [a for a in self.run.activations if a.kind == "attention"]

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of the patches of the first layer whose patches are known."""
        return next((grid for grid in self._grids.values() if grid is not None), None)

    def options(self, record: Activation, **look: Unpack[DrawingOptions]) -> GridOptions:
        """How a record is drawn for the present query."""
        grid = self._grids[record.label]
        asked: DrawingOptions = {"heads": "mean" if self.heads == "mean" else "each"}
        if isinstance(self.heads, int):
            asked["channels"] = (self.heads,)
        if grid is not None:
            asked["overlay"] = True
            if self.place is not None:
                asked["query"] = cell(self.place, grid)
        asked.update(look)
        return GridOptions.of(**asked)

    def drawing(self, record: Activation, **look: Unpack[DrawingOptions]) -> Drawing:
        """A record drawn for the present query."""
        return self._drawn(record, self.options(record, **look))

    def _drawn(self, record: Activation, options: GridOptions) -> Drawing:
        several = sum(a.layer == record.layer and a.call == record.call for a in self.records) > 1
        leaf = record.leaf if several else None
        return self.run.drawing(
            record.layer, record.call, leaf=leaf, kind="attention", options=options
        )

    @property
    def count(self) -> int:
        """How many heads all layers have at least."""
        return min(record.shape[1] for record in self.records)

    def public(self) -> dict[str, Any]:
        """The query as the page shows it: {} where no layer's patches are known."""
        if self.grid is None:
            return {}
        there = any(self._class.values())
        place = self.place
        if place is None and not there:
            place = (0.5, 0.5)
        row, column = (-1, -1) if place is None else cell(place, self.grid)
        return {
            "rows": self.grid[0],
            "cols": self.grid[1],
            "y": row,
            "x": column,
            "class": there,
            "heads": str(self.heads),
            "count": self.count,
        }


def cell(place: Place, grid: tuple[int, int]) -> tuple[int, int]:
    """The patch in which a place lies.

    Examples:
        >>> cell((0.5, 0.99), (14, 14)), cell((1.0, 0.0), (7, 7))
        ((7, 13), (6, 0))
    """
    return (
        min(grid[0] - 1, max(0, int(place[0] * grid[0]))),
        min(grid[1] - 1, max(0, int(place[1] * grid[1]))),
    )
