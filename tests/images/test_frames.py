"""The frames of an animation: as Pillow composes them, within the reader's limits."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hookviz.errors import ImageError
from hookviz.images import are_images, frames_in, read_frames, read_image

SIZE = (24, 16)
COUNT = 7


def pictures(*, clear: bool = False) -> list[Image.Image]:
    """Frames of which each changes a part of the one before."""
    drawn = []
    for number in range(COUNT):
        pixels = np.full((SIZE[1], SIZE[0], 4), (30, 60, 90, 255), np.uint8)
        pixels[2:9, 3 * number : 3 * number + 4] = (240, 30 * number, 10, 255)
        if clear:
            pixels[12:, : 2 * number] = 0
        drawn.append(Image.fromarray(pixels))
    return drawn


def saved(form: str, *, clear: bool = False, **options: object) -> bytes:
    first, *others = pictures(clear=clear)
    file = io.BytesIO()
    lossless = {"lossless": True} if form == "WEBP" else {}
    lasts = [40 + 10 * number for number in range(COUNT)]
    first.save(
        file, form, save_all=True, append_images=others, duration=lasts, **lossless, **options
    )
    return file.getvalue()


def composed(data: bytes, number: int) -> np.ndarray:
    """What Pillow itself gives, on white."""
    with Image.open(io.BytesIO(data)) as image:
        image.seek(number)
        rgba = image.convert("RGBA")
    ground = Image.new("RGB", rgba.size, "white")
    ground.paste(rgba, mask=rgba.getchannel("A"))
    return np.asarray(ground)


@pytest.mark.parametrize("clear", [False, True])
@pytest.mark.parametrize(
    ("form", "options"), [("GIF", {}), ("GIF", {"disposal": 2}), ("WEBP", {}), ("PNG", {})]
)
def test_frames_are_those_that_pillow_composes_in_any_order(form, options, clear):
    data = saved(form, clear=clear, **options)
    frames = read_frames(data, name="clip")
    assert len(frames) == COUNT
    for number in (0, 1, 2, 3, 4, 5, 6, 3, 0, 6, 1):
        frame = frames[number]
        assert frame.number == number
        assert np.array_equal(np.asarray(frame.image), composed(data, number)), number
    assert np.array_equal(np.asarray(frames[0].image), np.asarray(read_image(data).image))


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_each_frame_says_when_it_is_shown(form):
    begins = np.cumsum([0] + [0.04 + 0.01 * number for number in range(COUNT - 1)])
    found = [frame.seconds for frame in read_frames(saved(form), name="clip")]
    assert found == pytest.approx(begins)
    assert read_frames(saved(form), name="clip").seconds(3) == pytest.approx(0.07)


def test_every_takes_each_nth_frame_with_its_own_number(tmp_path: Path):
    path = tmp_path / "clip.gif"
    path.write_bytes(saved("GIF"))
    frames = read_frames(path, every=3)
    assert [frame.number for frame in frames] == [0, 3, 6]
    assert len(frames) == 3
    assert frames[-1].number == 6
    assert [frame.number for frame in frames[1:]] == [3, 6]
    assert frames[1].name == "clip.gif frame 3"


def test_frames_of_equal_pixels_have_one_hash_and_others_do_not():
    frames = read_frames(saved("GIF"), name="clip")
    assert frames[2].sha256 == read_frames(saved("PNG"), name="other")[2].sha256
    assert frames[2].sha256 != frames[3].sha256


def test_a_picture_knows_the_animation_that_it_is_the_first_frame_of(tmp_path: Path):
    path = tmp_path / "clip.webp"
    path.write_bytes(saved("WEBP"))
    for source in (path, path.read_bytes()):
        found = frames_in(read_image(source))
        assert found is not None
        assert found[4].number == 4
    still = io.BytesIO()
    pictures()[0].save(still, "PNG")
    assert frames_in(read_image(still.getvalue())) is None
    assert frames_in(read_image(pictures()[0])) is None


@pytest.mark.parametrize(
    ("every", "words"), [(0, "every=0"), (True, "every=True"), (1.5, "every=1.5"), (-2, "every=-2")]
)
def test_a_step_that_is_none_is_one_sentence(every, words):
    with pytest.raises(ImageError, match=f"^{words} is not a step; give a whole number from 1 up"):
        read_frames(saved("GIF"), every=every)


def test_what_has_no_frames_is_one_sentence(encode):
    with pytest.raises(ImageError, match=r"^'a\.jpg' has no frames that can be read: it is a JPEG"):
        read_frames(encode(Image.new("RGB", (4, 4)), "JPEG"), name="a.jpg")
    with pytest.raises(ImageError, match=r"it is a Matroska or WebM video, which is not read"):
        read_frames(b"\x1a\x45\xdf\xa3" + bytes(40), name="a.webm")


def test_frames_beyond_the_limit_are_refused_before_they_are_decoded():
    data = saved("GIF")
    with pytest.raises(ImageError, match="and at most 100 pixels are read"):
        read_frames(data, max_pixels=100)
    with pytest.raises(ImageError, match="and at most 10 bytes are read"):
        read_frames(data, max_bytes=10)
    # A later frame that is larger than the screen: Pillow would enlarge the image.
    large = b"\x2c" + struct.pack("<HHHHB", 0, 0, 60_000, 60_000, 0) + b"\x02\x02\x4c\x01\x00;"
    assert read_image(data[:-1] + large).size == SIZE
    with pytest.raises(ImageError, match="of 60000×60000 pixels"):
        read_frames(data[:-1] + large)


def test_a_file_that_is_cut_short_gives_its_whole_frames_and_then_a_sentence():
    data = saved("PNG")
    frames = read_frames(data[: len(data) * 2 // 3], name="cut.png")
    seen = []
    with pytest.raises(ImageError, match=r"^'cut\.png' cannot be read: it is a PNG image that is "):
        seen.extend(frame.number for frame in frames)
    again = iter(read_frames(data[: len(data) * 2 // 3], name="cut.png"))
    assert next(again).number == 0


def test_several_images_are_told_from_one():
    class Batch:
        def __iter__(self):
            return iter(())

    several = [["a.png"], ("a.png", "b.png"), iter(["a"]), (n for n in "ab"), {"a"}, Batch()]
    several += [read_frames(saved("GIF"))]
    assert all(are_images(source) for source in several)
    image = Image.new("RGB", (2, 2))
    one = ["a.png", b"", bytearray(), memoryview(b""), Path("a"), image, np.zeros((2, 2, 3))]
    one += [io.BytesIO(), read_image(image), {"name": "a", "content": b""}, (), []]
    one += [({"name": "a.png", "content": b""},), None, 7]
    assert not any(are_images(source) for source in one)
