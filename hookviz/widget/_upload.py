"""An upload that arrives in pieces.

A file above about 10 MB in one message is lost on a default Jupyter server, so the page sends
pieces of 2 MB and waits for each answer. Nothing the page says is believed: the size is checked at
the first piece, memory is taken only for bytes that have arrived, and a piece that is not the next
one ends the upload.
"""

from __future__ import annotations

from hookviz._text import bytes_text
from hookviz.errors import ImageError
from hookviz.images import MAX_BYTES, clean_name

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
