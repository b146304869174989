"""Where a survey's images come from: what all kinds of data are, and the plain ones.

A source lists its images once, before anything runs: the list is the plan, and an image's number
in it is its identity. Afterwards it gives any of them, in any order, in worker processes too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from hookviz.errors import ImageError, SurveyError
from hookviz.images import read_image


class Row(NamedTuple):
    """One image of the plan.

    Attributes:
        name: Path below the source's folder with "/", or a number; of an image inside a file, that
            file's path, "/" and what the image is called in it.
        label: Its class; "" where there is none.
        size: Bytes of the file when the plan was made; -1 where it is no file.
        changed: When the file was last changed, then: nanoseconds since 1970.
        file: Where the image is inside a file with others: that file's path, as `name` begins.
        at: Its place there: the byte where it begins in a tar file, its row in a table.
    """

    name: str
    label: str = ""
    size: int = -1
    changed: int = 0
    file: str = ""
    at: int = 0


class Source:
    """Images by number.

    Attributes:
        kind: What it is, for the manifest.
        root: The folder that the names are below; "" where there is none.
        column: Of a table, the column of the images; "" of others.
        version: Changes when the data do; "" where nothing tells.
        note: A sentence about what `rows` left out; "" where nothing was.
        travels: Whether a process elsewhere can read from it, by kind, root and column alone.
    """

    kind = ""
    root = ""
    column = ""
    version = ""
    note = ""
    travels = False

    def rows(self) -> list[Row]:
        """The images in their order; without sizes and times, see `stamped`."""
        raise NotImplementedError

    def beyond(self, rows: list[Row]) -> list[Row]:
        """Images of the data that are not in a plan.

        Raises:
            SurveyError: The data are no longer those of the plan.
        """
        raise NotImplementedError

    def stamped(self, row: Row) -> Row:
        """The same image with what tells whether it was changed since."""
        return row

    def read(self, number: int, row: Row) -> Any:
        """What `hookviz.read_image` takes, or a float tensor: the network's input as it is.

        Raises:
            ImageError: It is no longer what it was when the plan was made.
            Exception: Whatever a data set of the user's raises.
        """
        raise NotImplementedError


class Files(Source):
    """Files on the disk.

    Args:
        names: Their paths, as they are written in the plan.
        root: The folder that relative paths are below.
        labels: A class for each; none where empty.
        note: What was left out.
    """

    kind = "files"
    travels = True

    def __init__(
        self, names: list[str], root: str, labels: Sequence[str] = (), note: str = ""
    ) -> None:
        self._names, self.root, self._labels, self.note = names, root, labels, note

    def rows(self) -> list[Row]:
        """See `Source`."""
        if not self._labels:
            return [Row(name) for name in self._names]
        return [Row(*pair) for pair in zip(self._names, self._labels, strict=True)]

    def beyond(self, rows: list[Row]) -> list[Row]:
        """See `Source`."""
        known = [row.name for row in rows]
        if self._names == known or not (missing := set(self._names).difference(known)):
            return []
        return [row for row in self.rows() if row.name in missing]

    def stamped(self, row: Row) -> Row:
        """See `Source`."""
        return with_stamp(row, Path(self.root, row.name))

    def read(self, number: int, row: Row) -> Any:  # noqa: ARG002 - as others need it
        """See `Source`."""
        path = Path(self.root, row.name)
        check_stamp(row, path, row.name)
        return read_image(path)


def with_stamp(row: Row, path: Path) -> Row:
    """An image of the plan with the size and time of its file; as it is where there is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return row  # what is wrong with it is said when it is read
    return row._replace(size=found.st_size, changed=found.st_mtime_ns)


def check_stamp(row: Row, path: Path, name: str) -> None:
    """Refuses a file that is not the one of the plan.

    Raises:
        ImageError: It was changed meanwhile.
    """
    if row.size >= 0 and with_stamp(row, path) != row:
        raise ImageError(f"'{name}' was changed after the survey was begun.")


class Contained(Source):
    """Images inside files that hold many.

    Args:
        files: Paths of these files, as they are written in the plan.
        root: The folder that relative paths are below.
    """

    travels = True

    def __init__(self, files: list[str], root: str) -> None:
        self._files, self.root = files, root

    def rows(self) -> list[Row]:
        """See `Source`; they have size and time of the file that they are in."""
        return [row for file in self._files for row in self._stamped_in(file)]

    def beyond(self, rows: list[Row]) -> list[Row]:
        """See `Source`; a file is known or new as a whole."""
        known = {row.file: row for row in rows}
        for file, row in known.items():
            try:
                check_stamp(row, self.path(row), file)
            except ImageError as error:
                raise SurveyError(
                    error.message, remedy="Take another folder, or what it was begun with."
                ) from error
        new = (file for file in self._files if file not in known)
        return [row for file in new for row in self._stamped_in(file)]

    def _stamped_in(self, file: str) -> list[Row]:
        one = with_stamp(Row(file), Path(self.root, file))
        return [
            row._replace(size=one.size, changed=one.changed, file=file)
            for row in self.rows_in(file)
        ]

    def rows_in(self, file: str) -> list[Row]:
        """The images of one file, with name, label and place.

        Raises:
            SurveyError: It cannot be listed.
        """
        raise NotImplementedError

    def path(self, row: Row) -> Path:
        """The file that an image is in. Names inside it play no part."""
        return Path(self.root, row.file)


class Items(Source):
    """A data set of PyTorch's kind: with a length, and an image for each number.

    Args:
        items: Gives a tensor, an image, or a tuple or mapping that holds one.
    """

    kind = "data set"
    noun = "items"

    def __init__(self, items: Any) -> None:
        self._items = items

    def rows(self) -> list[Row]:
        """See `Source`."""
        return [Row(str(number)) for number in range(len(self._items))]

    def beyond(self, rows: list[Row]) -> list[Row]:
        """See `Source`."""
        if len(self._items) < len(rows):
            raise SurveyError(
                f"The data set has {len(self._items)} {self.noun}, and the survey was begun with "
                f"{len(rows)}.",
                remedy="Take another folder.",
            )
        return self.rows()[len(rows) :] if len(self._items) > len(rows) else []

    def read(self, number: int, row: Row) -> Any:  # noqa: ARG002 - the number is the name
        """See `Source`."""
        return image_in(self._items[number])


class Stream(Source):
    """Something that gives images one after the other, and no second time.

    Args:
        items: As for `Items`.
    """

    kind = "iterable"

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def rows(self) -> list[Row]:
        """See `Source`; nothing is known of them."""
        return []

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)


def image_in(item: Any) -> Any:
    """The image in what a data set gives: itself, the first of a tuple, one entry of a mapping.

    Raises:
        ImageError: A mapping has no entry that is called like an image.
    """
    if isinstance(item, Mapping):
        names = ("image", "img", "pixel_values")
        name = next((name for name in names if name in item), None)
        if name is None:
            there = ", ".join(repr(key) for key in item)
            raise ImageError(f"A row has no image: it has {there}; legal are {', '.join(names)}.")
        item = item[name]
    elif isinstance(item, tuple | list) and item:
        item = item[0]
    return bytes_in(item) if isinstance(item, Mapping) and "bytes" in item else item


def bytes_in(cell: Any) -> bytes:
    """The file of an image in a cell of a table: bytes, or a mapping with them in "bytes".

    Raises:
        ImageError: There are none. A path in their place is not opened: whoever made the table
            would choose which file is read.
    """
    data = cell.get("bytes") if isinstance(cell, Mapping) else cell
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    if isinstance(cell, Mapping) and cell.get("path"):
        raise ImageError(
            "The row holds the path of an image, and not the image itself.",
            remedy="Survey the folder of the images, or save them into the table.",
        )
    raise ImageError("The row holds no image.")


def is_input(found: Any) -> bool:
    """Whether it is a network's input as it is, not an image: a float tensor (C, H, W)."""
    return isinstance(found, Tensor) and found.is_floating_point() and found.dim() == 3
