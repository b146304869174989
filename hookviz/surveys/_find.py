"""Which source is meant by what a survey is given."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from hookviz.errors import SurveyError
from hookviz.images import file_kind
from hookviz.surveys._sources import Files, Items, Source, Stream
from hookviz.surveys._tables import Parquet, hugging_face, saved_data_set
from hookviz.surveys._tar import IMAGE_ENDINGS, Tar


def find_source(data: Any, column: str | None = None) -> Source:
    """The source for what `survey` was given.

    Args:
        data: The data.
        column: Of tables, the column of the images.

    Raises:
        SurveyError: It is no data, holds no image, or its order is not fixed; a package is missing.
    """
    source = _found(data, column)
    if column is not None and source.column != column:
        raise SurveyError(f"column={column!r} is for tables, and the data are of another kind.")
    return source


def source_elsewhere(kind: str, root: str, column: str) -> Source:
    """The source of a plan, which reads what the plan lists; see `Source.travels`."""
    if kind == Tar.kind:
        return Tar([], root)
    return Parquet([], root, column) if kind == Parquet.kind else Files([], root)


def _found(data: Any, column: str | None) -> Source:
    if isinstance(data, str | os.PathLike):
        return _at_path(Path(data).expanduser(), column)
    if isinstance(data, DataLoader):
        return _found(_ordered(data), column)
    if (table := hugging_face(data, column)) is not None:
        return table
    if isinstance(data, IterableDataset):
        return Stream(data)
    if isinstance(data, Sequence) and all(isinstance(one, str | os.PathLike) for one in data):
        return _of_paths([os.fspath(one) for one in data], str(Path.cwd()), "The list", column)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping):
        if len(data) < 1:
            raise _nothing(f"The {type(data).__name__}")
        return Items(data)
    if isinstance(data, Iterable) and not isinstance(data, Mapping | bytes):
        return Stream(data)
    raise SurveyError(
        f"data is {type(data).__name__}; it must be a folder, tar or parquet files, a list or "
        "text file of paths, a data set of torch or Hugging Face, a DataLoader, or an iterable of "
        "images."
    )


def _nothing(what: str, note: str = "") -> SurveyError:
    return SurveyError(f"{what} holds no image.{note and ' '}{note}")


def _ordered(loader: DataLoader[Any]) -> Any:
    """The data set of a loader that goes through it in order."""
    data = loader.dataset
    plain = isinstance(loader.sampler, SequentialSampler) and type(loader.batch_sampler) in (
        BatchSampler, type(None),
    )  # fmt: skip
    if not plain and not isinstance(data, IterableDataset):
        sampler = loader.sampler if type(loader.batch_sampler) is BatchSampler else None
        raise SurveyError(
            f"The loader shuffles or samples ({type(sampler or loader.batch_sampler).__name__}), "
            "so that a row would not always be the same image.",
            remedy="Build it with shuffle=False, or give its data set.",
        )
    return data


def _at_path(path: Path, column: str | None) -> Source:
    what, root = repr(str(path)), str(path.parent.absolute())
    if path.is_dir():
        return saved_data_set(path, column) or _in_folder(path, what, column)
    if path.suffix.lower() in (".tar", ".parquet") and path.exists():
        return _of_paths([path.name], root, what, column)
    if glob.has_magic(str(path)) and not path.exists():
        found = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - a pattern may be absolute
        return _of_paths(found, str(Path.cwd()), what, column)
    try:
        with path.open("rb") as file:
            words = file_kind(file.read(4096), path.name).words
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SurveyError(f"{what} cannot be surveyed: {reason}.") from error
    if words not in ("a text", "an empty file"):
        packed = "archive" in words
        raise SurveyError(
            f"{what} is {words}; a survey takes a folder of images, .tar or .parquet files, or a "
            "text file of paths.",
            remedy="Unpack it first." if packed else None,
        )
    text = os.fsdecode(path.read_bytes())
    names = [line for line in text.splitlines() if line.strip()]
    return _of_paths(names, root, what, column)


def _of_paths(names: list[str], root: str, what: str, column: str | None) -> Source:
    """Tar files, parquet files or images, as the names of all say."""
    endings = {os.path.splitext(name)[1].lower() for name in names}  # noqa: PTH122 - texts
    if endings == {".tar"}:
        return Tar(names, root)
    if endings == {".parquet"}:
        return Parquet(names, root, column)
    if not names:
        raise _nothing(what)
    return Files(names, root)


def _in_folder(root: Path, what: str, column: str | None) -> Source:
    """What is below a folder, by name; the folder that an image lies in is its class.

    Where there are no images, but tar or parquet files, it is these.
    """
    images: list[str] = []
    files: dict[str, list[str]] = {".tar": [], ".parquet": []}
    others = 0
    for name in _below(root, "", set()):
        ending = os.path.splitext(name)[1].lower()  # noqa: PTH122 - many texts, no paths
        if ending in IMAGE_ENDINGS:
            images.append(name)
        elif ending in files:
            files[ending].append(name)
        else:
            others += 1
    inside = [names for names in files.values() if names]
    if not images and len(inside) == 1:
        return _of_paths(sorted(inside[0]), str(root.absolute()), what, column)
    others += sum(map(len, inside))
    some = "1 file was" if others == 1 else f"{others} files were"
    note = f"{some} left out, without an ending that images have." * bool(others)
    if not images:
        raise _nothing(what, note)
    images.sort()
    labels = [name.rpartition("/")[0] for name in images]
    return Files(images, str(root.absolute()), labels, note)


def _below(folder: Path, prefix: str, above: set[tuple[int, int]]) -> Iterator[str]:
    """Files below a folder, hidden ones left out; a link to a folder above is not followed."""
    found = folder.stat()
    place = (found.st_dev, found.st_ino)
    if place in above:
        return
    above.add(place)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _below(Path(entry.path), f"{prefix}{entry.name}/", above)
            elif entry.is_file() or entry.is_symlink():
                yield prefix + entry.name
    above.discard(place)
