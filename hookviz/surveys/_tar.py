"""Images in tar files, as WebDataset lays them out.

The members of a sample follow each other and have the same name up to the first dot of its last
part: "a/0001.jpg", "a/0001.cls". Nothing is unpacked onto the disk: an image is read from the byte
at which it begins, and its name is a text.
"""

from __future__ import annotations

import io
import itertools
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hookviz.errors import ImageError, SurveyError
from hookviz.images import MAX_BYTES, read_image
from hookviz.surveys._sources import Contained, Row, check_stamp

_NAMES = (
    "png jpg jpeg jpe jfif webp avif gif tif tiff bmp dib ico jp2 j2k jpx pbm pgm ppm pnm pfm tga "
    "qoi psd pcx sgi rgb bw heic heif"
)
IMAGE_ENDINGS = frozenset(f".{name}" for name in _NAMES.split())
"""What names of images end in."""

_LABEL_BYTES = 200


class _Careful(io.FileIO):
    """A file of which nobody reads more at once than an image may have.

    The header of a member may claim any length for a name.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        """At most so many bytes."""
        if size is None or not 0 <= size <= MAX_BYTES + 1:
            raise tarfile.ReadError("a header of it would take too much memory")
        return super().read(size) or b""


class Tar(Contained):
    """Images in tar files; the class is what ".cls" says, else the folder that the name has."""

    kind = "tar files"

    def rows_in(self, file: str) -> list[Row]:
        """See `Contained`; the place is the byte at which the header begins.

        Where a file is damaged there is a row that cannot be read.
        """
        rows: list[Row] = []
        more = 0
        try:
            with _Careful(Path(self.root, file)) as stream:
                members = _members(stream)
                for _, sample in itertools.groupby(members, lambda member: _key(member[0])):
                    label, images = "", []
                    for name, at, said in sample:
                        label = label if said is None else said
                        first, last = _endings(name)
                        if not name:
                            rows.append(Row(f"{file}, byte {at}", at=at))
                        elif last in IMAGE_ENDINGS:
                            images.append((first != last, name, at))
                    if images:
                        # "0001.jpg" rather than "0001.mask.png", else the first.
                        _, name, at = min(images, key=lambda image: image[0])
                        more += len(images) - 1
                        rows.append(Row(f"{file}/{name}", label or name.rpartition("/")[0], at=at))
        except OSError as error:
            raise SurveyError(f"'{file}' cannot be read: {error.strerror}.") from error
        if more:
            some = "1 image was" if more == 1 else f"{more} images were"
            self.note = (
                f"{self.note} {some} left out of '{file}': further ones of a sample.".strip()
            )
        return rows

    def read(self, number: int, row: Row) -> Any:  # noqa: ARG002 - as others need it
        """See `Source`."""
        path = self.path(row)
        check_stamp(row, path, row.file)
        try:
            with _Careful(path) as stream:
                stream.seek(row.at)
                with tarfile.open(fileobj=stream, mode="r:") as tar:
                    member = tar.next()
                    if member is None or not member.isreg():
                        raise ImageError(f"'{row.name}' is no file, but a link or something else.")
                    inside = tar.extractfile(member)
                    data = inside.read(MAX_BYTES + 1) if inside is not None else b""
        except OSError as error:
            raise ImageError(f"'{row.name}' cannot be read: {error.strerror}.") from error
        except tarfile.TarError as error:
            raise ImageError(f"'{row.file}' is damaged from byte {row.at} on: {error}.") from error
        return read_image(data, name=member.name)


def _members(stream: io.FileIO) -> Iterator[tuple[str, int, str | None]]:
    """Name, place and, of ".cls", contents of each member; no name where the file is damaged."""
    at = 0
    try:
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]
                at = tar.offset
                if member.isdir():
                    continue
                said = None
                if _endings(member.name)[0] == ".cls" and member.isreg():
                    inside = tar.extractfile(member)
                    text = inside.read(_LABEL_BYTES) if inside is not None else b""
                    said = text.decode("utf-8", "replace").strip()
                yield member.name, member.offset, said
        stream.seek(at)
        if stream.read(tarfile.BLOCKSIZE).strip(b"\0"):  # no header, and not the end either
            yield "", at, None
    except tarfile.TarError:
        yield "", at, None


def _key(name: str) -> str:
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(".")[0]


def _endings(name: str) -> tuple[str, str]:
    """What a name has from its first dot on, and from its last, in lower case.

    Examples:
        >>> _endings("a.b/0001.Mask.PNG")
        ('.mask.png', '.png')
    """
    _, dot, rest = name.rpartition("/")[2].lower().partition(".")
    return dot + rest, dot and "." + rest.rpartition(".")[2]
