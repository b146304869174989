"""Draws an exported PNG again and says whether it is the same.

How the model is loaded and run is the caller's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from hookviz.activation import Activation
from hookviz.errors import ExportError, RenderError
from hookviz.export._facts import Key, RunFacts, facts_in, record_of
from hookviz.export._part import Again
from hookviz.export._parts import part_of
from hookviz.export._png import open_png, plain_text
from hookviz.render import GridOptions

RunAgain = Callable[[Mapping[str, str], tuple[str, ...]], tuple[RunFacts, Iterable[Activation]]]
"""Runs the model again: given what the PNG says and the layers that it shows (none for the
input), gives the facts of the new run and its activations."""

_MAX_PIXELS = 80_000_000

# Says nothing about the figure: when it was made, and what else was captured in the same run.
_PASSING = frozenset({"Software", "time", "run", "execution", "record", "options", "edits_record"})
# What is compared though the file may not say it: in words, and whether a difference counts.
_WORDS = {
    "hookviz_version": ("The version of hookviz", False),
    "torch_version": ("The version of torch", False),
    "matplotlib_version": ("The version of matplotlib", False),
    "style": ("The style of the page", True),
    "device": ("The device", False),
    "model": ("The model", False),
    "weights": ("The source of the weights", False),
    "weights_hash": ("The hash of the weights", True),
    "trained": ("Whether the model is trained", True),
    "image": ("The name of the image", False),
    "image_sha256": ("The hash of the image", True),
    "preprocessing": ("The preprocessing", False),
    "edits": ("What was edited", True),
    "shape": ("The shape of the activation", True),
    "dtype": ("The dtype of the activation", True),
}


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What came of drawing a PNG again.

    Attributes:
        identical: Every pixel is the same, and so are weights, image and all that the file says
            about it. Other versions, another device or another name of the same image
            do not count; ``differences`` names them.
        same_pixels: Every pixel is the same.
        differences: One sentence for each thing that differs; () where nothing does.
        image: It, drawn again.
        facts: What the file says about itself.
    """

    identical: bool
    same_pixels: bool
    differences: tuple[str, ...]
    image: Image.Image
    facts: Mapping[str, str]

    def __bool__(self) -> bool:
        return self.identical


def kinds_in(facts: Mapping[str, str]) -> frozenset[str]:
    """The kinds of records that a file shows, which the new run must keep."""
    return frozenset(key[3] for key in record_of(facts).keys)


def reproduce_png(png: str | Path | bytes, run: RunAgain) -> Reproduction:
    """Draws an exported PNG again from its own texts and compares.

    Args:
        png: A PNG of an export (grid, single channel, contact sheet or input), or its bytes.
        run: Runs the model over the image again.

    Returns:
        Whether it is the same, and what differs.

    Raises:
        ExportError: The file cannot be read, was not written by hookviz or is damaged; or the new
            run has no activation of the layer and call that it shows.
        Exception: Whatever ``run`` raises.
    """
    image, name = open_png(png)
    texts = facts_in(image, name)
    record = record_of(texts, name)
    part = part_of(record)
    if part is None:
        raise ExportError(f"The text 'record' of {name} is damaged: a value in it is not legal.")
    there = _decoded(image, name)
    try:
        options = GridOptions.from_json(record.options).replace(page=record.page)
    except (RenderError, RecursionError) as error:
        raise ExportError(f"The text 'options' of {name} is damaged: {error}") from error
    facts, activations = run(texts, tuple(dict.fromkeys(key[0] for key in record.keys)))
    found = _matching(record.keys, tuple(activations))
    try:
        pixels, again = part.redraw(Again(facts, found, options, record, texts))
    except RenderError as error:
        raise ExportError(f"What {name} shows cannot be drawn: {error}") from error
    differences, same_facts = _compared_texts(
        texts, {key: plain_text(text) for key, text in again.items()}
    )
    drawn = Image.fromarray(pixels)
    difference = _compared_pixels(there, np.asarray(drawn.convert("RGBA")))
    if difference:
        differences.append(difference)
    return Reproduction(
        identical=not difference and same_facts,
        same_pixels=not difference,
        differences=tuple(differences),
        image=drawn,
        facts=texts,
    )


def _decoded(image: PngImageFile, name: str) -> NDArray[np.uint8]:
    """(H, W, 4) uint8 of the file."""
    width, height = image.size
    if width * height > _MAX_PIXELS:
        raise ExportError(
            f"{name} has {width}×{height} pixels; at most {_MAX_PIXELS:,} are compared."
        )
    try:
        return np.asarray(image.convert("RGBA"))
    except Exception as error:
        raise ExportError(f"{name} is damaged: its pixels cannot be read ({error}).") from error


def _matching(keys: Sequence[Key], activations: Sequence[Activation]) -> list[Activation]:
    """The activations that a file shows. A new run counts its forwards from 1 again."""
    found: list[Activation] = []
    for layer, run, call, kind, leaf in keys:
        alike = [
            a for a in activations if (a.layer, a.call, a.kind, a.leaf) == (layer, call, kind, leaf)
        ]
        same_run = [a for a in alike if a.run == run]
        if not alike:
            calls = sorted({(a.call, a.leaf) for a in activations if a.layer == layer})
            there = ", ".join(f"call {c}" + f" leaf '{p}'" * bool(p) for c, p in calls) or "nothing"
            asked = f"call {call}" + f" leaf '{leaf}'" * bool(leaf)
            raise ExportError(
                f"The new run has no {kind.replace('_', ' ')} of layer '{layer}', {asked}; "
                f"of that layer it has {there}."
            )
        found.append((same_run or alike)[0])
    return found


def _compared_texts(there: Mapping[str, str], again: Mapping[str, str]) -> tuple[list[str], bool]:
    """What the texts say differently, and whether what matters is the same."""
    differences: list[str] = []
    same = True
    for key in dict.fromkeys([*again, *there]):
        old, new = there.get(key), again.get(key)
        if old == new or key in _PASSING or (new is None and key not in _WORDS):
            continue
        words, counts = _WORDS.get(key, (f"The text '{key}'", True))
        was = "not in the file" if old is None else f"{_short(old)} in the file"
        now = "not known now" if new is None else f"{_short(new)} now"
        differences.append(f"{words} differs: {was}, {now}.")
        same = same and not counts
    return differences, same


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return f"'{plain}'" if len(plain) <= 100 else f"'{plain[:60]}…{plain[-30:]}'"


def _compared_pixels(there: NDArray[np.uint8], again: NDArray[np.uint8]) -> str:
    """One sentence on how two figures differ; "" where they do not."""
    if there.shape != again.shape:
        sizes = [f"{picture.shape[1]}×{picture.shape[0]}" for picture in (there, again)]
        return f"The size differs: {sizes[0]} pixels in the file, {sizes[1]} now."
    other = (there != again).any(axis=2)
    count = int(other.sum())
    if count == 0:
        return ""
    y, x = (int(place) for place in np.unravel_index(int(other.argmax()), other.shape))
    share = f"{count:,} of {other.size:,} pixels differ" if count > 1 else "1 pixel differs"
    colors = [tuple(int(part) for part in picture[y, x, :3]) for picture in (there, again)]
    place = "the first" if count > 1 else "it is"
    return (
        f"{share}, {place} at column {x}, row {y}: "
        f"{colors[0]} in the file, {colors[1]} now (red, green, blue)."
    )
