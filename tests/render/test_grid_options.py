"""GridOptions: every illegal value is refused by name, JSON round trips."""

from __future__ import annotations

import json

import matplotlib as mpl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookviz.errors import RenderError
from hookviz.render import GridOptions, parse_channels, value
from hookviz.render._options import AXES, ORDERS, SUMMARIES
from hookviz.render._sheet import ticks
from hookviz.render._text import middle_ellipsis


@pytest.mark.parametrize(
    ("name", "given_", "part"),
    [
        ("per_page", 0, "at least 1"),
        ("per_page", 2.5, "whole number"),
        ("per_page", True, "whole number"),
        ("page", -1, "at least 0"),
        ("sample", "first", "whole number"),
        ("frame", -2, "at least 0"),
        ("top", 0, "at least 1"),
        ("ncols", 0, "at least 1"),
        ("width", 100, "from 200"),
        ("width", 10**6, "to 20000"),
        ("dpi", 0, "from 20"),
        ("dpi", float("nan"), "from 20"),
        ("cmap", "virids", "'viridis'"),
        ("cmap", 3, "name of a colormap"),
        ("scale", "chanel", "'channel'"),
        ("order", "meen", "'mean'"),
        ("order", "similarity", "similarity:K"),
        ("order", "mean:3", "similarity:K"),
        ("axes", "NCHW", "'channels-last'"),
        ("style", "drak", "'dark'"),
        ("shrink", "max", "'nearest'"),
        ("summary", "mean,median", "'pca'"),
        ("overlay", 1.5, "from 0 to 1"),
        ("percentile", (99, 1), "smaller"),
        ("percentile", (0, 101), "from 0 to 100"),
        ("percentile", 5, "two numbers"),
        ("grid", (14,), "two numbers"),
        ("grid", (0, 14), "at least 1"),
        ("channels", "0-x", "'0-x'"),
        ("channels", "1,,2", "neither an index nor a range"),
        ("channels", [1, -2], "from 0"),
        ("channels", "99999999999", "too large"),
        ("vmin", 1.0, "scale='auto' does not use"),
        ("pages", 3, "'page'"),
    ],
)
def test_illegal_values_are_refused_by_name(name, given_, part):
    with pytest.raises(RenderError) as caught:
        GridOptions.of(**{name: given_})
    assert name in str(caught.value)
    assert part in str(caught.value)


def test_ranges_need_both_ends_in_order():
    with pytest.raises(RenderError, match="needs both vmin and vmax"):
        GridOptions(scale="fixed", vmin=0.0)
    with pytest.raises(RenderError, match="smaller than vmax"):
        GridOptions(scale="fixed", vmin=2.0, vmax=2.0)
    assert GridOptions(vmin=0, vmax=1).scale == "fixed"


def test_json_that_is_none_is_refused():
    for text in ("", "[1]", "{", '{"nonsense": 1}', '{"page": -1}'):
        with pytest.raises(RenderError):
            GridOptions.from_json(text)


def test_a_colormap_object_becomes_its_name():
    assert GridOptions(cmap=mpl.colormaps["magma"]).cmap == "magma"  # type: ignore[arg-type]


OPTIONS = st.builds(
    GridOptions,
    per_page=st.integers(1, 5000),
    page=st.integers(0, 99),
    channels=st.one_of(
        st.none(), st.just("0-15,42"), st.lists(st.integers(0, 999), min_size=1).map(tuple)
    ),
    order=st.sampled_from([o for o in ORDERS if o != "similarity"] + ["similarity:7"]),
    descending=st.sampled_from([None, True, False]),
    cmap=st.sampled_from(["auto", "gray", "RdBu_r"]),
    percentile=st.tuples(st.floats(0, 49), st.floats(50, 100)),
    axes=st.sampled_from(AXES),
    grid=st.one_of(st.none(), st.tuples(st.integers(1, 99), st.integers(1, 99))),
    style=st.sampled_from([None, "light", "dark"]),
    overlay=st.one_of(st.booleans(), st.floats(0, 1)),
    summary=st.lists(st.sampled_from(SUMMARIES)).map(lambda s: ",".join(s) or "none"),
    title=st.one_of(st.none(), st.text()),
)


@given(OPTIONS)
def test_json_round_trip(options):
    text = options.to_json()
    assert GridOptions.from_json(text) == options
    assert "\n" not in text
    assert json.loads(text)["per_page"] == options.per_page


def test_channels_are_parsed():
    assert parse_channels("0-2,5, 4") == (0, 1, 2, 5, 4)
    assert parse_channels("3–5;1") == (3, 4, 5, 1)
    assert parse_channels("2,2,1-3") == (2, 1, 3)


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(FINITE, FINITE)
def test_ticks_stand_in_order_within_the_bar(one, other):
    low, high = min(one, other), max(one, other)
    marks = ticks((low, high), 6)
    places = [place for place, _ in marks]
    assert places == sorted(places)
    assert all(0 <= place <= 1 for place in places)
    if low < high:
        assert marks[0][1] == value(low)
        assert marks[-1][1] == value(high)


@given(st.text(min_size=1, max_size=60), st.integers(1, 40))
def test_ellipsis_fits_and_keeps_both_ends(text, room):
    short = middle_ellipsis(text, room, len)
    assert len(short) <= room
    if short != text and room > 2:
        head, tail = short.split("…")[0], short.split("…")[-1]
        assert text.startswith(head)
        assert text.endswith(tail)


def test_the_former_name_of_an_option_is_answered_with_the_new_one_and_read_from_old_files():
    for use in (
        lambda: GridOptions.of(layout="maps"),
        lambda: GridOptions().replace(layout="maps"),
    ):
        with pytest.raises(RenderError, match="'layout' is called 'axes'"):
            use()
    assert GridOptions.from_json('{"layout": "tokens"}').axes == "tokens"
