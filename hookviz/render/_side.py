"""The column beside the grid: the picture that the network saw, and summaries of the layer.

In: tiles with captions. Out: axes and texts on the sheet. Must not know: tensors.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from hookviz.render._artists import add_mosaic
from hookviz.render._colours import packed
from hookviz.render._page import Sheet
from hookviz.render._summary import SideTile
from hookviz.render._tiles import enlarge
from hookviz.render._wording import middle_ellipsis

__all__ = ["input_tile", "place_side", "resized", "side_height", "tile_size"]


def resized(picture: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """A photo at (height, width), smoothly."""
    image = Image.fromarray(picture)
    return np.asarray(
        image.resize(
            (size[1], size[0]),
            Image.Resampling.BOX if image.width > size[1] else Image.Resampling.BICUBIC,
        )
    )


def input_tile(picture: NDArray[np.uint8]) -> SideTile:
    """The picture that the network saw, as a tile."""
    height, width = picture.shape[:2]
    return SideTile(("input", f"{width} × {height} pixels"), packed(picture), smooth=True)


def tile_size(shape: tuple[int, ...], width: int) -> tuple[int, int]:
    """(height, width) of a tile in a column of that width, its aspect kept.

    A high and narrow one is made narrower, so that it is at most twice as high as the column is
    wide.
    """
    height = max(8, round(shape[0] * width / shape[1]))
    if height > 2 * width:
        return 2 * width, max(8, round(shape[1] * 2 * width / shape[0]))
    return height, width


def side_height(sheet: Sheet, tiles: list[SideTile], width: int) -> int:
    """Pixels that the column takes."""
    texts = sum(sheet.px(9.5) * len(tile.caption) + sheet.px(9) for tile in tiles)
    return texts + sum(tile_size(tile.colours.shape, width)[0] for tile in tiles)


def place_side(
    sheet: Sheet, figure: Figure, tiles: list[SideTile], left: int, top: int, width: int
) -> None:
    """Draw the tiles under each other, their captions above them."""
    face = sheet.face(7.0)
    for tile in tiles:
        for number, text in enumerate(tile.caption):
            top += sheet.px(9.5)
            colour = sheet.palette.ink if number == 0 else None
            text = middle_ellipsis(text, width, face.width)
            sheet.write(text, left, top - sheet.px(3.2), 7.0, colour)
        size = tile_size(tile.colours.shape, width)
        if tile.smooth:
            rgb = tile.colours.view(np.uint8).reshape(*tile.colours.shape, 4)[..., :3]
            colours = packed(resized(np.ascontiguousarray(rgb), size))
        else:
            colours = enlarge(tile.colours[None], size)[0]
        rgba = np.ascontiguousarray(colours).view(np.uint8).reshape(*size, 4)
        add_mosaic(figure, rgba, left, top).set_label(tile.caption[0])
        top += size[0] + sheet.px(9)
