"""Feature visualizations: pictures that were made for a channel, in their own colors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hookviz.activation import Activation
from hookviz.errors import RenderError
from hookviz.render._arrange import Arranged, plain_tensor
from hookviz.render._draw import Drawing, Subject
from hookviz.render._kinds import FigureKind, register
from hookviz.render._maps import draw_maps
from hookviz.render._options import GridOptions
from hookviz.render._text import value


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Visualization(Activation):
    """Pictures to which a part of a layer answers strongly.

    ``tensor`` is (N, 3, H, W) or, of a network that takes grey, (N, 1, H, W), from 0 to 1.

    Attributes:
        objective: What was made large, in words.
        clean: Its value for each picture as it is.
        robust: Its mean for each picture under fresh transformations.
        steps: How many steps were made.
        recipe: What makes them again: all parameters.
    """

    objective: str
    clean: tuple[float, ...]
    robust: tuple[float, ...]
    steps: int
    recipe: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What was made large, as the figure's title."""
        return self.objective

    @property
    def texts(self) -> dict[str, str]:
        """What a file says of it."""
        return {
            "objective": self.objective,
            "activation": ", ".join(value(one, 6) for one in self.clean),
            "activation_robust": ", ".join(value(one, 6) for one in self.robust),
            "seed": str(self.recipe.get("seed", "")),
            "visualization": json.dumps(self.recipe, sort_keys=True),
        }


def _arrange(record: Activation, options: GridOptions) -> Arranged:
    if not isinstance(record, Visualization):
        raise RenderError("A picture of this kind is what hookviz.feature_visualization gives.")
    if options.sample or options.frame is not None:
        name = "sample" if options.sample else "frame"
        raise RenderError(f"{name} is given, but pictures that were made have none.")
    tensor, notes = plain_tensor(record.tensor)
    numbers = zip(record.clean, record.robust, strict=True)
    several = len(record.clean) > 1
    notes += [
        f"{f'{i}: ' * several}value {value(clean)}, under fresh transformations {value(robust)}"
        for i, (clean, robust) in enumerate(numbers)
    ]
    rgb = tensor.shape[1] == 3
    return Arranged(
        kind="visualization",
        maps=tensor if rgb else tensor[:, 0],
        statement="(pictures, colors, H, W)",
        notes=(*notes, f"{record.steps} steps, seed {record.recipe.get('seed', '?')}"),
        shape=tuple(tensor.shape),
        dtype=str(record.tensor.dtype).removeprefix("torch."),
        rgb=rgb,
    )


def draw_pictures(subject: Subject) -> Drawing:
    """The pictures in their own colors, whatever scale the options ask for."""
    several = len(subject.arranged.maps) > 1
    options = subject.options.replace(
        scale="fixed", vmin=0.0, vmax=1.0, cmap="gray", colorbar=False, labels=several
    )
    subject = replace(subject, options=options)
    return draw_maps(subject)


register(
    FigureKind(
        "visualization",
        draw_pictures,
        "picture",
        "picture",
        value_noun="pixel of the picture",
        bare=True,
        record="visualization",
        arrange=_arrange,
    )
)
