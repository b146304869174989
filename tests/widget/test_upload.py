from __future__ import annotations

import os

import pytest

from hookviz.errors import ImageError
from hookviz.widget._upload import UploadBuffer

DATA = os.urandom(5_000_000)


def pieces(data=DATA, size=2_000_000):
    return [(i, data[i : i + size]) for i in range(0, len(data), size)]


def begun(data=DATA):
    buffer = UploadBuffer()
    buffer.begin("one", "cat.png", len(data))
    return buffer


def test_pieces_come_together_in_order():
    buffer = begun()
    seen = [(buffer.add("one", at, memoryview(piece)), buffer.done) for at, piece in pieces()]
    assert seen == [(2_000_000, False), (4_000_000, False), (5_000_000, True)]
    assert buffer.take("one") == ("cat.png", DATA)
    assert buffer.active is None
    with pytest.raises(ImageError, match="no such upload"):
        buffer.take("one")


def test_an_empty_file_is_done_at_once():
    buffer = begun(b"")
    assert buffer.done
    assert buffer.take("one") == ("cat.png", b"")


def test_the_size_is_checked_before_anything_arrives():
    buffer = UploadBuffer(max_bytes=1000)
    with pytest.raises(ImageError, match=r"'huge\.png' has 2\.0 MB; at most 1,000 bytes are read"):
        buffer.begin("one", "C:\\x\\huge.png", 2_000_000)
    assert buffer.active is None
    with pytest.raises(ImageError, match="cancelled, finished or never begun"):
        buffer.add("one", 0, b"x")


@pytest.mark.parametrize("size", [-1, 1.5, "7", None, True])
def test_a_size_that_is_none(size):
    with pytest.raises(ImageError, match="how large"):
        UploadBuffer().begin("one", "a.png", size)


@pytest.mark.parametrize(
    ("offset", "piece", "words"),
    [
        (0, b"abc", "arrived twice"),
        (9, b"abc", "are missing"),
        (-1, b"abc", "the place -1"),
        ("3", b"abc", "the place '3'"),
        (3, b"", "empty"),
        (3, b"x" * 98, "more bytes arrived than the 100 that were announced"),
    ],
)
def test_a_piece_that_does_not_fit_ends_the_upload(offset, piece, words):
    buffer = UploadBuffer()
    buffer.begin("one", "a.png", 100)
    buffer.add("one", 0, b"abc")
    with pytest.raises(ImageError, match=words):
        buffer.add("one", offset, piece)
    assert buffer.active is None
    assert not buffer.cancel()
    # The next upload works.
    buffer.begin("two", "a.png", 3)
    assert buffer.add("two", 0, b"abc") == 3
    assert buffer.done


def test_a_piece_beyond_the_size_of_pieces():
    buffer = UploadBuffer()
    buffer.begin("one", "a.png", 20_000_000)
    with pytest.raises(ImageError, match="go at once"):
        buffer.add("one", 0, bytes(9_000_000))


def test_a_new_upload_drops_the_old_one_whose_late_pieces_are_refused():
    buffer = begun()
    buffer.add("one", 0, DATA[:100])
    buffer.begin("two", "b.png", 4)
    with pytest.raises(ImageError, match="cancelled"):
        buffer.add("one", 100, DATA[100:200])
    assert buffer.add("two", 0, b"abcd") == 4
    assert buffer.take("two") == ("b.png", b"abcd")


def test_cancel_and_take_too_early():
    buffer = begun()
    buffer.add("one", 0, DATA[:100])
    with pytest.raises(ImageError, match="100 of 5,000,000 bytes"):
        buffer.take("one")
    assert not buffer.cancel("other")
    assert buffer.cancel("one")
    assert buffer.active is None


def test_memory_is_taken_only_for_what_arrived():
    buffer = UploadBuffer()
    buffer.begin("one", "a.png", 49_000_000)
    assert len(buffer._data) == 0
