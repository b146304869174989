"""The command ``explain``: how much each place of an image counts for what a model answers."""

from __future__ import annotations

from typing import Any

import click

from hookviz.cli import _shared as shared
from hookviz.cli._errors import SentenceCommand
from hookviz.errors import HookvizError


@click.command(cls=SentenceCommand)
@click.argument("image")
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
