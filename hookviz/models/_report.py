"""What a checkpoint gave a model, as one readable table.

In: names and shapes on both sides. Out: a frozen WeightsReport.
Must not know: how files are read or modules are built.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Mismatch", "WeightsReport"]


@dataclass(frozen=True)
class Mismatch:
    """A tensor that file and model both have, and that does not fit.

    Attributes:
        name: The model's name of the tensor.
        found: What the file holds, for example "(10, 512)" or "(10, 512) int64".
        expected: What the model needs.
    """

    name: str
    found: str
    expected: str


@dataclass(frozen=True)
class WeightsReport:
    """What was matched, missing and unexpected when a checkpoint was loaded.

    Attributes:
        source: The file's name, or "state dict".
        model: The model's name.
        wrapping: Where in the file the weights were: "" for the top, else "state_dict" or
            "checkpoint.model".
        prefix: What was taken off the file's names, for example "module."; "" for nothing.
        matched: Names loaded, in the model's order.
        missing: Names that the model needs and the file lacks.
        unexpected: Names that the file has and the model does not know.
        mismatched: Names on both sides that do not fit.
        ignored: Names outside the chosen wrapping or prefix, and values that are no tensors.
        head: Names of ``missing`` and ``unexpected`` that belong to the classifier: these do not
            make a load fail.
        classes: Number of classes taken from the file; None where the model's own was kept.
        notes: Sentences on values: dtypes cast, NaN found, other weights in the same file.
    """

    source: str
    model: str
    wrapping: str = ""
    prefix: str = ""
    matched: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[Mismatch, ...] = ()
    ignored: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    classes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """Names beyond the classifier that are missing, unexpected or do not fit."""
        names = [*self.missing, *self.unexpected]
        head = set(self.head)
        return tuple(n for n in names if n not in head) + tuple(m.name for m in self.mismatched)

    @property
    def sentence(self) -> str:
        """The counts in one sentence."""
        parts = [f"{len(self.matched)} tensors matched"]
        parts += [
            f"{len(names)} {word}"
            for names, word in (
                (self.missing, "missing"),
                (self.unexpected, "unexpected"),
                (self.mismatched, "of another shape or type"),
                (self.ignored, "ignored"),
            )
            if names
        ]
        return f"{self.source} → {self.model}: {', '.join(parts)}."

    def table(self, limit: int = 8) -> str:
        """The report as text for people.

        Args:
            limit: At most this many names in each row; the rest is counted.

        Examples:
            >>> report = WeightsReport("my.pth", "net", prefix="module.", matched=("a", "b"),
            ...     missing=("fc.weight",), head=("fc.weight",))
            >>> print(report.table())
            my.pth → net: 2 tensors matched, 1 missing.
              prefix       module. (taken off)
              matched      2   a, b
              missing      1   fc.weight (head)
        """
        rows = [self.sentence]
        if self.wrapping:
            rows.append(f"  {'found in':<12} {self.wrapping}")
        if self.prefix:
            rows.append(f"  {'prefix':<12} {self.prefix} (taken off)")
        if self.classes is not None:
            rows.append(f"  {'classes':<12} {self.classes} (from the file)")
        head = set(self.head)
        for word, names in (
            ("matched", self.matched),
            ("missing", self.missing),
            ("unexpected", self.unexpected),
            ("ignored", self.ignored),
        ):
            if names:
                shown = ", ".join(f"{n} (head)" if n in head else n for n in names[:limit])
                more = f", … {len(names) - limit} more" if len(names) > limit else ""
                rows.append(f"  {word:<12} {len(names):<3} {shown}{more}")
        rows += [
            f"  {'other shape':<12}     {item.name}: {item.found}, expected {item.expected}"
            for item in self.mismatched[:limit]
        ]
        if len(self.mismatched) > limit:
            rows.append(f"  {'other shape':<12}     … {len(self.mismatched) - limit} more")
        rows += [f"  {'note':<12} {note}" for note in self.notes]
        return "\n".join(rows)

    def __str__(self) -> str:
        return self.table()
