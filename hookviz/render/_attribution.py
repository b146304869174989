"""Attributions: how much each place counts for a target, laid over the photo.

A record of kind "attribution" holds (T, C, H, W): the maps of T targets, with a sign, as they were
computed; of the network's input there is one map for each of its C color channels, of a layer one
in all. What is drawn is a view: the sum over the color channels, cut at zero where the method does
so; or their largest magnitude; or each channel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from hookviz.activation import Activation
from hookviz.errors import RenderError
from hookviz.render._arrange import Arranged, plain_tensor
from hookviz.render._kinds import FigureKind, register
from hookviz.render._maps import draw_maps
from hookviz.render._options import GridOptions
from hookviz.render._text import value


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Attribution(Activation):
    """How much each place of a layer, or of the network's input, counts for one or more targets.

    ``tensor`` is (T, C, H, W): T targets; C is 1 for a layer and the number of color channels for
    the input. It is what the method's formula gives, with its sign, neither cut nor normalised, in
    units of the target's score (see the method).

    Attributes:
        method: The method as its paper calls it, for example "Grad-CAM".
        targets: The targets in words, for example "class 281 (tabby)"; () where the method has
            none.
        scores: The score of each target.
        signed: Whether the map is drawn with its sign; else cut at zero, as the paper does.
        apart: (T, K) the same for tokens that stand for no place (class token); None without.
        remarks: Sentences that the figure must carry.
        recipe: What computes it again: the name of the method, how the targets are written, and
            the method's options.
    """

    method: str
    targets: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    signed: bool = False
    apart: Tensor | None = None
    remarks: tuple[str, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The layer with its call, the method and the target, as people read it."""
        where = f"{self.layer or 'input'}{f'[{self.leaf}]' if self.leaf else ''}"
        if self.calls > 1:
            where += f" call {self.call} of {self.calls}"
        if not self.targets:
            return f"{where}: {self.method}"
        more = f" and {len(self.targets) - 1} more" if len(self.targets) > 1 else ""
        return f"{where}: {self.method} of {self.targets[0]}{more}"

    @property
    def texts(self) -> dict[str, str]:
        """What a file says of it."""
        texts = {"method": self.method}
        if self.targets:
            texts["target"] = "; ".join(self.targets)
            texts["score"] = ", ".join(value(score, 6) for score in self.scores)
        return texts | {"explanation": json.dumps(self.recipe, sort_keys=True)}


def _arrange(record: Activation, options: GridOptions) -> Arranged:
    """The view of an attribution that the options ask for: a map for each target, or color."""
    if not isinstance(record, Attribution):
        raise RenderError("An attribution is drawn of what hookviz.explain gives.")
    if options.sample or options.frame is not None:
        name = "sample" if options.sample else "frame"
        raise RenderError(f"{name} is given, but an attribution has neither samples nor frames.")
    tensor, notes = plain_tensor(record.tensor)
    signed = record.signed if options.signed is None else options.signed
    maps, note = _over_colors(tensor, options.colors)
    each = len(maps) // len(tensor)
    parts = ("red", "green", "blue") if each == 3 else tuple(f"color {i}" for i in range(each))
    targets = record.targets or ("",) * len(tensor)
    names = [f"{one} {part}".strip() for one in targets for part in (parts if each > 1 else [""])]
    apart = record.apart
    if not signed:
        maps, apart = maps.clamp(min=0), None if apart is None else apart.clamp(min=0)
    if len(record.targets) > 1:
        scored = enumerate(zip(record.targets, record.scores, strict=True))
        notes += [f"{i * each} = {name}, score {value(score)}" for i, (name, score) in scored]
    else:
        notes += [f"score {value(score)}" for score in record.scores]
    notes += [note] if note else []
    if not signed and options.colors != "max" and bool((tensor < 0).any()):
        notes.append("negative values are cut to 0")
    if bool((maps.amin((1, 2)) == maps.amax((1, 2))).all()):
        notes.append("constant: no place counts more than another")
    return Arranged(
        kind="attribution",
        maps=maps,
        statement="(targets, colors, H, W)",
        notes=(*notes, *record.remarks),
        shape=tuple(tensor.shape),
        dtype=str(record.tensor.dtype).removeprefix("torch."),
        apart=apart,
        names=tuple(names) if any(names) else (),
    )


def _over_colors(tensor: Tensor, colors: str) -> tuple[Tensor, str]:
    """(T, C, H, W) as maps, and a sentence on what was done with the color channels."""
    count = tensor.shape[1]
    if count == 1:
        return tensor[:, 0], ""
    if colors == "max":
        return tensor.abs().amax(1), f"the largest magnitude of {count} color channels"
    if colors == "sum":
        return tensor.sum(1), f"sum over {count} color channels"
    names = "red, green, blue" if count == 3 else f"color channels 0 to {count - 1}"
    each = " of each target" if tensor.shape[0] > 1 else ""
    return tensor.flatten(0, 1), f"{names}{each}"


register(
    FigureKind(
        "attribution",
        draw_maps,
        channel_noun="target",
        value_noun="place",
        dead_word="constant",
        on_image=True,
        record="attribution",
        arrange=_arrange,
    )
)
