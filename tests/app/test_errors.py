"""Sentences that offer what is legal."""

from __future__ import annotations

import pytest

from hookviz import errors
from hookviz.errors import HookvizError, closest, did_you_mean


def test_a_name_without_its_prefix_is_found() -> None:
    names = ["model", "model.layer4", "model.layer4.2.relu", "model.layer4.2.conv1"]
    assert closest("layer4.2.relu", names)[0] == "model.layer4.2.relu"


def test_a_name_with_a_prefix_too_many_is_found() -> None:
    assert closest("model.layer1.0", ["layer1.0", "layer1.1"])[0] == "layer1.0"


def test_nothing_alike_offers_nothing() -> None:
    assert did_you_mean("zzz", ["conv1"]) == ""
    assert did_you_mean("", ["conv1"]) == ""


def test_the_remedy_follows_the_sentence() -> None:
    error = HookvizError("The file is empty.", remedy="Choose another.")
    assert str(error) == "The file is empty. Choose another."
    assert (error.message, error.remedy) == ("The file is empty.", "Choose another.")


@pytest.mark.parametrize("name", [n for n in errors.__all__ if n[0].isupper()])
def test_every_kind_is_a_hookviz_error(name: str) -> None:
    assert issubclass(getattr(errors, name), HookvizError)


def test_a_fault_is_named_for_programs_beside_its_sentence() -> None:
    error = HookvizError("No channel 9.", remedy="Choose 0 to 7.", code="no-such", details={"n": 9})
    assert str(error) == "No channel 9. Choose 0 to 7."
    assert (error.code, error.details) == ("no-such", {"n": 9})
    plain = HookvizError("No.")
    assert (plain.code, plain.details) == ("", {})
