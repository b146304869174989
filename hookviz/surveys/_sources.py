"""Where a survey's images come from: one class for each kind of data.

A source lists its images once, before anything runs: the list is the plan, and an image's number
in it is its identity. Afterwards it gives any of them, in any order, in worker processes too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from hookviz.errors import ImageError, SurveyError
from hookviz.images import file_kind, read_image

_ENDINGS = (
    ".png .jpg .jpeg .jpe .jfif .webp .avif .gif .tif .tiff .bmp .dib .ico .jp2 .j2k .jpx .pbm "
    ".pgm .ppm .pnm .pfm .tga .qoi .psd .pcx .sgi .rgb .bw .heic .heif"
)


class Row(NamedTuple):
    """One image of the plan.

    Attributes:
        name: Path below the source's folder with "/", or a number; as the source names it.
        label: Its class; "" where there is none.
        size: Bytes of the file when the plan was made; -1 where it is no file.
        changed: When the file was last changed, then: nanoseconds since 1970.
    """

    name: str
    label: str = ""
    size: int = -1
    changed: int = 0


class Source:
    """Images by number.

    Attributes:
        kind: What it is, for the manifest.
        root: The folder that the names are below; "" where there is none.
        known: Whether all images can be listed before anything is read.
        note: A sentence about what was left out; "" where nothing was.
    """

    kind = ""
    root = ""
    known = True
    note = ""

    def names(self) -> list[str]:
        """The images in their order; one of an iterable has none."""
        raise NotImplementedError

    def rows(self) -> list[Row]:
        """The same with their classes; without sizes and times, see `stamped`."""
        return [Row(name) for name in self.names()]

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

    def __init__(
        self, names: list[str], root: str, labels: Sequence[str] = (), note: str = ""
    ) -> None:
        self._names, self.root, self._labels, self.note = names, root, labels, note

    def names(self) -> list[str]:
        """See `Source`."""
        return self._names

    def rows(self) -> list[Row]:
        """See `Source`."""
        if not self._labels:
            return super().rows()
        return [Row(*pair) for pair in zip(self._names, self._labels, strict=True)]

    def stamped(self, row: Row) -> Row:
        """See `Source`."""
        try:
            found = self._path(row).stat()
        except (OSError, ValueError):
            return row  # what is wrong with it is said when it is read
        return Row(row.name, row.label, found.st_size, found.st_mtime_ns)

    def read(self, number: int, row: Row) -> Any:  # noqa: ARG002 - as others need it
        """See `Source`."""
        now = self.stamped(row)
        if row.size >= 0 and now.size >= 0 and now != row:
            raise ImageError(f"'{row.name}' was changed after the survey was begun.")
        return read_image(self._path(row))

    def _path(self, row: Row) -> Path:
        return Path(self.root, row.name)


class Items(Source):
    """A data set of PyTorch's kind: with a length, and an image for each number.

    Args:
        items: Gives a tensor, an image, or a tuple or mapping that holds one.
    """

    kind = "data set"

    def __init__(self, items: Any) -> None:
        self._items = items

    def names(self) -> list[str]:
        """See `Source`."""
        return [str(number) for number in range(len(self._items))]

    def read(self, number: int, row: Row) -> Any:  # noqa: ARG002 - the number is the name
        """See `Source`."""
        return image_in(self._items[number])


class Stream(Source):
    """Something that gives images one after the other, and no second time.

    Args:
        items: As for `Items`.
    """

    kind = "iterable"
    known = False

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    def names(self) -> list[str]:
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
    return item


def is_input(found: Any) -> bool:
    """Whether it is a network's input as it is, not an image: a float tensor (C, H, W)."""
    return isinstance(found, Tensor) and found.is_floating_point() and found.dim() == 3


def find_source(data: Any) -> Source:
    """The source for what `survey` was given.

    Raises:
        SurveyError: It is no data, holds no image, or its order is not fixed.
    """
    if isinstance(data, str | os.PathLike):
        return _at_path(Path(data).expanduser())
    if isinstance(data, DataLoader):
        return find_source(_ordered(data))
    if isinstance(data, IterableDataset):
        return Stream(data)
    if isinstance(data, Sequence) and all(isinstance(one, str | os.PathLike) for one in data):
        return _some(Files([os.fspath(one) for one in data], str(Path.cwd())), "The list of paths")
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping):
        return _some(Items(data), f"The {type(data).__name__}")
    if isinstance(data, Iterable) and not isinstance(data, Mapping | bytes):
        return Stream(data)
    raise SurveyError(
        f"data is {type(data).__name__}; it must be a folder, a list or text file of paths, a "
        "torch Dataset or DataLoader, or an iterable of images."
    )


def _some(source: Source, what: str) -> Source:
    if not source.names():
        raise SurveyError(f"{what} holds no image.{source.note and ' '}{source.note}")
    return source


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


def _at_path(path: Path) -> Source:
    what = repr(str(path))
    if path.is_dir():
        return _some(_in_folder(path), what)
    try:
        with path.open("rb") as file:
            words = file_kind(file.read(4096), path.name).words
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SurveyError(f"{what} cannot be surveyed: {reason}.") from error
    if words not in ("a text", "an empty file"):
        raise SurveyError(
            f"{what} is {words}; a survey takes a folder of images or a text file of paths."
        )
    text = os.fsdecode(path.read_bytes())
    names = [line for line in text.splitlines() if line.strip()]
    return _some(Files(names, str(path.parent.absolute())), what)


def _in_folder(root: Path) -> Files:
    """The images below a folder, by name; the folder that one lies in is its class."""
    names: list[str] = []
    others = 0
    endings = set(_ENDINGS.split())
    for name in _below(root, "", set()):
        if os.path.splitext(name)[1].lower() in endings:  # noqa: PTH122 - many texts, no paths
            names.append(name)
        else:
            others += 1
    names.sort()
    labels = [name.rpartition("/")[0] for name in names]
    some = "1 file was" if others == 1 else f"{others} files were"
    note = f"{some} left out, without an ending that images have." * bool(others)
    return Files(names, str(root.absolute()), labels, note)


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
