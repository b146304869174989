"""Images in tables: parquet files, and data sets of Hugging Face's package.

What is taken is the file of each image, byte for byte, never what the package decodes. This is the
only module that imports pyarrow and datasets to read images, and only where a table is given.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hookviz._text import names_text
from hookviz.errors import ImageError, SurveyError, did_you_mean
from hookviz.images import read_image
from hookviz.surveys._sources import Contained, Items, Row, Source, Stream, bytes_in, check_stamp

INSTALL = "pip install 'hookviz[survey]'"
_AT_ONCE = 16  # rows of a table in memory
_IMAGE_NAMES = ("image", "img", "picture", "photo")
_LABEL_NAMES = ("label", "labels", "class", "cls", "category")


class Parquet(Contained):
    """Images in parquet files, one a row.

    Args:
        files: As for `Contained`.
        root: Likewise.
        column: Of the images; None: the one there is.

    Raises:
        SurveyError: pyarrow is missing; a file is damaged or has no such column.
    """

    kind = "parquet files"

    def __init__(self, files: list[str], root: str, column: str | None) -> None:
        super().__init__(files, root)
        self._parquet = parquet_package()
        self.column = column or ""
        if files and not column:
            self.column = self._image_column(files[0])
        self._cursor: _Cursor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what only this process can go on with."""
        return {**vars(self), "_cursor": None, "_parquet": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _parquet=parquet_package())

    def rows_in(self, file: str) -> list[Row]:
        """See `Contained`; the place is the row."""
        table = self._opened(file)
        schema = table.schema_arrow
        if self.column not in schema.names:
            raise _no_column(f"'{file}'", self.column, schema.names)
        classes = _classes(schema)
        name = _label_column(schema.names, classes)
        if name is None:
            labels = [""] * table.metadata.num_rows
        else:
            values = table.read(columns=[name], use_threads=False).column(0).to_pylist()
            labels = [_label(value, classes.get(name, [])) for value in values]
        return [Row(f"{file}/{at}", label, at=at) for at, label in enumerate(labels)]

    def read(self, number: int, row: Row) -> Any:  # noqa: ARG002 - as others need it
        """See `Source`."""
        path = self.path(row)
        check_stamp(row, path, row.file)
        cursor = self._cursor
        if cursor is None or cursor.owner != (os.getpid(), row.file):
            try:
                cursor = _Cursor((os.getpid(), row.file), self._opened(row.file), self.column)
            except SurveyError as error:
                raise ImageError(error.message) from error
        self._cursor = None  # whatever fails below, the next row begins anew
        try:
            cell = cursor.cell(row.at)
        except Exception as error:
            raise ImageError(f"'{row.name}' cannot be read: {_line(error)}.") from error
        self._cursor = cursor
        return read_image(bytes_in(cell), name=row.name)

    def _opened(self, file: str) -> Any:
        try:
            return self._parquet.ParquetFile(Path(self.root, file), pre_buffer=False)
        except Exception as error:
            raise SurveyError(f"'{file}' cannot be read as parquet: {_line(error)}.") from error

    def _image_column(self, file: str) -> str:
        schema = self._opened(file).schema_arrow
        marked = [name for name, one in _features(schema).items() if one.get("_type") == "Image"]
        structs = [one.name for one in schema if "bytes" in _fields(one.type)]
        plain = [one.name for one in schema if str(one.type).endswith("binary")]
        for found in (marked, structs, plain):
            if found:
                return _only(found, f"'{file}'")
        raise _no_images(f"'{file}'", schema.names)


class _Cursor:
    """Goes through a parquet file; only rows before the one it stands at begin a group anew.

    A group of rows may be as large as the whole file, so that it is never read at once.
    """

    def __init__(self, owner: tuple[int, str], table: Any, column: str) -> None:
        self.owner, self._table, self._column = owner, table, column
        counts = [table.metadata.row_group(at).num_rows for at in range(table.num_row_groups)]
        self._starts = [sum(counts[:at]) for at in range(len(counts))]
        self._group = -1
        self._batches: Iterator[Any] = iter(())
        self._first = 0
        self._cells: Any = None

    def cell(self, at: int) -> Any:
        """The image's cell in a row, as Python has it."""
        group = bisect.bisect_right(self._starts, at) - 1
        if group != self._group or at < self._first:
            self._group, self._first, self._cells = group, self._starts[group], None
            self._batches = self._table.iter_batches(
                _AT_ONCE, row_groups=[group], columns=[self._column], use_threads=False
            )
        while self._cells is None or at >= self._first + len(self._cells):
            self._first += 0 if self._cells is None else len(self._cells)
            self._cells = next(self._batches).column(0)
        return self._cells[at - self._first].as_py()


class Table(Items):
    """A data set of Hugging Face's package, with a length.

    Args:
        data: A ``datasets.Dataset``.
        column: Of the images.
    """

    kind = "Hugging Face data set"
    noun = "rows"

    def __init__(self, data: Any, column: str) -> None:
        self.column = column
        names = {
            name: list(one.names) for name, one in data.features.items() if hasattr(one, "names")
        }
        self._label = _label_column(list(data.features), names)
        self._names = names.get(self._label or "", [])
        self._labels = data
        super().__init__(_undecoded(data.with_format(None), column).select_columns([column]))
        # The package's own tells of the files; of what is in memory it depends on how it was made.
        own = data._fingerprint if data.cache_files else _fingerprint(self._items)  # noqa: SLF001
        self.version = str(own)

    def rows(self) -> list[Row]:
        """See `Source`."""
        if self._label is None:
            return super().rows()
        values = self._labels.with_format(None)[self._label]
        return [Row(str(at), _label(value, self._names)) for at, value in enumerate(values)]

    def read(self, number: int, row: Row) -> Any:
        """See `Source`."""
        return read_image(bytes_in(self._items[number][self.column]), name=row.name)


def hugging_face(data: Any, column: str | None) -> Source | None:
    """The source for an object of Hugging Face's package; None for other objects.

    One with an own transform, or without a column of images, is a data set like any other.

    Raises:
        SurveyError: It has several columns of images, or several splits.
    """
    package = sys.modules.get("datasets")  # whoever has such an object has imported it
    if package is None:
        return None
    if isinstance(data, package.DatasetDict | package.IterableDatasetDict):
        raise _splits("The data set", list(data))
    if not isinstance(data, package.Dataset | package.IterableDataset):
        return None
    whole = isinstance(data, package.Dataset)
    if whole and data.format["type"] == "custom":
        return None
    features = data.features or {}
    found = [name for name, one in features.items() if isinstance(one, package.Image)]
    if column is not None:
        if column not in features:
            raise _no_column("The data set", column, list(features))
    elif not found:
        return None
    else:
        column = _only(found, "The data set")
    if whole:
        if len(data) < 1:
            raise SurveyError("The data set holds no image.")
        return Table(data, column)
    plain = _undecoded(data, column).select_columns([column])
    source = Stream(plain if column == "image" else plain.rename_column(column, "image"))
    source.column = column
    return source


def saved_data_set(folder: Path, column: str | None) -> Source | None:
    """The source for a folder that ``Dataset.save_to_disk`` wrote; None for other folders.

    Raises:
        SurveyError: The package is missing, the data set is damaged or has no images, or it has
            several splits.
    """
    what = repr(str(folder))
    if (folder / "dataset_dict.json").is_file():
        raise _splits(what, sorted(one.name for one in folder.iterdir() if one.is_dir()))
    if not (folder / "state.json").is_file() or not (folder / "dataset_info.json").is_file():
        return None
    try:
        import datasets
    except ImportError as error:
        raise SurveyError(
            f"{what} is a saved data set of Hugging Face, which needs the package datasets.",
            remedy=INSTALL,
        ) from error
    try:
        data = datasets.Dataset.load_from_disk(str(folder), keep_in_memory=False)
    except Exception as error:
        raise SurveyError(f"{what} cannot be read as a data set: {_line(error)}.") from error
    source = hugging_face(data, column)
    if source is None:
        raise _no_images(what, list(data.features))
    return source


def _undecoded(data: Any, column: str) -> Any:
    import datasets

    if isinstance(data.features[column], datasets.Image):
        return data.cast_column(column, datasets.Image(decode=False))
    return data


def _fingerprint(data: Any) -> str:
    """SHA-256 (hex) over the images of a data set of one column, as they are in it."""
    found = hashlib.sha256()
    for table in data.with_format("arrow").iter(_AT_ONCE):
        for cell in table.column(0).to_pylist():
            inside = cell.get("bytes") if isinstance(cell, Mapping) else cell
            text = inside if isinstance(inside, bytes) else repr(cell).encode()
            found.update(len(text).to_bytes(8, "little"))
            found.update(text)
    return found.hexdigest()


def parquet_package() -> Any:
    """The module of pyarrow that reads and writes parquet files.

    Raises:
        SurveyError: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise SurveyError(
            "Parquet files need the package pyarrow, which is not installed.", remedy=INSTALL
        ) from error
    return pyarrow.parquet


def _features(schema: Any) -> dict[str, dict[str, Any]]:
    """What Hugging Face's package says of the columns; {} where it says nothing."""
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: one for name, one in found.items() if isinstance(one, dict)}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _classes(schema: Any) -> dict[str, list[str]]:
    """Columns of classes with the names of these."""
    found = {name: one.get("names") for name, one in _features(schema).items()}
    return {
        name: [str(one) for one in names]
        for name, names in found.items()
        if isinstance(names, list) and name in schema.names
    }


def _fields(kind: Any) -> list[str]:
    """The names inside a struct; none of other types."""
    if not str(kind).startswith("struct<"):
        return []
    return [kind.field(at).name for at in range(kind.num_fields)]


def _label_column(columns: list[str], classes: Mapping[str, list[str]]) -> str | None:
    """The only column of classes, or the one that is called like one."""
    if len(classes) == 1:
        return next(iter(classes))
    return next((name for name in _LABEL_NAMES if name in columns), None)


def _label(value: Any, names: list[str]) -> str:
    """A class as a text: its name where there is one."""
    if isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    return "" if value is None or isinstance(value, list | dict | bytes) else str(value)


def _only(found: list[str], what: str) -> str:
    """The only column, or the one that is called like an image.

    Raises:
        SurveyError: There are several.
    """
    usual = next((name for name in _IMAGE_NAMES if name in found), None)
    if len(found) == 1 or usual is not None:
        return usual or found[0]
    raise SurveyError(
        f"{what} has several columns that may hold images: {names_text(found, 8)}.",
        remedy=f"Name one: column={found[0]!r}.",
    )


def _no_column(what: str, column: str, columns: list[str]) -> SurveyError:
    return SurveyError(
        f"{what} has no column '{column}'; it has {names_text(columns, 8)}.",
        remedy=did_you_mean(column, columns) or None,
    )


def _no_images(what: str, columns: list[str]) -> SurveyError:
    return SurveyError(
        f"{what} has no column of images; it has {names_text(columns, 8)}.",
        remedy="A column of images holds their files as bytes.",
    )


def _splits(what: str, names: list[str]) -> SurveyError:
    return SurveyError(
        f"{what} has several splits: {names_text(names, 8)}; a survey takes one of them."
    )


def _line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")
