"""What a survey is going to do, on the disk: the manifest, the images, the shards.

A shard is a fixed range of images. It is made in one go from batches that do not cross it, and is
there or not; so whatever was interrupted, and whoever makes which shard, the same files result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookviz._text import names_text
from hookviz.errors import SurveyError
from hookviz.surveys._files import committed, write_json
from hookviz.surveys._layout import Layout
from hookviz.surveys._sources import Row, Source

MANIFEST = "manifest.json"
FORMAT = 1

_WORDS = {
    "format": "the form of its files",
    "model": "the model",
    "weights_hash": "the model's weights (their hash)",
    "structure": "the model's layers (their hash)",
    "layers": "the layers",
    "preprocessing": "the preprocessing",
    "data": "the kind of data",
    "column": "the column of images",
    "batch": "batch",
    "shard": "shard",
    "keep": "keep",
    "dtype": "dtype",
    "store": "store",
    "top": "top",
    "torch": "torch's version",
    "device": "the device",
    "threads": "the number of torch's threads",
    "input_sha256": "what the network is fed for the same image (its hash)",
}
"""The facts that have to be the same when a survey goes on, and what they are called."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A survey's folder and what its manifest says.

    Attributes:
        folder: The folder.
        facts: The manifest.
        rows: All images.
    """

    folder: Path
    facts: dict[str, Any]
    rows: list[Row]

    @property
    def layouts(self) -> list[Layout]:
        """The tensors that are surveyed."""
        return [Layout.from_json(one) for one in self.facts["layouts"]]

    @property
    def complete(self) -> bool:
        """Whether all shards are there."""
        done = len(self.shards_there()) == len(self.shards)
        return done and bool(self.facts.get("ended", True))

    @property
    def shards(self) -> list[range]:
        """The images of each shard; images that were added later begin a new one."""
        found: list[range] = []
        start, size = 0, self.facts["shard"]
        for count in self.facts["sections"]:
            end = start + count
            found += [range(at, min(at + size, end)) for at in range(start, end, size)]
            start = end
        return found

    def shard_file(self, number: int) -> Path:
        """The file of a shard."""
        return self.folder / "shards" / f"{number:06d}.safetensors"

    def arrays_folder(self, number: int) -> Path:
        """The folder of a shard's arrays, where what is kept is in zarr."""
        return self.folder / "shards" / f"{number:06d}.zarr"

    def failed_file(self, number: int) -> Path:
        """The note of a shard that could not be made."""
        return self.folder / "failed" / f"{number:06d}.json"

    def shards_there(self) -> list[int]:
        """The numbers of the shards that are done."""
        count = len(self.shards)  # of an iterable, one that was killed may have left one more
        return [n for n in numbers_in(self.folder / "shards", ".safetensors") if n < count]


def numbers_in(folder: Path, ending: str) -> list[int]:
    """The numbers that files of a folder are called by, sorted."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    stems = (name.removesuffix(ending) for name in names if name.endswith(ending))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What a survey's manifest says; None where there is none.

    Raises:
        SurveyError: It is none of a survey, or damaged.
    """
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_bytes())
        if found["format"] != FORMAT or not isinstance(found["layouts"], list):
            raise KeyError("format")
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise SurveyError(f"{str(folder)!r} is a file, not a survey's folder.") from None
    except OSError as error:
        raise SurveyError(f"{str(path)!r} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SurveyError(
            f"{str(path)!r} is not the manifest of a survey of this form ({FORMAT})."
        ) from error
    return found if isinstance(found, dict) else None


def read_rows(folder: Path, facts: dict[str, Any]) -> list[Row]:
    """The images of a plan.

    Args:
        folder: The survey's folder.
        facts: Its manifest.

    Raises:
        SurveyError: A list is missing or damaged.
    """
    if "ended" in facts:  # an iterable: its images have numbers, and no names
        return [Row(str(number)) for number in range(sum(facts["sections"]))]
    try:
        found = json.loads(b"[" + b",".join(row_lines(folder, facts)) + b"]")
        return [Row(*values) for values in found]
    except (ValueError, TypeError) as error:
        raise SurveyError(
            f"The lists of images in {str(folder)!r} are damaged: {error}."
        ) from error


def row_lines(folder: Path, facts: dict[str, Any]) -> list[bytes]:
    """The lines that `read_rows` reads, one an image.

    Raises:
        SurveyError: As for `read_rows`.
    """
    lines: list[bytes] = []
    for section in range(len(facts["sections"])):
        path = rows_file(folder, section)
        try:
            lines += path.read_bytes().splitlines()
        except OSError as error:
            raise SurveyError(f"{str(path)!r} cannot be read: {error}.") from error
    return lines


def rows_file(folder: Path, section: int) -> Path:
    """The file that lists the images that were there at first, or were added the n-th time."""
    return folder / f"images-{section:05d}.jsonl"


def write_rows(folder: Path, section: int, rows: Iterable[Row]) -> None:
    """Commits a list of images."""
    with committed(rows_file(folder, section)) as file:
        for row in rows:
            values = row if row.file else row[:4]
            file.write(json.dumps(values).encode("ascii") + b"\n")


def new_plan(folder: Path, facts: dict[str, Any], rows: list[Row]) -> Plan:
    """Writes a plan: the images first, the manifest last."""
    if "ended" not in facts:
        write_rows(folder, 0, rows)
    return with_sections(Plan(folder, facts, rows), [len(rows)])


def with_sections(plan: Plan, sections: list[int], **more: Any) -> Plan:
    """The plan with other sections, committed."""
    facts = {**plan.facts, "sections": sections, **more}
    write_json(plan.folder / MANIFEST, facts)
    return Plan(plan.folder, facts, plan.rows)


def check_same(folder: Path, there: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuses to go on with a survey that was begun otherwise.

    Args:
        folder: The survey's folder, for the sentence.
        there: Its manifest.
        now: The facts that are known so far.

    Raises:
        SurveyError: Names the first fact that differs.
    """
    for key, words in _WORDS.items():
        if key in now and there.get(key) != now[key]:
            raise SurveyError(
                f"The survey in {str(folder)!r} was begun with another value of {words}: "
                f"{_short(there.get(key))} then, {_short(now[key])} now.",
                remedy="Take another folder, or what it was begun with.",
            )


def _short(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else repr(value)
    return text if len(text) <= 90 else f"{text[:60]} … {text[-25:]}"


def extended(plan: Plan, source: Source, *, extend: bool) -> Plan:
    """The plan, with the images that the source has and the plan lacks.

    Args:
        plan: As it is on the disk.
        source: The data as they are now.
        extend: Whether new images are wanted.

    Raises:
        SurveyError: There are new ones that nobody asked for, or the data are no longer the same.
    """
    new = source.beyond(plan.rows)
    version = plan.facts["version"]
    if not new:
        if source.version != version:
            raise SurveyError(
                f"The survey in {str(plan.folder)!r} was begun with another version of the data "
                f"set: its fingerprint was {version or 'none'}, and is {source.version or 'none'}.",
                remedy="Take another folder, or what it was begun with.",
            )
        return plan
    if not extend:
        raise SurveyError(
            f"The data have {len(new)} images that the survey in {str(plan.folder)!r} lacks: "
            f"{names_text((row.name for row in new), 2)}.",
            remedy="extend=True adds them.",
            code="new-images",
        )
    added = [source.stamped(row) for row in new]
    sections = [*plan.facts["sections"], len(added)]
    write_rows(plan.folder, len(sections) - 1, added)
    plan.rows.extend(added)
    notes = dict.fromkeys(note for note in (plan.facts["note"], source.note) if note)
    return with_sections(plan, sections, version=source.version, note=" ".join(notes))


def of_part(numbers: Sequence[int], part: tuple[int, int] | None) -> list[int]:
    """Those of some shards that a part makes: every n-th, beginning with its own number."""
    if part is None:
        return list(numbers)
    number, parts = part
    return [at for at in numbers if at % parts == number - 1]
