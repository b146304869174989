"""Golden pictures, compared as decoded pixels.

``pytest tests/render --golden-rewrite`` writes them anew; look at what changed before committing.
The font (DejaVu) comes with matplotlib and the style pins it, but another release of FreeType may
shape glyphs by a shade: text may therefore differ a little, the maps may not.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hookviz._axes import KnownAxes, Places
from hookviz.activation import Activation
from hookviz.render import Drawing, FigureFacts, GridOptions, draw

GOLDEN = Path(__file__).parent / "golden"
FACTS = FigureFacts(model="net", image="cat.png", trained=False, input_size=(24, 32))
SMALL = GridOptions(width=360, dpi=80, style="light")


CLASSES = [f"class {i}" for i in range(90)]


def source(tensor: torch.Tensor, layer: str = "features.0", kind: str = "Conv2d") -> Activation:
    return Activation(layer, 1, 2, 1, 1, "output", "", kind, tensor)


def waves(*shape: int) -> torch.Tensor:
    """Values by formula, so that no random generator stands between two machines."""
    count = torch.arange(float(np.prod(shape))).reshape(shape)
    return torch.sin(count * 0.37) * torch.cos(count * 0.011) * 4


def picture() -> np.ndarray:
    y, x = np.mgrid[0:24, 0:32]
    return np.stack([x * 8, y * 10, (x + y) * 4], -1).astype(np.uint8)


def odd() -> torch.Tensor:
    maps = waves(1, 6, 6, 8).relu()
    maps[0, 1], maps[0, 2] = 0.0, 2.5
    maps[0, 3, 2, 2:5] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    return maps


def tokens() -> Activation:
    known = KnownAxes(places=Places("NTD", (3, 4), 1), tried="confirmed")
    return replace(source(waves(1, 1 + 3 * 4, 6), "encoder.0", "EncoderBlock"), axes=known)


def drawings() -> dict[str, object]:
    dark = SMALL.replace(style="dark")
    beside = SMALL.replace(show_input=True, summary="mean,pca")
    return {
        "maps": lambda: draw(source(waves(1, 12, 6, 8)), SMALL, facts=FACTS),
        "maps_dark": lambda: draw(source(waves(1, 12, 6, 8)), dark, facts=FACTS),
        "odd": lambda: draw(source(odd()), SMALL),
        "odd_channel_scale": lambda: draw(source(odd()), dark.replace(scale="channel")),
        "clipped": lambda: draw(
            source(waves(1, 4, 6, 8)), SMALL.replace(scale="percentile", percentile=(10, 90))
        ),
        "many": lambda: draw(source(waves(1, 200, 3, 3)), SMALL.replace(per_page=200)),
        "shrunk": lambda: draw(source(waves(1, 4, 120, 160)), SMALL),
        "overlay": lambda: draw(
            source(waves(1, 4, 6, 8)), SMALL.replace(overlay=True), background=picture()
        ),
        "beside": lambda: draw(source(waves(1, 9, 6, 8)), beside, background=picture()),
        "tokens": lambda: draw(tokens(), SMALL, facts=FACTS),
        "signal": lambda: draw(source(waves(1, 6, 40), "conv", "Conv1d"), SMALL),
        "bars": lambda: draw(
            source(waves(1, 90), "fc", "Linear"),
            SMALL,
            categories=[f"class {i}" for i in range(90)],
        ),
        "bars_few": lambda: draw(waves(1, 5), dark),
        "statistics": lambda: draw(source(odd()), SMALL.replace(figure="statistics")),
    }


@pytest.mark.parametrize("name", drawings())
def test_golden(name: str, request: pytest.FixtureRequest) -> None:
    drawing = drawings()[name]()  # type: ignore[operator]
    assert isinstance(drawing, Drawing)
    path = GOLDEN / f"{name}.png"
    if request.config.getoption("--golden-rewrite", default=False):
        GOLDEN.mkdir(exist_ok=True)
        path.write_bytes(drawing.png_bytes(compress_level=9))
        return
    assert path.is_file(), f"no golden picture {path.name}; write it with --golden-rewrite"
    golden = np.asarray(Image.open(path).convert("RGB")).astype(int)
    pixels = drawing.pixels()[..., :3].astype(int)
    assert pixels.shape == golden.shape
    difference = np.abs(pixels - golden).max(2)
    for top, left, tall, wide in drawing.places:
        assert difference[top : top + tall, left : left + wide].max() <= 2
    assert (difference > 8).mean() < 0.002, f"{(difference > 8).sum()} pixels differ"


def test_every_golden_picture_is_drawn() -> None:
    assert {path.stem for path in GOLDEN.glob("*.png")} == set(drawings())


def test_a_wrong_pixel_would_be_seen() -> None:
    drawing = draw(source(waves(1, 12, 6, 8)), SMALL, facts=FACTS)
    golden = np.asarray(Image.open(GOLDEN / "maps.png").convert("RGB")).astype(int)
    changed = drawing.pixels()[..., :3].astype(int)
    top, left, *_ = drawing.places[5]
    changed[top, left] ^= 64
    assert np.abs(changed - golden)[top, left].max() > 2
