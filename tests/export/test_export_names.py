"""File names: hostile layer names, lengths, collisions, file systems that ignore case."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta, timezone
from pathlib import PurePosixPath, PureWindowsPath

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookviz.activation import Activation
from hookviz.errors import ExportError
from hookviz.export._names import (
    NameBook,
    activation_stem,
    channel_ending,
    checked_name,
    clean,
    folder_name,
    page_ending,
)


def record(layer: str = "features.2", **changes) -> Activation:
    values = {
        "layer": layer,
        "call": 1,
        "calls": 1,
        "run": 1,
        "order": 3,
        "kind": "output",
        "leaf": "",
        "module_type": "Conv2d",
        "tensor": torch.zeros(1),
    } | changes
    return Activation(**values)


def test_the_names_of_the_design() -> None:
    stem = activation_stem(record())
    assert stem + page_ending(0, 1) == "003_features.2_Conv2d_grid_p1of1.png"
    assert stem + channel_ending(17, 128) == "003_features.2_Conv2d_ch017.png"
    relu = record("layer1.0.relu", order=27, call=2, calls=2, module_type="ReLU")
    assert (
        activation_stem(relu) + page_ending(0, 1)
        == "027_layer1.0.relu_call2of2_ReLU_grid_p1of1.png"
    )
    made = datetime(2026, 11, 4, 14, 22, 33, tzinfo=UTC)
    assert folder_name(made, "vgg16", "dog.jpg") == "20261104T142233Z_vgg16_dog"


def test_a_local_time_is_given_in_utc() -> None:
    made = datetime(2026, 11, 4, 16, 22, 33, tzinfo=timezone(timedelta(hours=2)))
    assert folder_name(made, "m", "i.png") == "20261104T142233Z_m_i"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"leaf": "out"}, "003_features.2_leaf-out_Conv2d"),
        ({"leaf": "1.0"}, "003_features.2_leaf-1.0_Conv2d"),
        ({"kind": "input"}, "003_features.2_input_Conv2d"),
        ({"kind": "output_gradient"}, "003_features.2_output-gradient_Conv2d"),
        ({"layer": ""}, "003_model_Conv2d"),
        ({"layer": "a/b"}, "003_a-b_Conv2d"),
        ({"layer": "/etc/passwd"}, "003_etc-passwd_Conv2d"),
        ({"layer": "../../x"}, "003_x_Conv2d"),
        ({"layer": "C:\\con"}, "003_C-con_Conv2d"),
        ({"layer": "a b"}, "003_a-b_Conv2d"),
        ({"layer": "слой.é"}, "003_слой.é_Conv2d"),
        ({"order": 1234}, "1234_features.2_Conv2d"),
    ],
)
def test_parts_of_a_name(changes: dict, expected: str) -> None:
    assert activation_stem(record(**changes)) == expected


def test_runs_are_kept_apart_only_where_there_are_several() -> None:
    assert activation_stem(record(run=2), several_runs=True) == "003_features.2_run2_Conv2d"
    assert activation_stem(record(run=2)) == "003_features.2_Conv2d"


def test_names_sort_as_the_layers_ran() -> None:
    stems = [activation_stem(record(order=o), width=4) for o in (2, 30, 400, 1000)]
    assert stems == sorted(stems)


def test_a_long_name_is_cut_and_set_apart_by_a_hash() -> None:
    one, two = ("block." * 100 + end for end in ("conv1", "conv2"))
    stems = [activation_stem(record(name)) for name in (one, two)]
    assert stems[0] != stems[1]
    assert all(len((s + page_ending(998, 999)).encode()) <= 143 for s in stems)
    assert all(s.endswith("_Conv2d") for s in stems)


def test_a_name_of_forbidden_characters_alone_still_has_a_name() -> None:
    stems = {activation_stem(record(name)) for name in ("///", "???", "...")}
    assert len(stems) == 3
    assert all(stem.startswith("003_layer~") for stem in stems)


hostile = st.text(
    alphabet=st.one_of(
        st.characters(),
        st.sampled_from('/\\:*?"<>|. \0\n\r\t~%$&\u202e\u0301\ud800é\u00dfſKİﬁ'),
    ),
    max_size=300,
)


@given(hostile, hostile, hostile, st.integers(1, 10**6))
def test_any_layer_name_gives_one_plain_portable_name(
    layer: str, leaf: str, module_type: str, order: int
) -> None:
    stem = activation_stem(
        record(layer, leaf=leaf, module_type=module_type, order=order, call=12, calls=345),
        several_runs=True,
        view="sample3",
    )
    name = stem + page_ending(9_998, 9_999)
    assert len(name.encode("utf-8")) <= 143
    assert PurePosixPath(name).parts == (name,)
    assert PureWindowsPath(name).parts == (name,)
    assert not set(name) & set('<>:"/\\|?*')
    assert all(unicodedata.category(c)[0] not in "CZ" for c in name)
    assert unicodedata.is_normalized("NFC", name)
    assert not name.endswith((".", " "))
    assert name[0].isdigit()


@given(hostile)
def test_a_cleaned_part_obeys_its_limit(text: str) -> None:
    part = clean(text, 24)
    assert len(part.encode("utf-8")) <= 24
    assert not part.startswith((".", "-"))


@given(st.lists(hostile, max_size=12))
def test_one_folder_never_holds_two_names_that_a_file_system_takes_for_one(
    layers: list[str],
) -> None:
    book = NameBook()
    names = [book.take(activation_stem(record(layer)), ".png") for layer in layers]
    folded = {unicodedata.normalize("NFKC", name.casefold()).casefold() for name in names}
    decomposed = {unicodedata.normalize("NFD", name).casefold() for name in names}
    assert len(folded) == len(decomposed) == len(names)


def test_equal_names_get_numbers_in_order() -> None:
    book = NameBook(["a.png"])
    assert [book.take("A", ".png") for _ in range(3)] == ["A~2.png", "A~3.png", "A~4.png"]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("", "empty"),
        (".", "dots"),
        ("..", "dots"),
        ("a.", "dot"),
        (" a", "space"),
        ("../a", "path"),
        ("a/b", "path"),
        ("/abs", "path"),
        ("a\\b", "path"),
        ("C:a", "path"),
        ("a?b", "'?'"),
        ("a\0b", "holds"),
        ("a\nb", "holds"),
        ("NUL", "Windows"),
        ("com1.txt", "Windows"),
        ("x" * 201, "201 bytes"),
    ],
)
def test_a_chosen_folder_name_must_be_one_plain_name(name: str, part: str) -> None:
    with pytest.raises(ExportError) as caught:
        checked_name(name)
    assert part in str(caught.value)
    assert repr(name)[:20] in str(caught.value)


@pytest.mark.parametrize("name", ["my export", "cat-2", "été", "a.b", "null"])
def test_ordinary_folder_names_are_taken_as_they_are(name: str) -> None:
    assert checked_name(name) == name


def test_a_folder_name_from_hostile_names_is_one_plain_short_name() -> None:
    made = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    name = folder_name(made, "../../" + "m" * 300, "/etc/../" + "ü" * 300 + ".jpeg")
    assert PurePosixPath(name).parts == (name,)
    assert len(name.encode()) <= 143
    assert folder_name(made, "", "///") == "20260102T030405Z_model_image"
