"""Grids as SVG and PDF: text stays text, values stay, equal grids give equal bytes."""

from __future__ import annotations

import base64
import io
import json
import re
import threading
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from hookviz.activation import Activation
from hookviz.cli import cli
from hookviz.errors import RenderError
from hookviz.export import RunFacts, draw_activation, write_export
from hookviz.render import GridOptions

Make = Callable[..., Activation]
LIGHT = GridOptions(style="light", per_page=4, width=600)


def written(folder: Path, facts: RunFacts, activation: Activation, form: str) -> list[bytes]:
    result = write_export(facts, [activation], folder, what=form, options=LIGHT)
    return [path.read_bytes() for path in sorted(result.files)]


@pytest.fixture
def activation(record: Make) -> Activation:
    torch.manual_seed(0)
    return record(tensor=torch.randn(1, 6, 9, 11))


@pytest.mark.parametrize("form", ["svg", "pdf"])
def test_each_page_is_a_file_and_equal_grids_give_equal_bytes(
    tmp_path: Path, facts: RunFacts, activation: Activation, form: str
) -> None:
    first = write_export(facts, [activation], tmp_path, what=form, options=LIGHT)
    assert [path.name for path in first.files] == [
        f"003_features.2_Conv2d_grid_p{page}of2.{form}" for page in (1, 2)
    ]
    once = [path.read_bytes() for path in first.files]
    with mpl.rc_context({"svg.hashsalt": None, "svg.fonttype": "path", "pdf.fonttype": 3}):
        again = written(tmp_path, facts, activation, form)
        assert mpl.rcParams["svg.fonttype"] == "path"
    assert again == once
    assert once[0] != once[1]


def test_the_letters_of_an_svg_are_text(
    tmp_path: Path, facts: RunFacts, activation: Activation
) -> None:
    page = ET.fromstring(written(tmp_path, facts, activation, "svg")[1])  # noqa: S314 - our own
    texts = [node.text for node in page.iter("{http://www.w3.org/2000/svg}text")]
    assert {"4", "5"} <= set(texts)
    assert any("features.2" in str(text) for text in texts)
    (about,) = [node.text for node in page.iter("{http://purl.org/dc/elements/1.1/}description")]
    facts_there = json.loads(str(about))
    assert facts_there["layer"] == "features.2"
    assert facts_there["channels"] == "4-5"


def test_the_letters_of_a_pdf_are_text(
    tmp_path: Path, facts: RunFacts, activation: Activation
) -> None:
    data = written(tmp_path, facts, activation, "pdf")[0]
    assert data.startswith(b"%PDF-")
    assert b"/Type /Font" in data
    assert b"CreationDate" not in data
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", data, flags=re.DOTALL)
    unpacked = b"".join(zlib.decompressobj().decompress(s) for s in streams if s[:1] == b"x")
    assert b"Tj" in unpacked or b"TJ" in unpacked


def test_the_maps_of_an_svg_are_those_of_the_png_pixel_for_pixel(
    tmp_path: Path, facts: RunFacts, activation: Activation
) -> None:
    svg = written(tmp_path, facts, activation, "svg")[0].decode()
    drawing = draw_activation(facts, activation, LIGHT)
    page = drawing.pixels()[..., :3]
    images = []
    for data in re.findall(r'base64,([^"]+)"', svg):
        with Image.open(io.BytesIO(base64.b64decode(data))) as image:
            images.append(np.asarray(image.convert("RGB")))
    mosaic = max(images, key=lambda image: image.size)[::-1]  # stored upside down
    left = min(place[1] for place in drawing.places)
    first = min(place[0] for place in drawing.places)

    def alike(above: int) -> bool:
        """Whether each tile is the same where the mosaic begins so far above the first one."""
        for top, at, height, width in drawing.places:
            y, x = top - first + above, at - left
            tile = page[top : top + height, at : at + width]
            if not np.array_equal(mosaic[y : y + height, x : x + width], tile):
                return False
        return True

    assert any(alike(above) for above in range(40))  # a row of labels stands above it


def test_pngs_svgs_and_pdfs_are_written_together(
    tmp_path: Path, facts: RunFacts, activation: Activation
) -> None:
    seen: list[tuple[int, int]] = []
    result = write_export(
        facts,
        [activation],
        tmp_path,
        what={"grids", "svg", "pdf"},
        progress=lambda done, total, name: seen.append((done, total)),
    )
    assert sorted(path.suffix for path in result.files) == [".pdf", ".png", ".svg"]
    entry = json.loads(result.manifest.read_text())["layers"][0]
    assert sorted(entry["files"]) == sorted(path.name for path in result.files)
    assert seen == [(n, 4) for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("form", ["svg", "pdf"])
@pytest.mark.parametrize("name", ["猫🐈", "a\0b\x1b", "<&>", "\ud800"], ids=ascii)
def test_a_layer_of_any_name_gives_a_sound_file(
    tmp_path: Path, facts: RunFacts, record: Make, form: str, name: str
) -> None:
    (data,) = written(tmp_path, facts, record(name, torch.rand(1, 2, 3, 3)), form)
    if form == "svg":
        ET.fromstring(data)  # noqa: S314 - our own


def test_what_cannot_be_drawn_is_one_sentence(
    tmp_path: Path, facts: RunFacts, record: Make
) -> None:
    empty = torch.zeros(1, 2, 2, 2, device="meta")
    with pytest.raises(RenderError):
        write_export(facts, [record(tensor=empty)], tmp_path, what="svg")
    assert list(tmp_path.iterdir()) == []


def test_settings_of_matplotlib_are_as_before_after_exports_on_several_threads(
    tmp_path: Path, facts: RunFacts, activation: Activation
) -> None:
    before = dict(mpl.rcParams)
    draw_activation(facts, activation, LIGHT)
    results: list[list[bytes]] = []
    threads = [
        threading.Thread(target=lambda: results.append(written(tmp_path, facts, activation, "svg")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    assert results[0] == results[1] == results[2]
    assert dict(mpl.rcParams) == before


def test_the_command_line_writes_the_formats_asked_for(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        cli,
        [
            "maps", "chelsea.png", "--weights", "bundled", "-l", "features.30", "--device", "cpu",
            "--out", str(tmp_path), "--format", "svg", "--format", "pdf",
        ],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    kinds = sorted({path.suffix for path in Path(done.stdout.strip()).glob("*grid*")})
    assert kinds == [".pdf", ".svg"]
