"""An upload that arrives in pieces.

A file above about 10 MB in one message is lost on a default Jupyter server, so the page sends
pieces of 2 MB and waits for each answer. Nothing the page says is believed: the size is checked at
the first piece, memory is taken only for bytes that have arrived, and a piece that is not the next
one ends the upload.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from hookviz._text import bytes_text
from hookviz.errors import ImageError
from hookviz.images import MAX_BYTES, clean_name

__all__ = ["PIECE_BYTES", "UploadBuffer", "UploadProgress"]

PIECE_BYTES = 2_000_000
"""What a page should send at a time; larger pieces are taken as well, up to MAX_PIECE_BYTES."""

MAX_PIECE_BYTES = 8_000_000


@dataclass(frozen=True)
class UploadProgress:
    """The answer to a piece.

    Attributes:
        upload_id: Which upload.
        name: The file's name, cleaned.
        received: Bytes that have arrived, in order; the offset of the piece expected next.
        size: Bytes in all.
    """

    upload_id: str
    name: str
    received: int
    size: int

    @property
    def done(self) -> bool:
        """Whether the whole file is there."""
        return self.received == self.size


class UploadBuffer:
    """Puts the pieces of one upload together.

    One upload at a time: a new one drops an unfinished older one, whose late pieces are then
    refused. The memory held is what has arrived, never more than ``max_bytes``. Not thread-safe:
    a widget's messages come one after the other.

    Args:
        max_bytes: The largest file; default 50 million bytes.

    Examples:
        >>> buffer = UploadBuffer()
        >>> buffer.begin("a", "x.txt", 5).done
        False
        >>> buffer.add("a", 0, b"hel").received
        3
        >>> buffer.add("a", 3, b"lo").done
        True
        >>> buffer.take("a")
        ('x.txt', b'hello')
    """

    _id: str | None
    _name: str
    _size: int
    _sha256: str | None
    _data: bytearray

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._clear()

    @property
    def active(self) -> str | None:
        """The id of the upload that has begun and was not taken yet."""
        return self._id

    def begin(
        self, upload_id: str, name: str, size: int, sha256: str | None = None
    ) -> UploadProgress:
        """Announces a file; an unfinished older upload is dropped.

        Args:
            upload_id: Chosen by the sender, a new one for each upload.
            name: The file's name; cleaned here.
            size: Bytes of the whole file; 0 is legal and done at once.
            sha256: Hex digest of the whole file, checked when the last piece is there; optional.

        Returns:
            The progress, nothing received.

        Raises:
            ImageError: The file is larger than ``max_bytes``, or the announcement makes no sense.
        """
        self._clear()
        label = clean_name(name if isinstance(name, str) else "")
        if type(size) is not int or size < 0:
            raise ImageError(f"The upload of '{label}' does not say how large the file is.")
        if size > self.max_bytes:
            raise ImageError(
                f"'{label}' has {bytes_text(size)}; at most {bytes_text(self.max_bytes)} are read.",
                remedy="Make it smaller.",
            )
        if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", str(sha256)):
            raise ImageError(f"The upload of '{label}' comes with a digest that is no SHA-256.")
        self._id, self._name, self._size = str(upload_id), label, size
        self._sha256 = sha256.lower() if sha256 else None
        return self._progress()

    def add(
        self, upload_id: str, offset: int, piece: bytes | bytearray | memoryview
    ) -> UploadProgress:
        """Takes the next piece.

        Args:
            upload_id: The upload that has begun.
            offset: Where the piece belongs: the bytes that were sent before it.
            piece: The bytes, not empty; they are copied.

        Returns:
            How far the upload is; send it back as the acknowledgement.

        Raises:
            ImageError: Out of order, sent twice, more bytes than announced, or the digest
                differs: the upload is dropped. Also for a piece of another upload than the one
                in progress, which goes on.
        """
        if upload_id != self._id:
            raise ImageError(
                "A piece arrived of an upload that was cancelled, finished or never begun.",
                remedy="Choose the file again.",
            )
        data = memoryview(piece).cast("B")
        problem = self._problem(offset, data.nbytes)
        if problem is None:
            self._data += data
            complete = len(self._data) == self._size
            if complete and self._sha256 not in (None, hashlib.sha256(self._data).hexdigest()):
                problem = "the bytes that arrived are not those that were sent"
        if problem is not None:
            label = self._name
            self._clear()
            raise ImageError(
                f"The upload of '{label}' failed: {problem}.", remedy="Choose the file again."
            )
        return self._progress()

    def take(self, upload_id: str) -> tuple[str, bytes]:
        """The whole file; the buffer is empty afterwards.

        Args:
            upload_id: The upload that is done.

        Returns:
            The cleaned name and the bytes.

        Raises:
            ImageError: The upload is not complete, or there is none of that id.
        """
        if self._id is None or upload_id != self._id:
            raise ImageError("There is no such upload.", remedy="Choose the file again.")
        if len(self._data) != self._size:
            raise ImageError(
                f"The upload of '{self._name}' is not complete: {len(self._data):,} of "
                f"{self._size:,} bytes have arrived."
            )
        name, data = self._name, bytes(self._data)
        self._clear()
        return name, data

    def cancel(self, upload_id: str | None = None) -> bool:
        """Drops the upload in progress and its memory.

        Args:
            upload_id: Only if it is this one; None drops any.

        Returns:
            Whether there was one.
        """
        if self._id is None or (upload_id is not None and upload_id != self._id):
            return False
        self._clear()
        return True

    def _problem(self, offset: int, count: int) -> str | None:
        have = len(self._data)
        if type(offset) is not int or offset < 0:
            return f"a piece came for the place {offset!r}"
        if offset < have:
            return f"the bytes from {offset:,} arrived twice"
        if offset > have:
            return f"the bytes from {have:,} to {offset:,} are missing"
        if count > MAX_PIECE_BYTES:
            return f"a piece has {bytes_text(count)}; {bytes_text(MAX_PIECE_BYTES)} go at once"
        if have + count > self._size:
            return f"more bytes arrived than the {self._size:,} that were announced"
        # Endless empty pieces would keep an upload alive for ever.
        return "a piece is empty" if count == 0 else None

    def _progress(self) -> UploadProgress:
        return UploadProgress(self._id or "", self._name, len(self._data), self._size)

    def _clear(self) -> None:
        self._id = None
        self._name = ""
        self._size = 0
        self._sha256 = None
        self._data = bytearray()
