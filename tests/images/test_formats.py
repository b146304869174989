from __future__ import annotations

import hashlib
import io
import struct
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image, ImageCms, features

from hookviz.errors import ImageError
from hookviz.images import network_input, read_image
from hookviz.images._decode import png_essentials

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def close(a, b, by=6):
    return max(abs(x - y) for x, y in zip(a, b, strict=True)) <= by


def notes(picture):
    return " ".join(picture.notes)


# odd image files.


@pytest.mark.parametrize(
    "mode",
    ["RGBA", "LA", "L", "1", "P", "PA", "RGB", "I;16", "I", "F", "CMYK", "YCbCr", "HSV", "LAB"],
)
def test_every_mode_becomes_three_channels(mode, encode):
    image = (
        Image.new(mode, (9, 7))
        if mode in ("LAB", "PA")
        else Image.new("RGB", (9, 7), "teal").convert(mode.replace("I;16", "L"))
    )
    picture = read_image(image.convert("I;16") if mode == "I;16" else image)
    assert picture.image.mode == "RGB"
    assert picture.size == (9, 7)
    assert network_input(picture).tensor.shape == (1, 3, 7, 9)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_png_of_every_mode(mode, encode):
    picture = read_image(encode(Image.new(mode, (5, 4)), "PNG"), name="odd.png")
    assert (picture.image.mode, picture.size, picture.format) == ("RGB", (5, 4), "PNG")


def test_sixteen_bit_ramp_is_scaled_not_clipped(encode):
    ramp = np.linspace(0, 65535, 256 * 4).round().astype(np.uint16).reshape(4, 256)
    levels = np.asarray(read_image(encode(Image.fromarray(ramp), "PNG")).image)
    assert np.array_equal(levels[..., 0], np.rint(ramp / 257.0).astype(np.uint8))
    assert len(np.unique(levels)) == 256


@pytest.mark.parametrize("order", ["<", ">"])
def test_sixteen_bit_tiff_in_both_orders(order):
    values = np.array([[0, 257, 32896, 65535]], np.uint16)
    data = tiff(4, 1, values.astype(order + "u2").tobytes(), bits=16, order=order)
    assert np.asarray(read_image(data).image)[0, :, 0].tolist() == [0, 1, 128, 255]


def test_sixteen_bit_white_is_zero_tiff():
    values = np.array([[0, 65535]], "<u2")
    data = tiff(2, 1, values.tobytes(), bits=16, photometric=0)
    assert np.asarray(read_image(data).image)[0, :, 0].tolist() == [255, 0]


def test_twelve_bit_tiff_uses_its_own_range():
    # Two 12-bit values in three bytes: 0xFFF and 0x000.
    data = tiff(2, 1, b"\xff\xf0\x00", bits=12)
    assert np.asarray(read_image(data).image)[0, :, 0].tolist() == [255, 0]


def test_exif_orientation_6_turns_the_picture(quarters, encode):
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = read_image(encode(quarters, "JPEG", exif=exif, quality=95), name="turned.jpg")
    assert picture.size == (20, 40)
    assert picture.source_size == (40, 20)
    assert "EXIF orientation" in notes(picture)
    # Turned clockwise: the lower left corner of the stored picture is the upper left one.
    assert close(picture.image.getpixel((2, 2)), BLUE)
    assert close(picture.image.getpixel((17, 2)), RED)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_all_eight_orientations(orientation, kind, quarters, encode):
    stored = {
        1: quarters,
        2: quarters.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        3: quarters.transpose(Image.Transpose.ROTATE_180),
        4: quarters.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        5: quarters.transpose(Image.Transpose.TRANSPOSE),
        6: quarters.transpose(Image.Transpose.ROTATE_90),
        7: quarters.transpose(Image.Transpose.TRANSVERSE),
        8: quarters.transpose(Image.Transpose.ROTATE_270),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = read_image(encode(stored, kind, exif=exif, quality=95))
    assert picture.size == (40, 20)
    assert picture.source_size == stored.size
    assert ("EXIF orientation" in notes(picture)) == (orientation != 1)
    for place, wanted in (
        ((3, 3), RED),
        ((36, 3), GREEN),
        ((3, 16), BLUE),
        ((36, 16), (255, 255, 0)),
    ):
        assert close(picture.image.getpixel(place), wanted, 40), place


@pytest.mark.parametrize("orientation", [0, 9, 255, 65535])
def test_an_orientation_that_does_not_exist_is_ignored(orientation, quarters, encode):
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = read_image(encode(quarters, "JPEG", exif=exif))
    assert picture.size == (40, 20)
    assert picture.notes == ()


def test_orientation_of_an_opened_image_is_applied_once(quarters, encode):
    exif = Image.Exif()
    exif[0x0112] = 6
    opened = Image.open(io.BytesIO(encode(quarters, "JPEG", exif=exif)))
    first = read_image(opened)
    assert first.size == (20, 40)
    assert read_image(first.image).size == (20, 40)
    assert opened.size == (40, 20)


def test_heic_by_the_optional_plugin(quarters):
    plugin = pytest.importorskip("pillow_heif")
    exif = Image.Exif()
    exif[0x0112] = 6
    stream = io.BytesIO()
    plugin.from_pillow(quarters).save(stream, quality=95, exif=exif.tobytes())
    picture = read_image(stream.getvalue(), name="IMG_0001.jpg")
    assert (picture.format, picture.size) == ("HEIF", (20, 40))
    assert close(picture.image.getpixel((2, 2)), BLUE, 20)
    assert "HEIF" not in Image.OPEN
    with pytest.raises(ImageError, match="HEIC image that is"):
        read_image(stream.getvalue()[:-5])


# Transparency.


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "AVIF", "ICO"])
def test_transparent_pixels_show_white_not_their_hidden_color(kind, encode):
    image = Image.new("RGBA", (16, 16), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (8, 0, 16, 16))
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    picture = read_image(encode(image, kind, **options))
    assert close(picture.image.getpixel((2, 5)), WHITE, 3)
    assert close(picture.image.getpixel((13, 5)), BLUE, 6)
    assert "laid on white" in notes(picture)


def test_half_transparent_is_blended(encode):
    picture = read_image(encode(Image.new("RGBA", (2, 2), (0, 0, 0, 128)), "PNG"))
    assert picture.image.getpixel((0, 0)) == (127, 127, 127)


def test_an_opaque_alpha_channel_changes_nothing_and_says_nothing(encode):
    picture = read_image(encode(Image.new("RGBA", (2, 2), (10, 20, 30, 255)), "PNG"))
    assert picture.image.getpixel((0, 0)) == (10, 20, 30)
    assert picture.notes == ()


def test_grey_with_alpha(encode):
    image = Image.new("LA", (2, 1), (40, 255))
    image.putpixel((1, 0), (40, 0))
    picture = read_image(encode(image, "PNG"))
    assert [picture.image.getpixel((x, 0)) for x in (0, 1)] == [(40, 40, 40), WHITE]


def test_premultiplied_modes():
    image = Image.new("RGBA", (1, 1), (200, 100, 50, 128)).convert("RGBa")
    assert read_image(image).image.getpixel((0, 0)) == read_image(
        image.convert("RGBA")
    ).image.getpixel((0, 0))
    assert read_image(Image.new("LA", (1, 1), (9, 0)).convert("La")).image.getpixel((0, 0)) == WHITE


@pytest.mark.parametrize("alpha", [0, b"\x00\xff", b"\x00\x80"])
def test_palette_transparency(alpha, encode):
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    picture = read_image(encode(image, "PNG", transparency=alpha))
    assert picture.image.getpixel((0, 0)) == WHITE
    assert picture.image.getpixel((1, 0)) == ((127, 127, 255) if alpha == b"\x00\x80" else BLUE)


def test_gif_transparency(encode):
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    picture = read_image(encode(image, "GIF", transparency=0))
    assert [picture.image.getpixel((x, 0)) for x in (0, 1)] == [WHITE, BLUE]


@pytest.mark.parametrize(
    ("bits", "color", "row", "key"),
    [
        (8, 0, b"\x07\x09", struct.pack(">H", 7)),
        (8, 2, b"\x01\x02\x03\x04\x05\x06", struct.pack(">HHH", 1, 2, 3)),
        (16, 0, b"\x01\x02\x01\x03", struct.pack(">H", 0x0102)),
        (16, 2, bytes(range(12)), struct.pack(">HHH", 0x0001, 0x0203, 0x0405)),
        (4, 0, b"\xf3", struct.pack(">H", 15)),
        (2, 0, b"\xd0", struct.pack(">H", 3)),
        (1, 0, b"\x80", struct.pack(">H", 1)),
    ],
)
def test_a_color_key_makes_its_pixels_white(bits, color, row, key, png):
    # The first of two pixels has the key's color, the second has another one.
    picture = read_image(png(2, 1, bits, color, b"\x00" + row, (b"tRNS", key)))
    assert picture.image.getpixel((0, 0)) == WHITE
    assert picture.image.getpixel((1, 0)) != WHITE
    assert "laid on white" in notes(picture)


# Numbers that are not 8 bits.


def test_float_tiff_within_0_and_1_is_taken_as_it_is(encode):
    image = Image.fromarray(np.array([[0.0, 0.5, 0.8]], np.float32))
    picture = read_image(encode(image, "TIFF"))
    assert np.asarray(picture.image)[0, :, 0].tolist() == [0, 128, 204]
    assert picture.notes == ()


def test_float_tiff_beyond_is_stretched_and_said(encode):
    image = Image.fromarray(np.array([[-100.0, 0.0, 300.0]], np.float32))
    picture = read_image(encode(image, "TIFF"))
    assert np.asarray(picture.image)[0, :, 0].tolist() == [0, 64, 255]
    assert "from -100 to 300" in notes(picture)


def test_float_tiff_with_nan_and_inf(encode):
    values = np.array([[np.nan, np.inf, -np.inf, 2.0, 4.0]], np.float32)
    picture = read_image(encode(Image.fromarray(values), "TIFF"))
    assert np.asarray(picture.image)[0, :, 0].tolist() == [0, 255, 0, 0, 255]
    assert "3 values were not finite" in notes(picture)


def test_a_signalling_nan_makes_numpy_warn_nobody():
    values = np.array([[0x7F800001, 0x3F800000, 0x40000000]], np.uint32).view(np.float32)
    assert np.asarray(read_image(Image.fromarray(values)).image)[0, :, 0].tolist() == [0, 0, 255]


@pytest.mark.parametrize("value", [np.nan, 1e38, -7.0, 3.4e38])
def test_constant_float_tiff(value, encode):
    picture = read_image(encode(Image.fromarray(np.full((3, 4), value, np.float32)), "TIFF"))
    levels = np.unique(np.asarray(picture.image))
    assert levels.tolist() == ([0] if np.isnan(value) else [128])


def test_extreme_float_range_does_not_overflow(encode):
    values = np.array([[-3.4e38, 0, 3.4e38]], np.float32)
    picture = read_image(encode(Image.fromarray(values), "TIFF"))
    assert np.asarray(picture.image)[0, :, 0].tolist() == [0, 128, 255]


def test_32_bit_whole_numbers(encode):
    small = Image.fromarray(np.array([[0, 7, 255]], np.int32))
    assert np.asarray(read_image(encode(small, "TIFF")).image)[0, :, 0].tolist() == [0, 7, 255]
    large = Image.fromarray(np.array([[-1000, 0, 1000]], np.int32))
    picture = read_image(encode(large, "TIFF"))
    assert np.asarray(picture.image)[0, :, 0].tolist() == [0, 128, 255]
    assert "stretched" in notes(picture)


def test_sixteen_bit_pgm():
    data = b"P5 3 1 65535\n" + np.array([0, 257, 514], ">u2").tobytes()
    assert np.asarray(read_image(data).image)[0, :, 0].tolist() == [0, 1, 2]


# Colors.


def p3_profile() -> bytes:
    """A profile with other primaries than sRGB: made from sRGB's own by swapping two of them."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    count = struct.unpack_from(">I", data, 128)[0]
    tags = {bytes(data[132 + 12 * i : 136 + 12 * i]): 132 + 12 * i for i in range(count)}
    red, green = tags[b"rXYZ"], tags[b"gXYZ"]
    data[red + 4 : red + 12], data[green + 4 : green + 12] = (
        data[green + 4 : green + 12],
        data[red + 4 : red + 12],
    )
    return bytes(data)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF", "AVIF"])
def test_an_icc_profile_is_converted_to_srgb(kind, encode):
    image = Image.new("RGB", (16, 16), (250, 5, 5))
    picture = read_image(encode(image, kind, icc_profile=p3_profile(), quality=98))
    assert close(picture.image.getpixel((8, 8)), (5, 250, 5), 16)
    assert "color profile" in notes(picture)


def test_an_srgb_profile_leaves_every_pixel_as_it_is(encode):
    values = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    picture = read_image(encode(Image.fromarray(values), "PNG", icc_profile=profile))
    assert np.array_equal(np.asarray(picture.image), values)
    assert picture.notes == ()


# Names of their own: a profile holds the time at which it was made, and two workers must agree.
@pytest.mark.parametrize(
    "profile",
    [b"", b"nonsense", b"\x00" * 128, p3_profile()[:200]],
    ids=["empty", "nonsense", "zeros", "cut"],
)
def test_a_broken_profile_is_a_note(profile, encode):
    picture = read_image(encode(Image.new("RGB", (4, 4), "navy"), "PNG", icc_profile=profile))
    assert picture.image.getpixel((0, 0)) == (0, 0, 128)
    assert ("broken" in notes(picture)) == bool(profile)


def test_a_profile_of_another_space_is_a_note(encode):
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    picture = read_image(encode(Image.new("RGB", (4, 4), "navy"), "PNG", icc_profile=profile))
    assert picture.image.getpixel((0, 0)) == (0, 0, 128)
    assert "ignored" in notes(picture)


def test_profile_and_transparency_together(encode):
    image = Image.new("RGBA", (2, 1), (250, 5, 5, 255))
    image.putpixel((1, 0), (250, 5, 5, 0))
    picture = read_image(encode(image, "PNG", icc_profile=p3_profile()))
    assert close(picture.image.getpixel((0, 0)), (5, 250, 5), 16)
    assert picture.image.getpixel((1, 0)) == WHITE


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk(kind, encode):
    picture = read_image(encode(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), kind))
    assert close(picture.image.getpixel((8, 8)), RED, 8)


def test_lab_and_ycbcr_tiff(encode):
    lab = Image.merge("LAB", [Image.new("L", (8, 8), v) for v in (136, 208, 195)])
    red, green, blue = read_image(encode(lab, "TIFF")).image.getpixel((4, 4))
    assert close((red, green, blue), (255, 0, 0), 60)
    assert close(
        read_image(encode(Image.new("RGB", (8, 8), "red").convert("YCbCr"), "TIFF")).image.getpixel(
            (4, 4)
        ),
        RED,
    )


# Animations and many pages.


@pytest.mark.parametrize(
    ("kind", "words"), [("GIF", 3), ("PNG", 3), ("WEBP", 3), ("TIFF", 3), ("AVIF", 3), ("MPO", 3)]
)
def test_the_first_frame_and_said(kind, words, encode):
    frames = [Image.new("RGB", (32, 32), c) for c in ("red", "lime", "blue")]
    picture = read_image(encode(frames[0], kind, save_all=True, append_images=frames[1:]))
    assert close(picture.image.getpixel((16, 16)), RED, 8)
    assert "first of 3 frames" in notes(picture)


def test_a_single_frame_says_nothing(encode):
    for kind in ("GIF", "WEBP", "TIFF", "AVIF", "PNG"):
        assert "frame" not in notes(read_image(encode(Image.new("RGB", (8, 8), "red"), kind))), kind


def test_thousands_of_frames_are_not_counted_for_ever(encode):
    single = encode(Image.new("P", (1, 1)), "GIF")
    frame = b"\x2c\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02\x44\x01\x00"
    picture = read_image(single[:-1] + frame * 200_000 + b";")
    assert "more than 1,000 frames" in notes(picture)


# Sizes.


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (2, 3)])
@pytest.mark.parametrize(
    "kind",
    ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "TGA", "PCX", "SGI", "QOI", "JPEG2000"],
)
def test_small_and_thin_pictures(size, kind, encode):
    picture = read_image(encode(Image.new("RGB", size, "red"), kind), name=f"thin.{kind.lower()}")
    assert picture.size == size
    assert close(picture.image.getpixel((0, 0)), RED)


@pytest.mark.parametrize(
    "kind",
    [
        "PNG",
        "JPEG",
        "WEBP",
        "AVIF",
        "GIF",
        "TIFF",
        "BMP",
        "ICO",
        "JPEG2000",
        "PPM",
        "TGA",
        "QOI",
        "PCX",
        "SGI",
    ],
)
def test_formats_and_their_hash(kind, encode, tmp_path):
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    data = encode(Image.new("RGB", (32, 32), (200, 30, 60)), kind)
    path = tmp_path / "picture.tga"  # the name does not decide
    path.write_bytes(data)
    picture = read_image(path)
    assert picture.format == kind
    assert picture.sha256 == hashlib.sha256(data).hexdigest()
    assert picture.size == (32, 32)
    assert close(picture.image.getpixel((16, 16)), (200, 30, 60), 8)


def test_progressive_and_restart_jpegs(encode):
    image = Image.radial_gradient("L").convert("RGB")
    plain = np.asarray(read_image(encode(image, "JPEG", quality=90)).image).astype(int)
    progressive = np.asarray(read_image(encode(image, "JPEG", quality=90, progressive=True)).image)
    assert np.abs(plain - progressive).max() <= 2


# Warnings and settings of the process.


def faulty_tiff(encode) -> bytes:
    """Pillow reads it with a warning."""
    broken = encode(Image.new("RGB", (8, 8), "red"), "TIFF")
    # The directory says that a tag's data lie far beyond the file.
    place = struct.unpack_from("<I", broken, 4)[0]
    count = struct.unpack_from("<H", broken, place)[0]
    entry = struct.pack("<HHII", 65000, 7, 5000, 4_000_000)
    data = bytearray(broken)
    moved = len(data)
    directory = broken[place + 2 : place + 2 + 12 * count]
    data += struct.pack("<H", count + 1) + directory + entry + b"\0\0\0\0"
    struct.pack_into("<I", data, 4, moved)
    return bytes(data)


def test_faults_that_pillow_warns_about_are_a_note_where_warnings_are_errors(encode):
    before = list(warnings.filters)
    picture = read_image(faulty_tiff(encode))  # warnings are errors here
    assert picture.size == (8, 8)
    assert "small faults" in notes(picture)
    assert list(warnings.filters) == before


def test_a_thread_that_reads_does_not_touch_the_filters(encode, monkeypatch):
    data = faulty_tiff(encode)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "catch_warnings", lambda: pytest.fail("filters were changed"))
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(read_image, data).result().size == (8, 8)
        monkeypatch.undo()
    assert any("Tag data larger than file" in str(w.message) for w in seen)


def test_pillow_still_warns_everyone_else():
    read_image(Image.new("RGB", (2, 2)))
    with pytest.warns(Image.DecompressionBombWarning):
        Image._decompression_bomb_check((10_000, 10_000))


def test_pillow_settings_are_left_alone(encode, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    data = encode(Image.new("RGB", (9, 9)), "PNG")
    assert read_image(data).size == (9, 9)  # 81 pixels: only a warning of Pillow's
    assert Image.MAX_IMAGE_PIXELS == 50
    with pytest.raises(ImageError, match=r"MAX_IMAGE_PIXELS"):
        read_image(encode(Image.new("RGB", (90, 90)), "PNG"))
    assert Image.MAX_IMAGE_PIXELS == 50


def test_a_png_with_endless_texts_is_read_without_them(png):
    import zlib

    body = b"k\x00\x00" + zlib.compress(b"\x00" * 3_000_000)
    data = png(1, 1, 8, 2, b"\x00\xff\x00\x00", (b"zTXt", body))
    picture = read_image(data)
    assert picture.image.getpixel((0, 0)) == RED
    assert "left out" in notes(picture)
    assert b"zTXt" not in png_essentials(data)


def tiff(width, height, pixels, *, bits, order="<", photometric=1, extra=()):
    """A TIFF of one strip by hand."""
    place = 8
    tags = sorted([
        (256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, bits), (259, 3, 1, 1),
        (262, 3, 1, photometric),
        (273, 4, 1, place), (277, 3, 1, 1), (278, 4, 1, height), (279, 4, 1, len(pixels)), *extra,
    ])  # fmt: skip
    body = struct.pack(order + "H", len(tags))
    for tag, kind, count, value in tags:
        body += struct.pack(order + "HHI", tag, kind, count)
        body += (
            struct.pack(order + "HH", value, 0) if kind == 3 else struct.pack(order + "I", value)
        )
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", place + len(pixels))
    return head + pixels + body + b"\0\0\0\0"


def test_a_photoshop_picture():
    sections = struct.pack(">IIIH", 0, 0, 0, 0)
    head = b"8BPS\0\1" + b"\0" * 6 + struct.pack(">HIIHH", 3, 1, 2, 8, 3)
    picture = read_image(head + sections + b"\xff\0\0\xff\0\0")
    assert picture.format == "PSD"
    assert [picture.image.getpixel((x, 0)) for x in (0, 1)] == [RED, GREEN]


def test_an_animated_png_shows_its_default_picture(encode):
    frames = [Image.new("RGB", (8, 8), c) for c in ("red", "lime", "blue")]
    data = encode(frames[0], "PNG", save_all=True, append_images=frames[1:], default_image=True)
    assert read_image(data).image.getpixel((0, 0)) == RED
    opened = Image.open(io.BytesIO(data))
    opened.seek(1)
    assert read_image(opened).image.getpixel((0, 0)) == GREEN  # the frame that the user chose
