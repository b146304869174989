"""The commands about models: ``models``, ``layers``, ``maps``, ``filters``, ``reproduce``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from hookviz._text import bytes_text, columns, shape_text
from hookviz.cli import _shared as shared
from hookviz.cli._group import cli
from hookviz.errors import HookvizError

if TYPE_CHECKING:
    from hookviz.activation import Activation
    from hookviz.capture import LayerInfo
    from hookviz.export import ValueFormat
    from hookviz.models import LoadedModel
    from hookviz.render import GridOptions, Hold
    from hookviz.run import Run


@cli.command(task="Look at a model")
@click.argument("model")
@shared.model_options
@click.option(
    "--image",
    type=shared.a_path,
    help="Run this image (a file, or a sample's name) and add shapes and calls.",
)
@click.option(
    "--search",
    default="",
    show_default=False,
    help="Only layers whose name or type holds this text.",
)
@shared.as_json
def layers(
    model: str, weights: str, device: str, image: str | None, search: str, as_json: bool
) -> None:
    """List the layers of MODEL: name, type, parameters.

    Keys of --json: model, layers (layer, type, parameters; with --image also calls and outputs, a
    list of call, leaf and shape). The model itself is the layer "".
    """
    from hookviz.capture import list_layers
    from hookviz.models import is_local, load_model

    if weights == "auto":
        # Names, types and shapes are the same without weights; nothing is downloaded for a list.
        # What needs no download may have other layers: the bundled VGG16, a checkpoint.
        loaded = load_model(model, weights="auto" if is_local(model) else None, device="cpu")
    else:
        loaded = shared.load(model, weights, device)
    seen: dict[str, list[Activation]] = {}
    for one in [] if image is None else _shapes(loaded, image):
        seen.setdefault(one.layer, []).append(one)
    rows = [
        row
        for row in list_layers(loaded.module)
        if search.lower() in f"{row.name} {row.type}".lower()
    ]
    if not rows:
        raise HookvizError(f"No layer of {model} holds '{search}' in its name or type.")
    if as_json:
        listed = [_layer_facts(row, None if image is None else seen) for row in rows]
        shared.say_json(model=loaded.name, layers=listed)
        return
    table: list[tuple[str, ...]] = []
    for row in rows:
        cells = [row.name or "(model)", row.type, f"{row.parameters:,}"]
        if image is not None:
            found = seen.get(row.name, [])
            shapes = [f"{a.leaf}: " * bool(a.leaf) + shape_text(a.shape) for a in found]
            cells.append(str(found[0].calls if found else 0))
            cells.append(", ".join(dict.fromkeys(shapes)) or "did not run")
        table.append(tuple(cells))
    head = ("layer", "type", "parameters", "calls", "output shapes")
    click.echo(columns([head[: len(table[0])], *table]))


def _layer_facts(row: LayerInfo, seen: dict[str, list[Activation]] | None) -> dict[str, Any]:
    """A layer as --json has it; with its calls where a model was run."""
    facts: dict[str, Any] = {"layer": row.name, "type": row.type, "parameters": row.parameters}
    if seen is not None:
        found = seen.get(row.name, [])
        facts["calls"] = found[0].calls if found else 0
        facts["outputs"] = [{"call": a.call, "leaf": a.leaf, "shape": list(a.shape)} for a in found]
    return facts


def _shapes(model: LoadedModel, image: str) -> Sequence[Activation]:
    """What every layer gives for an image, as tensors without values."""
    from hookviz.capture import layer_shapes
    from hookviz.errors import CaptureError
    from hookviz.images import network_input
    from hookviz.models import feed

    picture = shared.picture_of(image)
    received = network_input(picture, model.preprocess, device=model.device, dtype=model.dtype)
    args, kwargs = feed(model, received.tensor)
    try:
        return layer_shapes(model.module, args, kwargs)
    except CaptureError:  # a forward that looks at values, as detection models do
        everything = list(dict(model.module.named_modules()))
        run = shared.run_once(model, picture, everything, transform=lambda t: t.to("meta"))
        return run.activations


def _grid_options(command: shared.Command) -> shared.Command:
    """What both commands that write grids take."""
    options = (
        shared.layer_names,
        shared.out_folder,
        click.option(
            "--format",
            "formats",
            type=click.Choice(["png", "svg", "pdf"]),
            multiple=True,
            default=["png"],
            help="Of the grids; repeat it for several.",
        ),
        shared.cmap,
        click.option(
            "--scale",
            default="auto",
            type=click.Choice(["auto", "full", "channel", "layer", "symmetric", "percentile"]),
        ),
        click.option(
            "--order",
            default="index",
            help="index, mean, max, variance, sparsity, similarity:K; for filters also norm.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return shared.model_options(command)


def _parts(formats: tuple[str, ...]) -> set[str]:
    return {"grids" if form == "png" else form for form in formats}


@cli.command(task="Look at an image")
@click.argument("image", type=shared.a_path)
@shared.model_name
@click.option(
    "--channels", help="Also write these channels, 1 pixel per activation: 0-15,42 or all."
)
@click.option(
    "--values", type=click.Choice(["npz", "safetensors"]), help="Also write the raw values."
)
@click.option(
    "--what",
    "parts",
    multiple=True,
    help="Write this instead of PNGs; repeat it for several: page (one HTML file with "
    "the values of the maps), contact, input, grids, svg, pdf, channels, values.",
)
@click.option("--figure", default="auto", help="auto, or another kind: statistics.")
@click.option(
    "--attention",
    is_flag=True,
    help="Also write where each head of the layers, and of all in them, looks on the photo.",
)
@click.option(
    "--query",
    help="With --attention, from where: class, a patch ROW,COLUMN, or all. The class token, or the "
    "middle where there is none, if not given.",
)
@click.option(
    "--heads",
    default="each",
    type=click.Choice(["each", "mean"]),
    help="With --attention, each head or their mean.",
)
@click.option(
    "--every",
    type=click.IntRange(1),
    help="IMAGE is an animation (GIF, WebP, PNG, AVIF): write the grids of each N-th frame.",
)
@click.option(
    "--hold",
    type=click.Choice(["none", "running", "fixed"]),
    default="none",
    help="With --every, one scale for a layer: the widest so far, or that of the first frame.",
)
@_grid_options
def maps(
    image: str,
    model: str,
    layers: tuple[str, ...],
    out: str,
    formats: tuple[str, ...],
    channels: str | None,
    values: ValueFormat | None,
    parts: tuple[str, ...],
    attention: bool,
    query: str | None,
    heads: Literal["each", "mean"],
    every: int | None,
    hold: Hold,
    weights: str,
    device: str,
    **drawing: str,
) -> None:
    """Write the feature maps of IMAGE as grids with a manifest.

    IMAGE is a file or the name of a bundled sample (chelsea.png, coffee.png, astronaut.png).
    """
    if every is not None:
        others: dict[str, Any] = {"--channels": channels, "--values": values, "--what": parts}
        others["--format"] = formats != ("png",)
        others["--attention"] = attention
        if given := [option for option, value in others.items() if value]:
            raise HookvizError(f"--every writes grids as PNGs alone; leave out {given[0]}.")
        _maps_of_frames(image, model, layers, out, every, hold, weights, device, drawing)
        return
    if hold != "none":
        raise HookvizError("--hold is for the frames of an animation; give --every as well.")
    from hookviz.capture import select_layers
    from hookviz.export import chosen_parts
    from hookviz.render import GridOptions, parse_channels

    names = shared.selected(layers, model)
    options = GridOptions().replace(**drawing)
    looks = options.replace(heads=heads, query=_query(query))
    if query is not None and not attention:
        raise HookvizError("--query is for attention; give --attention as well.")
    if channels not in (None, "all"):
        parse_channels(channels)
    what = {part.name for part in chosen_parts(parts)} if parts else {"input"}
    asked = click.get_current_context().get_parameter_source("formats")
    if not parts or asked is not click.core.ParameterSource.DEFAULT:
        what |= _parts(formats)
    what |= {name for name, chosen in (("channels", channels), ("values", values)) if chosen}
    picture = shared.picture_of(image)
    loaded = shared.load(model, weights, device)
    count = len(select_layers(loaded.module, names))
    with shared.bar(total=count, desc=loaded.name, unit="layer") as shown:
        run = shared.run_once(
            loaded, picture, names, attention=attention,
            on_activation=lambda a: shown.update(a.kind == "output"),
        )  # fmt: skip
    for layer, reason in run.missing.items():
        click.echo(f"{layer}: no activation: {reason}.", err=True)
    if not run.activations:
        raise HookvizError("None of the layers gave an activation, so nothing was written.")
    if "page" in what:
        size = bytes_text(run.page_size(**vars(options)))
        click.echo(f"page.html will have {size} at most", err=True)
    with shared.counting("writing", "file") as progress:
        result = run.export(
            out,
            what=what,
            options=options,
            own_options={
                a.label: looks.replace(overlay=_is_over_the_photo(run, a, looks))
                for a in run.activations
                if a.kind == "attention"
            },
            channels=None if channels == "all" else channels,
            values=values or "npz",
            progress=progress,
        )
    click.echo(shared.with_options(str(run.predictions)), err=True)
    shared.say(result)


def _query(text: str | None) -> Any:
    """What --query was given, as `GridOptions.query` has it."""
    numbers = (text or "").split(",")
    if len(numbers) == 2 and all(part.strip().isdecimal() for part in numbers):
        return int(numbers[0]), int(numbers[1])
    if text not in (None, "class", "all"):
        raise HookvizError(f"--query is {text!r:.40}; it is class, all, or a patch: 3,4.")
    return text


def _is_over_the_photo(run: Run, record: Activation, options: GridOptions) -> bool:
    """Whether what a record's heads look at lies on the photo."""
    drawing = run.drawing(record.layer, record.call, kind=record.kind, options=options)
    return drawing.kind == "attention-map"


def _maps_of_frames(
    image: str,
    model: str,
    layers: tuple[str, ...],
    out: str,
    every: int,
    hold: Hold,
    weights: str,
    device: str,
    drawing: dict[str, str],
) -> None:
    """The grids of an animation's frames."""
    from hookviz.capture import select_layers
    from hookviz.export import FrameExport
    from hookviz.images import read_frames
    from hookviz.render import GridOptions

    names = shared.selected(layers, model)
    options = GridOptions().replace(**drawing)
    frames = read_frames(shared.image_source(image), every=every)
    loaded = shared.load(model, weights, device)
    names = list(select_layers(loaded.module, names).values())
    with FrameExport(out, options=options, hold=hold) as export:
        for frame in shared.bar(iterable=frames, desc=loaded.name, unit="frame"):
            run = shared.run_once(loaded, frame, names)
            export.add(run.facts, run.activations, number=frame.number, seconds=frame.seconds)
        result = export.finish()
    shared.say(result)


@cli.command(task="Look at a model")
@click.argument("model")
@click.option("--input-channel", type=int, help="Draw the kernels of this input channel.")
@click.option("--output-channel", type=int, help="Draw all kernels of this output channel.")
@_grid_options
def filters(
    model: str,
    layers: tuple[str, ...],
    out: str,
    formats: tuple[str, ...],
    weights: str,
    device: str,
    **drawing: Any,
) -> None:
    """Write the filters of MODEL as grids with a manifest; no image is needed."""
    from hookviz.capture import select_layers
    from hookviz.export import write_export
    from hookviz.render import GridOptions
    from hookviz.run import facts_of, layer_weights

    names = shared.selected(layers, model)
    options = GridOptions().replace(**drawing)
    loaded = shared.load(model, weights, device)
    records = [layer_weights(loaded.module, n) for n in select_layers(loaded.module, names)]
    shared.say(write_export(facts_of(loaded), records, out, what=_parts(formats), options=options))


@cli.command(task="Look at an image")
@click.argument("png", type=shared.a_path)
@click.option(
    "--image",
    multiple=True,
    type=shared.a_path,
    help="The image; a bundled sample is found by itself. Of a comparison, twice: for A, then B.",
)
@click.option(
    "--model",
    multiple=True,
    help="A name or a checkpoint; the model that the file names if not given. Likewise.",
)
@click.option(
    "--weights",
    multiple=True,
    help="As for `hookviz maps`; those that the file names if not given. Likewise.",
)
def reproduce(
    png: str, image: tuple[str, ...], model: tuple[str, ...], weights: tuple[str, ...]
) -> None:
    """Draw an exported PNG again and say whether it is the same (exit code 1 if not).

    What is given in place of what the file names is compared with it: weights and image by their
    hashes, and a difference is one sentence.
    """
    from hookviz._reproduce import reproduce as draw_again
    from hookviz.export import kinds_in, read_png_facts

    sides = 2 if "comparison" in kinds_in(read_png_facts(png)) else 1
    for option, values in (("--model", model), ("--weights", weights)):
        if len(values) > sides:
            what = "a comparison of two" if sides == 2 else "no comparison"
            raise HookvizError(f"{option} was given {len(values)} times, and {png!r} is {what}.")
    try:
        outcome = draw_again(
            png, _one_or_all(model), _one_or_all([*map(shared.image_source, image)]),
            _one_or_all(weights),
        )  # fmt: skip
    except HookvizError as error:
        remedies = {
            "model-not-at-hand": "Name its weights with --weights. Draw it again from Python, "
            "where the model can be passed, if it is a module of your own.",
            "image-not-at-hand": "Name its file with --image.",
        }
        if error.code in remedies:
            raise HookvizError(error.message, remedy=remedies[error.code]) from error
        raise
    said = ["identical, pixel for pixel"] if outcome.identical else []
    click.echo("\n".join([*said, *outcome.differences]))
    sys.exit(0 if outcome.identical else 1)


def _one_or_all(given: Sequence[Any]) -> Any:
    """What an option was given: nothing, one value, or several."""
    return None if not given else given[0] if len(given) == 1 else list(given)


@cli.command(task="Look at a model")
@click.argument("search", default="")
@shared.as_json
def models(search: str, as_json: bool) -> None:
    """List models whose name holds SEARCH, with their weights.

    All are torchvision's; a SEARCH that begins with timm: lists timm's. Keys of --json: models
    (model, weights: name, file, default, megabytes, cached, classes, url; DEFAULT first).
    """
    from hookviz.models import list_models, list_weights

    found = list_models(search)
    if not found:
        raise HookvizError(
            f"No model's name holds '{search}'.", remedy="`hookviz models` lists all of them."
        )
    if as_json:
        listed = [{"model": name, "weights": _weights_facts(name)} for name in found]
        shared.say_json(models=listed)
        return
    rows: list[tuple[str, ...]] = [("model", "weights, DEFAULT first", "MB", "on this machine")]
    for name in found:
        weights = list_weights(name)
        names = ", ".join(w.name for w in weights) or "none"
        size = f"{weights[0].megabytes:,.0f}" if weights and weights[0].megabytes else ""
        cached = ", ".join(w.name for w in weights if w.cached) or "no"
        rows.append((name, names, size, cached))
    click.echo(columns(rows))


def _weights_facts(model: str) -> list[dict[str, Any]]:
    """The weights of a model as --json has them."""
    from hookviz.models import list_weights

    keys = ("name", "file", "default", "megabytes", "cached", "classes", "url")
    return [{key: getattr(one, key) for key in keys} for one in list_weights(model)]
