from __future__ import annotations

import hashlib
import io
import os
from types import SimpleNamespace

import pytest
from PIL import Image

from hookviz.errors import ImageError
from hookviz.images import UploadBuffer, read_image
from hookviz.images._file_upload import uploaded_files
from hookviz.images._upload import PIECE_BYTES

DATA = os.urandom(5_000_000)


def pieces(data=DATA, size=PIECE_BYTES):
    return [(i, data[i : i + size]) for i in range(0, len(data), size)]


def begun(data=DATA, **more):
    buffer = UploadBuffer()
    buffer.begin("one", "cat.png", len(data), **more)
    return buffer


def test_pieces_come_together_in_order():
    buffer = begun(sha256=hashlib.sha256(DATA).hexdigest().upper())
    seen = [buffer.add("one", at, memoryview(piece)) for at, piece in pieces()]
    assert [p.received for p in seen] == [2_000_000, 4_000_000, 5_000_000]
    assert [p.done for p in seen] == [False, False, True]
    assert buffer.take("one") == ("cat.png", DATA)
    assert buffer.active is None
    with pytest.raises(ImageError, match="no such upload"):
        buffer.take("one")


def test_an_empty_file_is_done_at_once():
    buffer = begun(b"")
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
    assert buffer.add("two", 0, b"abc").done


def test_a_piece_beyond_the_size_of_pieces():
    buffer = UploadBuffer()
    buffer.begin("one", "a.png", 20_000_000)
    with pytest.raises(ImageError, match="go at once"):
        buffer.add("one", 0, bytes(9_000_000))


def test_a_wrong_digest():
    buffer = begun(sha256="0" * 64)
    *others, (at, last) = pieces()
    for place, piece in others:
        buffer.add("one", place, piece)
    with pytest.raises(ImageError, match="not those that were sent"):
        buffer.add("one", at, last)
    assert buffer.active is None
    with pytest.raises(ImageError, match="no SHA-256"):
        buffer.begin("two", "a.png", 1, sha256="abc")


def test_a_new_upload_drops_the_old_one_whose_late_pieces_are_refused():
    buffer = begun()
    buffer.add("one", 0, DATA[:100])
    buffer.begin("two", "b.png", 4)
    with pytest.raises(ImageError, match="cancelled"):
        buffer.add("one", 100, DATA[100:200])
    assert buffer.add("two", 0, b"abcd").done
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


# A34 a: the value of ipywidgets' control in version 7 and in version 8.


def test_a34_a_version_8():
    value = (
        {"name": "dir/a.png", "type": "image/png", "size": 3, "content": memoryview(b"abc")},
        {"name": "b.png", "content": memoryview(bytearray(b"d"))},
    )
    assert uploaded_files(value) == [("a.png", b"abc"), ("b.png", b"d")]
    assert uploaded_files(list(value)) == uploaded_files(value)


def test_a34_a_version_7():
    details = {"name": "a.png", "type": "image/png", "size": 3}
    value = {"a.png": {"metadata": details, "content": b"abc"}, "b.png": {"content": b"d"}}
    assert uploaded_files(value) == [("a.png", b"abc"), ("b.png", b"d")]


@pytest.mark.parametrize("value", [(), {}, [], None])
def test_a34_c_an_empty_value_is_no_file(value):
    assert uploaded_files(value) == []


def test_a34_c_a_file_without_bytes_gets_advice():
    with pytest.raises(ImageError, match=r"'a\.png' arrived without its bytes.*10 MB"):
        uploaded_files(({"name": "a.png", "content": None},))


@pytest.mark.parametrize("value", ["abc", b"abc", 3, ("abc",), SimpleNamespace()])
def test_other_values_are_refused(value):
    with pytest.raises(ImageError, match="upload"):
        uploaded_files(value)


def picture_bytes() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 3), (10, 20, 30)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("version", ["8", "8, a file", "8, as a list", "7", "7, a file"])
def test_a34_a_an_uploads_value_is_read_as_a_picture(version):
    data = picture_bytes()
    new = {"name": "a.png", "type": "image/png", "size": len(data), "content": memoryview(data)}
    old = {"metadata": {"name": "a.png", "size": len(data)}, "content": data}
    value = {
        "8": (new,),
        "8, a file": new,
        "8, as a list": [new],
        "7": {"a.png": old},
        "7, a file": old,
    }[version]
    picture = read_image(value)
    assert (picture.name, picture.size) == ("a.png", (4, 3))
    assert picture.image.getpixel((0, 0)) == (10, 20, 30)


@pytest.mark.parametrize("value", [(), {}, []])
def test_a34_c_an_upload_without_a_file_gets_advice(value):
    with pytest.raises(ImageError, match=r"No file has arrived.*10 MB.*drop the file"):
        read_image(value)


def test_an_upload_of_several_files_names_them():
    data = picture_bytes()
    with pytest.raises(ImageError, match=r"2 files in this upload: 'a\.png', 'b\.png'"):
        read_image(tuple({"name": n, "content": data} for n in ("a.png", "b.png")))


def test_a34_a_a_file_called_content_is_no_trap():
    value = {"content": {"metadata": {"name": "content"}, "content": picture_bytes()}}
    assert read_image(value).name == "content"


@pytest.mark.parametrize("value", [({"x": 2},), {"content": None}, {"a.png": {"x": 2}}])
def test_a_dict_that_is_no_upload_is_refused_in_one_sentence(value):
    with pytest.raises(ImageError, match="upload"):
        read_image(value)


def test_an_upload_is_held_to_the_limits():
    with pytest.raises(ImageError, match="at most"):
        read_image(({"name": "a.png", "content": picture_bytes()},), max_bytes=10)
