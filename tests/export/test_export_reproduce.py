"""Drawing a PNG again: the same for each kind of file, and what differs where it does."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from hookviz.activation import Activation
from hookviz.errors import ExportError
from hookviz.export import RunFacts, kinds_in, read_png_facts, reproduce_png, write_export
from hookviz.export._png import text_chunks
from hookviz.render import GridOptions

Make = Callable[..., Activation]


class Again:
    """Runs "the model" again: gives the activations that were asked for."""

    def __init__(self, facts: RunFacts, activations: list[Activation]) -> None:
        self.facts, self.activations = facts, activations
        self.asked: tuple[str, ...] | None = None

    def __call__(
        self, texts: Mapping[str, str], layers: tuple[str, ...]
    ) -> tuple[RunFacts, list[Activation]]:
        assert texts["model"]
        self.asked = layers
        # A new run captures fewer layers, so that the order of execution counts differently.
        chosen = [a for a in self.activations if a.layer in layers]
        return self.facts, [replace(a, order=n + 1) for n, a in enumerate(chosen)]


@pytest.fixture
def activations(record: Make) -> list[Activation]:
    torch.manual_seed(3)
    maps = torch.randn(1, 70, 9, 11)
    maps[0, 1, 2, 3] = float("nan")
    return [
        record("features.0", maps, order=1),
        record("relu", torch.rand(1, 4, 6, 6), order=2, call=1, calls=2, module_type="ReLU"),
        record("relu", torch.rand(1, 4, 5, 5), order=5, call=2, calls=2, module_type="ReLU"),
        record("lstm", torch.rand(1, 3, 8, 8), order=6, leaf="1.0", module_type="LSTM"),
        record("weird/\0 ü", torch.rand(1, 2, 7, 7), order=7, kind="input"),
    ]


def written(
    folder: Path, facts: RunFacts, activations: list[Activation], what: str, **choices
) -> list[Path]:
    result = write_export(facts, activations, folder, what=what, **choices)
    return [path for path in result.files if path.suffix == ".png"]


@pytest.mark.parametrize("what", ["grids", "channels", "contact", "input"])
@pytest.mark.parametrize(
    "options",
    [
        GridOptions(style="light"),
        GridOptions(style="dark", scale="channel", cmap="magma", order="mean", per_page=33),
        GridOptions(style="light", scale="percentile", channels="0,1", width=640),
    ],
    ids=["plain", "chosen", "few"],
)
def test_each_kind_of_file_is_drawn_again_pixel_for_pixel(
    tmp_path: Path,
    facts: RunFacts,
    activations: list[Activation],
    what: str,
    options: GridOptions,
) -> None:
    again = Again(facts, activations)
    paths = written(tmp_path, facts, activations, what, options=options, factor=2)
    assert len(paths) >= 1
    for path in paths[:3] + paths[-4:]:
        found = reproduce_png(path, again)
        assert found.differences == ()
        assert found.identical
        assert found.same_pixels
        assert bool(found)
        with Image.open(path) as image:
            assert np.array_equal(
                np.asarray(image.convert("RGBA")), np.asarray(found.image.convert("RGBA"))
            )


def test_only_the_layers_of_the_file_are_asked_for(
    tmp_path: Path, facts: RunFacts, activations: list[Activation]
) -> None:
    again = Again(facts, activations)
    for what, layers in [
        ("grids", ("features.0",)),
        ("input", ()),
        ("contact", ("features.0", "relu", "lstm", "weird/\0 ü")),
    ]:
        reproduce_png(written(tmp_path, facts, activations, what)[0], again)
        assert again.asked == layers


def test_files_of_inputs_say_so(
    tmp_path: Path, facts: RunFacts, activations: list[Activation]
) -> None:
    paths = written(tmp_path, facts, activations, "grids")
    assert ["input" in kinds_in(read_png_facts(path)) for path in paths] == [False] * 5 + [True]


def test_bytes_do_as_well_as_a_path(
    tmp_path: Path, facts: RunFacts, activations: list[Activation]
) -> None:
    path = written(tmp_path, facts, activations, "input")[0]
    assert reproduce_png(path.read_bytes(), Again(facts, activations)).identical


@pytest.mark.parametrize("what", ["grids", "channels", "contact", "input"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights_hash": "fedcba"}, "hash of the weights differs: '0123456789abcdef' in the file"),
        ({"image_sha256": "cd" * 32}, "hash of the image differs"),
    ],
)
def test_changed_weights_and_images_are_found_in_every_file(
    tmp_path: Path,
    facts: RunFacts,
    activations: list[Activation],
    what: str,
    changes: dict[str, str],
    words: str,
) -> None:
    path = written(tmp_path, facts, activations, what)[0]
    found = reproduce_png(path, Again(replace(facts, **changes), activations))
    assert not found.identical
    assert found.same_pixels
    assert any(words in sentence for sentence in found.differences)


def test_other_values_differ_in_pixels_and_facts(
    tmp_path: Path, facts: RunFacts, activations: list[Activation]
) -> None:
    path = written(tmp_path, facts, activations, "grids")[0]
    other = [replace(a, tensor=a.tensor * 2) for a in activations]
    found = reproduce_png(path, Again(facts, other))
    assert not found.identical
    assert not found.same_pixels
    sentences = " ".join(found.differences)
    assert "'vmax' differs" in sentences
    assert "pixels differ, the first at column" in sentences


def with_texts(data: bytes, texts: Mapping[str, str]) -> bytes:
    """The same pixels with these texts."""
    info, file = PngInfo(), io.BytesIO()
    for key, text in texts.items():
        info.add_text(key, text)
    with Image.open(io.BytesIO(data)) as image:
        image.save(file, "PNG", pnginfo=info)
    return file.getvalue()


def edited(path: Path, x: int, y: int) -> bytes:
    texts = read_png_facts(path)
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB")).copy()
    pixels[y, x] ^= 1
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return with_texts(file.getvalue(), texts)


@pytest.mark.parametrize("what", ["grids", "channels", "contact", "input"])
def test_an_edited_pixel_is_found(
    tmp_path: Path, facts: RunFacts, activations: list[Activation], what: str
) -> None:
    path = written(tmp_path, facts, activations, what)[0]
    found = reproduce_png(edited(path, 7, 5), Again(facts, activations))
    assert not found.identical
    assert len(found.differences) == 1
    assert "1 pixel differs, it is at column 7, row 5" in found.differences[0]


def test_another_size_is_one_sentence(
    tmp_path: Path, facts: RunFacts, activations: list[Activation]
) -> None:
    path = written(tmp_path, facts, activations, "input")[0]
    other = replace(facts, input_image=Image.new("RGB", (41, 30)))
    found = reproduce_png(path, Again(other, activations))
    assert found.differences == ("The size differs: 40×30 pixels in the file, 41×30 now.",)


def test_other_versions_are_named_and_do_not_count(
    tmp_path: Path, facts: RunFacts, activations: list[Activation]
) -> None:
    path = written(tmp_path, facts, activations, "channels")[0]
    other = replace(
        facts, torch_version="3.0", hookviz_version="0.2.0", device="cuda:0", image_name="cat.png"
    )
    found = reproduce_png(path, Again(other, activations))
    assert found.identical
    sentences = " ".join(found.differences)
    for words in ("version of hookviz", "version of torch", "device", "name of the image"):
        assert words in sentences


def test_other_settings_of_matplotlib_are_named(
    tmp_path: Path, facts: RunFacts, activations: list[Activation]
) -> None:
    path = written(tmp_path, facts, activations, "grids", layers="relu")[0]
    with mpl.rc_context({"figure.facecolor": "black", "text.color": "white"}):
        found = reproduce_png(path, Again(facts, activations))
    assert not found.identical
    assert "The style of the page differs: 'matplotlib's: page #ffffffff" in found.differences[0]


def test_an_edited_text_is_found(
    tmp_path: Path, facts: RunFacts, activations: list[Activation]
) -> None:
    path = written(tmp_path, facts, activations, "grids")[0]
    texts = read_png_facts(path) | {"layer": "another"}
    data = with_texts(path.read_bytes(), texts)
    found = reproduce_png(data, Again(facts, activations))
    assert not found.identical
    assert found.differences == (
        "The text 'layer' differs: 'another' in the file, 'features.0' now.",
    )


def test_a_layer_that_did_not_run_again_is_one_sentence(
    tmp_path: Path, facts: RunFacts, activations: list[Activation]
) -> None:
    paths = written(tmp_path, facts, activations, "grids", layers="relu")
    with pytest.raises(ExportError, match=r"no output of layer 'relu', call 2; .* has call 1"):
        reproduce_png(paths[1], Again(facts, activations[:2]))
    with pytest.raises(ExportError, match="it has nothing"):
        reproduce_png(paths[1], Again(facts, []))


def test_a_later_run_is_matched_by_what_is_there(
    tmp_path: Path, facts: RunFacts, activations: list[Activation]
) -> None:
    later = [replace(activations[0], run=7)]
    path = written(tmp_path, facts, later, "grids")[0]
    assert reproduce_png(path, Again(facts, activations)).differences == ()


GOOD = {"schema": 1, "file": "grid", "page": 0, "activations": [["relu", 1, 1, "output", ""]]}


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        ({**GOOD, "schema": 2}, "reads form 1"),
        ({**GOOD, "file": "moon"}, "not legal"),
        ({**GOOD, "page": -1}, "not legal"),
        ({**GOOD, "page": True}, "not legal"),
        ({**GOOD, "page": 1e9}, "not legal"),
        ({**GOOD, "activations": []}, "not legal"),
        ({**GOOD, "activations": "relu"}, "not legal"),
        ({**GOOD, "activations": {"relu": 1}}, "not legal"),
        ({**GOOD, "activations": [["relu"]]}, "not legal"),
        ({**GOOD, "activations": [["relu", "1", 1, "output", ""]]}, "not legal"),
        ({**GOOD, "channel": 3}, "not legal"),
        ({**GOOD, "file": "channel"}, "not legal"),
        ({**GOOD, "file": "channel", "channel": 0, "factor": 10**9}, "not legal"),
        ({**GOOD, "file": "channel", "channel": 99}, "channel 99 is not one of them"),
        ({**GOOD, "file": "contact", "activations": []}, "names no layers"),
    ],
)
def test_a_damaged_record_is_one_sentence(
    tmp_path: Path,
    facts: RunFacts,
    activations: list[Activation],
    damage: object,
    part: str,
) -> None:
    path = written(tmp_path, facts, activations, "grids", layers="relu")[0]
    text = damage if isinstance(damage, str) else json.dumps(damage)
    data = with_texts(path.read_bytes(), read_png_facts(path) | {"record": text})
    with pytest.raises(ExportError) as caught:
        reproduce_png(data, Again(facts, activations))
    assert part in str(caught.value)


@pytest.mark.parametrize(
    "options", ["", "[]", '{"moon": 1}', '{"width": 1e9}', '{"order": "up"}', "[" * 100_000]
)
def test_damaged_options_are_one_sentence(
    tmp_path: Path, facts: RunFacts, activations: list[Activation], options: str
) -> None:
    path = written(tmp_path, facts, activations, "grids", layers="relu")[0]
    data = with_texts(path.read_bytes(), read_png_facts(path) | {"options": options})
    with pytest.raises(ExportError, match="'options'"):
        reproduce_png(data, Again(facts, activations))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def with_chunks(png: bytes, texts: Mapping[str, str]) -> bytes:
    """The same file with these texts, whether or not its pixels can be decoded."""
    return png[:33] + text_chunks(texts) + png[33:]


def test_a_picture_too_large_to_compare_is_refused_before_it_is_decoded(
    tmp_path: Path, facts: RunFacts, activations: list[Activation]
) -> None:
    path = written(tmp_path, facts, activations, "input")[0]
    file = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(file, "PNG")
    data = with_chunks(file.getvalue(), read_png_facts(path))
    with pytest.raises(ExportError, match="20000×20000 pixels"):
        reproduce_png(data, Again(facts, activations))


@pytest.mark.parametrize(
    ("pixels", "part"), [(None, "it holds no pixels"), (b"junk", "pixels cannot be read")]
)
def test_pixels_that_cannot_be_decoded_are_named(
    tmp_path: Path,
    facts: RunFacts,
    activations: list[Activation],
    pixels: bytes | None,
    part: str,
) -> None:
    path = written(tmp_path, facts, activations, "input")[0]
    texts = read_png_facts(path)
    data = with_chunks(_with_pixels(pixels), texts)
    with pytest.raises(ExportError, match=part):
        reproduce_png(data, Again(facts, activations))


def _with_pixels(packed: bytes | None) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (3, 2)).save(file, "PNG")
    data = file.getvalue()
    start = data.index(b"IDAT") - 4
    end = data.index(b"IEND") - 4
    inside = b"" if packed is None else chunk(b"IDAT", packed)
    return data[:start] + inside + data[end:]
