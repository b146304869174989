"""Which pixels of an image a part of the network's input reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import v2

from hookviz import Preprocessing, read_image
from hookviz.images import network_input, source_box

FILTERS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")


def moving_box(how: Any, pixels: np.ndarray, part: tuple[int, int, int, int]) -> Any:
    """The box of the rows and columns whose change changes the part."""
    left, top, right, bottom = part

    def seen(values: np.ndarray) -> torch.Tensor:
        tensor = network_input(Image.fromarray(values), how).tensor
        return tensor[0, :, top:bottom, left:right]

    plain = seen(pixels)
    lines = []
    for axis in (1, 0):
        moving = []
        for at in range(pixels.shape[axis]):
            other = pixels.copy()
            line = (slice(None), at) if axis == 1 else (at,)
            other[line] += np.uint8(101)
            moving.append(not torch.equal(seen(other), plain))
        lines.append(np.nonzero(moving)[0])
    if not len(lines[0]):
        return None
    return (lines[0][0], lines[1][0], lines[0][-1] + 1, lines[1][-1] + 1)


@settings(max_examples=60)
@given(
    st.tuples(st.integers(4, 40), st.integers(4, 40)),
    st.one_of(st.none(), st.integers(4, 30), st.tuples(st.integers(4, 30), st.integers(4, 30))),
    st.tuples(st.integers(4, 20), st.integers(4, 20)),
    st.sampled_from(["crop", "cover", "pad", "border", "squash", "none"]),
    st.sampled_from(FILTERS),
    st.integers(0, 2**16),
)
def test_nothing_outside_of_the_box_moves_the_part(
    size: tuple[int, int], resize: Any, crop: tuple[int, int], fit: str, name: str, seed: int
) -> None:
    how = Preprocessing(
        None if fit in ("pad", "border", "cover") and isinstance(resize, int) else resize,
        None if fit == "none" else crop,
        fit,
        interpolation=name,
    )
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 256, (*size, 3), np.uint8)
    picture = read_image(Image.fromarray(pixels))
    made = network_input(picture, how)
    height, width = made.tensor.shape[-2:]
    left, top = int(generator.integers(width)), int(generator.integers(height))
    part = (left, top, int(generator.integers(left, width)) + 1,
            int(generator.integers(top, height)) + 1)  # fmt: skip
    box, moving = source_box(made, picture, part), moving_box(how, pixels, part)
    if box is None or moving is None:
        assert box == moving
        return
    # Weights below half a level seldom move a pixel: a filter's rim may show nothing.
    rim = 0 if name in ("nearest", "box") else max(size) if name in FILTERS[2:4] else 1
    assert all(0 <= a - b <= rim for a, b in zip(moving[:2], box[:2], strict=True))
    assert all(0 <= b - a <= rim for a, b in zip(moving[2:], box[2:], strict=True))


def turned(image: Image.Image) -> torch.Tensor:
    array = np.asarray(image.transpose(Image.Transpose.ROTATE_90).resize((9, 12)))
    return torch.from_numpy(array.copy()).permute(2, 0, 1) / 255


CHAINS: dict[str, Any] = {
    "turned by a function": turned,
    "flipped after the crop": v2.Compose([
        v2.Resize(14), v2.CenterCrop(12), v2.RandomHorizontalFlip(p=1.0), v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True),
    ]),
    "resized as a tensor": v2.Compose([
        v2.PILToTensor(), v2.Resize((10, 8), antialias=True), v2.ToDtype(torch.float32, scale=True),
    ]),
    "resized without antialiasing": v2.Compose([
        v2.PILToTensor(), v2.Resize((10, 8), antialias=False),
        v2.ToDtype(torch.float32, scale=True),
    ]),
    "standardised as a whole": lambda image: torch.from_numpy(
        ((a := np.asarray(image).astype(np.float32)) - a.mean()) / a.std()
    ).permute(2, 0, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_preprocessing_of_ones_own_is_tried(name: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 17, 3), np.uint8)
    picture = read_image(Image.fromarray(pixels))
    made = network_input(picture, CHAINS[name])
    for part in ((1, 2, 3, 5), (6, 7, 8, 9)):
        assert source_box(made, picture, part) == moving_box(CHAINS[name], pixels, part)
