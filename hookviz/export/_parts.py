"""Which parts an export may hold. A new one is a class in a file of its own and one line here."""

from __future__ import annotations

from collections.abc import Iterable

from hookviz.errors import ExportError, did_you_mean
from hookviz.export._channels import Channels
from hookviz.export._facts import FileRecord
from hookviz.export._figures import Contact, Grids, Input
from hookviz.export._page import HtmlPage
from hookviz.export._part import ExportPart
from hookviz.export._values import Values
from hookviz.export._vector import VectorGrids

PARTS: dict[str, ExportPart] = {
    part.name: part
    for part in (
        Input(),
        Contact(),
        HtmlPage(),
        Grids(),
        VectorGrids("svg"),
        VectorGrids("pdf"),
        Channels(),
        Values(),
    )
}
"""What an export may hold, in the order in which the files of one layer are written."""


def part_of(record: FileRecord) -> ExportPart | None:
    """The part that draws a file again; None where no part wrote such a one."""
    for part in PARTS.values():
        if part.record and part.record == record.file:
            fits = len(record.keys) == 1 or not part.single
            return part if fits and part.by_channel == (record.channel is not None) else None
    return None


def listed(name: str, value: str | Iterable[str]) -> list[str]:
    """One text, or several, as a list.

    Raises:
        ExportError: It is neither.
    """
    if isinstance(value, str):
        return [value]
    if isinstance(value, Iterable):
        return [str(item) for item in value]
    raise ExportError(f"{name} is {value!r:.80}; it must be a str or a list of them.")


def chosen_parts(what: str | Iterable[str]) -> list[ExportPart]:
    """The parts asked for.

    Raises:
        ExportError: None is asked for, or an unknown one.
    """
    names = set(listed("what", what))
    legal = ", ".join(repr(part) for part in PARTS)
    for name in sorted(names - set(PARTS)):
        raise ExportError(
            f"what={name!r} is no part of an export; legal are {legal}.",
            remedy=did_you_mean(name, PARTS) or None,
        )
    if not names:
        raise ExportError(f"what is empty, so nothing would be exported; legal are {legal}.")
    return [part for name, part in PARTS.items() if name in names]
