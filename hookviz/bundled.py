"""Where the files that ship with hookviz lie.

A wheel carries ``assets/`` and ``notebooks/`` inside the package; a checkout (also an editable
installation) keeps them beside it.
"""

from __future__ import annotations

from pathlib import Path

from hookviz.errors import HookvizError

__all__ = ["SAMPLE_CLIP", "SAMPLE_IMAGES", "bundled_file"]

SAMPLE_IMAGES = ("chelsea.png", "coffee.png", "astronaut.png")
"""Names of the photos that ship with hookviz, all free of rights (see assets/README.md)."""

SAMPLE_CLIP = "clip.webp"
"""Name of the animation that ships with hookviz."""


def bundled_file(folder: str, name: str) -> Path:
    """The path of a file that ships with hookviz.

    Args:
        folder: "assets" or "notebooks".
        name: The file's name in that folder.

    Returns:
        An existing path.

    Raises:
        HookvizError: The installation lacks the file.
    """
    package = Path(__file__).resolve().parent
    for root in (package, package.parent):
        path = root / folder / name
        if path.is_file():
            return path
    raise HookvizError(
        f"The file {folder}/{name}, which ships with hookviz, is missing from this installation.",
        remedy="Install hookviz again.",
    )
