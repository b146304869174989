"""Channels of one layer alone: a list of its own, and channels that come first there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from hookviz import sample_image
from hookviz.widget import Explorer, explore


def ready(app: Explorer, gallery_page: Any, *layers: str) -> None:
    gallery_page.look()
    app.image = sample_image("chelsea.png")
    app.layers = list(layers)
    assert app.start_run()
    assert app.wait(30)


def shown(app: Explorer, gallery_page: Any, key: str) -> list[int]:
    """The channels of a card's picture on the page."""
    assert app.wait(30)
    pictures = [m for m, _ in gallery_page.heard if m["type"] == "pixels" and m["key"] == key]
    assert pictures[-1]["version"] == app.gallery.card(key).version  # type: ignore[union-attr]
    found: list[int] = pictures[-1]["tiles"]["channels"]
    return found


def test_a_channel_that_is_kept_first_stays_so_in_every_order(
    app: Explorer, page: Any, gallery_page: Any
) -> None:
    ready(app, gallery_page, "conv", "deep.0")
    page.say("first", key="conv#1", channel=4, on=True)
    page.say("first", key="conv#1", channel=2, on=True)
    assert shown(app, gallery_page, "conv#1") == [4, 2, 0, 1, 3, 5]
    assert shown(app, gallery_page, "deep.0#1")[:2] == [0, 1]
    assert next(c for c in app.gallery.cards if c["key"] == "conv#1")["first"] == [4, 2]
    means = app.run.select("conv").tensor[0].double().mean((1, 2))
    order = [int(c) for c in means.argsort(descending=True) if c not in (4, 2)]
    gallery_page.say("view", changes={"order": "mean"})
    assert shown(app, gallery_page, "conv#1") == [4, 2, *order]
    gallery_page.say("view", changes={"channels": "0-1"})
    assert shown(app, gallery_page, "conv#1") == [4, 2, *[c for c in order if c < 2]]
    page.say("first", key="conv#1", channel=4, on=False)
    assert shown(app, gallery_page, "conv#1") == [2, *[c for c in order if c < 2]]
    gallery_page.say("none-first", key="conv#1")
    assert shown(app, gallery_page, "conv#1") == [c for c in order if c < 2]
    assert app.alert == {}


def test_a_list_of_one_layer_leaves_the_others_alone(
    app: Explorer, page: Any, gallery_page: Any
) -> None:
    ready(app, gallery_page, "conv", "deep.0")
    gallery_page.say("channels", key="conv#1", channels=" 5,1 ")
    assert shown(app, gallery_page, "conv#1") == [5, 1]
    assert len(shown(app, gallery_page, "deep.0#1")) > 2
    assert app.options.channels is None
    for wrong in ("9", "x", "1,,2"):
        gallery_page.say("channels", key="conv#1", channels=wrong)
        assert app.gallery.alert["field"] == "channels", wrong
        assert shown(app, gallery_page, "conv#1") == [5, 1]
    page.say("first", key="conv#1", channel=6, on=True)
    assert "6" in app.gallery.alert["message"] or "6" in app.alert["message"]
    gallery_page.say("view", changes={"channels": "0"})
    assert app.gallery.alert == {}
    assert shown(app, gallery_page, "conv#1") == [5, 1]
    assert shown(app, gallery_page, "deep.0#1") == [0]
    gallery_page.say("channels", key="conv#1", channels="")
    assert shown(app, gallery_page, "conv#1") == [0]


def pixels(figure: Any) -> Any:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def test_it_goes_into_files_sessions_and_python_with_the_same_pixels(
    tmp_path: Path,
) -> None:
    app = explore("vgg16", sample_image("chelsea.png"), ["features.28", "features.29"])
    try:
        assert app.wait(60)
        app.gallery.keep_first("features.28#1", 77, True)
        app.gallery.keep_first("features.28#1", 3, True)
        app.gallery._choose_channels("features.29#1", "5-8")
        app.options = app.options.replace(order="max", per_page=16)
        assert app.wait(60)
        figures = {label: pixels(figure) for label, figure in app.figures.items()}
        assert (
            app.run.drawing(
                "features.28",
                options=app.gallery.options_of(app.gallery.card("features.28#1")),  # type: ignore[arg-type]
            ).channels[:2]
            == (77, 3)
        )

        scope: dict[str, Any] = {}
        exec(app.as_python(), scope)  # noqa: S102 - that is what the cell is for
        assert {n: np.array_equal(pixels(f), figures[n]) for n, f in scope["figures"].items()} == {
            "features.28": True,
            "features.29": True,
        }

        saved = app.save(tmp_path / "s.hookviz.json")
        again = explore(saved, run=True)
        try:
            assert again.wait(60)
            for label, figure in again.figures.items():
                assert np.array_equal(pixels(figure), figures[label]), label
        finally:
            again.close()
        content = json.loads(saved.read_text())
        for wrong in ({"channels": "x"}, {"first": [-1]}, {"first": "3"}, {"first": [1.5]}):
            bad = tmp_path / "bad.hookviz.json"
            bad.write_text(json.dumps({**content, "cards": {"features.28#1": wrong}}))
            with pytest.raises(Exception, match="cannot be opened"):
                explore(bad)

        assert app.exporting.start(["grids"], "ticked", folder=str(tmp_path / "out"))
        assert app.wait(60)
        folder = Path(app.export_result["path"])
        first = next(folder.glob("*features.28_*p1of*.png"))
        only = next(folder.glob("*features.29_*grid*.png"))
        for path, label in ((first, "features.28"), (only, "features.29")):
            with Image.open(path) as png:
                assert np.array_equal(np.asarray(png.convert("RGB")), figures[label][..., :3])
    finally:
        app.close()
