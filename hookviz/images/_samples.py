"""The photos that ship with hookviz.

In: a name. Out: a Picture. Must not know: what is done with it.
"""

from __future__ import annotations

from hookviz.bundled import SAMPLE_IMAGES, bundled_file
from hookviz.errors import ImageError, did_you_mean
from hookviz.images._picture import Picture
from hookviz.images._read import read_image

__all__ = ["sample_image", "sample_images"]


def sample_images() -> tuple[str, ...]:
    """Names of the photos that ship with hookviz.

    Examples:
        >>> sample_images()[0]
        'chelsea.png'
    """
    return SAMPLE_IMAGES


def sample_image(name: str = "chelsea.png") -> Picture:
    """One of the photos that ship with hookviz, all free of rights (assets/README.md).

    Args:
        name: One of ``sample_images()``, with or without its ending; default the cat.

    Returns:
        The picture.

    Raises:
        ImageError: There is no sample of that name.

    Examples:
        >>> sample_image().size
        (451, 300)
    """
    found = next((n for n in SAMPLE_IMAGES if name in (n, n.rsplit(".", 1)[0])), None)
    if found is None:
        raise ImageError(
            f"There is no sample photo '{name}'; there are {', '.join(SAMPLE_IMAGES)}.",
            remedy=did_you_mean(name, SAMPLE_IMAGES) or None,
        )
    return read_image(bundled_file("assets", found))
