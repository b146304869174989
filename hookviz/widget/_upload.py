"""An upload that arrives in pieces.

A file above about 10 MB in one message is lost on a default Jupyter server, so the page sends
pieces of 2 MB and waits for each answer. Nothing the page says is believed: the size is checked at
the first piece, memory is taken only for bytes that have arrived, and a piece that is not the next
one ends the upload.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from hookviz._text import bytes_text
from hookviz.errors import ImageError
from hookviz.images import MAX_BYTES, clean_name
from hookviz.widget._part import Handlers, Part

MAX_PIECE_BYTES = 8_000_000


class UploadBuffer:
    """Puts the pieces of one upload together.

    One upload at a time: a new one drops an unfinished older one, whose late pieces are then
    refused. The memory held is what has arrived, never more than ``max_bytes``. Not thread-safe:
    a widget's messages come one after the other.

    Args:
        max_bytes: The largest file; default 50 million bytes.

    Attributes:
        active: The id of the upload that has begun and was not taken yet; None for none.

    Examples:
        >>> buffer = UploadBuffer()
        >>> buffer.begin("a", "x.txt", 5)
        >>> buffer.add("a", 0, b"hel"), buffer.done
        (3, False)
        >>> buffer.add("a", 3, b"lo"), buffer.done
        (5, True)
        >>> buffer.take("a")
        ('x.txt', b'hello')
    """

    active: str | None = None

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.cancel()

    @property
    def done(self) -> bool:
        """Whether the whole file is there."""
        return len(self._data) == self._size

    def begin(self, upload_id: str, name: str, size: int) -> None:
        """Announces a file; an unfinished older upload is dropped.

        Args:
            upload_id: Chosen by the sender, a new one for each upload.
            name: The file's name; cleaned here.
            size: Bytes of the whole file; 0 is legal and done at once.

        Raises:
            ImageError: The file is larger than ``max_bytes``, or the announcement makes no sense.
        """
        self.cancel()
        label = clean_name(name)
        if type(size) is not int or size < 0:
            raise ImageError(f"The upload of '{label}' does not say how large the file is.")
        if size > self.max_bytes:
            raise ImageError(
                f"'{label}' has {bytes_text(size)}; at most {bytes_text(self.max_bytes)} are read.",
                remedy="Make it smaller.",
            )
        self.active, self._name, self._size = upload_id, label, size

    def add(self, upload_id: str, offset: int, piece: bytes | memoryview) -> int:
        """Takes the next piece.

        Args:
            upload_id: The upload that has begun.
            offset: Where the piece belongs: the bytes that were sent before it.
            piece: The bytes, not empty; they are copied.

        Returns:
            The bytes that have arrived; send it back as the acknowledgement.

        Raises:
            ImageError: Out of order, sent twice or more bytes than announced: the upload is
                dropped. Also for a piece of another upload than the one in progress, which goes
                on.
        """
        if upload_id != self.active:
            raise ImageError(
                "A piece arrived of an upload that was cancelled, finished or never begun.",
                remedy="Choose the file again.",
            )
        if problem := self._problem(offset, len(piece)):
            label = self._name
            self.cancel()
            raise ImageError(
                f"The upload of '{label}' failed: {problem}.", remedy="Choose the file again."
            )
        self._data += piece
        return len(self._data)

    def take(self, upload_id: str) -> tuple[str, bytes]:
        """The whole file; the buffer is empty afterwards.

        Args:
            upload_id: The upload that is done.

        Returns:
            The cleaned name and the bytes.

        Raises:
            ImageError: The upload is not complete, or there is none of that id.
        """
        if upload_id != self.active:
            raise ImageError("There is no such upload.", remedy="Choose the file again.")
        if not self.done:
            raise ImageError(
                f"The upload of '{self._name}' is not complete: {len(self._data):,} of "
                f"{self._size:,} bytes have arrived."
            )
        name, data = self._name, bytes(self._data)
        self.cancel()
        return name, data

    def cancel(self, upload_id: str | None = None) -> bool:
        """Drops the upload in progress and its memory.

        Args:
            upload_id: Only if it is this one; None drops any.

        Returns:
            Whether there was one.
        """
        if upload_id not in (None, self.active):
            return False
        dropped = self.active is not None
        self.active, self._name, self._size, self._data = None, "", 0, bytearray()
        return dropped

    def _problem(self, offset: int, count: int) -> str:
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
        return "" if count else "a piece is empty"


class TakesFiles(Part):
    """A part whose page sends files: ``js/upload.js`` is the other side.

    Args:
        max_bytes: The largest file.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES, **traits: Any) -> None:
        self._upload = UploadBuffer(max_bytes)
        super().__init__(**traits)

    def take_file(self, name: str, data: bytes, upload: str) -> None:
        """Takes a file that has arrived; it ends the upload, in whatever way.

        Args:
            name: Its name, cleaned.
            data: Its bytes.
            upload: What `refusing` and the message "upload-done" name it by.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Takes the widget away, and what has arrived of a file."""
        super().close()
        self._upload.cancel()

    @contextlib.contextmanager
    def refusing(self, upload: str) -> Iterator[None]:
        """Lets the page's upload end where Python refuses it; the error goes on."""
        try:
            yield
        except BaseException:
            if upload:
                self.send({"type": "upload-refused", "id": upload})
            raise

    def _start_upload(self, id: str, name: str, size: int) -> None:  # noqa: A002 - the message's
        with self.refusing(id):
            self._upload.begin(id, name, size)
            self._acknowledge(id, 0)

    def _take_piece(self, id: str, offset: int, buffers: Any) -> None:  # noqa: A002
        if id != self._upload.active:
            return  # late pieces of an upload that a newer one replaced
        with self.refusing(id):
            self._acknowledge(id, self._upload.add(id, offset, buffers[0] if buffers else b""))

    def _abort_upload(self, id: str) -> None:  # noqa: A002
        self._upload.cancel(id)

    def _acknowledge(self, upload: str, received: int) -> None:
        self.send({"type": "upload-ack", "id": upload, "received": received})
        if self._upload.done:
            self.take_file(*self._upload.take(upload), upload)

    def handlers(self) -> Handlers:
        """What the page asks."""
        return {
            **super().handlers(),
            "upload-start": self._start_upload,
            "upload-piece": self._take_piece,
            "upload-abort": self._abort_upload,
        }
