"""A survey's numbers as parquet files, for pandas, polars, DuckDB and whatever else reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookviz.export import whole_file
from hookviz.surveys._files import unwritable
from hookviz.surveys._tables import parquet_package

if TYPE_CHECKING:
    from hookviz.surveys._reader import Survey

_NUMBERS = (
    "count", "mean", "std", "min", "min_image", "min_place", "max", "max_image", "max_place",
    "zeros", "nan", "posinf", "neginf", "dead",
)  # fmt: skip


def write_tables(survey: Survey, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
    """See `Survey.to_parquet`."""
    parquet = parquet_package()
    import pyarrow as pa

    tables = {"images": _images, "failures": _failures, "statistics": _statistics, "top": _top}
    out = Path(folder).expanduser()
    written = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, columns in tables.items():
            target = out / f"{name}.parquet"
            found = columns(survey, pa)
            table = pa.table({key: pa.array(values, kind) for key, (values, kind) in found})
            with whole_file(target) as file:
                parquet.write_table(table, file, compression="zstd")
            written.append(target)
    except OSError as error:
        raise unwritable(error, out) from error
    return tuple(written)


_Columns = Iterator[tuple[str, tuple[list[Any], Any]]]
"""Each column's name, its values and pyarrow's type (None: any)."""


def _images(survey: Survey, pa: Any) -> _Columns:
    rows = survey.images
    yield "image", (list(range(len(rows))), pa.int64())
    for at, name in enumerate(rows[0]._fields if rows else ()):
        kind = pa.string() if name in ("name", "label", "file") else pa.int64()
        yield name, ([_text(row[at]) for row in rows], kind)


def _failures(survey: Survey, pa: Any) -> _Columns:
    ones = survey.failures
    yield "image", ([one.image for one in ones], pa.int64())
    yield "name", ([_text(one.name) for one in ones], pa.string())
    yield "reason", ([_text(one.reason) for one in ones], pa.string())


def _statistics(survey: Survey, pa: Any) -> _Columns:
    found = [survey.statistics(layer) for layer in survey.layers]
    channels = [len(one.count) for one in found]
    yield "layer", ([one.layer for one in found for _ in one.count], pa.string())
    yield "channel", ([at for count in channels for at in range(count)], pa.int64())
    yield "images", ([one.images for one in found for _ in one.count], pa.int64())
    for name in _NUMBERS:
        kind = pa.list_(pa.int64()) if name.endswith("place") else None
        yield name, ([value for one in found for value in getattr(one, name).tolist()], kind)


def _top(survey: Survey, pa: Any) -> _Columns:
    hits = [
        (layer, channel, hit)
        for layer in survey.layers
        for channel in range(len(survey.statistics(layer).count))
        for hit in survey.top(layer, channel)
    ]
    yield "layer", ([layer for layer, _, _ in hits], pa.string())
    yield "channel", ([channel for _, channel, _ in hits], pa.int64())
    for name, kind in (
        ("rank", pa.int64()), ("image", pa.int64()), ("name", pa.string()),
        ("label", pa.string()), ("value", pa.float64()), ("place", pa.list_(pa.int64())),
        ("box", pa.list_(pa.int64())), ("shows", pa.string()),
    ):  # fmt: skip
        yield name, ([_text(getattr(hit, name)) for _, _, hit in hits], kind)


def _text(value: Any) -> Any:
    """A name of a file may hold bytes that are no UTF-8, which parquet's texts have to be."""
    return os.fsencode(value).decode("utf-8", "replace") if isinstance(value, str) else value
