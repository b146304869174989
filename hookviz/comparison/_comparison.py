"""What a comparison found, and how it becomes tables, figures and files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from hookviz._tables import csv_text, data_frame
from hookviz._text import columns, names_text, shape_text
from hookviz.activation import Activation, CallChoice, choose, no_such_layer
from hookviz.comparison._layers import LayerDifference
from hookviz.comparison._match import MatchedBy, key_of
from hookviz.comparison._sides import Side
from hookviz.errors import HookvizError, LayerError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hookviz.export import ExportChoices, ExportResult, RunFacts
    from hookviz.render import ActivationPair, Drawing, DrawingOptions, GridOptions

BETWEEN = " | "
"""Stands between what is true of a and what is true of b where they differ."""

_HEADS = (
    "layer", "type", "shape", "max |b−a|", "mean |b−a|", "relative", "cosine", "correlation",
    "where", "",
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Two runs, layer by layer. Its text is a summary of a few lines; `table` is all of it.

    Attributes:
        a: What the first side is, in words.
        b: What the second is.
        layers: One entry per tensor that both have, in order of execution of a.
        matched_by: "name", "order" or "mapping".
        only_a: What a has and b has not, as labels.
        only_b: The reverse.
    """

    a: str
    b: str
    layers: tuple[LayerDifference, ...]
    matched_by: MatchedBy
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    _sides: tuple[Side, Side]
    _records: tuple[tuple[Activation, Activation], ...] = field(default=())

    def first_difference(self, tol: float | None = None) -> LayerDifference | None:
        """The first tensor, in order of execution, whose difference is beyond rounding.

        Args:
            tol: Largest difference allowed, as a share of the layer's largest magnitude; 0 finds
                the first bit that differs. None is what rounding explains: 64 ε of float32
                (7.6e-6) and float64 (1.4e-14), 8 ε of float16 (7.8e-3) and bfloat16 (6.3e-2), of
                the coarsest dtype so far; a quarter of it while every tensor before is the same
                to the last bit. Each entry has it as ``tolerance``.

        Returns:
            Its entry; None where there is no difference.

        Raises:
            HookvizError: ``tol`` is no number from 0 up.
        """
        tol = _checked(tol)
        return next((layer for layer in self.layers if layer.beyond(tol)), None)

    def summary(self, tol: float | None = None) -> str:
        """What came of it, in a few lines.

        Args:
            tol: See `first_difference`.

        Returns:
            What the sides are, how they were matched, what has no partner, and the first
            difference or that there is none.
        """
        lines = [f"a: {self.a}", f"b: {self.b}"]
        matched = {"name": "by name", "order": "by order of execution", "mapping": "as mapped"}
        noun = "tensor" if len(self.layers) == 1 else "tensors"
        lines.append(f"{len(self.layers)} {noun} compared, matched {matched[self.matched_by]}")
        for name, labels in (("a", self.only_a), ("b", self.only_b)):
            if labels:
                lines.append(f"only in {name}: {names_text(labels)}")
        if skipped := [layer for layer in self.layers if layer.reason and not layer.shape_mismatch]:
            lines.append(
                f"not compared: {names_text([layer.label for layer in skipped])}: "
                f"{skipped[0].reason}"
            )
        return "\n".join([*lines, self._verdict(tol)])

    def _verdict(self, tol: float | None) -> str:
        first = self.first_difference(tol)
        if first is not None:
            bound = first.tolerance if tol is None else tol
            what = f"First difference: {first.label} ({first.type})"
            if first.shape_mismatch:
                return f"{what}: {first.reason}"
            if first.mismatched:
                return f"{what}: {first.mismatched} values are NaN or infinite in one of the two."
            return (
                f"{what}, {first.relative:.2g} of its largest magnitude at {first.place}, beyond "
                f"the tolerance of {bound:.2g}."
            )
        changed = next((layer for layer in self.layers if layer.max_abs > 0), None)
        if changed is None:
            return "No difference: every value is the same."
        worst = max(self.layers, key=lambda layer: _number(layer.relative))
        return (
            f"No difference beyond {'rounding' if tol is None else 'the tolerance'}: at most "
            f"{worst.relative:.2g} of a layer's largest magnitude ({worst.label}); the first that "
            f"is not the same to the last bit is {changed.label}."
        )

    def __repr__(self) -> str:
        return self.summary()

    def __iter__(self) -> Iterator[LayerDifference]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def table(self, tol: float | None = None) -> str:
        """All layers as aligned text, a line each.

        Args:
            tol: See `first_difference`.

        Returns:
            Columns: layer, type, shape, largest and mean absolute difference, the largest over
            the layer's largest magnitude, cosine similarity, correlation, where the largest is,
            and "same", "rounding", "differs" or why they were not compared.
        """
        tol = _checked(tol)
        return columns([_HEADS, *(_cells(layer, tol) for layer in self.layers)])

    def rows(self) -> list[dict[str, Any]]:
        """All layers as dicts of plain values: the attributes of `LayerDifference`."""
        return [vars(layer) | {"verdict": layer.verdict()} for layer in self.layers]

    def to_pandas(self) -> Any:
        """The same as a ``pandas.DataFrame``, one row per entry.

        Raises:
            HookvizError: pandas is not installed.
        """
        return data_frame(self.rows())

    def to_csv(self) -> str:
        """The same as CSV with a head."""
        rows = self.rows()
        for row in rows:
            row |= {key: shape_text(row[key]) for key in ("shape", "other_shape")}
            row["place"] = " ".join(map(str, row["place"] or ()))
        return csv_text([*(f.name for f in fields(LayerDifference)), "verdict"], rows)

    def select(
        self,
        layer: str,
        call: CallChoice = None,
        leaf: str | int | None = None,
        kind: str = "output",
    ) -> LayerDifference:
        """The entry of a layer.

        Args:
            layer: The layer's name in a.
            call: Which call, from 1, or "last"; may be left out where there was only one.
            leaf: Which tensor of a nested output, by its path or position.
            kind: "output", "input", …

        Raises:
            LayerError: It was not compared, or there are several to choose from.
        """
        return self.layers[self._position(layer, call, leaf, kind)]

    def _position(
        self, layer: str, call: CallChoice, leaf: str | int | None, kind: str = "output"
    ) -> int:
        there = {id(a): i for i, (a, _) in enumerate(self._records)}
        found = [self._records[i][0] for i in self._entries_of(layer)]
        found = [a for a in found if a.kind == kind]
        if not found:
            raise LayerError(f"The {kind} of layer '{layer}' was not compared.")
        return there[id(choose(found, layer, kind, call=call, leaf=leaf)[0])]

    def _entries_of(self, layer: str) -> list[int]:
        """Positions of a layer's entries.

        Raises:
            LayerError: It has none.
        """
        found = [i for i, entry in enumerate(self.layers) if entry.layer == layer]
        if not found:
            names = dict.fromkeys(entry.layer for entry in self.layers)
            raise no_such_layer(layer, names, "compared")
        return found

    def drawing(
        self,
        layer: str,
        call: CallChoice = None,
        *,
        leaf: str | int | None = None,
        options: GridOptions | None = None,
    ) -> Drawing:
        """The same as `figure`, as a `hookviz.render.Drawing`.

        Args:
            layer: The layer's name in a.
            call: Which call, from 1, or "last".
            leaf: Which tensor of a nested output.
            options: How to draw; the defaults where None.

        Raises:
            LayerError: See `select`.
            RenderError: The two cannot be drawn together.
        """
        from hookviz.export import draw_activation
        from hookviz.render import GridOptions

        (pair,), facts = self.pairs([self._position(layer, call, leaf)])
        return draw_activation(facts, pair, options or GridOptions())

    def figure(
        self,
        layer: str,
        call: CallChoice = None,
        *,
        leaf: str | int | None = None,
        sort: bool = False,
        **options: Unpack[DrawingOptions],
    ) -> Figure:
        """A layer in a, in b, and the signed difference b − a, side by side.

        All three share one scale, symmetric about zero, that spans 98 % of the values of each by
        magnitude; what lies beyond is marked and counted. Where the difference would fill less
        than a sixteenth of it, it has a scale of its own, and the figure says how much finer.

        Args:
            layer: The layer's name in a.
            call: Which call, from 1, or "last"; may be left out where there was only one.
            leaf: Which tensor of a nested output, by its path or position.
            sort: Channels that differ most (root mean square) first.
            **options: Fields of `hookviz.render.GridOptions`. ``relative=True`` draws the relative
                difference (b − a) / max(|a|, |b|) of each value: 0 where the two are equal, both
                zero included, 1 in size where one of them is zero, up to 2 where their signs
                differ, NaN where one alone is infinite; on a coarser grid it is that of the means.
                ``side`` draws one of the three alone; ``scale`` is that of a and b ("full" spans
                every value; with "channel" each channel of the difference has its own ends);
                ``order`` is by the difference that is drawn.

        Returns:
            A new figure that is not registered with pyplot.

        Raises:
            LayerError: The layer was not compared, or there are several to choose from.
            RenderError: The two cannot be drawn together, or an option is unknown.
        """
        from hookviz.render import GridOptions

        chosen = GridOptions.of(**options)
        if sort:
            chosen = chosen.replace(order="norm")
        return self.drawing(layer, call, leaf=leaf, options=chosen).figure

    def export(
        self,
        folder: str | Path = "hookviz_exports",
        *,
        name: str | None = None,
        what: str | Iterable[str] = "grids",
        **choices: Unpack[ExportChoices],
    ) -> ExportResult:
        """Writes the table, figures and a manifest into a new folder.

        The table is ``000_comparison.csv``, the summary ``000_comparison.txt``. Sides that were
        given as (model, image) run again, and the values of the exported layers are kept
        meanwhile.

        Args:
            folder: Where the new folder is made; created where missing.
            name: The new folder's name; time, models and images where None.
            what: Parts of an export as in `Run.export`: "grids" (a, b and the difference), "svg",
                "pdf", "channels" (the difference, 1 pixel per activation), "contact", "page" (the
                difference with its values).
            **choices: See `hookviz.export.write_export`: ``layers`` (whose figures; () is none),
                ``options`` … Unless they say otherwise, channels that differ most come first and
                a grid's first page is written alone.

        Returns:
            The folder, the files and the manifest's path.

        Raises:
            LayerError: A layer was not compared.
            ExportError: Nothing can be written there, or the folder exists already.
        """
        from hookviz.comparison._export import TablePart
        from hookviz.export import write_export
        from hookviz.render import GridOptions

        layers = choices.pop("layers", None)
        wanted = [layers] if isinstance(layers, str) else layers
        drawn = [i for i, entry in enumerate(self.layers) if not entry.reason]
        if wanted is not None:
            asked = {layer for layer in wanted if self._entries_of(layer)}
            drawn = [i for i in drawn if self.layers[i].layer in asked]
        pairs, facts = self.pairs(drawn)
        settings: ExportChoices = {"options": GridOptions(order="norm"), "all_pages": False}
        settings.update(choices)
        return write_export(
            facts, pairs, folder, name=name, what=what if pairs else (),
            further=[TablePart(self)], **settings,
        )  # fmt: skip

    def pairs(self, positions: Sequence[int]) -> tuple[list[ActivationPair], RunFacts]:
        """The records of some entries, two and two, as figures are drawn of them.

        Args:
            positions: Of the entries in ``layers``.

        Returns:
            The pairs, with their values, and the facts of both runs. What a run holds is not
            copied; a side given as (model, image) runs again.
        """
        from hookviz.render import ActivationPair

        chosen = [self._records[i] for i in positions]
        sides: list[Side] = []
        values: list[list[Activation]] = []
        for number, side in enumerate(self._sides):
            records = [pair[number] for pair in chosen]
            layers = list(dict.fromkeys(record.layer for record in records))
            kept = side
            if not side.holds and layers:
                kept = side.kept(layers)
                there = {key_of(record): record for record in kept.records("*")}
                records = [there[key_of(record)] for record in records]
            sides.append(kept)
            values.append([kept.read(record) for record in records])
        sizes = sides[0].input_size, sides[1].input_size
        pairs = [
            # A run of these layers alone counts them from 1.
            ActivationPair.of(
                replace(a, order=self.layers[i].order), b, sizes=sizes, sides=(self.a, self.b)
            )
            for i, a, b in zip(positions, *values, strict=True)
        ]
        return pairs, both_facts(*(side.facts() for side in sides))


def both_facts(a: RunFacts, b: RunFacts) -> RunFacts:
    """The facts of two runs as one: what differs stands as "of a | of b"."""
    texts = {
        f.name: f"{getattr(a, f.name)}{BETWEEN}{getattr(b, f.name)}"
        for f in fields(a)
        if isinstance(getattr(a, f.name), str) and getattr(a, f.name) != getattr(b, f.name)
    }
    same_image = (a.image_sha256, a.preprocessing) == (b.image_sha256, b.preprocessing)
    return replace(
        a,
        **texts,  # type: ignore[arg-type]
        trained=a.trained and b.trained,
        input_image=a.input_image if same_image else None,
        categories=a.categories if a.categories == b.categories else (),
        missing={**b.missing, **a.missing},
    )


def _checked(tol: object) -> float | None:
    if tol is None:
        return None
    if isinstance(tol, bool) or not isinstance(tol, int | float) or not 0 <= tol < math.inf:
        raise HookvizError(f"tol is {tol!r:.80}; it must be a number from 0 up, or None.")
    return float(tol)


def _number(value: float) -> float:
    return -1.0 if math.isnan(value) else value


def _cells(layer: LayerDifference, tol: float | None) -> tuple[str, ...]:
    shape, other = shape_text(layer.shape), shape_text(layer.other_shape)
    numbers = [
        "–" if math.isnan(value) else f"{value:.3g}"
        for value in (layer.max_abs, layer.mean_abs, layer.relative)
    ]
    numbers += [
        "–" if math.isnan(value) else f"{value:.6f}" for value in (layer.cosine, layer.correlation)
    ]
    said = layer.verdict(tol)
    said += f": {layer.mismatched} values not finite" if layer.mismatched else ""
    said += "".join(f"; {text}" for text in (layer.reason, layer.note) if text)
    return (
        layer.label,
        layer.type,
        shape if shape == other else f"{shape} | {other}",
        *numbers,
        "" if layer.place is None else ", ".join(map(str, layer.place)),
        said,
    )
