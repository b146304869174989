"""Draws an exported PNG again, those of comparisons too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookviz.comparison._comparing import Comparing
from hookviz.comparison._comparison import BETWEEN
from hookviz.comparison._sides import KeptSide, words_of
from hookviz.models import LoadedModel
from hookviz.run import reproduce as reproduce_run
from hookviz.run import run_recorded

if TYPE_CHECKING:
    from hookviz.activation import Activation
    from hookviz.export import Reproduction, RunFacts


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
    from hookviz.export import kinds_in, read_png_facts, reproduce_png

    if "comparison" not in kinds_in(read_png_facts(png)):
        return reproduce_run(png, model, image, weights)

    def run(
        facts: Mapping[str, str], layers: Iterable[str]
    ) -> tuple[RunFacts, Sequence[Activation]]:
        sides: list[KeptSide] = []
        for number in (0, 1):
            own = {
                key: text.split(BETWEEN)[number] if BETWEEN in text else text
                for key, text in facts.items()
            }
            mine, source, theirs = (
                given[number] if isinstance(given, tuple | list) else given
                for given in (model, image, weights)
            )
            again, records = run_recorded(own, layers, mine, source, theirs)
            sides.append(KeptSide(records, words_of(again), again.input_size, again))
        found = Comparing(sides[0], sides[1], "*", None, None).done()
        pairs, both = found.pairs(range(len(found)))
        return both, pairs

    return reproduce_png(png, run=run)
