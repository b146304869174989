"""Taking a view along: the copied cell gives the same pixels in the same notebook."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from journey_app import App
from journey_lab import Lab
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

READY = """import hookviz
photo = hookviz.sample_image("chelsea.png")
app = hookviz.explore("vgg16", photo, ["features.0", "features.2"])
app"""
COMPARE = """
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
def pixels(figure):
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())
print([np.array_equal(pixels(figures[label]), pixels(app.figures[label])) for label in app.figures])
"""


def test_copy_as_python_and_run_it(
    open_app: Callable[..., tuple[Lab, App]], axe_source: str
) -> None:
    lab, app = open_app(READY)
    lab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    expect(app.card("features.2")).to_be_visible()
    app.choose("Colours", "magma")
    app.button("Copy as Python").click()
    expect(app.part("copied")).to_have_text("Copied: paste it into a cell.")
    cell = lab.page.evaluate("navigator.clipboard.readText()")
    assert "magma" in cell
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    assert lab.python(cell + COMPARE).strip().endswith("[True, True]")
    lab.page.context.clear_permissions()
    lab.page.evaluate(
        "() => { navigator.clipboard.writeText = () => Promise.reject(new Error('denied')); }"
    )
    app.button("Copy as Python").click()
    expect(app.part("python-dialog")).to_be_visible()
    expect(app.part("python-text")).to_have_value(cell)
    lab.screenshot("python_dialog")
    assert lab.axe(axe_source, '[data-hv="app"]') == []
    lab.page.evaluate("() => { delete navigator.clipboard.writeText; }")
