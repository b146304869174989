"""Which pixels of an image a part of the network's input is made of.

Steps of our own are known: their resizer (Pillow's) reads, for each pixel of the result, the
pixels under its filter, more of them the more it shrinks. Somebody's own preprocessing is tried:
parts of the image are changed, and the input shows whether it changed with them. So flips, turns
and anything else come out as they are.
"""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from PIL import Image

from hookviz.errors import ImageError
from hookviz.images._network_input import NetworkInput
from hookviz.images._picture import Picture
from hookviz.images._preprocessing import (
    MAX_INPUT_PIXELS,
    RESAMPLING,
    Box,
    CalledPreprocessing,
    Preprocessing,
    preset_kind,
)

Whole = tuple[int, int, int, int]
_TRUSTED: WeakKeyDictionary[NetworkInput, bool] = WeakKeyDictionary()
"""Whether the numbers of somebody's own preprocessing were found to say what it reads."""


def source_box(given: NetworkInput, picture: Picture, part: Whole) -> Whole | None:
    """The smallest box of an image's pixels that a part of the network's input depends on.

    Args:
        given: The network's input.
        picture: The image that it was made of.
        part: Left, top, right, bottom of the part, in pixels of the input; right and bottom lie
            past the last pixel.

    Returns:
        Left, top, right, bottom in pixels of the (upright) image, right and bottom past the last
        pixel; None where the part shows nothing of the image, but a frame.

    Raises:
        ImageError: The preprocessing draws random numbers, so that no box is true.

    Examples:
        >>> from hookviz.images import network_input, read_image
        >>> picture = read_image(Image.new("RGB", (80, 40)))
        >>> given = network_input(picture, Preprocessing(20, (20, 20), "crop"))
        >>> source_box(given, picture, (0, 0, 1, 1))
        (19, 0, 23, 3)
    """
    how = given.preprocessing
    found, readable = _read_off(how, picture.size, part)
    # Torchvision's preset for classifiers resizes by Pillow and crops.
    known = "ImageClassification"
    if readable and isinstance(how, CalledPreprocessing) and preset_kind(how.function) != known:
        if given not in _TRUSTED:
            height, width = given.tensor.shape[-2:]
            # Off the middle, where a flip or a turn would show.
            left, top = width // 8, height // 5
            sample = (left, top, left + 1 + width // 6, top + 1 + height // 6)
            there, _ = _read_off(how, picture.size, sample)
            asked, box = (sample, there) if there is not None else (part, found)
            trial = _Trial(how, picture.image, asked)
            _TRUSTED[given] = box is None or trial.confirms(box)
        readable = _TRUSTED[given]
    return found if readable else _Trial(how, picture.image, part).search()


def _read_off(how: Preprocessing, size: tuple[int, int], part: Whole) -> tuple[Whole | None, bool]:
    """The box by the steps' numbers, None for nothing of the image; and whether they say it."""
    edges: Box | None = how.box(size)
    try:
        resized = how.resized_size(size)
    except ImageError:
        edges = None
    if edges is None or resized[0] * resized[1] > MAX_INPUT_PIXELS:
        return None, False
    found = []
    for axis in (0, 1):
        offset = 0
        if how.crop is not None and how.fit not in ("squash", "none"):
            offset = round(edges[axis] * resized[axis] / size[axis])
        first = max(0, part[axis] + offset)
        last = min(resized[axis], part[axis + 2] + offset) - 1
        if first > last:
            return None, True
        found.append(_under(first, last, size[axis], resized[axis], how.interpolation))
    (left, right), (top, bottom) = found
    return (left, top, right + 1, bottom + 1), True


_LEAST = 2.0**-23
"""Pillow computes with weights of 22 binary digits; smaller ones are zero."""


def _under(first: int, last: int, size: int, count: int, interpolation: str) -> tuple[int, int]:
    """The first and last pixel of ``size`` that pixels ``first`` to ``last`` of ``count`` read."""
    if size == count:
        return first, last
    reach = math.ceil(3 * max(size / count, 1)) + 2  # no filter reads farther than Lanczos'
    read: set[int] = set()
    # A pixel in the middle of one of the source reads fewer than its neighbour.
    for index in {first, min(first + 1, last), max(last - 1, first), last}:
        center = int((index + 0.5) * size / count)
        start, stop = max(0, center - reach), min(size, center + reach + 1)
        # In each row another pixel is bright: what comes out are the weights.
        bright = Image.fromarray(np.eye(stop - start, size, start, np.float32))
        weights = np.asarray(bright.resize((count, stop - start), RESAMPLING[interpolation]))
        read.update(start + np.flatnonzero(abs(weights[:, index]) >= _LEAST))
    return int(min(read)), int(max(read))


class _Trial:
    """Changes parts of an image and sees whether a part of the input changes with them."""

    def __init__(self, how: Preprocessing, image: Image.Image, part: Whole) -> None:
        self._how, self._part = how, part
        self._pixels = np.array(image)
        self._other = self._pixels + np.uint8(101)  # wraps around: each value differs
        self._plain = self._seen(self._pixels)
        if self._moves(self._pixels):
            raise ImageError(
                "The preprocessing gives another input each time, so which pixels of the image "
                "it shows is not known."
            )

    def _seen(self, pixels: Any) -> torch.Tensor:
        left, top, right, bottom = self._part
        values = self._how(Image.fromarray(pixels))
        return torch.nan_to_num(values[:, top:bottom, left:right])

    def _moves(self, pixels: Any) -> bool:
        """Whether the part is another one where the image is this."""
        return not torch.equal(self._seen(pixels), self._plain)

    def _matters(self, where: tuple[slice, slice]) -> bool:
        """Whether the part changes with some rows and columns of the image."""
        pixels = self._pixels.copy()
        pixels[where] = self._other[where]
        return self._moves(pixels)

    def confirms(self, box: Whole) -> bool:
        """Whether nothing outside of a box matters, and each of its edges does."""
        left, top, right, bottom = box
        rows, columns = slice(top, bottom), slice(left, right)
        around = self._other.copy()
        around[rows, columns] = self._pixels[rows, columns]
        lines = [
            (slice(top, top + 1), columns),
            (slice(bottom - 1, bottom), columns),
            (rows, slice(left, left + 1)),
            (rows, slice(right - 1, right)),
        ]
        return not self._moves(around) and all(map(self._matters, lines))

    def search(self) -> Whole | None:
        """The box, by halving from each of the four sides."""
        if not self._moves(self._other):
            return None
        top, bottom = self._ends(0)
        left, right = self._ends(1)
        return left, top, right, bottom

    def _ends(self, axis: int) -> tuple[int, int]:
        """The first row (axis 0) or column that matters, and the one past the last."""
        size = self._pixels.shape[axis]

        def matters(start: int, stop: int) -> bool:
            lines = slice(start, stop)
            return self._matters((lines, slice(None)) if axis == 0 else (slice(None), lines))

        low, high = 0, size  # the first `low` lines do not matter, the first `high` do
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if matters(0, middle) else (middle, high)
        first, high = low, size  # lines from `low` on matter, those from `high` on do not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if matters(middle, size) else (low, middle)
        return first, high
