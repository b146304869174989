"""The value of an ipywidgets FileUpload, of version 7 or 8."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from PIL import Image

from hookviz.errors import ImageError
from hookviz.images import read_image


def picture_bytes() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 3), (10, 20, 30)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("version", ["8", "8, a file", "8, as a list", "7", "7, a file"])
def test_an_uploads_value_is_read_as_a_picture(version):
    data = picture_bytes()
    new = {"name": "dir/a.png", "type": "image/png", "size": 9, "content": memoryview(data)}
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


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_the_bytes_of_an_upload_are_of_any_kind(kind):
    data = picture_bytes()
    assert read_image(({"name": "a.png", "content": kind(data)},)).sha256 == read_image(data).sha256


@pytest.mark.parametrize("value", [(), {}, []])
def test_an_upload_without_a_file_gets_advice(value):
    with pytest.raises(ImageError, match=r"No file has arrived.*10 MB.*drop the file"):
        read_image(value)


def test_an_upload_of_several_files_names_them():
    data = picture_bytes()
    with pytest.raises(ImageError, match=r"2 files in this upload: 'a\.png', 'b\.png'"):
        read_image(tuple({"name": n, "content": data} for n in ("dir/a.png", "b.png")))
    details = {"name": "a.png", "type": "image/png", "size": 3}
    old = {"a.png": {"metadata": details, "content": data}, "b.png": {"content": data}}
    with pytest.raises(ImageError, match=r"2 files in this upload: 'a\.png', 'b\.png'"):
        read_image(old)


@pytest.mark.parametrize(
    "value", [({"name": "a.png", "content": None},), {"a.png": {"content": None}}]
)
def test_file_without_bytes_gets_advice(value):
    with pytest.raises(ImageError, match=r"'a\.png' arrived without its bytes.*10 MB"):
        read_image(value)


@pytest.mark.parametrize("value", [3, ("abc",), SimpleNamespace()])
def test_other_values_are_no_upload(value):
    with pytest.raises(ImageError, match="is no image"):
        read_image(value)


def test_file_called_content_is_no_trap():
    value = {"content": {"metadata": {"name": "content"}, "content": picture_bytes()}}
    assert read_image(value).name == "content"


@pytest.mark.parametrize("value", [({"x": 2},), {"content": None}, {"a.png": {"x": 2}}])
def test_a_dict_that_is_no_upload_is_refused_in_one_sentence(value):
    with pytest.raises(ImageError, match="upload"):
        read_image(value)


def test_an_upload_is_held_to_the_limits():
    with pytest.raises(ImageError, match="at most"):
        read_image(({"name": "a.png", "content": picture_bytes()},), max_bytes=10)
