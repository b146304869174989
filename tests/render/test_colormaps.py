"""In: the dark page's diverging map. Out: zero is grey, ±x are as far from it as each other."""

from __future__ import annotations

import importlib

import numpy as np

from hookviz.render import _palette as colormaps
from hookviz.render import color_table, palette


def oklab(rgb: np.ndarray) -> np.ndarray:
    """(N, 3) uint8 sRGB to Oklab; https://bottosson.github.io/posts/oklab."""
    c = rgb.astype(np.float64) / 255
    c = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    lms = c @ np.array(
        [
            [0.4122214708, 0.2119034982, 0.0883024619],
            [0.5363325363, 0.6806995451, 0.2817188376],
            [0.0514459929, 0.1073969566, 0.6299787005],
        ]
    )
    lab: np.ndarray = np.cbrt(lms) @ np.array(
        [
            [0.2104542553, 1.9779984951, 0.0259040371],
            [0.7936177850, -2.4285922050, 0.7827717662],
            [-0.0040720468, 0.4505937099, -0.8086757660],
        ]
    )
    return lab


def table() -> np.ndarray:
    return oklab(color_table("hookviz_dark").rgb)


def test_both_sides_are_as_light_as_each_other_and_grow_lighter_evenly() -> None:
    lightness = table()[:, 0]
    assert np.abs(lightness - lightness[::-1]).max() < 0.01
    upper = lightness[128:]
    assert (np.diff(upper) > 0).all()
    assert abs(upper[0] - 0.30) < 0.01
    assert abs(upper[-1] - 0.88) < 0.01
    assert np.abs(upper - np.linspace(upper[0], upper[-1], upper.size)).max() < 0.01


def test_the_middle_is_grey_and_stands_out_from_the_page() -> None:
    middle = table()[127:129].mean(0)
    assert np.hypot(*middle[1:]) < 0.02
    page = oklab((np.array([palette("dark").face[:3]]) * 255).round().astype(np.uint8))[0]
    assert middle[0] - page[0] > 0.08


def test_signs_differ_along_blue_to_yellow() -> None:
    # Both kinds of red-green blindness keep this axis (Oklab's b).
    b = table()[:, 2]
    assert (b[:100] < -0.05).all()
    assert (b[156:] > 0.05).all()


def test_matplotlib_knows_it_and_its_reverse_also_after_a_reload() -> None:
    again = importlib.reload(colormaps)
    forward, back = (color_table(name).rgb for name in ("hookviz_dark", "hookviz_dark_r"))
    np.testing.assert_array_equal(forward, back[::-1])
    assert again.DARK_DIVERGING in again.colormaps
