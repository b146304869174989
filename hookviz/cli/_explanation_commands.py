"""The commands ``explain``, ``sweep`` and ``visualize``: why a model answers as it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hookviz.cli import _shared as shared
from hookviz.cli._group import cli
from hookviz.errors import HookvizError


@cli.command(task="Ask why")
@click.argument("image", type=shared.a_path)
@shared.model_name
@click.option(
    "-l",
    "--layer",
    "layers",
    multiple=True,
    help="A layer's name or a glob; repeat it. Methods of the input take none.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    help="What is explained: a class (number or name), 'channel 31 of features.28', 'box 0', 'mask "
    "of cat'; repeat it for several. The likeliest class if not given.",
)
@click.option(
    "--method",
    default="gradcam",
    help="gradcam, gradcam++, hirescam, layercam, xgradcam, eigencam, scorecam, ablationcam; of "
    "the input saliency, input_x_gradient, integrated_gradients, smoothgrad, occlusion, "
    "guided_backprop.",
)
@click.option("--call", default="last", help="Which call of the layers, or last.")
@click.option(
    "--channels",
    type=shared.at_least_one,
    help="scorecam and ablationcam: only so many channels, the strongest.",
)
@click.option("--signed/--unsigned", default=None, help="Draw with the sign, or cut at zero.")
@shared.cmap
@shared.out_folder
@shared.model_options
def explain(
    image: str,
    model: str,
    layers: tuple[str, ...],
    targets: tuple[str, ...],
    method: str,
    call: str,
    channels: int | None,
    signed: bool | None,
    cmap: str,
    out: str,
    weights: str,
    device: str,
) -> None:
    """Write how much each place of IMAGE counts for what a model answers to it.

    IMAGE is a file or the name of a bundled sample (chelsea.png, coffee.png, astronaut.png).
    """
    from hookviz.explanation import explain as explained

    if call != "last" and not call.isdecimal():
        raise HookvizError(f"--call is {call!r}; it must be a number from 1, or last.")
    picture = shared.picture_of(image)
    loaded = shared.load(model, weights, device)
    options: dict[str, Any] = {} if channels is None else {"channels": channels}
    with shared.counting(loaded.name, "step") as progress:
        found = explained(
            loaded,
            picture,
            list(layers) or None,
            target=list(targets) or None,
            method=method,
            call=int(call) if call != "last" else "last",
            progress=progress,
            **options,
        )
    for layer, reason in found.missing.items():
        click.echo(f"{layer}: not explained: {reason}.", err=True)
    for target, score in zip(found.targets, found.scores, strict=True):
        click.echo(f"{target}: score {score:.6g}", err=True)
    shared.say(found.export(out, options=found.options(cmap=cmap, signed=signed)))


@cli.command(task="Ask why")
@click.argument("image", type=shared.a_path)
@shared.model_name
@click.option("-l", "--layer", required=True, help="The layer's name.")
@click.option(
    "--target",
    help="What the effect is on: a class (number or name), 'channel 31 of features.28', 'box 0'. "
    "The likeliest class if not given.",
)
@click.option(
    "--by",
    type=click.Choice(["zero", "mean"]),
    default="zero",
    help="What a channel is replaced by.",
)
@click.option("--top", type=shared.at_least_one, default=20, help="How many channels are listed.")
@click.option(
    "-o",
    "--csv",
    "csv_file",
    type=shared.a_path,
    help="Also write all channels into this new CSV file.",
)
@shared.model_options
def sweep(
    image: str,
    model: str,
    layer: str,
    top: int,
    csv_file: str | None,
    weights: str,
    device: str,
    **options: Any,
) -> None:
    """Rank the channels of a layer by their effect on what a model answers to IMAGE.

    IMAGE is a file or the name of a bundled sample (chelsea.png, coffee.png, astronaut.png).
    """
    from hookviz.explanation import sweep as swept

    if csv_file is not None and Path(csv_file).exists():
        raise HookvizError(f"The file {csv_file!r} exists already; name a new one.")
    picture = shared.picture_of(image)
    loaded = shared.load(model, weights, device)
    with shared.counting(loaded.name, "channel") as progress:
        found = swept(loaded, picture, layer, progress=progress, **options)
    click.echo(f"{found.target}: score {found.before:.6g}", err=True)
    click.echo(found.table(top))
    if csv_file is not None:
        with Path(csv_file).open("x", encoding="utf-8", newline="") as file:
            file.write(found.to_csv())


@cli.command(task="Ask why")
@shared.model_name
@click.option("-l", "--layer", help="The layer's name; the model's classes if not given.")
@click.option(
    "-c", "--channel", required=True, help="A channel's number, or a class by number or name."
)
@click.option(
    "--place",
    nargs=2,
    type=click.IntRange(min=0),
    metavar="ROW COLUMN",
    help="The neuron there; the mean over all places if not given.",
)
@click.option("--size", type=click.IntRange(min=8), help="Pixels of a side.")
@click.option("--steps", type=shared.at_least_one, default=128, help="How many steps are made.")
@click.option(
    "--decay",
    type=click.FloatRange(0, 4),
    default=1.0,
    help="1 as in photos, 1.5 larger and smoother forms.",
)
@click.option(
    "--count", type=shared.at_least_one, default=1, help="How many different pictures are made."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of all random numbers.")
@shared.out_folder
@shared.model_options
def visualize(
    model: str,
    layer: str | None,
    channel: str,
    steps: int,
    out: str,
    weights: str,
    device: str,
    **options: Any,
) -> None:
    """Write a picture to which a channel of a layer answers as strongly as it can."""
    from hookviz.explanation import feature_visualization

    loaded = shared.load(model, weights, device)
    wanted = int(channel) if channel.isdecimal() else channel
    with shared.bar(total=steps, desc=loaded.name, unit="step") as shown:

        def progress(_step: int, value: float, _picture: object) -> None:
            shown.set_postfix(value=f"{value:.4g}")
            shown.update()

        found = feature_visualization(
            loaded, layer, wanted, steps=steps, progress=progress, **options
        )
    for clean, robust in zip(found.activations, found.robust, strict=True):
        click.echo(
            f"{found.objective}: {clean:.6g}, under fresh transformations {robust:.6g}", err=True
        )
    shared.say(found.export(out))
