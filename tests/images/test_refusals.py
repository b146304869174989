from __future__ import annotations

import io
import os
import struct
import threading
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hookviz.errors import ImageError
from hookviz.images import clean_name, file_kind, read_image, sample_image
from hookviz.images._formats import ACCEPTED
from hookviz.images._limits import MAX_SCAN_WORK

PDF = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj "
    b"2 0 obj<</Type/Pages/Count 2/Kids[3 0 R 4 0 R]>>endobj\n%%EOF"
)
HEIC = b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + b"\x00" * 64


def zipped() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        # The same bytes each time: they are part of a test's name, on each worker.
        archive.writestr(zipfile.ZipInfo("cat.png"), b"x")
    return stream.getvalue()


def refused(source, name="photo.png", **limits) -> ImageError:
    with pytest.raises(ImageError) as caught:
        read_image(source, name=name, **limits)
    error = caught.value
    text = error.message
    assert f"'{clean_name(name)}'" in text
    assert text.endswith(".")
    assert "\n" not in str(error)
    # Reading works on.
    assert sample_image("chelsea").size == (451, 300)
    return error


# bad uploads.


@pytest.mark.parametrize("part", [0.05, 0.3, 0.5, 0.9])
@pytest.mark.parametrize(
    "kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF", "JPEG2000", "QOI", "TGA"]
)
def test_file_cut_short(kind, part, encode):
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = encode(Image.fromarray(noise), kind)
    error = refused(data[: int(len(data) * part)], name=f"half.{kind.lower()}")
    assert ACCEPTED in str(error)
    assert "image" in error.message or "unknown kind" in error.message


def test_half_a_jpeg_says_so(encode):
    data = encode(sample_image("coffee").image, "JPEG")
    error = refused(data[: len(data) // 2], name="half.jpg")
    assert "it is a JPEG image that is cut short" in error.message


@pytest.mark.parametrize(
    ("data", "name", "words"),
    [
        (b"", "nothing.png", "an empty file"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "cat.png", "an HTML page"),
        (b"\xef\xbb\xbf\n<html>", "cat.png", "an HTML page"),
        (
            b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'/>",
            "cat.png",
            "an SVG drawing",
        ),
        (b"<svg width='9'/>", "cat.png", "an SVG drawing"),
        (HEIC, "IMG_0001.jpg", "a HEIC image"),
        (PDF, "two pages.pdf", "a PDF document"),
        (PDF, "two pages.png", "a PDF document"),
        (b"just words", "cat.png", "a text"),
        ("caf\u00e9".encode(), "cat.png", "a text"),
        ("words".encode("utf-16"), "cat.png", "a text"),
        (b'{"a": 1}', "cat.png", "a JSON text"),
        (zipped(), "cat.png", "a ZIP archive"),
        (b"\x1f\x8b\x08\x00abcdef", "cat.png", "a gzip archive"),
        (
            b"\x00\x00\x00\x20ftypisom\x00\x00\x02\x00isomiso2avc1mp41",
            "film.png",
            "an MP4 or QuickTime video",
        ),
        (b"\x1a\x45\xdf\xa3" + b"\x00" * 40 + b"webm", "film.png", "Matroska or WebM"),
        (b"RIFF\x00\x00\x00\x00AVI LIST", "film.png", "an AVI video"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "figure.eps", "a PostScript file"),
        (b"\x7fELF\x02\x01\x01", "cat.png", "a program"),
        (b"\x80\x04\x95\x10", "cat.png", "a Python pickle"),
        (b"\x93NUMPY\x01\x00", "array.npy", "a NumPy file"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "cat.png", "a Git LFS pointer"),
        (b"\x00" * 500, "cat.png", "a file of zeros"),
        (b"\x01\x02\x03\x04\x99\xaa\xbb" * 9, "cat.png", "a file of an unknown kind"),
    ],
)
def test_what_it_is_is_told_by_its_bytes(data, name, words):
    error = refused(data, name=name)
    assert words in error.message
    if data is not HEIC:
        assert ACCEPTED in str(error)


def test_heic_without_its_plugin_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pillow_heif", None)
    error = refused(HEIC, name="IMG_0001.jpg")
    assert "pillow-heif" in error.message
    assert "hookviz[heic]" in error.message


def bomb(width, height) -> bytes:
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = b"IDAT" + zlib.compress(b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part))
        for part in (body, rows, b"IEND")
    )


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ((20000, 20000), "400 million"),
        ((10000, 10000), "100 million"),
        ((2**31 - 1, 2**31 - 1), "million"),
        ((64_000_001, 1), "64 million"),
    ],
)
def test_bomb_is_refused_by_its_header(size, words):
    error = refused(bomb(*size), name="bomb.png")
    assert f"{size[0]}×{size[1]} pixels" in error.message
    assert words in error.message
    assert "64 million pixels are read" in error.message


def test_the_bomb_of_69_bytes():
    data = bomb(20000, 20000)
    assert len(data) <= 69 + 8
    refused(data)


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (0, 0)])
def test_a_size_of_nothing(size):
    assert "no size" in refused(bomb(*size)).message or "damaged" in refused(bomb(*size)).message


def test_a_jpeg_of_65500_squared(encode):
    data = bytearray(encode(Image.new("RGB", (16, 16)), "JPEG"))
    place = data.index(b"\xff\xc0")
    struct.pack_into(">HH", data, place + 5, 65500, 65500)
    assert "65500×65500" in refused(bytes(data), name="big.jpg").message


def test_a_gif_whose_frame_is_larger_than_its_screen(encode):
    data = bytearray(encode(Image.new("P", (4, 4)), "GIF"))
    place = data.index(b"\x2c")
    struct.pack_into("<HH", data, place + 5, 65535, 65535)
    assert "65535×65535" in refused(bytes(data), name="big.gif").message


def test_a_webp_of_16384_squared(encode):
    data = encode(Image.new("RGBA", (4, 4), (1, 2, 3, 4)), "WEBP", lossless=True)
    large = b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + struct.pack("<I", 10) + b"\x00" * 4
    large += (16383).to_bytes(3, "little") * 2
    assert "16384×16384" in refused(large + data[12:], name="big.webp").message


@pytest.mark.parametrize(("kind", "mark"), [("AVIF", b"ispe"), ("JPEG2000", b"ihdr")])
def test_avif_and_jpeg_2000_bombs(kind, mark, encode):
    data = bytearray(encode(Image.new("RGB", (64, 64), "red"), kind))
    place = data.index(mark) + (8 if kind == "AVIF" else 4)
    struct.pack_into(">II", data, place, 16000, 16000)
    message = refused(bytes(data), name="big").message
    assert "256 million pixels" in message
    assert "are read" in message


def test_an_icon_with_a_large_png_inside():
    inner = bomb(20000, 20000)
    data = (
        struct.pack("<HHH", 0, 1, 1)
        + struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(inner), 22)
        + inner
    )
    assert "20000×20000" in refused(data, name="favicon.ico").message


def test_tiff_tiles_out_of_all_proportion():
    tags = [(256, 4, 1, 1), (257, 4, 1, 4_000_000), (258, 3, 1, 8), (259, 3, 1, 8), (262, 3, 1, 1),
            (277, 3, 1, 1), (322, 4, 1, 16_000), (323, 4, 1, 16), (324, 4, 1, 8),
            (325, 4, 1, 8)]  # fmt: skip
    body = (
        struct.pack("<H", len(tags))
        + b"".join(struct.pack("<HHII", *tag) for tag in tags)
        + b"\0\0\0\0"
    )
    data = b"II*\0" + struct.pack("<I", 16) + b"\0" * 8 + body
    assert "tiles of 16000×16" in refused(data, name="tiles.tif").message


def test_a_tiff_whose_directory_holds_millions_of_values(encode):
    tags = [
        (256, 4, 1, 1000),
        (257, 4, 1, 1000),
        (258, 3, 1, 8),
        (259, 3, 1, 1),
        (262, 3, 1, 1),
        (273, 4, 2_500_000, 8),
        (277, 3, 1, 1),
        (278, 4, 1, 1),
    ]
    blob = b"\0" * 10_000_000
    body = (
        struct.pack("<H", len(tags))
        + b"".join(struct.pack("<HHII", *tag) for tag in tags)
        + b"\0\0\0\0"
    )
    data = b"II*\0" + struct.pack("<I", 8 + len(blob)) + blob + body
    assert "entries in its directory" in refused(data, name="tags.tif").message


def test_a_tiff_directory_that_points_at_itself(encode):
    data = bytearray(encode(Image.new("RGB", (4, 4), "red"), "TIFF"))
    place = struct.unpack_from("<I", data, 4)[0]
    count = struct.unpack_from("<H", data, place)[0]
    struct.pack_into("<I", data, place + 2 + 12 * count, place)
    assert read_image(bytes(data)).size == (4, 4)


def test_a_progressive_jpeg_of_thousands_of_scans(encode):
    size = (6000, 6000)
    data = encode(Image.new("L", size, 90), "JPEG", progressive=True, quality=30)
    first = data.index(b"\xff\xda")
    second = data.index(b"\xff\xda", first + 2)
    scan = (
        data[second : data.index(b"\xff\xda", second + 2)]
        if data.count(b"\xff\xda") > 2
        else data[second:-2]
    )
    count = MAX_SCAN_WORK // (size[0] * size[1]) + 1
    error = refused(data[:-2] + scan * count + b"\xff\xd9", name="slow.jpg")
    assert "scans" in error.message


def test_too_many_bytes():
    error = refused(b"\x89PNG\r\n\x1a\n" + b"\0" * 2000, name="heavy.png", max_bytes=1000)
    assert "2,008 bytes" in error.message
    assert "at most 1,000 bytes are read" in error.message


def test_too_many_pixels_by_a_limit_of_ones_own(encode):
    assert "10×10" in refused(encode(Image.new("RGB", (10, 10)), "PNG"), max_pixels=99).message
    assert read_image(encode(Image.new("RGB", (10, 10)), "PNG"), max_pixels=100).size == (10, 10)


@pytest.mark.parametrize("limit", [0, -1, 1.5, None])
def test_a_limit_must_be_a_number(limit):
    with pytest.raises(ImageError, match="max_pixels"):
        read_image(b"", max_pixels=limit)


# Paths and streams.


def test_paths(tmp_path):
    with pytest.raises(ImageError, match=r"There is no file 'cat\.png'"):
        read_image(tmp_path / "cat.png")
    with pytest.raises(ImageError, match="is a folder"):
        read_image(tmp_path)
    with pytest.raises(ImageError, match="is an address"):
        read_image("https://example.org/cat.png")
    with pytest.raises(ImageError, match="not legal"):
        read_image("a\0b.png")
    with pytest.raises(ImageError, match="cannot be read"):
        read_image("x" * 5000 + ".png")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ImageError, match="pipe or a device"):
        read_image(tmp_path / "pipe.png")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
def test_a_device_is_not_read_for_ever():
    with pytest.raises(ImageError, match="pipe or a device"):
        read_image("/dev/zero")


def test_a_large_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "huge.png"
    with path.open("wb") as stream:
        stream.truncate(10**12)
    with pytest.raises(ImageError, match=r"'huge\.png' has 1,000 GB, and at most 50 MB"):
        read_image(path)


def test_streams(encode, tmp_path):
    data = encode(Image.new("RGB", (3, 2), "red"), "PNG")
    stream = io.BytesIO()
    stream.write(data)
    with pytest.raises(ImageError, match=r"stands at its end.*seek\(0\)"):
        read_image(stream)
    stream.seek(0)
    assert read_image(stream).size == (3, 2)
    with pytest.raises(ImageError, match="opened as a text"):
        read_image(io.StringIO("text"))
    closed = io.BytesIO(data)
    closed.close()
    with pytest.raises(ImageError, match="cannot be read"):
        read_image(closed)

    class Endless:
        def read(self, size=-1):
            return b"\0" * 65536

    with pytest.raises(ImageError, match=r"at most 1\.0 MB"):
        read_image(Endless(), max_bytes=1_000_000)

    class Dribble(io.BytesIO):
        def read(self, size=-1):
            return super().read(min(size, 7))

    assert read_image(Dribble(data)).size == (3, 2)
    path = tmp_path / "three.png"
    path.write_bytes(data)
    with path.open("rb") as opened:
        assert read_image(opened).name == "three.png"


@pytest.mark.parametrize("source", [None, 3, 2.5, ["a"], {"a": 1}, object()])
def test_things_that_are_no_picture(source):
    with pytest.raises(ImageError, match=f"A {type(source).__name__} is no image"):
        read_image(source)


def test_a_lazily_opened_image_whose_file_is_cut_short(encode):
    data = encode(sample_image("coffee").image, "JPEG")
    opened = Image.open(io.BytesIO(data[: len(data) // 2]))
    assert "cut short" in refused(opened, name="half.jpg").message


# Names.


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("/home/someone/cat.png", "cat.png"),
        ("C:\\photos\\cat.png", "cat.png"),
        ("a\nb\r\x1b[31m.png", "ab[31m.png"),
        ("exe\u202egpj.png", "exegpj.png"),
        ("  two   words .png ", "two words .png"),
        ("..", "image"),
        ("", "image"),
        ("///", "image"),
        ("\ud800.png", ".png"),
        ("Käfer 猫.png", "Käfer 猫.png"),
        ("صورة قطة.png", "صورة قطة.png"),
        ("תמונה של חתול.png", "תמונה של חתול.png"),
        ("می\u200cخواهم.png", "می\u200cخواهم.png"),
        ("👩\u200d👩\u200d👧🇩🇪.png", "👩\u200d👩\u200d👧🇩🇪.png"),
        ("e\u0301\u2028\u2029\x00\x7f\x85.png", "e\u0301.png"),
        ("\u2067abc\u2069\u200f\ufeff", "abc"),
        ("\u200d\u200c", "image"),
    ],
)
def test_names_are_cleaned(name, clean):
    assert clean_name(name) == clean


def test_long_names_keep_their_ending():
    name = clean_name("x" * 500 + ".png")
    assert len(name) == 80
    assert name.endswith("x.png")
    assert "…" in name


def test_a_name_in_a_sentence_is_the_clean_one():
    with pytest.raises(ImageError, match=r"^'evil\.png' cannot be read"):
        read_image(b"text", name="../../\x1bevil\n.png")


# Other formats are not tried.


@pytest.mark.parametrize("kind", ["EPS", "PDF", "ICNS", "DDS", "SPIDER", "MSP", "XBM"])
def test_formats_outside_the_list_are_not_opened(kind, encode):
    image = Image.new(
        "1" if kind in ("MSP", "XBM") else "L" if kind == "SPIDER" else "RGB", (16, 16)
    )
    try:
        data = encode(image, kind)
    except (OSError, KeyError) as error:
        pytest.skip(f"Pillow does not write {kind} here: {error}")
    assert file_kind(data).pillow == ""
    refused(data, name=f"odd.{kind.lower()}")


def test_reading_in_many_threads(encode):
    good = encode(Image.new("RGB", (64, 64), "red"), "JPEG")
    outcomes = []

    def work(i):
        for _ in range(20):
            try:
                outcomes.append(read_image(good if i % 2 else good[:300]).size)
            except ImageError:
                outcomes.append(None)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count((64, 64)) == 60
    assert outcomes.count(None) == 60


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "QOI", "PPM"])
def test_decoding_ends_when_its_time_is_over(kind, encode, monkeypatch):
    monkeypatch.setattr("hookviz.images._decode.MAX_SECONDS", -1.0)
    error = refused_alone(encode(Image.new("RGB", (9, 9)), kind))
    assert "that takes more than" in error.message


def refused_alone(data) -> ImageError:
    with pytest.raises(ImageError) as caught:
        read_image(data, name="slow")
    return caught.value


@pytest.mark.parametrize(
    ("size", "remedy"),
    [((20_000, 20_000), "Make it smaller."), ((0, 5), "Save or download it again.")],
)
def test_the_remedy_fits_the_fault_of_the_size(size, remedy):
    width, height = size
    header = (
        b"\xff\xd8\xff\xc0\x00\x11\x08" + struct.pack(">HH", height, width) + b"\x03" + bytes(9)
    )
    assert remedy.rstrip(".") in refused(header, name="wide.jpg").remedy
