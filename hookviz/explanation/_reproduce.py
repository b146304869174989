"""Draws an exported PNG of an explanation or a visualization again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookviz.errors import ExportError
from hookviz.explanation._explain import explain
from hookviz.explanation._visualization import visualize_again
from hookviz.run import recorded_image, recorded_model

if TYPE_CHECKING:
    from hookviz.activation import Activation
    from hookviz.export import Reproduction, RunFacts


def reproduce(
    png: str | Path | bytes, model: Any = None, image: Any = None, weights: Any = None
) -> Reproduction:
    """Draws an exported PNG of an explanation again and says whether it is the same.

    Args:
        png: The file, or its bytes.
        model: The model; None loads the one that the file names.
        image: The image; None uses a bundled sample where the file names one.
        weights: Of a model that is named, by the file or by ``model``; see `load_model`. None takes
            those that the file names.

    Returns:
        Whether the figure is pixel for pixel the same, else what differs.

    Raises:
        ExportError: The file is no PNG that hookviz wrote, or does not say all that it takes: a
            target that was a function.
        HookvizError: The model or the image that the file names is not at hand.
    """
    from hookviz.export import reproduce_png

    def run(
        facts: Mapping[str, str], _layers: Iterable[str]
    ) -> tuple[RunFacts, Iterable[Activation]]:
        if text := facts.get("visualization"):
            painted = visualize_again(
                _parsed(text, "visualization"), recorded_model(facts, model, weights)
            )
            return painted.facts, [painted.record]
        recipe = _recipe(facts.get("explanation", ""))
        loaded, source = recorded_model(facts, model, weights), recorded_image(facts, image)
        found = explain(
            loaded,
            source,
            recipe["layers"] or None,
            target=recipe["target"] or None,
            method=recipe["method"],
            call=recipe["call"],
            leaf=recipe["leaf"],
            **recipe["options"],
        )
        return found.facts, found.activations

    return reproduce_png(png, run=run)


def _parsed(text: str, name: str) -> dict[str, Any]:
    """What a text of the file holds.

    Raises:
        ExportError: It is no JSON object.
    """
    try:
        recipe = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExportError(f"The text '{name}' of the file is damaged: not JSON.") from error
    if not isinstance(recipe, dict):
        raise ExportError(f"The text '{name}' of the file is damaged: no JSON object.")
    return recipe


def _recipe(text: str) -> dict[str, Any]:
    """What computes an explanation again, read from a file.

    Raises:
        ExportError: It is not what hookviz writes, or not all of it can be written.
    """
    recipe = _parsed(text, "explanation")
    match recipe:
        case {
            "method": str(),
            "layers": [*layers],
            "target": [*targets],
            "call": int() | "last",
            "leaf": str() | None,
            "options": {**options},
        } if all(isinstance(one, str) for one in (*layers, *targets)):
            if "" in targets:
                raise ExportError(
                    "The file explains a function of the output, and no file holds a function.",
                    remedy="Explain it again from Python and compare the figures.",
                )
            if "as given" in options.values():
                raise ExportError(
                    "The file was made with a tensor that it does not hold (baseline as given).",
                    remedy="Explain it again from Python and compare the figures.",
                )
            return recipe
    raise ExportError("The text 'explanation' of the file is damaged: a value in it is not legal.")
