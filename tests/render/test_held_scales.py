"""Scales that are held over frames: what they span, and that figures say so."""

from __future__ import annotations

import pytest
import torch

from hookviz.errors import RenderError
from hookviz.render import GridOptions, HeldScales, Subject, draw


def ends(
    how: str, frames: list[list[float]], **options: object
) -> list[tuple[float, float] | None]:
    """The scale of each frame of a layer of one map."""
    held, found = HeldScales(how), []
    for values in frames:
        subject = Subject(torch.tensor(values).reshape(1, 1, 1, -1), GridOptions.of(**options))
        chosen = held.options("a", subject)
        found.append(None if chosen.vmin is None else (chosen.vmin, chosen.vmax))
    return found


def test_a_running_scale_is_the_widest_so_far():
    found = ends("running", [[0, 2], [0, 1], [0, 3], [0, 0.5]], scale="full")
    assert found == [(0, 2), (0, 2), (0, 3), (0, 3)]


def test_a_running_scale_that_meets_negative_values_is_symmetric_from_then_on():
    assert ends("running", [[0, 2], [-3, 1], [0, 1]], scale="full") == [(0, 2), (-3, 3), (-3, 3)]


def test_a_fixed_scale_is_that_of_the_first_frame_with_a_range():
    assert ends("fixed", [[0, 0], [0, 2], [0, 9]], scale="full") == [None, (0, 2), (0, 2)]


def test_nothing_is_held_where_it_is_not_asked_for_or_each_channel_has_its_own():
    assert ends("none", [[0, 2], [0, 3]], scale="full") == [None, None]
    assert ends("running", [[0, 2], [0, 3]], scale="channel") == [None, None]
    assert ends("running", [[0, 2]], scale="fixed", vmin=-1, vmax=5) == [(-1, 5)]


def test_layers_have_scales_of_their_own():
    held = HeldScales("fixed")
    for key, top in (("a", 1.0), ("b", 5.0)):
        subject = Subject(torch.tensor([[[[0.0, top]]]]), GridOptions(scale="full"))
        assert held.options(key, subject).vmax == top


def test_the_figure_says_that_its_scale_is_held_and_what_lies_beyond():
    tensor = torch.tensor([[[[0.0, 1.0, 2.0, 8.0]]]])
    held = HeldScales("running")
    options = held.options("a", Subject(tensor, GridOptions(scale="full")))
    drawn = draw(tensor / 2, held.options("a", Subject(tensor / 2, GridOptions(scale="full"))))
    assert options.scale == "running"
    assert drawn.scale == "running scale: 0 to 8"
    assert (drawn.vmin, drawn.vmax) == (0.0, 8.0)
    fixed = draw(tensor, GridOptions(scale="fixed", vmin=0, vmax=4))
    assert fixed.above == 1


def test_a_running_scale_needs_its_ends_and_an_unknown_way_is_one_sentence():
    with pytest.raises(RenderError, match="scale='running' needs both vmin and vmax"):
        GridOptions(scale="running")
    with pytest.raises(RenderError, match=r"hold.*none.*running"):
        HeldScales("wide")
