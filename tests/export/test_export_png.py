"""PNG chunks: texts in and out, hostile and broken files."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hookviz.errors import ExportError
from hookviz.export import read_png_facts
from hookviz.export._png import encoded_png, open_png, text_chunks

WRITTEN = {"Software": "hookviz 0.1.0", "record": "{}"}


def read_texts(png: bytes) -> dict[str, str]:
    return {key: str(text) for key, text in open_png(png)[0].info.items()}


def encoded(texts: dict[str, str]) -> bytes:
    return encoded_png(np.zeros((2, 3, 3), np.uint8), texts)


def plain_png(size: tuple[int, int] = (3, 2), **save) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (1, 2, 3)).save(file, "PNG", **save)
    return file.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_with(*chunks: bytes) -> bytes:
    png = plain_png()
    return png[:33] + b"".join(chunks) + png[33:]


@given(
    st.dictionaries(
        st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=79),
        st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=200),
        max_size=5,
    )
)
def test_texts_come_back_as_they_were_here_and_in_pillow(texts: dict[str, str]) -> None:
    png = encoded(texts)
    assert read_texts(png) == texts
    image = Image.open(io.BytesIO(png))
    image.load()
    assert {k: str(v) for k, v in image.text.items()} == texts  # type: ignore[attr-defined]


def test_characters_that_a_text_cannot_hold_are_escaped() -> None:
    png = encoded({"layer": "a\0b\ud800\x1bc\nd"})
    assert read_texts(png) == {"layer": "a\\x00b\\ud800\\x1bc\nd"}


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "begins with nothing"),
        (b"\xff\xd8\xff\xe0 a JPEG", "is not a PNG"),
        (plain_png()[:20], "cut short"),
        (plain_png()[:40], "cut short"),
        (plain_png()[:-4], "cut short"),
        (plain_png()[:-12], "cut short"),
        (b"\x89PNG\r\n\x1a\n", "cut short"),
        (b"\x89PNG\r\n\x1a\n" + chunk(b"IEND", b""), "damaged"),
        (plain_png(), "hookviz did not write it"),
        (png_with(text_chunks({"Software": "Matplotlib version3.11"})), "did not write it"),
        (png_with(text_chunks({"Software": "hookviz 0.1.0"})), "did not write it"),
    ],
)
def test_a_file_that_is_no_export_is_one_sentence(data: bytes, part: str) -> None:
    with pytest.raises(ExportError) as caught:
        read_png_facts(data)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_flipped_bit_is_noticed() -> None:
    png = bytearray(encoded(WRITTEN))
    png[50] ^= 1
    with pytest.raises(ExportError, match="checksum"):
        read_png_facts(bytes(png))


BOMB = zlib.compress(bytes(50_000_000), 9)


@pytest.mark.parametrize(
    "chunk_",
    [chunk(b"zTXt", b"bomb\0\0" + BOMB), chunk(b"iTXt", b"bomb2\0\1\0\0\0" + BOMB)],
    ids=["zTXt", "iTXt"],
)
def test_a_text_that_unpacks_to_megabytes_is_refused(chunk_: bytes) -> None:
    with pytest.raises(ExportError, match="too large"):
        read_png_facts(png_with(chunk_, text_chunks(WRITTEN)))


def test_too_much_text_together_is_refused() -> None:
    many = [chunk(b"tEXt", b"k%d\0" % n + b"x" * 1_000_000) for n in range(68)]
    with pytest.raises(ExportError, match="Too much memory used in text chunks"):
        read_png_facts(png_with(*many))


def test_many_chunks_are_read_in_their_order() -> None:
    png = png_with(chunk(b"tEXt", b"a\0b") * 50_000, text_chunks(WRITTEN))
    assert read_png_facts(png) == {"a": "b", **WRITTEN}


@pytest.mark.parametrize(
    "bad",
    [
        chunk(b"tEXt", b"no separator"),
        chunk(b"tEXt", b"\0empty key"),
        chunk(b"tEXt", b"k" * 80 + b"\0long key"),
        chunk(b"iTXt", b"key\0"),
        chunk(b"iTXt", b"key\0\0\0\0"),
        chunk(b"iTXt", b"key\0\0\0\0\0\xff\xfe"),
        chunk(b"iTXt", b"key\0\1\7\0\0" + zlib.compress(b"x")),
        chunk(b"zTXt", b"key\0\0not zlib"),
        chunk(b"zTXt", b"key\0\0" + zlib.compress(b"x" * 99)[:-6]),
    ],
)
def test_beside_a_malformed_text_the_others_are_read(bad: bytes) -> None:
    found = read_png_facts(png_with(bad, text_chunks(WRITTEN)))
    assert {key: found[key] for key in WRITTEN} == WRITTEN


def test_an_unknown_way_of_packing_is_refused() -> None:
    bad = chunk(b"zTXt", b"key\0\7" + zlib.compress(b"x"))
    with pytest.raises(ExportError, match="compression method"):
        read_png_facts(png_with(bad, text_chunks(WRITTEN)))


def test_compressed_texts_of_other_programs_are_read() -> None:
    png = png_with(
        chunk(b"zTXt", b"Software\0\0" + zlib.compress(b"hookviz 0.1.0")),
        chunk(b"iTXt", b"record\0\1\0de\0\0" + zlib.compress("ü".encode())),
    )
    assert read_png_facts(png) == {"Software": "hookviz 0.1.0", "record": "ü"}


def test_the_last_of_equal_keys_counts() -> None:
    png = png_with(text_chunks({"record": "earlier"}), text_chunks(WRITTEN))
    assert read_png_facts(png)["record"] == "{}"


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for path, part in [
        (tmp_path / "missing.png", "No such file"),
        (tmp_path, "folder or a device"),
        (Path("/dev/zero"), "folder or a device"),
        (Path("a\0b.png"), "cannot be read"),
    ]:
        with pytest.raises(ExportError) as caught:
            read_png_facts(path)
        assert part in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ExportError, match="device"):
        read_png_facts(tmp_path / "pipe.png")


@given(st.binary(max_size=200))
def test_any_bytes_give_facts_or_one_error(data: bytes) -> None:
    for png in (data, b"\x89PNG\r\n\x1a\n" + data, plain_png()[:33] + data):
        with pytest.raises(ExportError):
            read_png_facts(png)
