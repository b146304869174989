"""Any text that a figure is given is drawn or replaced."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from hookviz.activation import Activation
from hookviz.render import FigureFacts, GridOptions, draw, feature_grid

TEXTS = {
    "chinese": "猫.png",
    "japanese": "ネコ と 犬.jpeg",
    "korean": "고양이",
    "emoji": "cat 🐱👩‍🔬🏳️‍🌈.png",
    "flag": "🇩🇪",
    "arabic": "قطة.png",
    "hebrew": "חתול",
    "devanagari": "बिल्ली",
    "thai": "แมว",
    "combining": "e\u0301a\u0308\u0323\u20dd",
    "only combining": "\u0301\u0301",
    "controls": "a\nb\tc\x00\x1b[31m\x7f\x85",
    "line separators": "a\u2028b\u2029c",
    "direction marks": "\u202eevil\u202c\u200f\ufeff",
    "lone surrogate": "cat\ud83d.png",
    "private": "\ue000\U0010fffd",
    "not assigned": "\uffff\u0378",
    "math": r"$x^2$ \frac_{1}",
    "300 characters": "a very long name " * 18,
    "300 wide characters": "猫" * 300,
    "empty": "",
    "blank": "   ",
}


def activation(tensor: torch.Tensor, text: str) -> Activation:
    return Activation(text or "x", 1, 1, 1, 1, "output", text, text, tensor)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_every_figure_draws_or_replaces_every_text(text):
    facts = FigureFacts(model=text, image=text, trained=False)
    options = GridOptions(width=500, style="light", summary="mean")
    figures = [
        draw(activation(torch.rand(1, 4, 5, 5), text), options, facts=facts).figure,
        draw(torch.rand(1, 4, 5, 5), options.replace(title=text), facts=facts).figure,
        draw(activation(torch.rand(1, 30), text), options, categories=[text] * 30).figure,
        draw(torch.rand(1, 3), options, facts=facts, categories=[text] * 3).figure,
        feature_grid(activation(torch.rand(1, 4, 5, 5), text), facts=facts, figure="statistics"),
    ]
    for figure in figures:
        figure.canvas.draw()
    for form in ("svg", "pdf"):
        figures[0].savefig(io.BytesIO(), format=form)
    renderer = FigureCanvasAgg(figures[1]).get_renderer()
    for artist in figures[1].findobj(Text):
        artist.get_window_extent(renderer)
        assert "\n" not in artist.get_text()


def test_what_the_font_lacks_is_a_square_and_marks_vanish():
    drawing = draw(torch.rand(1, 1, 4, 4), GridOptions(title="a猫\u200db\x00c\nd"))
    assert "a□b□c d" in [text.get_text() for text in drawing.figure.findobj(Text)]


def test_kerned_and_joined_letters_take_the_room_that_was_measured():
    from hookviz.render._text import Face

    face = Face(("DejaVu Sans",), 12.0, 100.0)
    for text in ("AVAVAV", "قطة", "plain", "e\u0301e\u0301"):
        cover, start, _ = face.inked(text)
        columns = np.flatnonzero(cover.any(0))
        assert abs(start + columns[-1] + 1 - face.width(text)) <= 3
    assert face.width("قطة") < sum(face.width(c) for c in "قطة")  # joined, not letter by letter


@pytest.mark.parametrize("text", ["猫.png", "\x00", "🐱", "\ud83d"])
def test_the_first_figure_of_a_process_may_bear_any_name(text, fresh_python, tmp_path):
    code = f"""
import torch
from hookviz.render import GridOptions, FigureFacts, draw
draw(torch.rand(1, 2, 3, 3), GridOptions(), facts=FigureFacts(image={text!a})).png_bytes()
"""
    done = fresh_python.run(code, cwd=tmp_path)  # where a warning is an error
    assert done.returncode == 0, done.stderr
    assert "lyph" not in done.stderr


@pytest.mark.parametrize("width", [200, 320, 640])
def test_what_has_no_color_of_the_scale_is_named_within_the_page(width: int) -> None:
    maps = torch.randn(1, 8, 20, 20, generator=torch.Generator().manual_seed(0))
    maps[0, 0, 0, :3], maps[0, 1, 3, 4], maps[0, 2, 3, 4] = math.nan, math.inf, -math.inf
    figure = feature_grid(maps, width=width)
    renderer = FigureCanvasAgg(figure).get_renderer()  # else each text draws the figure to have one
    texts = figure.findobj(Text)
    ends = {text.get_text(): text.get_window_extent(renderer).x1 for text in texts}
    assert {"+Inf: 1 value", "−Inf: 1 value", "above the scale: 36 values"} <= ends.keys()
    assert max(ends.values()) <= width
