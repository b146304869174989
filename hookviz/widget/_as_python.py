"""The app's state as the source of one cell that gives the same figures without the app.

What a text can name (a model's name, a file's path, a sample photo, numbers) is written out. What
only the notebook has (an own module, an array, a function for preprocessing) becomes a variable
that a comment at the top asks for. A photo or weights that may have changed meanwhile are checked
by their hash. All that comes from outside (names of photos, of classes) is written by ``repr``.
"""

from __future__ import annotations

import pprint
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hookviz.capture import Edit
from hookviz.errors import CaptureError, HookvizError, RenderError
from hookviz.images import Picture, Preprocessing, clean_name, sample_image, sample_images
from hookviz.models import LoadedModel
from hookviz.render import GridOptions, fitted, page_count
from hookviz.run import ImageEdit
from hookviz.version import __version__
from hookviz.widget._app import App
from hookviz.widget._cards import Card, card_key
from hookviz.widget._pointing import READ_BY

_WIDTH = 88


class Code(str):
    """A text that is source already, unlike a str, which is written as a literal."""

    __slots__ = ()


def python_of(app: App) -> str:
    """The source of a cell that draws what an app shows.

    Args:
        app: The app. What it has not run yet is run by the cell.

    Returns:
        Python that ends with ``figures``: those of ``app.figures`` under the same labels.

    Raises:
        HookvizError: Model, image or layers are not chosen yet.
    """
    model: LoadedModel | None = app.model
    picture: Picture | None = app.image
    layers = list(app.tree.selected)
    if model is None or picture is None or not layers:
        raise HookvizError("There is nothing to copy as Python yet.", remedy=app.why_not or None)
    asked: list[str] = []
    with app.lock:
        body = [
            *_model_lines(model, app.device, asked),
            *_image_lines(picture, asked),
            f"layers = {_literal(layers)}",
            *_run_lines(app, model, asked, picture),
            *_figure_lines(app),
            *_pin_lines(app),
        ]
    head = f"# Made by the app of hookviz {__version__}: the same figures without it."
    imports = ["import hookviz", "from IPython.display import display", ""]
    return "\n".join([head, *asked, *imports, *body, ""])


# ── model


def load_arguments(model: LoadedModel) -> dict[str, Any]:
    """The keywords that `load_model` needs to make a model again, beside its device.

    Args:
        model: The model.

    Returns:
        Those that differ from the defaults; without a state dict and a preprocessing of the
        user's, which no text names.
    """
    given: dict[str, Any] = {}
    recipe = model.recipe
    if recipe is not None:
        if recipe.weights != "auto" and not recipe.own_weights:
            given["weights"] = recipe.weights
        if recipe.num_classes is not None:
            given["num_classes"] = recipe.num_classes
        if not recipe.strict:
            given["strict"] = False
        if model.name != recipe.name:
            given["name"] = model.name
        if model.categories != recipe.categories:
            given["categories"] = list(model.categories)
    if model.dtype != torch.float32:
        given["dtype"] = str(model.dtype).removeprefix("torch.")
    return given


def named_model(model: LoadedModel) -> str | None:
    """The name or path that a model is loaded by; None for the user's own object."""
    return None if model.recipe is None else model.recipe.model


def own_preprocessing(model: LoadedModel) -> bool:
    """Whether the caller gave a model another preprocessing than its source."""
    return model.recipe is not None and model.preprocess is not model.recipe.preprocess


def is_file(weights: str | None) -> bool:
    """Whether weights are a file of the user's (which a recipe names by its absolute path)."""
    return weights is not None and Path(weights).is_absolute()


def _model_lines(model: LoadedModel, device: str, asked: list[str]) -> Iterator[str]:
    recipe, what = model.recipe, named_model(model)
    given = load_arguments(model)
    of = type(model.module).__name__
    if what is None:
        kind = "LoadedModel" if recipe is None else "nn.Module"
        asked.append(f"# Set my_model first: your {kind} {of!a}, as the app was given it.")
    if recipe is not None and recipe.own_weights:
        asked.append(f"# Set my_weights first: the state dict of the {of!a}.")
        given["weights"] = Code("my_weights")
    place = Code("my_model") if what is None else what
    yield f"model = {_call('hookviz.load_model', [place], {**given, 'device': device})}"
    changeable = what is None or is_file(what) or "my_weights" in given.values()
    if (changeable or is_file(given.get("weights"))) and (digest := model.weights_hash):
        yield f"if model.weights_hash != {digest!r}:"
        yield '    raise ValueError("The weights are not those of the figures in the app.")'


# ── image


def sample_named(picture: Picture) -> str:
    """The sample photo that a picture is; "" for none."""
    names = [name for name in sample_images() if Path(picture.path).name == name]
    return next((n for n in names if sample_image(n).sha256 == picture.sha256), "")


def is_pixels(picture: Picture) -> bool:
    """Whether a picture came as pixels (an array, a tensor, a PIL image), not as a file."""
    return not picture.path and not picture.data


def _image_lines(picture: Picture, asked: list[str], variable: str = "image") -> Iterator[str]:
    sample = sample_named(picture)
    source: Any = picture.path or picture.name
    name = {"name": picture.name}
    if sample:
        source = Code(f"hookviz.sample_image({sample!r})")
    elif is_pixels(picture):
        source = Code(f"my_{variable}")
        what = f"the image {picture.name!a}, as the app was given it."
        asked.append(f"# Set {source} first: {what}")
    elif not picture.path:
        asked.append(f"# Put the photo that was uploaded beside this notebook as {picture.name!a};")
        asked.append(f"# its sha256 is {picture.sha256}.")
    if isinstance(source, Code) and picture.name == sample:
        yield f"{variable} = {source}"
        return
    if isinstance(source, str) and clean_name(source) == picture.name:
        name = {}
    yield f"{variable} = {_call('hookviz.read_image', [source], name)}"
    yield f"if {variable}.sha256 != {picture.sha256!r}:"
    yield '    raise ValueError("The image is not that of the figures in the app.")'


def _run_lines(app: App, model: LoadedModel, asked: list[str], picture: Picture) -> Iterator[str]:
    given: dict[str, Any] = {}
    if app.image_input.choice != "model" or own_preprocessing(model):
        how = app.image_input.preprocessing
        given["preprocess"] = Code("preprocess")
        if type(how) is Preprocessing:
            plain = Preprocessing()
            steps = {f.name: getattr(how, f.name) for f in fields(how)}
            steps = {name: v for name, v in steps.items() if v != getattr(plain, name)}
            yield f"preprocess = {_call('hookviz.Preprocessing', [], steps)}"
        else:
            asked.append(f"# Set preprocess first: your own ({how.describe()!a}).")
    places = [Code(name) for name in ("model", "image", "layers")]
    chosen: tuple[Edit, ...] = app.what_if.chosen
    if chosen:
        yield from _edit_lines(chosen, picture, asked)
    edited = {**given, "edits": Code("edits")}
    if app.edits:
        given = edited
    yield f"run = {_call('hookviz.feature_maps', places, given)}"
    if chosen and not app.edits:
        yield "# What if: the edits were tried beside the run."
        yield f"edited_run = {_call('hookviz.feature_maps', places, edited)}"
        yield "print(edited_run.predictions)"


# ── edits


def _edit_lines(edits: tuple[Edit, ...], picture: Picture, asked: list[str]) -> Iterator[str]:
    """``edits``, and the images that they take values from."""
    images = {picture.sha256: "image"}
    lines = []
    for number, one in enumerate(edits, 1):
        try:
            record = one.to_json()
        except CaptureError:
            asked.append(f"# Set edit_{number} first: your own, {str(one)!a}.")
            lines.append(Code(f"edit_{number}"))
            continue
        name, layers = record.pop("edit"), record.pop("layers")
        given: list[Any] = [layers]
        if isinstance(one, ImageEdit):
            if one.image.sha256 not in images:
                variable = f"other_image_{len(images)}"
                images[one.image.sha256] = variable
                yield from _image_lines(one.image, asked, variable)
            given = [Code(images[one.image.sha256]), layers]
            record = {k: v for k, v in record.items() if k not in ("image", "image_sha256")}
        where = "run" if isinstance(one, ImageEdit) else "capture"
        if isinstance(record.get("place"), list):
            record["place"] = tuple(record["place"])
        yield f"from hookviz.{where} import {name}"
        lines.append(_call(name, given, record))
    yield "edits = ["
    yield from (textwrap.indent(f"{line},", "    ") for line in lines)
    yield "]"


# ── figures


def _figure_lines(app: App) -> Iterator[str]:
    wanted = list(_wanted(app))
    changed = [changed_from_default(options) for *_, options in wanted]
    shared = {
        name: value
        for name, value in (changed[0] if changed else {}).items()
        if all(name in other and other[name] == value for other in changed)
    }
    if shared:
        yield f"view = {_literal(shared)}"
    yield "figures = {"
    for (label, places, which, _), options in zip(wanted, changed, strict=True):
        own = {name: value for name, value in options.items() if name not in shared}
        call = _call("run.figure", places, {**which, **own}, "**view" if shared else "")
        yield textwrap.indent(f"{label!r}: {call},", "    ")
    yield "}"
    yield "display(*figures.values())"


Wanted = tuple[str, list[Any], dict[str, Any], GridOptions]


def _wanted(app: App) -> Iterator[Wanted]:
    """Label, layer and call, leaf or kind, options: of each card and of what is not run yet."""
    gallery, hidden = app.gallery, set(app.tree.hidden_calls)
    shown = gallery.shown_cards
    yield from (wanted for card in shown if (wanted := _of_card(app, card)) is not None)
    there = {card.layer for card in shown}
    for layer in app.tree.selected:
        facts = app.tree.facts.get(layer, {})
        if layer in there or "r" in facts:
            continue
        calls = facts.get("c", 1)
        for call in range(1, calls + 1):
            if card_key(layer, call) not in hidden:
                label = f"{layer or '(model)'}" + (f" call {call} of {calls}" if calls > 1 else "")
                places = [layer, call] if calls > 1 else [layer]
                yield label, places, {}, gallery.page_options


def _of_card(app: App, card: Card) -> Wanted | None:
    record = app.gallery.record_of(card)
    if record is None or card.activation is None:
        return None
    options = app.gallery.options_of(card)
    try:
        # As `draw_card` does: what this layer cannot follow is left out, the last page is the last.
        pages, options, _ = fitted(options, partial(page_count, record, facts=card.origin.facts))
        options = options.replace(page=min(options.page, pages - 1))
    except RenderError:
        return None  # the card has a sentence in place of a figure
    label = card.activation.label
    if record.kind == "weight":
        return label, [card.layer], {"kind": "weight"}, options
    places: list[Any] = [card.layer] if card.calls == 1 else [card.layer, card.call]
    return label, places, {"leaf": card.leaf} if len(card.leaves) > 1 else {}, options


def _pin_lines(app: App) -> Iterator[str]:
    """What stands at the pinned place, and what it depends on."""
    pin = app.pin
    card = app.gallery.card(pin["key"]) if pin else None
    if card is None or card.activation is None or card.stale:
        return
    options = changed_from_default(card.drawn or app.gallery.options)
    place = {"layer": card.layer, "y": pin["y"], "x": pin["x"]}
    place |= {"call": card.call} if card.calls > 1 else {}
    place |= {"leaf": card.leaf} if len(card.leaves) > 1 else {}
    place |= {name: value for name, value in options.items() if name in READ_BY}
    yield f"place = {_literal(place)}  # pinned in the app"
    yield f"print(run.value(channel={pin['channel']}, **place))"
    yield "print(run.vector(**place).top(5))"
    if pin.get("image"):
        yield "print(run.receptive_field(**place))"


def changed_from_default(options: GridOptions) -> dict[str, Any]:
    """The options that are not the defaults."""
    plain = GridOptions()
    return {n: v for n, v in vars(options).items() if v != getattr(plain, n)}


# ── source


def _literal(value: Any) -> str:
    return pprint.pformat(value, width=_WIDTH, compact=True, sort_dicts=False)


def _call(
    function: str, positional: Iterable[Any], keywords: Mapping[str, Any], rest: str = ""
) -> Code:
    """A call, on one line where it fits."""
    parts = [_source(value) for value in positional]
    parts += [f"{name}={_source(value)}" for name, value in keywords.items()]
    parts += [rest] if rest else []
    line = f"{function}({', '.join(parts)})"
    if len(line) <= _WIDTH - 12:
        return Code(line)
    inner = "".join(f"{part},\n" for part in parts)
    return Code(f"{function}(\n{textwrap.indent(inner, '    ')})")


def _source(value: Any) -> str:
    return str(value) if isinstance(value, Code) else repr(value)
