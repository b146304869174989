"""Draws any exported PNG again: of a run, a comparison, an explanation or a visualization."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookviz.export import Reproduction
    from hookviz.models import LoadedModel


def reproduce(
    png: str | Path | bytes,
    model: LoadedModel | Any = None,
    image: Any = None,
    weights: Any = None,
) -> Reproduction:
    """Draws an exported PNG again and says whether it is the same.

    Args:
        png: The file, or its bytes.
        model: The model; None loads the one that the file names. For a file of a comparison, a
            pair (of a, of b) where they are two.
        image: The image, likewise; None uses a bundled sample where the file names one.
        weights: Of a model that is named, by the file or by ``model``, likewise; see `load_model`.
            None takes those that the file names.

    Returns:
        Whether the figure is pixel for pixel the same, else what differs.

    Raises:
        ExportError: The file is no PNG that hookviz wrote.
        HookvizError: The model or the image that the file names is not at hand.
    """
    from hookviz.export import kinds_in, read_png_facts

    if kinds_in(read_png_facts(png)) & {"attribution", "visualization"}:
        from hookviz.explanation import reproduce as reproduce_explanation

        return reproduce_explanation(png, model, image, weights)
    from hookviz.comparison import reproduce as reproduce_others

    return reproduce_others(png, model, image, weights)
