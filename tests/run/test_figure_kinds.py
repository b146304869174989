"""A figure kind is one object: once registered it is drawn, shown, exported and reproduced."""

from __future__ import annotations

import numpy as np
import pytest

import hookviz
from hookviz.errors import RenderError
from hookviz.render import (
    Drawing,
    FigureKind,
    GridOptions,
    Subject,
    draw,
    feature_grid,
    figure_kinds,
    page_count,
    register,
)


@pytest.fixture(scope="module")
def run() -> hookviz.Run:
    model = hookviz.load_model("vgg16", weights="bundled")
    return hookviz.feature_maps(model, hookviz.sample_image(), ["features.0", "features.5"])


def test_statistics_are_a_kind_like_the_others(run, tmp_path):
    drawing = run.drawing("features.5", options=GridOptions(figure="statistics"))
    assert (drawing.kind, drawing.pages, len(drawing.channels)) == ("statistics", 1, 128)
    assert run.figure("features.5", figure="statistics", width=700)
    assert page_count(run.activations[1], GridOptions(figure="statistics", per_page=1)) == 1
    result = run.export(tmp_path, what="grids", options=GridOptions(figure="statistics"))
    assert len(result.files) == 2
    for file in result.files:
        again = hookviz.reproduce(file, model=run.model)
        assert again.identical, again.differences


def test_a_kind_that_cannot_be_asked_for_is_refused_with_those_that_can(run):
    for name in ("bars", "maps", "statistcs"):
        with pytest.raises(RenderError, match="legal are 'auto', 'statistics'") as caught:
            run.figure("features.0", figure=name)
        assert name in str(caught.value)
    assert "Did you mean 'statistics'?" in str(caught.value)


def blank(subject: Subject) -> Drawing:
    """A figure of one color: the smallest kind."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 1), dpi=100, facecolor="#204060")
    return subject.drawing(figure, (0,))


@pytest.fixture
def _blank_kind():
    from hookviz.render import _kinds

    register(FigureKind("blank", blank, paged=False, by_name=True))
    yield
    del _kinds.KINDS["blank"]


@pytest.mark.usefixtures("_blank_kind")
def test_a_new_kind_needs_nothing_but_its_registration(run, tmp_path):
    assert "blank" in [kind.name for kind in figure_kinds()]
    tensor = run.activations[0].tensor
    drawing = draw(tensor, GridOptions(figure="blank"))
    assert drawing.kind == "blank"
    assert np.unique(drawing.pixels().reshape(-1, 4), axis=0).tolist() == [[0x20, 0x40, 0x60, 255]]
    assert feature_grid(tensor, figure="blank").get_size_inches().tolist() == [2, 1]
    result = run.export(tmp_path, what="grids", options=GridOptions(figure="blank"))
    assert hookviz.reproduce(result.files[0], model=run.model).identical
